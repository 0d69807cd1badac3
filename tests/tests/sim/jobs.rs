//! What the programs on the hosts want of their engines, and what they may rely on.
//!
//! | kind | who grants | who moves | as in |
//! |---|---|---|---|
//! | `Push` | the owner, for writing | the worker writes | Mooncake: decode grants, prefill pushes |
//! | `Pull` | the owner, for reading | the worker reads | NIXL: prefill grants, decode pulls |
//! | `Board` | nobody: shared with all | the worker writes | registered memory by address |
//! | `Note` | nobody | a notification alone | |
//!
//! An owner takes its memory back when it has been told that the job is done, or has no more patience,
//! and uses it for something else at once. A worker does so when its transfer has ended.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_engine::{
    Access, Ended, Error, Grant, Notification, Remote, RemoteGrant, RemoteSpans, Request, Transfer,
    TransferError,
};

use crate::host::{BLOCK_BYTES, BOARD, BOARD_BLOCKS_EACH, Host, Life, LifeId, POOL, Use};
use crate::random::contents;
use crate::world::{Event, World};

pub(crate) type JobId = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Push,
    Pull,
    Board,
    Note,
}

/// A piece of work for two hosts.
pub(crate) struct Job {
    pub(crate) kind: Kind,
    /// Whose memory the worker touches, and who is notified.
    pub(crate) owner: LifeId,
    pub(crate) worker: usize,
    /// The process that submitted it.
    pub(crate) worked_by: Option<LifeId>,
    pub(crate) owner_blocks: Vec<usize>,
    pub(crate) worker_blocks: Vec<usize>,
    /// The bytes of all its blocks, in order.
    pub(crate) contents: Vec<u8>,
    pub(crate) notifies: bool,
    ticket: Vec<u8>,
    grant: Option<Grant>,
    expires: Instant,
    /// Whether everything has been in place at once.
    pub(crate) was_whole: bool,
    pub(crate) told: u32,
    tries: u32,
    pub(crate) transfer: Option<Transfer>,
    pub(crate) deadline: Instant,
    pub(crate) ended: Option<Ended>,
}

/// Everything but the bytes.
impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("kind", &self.kind)
            .field("owner", &self.owner)
            .field("owner_blocks", &self.owner_blocks)
            .field("worker", &self.worker)
            .field("worked_by", &self.worked_by)
            .field("worker_blocks", &self.worker_blocks)
            .field("notifies", &self.notifies)
            .field("granted", &self.grant.is_some())
            .field("was_whole", &self.was_whole)
            .field("told", &self.told)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// Whether a byte of its write may be stored now: somebody is still owed nothing by its end.
    pub(crate) fn may_store(&self, now: Instant) -> bool {
        let permitted = match self.kind {
            Kind::Board => true,
            _ => self.grant.is_some() && now < self.expires,
        };
        permitted && self.told == 0 && !self.is_over_for_sure()
    }

    /// It has ended, and so that nothing of it can land any more.
    fn is_over_for_sure(&self) -> bool {
        match &self.ended {
            None => false,
            Some(Ok(_)) => true,
            Some(Err(error)) => error.remote != Remote::Unknown,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.transfer.as_ref().is_none_or(|transfer| transfer.poll().is_some())
    }

    pub(crate) fn expected(&self, index: usize) -> &[u8] {
        &self.contents[index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES]
    }

    /// Whether all that it writes is in its owner's memory.
    pub(crate) fn is_whole(&self, owner: &Life) -> bool {
        let known = if self.kind == Kind::Board { &owner.board } else { &owner.pool };
        let mut blocks = self.owner_blocks.iter().enumerate();
        blocks.all(|(index, block)| known.block(*block) == self.expected(index))
    }
}

