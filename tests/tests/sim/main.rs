//! Whole engines in virtual time, on a network that delays, cuts, breaks and delivers late.
//!
//! The engines are real, from the caller's request to the bytes in registered memory: registry, plan,
//! transfers, sessions, the owner's side, frames, lanes with their system calls. Simulated are the
//! clock, the network between the lanes' sockets, and the control connections. Hosts are stopped and
//! woken, killed and started again on the same address; processes give memory back that is in use.
//!
//! | file | what stands there |
//! |---|---|
//! | `world` | the clock, the events, what goes wrong, and how a run goes |
//! | `host` | a host: an engine while its process lives, its memory, what each block is used for |
//! | `jobs` | what programs ask of their engines, and what they are owed at its end |
//! | `promises` | the checks after every step |
//! | `network` | connections: bytes that take their time |
//! | `directory` | a bootstrap server's table, and who registers with it |
//! | `control` | handshakes, tables and hellos between hosts |
//! | `attack` | strangers who send what engines do not |
//! | `random` | everything that is left to chance |
//!
//! After every step, of every byte of every host: if it has changed, somebody may store there now,
//! and stores just that (promises 3, 4, 5, 7). Of every transfer: it ends once and by its deadline
//! (2); when it is done the bytes are there (1), and its owner is told once, not before (6). In the
//! end: everybody can work with everybody; at rest nothing is open; after shutdown nothing is held
//! (10). A run is its seed: `KVFERRY_SEED=n` repeats one.

mod attack;
mod control;
mod directory;
mod host;
mod jobs;
mod network;
mod promises;
mod random;
mod world;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZero;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvferry_engine::simulation::{Bug, plant, set_time};

use world::World;

/// How many seeds are run where nothing else is said: about 20 s on two cores.
const SEEDS: u64 = 600;

/// What a run came to.
struct Run {
    ends: BTreeMap<String, u32>,
    trace_sum: u64,
    events: u64,
}

fn run(seed: u64, bug: Option<Bug>) -> Result<Run, String> {
    plant(bug);
    let mut world = World::new(seed);
    let ran = std::panic::catch_unwind(AssertUnwindSafe(|| world.run()));
    // Nothing is planted when what is left of the world is dropped.
    plant(None);
    let ends = world.ends.iter().map(|((kind, end), times)| (format!("{kind:?} {end}"), *times));
    let run = Run { ends: ends.collect(), trace_sum: world.trace_sum, events: world.events };
    drop(world);
    set_time(None);
    ran.map(|()| run).map_err(|panic| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast::<&str>().map_or("a panic".into(), |text| (*text).into()),
    })
}

/// Runs seeds on all cores until one fails or the time is over. What failed, or what all of them
/// came to.
fn run_all(seeds: Range<u64>, time: Duration, bug: Option<Bug>) -> Result<Vec<Run>, (u64, String)> {
    let began = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let findings = Mutex::new(BTreeMap::new());
    let runs = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let over = seed >= seeds.end || began.elapsed() > time;
                    if over || !findings.lock().expect("nobody panics with it").is_empty() {
                        return;
                    }
                    match run(seed, bug) {
                        Ok(ran) => runs.lock().expect("nobody panics with it").push(ran),
                        Err(finding) => {
                            findings.lock().expect("nobody panics with it").insert(seed, finding);
                        }
                    }
                }
            });
        }
    });
    match findings.into_inner().expect("nobody panics with it").pop_first() {
        Some(finding) => Err(finding),
        None => Ok(runs.into_inner().expect("nobody panics with it")),
    }
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Seeds that were not run before, for as long as `KVFERRY_SOAK_SECONDS` says.
fn soak_seeds() -> Option<(Range<u64>, Duration)> {
    let seconds = number_from("KVFERRY_SOAK_SECONDS")?;
    let start = RandomState::new().hash_one(()) >> 16;
    Some((start..u64::MAX, Duration::from_secs(seconds)))
}

/// `KVFERRY_SEED` runs one seed, as a failure says; `KVFERRY_SEEDS` runs so many, and
/// `KVFERRY_SOAK_SECONDS` as many as there is time for.
#[test]
fn engines_keep_their_promises_whatever_happens() {
    let (seeds, time) = match (number_from("KVFERRY_SEED"), soak_seeds()) {
        (Some(seed), _) => (seed..seed + 1, Duration::MAX),
        (None, Some(soak)) => soak,
        (None, None) => (0..number_from("KVFERRY_SEEDS").unwrap_or(SEEDS), Duration::MAX),
    };
    let is_default = seeds == (0..SEEDS);
    let runs = run_all(seeds, time, None).unwrap_or_else(|(seed, finding)| {
        panic!("seed {seed}: {finding}\nreplay: KVFERRY_SEED={seed} make simulate")
    });
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    for (end, times) in runs.iter().flat_map(|run| &run.ends) {
        *ends.entry(end).or_default() += times;
    }
    println!("{} events in {} runs", runs.iter().map(|run| run.events).sum::<u64>(), runs.len());
    println!("{ends:#?}");
    // A world in which nothing fails, or nothing works, tests nothing.
    for end in [
        "Push Done",
        "Pull Done",
        "Board Done",
        "Note Done",
        "Push Cancelled fenced",
        "Push Deadline unknown",
        "Push Refused fenced",
        "Push RegionWithdrawn unknown",
        "Push Shutdown fenced",
        "Push StaleHandle untouched",
        "Push Unreachable unknown",
        "Pull PeerRestarted fenced",
        "Pull Refused fenced",
        "Pull RegionWithdrawn fenced",
    ] {
        assert!(
            !is_default || ends.get(end).is_some_and(|times| *times > 0),
            "never {end}: {ends:#?}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1000..1003 {
        let [one, other] = [0, 1].map(|_| run(seed, None).expect("no finding"));
        assert_eq!((one.events, one.trace_sum), (other.events, other.trace_sum), "seed {seed}");
    }
}

#[test]
fn a_guard_that_is_taken_away_is_missed() {
    for (bug, finding) in [
        (Bug::LateWrite, "was stored by nobody who may"),
        (Bug::LateRead, "and it is not what it was"),
        (Bug::FalseFence, "was stored by nobody who may"),
        (Bug::FalseAck, "and not all of it is in place"),
        (Bug::DoubleEnd, "a transfer that has ended"),
        (Bug::LostNotification, "its owner was not told"),
        (Bug::RepeatedNotification, "was announced again"),
        (Bug::StaleIncarnation, "was accepted by"),
        (Bug::LeakedLane, "is at rest, with"),
    ] {
        let (seed, found) = run_all(0..200, Duration::MAX, Some(bug))
            .err()
            .unwrap_or_else(|| panic!("{bug:?} was not found in 200 runs"));
        println!("{bug:?}: seed {seed}: {found}");
        assert!(found.contains(finding), "{bug:?} was taken for something else: {found}");
    }
}
