//! Values of the control path, and their checked conversion from and to the wire.

use prost::Message as _;

use crate::access::Access;
use crate::identity::{GrantId, Incarnation, RegionId};
use crate::rpc;

/// The major version of the protocol: engines that differ in it do not talk.
pub const VERSION_MAJOR: u16 = 1;

/// The minor version: a higher one only adds what a lower one may ignore.
pub const VERSION_MINOR: u16 = 1;

/// The most spans of a ticket.
pub const TICKET_SPANS: usize = 1 << 18;

/// The most bytes of a layout's name.
pub const NAME_BYTES: usize = 1024;

/// Why a message is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// A field that must be there is not.
    #[error("{message} lacks its {field}")]
    Missing {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A field has a value that no sender writes.
    #[error("{message} has {field} = {value}, which means nothing")]
    Value {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The bytes are not the message.
    #[error("not a {message}: {reason}")]
    Malformed {
        /// The message.
        message: &'static str,
        /// What the decoder says.
        reason: String,
    },
    /// A list or a name is longer than it may be.
    #[error("{message} has {found} {field}, at most {limit} are accepted")]
    TooMany {
        /// The message.
        message: &'static str,
        /// What there is too much of.
        field: &'static str,
        /// How much there is.
        found: usize,
        /// The limit.
        limit: usize,
    },
}

/// Where a region lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Host memory that only its process can map.
    Host {
        /// The NUMA node, where it is known.
        numa: Option<u32>,
    },
    /// A memfd that other processes can map.
    Shared {
        /// The NUMA node, where it is known.
        numa: Option<u32>,
        /// The page size got, in KiB.
        page_kib: u32,
    },
    /// A mapped file.
    File,
    /// Memory of a device, which RDMA alone reaches.
    Device,
}

/// A region as its owner describes it to peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionDescription {
    /// Its id.
    pub id: RegionId,
    /// The address of its first byte in the owner's process.
    pub base: u64,
    /// Its length in bytes; base plus length does not overflow.
    pub length: u64,
    /// Where it lives.
    pub location: Location,
    /// The standing grant over the whole region, if there is one.
    pub standing: Option<StandingGrant>,
}

/// A grant over a whole region for every peer, until the region is unregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandingGrant {
    /// Its id.
    pub grant: GrantId,
    /// What it permits.
    pub access: Access,
}

/// A view on a region: `count` blocks of `block_bytes`, `stride` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Where block 0 starts, in bytes from the region's start.
    pub offset: u64,
    /// The length of a block in bytes: never 0.
    pub block_bytes: u64,
    /// From the start of one block to the start of the next, in bytes.
    pub stride: u64,
    /// How many blocks: never 0.
    pub count: u64,
}

impl Geometry {
    /// The end of the last block, in bytes from the region's start; `None` where that overflows.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        let last = self.count.checked_sub(1)?.checked_mul(self.stride)?;
        self.offset.checked_add(last)?.checked_add(self.block_bytes)
    }
}

/// A layout under the name that its owner published it with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutDescription {
    /// The name.
    pub name: String,
    /// The region that it is a view of.
    pub region: RegionId,
    /// Which bytes.
    pub geometry: Geometry,
}

/// A piece of an owner's table: a snapshot, or what changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableUpdate {
    /// The table's version once this is applied.
    pub version: u64,
    /// Forget what was known before.
    pub reset: bool,
    /// The table is whole with this piece.
    pub complete: bool,
    /// Regions that are new or changed.
    pub regions: Vec<RegionDescription>,
    /// Regions that are gone.
    pub gone_regions: Vec<RegionId>,
    /// Layouts that are new or changed.
    pub layouts: Vec<LayoutDescription>,
    /// Layouts that are gone.
    pub gone_layouts: Vec<String>,
}

/// A grant on its way to its peer, through whatever channel the two programs already share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The engine whose memory this is.
    pub owner: Incarnation,
    /// The grant.
    pub grant: GrantId,
    /// What it permits.
    pub access: Access,
    /// What was left of it when the ticket was written, in milliseconds.
    pub remaining_ms: u64,
    /// The spans that it covers.
    pub spans: Vec<TicketSpan>,
}

