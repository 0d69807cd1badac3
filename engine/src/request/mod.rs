//! What a caller asks for: two lists of spans, and how to treat them.

mod resolve;
mod sides;

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kvferry_proto::frame::limits;
use kvferry_proto::message;
use kvferry_transport::memory::Location;

use crate::completion::{Ended, Transfer};
use crate::error::{Error, Remote, TransferError};
use crate::peer::{PeerDriver, PeerInner};
use crate::registry::Holder;
use crate::session::Means;
use crate::time;
use crate::transfer::cargo::{Cargo, Terms};
use crate::transfer::{Op, Spec};
use crate::transports::Transport;
use resolve::Resolved;

pub(crate) use sides::{LocalPiece, RemotePiece};
pub use sides::{LocalSpans, RemoteSpans};

/// The default deadline: 10 s, and the time that the bytes take at 64 MiB/s.
const DEADLINE_BASE: Duration = Duration::from_secs(10);
const DEADLINE_BYTES_PER_MS: u64 = (64 << 20) / 1000;

/// From this size on, what is moved between two processes of one host is copied by its receiver from
/// where it is. Below it a payload through the socket is as fast, and a pull of it takes one round trip
/// and not two.
const REFERENCE_BYTES: u64 = 32 << 10;

/// A transfer that is about to be submitted. Awaiting it submits it and waits for its end.
#[derive(Clone, Debug)]
#[must_use = "nothing is transferred before it is awaited or submitted"]
pub struct Request {
    peer: Arc<PeerInner>,
    op: Op,
    local: LocalSpans,
    remote: RemoteSpans,
    notification: Option<Arc<[u8]>>,
    deadline: Option<Duration>,
    checksum: bool,
}

impl Request {
    pub(crate) fn new(
        peer: Arc<PeerInner>,
        op: Op,
        local: LocalSpans,
        remote: RemoteSpans,
    ) -> Self {
        Self { peer, op, local, remote, notification: None, deadline: None, checksum: false }
    }

    /// Up to 64 KiB that the peer's engine delivers to its program after the data is in place.
    pub fn notify(mut self, notification: impl AsRef<[u8]>) -> Self {
        self.notification = Some(notification.as_ref().into());
        self
    }

    /// The time after which the transfer ends, whatever anybody does. Without it: 10 s, and the
    /// time that the bytes take at 64 MiB/s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Has every slice carry a CRC-32C that its receiver checks. It costs a pass over the bytes at
    /// each end.
    pub fn checksum(mut self, checksum: bool) -> Self {
        self.checksum = checksum;
        self
    }

    /// Checks all of it against what the peer shares, and starts it. Sends from this thread when
    /// the lane is free.
    ///
    /// # Errors
    /// What is wrong with it; no byte was touched then.
    pub fn submit(self) -> Result<Transfer, TransferError> {
        let peer = self.peer.clone();
        self.start().map_err(|cause| TransferError {
            transfer: None,
            peer: peer.endpoint().clone(),
            cause,
            remote: Remote::Untouched,
        })
    }

    fn start(self) -> Result<Transfer, Error> {
        let limit = limits::NOTIFICATION_BYTES as usize;
        if let Some(found) = self.notification.as_ref().map(|n| n.len()).filter(|n| *n > limit) {
            return Err(Error::NotificationTooLong { found, limit });
        }
        let begun = time::now();
        let Resolved { incarnation, plan, regions, remotes, is_on_device } =
            Resolved::new(&self.peer, self.op, &self.local, &self.remote)?;
        let planning = time::now().saturating_duration_since(begun);
        let allowed = self.deadline.unwrap_or_else(|| {
            DEADLINE_BASE + Duration::from_millis(plan.bytes() / DEADLINE_BYTES_PER_MS)
        });
        let deadline = time::after(begun, allowed);
        // As the best is, also while its spare has its place: it may be back before this has ended.
        let best = self.peer.transport(Means::Best);
        let pays = match best {
            Some(Transport::Local) => plan.bytes() >= REFERENCE_BYTES,
            Some(Transport::Rdma) => plan.bytes() > 0,
            Some(Transport::Tcp) | None => false,
        };
        // What is checked on its way has to be on a way, and no adapter writes to a file.
        let lands_in_file = || match self.op {
            Op::Read => regions.iter().any(|region| region.location() == Location::File),
            Op::Write => {
                let table = self.peer.table().read();
                table.is_any_at(message::Location::File, remotes.iter().map(|(_, id)| *id))
            }
        };
        let by_reference =
            pays && !self.checksum && !(best == Some(Transport::Rdma) && lands_in_file());
        let rdma_only = is_on_device && plan.bytes() > 0;
        if rdma_only && !(by_reference && best == Some(Transport::Rdma)) {
            return Err(self.not_by_rdma(best));
        }
        let spec = Spec {
            op: self.op,
            slice_bytes: plan.slices().iter().map(|slice| slice.bytes).collect(),
            notifies: self.notification.is_some(),
            by_reference,
            begun,
            deadline,
        };
        let terms = Terms {
            op: self.op,
            peer: self.peer.endpoint().clone(),
            checksum: self.checksum,
            notification: self.notification,
            by_reference,
            rdma_only,
            begun,
            planning,
            deadline,
        };
        let locals = regions.iter().map(|region| region.memory()).collect::<Result<_, _>>()?;
        let driver = Box::new(PeerDriver(Arc::downgrade(&self.peer)));
        let cargo = Arc::new(Cargo::new(terms, plan, locals, regions, remotes, driver));
        let holder: Arc<dyn Holder> = cargo.clone();
        let holder = Arc::downgrade(&holder);
        let uses = cargo.regions().iter().map(|region| region.begin_use(holder.clone()));
        cargo.hold(uses.collect::<Result<_, _>>()?);
        self.peer.submit(incarnation, spec, &cargo)?;
        // A region that went before the transfer had a number could not end it.
        cargo.end_if_cut();
        Ok(Transfer::new(cargo))
    }

    /// Why a transfer that names memory of a device is not carried by adapters alone.
    fn not_by_rdma(&self, best: Option<Transport>) -> Error {
        let reason: String = match best {
            Some(Transport::Rdma) if self.checksum => {
                "a checksum was asked for, which processors compute".into()
            }
            Some(Transport::Rdma) => "it was to land in a file, which no adapter reaches".into(),
            Some(other) => self.peer.carried_by(other),
            None => format!("nothing carries transfers to {} yet", self.peer.endpoint()),
        };
        Error::RdmaOnly { reason: reason.into() }
    }
}

impl IntoFuture for Request {
    type Output = Ended;
    type IntoFuture = Pin<Box<dyn Future<Output = Ended> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.submit()?.await })
    }
}
