//! Somebody who can be connected to, or cannot any more.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

/// A port that accepts connections for as long as this lives.
#[derive(Debug)]
pub struct Worker {
    listener: TcpListener,
}

impl Worker {
    /// On the loopback address, any port.
    ///
    /// # Panics
    /// Where the system gives no port.
    #[must_use]
    pub fn start() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").expect("a port") }
    }

    /// Its address as it registers it.
    #[must_use]
    pub fn address(&self) -> String {
        format!("tcp://{}", self.socket())
    }

    fn socket(&self) -> SocketAddr {
        self.listener.local_addr().expect("it is bound")
    }

    /// As in-tree vLLM registers it.
    #[must_use]
    pub fn registration(&self, engine: &str, rank: [u32; 3]) -> Value {
        registration(engine, rank, &self.address())
    }
}

/// A port that lets connections hang: whoever listens there takes none, and its queue is full.
#[derive(Debug)]
pub struct Clogged {
    listener: Socket,
    _queue: Vec<Socket>,
}

impl Clogged {
    /// On the loopback address, any port.
    ///
    /// # Panics
    /// Where the system gives no port, or takes any number of connections.
    #[must_use]
    pub fn start() -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        listener.bind(&any.into()).expect("a port");
        listener.listen(0).expect("it is bound");
        let address = listener.local_addr().expect("it is bound");
        let mut queue = Vec::new();
        loop {
            assert!(queue.len() < 64, "the queue never fills");
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            let connected = socket.connect_timeout(&address, Duration::from_millis(300));
            queue.push(socket);
            if connected.is_err() {
                return Self { listener, _queue: queue };
            }
        }
    }

    /// Its address as it registers it.
    ///
    /// # Panics
    /// Never: it is bound.
    #[must_use]
    pub fn address(&self) -> String {
        let address = self.listener.local_addr().expect("it is bound").as_socket();
        format!("tcp://{}", address.expect("an IP address"))
    }
}

/// A port that nobody listens on: it was free a moment ago.
#[must_use]
pub fn dead_address() -> String {
    Worker::start().address()
}

/// As in-tree vLLM registers a worker: ranks are data, tensor and pipeline parallel.
#[must_use]
pub fn registration(engine: &str, [dp, tp, pp]: [u32; 3], address: &str) -> Value {
    json!({ "engine_id": engine, "dp_rank": dp, "tp_rank": tp, "pp_rank": pp, "addr": address })
}

/// The same with more fields.
#[must_use]
pub fn with(mut registration: Value, fields: &Value) -> Value {
    if let (Some(registration), Some(fields)) = (registration.as_object_mut(), fields.as_object()) {
        registration.extend(fields.clone());
    }
    registration
}
