//! A session with one bulk lane by each way, in virtual time.

use kvferry_proto::frame::{Control, Reply, Status};
use kvferry_proto::{Incarnation, TransferId};

use super::*;
use crate::net::Endpoint;
use crate::session::Settings;
use crate::transfer::{Op, Spec};

/// A session with one bulk lane by each way.
struct Two {
    session: Session<()>,
    now: Instant,
    /// What was asked for since it was last looked.
    opened: Vec<(LaneId, Means)>,
    closed: Vec<LaneId>,
    posted: Vec<(LaneId, u32)>,
    fenced: Vec<LaneId>,
}

fn failure() -> Option<Error> {
    Some(Error::RdmaFailed { peer: Endpoint::new("peer", 1), reason: "cut".into() })
}

impl Two {
    fn shaken(spare: Option<usize>) -> Self {
        let now = Instant::now();
        let settings = Settings { small_bytes: 0, ..Settings::default() };
        let session = Session::new(Endpoint::new("peer", 1), settings, now);
        let (opened, closed, posted, fenced) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut two = Self { session, now, opened, closed, posted, fenced };
        two.session.connect(now);
        two.session.set_bulk_lanes(1, spare);
        two.session.on_handshake(now, Ok(Incarnation(1)));
        two.look();
        two
    }

    fn look(&mut self) {
        let (opened, closed) = (&mut self.opened, &mut self.closed);
        opened.clear();
        closed.clear();
        self.posted.clear();
        self.fenced.clear();
        for action in self.session.take_actions() {
            match action {
                Action::OpenLane { lane, means } => self.opened.push((lane, means)),
                Action::CloseLane { lane, .. } => self.closed.push(lane),
                Action::Post { lane, slice, .. } => self.posted.push((lane, slice)),
                Action::Send { control: Control::FenceLane { lane }, .. } => {
                    self.fenced.push(lane);
                }
                _ => {}
            }
        }
    }

    fn opened(&self, means: Means) -> Vec<LaneId> {
        self.opened.iter().filter(|(_, by)| *by == means).map(|(lane, _)| *lane).collect()
    }

    fn up(&mut self, lane: LaneId) {
        self.session.on_lane_up(self.now, lane);
    }

    fn down(&mut self, lane: LaneId, cause: Option<Error>) {
        self.session.on_lane_down(self.now, lane, cause);
        self.look();
    }

    /// Until what waits longest is due.
    fn wait(&mut self) -> Duration {
        let next = self.session.next_timeout().expect("something is due");
        let waited = next.saturating_duration_since(self.now);
        self.now = self.now.max(next);
        self.session.on_timeout(self.now);
        self.look();
        waited
    }

    /// Both lanes of the best are up.
    fn all_up(spare: Option<usize>) -> (Self, Vec<LaneId>) {
        let mut two = Self::shaken(spare);
        let best = two.opened(Means::Best);
        assert_eq!(best.len(), 2);
        best.iter().for_each(|lane| two.up(*lane));
        two.look();
        (two, best)
    }

    fn submit(&mut self, op: Op) -> TransferId {
        let deadline = self.now + Duration::from_secs(60);
        let slice_bytes = vec![1000; 2];
        let (notifies, by_reference, begun) = (false, true, self.now);
        let spec = Spec { op, slice_bytes, notifies, by_reference, begun, deadline };
        let id = self.session.submit(self.now, Incarnation(1), spec, ()).unwrap();
        self.look();
        id
    }
}

#[test]
fn the_spare_is_used_when_every_attempt_has_failed_and_the_best_again_when_it_comes_up() {
    let mut two = Two::shaken(Some(2));
    let best = two.opened(Means::Best);
    assert_eq!(two.opened(Means::Spare), []);
    two.down(best[0], failure());
    assert_eq!(two.opened(Means::Spare), [], "another attempt is under way");
    two.down(best[1], failure());
    let spare = two.opened(Means::Spare);
    assert_eq!(spare.len(), 3, "as many as by the spare");
    assert_eq!(two.session.not_best().as_deref(), Some("cut"));
    spare.iter().for_each(|lane| two.up(*lane));
    two.look();
    // Tried again, later each time.
    let (mut waits, mut since) = (Vec::new(), two.now);
    let probe = loop {
        two.wait();
        two.session.hear_answer(two.now);
        let Some(probe) = two.opened(Means::Best).first().copied() else { continue };
        waits.push(two.now - since);
        if waits.len() == 3 {
            break probe;
        }
        two.down(probe, failure());
        since = two.now;
        assert_eq!(two.session.means(), Means::Spare);
    };
    assert!(waits.is_sorted() && waits[0] < waits[2], "{waits:?}");
    two.up(probe);
    two.look();
    assert_eq!((two.session.means(), two.session.not_best()), (Means::Best, None));
    two.closed.sort_by_key(|lane| spare.iter().position(|one| one == lane));
    assert_eq!(two.closed, spare, "none is needed any more");
    assert_eq!(two.opened(Means::Best).len(), 1, "the other lane of it");
}

