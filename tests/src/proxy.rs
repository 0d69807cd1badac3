//! A TCP relay between two processes that holds bytes back and cuts connections.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use socket2::SockRef;

/// How much is relayed at once: a hold is exact to the byte all the same.
const RELAY_BYTES: usize = 64 << 10;

/// One relayed connection.
#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// How many more bytes may go each way; `None` for no limit.
    allowed: [Option<usize>; 2],
}

/// From initiators to the target.
const REQUESTS: usize = 0;
/// Back.
const REPLIES: usize = 1;

/// How much the system keeps for a socket here.
const RECEIVE_BYTES: usize = 256 << 10;

#[derive(Debug, Default)]
struct State {
    target: Option<SocketAddr>,
    forwarded: usize,
    connections: HashMap<usize, Connection>,
    /// What connections that are still to come may carry.
    allowed: [Option<usize>; 2],
    accepted: usize,
}

impl State {
    fn is_holding(&self) -> bool {
        self.connections.values().any(|connection| connection.allowed.contains(&Some(0)))
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A relay in front of a port of a peer's. What comes while nobody is behind it is closed.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// A relay that nobody is behind yet.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let target = accepting.state.lock().expect("no panic").target;
                let Some(server) = target.and_then(|target| TcpStream::connect(target).ok()) else {
                    continue;
                };
                relay(&accepting, client, server);
            }
        });
        Self { address, shared }
    }

    /// The address in front.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Where connections are relayed to from now on.
    pub fn lead_to(&self, port: u16) {
        self.state().target = Some(SocketAddr::from(([127, 0, 0, 1], port)));
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.shared.state.lock().expect("no panic")
    }

    /// Lets this many more bytes go to the target on each connection there is, and holds back what
    /// comes after them: lanes that carry less go on.
    pub fn hold_after(&self, bytes: usize) {
        self.hold(REQUESTS, bytes);
    }

    /// The same for each connection that is still to come.
    pub fn hold_new_after(&self, bytes: usize) {
        self.state().allowed[REQUESTS] = Some(bytes);
    }

    /// The same as [`Proxy::hold_after`] for what comes back from the target.
    pub fn hold_replies_after(&self, bytes: usize) {
        self.hold(REPLIES, bytes);
    }

    fn hold(&self, way: usize, bytes: usize) {
        for connection in self.state().connections.values_mut() {
            connection.allowed[way] = Some(bytes);
        }
    }

    /// Holds nothing back any more of connections that are still to come.
    pub fn hold_none_new(&self) {
        self.state().allowed = [None, None];
    }

    /// Holds nothing back any more.
    pub fn release(&self) {
        let mut state = self.state();
        state.allowed = [None, None];
        for connection in state.connections.values_mut() {
            connection.allowed = [None, None];
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits until all that was allowed on one connection has gone.
    pub fn await_held(&self) {
        let began = Instant::now();
        while !self.state().is_holding() {
            assert!(began.elapsed() < Duration::from_secs(10), "never held: {:?}", self.state());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until this many bytes have gone to the target since the start.
    pub fn await_forwarded(&self, bytes: usize) {
        let began = Instant::now();
        while self.state().forwarded < bytes {
            assert!(began.elapsed() < Duration::from_secs(10), "never: {:?}", self.state());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// How many bytes have gone to the target since the start.
    #[must_use]
    pub fn forwarded(&self) -> usize {
        self.state().forwarded
    }

    /// How many connections were made since the start.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.state().accepted
    }

    /// Says something to every initiator in its target's place. In step with what the target says
    /// only while that says nothing.
    pub fn say_back(&self, bytes: &[u8]) {
        for connection in self.state().connections.values() {
            (&connection.client).write_all(bytes).expect("the initiator reads what it gets");
        }
    }

    /// Cuts every connection from initiators. What they had sent and is held back still goes to the
    /// target once it is released.
    pub fn lose(&self) {
        for connection in self.state().connections.values() {
            // What has arrived here can still be read.
            let _ = connection.client.shutdown(Shutdown::Both);
        }
    }

    /// Cuts every connection, both ways.
    pub fn cut(&self) {
        for (_, connection) in self.state().connections.drain() {
            // One that is closed already is no error.
            let _ = connection.client.shutdown(Shutdown::Both);
            let _ = connection.server.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }
}

fn relay(shared: &Arc<Shared>, client: TcpStream, server: TcpStream) {
    let copies = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
    let (Ok(client_in), Ok(server_out), Ok(client_kept), Ok(server_kept)) = copies else { return };
    // So that what is held back is held at its sender, and not in buffers here.
    for socket in [&client, &server] {
        SockRef::from(socket).set_recv_buffer_size(RECEIVE_BYTES).expect("a size is only a wish");
    }
    let number = {
        let mut state = shared.state.lock().expect("no panic");
        state.accepted += 1;
        let number = state.accepted;
        let allowed = state.allowed;
        let connection = Connection { client: client_kept, server: server_kept, allowed };
        state.connections.insert(number, connection);
        number
    };
    let (requests, replies) = (shared.clone(), shared.clone());
    std::thread::spawn(move || forward(client_in, server_out, &requests, number, REQUESTS));
    std::thread::spawn(move || forward(server, client, &replies, number, REPLIES));
}

fn forward(mut from: TcpStream, mut to: TcpStream, shared: &Shared, number: usize, way: usize) {
    let mut buffer = vec![0; RELAY_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            let go = allowance(shared, number, way, rest.len());
            if to.write_all(&rest[..go]).is_err() {
                return;
            }
            rest = &rest[go..];
        }
    }
    // What ends one way ends the connection.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
    shared.state.lock().expect("no panic").connections.remove(&number);
}

/// How much of `wanted` may go now; waits until something may.
fn allowance(shared: &Shared, number: usize, way: usize, wanted: usize) -> usize {
    let mut state = shared.state.lock().expect("no panic");
    loop {
        // A connection that was cut holds nothing back: its sockets are shut.
        let Some(connection) = state.connections.get_mut(&number) else { return wanted };
        let allowed = &mut connection.allowed[way];
        let go = allowed.map_or(wanted, |allowed| wanted.min(allowed));
        if go > 0 {
            *allowed = allowed.map(|allowed| allowed - go);
            if way == REQUESTS {
                state.forwarded += go;
            }
            return go;
        }
        state = shared.changed.wait(state).expect("no panic");
    }
}
