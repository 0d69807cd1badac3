//! The promises of `docs/design.md`, each on real processes, over each transport.
//!
//! What asks for bytes that are held on their way, or for a peer that speaks frames by hand, is about
//! TCP. Between processes of one host every promise holds of memory that both map and of memory that is
//! read where it lies; what is particular to either is in `lent` and `in_place`.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::duplicate_mod, reason = "the same promises over each transport")]

#[path = "."]
mod tcp {
    use kvferry_engine::Transport;
    use kvferry_tests::command::Setup;
    use kvferry_tests::process::{Cache, Process};

    const OVER: Transport = Transport::Tcp;

    fn start() -> Process {
        start_with(Setup::default(), Cache::default())
    }

    fn start_with(setup: Setup, cache: Cache) -> Process {
        Process::start_over(OVER, setup, cache)
    }

    mod done;
    mod ending;
    mod failover;
    mod fence;
    mod held_back;
    mod hostile;
    mod nothing_held;
    mod order;
    mod ownership;
    mod restart;
    mod time;
}

#[path = "."]
mod local {
    use kvferry_engine::Transport;
    use kvferry_tests::command::Setup;
    use kvferry_tests::process::{Cache, Process};

    const OVER: Transport = Transport::Local;

    fn start() -> Process {
        start_with(Setup::default(), Cache::default())
    }

    fn start_with(setup: Setup, cache: Cache) -> Process {
        Process::start_over(OVER, setup, cache)
    }

    /// How many memfds of ours a process maps by itself.
    const OWN_MEMFDS: usize = 1;

    mod by_hand;
    mod copied;
    mod done;
    mod ending;
    mod lent;
    mod nothing_held;
    mod order;
    mod restart;
    mod time;
}

#[path = "."]
mod foreign {
    use kvferry_engine::Transport;
    use kvferry_tests::command::Setup;
    use kvferry_tests::process::{Cache, Process};

    const OVER: Transport = Transport::Local;

    fn start() -> Process {
        start_with(Setup::default(), Cache::default())
    }

    /// A process whose cache nobody else can map.
    fn start_with(setup: Setup, cache: Cache) -> Process {
        Process::start_over(OVER, Setup { foreign: true, ..setup }, cache)
    }

    const OWN_MEMFDS: usize = 0;

    mod by_hand;
    mod copied;
    mod done;
    mod ending;
    mod in_place;
    mod nothing_held;
    mod order;
    mod restart;
    mod time;
}
