//! From pairs of spans to slices. Pure: no clock, no lanes, no memory.
//!
//! Pairs come in order, each a span here, a span there, both of one length. They are coalesced as
//! they come: a pair that goes on where the last one ended, on both sides, makes it longer; one of
//! the same length at the same distance as the ones before makes a strided run of them, from three on. Whenever the
//! bytes of a slice are full, a new slice starts. Nothing is sorted, nothing is allocated per pair
//! beyond the run that it may become.

#[cfg(test)]
mod tests;

use kvferry_proto::frame::{Descriptor, limits};

/// How slices are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// The most bytes of a slice: 1 to [`limits::PAYLOAD_BYTES`].
    pub slice_bytes: u32,
    /// The most spans of a slice: 1 to [`limits::SPANS`].
    pub slice_spans: u32,
}

impl Default for PlanLimits {
    /// 1 MiB, measured: smaller slices cost acknowledgements, larger ones delay small transfers.
    fn default() -> Self {
        Self { slice_bytes: 1 << 20, slice_spans: limits::SPANS }
    }
}

/// Where a pair's two spans start, by index of the region on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Which local region.
    pub local: u16,
    /// Which remote region and grant.
    pub remote: u16,
    /// From the local region's start, in bytes.
    pub local_offset: u64,
    /// From the remote region's start, in bytes.
    pub remote_offset: u64,
    /// The length of both spans in bytes.
    pub bytes: u64,
}

/// `count` pairs of spans of `bytes` each, at fixed distances on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where the first pair's local span starts.
    pub local_offset: u64,
    /// Where the first pair's remote span starts.
    pub remote_offset: u64,
    /// The length of each span.
    pub bytes: u32,
    /// How many pairs: never 0.
    pub count: u32,
    local_stride: u32,
    remote_stride: u32,
    /// Which local region.
    pub local: u16,
    /// Which remote region and grant.
    pub remote: u16,
}

impl Run {
    /// The remote side as it goes on the wire.
    #[must_use]
    pub fn descriptor(&self) -> Descriptor {
        let stride = if self.count > 1 { self.remote_stride.into() } else { 0 };
        Descriptor { offset: self.remote_offset, bytes: self.bytes, count: self.count, stride }
    }

    /// The local side in the same form.
    #[must_use]
    pub fn local_descriptor(&self) -> Descriptor {
        let stride = if self.count > 1 { self.local_stride.into() } else { 0 };
        Descriptor { offset: self.local_offset, bytes: self.bytes, count: self.count, stride }
    }

    /// Where each local span starts, in order.
    pub fn local_offsets(&self) -> impl Iterator<Item = u64> + use<> {
        starts(self.local_offset, self.local_stride, self.count)
    }

    /// Where each remote span starts, in order.
    pub fn remote_offsets(&self) -> impl Iterator<Item = u64> + use<> {
        starts(self.remote_offset, self.remote_stride, self.count)
    }
}

fn starts(start: u64, stride: u32, count: u32) -> impl Iterator<Item = u64> {
    (0..u64::from(count)).map(move |index| start + index * u64::from(stride))
}

/// A range of runs that one frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    first_group: u32,
    end_group: u32,
    first_start: u32,
    end_start: u32,
    /// Payload bytes: never 0.
    pub bytes: u32,
    /// Spans on each side.
    pub spans: u32,
}

impl Slice {
    fn starting(group: u32, start: u32) -> Self {
        let (first_group, end_group, first_start, end_start) = (group, group, start, start);
        Self { first_group, end_group, first_start, end_start, bytes: 0, spans: 0 }
    }

    /// How many runs it has.
    #[must_use]
    pub fn runs(&self) -> usize {
        (self.end_start - self.first_start) as usize
    }
}

/// Where the first pair of a run starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    local: u64,
    remote: u64,
}

/// Runs that differ in nothing but where they start. Of pairs that do not merge only the starts are
/// kept one by one: what is written once and read once is better small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    bytes: u32,
    count: u32,
    local_stride: u32,
    remote_stride: u32,
    local: u16,
    remote: u16,
    /// How many runs.
    runs: u32,
}

impl Group {
    fn of(run: &Run) -> Self {
        let Run { bytes, count, local_stride, remote_stride, local, remote, .. } = *run;
        Self { bytes, count, local_stride, remote_stride, local, remote, runs: 1 }
    }

    /// Whether another run differs from these in nothing but its start.
    #[inline]
    fn has_room_for(&self, run: &Run) -> bool {
        self.bytes == run.bytes
            && self.count == 1
            && run.count == 1
            && self.local == run.local
            && self.remote == run.remote
    }

    #[inline]
    fn run(&self, start: &Start) -> Run {
        Run {
            local_offset: start.local,
            remote_offset: start.remote,
            bytes: self.bytes,
            count: self.count,
            local_stride: self.local_stride,
            remote_stride: self.remote_stride,
            local: self.local,
            remote: self.remote,
        }
    }
}

/// What a transfer carries, cut into slices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    groups: Vec<Group>,
    starts: Vec<Start>,
    slices: Vec<Slice>,
    pairs: u64,
    bytes: u64,
}

impl Plan {
    /// The slices, in order.
    #[must_use]
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// The runs of one slice, in payload order.
    pub fn runs(&self, slice: &Slice) -> impl Iterator<Item = Run> + '_ {
        let mut starts = &self.starts[slice.first_start as usize..slice.end_start as usize];
        let groups = &self.groups[slice.first_group as usize..slice.end_group as usize];
        groups.iter().flat_map(move |group| {
            let (own, others) = starts.split_at(group.runs as usize);
            starts = others;
            own.iter().map(|start| group.run(start))
        })
    }

    /// How many pairs were given.
    #[must_use]
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// How many descriptors are left after coalescing.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        self.starts.len()
    }

    /// Bytes of all slices together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Takes pairs and makes a [`Plan`] of them.
