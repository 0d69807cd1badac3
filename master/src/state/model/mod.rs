//! Whatever the order of commands, by the side of a simple model: no lease is broken, no byte is
//! given to two, nothing is placed where nobody lives, tenants see their own, and a master that was
//! rebuilt from what owners have knows what the one before knew.

mod objects;
mod peers;

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