/// A span that a ticket covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketSpan {
    /// The region.
    pub region: RegionId,
    /// Where it starts, in bytes from the region's start.
    pub offset: u64,
    /// How long it is, in bytes; offset plus length does not overflow.
    pub length: u64,
}

/// An incarnation from the wire, where 0 means none.
///
/// # Errors
/// [`MessageError::Missing`] for 0.
pub fn incarnation(message: &'static str, value: u64) -> Result<Incarnation, MessageError> {
    if value == 0 {
        return Err(MessageError::Missing { message, field: "incarnation" });
    }
    Ok(Incarnation(value))
}

fn region_id(message: &'static str, id: Option<rpc::RegionId>) -> Result<RegionId, MessageError> {
    let id = id.ok_or(MessageError::Missing { message, field: "region id" })?;
    Ok(RegionId { slot: id.slot, generation: id.generation })
}

impl From<RegionId> for rpc::RegionId {
    fn from(id: RegionId) -> Self {
        Self { slot: id.slot, generation: id.generation }
    }
}

impl From<Access> for rpc::Access {
    fn from(access: Access) -> Self {
        match access {
            Access::Read => Self::Read,
            Access::Write => Self::Write,
            Access::ReadWrite => Self::ReadWrite,
        }
    }
}

fn access(message: &'static str, value: i32) -> Result<Access, MessageError> {
    match rpc::Access::try_from(value) {
        Ok(rpc::Access::Read) => Ok(Access::Read),
        Ok(rpc::Access::Write) => Ok(Access::Write),
        Ok(rpc::Access::ReadWrite) => Ok(Access::ReadWrite),
        Ok(rpc::Access::None) => Err(MessageError::Missing { message, field: "access" }),
        Err(_) => Err(MessageError::Value {
            message,
            field: "access",
            value: u64::from(value.unsigned_abs()),
        }),
    }
}

impl From<&RegionDescription> for rpc::Region {
    fn from(region: &RegionDescription) -> Self {
        use rpc::location::{Device, File, Host, Kind, Shared};
        let kind = match region.location {
            Location::Host { numa } => Kind::Host(Host { numa }),
            Location::Shared { numa, page_kib } => Kind::Shared(Shared { numa, page_kib }),
            Location::File => Kind::File(File {}),
            Location::Device => Kind::Device(Device {}),
        };
        Self {
            id: Some(region.id.into()),
            base: region.base,
            length_bytes: region.length,
            location: Some(rpc::Location { kind: Some(kind) }),
            standing_grant: region.standing.map_or(0, |standing| standing.grant.0),
            standing_access: region
                .standing
                .map_or(rpc::Access::None, |standing| standing.access.into())
                .into(),
        }
    }
}

impl TryFrom<rpc::Region> for RegionDescription {
    type Error = MessageError;

    fn try_from(region: rpc::Region) -> Result<Self, MessageError> {
        use rpc::location::Kind;
        let message = "Region";
        let missing = |field| MessageError::Missing { message, field };
        let location = region.location.and_then(|location| location.kind);
        let location = match location.ok_or(missing("location"))? {
            Kind::Host(host) => Location::Host { numa: host.numa },
            Kind::Shared(shared) => {
                Location::Shared { numa: shared.numa, page_kib: shared.page_kib }
            }
            Kind::File(_) => Location::File,
            Kind::Device(_) => Location::Device,
        };
        let standing = match region.standing_grant {
            0 => None,
            grant => Some(StandingGrant {
                grant: GrantId(grant),
                access: access(message, region.standing_access)?,
            }),
        };
        if region.length_bytes == 0 || region.base.checked_add(region.length_bytes).is_none() {
            let value = region.length_bytes;
            return Err(MessageError::Value { message, field: "length_bytes", value });
        }
        Ok(Self {
            id: region_id(message, region.id)?,
            base: region.base,
            length: region.length_bytes,
            location,
            standing,
        })
    }
}

