//! The master.

use std::collections::BTreeMap;
use std::time::Duration;

use kv_master::state::{LeaseTimes, Moment, Pool, Settings, Standing, Told};
use kvferry_proto::Incarnation;
use kvferry_proto::pool::{
    Beat, BeatAnswer, Follow, Held, Join, JoinAnswer, Lent, Locate, LocateAnswer, Outcome, PutEnd,
    PutRevoke, PutStart, PutStartAnswer, Remove,
};

use super::hosts::LifeId;
use super::{Event, Ms, World};

/// How long the master waits until owners have recorded what it says.
const RECORDED: Ms = 1000;

#[derive(Debug)]
pub(super) enum Request {
    Join(Join),
    Beat(Beat),
    /// Changes are to be told from now on, in this session.
    Follow(LifeId, u64),
    /// They were applied.
    Applied(Follow),
    Mount {
        client: Incarnation,
        lent: Lent,
        is_fenced: bool,
        held: Vec<Held>,
    },
    Start(PutStart),
    End(PutEnd),
    Revoke(PutRevoke),
    Locate(Locate),
    Remove(Remove),
}

#[derive(Debug)]
pub(super) enum Answer {
    Joined(JoinAnswer),
    Beat(BeatAnswer),
    /// Whether it was done.
    Done(bool),
    Started(PutStartAnswer),
    Ended(Vec<Outcome>, bool),
    Located(LocateAnswer),
}

/// An owner that is told of changes.
#[derive(Debug)]
struct Stream {
    session: u64,
    told: u64,
    /// When what was told last arrives: they keep their order.
    last: Ms,
}

#[derive(Debug)]
struct Ending {
    call: u64,
    outcomes: Vec<Outcome>,
    told: Told,
    until: Ms,
}

pub(super) struct Master {
    pub(super) pool: Pool,
    id: Incarnation,
    started: Ms,
    streams: BTreeMap<LifeId, Stream>,
    ending: Vec<Ending>,
}

impl Master {
    pub(super) fn moment(&self, now: Ms) -> Moment {
        Moment(now - self.started)
    }
}

fn settings() -> Settings {
    let ms = Duration::from_millis;
    Settings {
        read_lease: ms(400),
        notice_lease: ms(300),
        reservation: ms(2000),
        late_writes: ms(600),
        recovery: ms(500),
        most_recovery: ms(5000),
        clients: LeaseTimes {
            suspect: ms(1000),
            expire: ms(2000),
            forget: ms(8000),
            look_every: ms(50),
        },
        // Nothing is evicted: whatever was recorded stays.
        high_watermark: 1.0,
        ..Settings::default()
    }
}

impl World {
    pub(super) fn start_master(&mut self) {
        self.masters += 1;
        self.master_stopped = 0;
        let pool = Pool::new(settings(), self.random.u64(..));
        let (id, started) = (Incarnation(self.masters), self.now);
        let (streams, ending) = (BTreeMap::new(), Vec::new());
        self.master = Some(Master { pool, id, started, streams, ending });
        for host in &mut self.hosts {
            host.disturbed = host.disturbed.max(self.now);
        }
    }

    /// An owner's connection has broken.
    pub(super) fn break_stream(&mut self, life: LifeId) {
        if let Some(master) = &mut self.master {
            master.streams.remove(&life);
        }
    }

    fn answer(&mut self, call: u64, answer: Answer) {
        let Some(host) = self.calls.get(&call).map(|call| call.from.host) else { return };
        let delay = self.delay();
        if self.hosts[host].cut <= self.now {
            self.at(self.now + delay, Event::Answer(call, answer));
        }
    }