impl World {
    /// An owner begins a job with a worker. Whether it could.
    pub(crate) fn begin_job(&mut self, kind: Kind, owner: usize, worker: usize) -> Option<JobId> {
        let id = self.jobs.len();
        let blocks = self.random.between(1, 12);
        let worker_incarnation = self.listed(worker)?;
        let contents = contents(self.seed ^ (id as u64 + 1) << 20, blocks * BLOCK_BYTES);
        // In the calm nobody is so impatient that the job could not be done.
        let (least_ttl, least_patience) =
            if self.network.stormy { (100, 20) } else { (6000, 4000) };
        let ttl = self.random.millis(least_ttl, 8000);
        let (now, host) = (self.now, &mut self.hosts[owner]);
        let owner_id = host.id()?;
        let life = host.life.as_mut()?;
        let mut job = Job {
            kind,
            owner: owner_id,
            worker,
            worked_by: None,
            owner_blocks: Vec::new(),
            worker_blocks: Vec::new(),
            contents,
            notifies: kind == Kind::Note || !self.random.one_in(4),
            ticket: Vec::new(),
            grant: None,
            expires: now + ttl,
            was_whole: false,
            told: 0,
            tries: 0,
            transfer: None,
            deadline: now,
            ended: None,
        };
        match kind {
            Kind::Note => job.contents.clear(),
            Kind::Board => {
                // Blocks of the owner's board that are this worker's to write.
                let own = worker * BOARD_BLOCKS_EACH..(worker + 1) * BOARD_BLOCKS_EACH;
                let idle = own.filter(|block| life.writers[*block].is_empty());
                job.owner_blocks = idle.take(blocks).collect();
                job.contents.truncate(job.owner_blocks.len() * BLOCK_BYTES);
            }
            Kind::Push | Kind::Pull => {
                let mut free = life.free_blocks();
                for _ in 0..blocks.min(free.len()) {
                    job.owner_blocks.push(free.swap_remove(self.random.below(free.len())));
                }
                if self.random.one_in(3) {
                    job.owner_blocks.sort_unstable();
                }
                job.contents.truncate(job.owner_blocks.len() * BLOCK_BYTES);
                let (access, used) = match kind {
                    Kind::Push => (Access::Write, Use::Target(id)),
                    _ => (Access::Read, Use::Source(id)),
                };
                for (index, block) in job.owner_blocks.iter().enumerate() {
                    life.uses[*block] = used;
                    if kind == Kind::Pull {
                        life.pool.write(*block, job.expected(index));
                    }
                }
                let spans = indices(&job.owner_blocks)
                    .map(|block| life.pool.layout.block(block).expect("one"));
                let registry = life.node.registry();
                let grant = registry.grant(spans, worker_incarnation, access, ttl);
                let grant = grant.expect("the pool may be granted");
                job.ticket = life.node.ticket(&grant);
                job.grant = Some(grant);
            }
        }
        if job.owner_blocks.is_empty() && kind != Kind::Note {
            return None;
        }
        self.jobs.push(job);
        let arrives = self.network.arrival(&mut self.random, now, owner, worker);
        self.at(arrives, Event::Ticket(id));
        // A source is often withdrawn while its bytes are on their way.
        let short = if kind == Kind::Pull { 150 } else { 800 };
        let most = [short, 8000][self.random.below(2)].max(least_patience);
        let patience = self.random.millis(least_patience, most);
        self.at(now + patience, Event::Patience(id));
        Some(id)
    }

