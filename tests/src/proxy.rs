//! A TCP relay between two processes that holds bytes back and cuts connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How much is relayed at once: a hold is exact to the byte all the same.
const RELAY_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct State {
    target: Option<SocketAddr>,
    /// How many more bytes may go from initiators to the target; `None` for no limit.
    allowed: Option<usize>,
    forwarded: usize,
    connections: Vec<(TcpStream, TcpStream)>,
    accepted: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A relay in front of a peer's lanes.
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

    /// Lets this many more bytes go to the target, and holds back what comes after them.
    pub fn hold_after(&self, bytes: usize) {
        self.state().allowed = Some(bytes);
    }

    /// Holds nothing back any more.
    pub fn release(&self) {
        self.state().allowed = None;
        self.shared.changed.notify_all();
    }

    /// Waits until all that was allowed has gone to the target.
    pub fn await_held(&self) {
        let began = Instant::now();
        while self.state().allowed != Some(0) {
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

    /// Cuts every connection, both ways.
    pub fn cut(&self) {
        for (client, server) in self.state().connections.drain(..) {
            // One that is closed already is no error.
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }
}

fn relay(shared: &Arc<Shared>, client: TcpStream, server: TcpStream) {
    let copies = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
    let (Ok(client_in), Ok(server_out), Ok(client_kept), Ok(server_kept)) = copies else { return };
    {
        let mut state = shared.state.lock().expect("no panic");
        state.connections.push((client_kept, server_kept));
        state.accepted += 1;
    }
    let limited = shared.clone();
    std::thread::spawn(move || forward(client_in, server_out, Some(&limited)));
    std::thread::spawn(move || forward(server, client, None));
}

fn forward(mut from: TcpStream, mut to: TcpStream, limit: Option<&Shared>) {
    let mut buffer = vec![0; RELAY_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            let go = limit.map_or(rest.len(), |shared| allowance(shared, rest.len()));
            if to.write_all(&rest[..go]).is_err() {
                return;
            }
            rest = &rest[go..];
        }
    }
    // What ends one way ends the connection.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// How much of `wanted` may go now; waits until something may.
fn allowance(shared: &Shared, wanted: usize) -> usize {
    let mut state = shared.state.lock().expect("no panic");
    loop {
        let go = state.allowed.map_or(wanted, |allowed| wanted.min(allowed));
        if go > 0 {
            state.allowed = state.allowed.map(|allowed| allowed - go);
            state.forwarded += go;
            return go;
        }
        state = shared.changed.wait(state).expect("no panic");
    }
}
