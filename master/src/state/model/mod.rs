//! Whatever the order of commands, by the side of a simple model: no lease is broken, no byte is
//! given to two, nothing is placed where nobody lives, tenants see their own, and a master that was
//! rebuilt from what owners have knows what the one before knew.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use kvferry_proto::pool::{
    Ended, Exists, Follow, Held, Join, Key, Lent, Locate, Outcome, Presence, Put, PutEnd,
    PutRevoke, PutStart, Remove, Revoked, SegmentId, What,
};
use kvferry_proto::{Incarnation, RegionId};
use proptest::prelude::*;

use super::*;

const CLIENTS: u64 = 4;
const SEGMENT_BYTES: u64 = 2048;
const TENANTS: [&str; 2] = ["x", "y"];

/// An owner that does what it should.
struct Peer {
    incarnation: Incarnation,
    segment: SegmentId,
    applied: u64,
    epoch: u32,
    inventory: BTreeMap<Version, Held>,
    /// When it last gave a sign of life.
    heard: Moment,
}

impl Peer {
    /// The highest epoch that it knows of is what it says to the next master.
    fn saw(&mut self, version: Version) {
        self.epoch = self.epoch.max(version.epoch());
    }
}

/// Somebody may store or take bytes there until then.
#[derive(Clone, Copy, Debug)]
struct Claim {
    segment: SegmentId,
    from: u64,
    to: u64,
    until: Moment,
    /// A writer's claim ends earlier when it says so, or when the object is whole.
    writes: Option<Version>,
}

/// A put that was begun.
#[derive(Clone, Debug)]
struct Begun {
    client: Incarnation,
    tenant: Tenant,
    key: Key,
    version: Version,
}

struct World {
    pool: Pool,
    random: fastrand::Rng,
    now: Moment,
    looked: Moment,
    peers: Vec<Peer>,
    claims: Vec<Claim>,
    begun: Vec<Begun>,
    /// What was put last under each name and not removed since.
    whole: HashMap<(Tenant, Key), Version>,
    /// The tenant and key of every version.
    names: HashMap<Version, (Tenant, Key)>,
    /// What must be found until then: it was leased to be read.
    leased: HashMap<(Tenant, Key), (Version, Moment)>,
    next_incarnation: u64,
}

fn settings() -> Settings {
    let ms = Duration::from_millis;
    Settings {
        read_lease: ms(400),
        notice_lease: ms(300),
        reservation: ms(700),
        late_writes: ms(500),
        recovery: ms(0),
        clients: LeaseTimes {
            suspect: ms(1000),
            expire: ms(2000),
            forget: ms(5000),
            look_every: ms(100),
        },
        limits: Limits { keys: 40, ..Limits::default() },
        ..Settings::default()
    }
}

