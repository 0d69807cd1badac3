//! What every step and every end is held against.

use std::time::Duration;

use crate::host::{BLOCK_BYTES, Block, Use};
use crate::jobs::{Kind, job_of};
use crate::world::World;

impl World {
    /// Looks which transfers of a host have ended, and that none is late.
    pub(crate) fn poll_transfers(&mut self, host: usize) {
        let Some(life) = self.hosts[host].id() else { return };
        let awake_since = self.hosts[host].stopped_until;
        for id in self.open_jobs(life) {
            let job = &self.jobs[id];
            let Some(transfer) = &job.transfer else { continue };
            match transfer.poll() {
                Some(ended) => self.end(id, ended),
                None => {
                    let due = job.deadline.max(awake_since);
                    let late = self.now.saturating_duration_since(due);
                    assert!(
                        late <= Duration::from_millis(1),
                        "job {id} has not ended {late:?} after its deadline: {job:?}"
                    );
                }
            }
        }
    }

    /// Looks that whatever waits in a host's inbox is true already.
    pub(crate) fn check_inbox(&mut self, host: usize) {
        let Some(life) = &self.hosts[host].life else { return };
        let waiting = life.node.waiting_notifications().into_iter();
        for notification in waiting.filter(|notification| self.is_host(notification.from)) {
            let id = job_of(&notification);
            let job = &self.jobs[id];
            let moves_nothing_here = matches!(job.kind, Kind::Pull | Kind::Note);
            assert!(
                moves_nothing_here || job.was_whole,
                "job {id} was announced, and not all of it is in place: {job:?}"
            );
        }
    }

    /// Everything was read that was ever announced: nobody was forgotten, in a process that lives.
    pub(crate) fn check_told(&self) {
        for (id, job) in self.jobs.iter().enumerate() {
            let lives = self.hosts[job.owner.host].id() == Some(job.owner);
            let done = matches!(job.ended, Some(Ok(_)));
            assert!(
                !(lives && done && job.notifies) || job.told == 1,
                "job {id} is done, and its owner was not told"
            );
        }
    }

    /// Looks that every byte of a host is what it has to be.
    pub(crate) fn check_memory(&mut self, host: usize) {
        let Some(life) = self.hosts[host].life.as_mut() else { return };
        for (block, bytes) in life.changes() {
            let (writers, known) = match block {
                Block::Pool(at) => match life.uses[at] {
                    Use::Free | Use::Source(_) => (Vec::new(), life.pool.block(at)),
                    Use::Target(job) | Use::Landing(job) => (vec![job], life.pool.block(at)),
                },
                Block::Board(at) => (life.writers[at].clone(), life.board.block(at)),
            };
            for at in 0..BLOCK_BYTES {
                if bytes[at] == known[at] {
                    continue;
                }
                let allowed = writers.iter().any(|id| {
                    let job = &self.jobs[*id];
                    let (Block::Pool(own) | Block::Board(own)) = block;
                    if job.kind == Kind::Pull {
                        // What it reads counts once it is done: a source that is withdrawn fills
                        // what it had begun to send.
                        return job.ended.is_none();
                    }
                    let index = job.owner_blocks.iter().position(|block| *block == own);
                    let belongs = index.is_some_and(|index| job.expected(index)[at] == bytes[at]);
                    belongs && job.may_store(self.now)
                });
                assert!(
                    allowed,
                    "byte {at} of {block:?} of host {host} was stored by nobody who may: writers \
                     {:?}",
                    writers.iter().map(|id| (id, &self.jobs[*id])).collect::<Vec<_>>()
                );
            }
            life.note(block, &bytes);
            for id in writers {
                self.jobs[id].was_whole |= self.jobs[id].is_whole(life);
            }
        }
    }
}
