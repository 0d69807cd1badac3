//! Which replica is read first: the nearest that works.

use kvferry_proto::Incarnation;

use super::load::Place;

/// Who reads.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    /// Its engine.
    pub(crate) client: Incarnation,
    /// Its host; empty where it has no name.
    pub(crate) host: String,
}

/// How far a copy is: what is nearer is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    /// In memory of this process.
    Here,
    /// In memory of another process of this host.
    Host,
    /// On another host.
    Network,
}

impl Reader {
    fn distance(&self, place: &Place) -> Distance {
        if place.owner() == self.client {
            Distance::Here
        } else if !self.host.is_empty() && place.segment.host == self.host {
            Distance::Host
        } else {
            Distance::Network
        }
    }

    /// The indices of copies in the order in which they are to be tried: those whose owners are
    /// suspected to be gone last, near ones before far ones. Among equals `turn` decides, so that
    /// readers that draw it at random spread over them.
    pub(crate) fn order(
        &self,
        places: &[Place],
        is_suspect: impl Fn(Incarnation) -> bool,
        turn: usize,
    ) -> Vec<usize> {
        let mut order: Vec<usize> = (0..places.len()).collect();
        let count = places.len().max(1);
        order.sort_by_key(|index| {
            let place = &places[*index];
            let distance = self.distance(place);
            (is_suspect(place.owner()), distance, (index + turn % count) % count)
        });
        order
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::segment;
    use super::*;

    fn places() -> Vec<Place> {
        let at = |owner, host| Place { segment: segment(owner, host), offset: 0 };
        vec![at(4, "b"), at(3, "b"), at(2, "a"), at(1, "a")]
    }

    fn reader(host: &str) -> Reader {
        Reader { client: Incarnation(1), host: host.into() }
    }

    #[test]
    fn the_own_segment_comes_first_then_the_host_then_the_network() {
        assert_eq!(reader("a").order(&places(), |_| false, 0), [3, 2, 0, 1]);
    }

    #[test]
    fn hosts_without_a_name_are_not_the_same() {
        let places = [2, 3].map(|owner| Place { segment: segment(owner, ""), offset: 0 }).to_vec();
        let distances: Vec<_> = places.iter().map(|place| reader("").distance(place)).collect();
        assert_eq!(distances, [Distance::Network; 2]);
    }

    #[test]
    fn a_suspect_comes_last_however_near() {
        let order = reader("a").order(&places(), |owner| owner == Incarnation(1), 0);
        assert_eq!(order, [2, 0, 1, 3]);
    }

    #[test]
    fn each_of_equals_comes_first_at_some_turn() {
        let reader = Reader { client: Incarnation(9), host: "c".into() };
        let mut first: Vec<_> =
            (0..4).map(|turn| reader.order(&places(), |_| false, turn)[0]).collect();
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2, 3]);
    }
}
