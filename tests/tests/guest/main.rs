//! Engines over RDMA, on the adapters of `tests/rdma/guest.py`: packets that travel, links that can be
//! cut. `make test-rdma` runs these there. They are no part of what `cargo test` runs.
#![allow(clippy::unwrap_used, reason = "tests")]

mod faults;

/// The promises of `docs/design.md`, as over each transport (`promises`), between the two ends of one
/// rail.
#[path = "../promises"]
mod rdma {
    use std::sync::atomic::{AtomicU32, Ordering};

    use kvferry_engine::Transport;
    use kvferry_tests::command::Setup;
    use kvferry_tests::process::{Cache, Process};

    const OVER: Transport = Transport::Rdma;

    fn start() -> Process {
        start_with(Setup::default(), Cache::default())
    }

    /// At the near end of the rail and at the far end of it, in turn.
    fn start_with(setup: Setup, cache: Cache) -> Process {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let is_far = STARTED.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        let devices = if is_far { "rxe_b0" } else { "rxe_a0" };
        let rdma_devices = setup.rdma_devices.or(Some(devices.into()));
        Process::start_over(OVER, Setup { rdma_devices, ..setup }, cache)
    }

    mod done;
    mod ending;
    mod nothing_held;
    mod order;
    mod restart;
    // Not `time`: a process gets a clock of its own in a user namespace only, which the machine's
    // first file system does not allow, and where adapters would be out of its reach.
}
