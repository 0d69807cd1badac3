//! What single commands come to.

use std::time::Duration;

use kvferry_proto::RegionId;
use kvferry_proto::pool::{
    Ended, Follow, Join, Key, Lent, Outcome, Put, PutEnd, PutRevoke, PutStart, Remove, Revoked,
    SegmentId,
};

use super::*;

const WRITER: Incarnation = Incarnation(7);

/// The first is lent to the pool by the first client, and so on.
const SEGMENT_BYTES: u64 = 4096;

fn pool(owners: u64) -> Pool {
    let pool = Pool::new(Settings { recovery: Duration::ZERO, ..Settings::default() }, 1);
    join(&pool, WRITER);
    for owner in 1..=owners {
        join(&pool, Incarnation(owner));
        mount(&pool, owner);
    }
    pool
}

fn join(pool: &Pool, client: Incarnation) {
    pool.join(Moment(0), &Join { client, host: String::new(), epoch: 0 }).unwrap();
}

fn mount(pool: &Pool, owner: u64) {
    let lent = Lent {
        segment: SegmentId(owner),
        name: String::new(),
        address: "a:1".to_owned(),
        region: RegionId { slot: 0, generation: 1 },
        offset: 0,
        length: SEGMENT_BYTES,
    };
    let mounting = pool.mount(Moment(0), Incarnation(owner), lent, true).unwrap().unwrap();
    pool.mounted(&mounting).unwrap();
}

fn key(name: &str) -> Key {
    Key::try_from(name).unwrap()
}

/// Reserves so many bytes under a key, in one segment.
fn start(pool: &Pool, name: &str, length: u64) -> Result<Version, Outcome> {
    start_in(pool, name, length, 1)
}

/// Reserves so many bytes under a key, in so many segments where there are as many.
fn start_in(pool: &Pool, name: &str, length: u64, replicas: usize) -> Result<Version, Outcome> {
    let start = PutStart {
        client: WRITER,
        tenant: Tenant::default(),
        puts: vec![Put { key: key(name), length, group: None }],
        replicas,
        preferred: Vec::new(),
        is_pinned: false,
        soft_pin: Duration::ZERO,
        at_once: false,
    };
    let (mut answer, _) = pool.put_start(Moment(1), 1, &start, &mut Told::default());
    answer.reserved.remove(0).map(|reserved| reserved.version)
}

fn end(pool: &Pool, name: &str, version: Version, lost: &[u64]) -> (Outcome, Told) {
    let lost = lost.iter().copied().map(SegmentId).collect();
    let ended = Ended { key: key(name), version, checksum: None, lost };
    let end = PutEnd { client: WRITER, tenant: Tenant::default(), puts: vec![ended] };
    let mut told = Told::default();
    (pool.put_end(Moment(2), &end, &mut told)[0], told)
}

fn revoke(pool: &Pool, name: &str, version: Version, is_fenced: bool) -> Outcome {
    let puts = vec![Revoked { key: key(name), version, is_fenced }];
    let revoke = PutRevoke { client: WRITER, tenant: Tenant::default(), puts };
    pool.put_revoke(Moment(2), &revoke)[0]
}

fn remove(pool: &Pool, name: &str) -> Outcome {
    let remove = Remove { tenant: Tenant::default(), keys: vec![key(name)], force: true };
    pool.remove(Moment(2), &remove, &mut Told::default())[0]
}

