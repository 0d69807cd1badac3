//! Engines over RDMA, on the adapters of `tests/rdma/guest.py`: packets that travel, links that can be
//! cut. `make test-rdma` runs these there. They are no part of what `cargo test` runs.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../recipes/arena.rs"]
mod arena;
mod bad_peer;
mod death;
mod faults;
mod fence;
mod keys;
mod rails;
mod wake;

/// The promises of `docs/design.md`, as over each transport (`promises`), between the two ends of one
/// rail.
#[path = "../promises"]
mod rdma {
    use kvferry_engine::Transport;
    use kvferry_tests::command::Setup;
    use kvferry_tests::process::{Cache, Process, at_a_rail};

    const OVER: Transport = Transport::Rdma;

    fn start() -> Process {
        start_with(Setup::default(), Cache::default())
    }

    fn start_with(setup: Setup, cache: Cache) -> Process {
        Process::start_over(OVER, at_a_rail(setup), cache)
    }

    mod done;
    mod ending;
    mod nothing_held;
    mod order;
    mod restart;
    // Not `time`: a process gets a clock of its own in a user namespace only, which the machine's
    // first file system does not allow, and where adapters would be out of its reach.
}