    pub(super) fn serve(&mut self, call: u64, request: Request) {
        let Some(master) = &mut self.master else { return };
        let (pool, now) = (&master.pool, master.moment(self.now));
        let told = &mut Told::default();
        let answer = match request {
            Request::Join(join) => match pool.join(now, &join) {
                Ok(joined) => Answer::Joined(JoinAnswer {
                    master: master.id,
                    epoch: joined.epoch,
                    lease: joined.lease,
                    beat_every: Duration::from_millis(200),
                    heartbeat_port: 1,
                    is_recovering: joined.is_recovering,
                }),
                Err(_) => Answer::Done(false),
            },
            Request::Beat(beat) => {
                let lease =
                    if beat.master == master.id { pool.beat(now, beat.client) } else { None };
                let is_recovering = pool.is_recovering(now);
                Answer::Beat(BeatAnswer { master: master.id, lease, is_recovering })
            }
            Request::Follow(life, session) => {
                let follow = Follow { client: super::incarnation(life), applied: 0 };
                let followed = pool.follow(now, follow).is_ok();
                if followed {
                    master.streams.insert(life, Stream { session, told: 0, last: 0 });
                }
                Answer::Done(followed)
            }
            Request::Applied(follow) => Answer::Done(pool.follow(now, follow).is_ok()),
            Request::Mount { client, lent, is_fenced, held } => {
                let mounted = match pool.mount(now, client, lent, is_fenced) {
                    Ok(Some(mut mounting)) => match pool.adopt(now, &mut mounting, held, told) {
                        Ok(()) => pool.mounted(&mounting).is_ok(),
                        Err(error) => panic!("an inventory cannot be: {error}"),
                    },
                    Ok(None) => true,
                    Err(_) => false,
                };
                Answer::Done(mounted)
            }
            Request::Start(start) => {
                let seed = self.random.u64(..);
                Answer::Started(pool.put_start(now, seed, &start, told).0)
            }
            Request::End(end) => {
                let outcomes = pool.put_end(now, &end, told);
                let (told, until) = (std::mem::take(told), self.now + RECORDED);
                master.ending.push(Ending { call, outcomes, told, until });
                return self.tell();
            }
            Request::Revoke(revoke) => {
                let _ = pool.put_revoke(now, &revoke);
                Answer::Done(true)
            }
            Request::Locate(locate) => Answer::Located(pool.locate(now, &locate)),
            Request::Remove(remove) => {
                Answer::Done(pool.remove(now, &remove, told) == [Outcome::Ok])
            }
        };
        self.answer(call, answer);
        self.tell();
    }

    pub(super) fn tick(&mut self) {
        let seed = self.random.u64(..);
        let Some(master) = &self.master else { return };
        let now = master.moment(self.now);
        master.pool.look(now);
        master.pool.tend(now, seed, &mut Told::default());
        self.tell();
    }

    /// Tells owners what has changed, and writers what owners have recorded.
    fn tell(&mut self) {
        let lives: Vec<LifeId> =
            self.master.iter().flat_map(|master| master.streams.keys().copied()).collect();
        for life in lives {
            loop {
                let Some(master) = &mut self.master else { return };
                let Some(stream) = master.streams.get_mut(&life) else { break };
                let Some(changes) = master.pool.changes(super::incarnation(life), stream.told)
                else {
                    break;
                };
                stream.told = changes.number;
                let (session, last) = (stream.session, stream.last);
                let at = last.max(self.now + self.delay());
                if let Some(stream) =
                    self.master.as_mut().and_then(|master| master.streams.get_mut(&life))
                {
                    stream.last = at;
                }
                self.at(at, Event::Told(life, session, changes));
            }
        }
        let Some(master) = &mut self.master else { return };
        let (pool, now) = (&master.pool, self.now);
        let is_over =
            |ending: &Ending| pool.stand(&ending.told) != Standing::Awaited || now >= ending.until;
        let (over, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut master.ending).into_iter().partition(is_over);
        master.ending = open;
        let answers: Vec<(u64, Answer)> = over
            .into_iter()
            .map(|ending| {
                let is_recorded = master.pool.is_recorded(&ending.told);
                (ending.call, Answer::Ended(ending.outcomes, is_recorded))
            })
            .collect();
        for (call, answer) in answers {
            self.answer(call, answer);
        }
    }
}