#[derive(Debug)]
pub struct Planner {
    limits: PlanLimits,
    plan: Plan,
    /// The run that may still grow; it is not in the plan yet.
    open: Option<Run>,
    /// The slice that the open run belongs to, without it.
    slice: Slice,
}

impl Planner {
    /// A planner that expects about `pairs` pairs.
    #[must_use]
    pub fn new(limits: PlanLimits, pairs: usize) -> Self {
        let mut plan = Plan::default();
        plan.starts.reserve(pairs);
        Self { limits, plan, open: None, slice: Slice::starting(0, 0) }
    }

    /// Adds a pair. One of no bytes adds nothing.
    #[inline]
    pub fn push(&mut self, pair: Pair) {
        self.plan.pairs += 1;
        self.plan.bytes += pair.bytes;
        let mut rest = pair;
        while rest.bytes > 0 {
            let taken = self.push_some(&rest);
            rest.bytes -= u64::from(taken);
            rest.local_offset += u64::from(taken);
            rest.remote_offset += u64::from(taken);
        }
    }

    /// Adds the start of a pair, as much as the slice has room for. Returns how much that was.
    #[inline]
    fn push_some(&mut self, pair: &Pair) -> u32 {
        let open_bytes = self.open.map_or(0, |run| run.bytes * run.count);
        let room = self.limits.slice_bytes - self.slice.bytes - open_bytes;
        if room == 0 {
            self.close_slice();
            return self.push_some(pair);
        }
        let bytes = u32::try_from(pair.bytes).unwrap_or(u32::MAX).min(room);
        if let Some(run) = &mut self.open {
            if run.local == pair.local && run.remote == pair.remote {
                if run.try_lengthen(pair, bytes) {
                    return bytes;
                }
                let spans_left = self.limits.slice_spans - self.slice.spans - run.count;
                if spans_left > 0 && run.try_repeat(pair, bytes) {
                    return bytes;
                }
            }
            if self.slice.spans + run.count >= self.limits.slice_spans {
                self.close_slice();
                return self.push_some(pair);
            }
            self.close_run();
        }
        self.open = Some(Run {
            local_offset: pair.local_offset,
            remote_offset: pair.remote_offset,
            bytes,
            count: 1,
            local_stride: 0,
            remote_stride: 0,
            local: pair.local,
            remote: pair.remote,
        });
        bytes
    }

    fn close_run(&mut self) {
        let Some(run) = self.open.take() else { return };
        self.slice.bytes += run.bytes * run.count;
        self.slice.spans += run.count;
        let start = Start { local: run.local_offset, remote: run.remote_offset };
        if run.count == 2 {
            // Two in a row are no pattern: among blocks in any order they come about by chance, and
            // as two they cost less than half of what a run of its own does.
            let single = Run { count: 1, local_stride: 0, remote_stride: 0, ..run };
            let second = Start {
                local: start.local + u64::from(run.local_stride),
                remote: start.remote + u64::from(run.remote_stride),
            };
            self.keep(&single, start);
            self.keep(&single, second);
        } else {
            self.keep(&run, start);
        }
    }

    #[inline]
    fn keep(&mut self, run: &Run, start: Start) {
        let of_slice = self.plan.groups.get_mut(self.slice.first_group as usize..);
        match of_slice.and_then(<[Group]>::last_mut) {
            Some(group) if group.has_room_for(run) => group.runs += 1,
            _ => self.plan.groups.push(Group::of(run)),
        }
        self.plan.starts.push(start);
    }

    fn close_slice(&mut self) {
        self.close_run();
        // A run has at least one byte, and 2^32 runs are 2^36 bytes of memory.
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let (groups, starts) = (count(self.plan.groups.len()), count(self.plan.starts.len()));
        if self.slice.bytes > 0 {
            (self.slice.end_group, self.slice.end_start) = (groups, starts);
            self.plan.slices.push(self.slice);
        }
        self.slice = Slice::starting(groups, starts);
    }

    /// The plan.
    #[must_use]
    pub fn finish(mut self) -> Plan {
        self.close_slice();
        self.plan
    }
}

impl Run {
    /// Grows by a pair that goes on where this single one ends, on both sides.
    #[inline]
    fn try_lengthen(&mut self, pair: &Pair, bytes: u32) -> bool {
        let length = u64::from(self.bytes);
        let adjacent = self.count == 1
            && pair.local_offset == self.local_offset + length
            && pair.remote_offset == self.remote_offset + length;
        if adjacent {
            self.bytes += bytes;
        }
        adjacent
    }

    /// Grows by a pair of the same length at the same distance.
    #[inline]
    fn try_repeat(&mut self, pair: &Pair, bytes: u32) -> bool {
        if bytes != self.bytes || pair.bytes != u64::from(bytes) {
            return false;
        }
        if self.count == 1 {
            let local = pair.local_offset.checked_sub(self.local_offset).map(u32::try_from);
            let remote = pair.remote_offset.checked_sub(self.remote_offset).map(u32::try_from);
            let (Some(Ok(local)), Some(Ok(remote))) = (local, remote) else { return false };
            (self.local_stride, self.remote_stride) = (local, remote);
        } else {
            let ahead = |start: u64, stride: u32| start + u64::from(self.count) * u64::from(stride);
            if pair.local_offset != ahead(self.local_offset, self.local_stride)
                || pair.remote_offset != ahead(self.remote_offset, self.remote_stride)
            {
                return false;
            }
        }
        self.count += 1;
        true
    }
}
