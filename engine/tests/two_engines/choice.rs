//! Which transport carries a transfer, and that it says so.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use kvferry_engine::{Access, Engine, EngineBuilder, Error, Peer, Region, Registry};
use kvferry_engine::{Transport, Transports};

use super::private_directory;

const BYTES: u64 = 1 << 20;

struct Host {
    engine: Engine,
    region: Region,
}

fn builder(registry: &Registry, transports: Transports, directory: &Path) -> EngineBuilder {
    let builder = Engine::builder(registry.clone()).listen("127.0.0.1:0");
    builder.transports(transports).run_directory(directory)
}

async fn host(transports: Transports, directory: &Path) -> Host {
    let registry = Registry::new();
    let engine = builder(&registry, transports, directory).start().await.unwrap();
    let region = registry.allocate(BYTES).unwrap();
    region.share(Access::ReadWrite).unwrap();
    Host { engine, region }
}

/// What carries a push and a pull between them.
async fn carrier(peer: &Peer, here: &Host) -> &'static str {
    let there = peer.regions().remove(0).whole();
    let pushed = peer.write(here.region.whole(), there).await.unwrap().transport;
    let pulled = peer.read(there, here.region.whole()).await.unwrap().transport;
    assert_eq!(pushed, pulled);
    pulled
}

const AUTO: Transports = Transports::Auto;
const TCP: Transports = Transports::Only(Transport::Tcp);
const LOCAL: Transports = Transports::Only(Transport::Local);

#[tokio::test]
async fn processes_that_meet_in_a_run_directory_use_the_local_transport_unless_told_otherwise() {
    let directory = private_directory();
    for (here, there, wanted) in [
        (AUTO, AUTO, "local"),
        (LOCAL, AUTO, "local"),
        (AUTO, LOCAL, "local"),
        (LOCAL, LOCAL, "local"),
        (TCP, AUTO, "tcp"),
        (AUTO, TCP, "tcp"),
        (TCP, TCP, "tcp"),
    ] {
        let (here_host, there_host) =
            (host(here, directory.path()).await, host(there, directory.path()).await);
        let peer = here_host.engine.connect(there_host.engine.address()).await.unwrap();
        let status = peer.status();
        assert_eq!(status.transport.unwrap().name(), wanted, "{here:?} {there:?}");
        assert_eq!(carrier(&peer, &here_host).await, wanted, "{here:?} {there:?}");
        // Why it is not local is told where it might have been.
        let explains = here == AUTO && wanted == "tcp";
        assert_eq!(peer.not_local().is_some(), explains, "{here:?} {there:?}");
    }
    // The sockets went with their engines.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_transport_that_was_demanded_is_never_replaced() {
    let directory = private_directory();
    let elsewhere = private_directory();
    let here = host(LOCAL, directory.path()).await;
    let apart = host(AUTO, elsewhere.path()).await;
    let error = here.engine.connect(apart.engine.address()).await.unwrap_err();
    let Error::NotLocal { reason, .. } = &error else { panic!("{error}") };
    assert!(reason.contains("KVFERRY_RUN_DIR"), "{reason}");
    let unwilling = host(TCP, directory.path()).await;
    let error = here.engine.connect(unwilling.engine.address()).await.unwrap_err();
    assert!(error.to_string().contains("offers no local transport"), "{error}");
    let tcp = host(TCP, directory.path()).await;
    let error = tcp.engine.connect(here.engine.address()).await.unwrap_err();
    assert!(matches!(error, Error::NoTransport { wanted: "tcp", .. }), "{error}");
    // Nor by somebody who does not ask: its TCP port takes no lane.
    let refused = tokio::task::spawn_blocking({
        let (port, target) = (here.engine.lane_port(), here.engine.incarnation());
        move || greet(port, target)
    });
    let refusal = refused.await.unwrap().expect("it refuses");
    assert!(refusal.to_string().contains("another transport"), "{refusal}");
}

/// Says hello on a TCP lane, and returns why it is refused.
fn greet(port: u16, target: kvferry_engine::Incarnation) -> Option<kvferry_proto::frame::Refusal> {
    use std::io::{Read, Write};

    use kvferry_proto::frame::{Hello, Welcome};

    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let hello = Hello {
        version: kvferry_proto::message::VERSION_MAJOR,
        initiator: kvferry_engine::Incarnation(5),
        target,
        session: 1,
        lane: kvferry_proto::LaneId(1),
        ping_ms: 1000,
        with_pair: false,
    };
    stream.write_all(&hello.encode()).unwrap();
    let mut welcome = [0; Welcome::BYTES];
    stream.read_exact(&mut welcome).unwrap();
    Welcome::decode(&welcome).unwrap().refusal
}

#[tokio::test]
async fn peers_that_do_not_meet_use_tcp_and_say_why() {
    let directory = private_directory();
    let elsewhere = private_directory();
    let here = host(AUTO, directory.path()).await;
    let apart = host(AUTO, elsewhere.path()).await;
    let peer = here.engine.connect(apart.engine.address()).await.unwrap();
    assert_eq!(carrier(&peer, &here).await, "tcp");
    let why = peer.not_local().unwrap();
    assert!(why.contains(directory.path().to_str().unwrap()), "{why}");
}

#[tokio::test]
async fn a_socket_that_somebody_else_left_or_holds_costs_the_local_transport_and_no_more() {
    let directory = private_directory();
    let elsewhere = private_directory();
    let here = host(AUTO, directory.path()).await;
    let apart = host(AUTO, elsewhere.path()).await;
    let socket = directory.path().join(format!("{}.sock", apart.engine.incarnation()));
    // Nobody listens on it.
    drop(UnixListener::bind(&socket).unwrap());
    let peer = here.engine.connect(apart.engine.address()).await.unwrap();
    assert!(peer.not_local().unwrap().contains("refused"), "{:?}", peer.not_local());
    assert_eq!(carrier(&peer, &here).await, "tcp");
    // Somebody listens and says nothing; or something that is no greeting.
    for says in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        fs::remove_file(&socket).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                use std::io::Write;
                let _ = (&stream).write_all(says);
                held.push(stream);
            }
        });
        let other = host(AUTO, directory.path()).await;
        let peer = other.engine.connect(apart.engine.address()).await.unwrap();
        assert!(peer.not_local().is_some());
        assert_eq!(carrier(&peer, &other).await, "tcp");
    }
}

#[tokio::test]
async fn a_run_directory_that_cannot_be_trusted_is_an_error_where_it_is_needed() {
    let parent = private_directory();
    let open = parent.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let registry = Registry::new();
    let error = builder(&registry, LOCAL, &open).start().await.unwrap_err();
    assert!(matches!(error, Error::RunDirectory(_)), "{error}");
    assert!(error.to_string().contains("chmod 700"), "{error}");
    let here = host(AUTO, &open).await;
    let there = host(AUTO, &open).await;
    let peer = here.engine.connect(there.engine.address()).await.unwrap();
    assert_eq!(carrier(&peer, &here).await, "tcp");
    assert!(peer.not_local().unwrap().contains("chmod 700"));
}
