//! `kvbench serve`: clients of other hosts, one at a time.

use std::io::{Write, stderr, stdout};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use parking_lot::Mutex;

use super::session::{Limits, greet, obey};
use crate::cli::ServeArgs;
use crate::control::{Answer, Channel};

/// How many connections may be waiting to say who they are. More are closed unheard.
const MOST_STRANGERS: usize = 32;

/// How long a client that is turned away may take to read why.
const FAREWELL: Duration = Duration::from_secs(1);

/// Who is served, and who waits to be.
#[derive(Debug)]
struct Door {
    limits: Limits,
    guest: Mutex<Option<SocketAddr>>,
    strangers: AtomicUsize,
}

/// Serves clients until the process is ended.
pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen.as_str())
        .with_context(|| format!("listening on --listen {}", args.listen))?;
    let address = listener.local_addr()?;
    // Whoever starts this from a script reads the port that was got.
    writeln!(stdout(), "listening on {address}")?;
    stdout().flush()?;
    let limits = Limits {
        memory_bytes: args.max_memory.map(kvferry_engine::size::Size::bytes),
        silence: Duration::from_secs(args.silence),
    };
    let door = Arc::new(Door { limits, guest: Mutex::new(None), strangers: AtomicUsize::new(0) });
    loop {
        // Refusing one for want of descriptors is no reason to leave the others.
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                note(format_args!("a connection could not be accepted: {error}"));
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Some(stranger) = Stranger::admit(&door) else { continue };
        let spawned = thread::Builder::new()
            .name("kvbench-client".into())
            .spawn(move || stranger.receive(stream, from));
        if let Err(error) = spawned {
            note(format_args!("no thread for {from}: {error}"));
        }
    }
}

/// Somebody who has no seat, and may not get one.
struct Stranger(Arc<Door>);

impl Stranger {
    /// `None` when too many wait already.
    fn admit(door: &Arc<Door>) -> Option<Self> {
        let stranger = Self(door.clone());
        (door.strangers.fetch_add(1, Ordering::AcqRel) < MOST_STRANGERS).then_some(stranger)
    }

    fn receive(self, stream: TcpStream, from: SocketAddr) {
        match self.serve(stream, from) {
            Ok(()) => note(format_args!("{from} has left")),
            Err(error) => note(format_args!("{from}: {error:#}")),
        }
    }

    fn serve(self, stream: TcpStream, from: SocketAddr) -> anyhow::Result<()> {
        stream.set_nodelay(true)?;
        let host = stream.local_addr()?.ip().to_canonical();
        let mut channel = Channel::new(stream);
        greet(&mut channel)?;
        let door = self.0.clone();
        let _seat = door.seat(&mut channel, from)?;
        drop(self);
        note(format_args!("serving {from}"));
        obey(&mut channel, host, door.limits)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.strangers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Door {
    /// The one seat, if it is free; else the client is told who has it.
    fn seat(&self, channel: &mut Channel, from: SocketAddr) -> anyhow::Result<Seat<'_>> {
        let mut guest = self.guest.lock();
        if let Some(other) = *guest {
            drop(guest);
            let error = format!("busy with a client at {other}: try again when that has left");
            channel.say(&Answer::Failed { error }, FAREWELL)?;
            bail!("turned away, busy with {other}");
        }
        *guest = Some(from);
        Ok(Seat(self))
    }
}

/// Free again when dropped, after everything that the client held.
struct Seat<'a>(&'a Door);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        *self.0.guest.lock() = None;
    }
}

/// A line for the operator. One that cannot be written is no reason to stop.
fn note(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(stderr(), "kvbench serve: {line}");
}