fn lent(segment: SegmentId) -> Lent {
    Lent {
        segment,
        name: format!("s{}", segment.0 % 3),
        address: "a:1".to_owned(),
        region: RegionId { slot: 1, generation: 1 },
        offset: 0,
        length: SEGMENT_BYTES,
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            pool: Pool::new(settings(), seed),
            random: fastrand::Rng::with_seed(seed),
            now: Moment(0),
            looked: Moment(0),
            peers: Vec::new(),
            claims: Vec::new(),
            begun: Vec::new(),
            whole: HashMap::new(),
            names: HashMap::new(),
            leased: HashMap::new(),
            next_incarnation: 0,
        };
        for _ in 0..CLIENTS {
            world.arrive();
        }
        world
    }

    fn arrive(&mut self) {
        self.next_incarnation += 1;
        let incarnation = Incarnation(self.next_incarnation);
        self.peers.push(Peer {
            incarnation,
            segment: SegmentId(self.next_incarnation + 100),
            applied: 0,
            epoch: 0,
            inventory: BTreeMap::new(),
            heard: self.now,
        });
        self.mount(self.peers.len() - 1);
    }

    fn mount(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let join = Join { client: peer.incarnation, host: String::new(), epoch: peer.epoch };
        let joined = self.pool.join(self.now, &join).unwrap();
        assert!(joined.epoch >= peer.epoch);
        (peer.epoch, peer.heard, peer.applied) = (joined.epoch, self.now, 0);
        let lent = lent(peer.segment);
        let mounting = self.pool.mount(self.now, peer.incarnation, lent, true).unwrap();
        let mut mounting = mounting.expect("it is not there yet");
        let mut told = Told::default();
        for held in peer.inventory.values() {
            self.pool.adopt(self.now, &mut mounting, vec![held.clone()], &mut told).unwrap();
        }
        self.pool.mounted(&mounting).unwrap();
    }

    fn any_peer(&mut self) -> usize {
        self.random.usize(0..self.peers.len())
    }

    fn any_name(&mut self) -> (Tenant, Key) {
        let tenant = TENANTS[self.random.usize(0..TENANTS.len())];
        let prefix = ["", "m@0@", "m@1@"][self.random.usize(0..3)];
        let key = format!("{prefix}{}", self.random.u32(0..12));
        (Tenant::new(tenant).unwrap(), Key::try_from(key.as_str()).unwrap())
    }

    fn step(&mut self) {
        match self.random.u32(0..100) {
            0..30 => self.put(),
            30..50 => self.end(),
            50..55 => self.revoke(),
            55..65 => self.locate(),
            65..70 => self.exists(),
            70..76 => self.remove(),
            76..86 => self.pass_time(),
            86..95 => self.follow(),
            95..97 => self.evict(),
            97..98 => self.depart(),
            98..99 => self.remove_all(),
            _ => self.restart(),
        }
        self.check_counts();
    }

    fn put(&mut self) {
        let index = self.any_peer();
        let client = self.peers[index].incarnation;
        let (tenant, key) = self.any_name();
        let group = self.random.bool().then(|| format!("g{}", self.random.u32(0..2)));
        let length = self.random.u64(1..600);
        let start = PutStart {
            client,
            tenant: tenant.clone(),
            puts: vec![Put { key: key.clone(), length, group }],
            replicas: self.random.usize(1..3),
            preferred: if self.random.bool() { vec!["s1".to_owned()] } else { Vec::new() },
            is_pinned: self.random.u32(0..20) == 0,
            soft_pin: Duration::from_millis(self.random.u64(0..2) * 800),
        };
        let mut told = Told::default();
        let seed = self.random.u64(..);
        let (mut answer, wanted) = self.pool.put_start(self.now, seed, &start, &mut told);
        assert_eq!(wanted > 0, answer.reserved[0].as_ref().is_err_and(|why| why.is_backpressure()));
        if wanted > 0 && self.random.bool() {
            self.make_room(wanted, true);
            self.pool.reserve(self.now, seed, &start, &mut answer, &mut told);
        }
        let Ok(reserved) = &answer.reserved[0] else { return };
        self.peers[index].saw(reserved.version);
        let until = self.now.after(settings().reservation).after(settings().late_writes);
        for replica in &reserved.replicas {
            let placed = &answer.segments[replica.segment];
            let (segment, from) = (placed.lent.segment, replica.offset);
            let to = from + length;
            assert!(to <= SEGMENT_BYTES);
            let owner = self.peers.iter().find(|peer| peer.segment == segment);
            let owner = owner.expect("nothing is placed with whoever has left");
            let silent = self.looked.since(owner.heard);
            assert!(silent < settings().clients.suspect, "placed with one silent for {silent:?}");
            for held in owner.inventory.values() {
                let apart = held.offset + held.length <= from || to <= held.offset;
                assert!(apart, "{held:?} is in the inventory, and {from}..{to} is given out");
            }
            for claim in self.claims.iter().filter(|claim| claim.until > self.now) {
                let apart = claim.segment != segment || claim.to <= from || to <= claim.from;
                assert!(apart, "{claim:?} runs, and {from}..{to} is given out");
            }
            let writes = Some(reserved.version);
            self.claims.push(Claim { segment, from, to, until, writes });
        }
        let segments: std::collections::BTreeSet<_> =
            reserved.replicas.iter().map(|replica| replica.segment).collect();
        assert_eq!(segments.len(), reserved.replicas.len(), "replicas are apart");
        let name = (tenant.clone(), key.clone());
        assert!(self.names.insert(reserved.version, name.clone()).is_none(), "used twice");
        // Something that could be found is never covered by a put; what was hidden may be.
        self.whole.remove(&name);
        self.begun.push(Begun { client, tenant, key, version: reserved.version });
    }

    fn take_begun(&mut self) -> Option<Begun> {
        (!self.begun.is_empty())
            .then(|| self.begun.swap_remove(self.random.usize(0..self.begun.len())))
    }

    fn end(&mut self) {
        let Some(begun) = self.take_begun() else { return };
        let Begun { client, tenant, key, version } = begun;
        let lost = match self.random.u32(0..6) {
            0 => {
                let index = self.any_peer();
                vec![self.peers[index].segment]
            }
            _ => Vec::new(),
        };
        let ended = Ended { key: key.clone(), version, checksum: None, lost: lost.clone() };
        let end = PutEnd { client, tenant: tenant.clone(), puts: vec![ended] };
        let outcome = self.pool.put_end(self.now, &end, &mut Told::default())[0];
        if outcome == Outcome::Ok {
            // What was written is now guarded by the inventory, or the object itself.
            self.claims
                .retain(|claim| claim.writes != Some(version) || lost.contains(&claim.segment));
            self.whole.insert((tenant, key), version);
        }
    }

    fn revoke(&mut self) {
        let Some(Begun { client, tenant, key, version }) = self.take_begun() else { return };
        let is_fenced = self.random.bool();
        let revoked = Revoked { key, version, is_fenced };
        let revoke = PutRevoke { client, tenant, puts: vec![revoked] };
        if self.pool.put_revoke(self.now, &revoke) == [Outcome::Ok] && is_fenced {
            self.claims.retain(|claim| claim.writes != Some(version));
        }
    }

    fn locate(&mut self) {
        let (tenant, key) = self.any_name();
        let name = (tenant.clone(), key.clone());
        let answer = self.pool.locate(self.now, &Locate { tenant, keys: vec![key] });
        let due = self.leased.get(&name).filter(|(_, until)| *until > self.now);
        match &answer.objects[0] {
            Ok(located) => {
                assert_eq!(self.names[&located.version], name, "another's object");
                if let Some(version) = self.whole.get(&name) {
                    assert_eq!(located.version, *version, "an old object");
                }
                let until = self.now.after(answer.lease);
                for replica in &located.replicas {
                    let segment = answer.segments[replica.segment].lent.segment;
                    let (from, to) = (replica.offset, replica.offset + located.length);
                    self.claims.push(Claim { segment, from, to, until, writes: None });
                }
                self.leased.insert(name, (located.version, until));
            }
            Err(_) => {
                assert_eq!(due.map(|(version, _)| version), None, "a lease was broken");
            }
        }
    }

    fn exists(&mut self) {
        let (tenant, key) = self.any_name();
        let name = (tenant.clone(), key.clone());
        let exists = Exists { tenant, keys: vec![key], lease: self.random.bool() };
        let found = self.pool.exists(self.now, &exists).found[0];
        if self.leased.get(&name).is_some_and(|(_, until)| *until > self.now) {
            assert_eq!(found, Presence::There);
        }
    }

    fn remove(&mut self) {
        let (tenant, key) = self.any_name();
        let name = (tenant.clone(), key.clone());
        let force = self.random.bool();
        let remove = Remove { tenant, keys: vec![key], force };
        let outcome = self.pool.remove(self.now, &remove, &mut Told::default())[0];
        let is_leased = self.leased.get(&name).is_some_and(|(_, until)| *until > self.now);
        if outcome == Outcome::Ok {
            assert!(force || !is_leased, "what is leased was removed");
            self.whole.remove(&name);
            self.leased.remove(&name);
        } else if force {
            assert_eq!(outcome, Outcome::NotFound);
        }
    }

    fn remove_all(&mut self) {
        let tenant = Tenant::new(TENANTS[self.random.usize(0..2)]).unwrap();
        self.pool.close_past(self.now, &tenant).unwrap();
        for shard in 0..SHARDS {
            let told = &mut Told::default();
            let kept =
                self.pool.remove_matching(self.now, shard, &tenant, &Matcher::All, true, told).1;
            assert_eq!(kept, 0);
            self.pool.each_key(shard, &tenant, |key| panic!("{key:?} is left"));
        }
        self.whole.retain(|name, _| name.0 != tenant);
        self.leased.retain(|name, _| name.0 != tenant);
    }

    fn make_room(&mut self, wanted: u64, urgent: bool) {
        let seed = self.random.u64(..);
        let told = &mut Told::default();
        if urgent {
            self.pool.make_room(self.now, seed, wanted, told);
        } else {
            self.pool.tend(self.now, seed, told);
        }
        // What may be evicted may be gone.
        self.whole.clear();
    }

    fn evict(&mut self) {
        let wanted = self.random.u64(0..2000);
        self.make_room(wanted, true);
    }

    fn pass_time(&mut self) {
        let silent = self.random.u32(0..40) == 0;
        let steps = if silent { self.random.u64(5..70) } else { self.random.u64(1..5) };
        for _ in 0..steps {
            self.now = self.now.after(Duration::from_millis(100));
            self.looked = self.now;
            for index in 0..self.peers.len() {
                // The last one is the one that is silent.
                if silent && index + 1 == self.peers.len() {
                    continue;
                }
                let peer = &mut self.peers[index];
                if self.pool.beat(self.now, peer.incarnation).is_some() {
                    peer.heard = self.now;
                } else {
                    self.pool.tend(self.now, 1, &mut Told::default());
                    self.mount(index);
                    // Who was forgotten brings what had been evicted or removed meanwhile.
                    self.whole.clear();
                }
            }
            for (_, became) in self.pool.look(self.now) {
                if matches!(became, Became::Expired | Became::Forgotten) {
                    // What it had is hidden, and what it wrote taken back.
                    self.whole.clear();
                    self.leased.clear();
                }
            }
        }
        self.make_room(0, false);
    }

    /// An owner hears what has changed.
    fn follow(&mut self) {
        let index = self.any_peer();
        self.follow_one(index);
    }

    fn follow_one(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let Some(changes) = self.pool.changes(peer.incarnation, peer.applied) else { return };
        for change in changes.changes {
            if change.segment != peer.segment {
                continue;
            }
            match change.what {
                What::Keep(held) => {
                    let overlaps = peer.inventory.values().any(|other| {
                        held.offset < other.offset + other.length
                            && other.offset < held.offset + held.length
                    });
                    assert!(!overlaps, "{held:?} is where something else is");
                    peer.saw(held.version);
                    peer.inventory.insert(held.version, held);
                }
                What::Drop(version) => {
                    peer.inventory.remove(&version);
                }
            }
        }
        peer.applied = changes.number;
        let follow = Follow { client: peer.incarnation, applied: peer.applied };
        self.pool.follow(self.now, follow).unwrap();
    }

    /// A client is killed, and another comes.
    fn depart(&mut self) {
        let index = self.any_peer();
        let peer = self.peers.swap_remove(index);
        // One that was silent for long is not known any more.
        if self.random.bool()
            && let Ok(leaving) = self.pool.unmount(self.now, peer.incarnation, peer.segment)
        {
            self.pool.unmounted(self.now, &leaving);
        }
        let was_known = self.pool.leave(self.now, peer.incarnation);
        assert!(was_known || self.now.since(peer.heard) >= settings().clients.forget);
        self.claims.retain(|claim| claim.segment != peer.segment);
        self.begun.retain(|begun| begun.client != peer.incarnation);
        self.whole.clear();
        self.leased.clear();
        self.pool.tend(self.now, 1, &mut Told::default());
        self.arrive();
    }

    /// The master is killed when all owners know what they have, and another starts.
    fn restart(&mut self) {
        for index in 0..self.peers.len() {
            self.follow_one(index);
        }
        let live = |peer: &Peer| self.looked.since(peer.heard) < settings().clients.expire;
        if !self.peers.iter().all(live) {
            return;
        }
        let mut names = Vec::new();
        for tenant in TENANTS.map(|tenant| Tenant::new(tenant).unwrap()) {
            for shard in 0..SHARDS {
                self.pool.each_key(shard, &tenant, |key| {
                    names.push((tenant.clone(), Key::new(key.to_vec()).unwrap()));
                });
            }
        }
        let seed = self.random.u64(..);
        let before: HashMap<_, _> = names
            .into_iter()
            .map(|(tenant, key)| {
                let status = self.pool.query(self.now, &tenant, &key).unwrap();
                ((tenant, key), (status.version, status.length, status.replicas.len()))
            })
            .collect();
        self.pool = Pool::new(settings(), seed);
        // A server's time begins with it: it does not take what was before for having been held up.
        self.pool.look(self.now);
        for index in 0..self.peers.len() {
            self.mount(index);
        }
        // Owners have fenced what was allowed before.
        self.claims.clear();
        self.begun.clear();
        for ((tenant, key), known) in before {
            let status = self.pool.query(self.now, &tenant, &key).unwrap();
            assert_eq!((status.version, status.length, status.replicas.len()), known);
        }
    }

    fn check_counts(&self) {
        let totals = self.pool.totals();
        assert!(totals.keys <= settings().limits.keys);
        let in_shards: usize =
            self.pool.shards.iter().map(|shard| shard.lock().objects.len()).sum();
        assert_eq!(totals.keys, in_shards as u64);
        let writing: usize = self.pool.shards.iter().map(|shard| shard.lock().writing()).sum();
        assert_eq!(totals.writing, writing as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_pool_keeps_its_promises_whatever_is_asked_of_it(seed: u64) {
        let mut world = World::new(seed);
        for _ in 0..400 {
            world.step();
        }
        // Nothing is kept of what was forgotten.
        for tenant in TENANTS.map(|tenant| Tenant::new(tenant).unwrap()) {
            for shard in 0..SHARDS {
                let told = &mut Told::default();
                world.pool.remove_matching(world.now, shard, &tenant, &Matcher::All, true, told);
            }
        }
        let totals = world.pool.totals();
        prop_assert_eq!((totals.keys, totals.key_bytes, totals.writing), (0, 0, 0));
    }
}