    /// The worker hears of its job, or tries again: it submits the transfer.
    pub(crate) fn work(&mut self, id: JobId) {
        let now = self.now;
        let job = &mut self.jobs[id];
        let (owner, worker) = (job.owner.host, job.worker);
        let Some(worker_id) = self.hosts[worker].id() else { return };
        let Some(life) = self.hosts[worker].life.as_mut() else { return };
        // Unless it is shutting down.
        let Ok(peer) = life.node.peer(Host::address(owner)) else { return };
        let layout = peer.layout(if job.kind == Kind::Board { BOARD } else { POOL });
        // A ticket lists its spans in order, neighbours as one.
        let listed = job.owner_blocks.windows(2).all(|pair| pair[0] + 1 < pair[1]);
        let by_layout = self.random.one_in(2) || !listed;
        let needs_layout = match job.kind {
            Kind::Note => false,
            Kind::Board => true,
            Kind::Push | Kind::Pull => by_layout,
        };
        let remote = match (&layout, needs_layout) {
            (Err(error), _) if needs_layout || matches!(error, Error::Unreachable { .. }) => {
                // Not connected yet, or the peer has nothing of this name just now.
                life.node.connect(&peer);
                job.tries += 1;
                if job.tries < 20 {
                    self.at(now + Duration::from_millis(100), Event::Ticket(id));
                }
                return self.settle(worker);
            }
            (Ok(layout), true) => {
                let blocks = layout.blocks(indices(&job.owner_blocks));
                RemoteSpans::from(blocks)
            }
            _ => RemoteSpans::default(),
        };
        let remote = match job.kind {
            Kind::Note | Kind::Board => remote,
            Kind::Push | Kind::Pull => {
                let grant = Arc::new(RemoteGrant::from_ticket(&job.ticket).expect("a ticket"));
                if needs_layout { remote.under(&grant) } else { RemoteSpans::from(&grant) }
            }
        };
        if matches!(job.kind, Kind::Note | Kind::Board) {
            // It goes to whoever the worker knows by this address.
            let Some(met) = peer.incarnation() else { return };
            job.owner = LifeId::of(met);
        }
        if job.kind == Kind::Board
            && let Some(owner) = self.hosts[owner].living(job.owner)
        {
            if job.owner_blocks.iter().any(|block| !owner.writers[*block].is_empty()) {
                // It writes there already, and is not to know in which order that lands.
                return;
            }
            for block in &job.owner_blocks {
                owner.writers[*block].push(id);
            }
        }
        // Its own blocks.
        let Some(life) = self.hosts[worker].life.as_mut() else { return };
        let mut free = life.free_blocks();
        if free.len() < job.owner_blocks.len() {
            return;
        }
        for index in 0..job.owner_blocks.len() {
            let block = free.swap_remove(self.random.below(free.len()));
            job.worker_blocks.push(block);
            life.uses[block] = match job.kind {
                Kind::Pull => Use::Landing(id),
                _ => Use::Source(id),
            };
            if job.kind != Kind::Pull {
                life.pool.write(block, job.expected(index));
            }
        }
        let local = life.pool.layout.blocks(indices(&job.worker_blocks));
        let mut request: Request = match job.kind {
            Kind::Pull => peer.read(remote, local),
            Kind::Note => peer.notify(""),
            Kind::Push | Kind::Board => peer.write(local, remote),
        };
        if job.notifies {
            request = request.notify((id as u64).to_le_bytes());
        }
        let allowed = match self.network.stormy {
            true => self.random.millis(50, 5000),
            false => Duration::from_secs(5),
        };
        job.deadline = now + allowed;
        job.worked_by = Some(worker_id);
        let submitted = request.deadline(allowed).checksum(self.random.one_in(3)).submit();
        match submitted {
            Ok(transfer) => {
                job.transfer = Some(transfer);
                self.open.insert(id);
            }
            Err(error) => self.end(id, Err(error)),
        }
        if self.network.stormy && self.random.one_in(8) {
            let at = now + self.random.millis(0, 400);
            self.at(at, Event::Cancel(id));
        }
        self.settle(worker);
    }

    /// The worker wants its transfer no more.
    pub(crate) fn cancel(&mut self, id: JobId) {
        let worker = self.jobs[id].worker;
        if let Some(transfer) = &self.jobs[id].transfer {
            transfer.cancel();
        }
        self.settle(worker);
    }

    pub(crate) fn open_jobs(&self, life: LifeId) -> Vec<JobId> {
        self.open.iter().copied().filter(|id| self.jobs[*id].worked_by == Some(life)).collect()
    }

    /// A transfer has ended: what its worker was promised holds.
    pub(crate) fn end(&mut self, id: JobId, ended: Ended) {
        let job = &mut self.jobs[id];
        assert!(job.ended.is_none(), "job {id} ended twice: {:?}, then {ended:?}", job.ended);
        self.open.remove(&id);
        job.transfer = None;
        let is_done = ended.is_ok();
        job.ended = Some(ended);
        self.trace(&[4, id as u64, u64::from(is_done)]);
        self.tally(id);
        let job = &self.jobs[id];
        let worker_id = job.worked_by.expect("it was submitted");
        if is_done {
            match job.kind {
                Kind::Pull => {
                    let life = self.hosts[job.worker].living(worker_id).expect("it polls");
                    for (index, block) in job.worker_blocks.iter().enumerate() {
                        let read = life.pool.block(*block);
                        assert!(
                            read == job.expected(index),
                            "job {id} has read block {index}, and it is not what it was"
                        );
                    }
                }
                Kind::Push | Kind::Board => {
                    assert!(
                        job.was_whole,
                        "job {id} is done, and not all of it is in place: {job:?}"
                    );
                }
                Kind::Note => {}
            }
        }
        let job = &self.jobs[id];
        // Somebody else's from now on.
        let blocks = job.worker_blocks.clone();
        self.reuse(worker_id, &blocks);
        let job = &self.jobs[id];
        if job.kind == Kind::Board
            && job.is_over_for_sure()
            && let Some(owner) = self.hosts[job.owner.host].living(job.owner)
        {
            for block in &job.owner_blocks {
                owner.writers[*block].retain(|writer| *writer != id);
            }
        }
    }

