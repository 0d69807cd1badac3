//! The lanes of a session: which are open, what is out on each, when a lost one is tried again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kvferry_proto::LaneId;

use super::{Means, Settings};

/// The slot of the express lane; the others are for bulk.
const EXPRESS: usize = 0;

/// How many slots the numbers of lanes tell apart: at least as many as a peer accepts lanes. A lane can
/// be opened anew 2^26 times.
const SLOTS: u32 = 64;

/// Which of a session's lanes one takes the place of, as its number says: 0 is the one for what is
/// small. Both ends know by it which thread a lane belongs on.
pub(crate) fn slot_of(lane: LaneId) -> u32 {
    lane.0.wrapping_sub(1) % SLOTS
}

fn numbered(slot: usize, turn: u32) -> LaneId {
    let slot = u32::try_from(slot).unwrap_or(u32::MAX) % SLOTS;
    LaneId(turn.wrapping_mul(SLOTS).wrapping_add(slot).wrapping_add(1))
}

#[derive(Debug, Default)]
struct Slot {
    lane: Option<LaneId>,
    failures: u32,
    retry_at: Option<Instant>,
    /// How many lanes were opened for it.
    opened: u32,
}

#[derive(Debug)]
struct Lane {
    slot: usize,
    means: Means,
    /// Since when it is open.
    up_at: Option<Instant>,
    /// Something has come through by what it is for: its queue pair, where one belongs to it.
    has_carried: bool,
    /// A transfer that was out on it has run out of time, though the peer was there.
    is_doubted: bool,
    /// It is being closed: nothing more is posted on it.
    retired: bool,
    /// It closes once nothing is out on it.
    is_leaving: bool,
    out_bytes: u64,
    /// Bytes posted since an answer was asked for.
    unanswered_bytes: u64,
}

/// A lane that is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    pub(super) means: Means,
    /// Since when it was open, if it was.
    pub(super) up_at: Option<Instant>,
    /// It went with something out on it, and had never carried anything.
    pub(super) was_barren: bool,
    /// A transfer ran out of time on it, though the peer was there, and it had never carried anything.
    pub(super) was_doubted: bool,
    /// It was being closed.
    pub(super) was_retired: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct LaneSet {
    slots: Vec<Slot>,
    /// So many of the slots are wanted: what others hold stays until it closes.
    wanted: usize,
    lanes: BTreeMap<LaneId, Lane>,
}

impl LaneSet {
    pub(super) fn new(bulk: usize) -> Self {
        let slots = std::iter::repeat_with(Slot::default).take(bulk + 1).collect();
        Self { slots, wanted: bulk + 1, lanes: BTreeMap::new() }
    }