#[test]
fn a_best_that_says_nothing_gives_way_after_a_while_and_is_taken_when_it_is_there_after_all() {
    let mut two = Two::shaken(Some(1));
    let best = two.opened(Means::Best);
    let waited = two.wait();
    assert_eq!(waited, Settings::default().spare_after);
    let spare = two.opened(Means::Spare);
    assert_eq!(spare.len(), 2);
    two.up(spare[0]);
    two.up(best[1]);
    two.look();
    assert_eq!(two.session.means(), Means::Best);
    assert_eq!(two.closed, spare[..1]);
    assert_eq!(two.opened, [], "the first is under way still");
    two.up(spare[1]);
    two.look();
    assert_eq!(two.closed, spare[1..], "it came too late");
}

#[test]
fn without_a_spare_the_best_is_never_replaced() {
    let (mut two, best) = Two::all_up(None);
    two.submit(Op::Read);
    for lane in best {
        two.down(lane, failure());
        two.opened.iter().for_each(|(_, means)| assert_eq!(*means, Means::Best));
    }
    assert_eq!(two.session.not_best(), None);
}

#[test]
fn slices_of_a_read_go_on_by_the_spare_and_those_of_a_write_after_the_fence() {
    for op in [Op::Read, Op::Write] {
        let (mut two, best) = Two::all_up(Some(1));
        let id = two.submit(op);
        assert_eq!(two.posted, [(best[1], 0), (best[1], 1)]);
        best.iter().for_each(|lane| two.down(*lane, failure()));
        // What takes their places does not come up.
        let again = two.opened(Means::Best);
        two.down(again[0], failure());
        let first = numbered_after(best[0]);
        two.down(first, failure());
        let spare = two.opened(Means::Spare);
        assert_eq!(spare.len(), 2, "{op:?}");
        two.up(spare[0]);
        two.up(spare[1]);
        two.look();
        if op == Op::Write {
            assert_eq!(two.posted, []);
            assert_eq!(two.fenced, [best[1]]);
            two.session.on_reply(two.now, spare[0], Reply::LaneFenced { lane: best[1] });
            two.look();
        }
        assert_eq!(two.posted, [(spare[1], 0), (spare[1], 1)], "{op:?}");
        for slice in 0..2 {
            let status = Status::Done;
            let reply = match op {
                Op::Write => Reply::Ack { transfer: id, slice, status },
                Op::Read => Reply::Held { transfer: id, slice, status },
            };
            two.session.on_landed(two.now, spare[1], id, slice, Ok(()));
            two.session.on_reply(two.now, spare[1], reply);
        }
        assert_eq!(two.session.open_transfers(), 0);
    }
}

/// The lane that takes the place of one.
fn numbered_after(lane: LaneId) -> LaneId {
    LaneId(lane.0 + 64)
}

#[test]
fn lanes_that_come_and_go_count_and_have_to_last_to_be_trusted_again() {
    let (mut two, _) = Two::all_up(Some(1));
    two.submit(Op::Read);
    for flap in 1..=FLAPS {
        let up: Vec<_> = two.session.lanes.up().collect();
        let under_way: Vec<_> =
            two.session.lanes.all().into_iter().filter(|lane| !up.contains(lane)).collect();
        under_way.iter().for_each(|lane| two.up(*lane));
        assert_eq!(two.session.means(), Means::Best, "flap {flap}");
        let lanes = two.session.lanes.all();
        lanes.into_iter().for_each(|lane| two.session.on_lane_down(two.now, lane, failure()));
    }
    assert_eq!(two.session.means(), Means::Spare);
    two.look();
}

#[test]
fn what_is_out_on_a_lane_of_the_spare_is_not_sent_again_when_the_best_is_back() {
    let mut two = Two::shaken(Some(1));
    let best = two.opened(Means::Best);
    best.iter().for_each(|lane| two.down(*lane, failure()));
    let spare = two.opened(Means::Spare);
    spare.iter().for_each(|lane| two.up(*lane));
    let id = two.submit(Op::Write);
    assert_eq!(two.posted, [(spare[1], 0), (spare[1], 1)]);
    two.session.try_best(two.now, &[]);
    two.look();
    let probe = two.opened(Means::Best);
    assert_eq!(probe.len(), 1, "at once");
    two.up(probe[0]);
    two.look();
    assert_eq!(two.closed, spare[..1], "the other has something out");
    let status = Status::Done;
    let ack = |slice| Reply::Ack { transfer: id, slice, status };
    two.session.on_reply(two.now, spare[1], ack(0));
    two.look();
    assert_eq!(two.closed, []);
    two.session.on_reply(two.now, spare[1], ack(1));
    two.look();
    assert_eq!(two.closed, spare[1..]);
    assert_eq!((two.session.open_transfers(), two.posted.len()), (0, 0));
}

#[test]
fn what_is_known_of_the_best_outlives_a_handshake_with_the_same_peer_only() {
    for is_same in [true, false] {
        let mut two = Two::shaken(Some(1));
        let best = two.opened(Means::Best);
        best.iter().for_each(|lane| two.down(*lane, failure()));
        two.session.on_control_lost(two.now);
        two.wait();
        let incarnation = Incarnation(if is_same { 1 } else { 2 });
        two.session.set_bulk_lanes(1, Some(1));
        two.session.on_handshake(two.now, Ok(incarnation));
        two.look();
        let wanted = if is_same { Means::Spare } else { Means::Best };
        assert_eq!(two.session.means(), wanted);
    }
}

