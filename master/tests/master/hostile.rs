//! What nobody should send, on every port: others are served all the while.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use kvferry_proto::pool::Presence;
use kvferry_proto::rpc::pool as rpc;

use super::client::{Client, SOON, listen, settings, start, stop};
use super::http;

/// Sends bytes, and waits until the other end has had enough of them.
fn send(at: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    // It may be closed on the way.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

#[tokio::test]
async fn garbage_half_open_connections_and_other_protocols_disturb_nobody() {
    let master = start(settings(), listen()).await;
    let mut owner = Client::lend(&master, 1, 1 << 20).await;
    owner.put_whole(&["a"], 100).await;
    let at = master.addresses();
    let ports = [at.clients, at.heartbeats, at.metrics, at.metadata.unwrap()];
    let silent: Vec<TcpStream> =
        ports.iter().flat_map(|at| (0..50).map(move |_| TcpStream::connect(at).unwrap())).collect();
    let garbage: [Vec<u8>; 8] = [
        Vec::new(),
        vec![0; 100_000],
        vec![0xff; 1000],
        // A request of Mooncake's clients, and a TLS hello.
        [21, 0, 1, 0].repeat(20),
        [0x16, 3, 1, 2, 0, 1, 0].repeat(20),
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".iter().copied().chain([0xff; 500]).collect(),
        [b"GET /".to_vec(), vec![b'a'; 200_000]].concat(),
    ];
    tokio::task::spawn_blocking(move || {
        for at in ports {
            for bytes in &garbage {
                send(at, bytes);
            }
        }
    })
    .await
    .unwrap();
    assert_eq!(owner.exists(&["a"]).await, [Presence::There]);
    assert!(owner.beat().await.lease.is_some());
    assert_eq!(http::get(at.metrics, "/health").await.0, 200);
    drop(silent);
    stop(master).await;
}

#[tokio::test]
async fn requests_that_no_client_makes_are_refused_by_name() {
    let master = start(settings(), listen()).await;
    let mut owner = Client::lend(&master, 1, 1 << 20).await;
    let many = rpc::ExistsRequest { keys: vec!["a".into(); 4097], ..Default::default() };
    let refused = owner.pool.exists(many).await.unwrap_err();
    assert!(refused.message().contains("4097 keys"), "{refused}");
    // Empty ones take fifteen times as much memory once they are read: they are not.
    let empty = rpc::ExistsRequest { keys: vec!["".into(); 1 << 18], ..Default::default() };
    let refused = owner.pool.exists(empty).await.unwrap_err();
    assert!(refused.message().contains("fields: send less"), "{refused}");
    let empty = rpc::LocateRequest { keys: vec!["".into()], ..Default::default() };
    assert_eq!(owner.pool.locate(empty).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let nobody = rpc::JoinRequest { version_major: 1, ..Default::default() };
    assert!(owner.pool.join(nobody).await.unwrap_err().message().contains("incarnation"));
    let future = rpc::JoinRequest { version_major: 9, client: 1, ..Default::default() };
    assert!(owner.pool.join(future).await.unwrap_err().message().contains("version_major"));

    // An inventory that cannot be: nothing of the segment stays.
    let mut other = Client::join(&master, 2).await;
    other.live();
    let held = |offset_bytes, version| rpc::Held {
        key: format!("k{version}").into(),
        version,
        offset_bytes,
        length_bytes: 100,
        ..Default::default()
    };
    for wrong in [vec![held(0, 1), held(64, 2)], vec![held(1 << 20, 1)], vec![held(1, 1)]] {
        let lent = Some((&other.lent(1 << 20)).into());
        let part = rpc::MountPart { client: 2, lent, held: wrong, is_fenced: true };
        let refused = other.pool.mount(tokio_stream::iter([part])).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains("inventory"), "{refused}");
    }
    other.mount(1 << 20).await.unwrap();
    assert_eq!(other.exists(&["k1"]).await, [Presence::Absent]);

    // A segment of another's number.
    other.segment = owner.segment;
    assert_eq!(other.mount(4096).await.unwrap_err().code(), tonic::Code::AlreadyExists);
    let ahead = rpc::FollowRequest { client: 1, applied: 1000 };
    let refused = owner.pool.follow(tokio_stream::iter([ahead])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    stop(master).await;
}
