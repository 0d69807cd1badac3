//! What kvferry promises, tested on real processes.
//!
//! | module | what stands there |
//! |---|---|
//! | [`bootstrap`] | what a bootstrap server is asked, and has to answer |
//! | [`fuzz`] | everything that parses what comes from the network, fed with anything |
//! | [`hosts`] | other people's machines, from a page of facts to a tree of files |
//! | [`command`] | what a test tells a peer process, and what that answers |
//! | [`death`] | how a peer dies in the middle of a request |
//! | [`process`] | peer processes: started, told, stopped, woken, killed |
//! | [`own`] | an engine in the test's own process, with all of its interface at hand |
//! | [`proxy`] | a TCP relay between two processes that holds bytes back and cuts connections |
//! | [`pool`] | a pool: its processes, and clients that check every byte that they read |
//! | [`pattern`] | contents that tell where a byte belongs and which version it is |
//! | [`verbs`] | one end of a queue pair, with memory |
//! | [`wire`] | a peer that is no engine: it speaks frames, well or badly |
//!
//! The peer process is the binary `kvferry-test-peer`: an engine that does what it is told on
//! standard input. Those of a pool are the binary `kvferry-test-pool`. The tests are in `tests/tests/`:
//! `promises/`, a file for each kind of promise, `recipes/`, a file for each kind of failure that users
//! of other engines have reported, and `pool/`, what becomes of objects.
#![forbid(unsafe_code)]

pub mod bootstrap;
pub mod command;
pub mod death;
pub mod fuzz;
pub mod hosts;
pub mod own;
pub mod pattern;
pub mod pool;
pub mod process;
pub mod proxy;
pub mod verbs;
pub mod wire;

/// Says why a test cannot run on this machine. In CI, where everything is set up, that is a failure.
///
/// # Panics
/// In CI.
#[expect(clippy::print_stdout, reason = "the test runner captures it and shows it")]
pub fn skip(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "skipped in CI: {reason}");
    println!("skipped: {reason}");
}
