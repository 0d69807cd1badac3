//! Clients that mean harm.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::bootstrap::http::{connect, get, post, query, read, register, send};
use crate::bootstrap::server::{Options, Server, Start};
use crate::bootstrap::worker::Worker;

fn assert_serves(server: &dyn Server) {
    let worker = Worker::start();
    register(&server.address(), &worker.registration("a", [0, 0, 0])).accepted();
    assert_eq!(query(&server.address()).status, 200);
}

/// Other protocols, broken HTTP, and noise.
pub fn garbage_is_answered_or_dropped_and_harms_nobody(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    let noise: Vec<u8> =
        (0..60_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(10_000));
    let garbage: &[&[u8]] = &[
        b"\r\n\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"kvferry\n\0\0\0\0\0\0\0\0\0\0\0\0\r\n\r\n",
        b"GET /query HTTP/9.9\r\n\r\n",
        b"GET \0 HTTP/1.1\r\n\r\n",
        b"POST /register HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /register HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /register HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /register HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n",
        &noise,
        long.as_bytes(),
        many.as_bytes(),
    ];
    for bytes in garbage {
        let mut stream = connect(&address);
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = read(&mut stream);
        assert!(answer.status == 0 || answer.status >= 400, "{answer:?}");
    }
    // Half a request, and gone.
    for _ in 0..50 {
        let mut stream = connect(&address);
        let _ = stream.write_all(b"POST /register HTTP/1.1\r\nContent-Length: 500\r\n\r\n{\"eng");
    }
    assert_serves(&*server);
}

/// Whatever they claim to be.
pub fn bodies_are_bounded_in_length_depth_and_time(start: Start<'_>) {
    let read_timeout = Duration::from_secs(1);
    let server = start(Options { read_timeout, ..Options::default() });
    let address = server.address();
    let long = format!("{{\"engine_id\":\"{}\"}}", "x".repeat(1 << 20));
    post(&address, &long, "").refused(413, "65536 bytes at the most");
    let endless = b"POST /register HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("4000\r\n{}\r\n", "y".repeat(0x4000));
    let chunks = [endless.as_slice(), chunk.repeat(8).as_bytes()].concat();
    send(&address, &chunks).refused(413, "65536 bytes at the most");
    let deep = format!("{{\"x\":{}", "[".repeat(60_000));
    post(&address, &deep, "").refused(400, "not a registration");
    let nested = "{\"x\":".repeat(10_000);
    post(&address, &nested, "").refused(400, "not a registration");
    // A body of which a byte comes now and then does not come in time.
    let began = Instant::now();
    let mut slow = connect(&address);
    slow.write_all(b"POST /register HTTP/1.1\r\nConnection: close\r\nContent-Length: 500\r\n\r\n{")
        .expect("it listens");
    let mut drip = slow.try_clone().expect("a handle");
    let dripping = std::thread::spawn(move || {
        while drip.write_all(b" ").is_ok() && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let answer = read(&mut slow);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(answer.status == 408 || answer.status == 0, "{answer:?}");
    drop(slow);
    dripping.join().expect("it ends");
    assert_serves(&*server);
}

/// As many as the server takes at once, several times over, while others are served.
pub fn connections_that_are_only_held_make_room_for_others(start: Start<'_>) {
    // Nothing is cut off by time.
    let server = start(Options { connections: 8, ..Options::default() });
    let address = server.address();
    let mut held: Vec<TcpStream> = Vec::new();
    for round in 0..10 {
        for kind in 0..8 {
            let mut stream = connect(&address);
            let sent: &[u8] = match kind % 3 {
                0 => b"",
                1 => b"GET /query HTTP/1.1\r\nX: ",
                _ => b"POST /register HTTP/1.1\r\nContent-Length: 500\r\n\r\n{",
            };
            // It may have had to make room already.
            let _ = stream.write_all(sent);
            held.push(stream);
        }
        assert_eq!(get(&address, "/health").status, 200, "round {round}");
        assert_serves(&*server);
    }
    // The first ones had to go.
    let mut first = held.swap_remove(0);
    let mut rest = Vec::new();
    let end = first.read_to_end(&mut rest);
    assert!(
        end.is_ok() || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    );
    assert!(rest.is_empty());
}

/// One byte at a time, for ever.
pub fn heads_that_never_end_are_cut_off(start: Start<'_>) {
    let read_timeout = Duration::from_secs(1);
    let server = start(Options { read_timeout, ..Options::default() });
    let address = server.address();
    let began = Instant::now();
    let drips: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = connect(&address);
            std::thread::spawn(move || {
                let _ = stream.write_all(b"GET /query HTTP/1.1\r\nX: ");
                // It is cut off when a write fails.
                while stream.write_all(b"a").is_ok() {
                    assert!(began.elapsed() < Duration::from_secs(20), "it goes on for ever");
                    std::thread::sleep(Duration::from_millis(50));
                }
            })
        })
        .collect();
    for drip in drips {
        drip.join().expect("it ends");
    }
    // Those who say nothing at all, too.
    let mut silent = connect(&address);
    let answer = read(&mut silent);
    assert_eq!(answer.body, "");
    assert_serves(&*server);
}
