//! A forked child has the parent's engine in its memory, and none of its threads.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use kvferry_engine::{Access, Engine, Error, Registry, Transport, Transports};

#[test]
fn a_forked_child_ends_at_once_and_its_parents_engine_goes_on() {
    for transport in [Transport::Tcp, Transport::Local] {
        fork_while_moving(transport);
    }
}

fn fork_while_moving(transport: Transport) {
    let parent = tempfile::tempdir().unwrap();
    let start = |registry: &Registry| {
        let builder = Engine::builder(registry.clone())
            .listen("127.0.0.1:0")
            .transports(Transports::Only(transport))
            .run_directory(parent.path().join("run"));
        builder.start_blocking().unwrap()
    };
    let (registry, other_registry) = (Registry::new(), Registry::new());
    let (engine, other) = (start(&registry), start(&other_registry));
    let local = registry.allocate(32 << 20).unwrap();
    let remote = other_registry.allocate(32 << 20).unwrap();
    remote.share(Access::ReadWrite).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let peer = runtime.block_on(engine.connect(other.address())).unwrap();
    let there = peer.regions().remove(0).whole();
    let grant =
        engine.grant([local.whole()], other.incarnation(), Access::Read, Duration::MAX).unwrap();
    local.write_at(0, &vec![7; 32 << 20]).unwrap();
    // Under way while the process forks: what the child drops must not get between its frames.
    let transfer = peer.write(local.whole(), there).submit().unwrap();

    // SAFETY: the child calls nothing but drops and `_exit`; the C library keeps its own locks
    // usable across a fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let refused = peer.write(local.whole(), there).submit();
        let is_shut = refused.is_err_and(|error| matches!(error.cause, Error::Shutdown));
        drop((transfer, grant, peer, local, engine));
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(!is_shut)) };
    }

    transfer.wait().unwrap();
    let began = Instant::now();
    let mut status = 0;
    // SAFETY: an integer to write to, and a child of ours.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        assert!(began.elapsed() < Duration::from_secs(2), "the child hangs");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(status, 0, "the child was refused, and ended by itself");
    let mut bytes = vec![0; 32 << 20];
    remote.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7), "the child's bytes are among the parent's");
    peer.write(local.whole(), there).submit().unwrap().wait().unwrap();
    assert_eq!(registry.grant_count(), 1);
    drop(grant);
}
