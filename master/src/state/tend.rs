//! What time brings about.

use std::sync::atomic::Ordering;

use super::moment::Moment;
use super::segment::State;
use super::{Pool, Told};

impl Pool {
    /// Does what is due: takes back what writers did not finish, gives out room again that nobody can
    /// be using any more, takes segments out that are gone, and evicts above the watermark. To be
    /// called a few times a second; [`Pool::look`] is apart, so that no load delays it.
    pub fn tend(&self, now: Moment, seed: u64, told: &mut Told) {
        self.take_back_overdue(now);
        self.removed.lock().tend(now);
        for segment in self.segments.read().iter() {
            segment.release_due(now);
        }
        self.take_out_gone(now, told);
        self.keep_below_watermark(now, seed, told);
    }

    fn take_back_overdue(&self, now: Moment) {
        let quiet = now.after(self.settings.late_writes);
        let segments = self.segments.read();
        for shard in &self.shards {
            let mut shard = shard.lock();
            while let Some(number) = shard.next_overdue(now) {
                self.discard(&segments, &mut shard, number, quiet, &mut Told::default());
                self.counts.reclaimed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes copies out that were in segments that are gone, and then the segments.
    fn take_out_gone(&self, now: Moment, told: &mut Told) {
        let gone = std::mem::take(&mut *self.gone.lock());
        if gone.is_empty() {
            return;
        }
        // Whoever found one of them open is done when this lock is free.
        drop(self.segments.write());
        let segments = self.segments.read();
        let is_gone =
            |slot| segments.get(slot).is_none_or(|segment| segment.state() == State::Gone);
        for shard in &self.shards {
            let mut shard = shard.lock();
            for number in 0..shard.objects.end() {
                let Some(object) = shard.objects.get_mut(number) else { continue };
                if object.copies.iter().all(|copy| !is_gone(copy.slot)) {
                    continue;
                }
                if object.copies.iter().all(|copy| is_gone(copy.slot)) {
                    self.discard(&segments, &mut shard, number, now, told);
                } else {
                    object.copies.retain(|copy| !is_gone(copy.slot));
                }
            }
        }
        drop(segments);
        let mut segments = self.segments.write();
        for slot in gone {
            segments.remove(slot);
        }
    }
}