    /// Blocks are free, and some are filled with something else at once.
    fn reuse(&mut self, of: LifeId, blocks: &[usize]) {
        let Some(life) = self.hosts[of.host].living(of) else { return };
        for block in blocks {
            life.uses[*block] = Use::Free;
            if !self.random.one_in(3) {
                let other = contents(self.random.next(), BLOCK_BYTES);
                life.pool.write(*block, &other);
            }
        }
    }

    /// Takes the notifications of a process, as its program does from time to time.
    pub(crate) fn read_inbox(&mut self, id: LifeId) {
        if self.hosts[id.host].id() != Some(id) {
            return;
        }
        let again = self.now + self.random.millis(1, 150);
        self.at(again, Event::ReadInbox(id));
        while let Some(notification) =
            self.hosts[id.host].living(id).and_then(|life| life.node.try_notification())
        {
            // Anybody may say anything: whose word counts is the program's to decide.
            if self.is_host(notification.from) {
                self.be_told(id, job_of(&notification));
            }
            if self.random.one_in(3) {
                break;
            }
        }
        self.settle(id.host);
    }

    fn be_told(&mut self, told: LifeId, id: JobId) {
        self.trace(&[5, id as u64]);
        let job = &mut self.jobs[id];
        assert_eq!(job.owner, told, "job {id} was announced to somebody else");
        job.told += 1;
        assert_eq!(job.told, 1, "job {id} was announced again");
        self.take_back(id);
    }

    /// The owner takes its memory back, and uses it for something else.
    pub(crate) fn take_back(&mut self, id: JobId) {
        let job = &mut self.jobs[id];
        let Some(grant) = job.grant.take() else { return };
        let (of, blocks) = (job.owner, job.owner_blocks.clone());
        grant.revoke();
        self.reuse(of, &blocks);
    }

    /// A process forgets its memory: it gives it back, with work under way, and registers the same
    /// addresses again.
    pub(crate) fn sleep_and_wake(&mut self, host: usize) {
        let Some(id) = self.hosts[host].id() else { return };
        let mut withdrawn = Vec::new();
        let Some(life) = self.hosts[host].living(id) else { return };
        for job in self.jobs.iter_mut().filter(|job| job.owner == id) {
            if let Some(grant) = job.grant.take() {
                withdrawn.push((grant, job.owner_blocks.clone()));
            }
        }
        life.forget_pool();
        // Their grants permit nothing any more, though nobody has revoked them.
        let blocks: Vec<usize> = withdrawn.iter().flat_map(|(_, blocks)| blocks.clone()).collect();
        self.reuse(id, &blocks);
        self.check_memory(host);
        // Their memory is gone: they have ended, whoever does not answer.
        self.poll_transfers(host);
        for job in self.open_jobs(id) {
            let job = &self.jobs[job];
            assert!(
                job.worker_blocks.is_empty(),
                "its memory was withdrawn, and it goes on: {job:?}"
            );
        }
        if let Some(life) = self.hosts[host].living(id) {
            life.renew_pool();
        }
        drop(withdrawn);
        self.settle(host);
    }

    /// A process is gone, and with it what it granted and what it had under way.
    pub(crate) fn abandon(&mut self, gone: LifeId) {
        for job in &mut self.jobs {
            if job.owner == gone {
                job.grant = None;
            }
            if job.worked_by == Some(gone) {
                job.transfer = None;
            }
        }
    }

    /// How often each end was seen, so that a harness in which nothing fails or nothing works is
    /// noticed.
    fn tally(&mut self, id: JobId) {
        let job = &self.jobs[id];
        let end = match &job.ended {
            Some(Ok(_)) => "Done".to_owned(),
            Some(Err(TransferError { cause, remote, .. })) => format!("{} {remote}", name(cause)),
            None => return,
        };
        *self.ends.entry((job.kind, end)).or_default() += 1;
    }
}

fn indices(blocks: &[usize]) -> impl Iterator<Item = u32> {
    blocks.iter().map(|block| u32::try_from(*block).expect("few blocks"))
}

pub(crate) fn job_of(notification: &Notification) -> JobId {
    let job = notification.bytes[..].try_into().map(u64::from_le_bytes);
    usize::try_from(job.expect("eight bytes")).expect("a job's number")
}

fn name(error: &Error) -> String {
    let name = format!("{error:?}");
    name.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
