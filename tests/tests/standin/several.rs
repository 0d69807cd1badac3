//! Several engines of one process.

use std::time::Duration;

use kvferry_engine::{Access, Engine, EngineBuilder, Registry, Transport, Transports};
use kvferry_transport::memory::{Memory, Pages};

use crate::library::StandIn;

fn engine(standin: &StandIn, registry: &Registry) -> Engine {
    let builder: EngineBuilder = Engine::builder(registry.clone()).listen("127.0.0.1:0");
    let only = Transports::Only(Transport::Rdma);
    builder.transports(only).rdma(standin.rdma()).start_blocking().unwrap()
}

#[test]
fn memory_is_registered_once_with_an_adapter_however_many_engines_share_a_registry() {
    let standin = StandIn::with_adapters(2);
    let registry = Registry::new();
    let before = registry.allocate(1 << 20).unwrap();
    let first = engine(&standin, &registry);
    assert_eq!(standin.registrations(), 2);
    let second = engine(&standin, &registry);
    let memory = Memory::anonymous(1 << 20, Pages::Small).unwrap();
    let after = registry.register(memory, Access::ReadWrite).unwrap();
    assert_eq!(standin.registrations(), 4, "two regions, with two adapters");
    // They stay for as long as one engine does.
    first.shutdown(Duration::ZERO);
    drop(first);
    assert_eq!(standin.registrations(), 4);
    drop(before);
    assert_eq!(standin.registrations(), 2);
    second.shutdown(Duration::ZERO);
    assert_eq!(standin.live(), 0);
    drop(after);
    // Another registry has its own.
    let (one, other) = (Registry::new(), Registry::new());
    let engines = [engine(&standin, &one), engine(&standin, &other)];
    let _region = one.allocate(1 << 20).unwrap();
    assert_eq!(standin.registrations(), 2);
    drop(engines);
    assert_eq!(standin.live(), 0);
}