/// Lanes of the best that are missing come up, a while later.
fn come_up(two: &mut Two) {
    two.now += Duration::from_secs(1);
    let missing = two.opened(Means::Best);
    missing.iter().for_each(|lane| two.up(*lane));
    two.look();
}

/// The read that is out ends.
fn land(two: &mut Two, id: TransferId, lane: LaneId) {
    for slice in 0..2 {
        let held = Reply::Held { transfer: id, slice, status: Status::Done };
        two.session.on_landed(two.now, lane, id, slice, Ok(()));
        two.session.on_reply(two.now, lane, held);
    }
    assert_eq!(two.session.open_transfers(), 0);
    two.look();
}

#[test]
fn a_best_that_connects_and_carries_nothing_is_given_up_until_something_new_is_heard() {
    let (mut two, _) = Two::all_up(Some(1));
    let id = two.submit(Op::Read);
    for _ in 0..BARREN {
        assert_eq!(two.session.means(), Means::Best);
        two.now += Duration::from_secs(1);
        // The express lane stays up: nobody asks anything of it.
        let (lane, _) = two.posted[0];
        two.down(lane, failure());
        if two.session.means() == Means::Best {
            come_up(&mut two);
        }
    }
    assert_eq!(two.session.means(), Means::Spare);
    assert!(two.session.not_best().is_some_and(|why| why.contains("carried nothing")));
    assert_eq!(two.closed.len(), 1, "the express lane of the best");
    let spare = two.opened(Means::Spare);
    spare.iter().for_each(|lane| two.up(*lane));
    two.look();
    assert_eq!(two.posted, [(spare[1], 0), (spare[1], 1)]);
    land(&mut two, id, spare[1]);
    let since = two.now;
    while two.now < since + 4 * Settings::default().return_most {
        two.wait();
        two.session.hear_answer(two.now);
        assert_eq!(two.opened, [], "it is not tried again");
    }
    two.session.try_best(two.now, &[]);
    two.look();
    assert_eq!(two.opened(Means::Best).len(), 1);
}

#[test]
fn a_best_that_carries_something_between_two_failures_is_not_given_up() {
    let (mut two, _) = Two::all_up(Some(1));
    for _ in 0..=BARREN {
        let id = two.submit(Op::Read);
        // The second is one that has carried nothing yet.
        for _ in 0..2 {
            let (lane, _) = two.posted[0];
            two.now += Duration::from_secs(1);
            two.down(lane, failure());
            come_up(&mut two);
        }
        let (lane, _) = two.posted[0];
        two.session.on_carried(lane);
        land(&mut two, id, lane);
    }
    assert_eq!((two.session.means(), two.session.not_best()), (Means::Best, None));
}

#[test]
fn a_lane_on_which_a_transfer_runs_out_of_time_is_doubted_where_the_peer_was_heard_meanwhile() {
    for is_heard in [true, false] {
        let (mut two, _) = Two::all_up(Some(1));
        for _ in 0..BARREN {
            let id = two.submit(Op::Write);
            let (lane, _) = two.posted[0];
            two.now += Settings::default().barren_after;
            if is_heard {
                two.session.hear_answer(two.now);
            }
            two.session.time_out(id);
            two.look();
            assert_eq!(two.closed, [lane]);
            two.session.on_lane_down(two.now, lane, None);
            two.look();
            if two.session.means() == Means::Best {
                come_up(&mut two);
            }
        }
        let wanted = if is_heard { Means::Spare } else { Means::Best };
        assert_eq!(two.session.means(), wanted, "heard: {is_heard}");
    }
}

#[test]
fn failures_are_forgotten_when_something_was_carried_and_not_because_time_has_passed() {
    for carries in [false, true] {
        let (mut two, _) = Two::all_up(Some(1));
        two.submit(Op::Read);
        for flap in 1..FLAPS {
            two.now += Settings::default().recovered_after;
            let lanes = two.session.lanes.all();
            if carries {
                lanes.iter().for_each(|lane| two.session.on_carried(*lane));
            }
            lanes.iter().for_each(|lane| two.session.on_lane_down(two.now, *lane, failure()));
            assert_eq!(two.session.spare.failures, if carries { 1 } else { flap });
            two.look();
            come_up(&mut two);
        }
    }
}

#[test]
fn a_lane_that_another_incarnation_refuses_is_no_failure_of_its_transport() {
    let mut two = Two::shaken(Some(1));
    for lane in two.opened(Means::Best) {
        two.session.on_lane_down(two.now, lane, None);
    }
    assert_eq!((two.session.means(), two.session.spare.failures), (Means::Best, 0));
    let next = two.session.next_timeout().expect("it is tried again");
    two.session.on_timeout(next);
    let actions = two.session.take_actions();
    assert!(actions.iter().any(|action| matches!(action, Action::Handshake)), "{actions:?}");
}
