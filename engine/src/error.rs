//! What can go wrong, with the values that tell how to put it right.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use kvferry_proto::frame::{FrameError, Refusal, Status};
use kvferry_proto::message::MessageError;
use kvferry_proto::{Access, GrantId, Incarnation, RegionId};
use kvferry_transport::local::RunDirectoryError;
use kvferry_transport::memory::MemoryError;

use crate::net::Endpoint;
use crate::rdma::RdmaError;

mod ended;

pub use ended::TransferError;

/// Anything that an engine refuses or fails at.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // --- memory and registration ---
    /// Memory could not be had or touched.
    #[error(transparent)]
    Memory(Arc<MemoryError>),
    /// A new range and a registered one share some bytes, and neither is the whole of the other.
    #[error(
        "[{base:#x}, +{length}) overlaps region {existing} at [{existing_base:#x}, \
         +{existing_length}) in part: unregister that first, or register a range inside it"
    )]
    PartialOverlap {
        /// The new range.
        base: u64,
        /// Its length in bytes.
        length: u64,
        /// The region that it overlaps.
        existing: RegionId,
        /// Where that starts.
        existing_base: u64,
        /// Its length in bytes.
        existing_length: u64,
    },
    /// A range inside a registered region asks for other access.
    #[error(
        "region {existing} is registered for {registered}, not {wanted}: unregister it first, or \
         register this range with the same access"
    )]
    AccessConflict {
        /// The region.
        existing: RegionId,
        /// Its access.
        registered: Access,
        /// What was asked for.
        wanted: Access,
    },
    /// A range inside a registered region is a device's and the region is not, or the other way round.
    #[error(
        "region {existing} is registered at [{base:#x}, +{length}), and one of the two is memory of a \
         device, the other of the host: unregister what is not there any more"
    )]
    OtherMemory {
        /// The region.
        existing: RegionId,
        /// Where the range starts.
        base: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// Only whole regions are shared.
    #[error(
        "these {length} bytes are a part of region {region} of {region_length} bytes: share the \
         whole region, or grant the part to those who need it"
    )]
    PartOfRegion {
        /// The region.
        region: RegionId,
        /// The part's length in bytes.
        length: u64,
        /// The region's length in bytes.
        region_length: u64,
    },
    /// No region of this process covers an address range.
    #[error("no region covers [{address:#x}, +{length}): register it first")]
    NotRegistered {
        /// Its first address.
        address: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// The region is not registered any more.
    #[error("region {region} is unregistered")]
    Unregistered {
        /// The region.
        region: RegionId,
    },
    /// A span reaches outside its region.
    #[error("{length} bytes at offset {offset} reach outside {within} of {within_length} bytes")]
    OutOfBounds {
        /// Where the span starts.
        offset: u64,
        /// Its length in bytes.
        length: u64,
        /// What it should lie in.
        within: &'static str,
        /// How long that is, in bytes.
        within_length: u64,
    },
    /// A layout describes nothing, or bytes outside its region.
    #[error(
        "a layout of {count} blocks of {block_bytes} bytes, {stride} apart from offset {offset}, \
         does not fit a region of {region_length} bytes"
    )]
    BadLayout {
        /// Where block 0 starts.
        offset: u64,
        /// The length of a block in bytes.
        block_bytes: u64,
        /// From one block to the next, in bytes.
        stride: u64,
        /// How many blocks.
        count: u64,
        /// The region's length in bytes.
        region_length: u64,
    },
    /// A block index is not in its layout.
    #[error("block {index} is not in a layout of {count} blocks")]
    NoSuchBlock {
        /// The index.
        index: u64,
        /// How many blocks there are.
        count: u64,
    },
    /// Another layout has this name.
    #[error("a layout named {name:?} is published already: withdraw it first")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A layout's name is too long.
    #[error("a layout's name has {found} bytes, at most {limit} are allowed")]
    NameTooLong {
        /// Its length in bytes.
        found: usize,
        /// The limit in bytes.
        limit: usize,
    },

    // --- what a transfer names ---
    /// The two sides of a transfer have different numbers of spans.
    #[error("{local} local spans cannot be paired with {remote} remote ones")]
    CountMismatch {
        /// How many here.
        local: u64,
        /// How many there.
        remote: u64,
    },
    /// The two spans of a pair have different lengths.
    #[error("pair {index} has {local} bytes here and {remote} there")]
    LengthMismatch {
        /// Which pair.
        index: u64,
        /// Its length here in bytes.
        local: u64,
        /// Its length there in bytes.
        remote: u64,
    },
    /// The peer published no layout of this name.
    #[error("{peer} has published no layout named {name:?}")]
    NoSuchLayout {
        /// The name.
        name: String,
        /// The peer.
        peer: Endpoint,
    },
    /// The peer shares no region that covers an address range.
    #[error("{peer} shares no region that covers [{address:#x}, +{length})")]
    NotShared {
        /// Its first address at the peer.
        address: u64,
        /// Its length in bytes.
        length: u64,
        /// The peer.
        peer: Endpoint,
    },
    /// The peer shares the region, but not for this.
    #[error("{peer} has not granted to {wanted} region {region}")]
    NotGranted {
        /// The region at the peer.
        region: RegionId,
        /// What was asked for.
        wanted: Access,
        /// The peer.
        peer: Endpoint,
    },
    /// A span is not covered by the grant under which it was asked for.
    #[error("{length} bytes at offset {offset} of region {region} are not covered by {grant}")]
    OutsideGrant {
        /// The region at the peer.
        region: RegionId,
        /// Where the span starts.
        offset: u64,
        /// Its length in bytes.
        length: u64,
        /// The grant.
        grant: GrantId,
    },
    /// The region or grant is of an incarnation that is not the one the peer has now.
    #[error(
        "{peer} was incarnation {expected} when this was looked up and is {found} now: look it up \
         again"
    )]
    StaleHandle {
        /// The peer.
        peer: Endpoint,
        /// The incarnation that the handle is of.
        expected: Incarnation,
        /// The incarnation now.
        found: Incarnation,
    },
    /// A notification is too long.
    #[error("a notification has {found} bytes, at most {limit} are allowed")]
    NotificationTooLong {
        /// Its length in bytes.
        found: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A ticket is malformed, or of another engine.
    #[error("the ticket cannot be used: {0}")]
    Ticket(MessageError),

    // --- peers ---
    /// An address cannot be understood.
    #[error("{address:?} is no address: {reason} (expected HOST:PORT, [IPV6]:PORT)")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: String,
        /// What the system says.
        source: Arc<io::Error>,
    },
    /// The peer cannot be reached.
    #[error("{peer} cannot be reached: {reason}")]
    Unreachable {
        /// The peer.
        peer: Endpoint,
        /// Why, as the failing step says it.
        reason: Arc<str>,
    },
    /// The peer speaks another major version of the protocol.
    #[error("{peer} speaks protocol version {theirs}, this engine speaks {ours}")]
    Version {
        /// The peer.
        peer: Endpoint,
        /// Its major version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The peer's process was replaced by another one.
    #[error("{peer} restarted: it was incarnation {was}, it is {is} now")]
    PeerRestarted {
        /// The peer.
        peer: Endpoint,
        /// Who it was.
        was: Incarnation,
        /// Who it is.
        is: Incarnation,
    },
    /// The peer offers no transport that was asked for.
    #[error("{peer} offers no {wanted} transport")]
    NoTransport {
        /// The peer.
        peer: Endpoint,
        /// What was asked for.
        wanted: &'static str,
    },
    /// `local` was demanded, and does not work with this peer.
    #[error("{peer} cannot be reached by the local transport, and no other is allowed: {reason}")]
    NotLocal {
        /// The peer.
        peer: Endpoint,
        /// Why not.
        reason: Arc<str>,
    },
    /// `local` was demanded, and this process cannot be met on this host.
    #[error("no local transport, and no other is allowed: {0}")]
    RunDirectory(Arc<RunDirectoryError>),
    /// RDMA was demanded, and cannot be had here, or not for this memory.
    #[error("no RDMA, and it was demanded: {0}")]
    Rdma(Arc<RdmaError>),
    /// RDMA was demanded, and does not work with this peer.
    #[error("{peer} cannot be reached by RDMA, and no other transport is allowed: {reason}")]
    NotRdma {
        /// The peer.
        peer: Endpoint,
        /// Why not.
        reason: Arc<str>,
    },
    /// RDMA to the peer has failed, and nothing takes its place: it was demanded, the peer offers
    /// nothing else, or nothing else moves the memory.
    #[error(
        "RDMA to {peer} has failed: {reason}; nothing else takes its place where it is demanded, or for \
         memory of a device"
    )]
    RdmaFailed {
        /// The peer.
        peer: Endpoint,
        /// What has failed.
        reason: Arc<str>,
    },
    /// Memory of a device, here or at the peer, was to move by something else than RDMA.
    #[error(
        "memory of a device moves by RDMA only: {reason}; have both ends use RDMA (KVFERRY_TRANSPORT=rdma; \
         `kvctl doctor` says what it lacks), or copy it through memory of the host"
    )]
    RdmaOnly {
        /// By what it was to move, and why.
        reason: Arc<str>,
    },
    /// No transport has this name.
    #[error("{value:?} is no transport: KVFERRY_TRANSPORT takes auto, tcp, local or rdma")]
    UnknownTransport {
        /// What was given.
        value: String,
    },
    /// The peer refused a lane.
    #[error("{peer} refused a lane: {refusal}")]
    LaneRefused {
        /// The peer.
        peer: Endpoint,
        /// Why.
        refusal: Refusal,
    },

    // --- how a transfer ends ---
    /// The deadline passed.
    #[error("the deadline passed after {after:?}")]
    Deadline {
        /// How long the transfer had.
        after: Duration,
    },
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The owner refused a slice, none of whose bytes was touched.
    #[error("the peer refused slice {slice}: {status}")]
    Refused {
        /// Which slice.
        slice: u32,
        /// Why.
        status: Status,
    },
    /// The source of a read was given up by its owner before all of it was taken.
    #[error("the source was released while it was read ({status})")]
    SourceReleased {
        /// What ended the owner's hold on it.
        status: Status,
    },
    /// A slice arrived damaged.
    #[error("slice {slice} does not match its checksum")]
    ChecksumMismatch {
        /// Which slice.
        slice: u32,
    },
    /// Memory of this process that the transfer uses cannot be touched.
    #[error("memory of this process cannot be touched: a file was truncated or a range unmapped")]
    MemoryFault,
    /// A region of this process that the transfer uses was unregistered.
    #[error("a region of this process was unregistered")]
    RegionWithdrawn,
    /// The engine was shut down.
    #[error("the engine is shut down")]
    Shutdown,
    /// A queue is full. The same call may succeed later.
    #[error("too much in flight: {what} is limited to {limit}")]
    Backpressure {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The peer broke the protocol.
    #[error("{peer} broke the protocol: {error}")]
    Protocol {
        /// The peer.
        peer: Endpoint,
        /// How.
        error: FrameError,
    },
    /// The kernel refused something that has nothing to do with one peer.
    #[error("{what} failed: {source}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// What it answered.
        source: Arc<io::Error>,
    },
    /// A setting has a value that cannot work.
    #[error("{setting} = {value}: {reason}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl Error {
    /// Whether the same call may succeed later, against the same or a restarted peer.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::RdmaFailed { .. }
            | Self::PeerRestarted { .. }
            | Self::StaleHandle { .. }
            | Self::Deadline { .. }
            | Self::ChecksumMismatch { .. }
            | Self::LaneRefused { .. } => true,
            Self::Refused { status, .. } => *status == Status::Backpressure,
            _ => self.is_backpressure(),
        }
    }

    /// Whether the call was refused because too much is under way.
    #[must_use]
    pub fn is_backpressure(&self) -> bool {
        matches!(self, Self::Backpressure { .. })
            || matches!(self, Self::Refused { status: Status::Backpressure, .. })
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source: Arc::new(source) }
    }

    pub(crate) fn unreachable(peer: &Endpoint, reason: impl fmt::Display) -> Self {
        Self::Unreachable { peer: peer.clone(), reason: reason.to_string().into() }
    }

    pub(crate) fn bind(address: impl fmt::Display, source: io::Error) -> Self {
        Self::Bind { address: address.to_string(), source: Arc::new(source) }
    }
}

impl From<RdmaError> for Error {
    fn from(error: RdmaError) -> Self {
        Self::Rdma(Arc::new(error))
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        Self::Memory(Arc::new(error))
    }
}

/// What is known of the peer's memory when a write has failed or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remote {
    /// Nothing was sent: no byte was touched.
    Untouched,
    /// The peer confirmed that nothing more can land. What has landed by then stays.
    Fenced,
    /// The peer did not answer in time: bytes may have landed, and those under way may still land
    /// for as long as the grant lives. The owner fences its memory by revoking the grant.
    Unknown,
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Untouched => "untouched",
            Self::Fenced => "fenced",
            Self::Unknown => "unknown",
        })
    }
}