impl From<&LayoutDescription> for rpc::Layout {
    fn from(layout: &LayoutDescription) -> Self {
        Self {
            name: layout.name.clone(),
            region: Some(layout.region.into()),
            offset_bytes: layout.geometry.offset,
            block_bytes: layout.geometry.block_bytes,
            stride_bytes: layout.geometry.stride,
            count: layout.geometry.count,
        }
    }
}

impl TryFrom<rpc::Layout> for LayoutDescription {
    type Error = MessageError;

    fn try_from(layout: rpc::Layout) -> Result<Self, MessageError> {
        let message = "Layout";
        let found = layout.name.len();
        if found > NAME_BYTES {
            let field = "bytes in its name";
            return Err(MessageError::TooMany { message, field, found, limit: NAME_BYTES });
        }
        let geometry = Geometry {
            offset: layout.offset_bytes,
            block_bytes: layout.block_bytes,
            stride: layout.stride_bytes,
            count: layout.count,
        };
        if geometry.block_bytes == 0 || geometry.end().is_none() {
            let value = geometry.block_bytes;
            return Err(MessageError::Value { message, field: "block_bytes", value });
        }
        let region = region_id(message, layout.region)?;
        Ok(Self { name: layout.name, region, geometry })
    }
}

impl From<&TableUpdate> for rpc::TableUpdate {
    fn from(update: &TableUpdate) -> Self {
        Self {
            version: update.version,
            reset: update.reset,
            complete: update.complete,
            regions: update.regions.iter().map(Into::into).collect(),
            gone_regions: update.gone_regions.iter().map(|id| (*id).into()).collect(),
            layouts: update.layouts.iter().map(Into::into).collect(),
            gone_layouts: update.gone_layouts.clone(),
        }
    }
}

impl TryFrom<rpc::TableUpdate> for TableUpdate {
    type Error = MessageError;

    fn try_from(update: rpc::TableUpdate) -> Result<Self, MessageError> {
        let gone = |id| region_id("TableUpdate", Some(id));
        Ok(Self {
            version: update.version,
            reset: update.reset,
            complete: update.complete,
            regions: update.regions.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
            gone_regions: update.gone_regions.into_iter().map(gone).collect::<Result<_, _>>()?,
            layouts: update.layouts.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
            gone_layouts: update.gone_layouts,
        })
    }
}

impl Ticket {
    /// The bytes to hand to the peer's program.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        rpc::Ticket {
            owner: self.owner.0,
            grant: self.grant.0,
            access: rpc::Access::from(self.access).into(),
            remaining_ms: self.remaining_ms,
            spans: self
                .spans
                .iter()
                .map(|span| rpc::TicketSpan {
                    region: Some(span.region.into()),
                    offset_bytes: span.offset,
                    length_bytes: span.length,
                })
                .collect(),
        }
        .encode_to_vec()
    }

    /// Reads a ticket.
    ///
    /// # Errors
    /// [`MessageError`] when the bytes are none, or a field is impossible.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let message = "Ticket";
        let ticket = rpc::Ticket::decode(bytes)
            .map_err(|error| MessageError::Malformed { message, reason: error.to_string() })?;
        let found = ticket.spans.len();
        if found > TICKET_SPANS {
            let field = "spans";
            return Err(MessageError::TooMany { message, field, found, limit: TICKET_SPANS });
        }
        if ticket.grant == 0 {
            return Err(MessageError::Missing { message, field: "grant" });
        }
        let span = |span: rpc::TicketSpan| {
            let (offset, length) = (span.offset_bytes, span.length_bytes);
            if length == 0 || offset.checked_add(length).is_none() {
                return Err(MessageError::Value { message, field: "length_bytes", value: length });
            }
            Ok(TicketSpan { region: region_id(message, span.region)?, offset, length })
        };
        Ok(Self {
            owner: incarnation(message, ticket.owner)?,
            grant: GrantId(ticket.grant),
            access: access(message, ticket.access)?,
            remaining_ms: ticket.remaining_ms,
            spans: ticket.spans.into_iter().map(span).collect::<Result<_, _>>()?,
        })
    }
}