    /// Lanes that are open.
    pub(super) fn up(&self) -> impl Iterator<Item = LaneId> + '_ {
        self.lanes.iter().filter(|(_, lane)| lane.usable()).map(|(id, _)| *id)
    }

    /// Those of them that are for bulk.
    pub(super) fn bulk_up(&self) -> impl Iterator<Item = LaneId> + '_ {
        self.up().filter(|id| self.lanes[id].slot != EXPRESS)
    }

    pub(super) fn all(&self) -> Vec<LaneId> {
        self.lanes.keys().copied().collect()
    }

    /// Whether no lane is open, about to be, or being closed.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Whether there is a lane of this transport: open, or about to be. Those that are being closed do
    /// not count.
    pub(super) fn has(&self, means: Means, is_up: bool) -> bool {
        let counts = |lane: &Lane| lane.means == means && !lane.retired && (lane.is_up() || !is_up);
        self.lanes.values().any(counts)
    }

    /// By what a lane is opened that is not being closed.
    pub(super) fn means(&self, id: LaneId) -> Option<Means> {
        self.lanes.get(&id).filter(|lane| !lane.retired).map(|lane| lane.means)
    }

    /// A number for a lane of the best transport beside those of its spare.
    pub(super) fn open_beside(&mut self) -> LaneId {
        let slot = &mut self.slots[EXPRESS];
        let id = numbered(EXPRESS, slot.opened);
        slot.opened = slot.opened.wrapping_add(1);
        self.lanes.insert(id, Lane::new(EXPRESS, Means::Best));
        id
    }

    /// Lanes that are not open yet give their slots up. They may take them back when they are.
    pub(super) fn set_aside_unopened(&mut self) {
        for slot in &mut self.slots {
            let is_open = |id: &LaneId| self.lanes.get(id).is_some_and(Lane::is_up);
            slot.lane = slot.lane.filter(is_open);
        }
    }

    /// The best transport is used again, with so many lanes for bulk: lanes of its spare leave, and
    /// those of it have their slots back.
    pub(super) fn replace_spare(&mut self, bulk: usize) {
        self.leave_all(Means::Spare);
        self.want(bulk);
        self.forget_failures();
        for (id, lane) in &self.lanes {
            if lane.means == Means::Best && !lane.retired {
                let slot = &mut self.slots[lane.slot];
                // One that is open goes before one that is not.
                let is_free = slot.lane.is_none_or(|other| !self.lanes[&other].is_up());
                slot.lane = if is_free { Some(*id) } else { slot.lane };
            }
        }
    }

    /// Others take the places of all lanes of this transport: those that are open leave, and what comes
    /// up later is closed.
    pub(super) fn leave_all(&mut self, means: Means) {
        let leaving = self.lanes.iter().filter(|(_, lane)| lane.means == means);
        for id in leaving.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.leave(id);
            self.retire(id);
        }
    }

    /// Another takes the place of an open lane, which closes once nothing is out on it.
    pub(super) fn leave(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id).filter(|lane| lane.usable()) {
            lane.is_leaving = true;
            self.retire(id);
        }
    }

    /// Leaving lanes that have nothing out any more, once each.
    pub(super) fn take_left(&mut self) -> Vec<LaneId> {
        let left = self.lanes.iter_mut().filter(|(_, lane)| lane.is_leaving && lane.out_bytes == 0);
        left.map(|(id, lane)| {
            lane.is_leaving = false;
            *id
        })
        .collect()
    }

    /// Numbers for lanes that are missing and may be tried now.
    pub(super) fn open_missing(&mut self, now: Instant, means: Means) -> Vec<LaneId> {
        let mut opened = Vec::new();
        for (index, slot) in self.slots.iter_mut().take(self.wanted).enumerate() {
            if slot.lane.is_none() && slot.retry_at.is_none_or(|at| at <= now) {
                let id = numbered(index, slot.opened);
                slot.opened = slot.opened.wrapping_add(1);
                slot.lane = Some(id);
                self.lanes.insert(id, Lane::new(index, means));
                opened.push(id);
            }
        }
        opened
    }

    /// When a missing lane may be tried again.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        let wanted = self.slots.iter().take(self.wanted);
        let missing = wanted.filter(|slot| slot.lane.is_none());
        missing.filter_map(|slot| slot.retry_at).min()
    }

    /// Wants so many lanes for bulk from now on.
    pub(super) fn want(&mut self, bulk: usize) {
        self.wanted = bulk + 1;
        if self.slots.len() < self.wanted {
            self.slots.resize_with(self.wanted, Slot::default);
        }
    }

    pub(super) fn forget_failures(&mut self) {
        for slot in &mut self.slots {
            (slot.failures, slot.retry_at) = (0, None);
        }
    }

    /// Whether the lane was wanted and is open now.
    pub(super) fn set_up(&mut self, id: LaneId, now: Instant) -> bool {
        let Some(lane) = self.lanes.get_mut(&id).filter(|lane| !lane.retired) else { return false };
        lane.up_at = Some(now);
        let slot = &mut self.slots[lane.slot];
        (slot.failures, slot.retry_at) = (0, None);
        true
    }

    /// Something has come through by what a lane is for. Whether that speaks for the way of large
    /// transfers.
    pub(super) fn note_carried(&mut self, id: LaneId) -> bool {
        let Some(lane) = self.lanes.get_mut(&id) else { return false };
        (lane.has_carried, lane.is_doubted) = (true, false);
        lane.slot != EXPRESS || self.wanted == 1
    }

    /// A transfer that began then and is out on a lane has run out of time, and the peer was heard as late
    /// as this: a lane that carried nothing, while it had this long to, is doubted.
    pub(super) fn doubt(&mut self, id: LaneId, begun: Instant, heard: Instant, patience: Duration) {
        let Some(lane) = self.lanes.get_mut(&id).filter(|lane| !lane.has_carried) else { return };
        lane.is_doubted |= lane.up_at.is_some_and(|up_at| heard >= up_at.max(begun) + patience);
    }

    /// Nothing more is posted on a lane; its slot is free.
    pub(super) fn retire(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.retired = true;
            let slot = &mut self.slots[lane.slot];
            slot.lane = slot.lane.filter(|current| *current != id);
        }
    }

    /// The lane is gone. Returns what it was; `None` where it is unknown.
    pub(super) fn remove(&mut self, id: LaneId, now: Instant, settings: &Settings) -> Option<Gone> {
        let lane = self.lanes.remove(&id)?;
        let slot = &mut self.slots[lane.slot];
        if slot.lane == Some(id) {
            slot.lane = None;
            // A lane that was open is tried again at once, one that never was is not.
            if !lane.is_up() || slot.failures > 0 {
                slot.retry_at = Some(now + settings.backoff(slot.failures));
            }
            slot.failures += 1;
        }
        let Lane { means, up_at, is_doubted: was_doubted, retired: was_retired, .. } = lane;
        let was_barren = lane.out_bytes > 0 && !lane.has_carried;
        Some(Gone { means, up_at, was_barren, was_doubted, was_retired })
    }

    /// Every lane, which is none of the session's any more.
    pub(super) fn clear(&mut self) -> Vec<LaneId> {
        let all = self.all();
        for id in &all {
            self.retire(*id);
        }
        self.lanes.clear();
        all
    }

    /// The lane for what has no payload: the express lane, or another while that is missing.
    pub(super) fn control(&self) -> Option<LaneId> {
        let express = self.slots[EXPRESS].lane.filter(|id| self.is_usable(*id));
        express.or_else(|| self.up().next())
    }

    /// The lane for small transfers, if its window is open.
    pub(super) fn express(&self, window: u64) -> Option<LaneId> {
        self.control().filter(|id| self.lanes[id].out_bytes < window)
    }

    /// The bulk lane with the fewest bytes out, if its window is open. The express lane stands in
    /// when there is none and none is about to open.
    pub(super) fn least_loaded(&self, window: u64) -> Option<LaneId> {
        let bulk = &self.slots[EXPRESS + 1..];
        if bulk.iter().all(|slot| slot.lane.is_none()) {
            return self.express(window);
        }
        let usable = bulk.iter().filter_map(|slot| slot.lane).filter(|id| self.is_usable(*id));
        let least = usable.min_by_key(|id| self.lanes[id].out_bytes)?;
        (self.lanes[&least].out_bytes < window).then_some(least)
    }

    pub(super) fn out_bytes(&self, id: LaneId) -> u64 {
        self.lanes.get(&id).map_or(0, |lane| lane.out_bytes)
    }

    /// A slice is posted. Returns the bytes posted since an answer was asked for.
    pub(super) fn load(&mut self, id: LaneId, bytes: u32) -> u64 {
        let Some(lane) = self.lanes.get_mut(&id) else { return 0 };
        lane.out_bytes += u64::from(bytes);
        lane.unanswered_bytes += u64::from(bytes);
        lane.unanswered_bytes
    }

    /// An answer was asked for.
    pub(super) fn answer_due(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.unanswered_bytes = 0;
        }
    }

    /// A slice is off the lane.
    pub(super) fn unload(&mut self, id: LaneId, bytes: u32) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.out_bytes = lane.out_bytes.saturating_sub(bytes.into());
        }
    }

    fn is_usable(&self, id: LaneId) -> bool {
        self.lanes.get(&id).is_some_and(Lane::usable)
    }
}

