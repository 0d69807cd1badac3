//! Lanes whose rings a reactor's thread looks at while it does not sleep.

use std::collections::BTreeMap;

use super::lane::Lane;
use super::look::LOOKS;

/// In how many rounds in turn rings may be all that is looked at, because there always is something, before
/// sockets are again.
const ROUNDS: u32 = 16;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Hot {
    lanes: BTreeMap<usize, Lane>,
    rounds: u32,
}

impl Hot {
    /// More is likely to follow on a lane: where it has a ring, the other end need not wake anybody from
    /// now on.
    pub(super) fn warm(&mut self, lane: &Lane) {
        if let Some(beside) = &lane.0.ring
            && !self.lanes.contains_key(&lane.0.token)
        {
            beside.ring().watch();
            self.lanes.insert(lane.0.token, lane.clone());
        }
    }

    /// From now on the other ends wake somebody. Returns the lanes on which something has come meanwhile.
    pub(super) fn cool(&mut self) -> Vec<usize> {
        let cooled = std::mem::take(&mut self.lanes).into_iter();
        let has_come = |lane: &Lane| lane.0.ring.as_ref().is_some_and(|it| it.ring().unwatch());
        cooled.filter(|(_, lane)| has_come(lane)).map(|(token, _)| token).collect()
    }

    /// A lane is closed.
    pub(super) fn remove(&mut self, lane: &Lane) {
        self.lanes.remove(&lane.0.token);
    }

    /// The lanes on which something has come: looked for for a moment, where there `has_time` for it.
    pub(super) fn due(&mut self, has_time: bool) -> Vec<usize> {
        let looks = if has_time { LOOKS } else { 1 };
        let looks = looks.checked_div(self.lanes.len()).unwrap_or(0);
        for _ in 0..looks.max(1) {
            let due = self.lanes.values().filter(|lane| lane.is_due());
            let due: Vec<_> = due.map(|lane| lane.0.token).collect();
            if !due.is_empty() {
                self.rounds = (self.rounds + 1) % ROUNDS;
                return due;
            }
            std::hint::spin_loop();
        }
        self.rounds = 0;
        Vec::new()
    }

    /// Whether what was found has its turn before sockets are looked at.
    pub(super) fn comes_first(&self) -> bool {
        self.rounds > 0
    }
}
