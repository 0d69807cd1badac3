//! What others than kvbench, or none of this release, say to `kvbench serve`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::program::{PATIENCE, Serve, kvbench, measured, until};

fn dial(serve: &Serve) -> TcpStream {
    let stream = TcpStream::connect(&serve.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A client that speaks by hand.
struct Client(BufReader<TcpStream>);

impl Client {
    /// One that was welcomed.
    fn welcomed(serve: &Serve) -> Self {
        let mut client = Self(BufReader::new(dial(serve)));
        let version = env!("CARGO_PKG_VERSION");
        let answer = client.ask(&json!({"protocol": 2, "version": version}));
        assert_eq!(answer["welcome"]["protocol"], 2, "{answer}");
        client
    }

    fn ask(&mut self, order: &Value) -> Value {
        writeln!(self.0.get_mut(), "{order}").unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Why an order is refused. The connection ends then.
    fn refused(mut self, order: &Value) -> String {
        let answer = self.ask(order);
        let error = answer["failed"]["error"].as_str().unwrap_or_else(|| panic!("{answer}"));
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
        error.to_owned()
    }
}

fn start(bytes: u64) -> Value {
    json!({"start": {"region_bytes": bytes, "seed": 1, "contiguous": false}})
}

fn still_serves(serve: &Serve) {
    serve.until_it_holds(0);
    let (runs, _) =
        measured(&["transfer", "--total=256KiB", "--iterations=1", "--peer", &serve.address]);
    assert!(runs.iter().all(|run| run["verified"] == true));
}

#[test]
fn garbage_on_the_control_port_is_harmless() {
    let serve = Serve::start(&[]);
    let endless_line = vec![b'x'; 1 << 20];
    let nested = vec![b'['; 32 << 10];
    let garbage: [&[u8]; 6] =
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0\xff\n", b"{}\n", b"\n", &endless_line, &nested];
    for bytes in garbage {
        let mut stream = dial(&serve);
        // It may hang up before it has all.
        let _ = stream.write_all(bytes).and_then(|()| stream.write_all(b"\n"));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!String::from_utf8_lossy(&answer).contains("welcome"), "{answer:?}");
    }
    still_serves(&serve);
}

#[test]
fn connections_that_say_nothing_keep_nobody_out_for_long() {
    let serve = Serve::start(&[]);
    // More than may wait to say who they are.
    let silent: Vec<TcpStream> = (0..40).map(|_| dial(&serve)).collect();
    until("a client to get past those that say nothing", || {
        let arguments = ["transfer", "--total=64KiB", "--iterations=1", "--peer", &serve.address];
        kvbench(&arguments).status.success()
    });
    drop(silent);
}

#[test]
fn another_release_is_told_so() {
    let serve = Serve::start(&[]);
    let mut client = Client(BufReader::new(dial(&serve)));
    let answer = client.ask(&json!({"protocol": 99, "version": "9.9.9"}));
    let error = answer["failed"]["error"].as_str().unwrap();
    assert!(error.contains("9.9.9") && error.contains("same release"), "{error}");
    still_serves(&serve);
}

#[test]
fn orders_that_cannot_be_are_refused_and_take_no_memory() {
    let serve = Serve::start(&[]);
    for (bytes, words) in [(1_u64 << 62, "free"), (0, "0")] {
        let error = Client::welcomed(&serve).refused(&start(bytes));
        assert!(error.contains(words), "{error}");
    }
    let place = |part: u32, blocks: u64, block_bytes: u64| {
        let shape = json!({"base": 0, "layers": 1, "blocks": blocks, "block_bytes": block_bytes});
        json!({"place": {"name": "x", "part": part, "shape": shape}})
    };
    let floor = |threads: u32, connections: u32| {
        let strategy = json!({"connections": connections, "spins": false});
        json!({"floor": {"part": 0, "op": "write", "strategy": strategy, "threads": threads,
                         "pace": "bulk", "transfer_blocks": null}})
    };
    let cases = [
        (place(0, 4_000_000_000, 1), "too many"),
        (place(0, 2, 1 << 63), "does not fit"),
        (place(0, 1, 0), "nothing"),
        (place(7, 1, 1), "at most 2 parts"),
        (json!({"verify": {"part": 0, "round": 1}}), "no blocks yet"),
        (json!({"accept": {"count": 4_000_000_000_u64}}), "at most 512 connections"),
        (start(4096), "out of turn"),
        (json!({"explode": {}}), "not understood"),
    ];
    for (order, words) in cases {
        let mut client = Client::welcomed(&serve);
        assert!(client.ask(&start(1 << 20))["started"].is_object());
        let error = client.refused(&order);
        assert!(error.contains(words), "{order}: {error}");
    }
    for (threads, connections) in [(4_000_000_000, 2), (1, 4_000_000_000), (0, 1), (2, 2)] {
        let mut client = Client::welcomed(&serve);
        client.ask(&start(1 << 20));
        assert_eq!(client.ask(&place(0, 16, 4096)), "done");
        let error = client.refused(&floor(threads, connections));
        assert!(error.contains("floor"), "{threads} {connections}: {error}");
    }
    // As many transfers as there are blocks, each with a list of its own.
    let mut client = Client::welcomed(&serve);
    client.ask(&start(4 << 20));
    assert_eq!(client.ask(&place(0, 2 << 20, 1)), "done");
    let mut each = floor(1, 1);
    each["floor"]["transfer_blocks"] = 1.into();
    let error = client.refused(&each);
    assert!(error.contains("too many"), "{error}");
    still_serves(&serve);
}

#[test]
fn layouts_are_published_up_to_a_bound() {
    let serve = Serve::start(&[]);
    let mut client = Client::welcomed(&serve);
    client.ask(&start(1 << 20));
    let place = |name: &str| {
        let shape = json!({"base": 0, "layers": 1024, "blocks": 1, "block_bytes": 64});
        json!({"place": {"name": name, "part": 0, "shape": shape}})
    };
    for number in 0..64 {
        assert_eq!(client.ask(&place(&number.to_string())), "done");
    }
    let error = client.refused(&place("more"));
    assert!(error.contains("65536 layouts"), "{error}");
    let mut client = Client::welcomed(&serve);
    client.ask(&start(1 << 20));
    let error = client.refused(&place(&"x".repeat(65)));
    assert!(error.contains("64 bytes"), "{error}");
    still_serves(&serve);
}

#[test]
fn a_block_of_an_earlier_round_is_reported_by_the_target() {
    let serve = Serve::start(&[]);
    let mut client = Client::welcomed(&serve);
    client.ask(&start(1 << 20));
    let shape = json!({"base": 0, "layers": 1, "blocks": 16, "block_bytes": 4096});
    assert_eq!(client.ask(&json!({"place": {"name": "x", "part": 0, "shape": shape}})), "done");
    assert_eq!(client.ask(&json!({"fill": {"part": 0, "round": 1}})), "done");
    let verified = |answer: Value| answer["verified"]["mismatch"].clone();
    assert!(verified(client.ask(&json!({"verify": {"part": 0, "round": 1}}))).is_null());
    let stale = verified(client.ask(&json!({"verify": {"part": 0, "round": 2}})));
    assert_eq!((&stale["block"], &stale["round"]), (&0.into(), &2.into()));
}
