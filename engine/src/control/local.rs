//! Lanes between processes of one host: where they meet, and how each makes sure that the other is
//! on this host.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvferry_proto::Incarnation;
use kvferry_transport::local::{
    Beacon, Challenge, NUMBER_BYTES, Obstacle, PeerProcess, RING_PARTS, Ring, RingEnd,
    RunDirectory, RunDirectoryError, answer, is_same_user, receive_greeting, send_greeting,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};

use super::accept::Entrance;
use super::offer::{Offer, Offers};
use crate::core::Core;
use crate::error::Error;
use crate::loan::Reach;
use crate::transports::{Transport, Transports};

/// Whether a peer is on this host, and how lanes to it are opened then; or why it is not met there.
pub(super) async fn find(core: &Core, offers: &Offers) -> Result<Offer, Arc<str>> {
    let directory = core.run_directory.as_ref().map_err(Clone::clone)?;
    let path = directory.socket(&offers.incarnation.to_string());
    let Some(offer) = offers.by_local(path.clone()) else {
        return Err("it offers no local transport".into());
    };
    let met = meet(&path).await;
    let (_, reach, _) = met.map_err(|error| describe(directory, &path, &error))?;
    Ok(Offer { not_in_place: reach.obstacle().map(Into::into), ..offer })
}

fn describe(directory: &RunDirectory, path: &Path, error: &io::Error) -> Arc<str> {
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "it has no socket in {}: it is on another host, or has another run directory (set \
             KVFERRY_RUN_DIR to the same for both)",
            directory.path().display()
        ),
        _ => format!("{}: {error}", path.display()),
    }
    .into()
}

/// Connects to the socket of an engine, and proves that it is on this host.
pub(super) async fn meet(path: &Path) -> io::Result<(UnixStream, Reach, Option<Ring>)> {
    let mut stream = UnixStream::connect(path).await?;
    let (reach, ring) = prove(&mut stream).await?;
    Ok((stream, reach, ring))
}

/// Proves to each end that the other is on this host, finds out whether each can read the other's
/// memory, and has both share a ring.
pub(super) async fn prove(stream: &mut UnixStream) -> io::Result<(Reach, Option<Ring>)> {
    if !is_same_user(stream.as_fd())? {
        return Err(io::Error::other("the process behind it runs as another user"));
    }
    let mut number = [0; NUMBER_BYTES];
    getrandom::fill(&mut number).map_err(io::Error::other)?;
    let challenge = Challenge::new(number)?;
    let socket = &*stream;
    let greet = || send_greeting(socket.as_fd(), &challenge);
    socket.async_io(Interest::WRITABLE, greet).await?;
    let hear = || receive_greeting(socket.as_fd());
    let theirs = socket.async_io(Interest::READABLE, hear).await?;
    let their_number = answer(theirs)?;
    stream.write_all(&their_number).await?;
    let mut answered = [0; NUMBER_BYTES];
    stream.read_exact(&mut answered).await?;
    if !challenge.is_met_by(answered) {
        return Err(io::Error::other("it could not read what it was passed"));
    }
    let reach = find_process(stream, number, their_number).await?;
    Ok((reach, share_ring(stream).await?))
}

/// Each end passes its part of a ring, and says whether it took the other's. Without one all goes through
/// the socket.
async fn share_ring(stream: &mut UnixStream) -> io::Result<Option<Ring>> {
    let ours = RingEnd::new().inspect_err(no_ring).ok();
    let mut theirs = [const { None }; RING_PARTS];
    for (part, received) in theirs.iter_mut().enumerate() {
        let socket = &*stream;
        let send = || RingEnd::send(ours.as_ref(), part, socket.as_fd());
        socket.async_io(Interest::WRITABLE, send).await?;
        let receive = || RingEnd::receive(socket.as_fd());
        *received = socket.async_io(Interest::READABLE, receive).await?;
    }
    let joined = match (ours, theirs) {
        (Some(ours), [Some(memory), Some(bell)]) => {
            ours.join(memory, bell).inspect_err(no_ring).ok()
        }
        _ => None,
    };
    stream.write_u8(u8::from(joined.is_some())).await?;
    let is_taken = stream.read_u8().await? == 1;
    Ok(joined.filter(|_| is_taken))
}

fn no_ring(error: &io::Error) {
    tracing::warn!(%error, "no ring is shared with a process of this host: all goes through its socket");
}

/// Each end shows the number of its challenge in its memory too, and says where; the other says
/// whether it finds it there.
async fn find_process(
    stream: &mut UnixStream,
    number: [u8; NUMBER_BYTES],
    their_number: [u8; NUMBER_BYTES],
) -> io::Result<Reach> {
    // Without one nobody reads this process's memory, which is no reason not to meet.
    let beacon = Beacon::new(number).ok();
    let address = beacon.as_ref().map_or(0, Beacon::address);
    stream.write_all(&address.to_le_bytes()).await?;
    let their_address = stream.read_u64_le().await?;
    let theirs = PeerProcess::find(stream.as_fd(), their_address, their_number);
    let verdict = theirs.as_ref().map(|_| ()).map_err(|obstacle| *obstacle);
    stream.write_u8(Obstacle::encode(verdict)).await?;
    let ours = Obstacle::decode(stream.read_u8().await?);
    Ok(Reach::new(theirs, ours, beacon))
}

/// Where an engine is met by processes of its host.
pub(crate) struct Door {
    pub(crate) directory: RunDirectory,
    pub(crate) entrance: Entrance,
}

/// Opens the door of an engine, or says why there is none.
///
/// # Errors
/// [`Error::RunDirectory`] where there has to be one.
pub(crate) fn open_door(
    transports: Transports,
    path: Option<PathBuf>,
    incarnation: Incarnation,
) -> Result<Result<Door, Arc<str>>, Error> {
    if !transports.permit(Transport::Local) {
        return Ok(Err("only other transports are allowed".into()));
    }
    let listen = || {
        let directory = RunDirectory::open(path.unwrap_or_else(default_directory))?;
        let (listener, doorway) = directory.listen(&incarnation.to_string())?;
        let of_path = |source| RunDirectoryError::System {
            what: "listening on",
            path: doorway.path().into(),
            source,
        };
        listener.set_nonblocking(true).map_err(of_path)?;
        let listener = UnixListener::from_std(listener).map_err(of_path)?;
        let entrance = Entrance::Local { listener, _doorway: doorway };
        Ok(Door { directory, entrance })
    };
    match listen() {
        Ok(door) => Ok(Ok(door)),
        Err(error) if !transports.permit(Transport::Tcp) => {
            Err(Error::RunDirectory(Arc::new(error)))
        }
        Err(error) => Ok(Err(error.to_string().into())),
    }
}

fn default_directory() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    match (set("KVFERRY_RUN_DIR"), set("XDG_RUNTIME_DIR")) {
        (Some(directory), _) => directory.into(),
        (None, Some(directory)) => Path::new(&directory).join("kvferry"),
        (None, None) => "/run/kvferry".into(),
    }
}