impl Lane {
    fn new(slot: usize, means: Means) -> Self {
        Self {
            slot,
            means,
            up_at: None,
            has_carried: false,
            is_doubted: false,
            retired: false,
            is_leaving: false,
            out_bytes: 0,
            unanswered_bytes: 0,
        }
    }

    fn is_up(&self) -> bool {
        self.up_at.is_some()
    }

    fn usable(&self) -> bool {
        self.is_up() && !self.retired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_the_place_of_a_lost_lane_has_its_slot_and_never_its_number() {
        let (now, settings) = (Instant::now(), Settings::default());
        let mut set = LaneSet::new(2);
        let mut seen = set.open_missing(now, Means::Best);
        assert_eq!(seen.iter().map(|lane| slot_of(*lane)).collect::<Vec<_>>(), [0, 1, 2]);
        let mut lost = seen[1];
        for _ in 0..100 {
            set.set_up(lost, now);
            set.remove(lost, now, &settings);
            set.forget_failures();
            let opened = set.open_missing(now, Means::Best);
            assert_eq!(opened.iter().map(|lane| slot_of(*lane)).collect::<Vec<_>>(), [1]);
            lost = opened[0];
            assert!(!seen.contains(&lost));
            seen.push(lost);
        }
    }

    #[test]
    fn lanes_that_are_not_wanted_any_more_stay_until_they_close() {
        let (now, settings) = (Instant::now(), Settings::default());
        let mut set = LaneSet::new(2);
        let opened = set.open_missing(now, Means::Best);
        for lane in &opened {
            set.set_up(*lane, now);
        }
        set.want(1);
        assert_eq!(set.up().count(), 3);
        set.remove(opened[2], now, &settings);
        set.forget_failures();
        assert!(set.open_missing(now, Means::Best).is_empty());
        set.want(3);
        let anew = set.open_missing(now, Means::Best);
        assert_eq!(anew.iter().map(|lane| slot_of(*lane)).collect::<Vec<_>>(), [2, 3]);
        assert_ne!(anew[0], opened[2]);
    }
}