#[test]
fn what_is_removed_while_it_is_written_gives_its_room_back_when_its_writer_is_done() {
    let is_free = |pool: &Pool| start(pool, "other", SEGMENT_BYTES).is_ok();
    // Nobody said that nothing can land any more.
    let all = pool(1);
    let version = start(&all, "k", SEGMENT_BYTES).unwrap();
    assert_eq!(remove(&all, "k"), Outcome::Ok);
    assert!(!is_free(&all));
    assert_eq!(revoke(&all, "k", version, false), Outcome::NotReserved);
    assert!(!is_free(&all));
    assert_eq!(revoke(&all, "k", Version(version.0 + 1), true), Outcome::NotReserved);
    assert!(!is_free(&all));
    // Its writer has.
    assert_eq!(revoke(&all, "k", version, true), Outcome::NotReserved);
    assert!(is_free(&all));
    // It has written all, and hears that there is no such object.
    let all = pool(1);
    let version = start(&all, "k", SEGMENT_BYTES).unwrap();
    assert_eq!(remove(&all, "k"), Outcome::Ok);
    assert_eq!(end(&all, "k", version, &[]).0, Outcome::NotReserved);
    assert!(is_free(&all));
    // What it may still be writing is not given out: there are two segments, and one is free.
    let all = pool(2);
    let version = start_in(&all, "k", SEGMENT_BYTES, 2).unwrap();
    assert_eq!(remove(&all, "k"), Outcome::Ok);
    assert_eq!(end(&all, "k", version, &[2]).0, Outcome::NotReserved);
    assert!(is_free(&all));
    assert_eq!(start(&all, "third", SEGMENT_BYTES), Err(Outcome::NoSpace));
    assert!(all.removed.lock().is_empty());
}

#[test]
fn what_was_removed_while_it_was_written_is_forgotten_when_its_time_is_over() {
    let pool = pool(1);
    start(&pool, "k", SEGMENT_BYTES).unwrap();
    assert_eq!(remove(&pool, "k"), Outcome::Ok);
    pool.tend(Moment(3), 1, &mut Told::default());
    assert!(!pool.removed.lock().is_empty());
    let Settings { reservation, late_writes, .. } = *pool.settings();
    let over = Moment(2).after(reservation).after(late_writes);
    pool.tend(over, 1, &mut Told::default());
    assert!(pool.removed.lock().is_empty());
}

#[test]
fn nothing_counts_as_recorded_with_an_owner_whose_lease_is_over_and_nobody_waits_for_it() {
    let pool = pool(1);
    let (client, other) = (Incarnation(1), Incarnation(2));
    let version = start(&pool, "k", 100).unwrap();
    let (outcome, told) = end(&pool, "k", version, &[]);
    assert_eq!((outcome, pool.stand(&told)), (Outcome::Ok, Standing::Awaited));
    let expire = pool.settings().clients.expire;
    let look_every = pool.settings().clients.look_every;
    let mut now = Moment(0);
    while now < Moment(0).after(expire * 2) {
        now = now.after(look_every);
        pool.beat(now, WRITER);
        pool.look(now);
    }
    assert_eq!((pool.stand(&told), pool.is_recorded(&told)), (Standing::Missed, false));
    // It comes back, and has it.
    pool.beat(now, client);
    assert_eq!(pool.stand(&told), Standing::Awaited);
    let last = pool.changes(client, 0).unwrap().number;
    pool.follow(now, Follow { client, applied: last }).unwrap();
    assert!(pool.is_recorded(&told));
    // Of one that is not known nobody can say that it has anything.
    let mut told = Told::default();
    told.add(other, 1);
    assert_eq!(pool.stand(&told), Standing::Missed);
}

#[test]
fn signs_of_life_are_heard_while_a_segment_waits_for_whoever_looks_at_all_objects() {
    let pool = pool(1);
    join(&pool, Incarnation(2));
    let looking = pool.segments.read();
    std::thread::scope(|scope| {
        let mounting = scope.spawn(|| mount(&pool, 2));
        // It waits for the list of segments by now: who only reads has to wait, too.
        while pool.segments.try_read().is_some() {
            std::thread::yield_now();
        }
        let clients = pool.clients.try_lock_for(Duration::from_secs(10));
        let is_free = clients.is_some();
        drop((clients, looking));
        assert!(is_free, "clients are held meanwhile");
        mounting.join().unwrap();
    });
    assert_eq!(pool.segments().len(), 2);
}
