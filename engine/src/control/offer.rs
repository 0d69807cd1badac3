//! What engines tell each other first: who they are, and where they accept lanes.

use std::path::PathBuf;
use std::sync::Arc;

use kvferry_proto::frame::limits;
use kvferry_proto::message::{self, VERSION_MAJOR, VERSION_MINOR};
use kvferry_proto::rpc::{self, offer};
use kvferry_proto::{Incarnation, LaneId};

use super::pair;
use crate::core::Core;
use crate::error::Error;
use crate::net::Endpoint;
use crate::rdma::PairChoice;
use crate::session::Means;
use crate::transports::Transport;

/// A peer that takes less at once makes us cut transfers into more pieces than is reasonable.
const LEAST_SLICE_BYTES: u32 = 64 << 10;

/// How lanes to a peer are opened, since the last handshake, and what it takes.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(super) way: Way,
    /// What takes its place while it fails.
    pub(super) spare: Option<Way>,
    pub(crate) incarnation: Incarnation,
    pub(crate) max_slice_bytes: u32,
    /// Why no better way was taken.
    pub(crate) why: Why,
    /// Why foreign memory goes through them and is not read where it lies, where they are local.
    pub(crate) not_in_place: Option<Arc<str>>,
}

/// Why lanes are not opened in a better way, where they might have been.
#[derive(Clone, Debug, Default)]
pub(crate) struct Why {
    /// Why not by the local transport.
    pub(crate) not_local: Option<Arc<str>>,
    /// Why not by RDMA.
    pub(crate) not_rdma: Option<Arc<str>>,
}

/// Where lanes are accepted.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    Tcp(Endpoint),
    Local(PathBuf),
    /// As by TCP, with a queue pair on one of these pairs of ports.
    Rdma {
        lanes: Endpoint,
        pairs: Arc<PairChoice>,
    },
}

impl Why {
    pub(crate) fn is_any(&self) -> bool {
        self.not_local.is_some() || self.not_rdma.is_some()
    }
}

impl Offer {
    /// One without a spare.
    fn of(way: Way, incarnation: Incarnation, max_slice_bytes: u32) -> Self {
        let (spare, why, not_in_place) = (None, Why::default(), None);
        Self { way, spare, incarnation, max_slice_bytes, why, not_in_place }
    }

    /// What carries transfers by these means.
    pub(crate) fn transport(&self, means: Means) -> Transport {
        match (means, &self.spare) {
            (Means::Spare, Some(spare)) => spare.transport(),
            _ => self.way.transport(),
        }
    }

    /// What carries them while the best fails.
    pub(crate) fn spare(&self) -> Option<Transport> {
        self.spare.as_ref().map(Way::transport)
    }

    /// The same with lanes by these means; `None` where there is no spare.
    pub(super) fn by(self, means: Means) -> Option<Self> {
        match means {
            Means::Best => Some(self),
            Means::Spare => Some(Self { way: self.spare?, spare: None, ..self }),
        }
    }

    /// A port works again. Lanes that had better be on it than where they are.
    pub(crate) fn spread(&self) -> Vec<LaneId> {
        match &self.way {
            Way::Rdma { pairs, .. } => pairs.spread(),
            Way::Tcp(_) | Way::Local(_) => Vec::new(),
        }
    }
}

impl Way {
    fn transport(&self) -> Transport {
        match self {
            Self::Tcp(_) => Transport::Tcp,
            Self::Local(_) => Transport::Local,
            Self::Rdma { .. } => Transport::Rdma,
        }
    }
}

fn version() -> rpc::Version {
    rpc::Version { major: VERSION_MAJOR.into(), minor: VERSION_MINOR.into() }
}

/// What an engine says of itself to one that it wants to reach.
pub(crate) fn hello(core: &Core) -> rpc::HelloRequest {
    rpc::HelloRequest {
        version: Some(version()),
        incarnation: core.incarnation.0,
        transports: core.settings.transports.permitted().map(|one| one.name().into()).collect(),
    }
}

/// What an engine answers. A peer of another version is told ours, and finds the words for it.
pub(crate) fn hello_reply(core: &Core, lane_port: u16) -> rpc::HelloReply {
    let max_slice_bytes = limits::PAYLOAD_BYTES;
    let max_lanes = u32::try_from(core.settings.max_lanes_per_peer).unwrap_or(u32::MAX);
    let local =
        core.run_directory.is_ok().then_some(rpc::LocalOffer { max_slice_bytes, max_lanes });
    let lanes = core.settings.lane_address.as_ref();
    let by_tcp = rpc::TcpOffer {
        host: lanes.map_or(String::new(), |lanes| lanes.host().into()),
        port: lanes.map_or(lane_port, Endpoint::port).into(),
        max_slice_bytes,
        max_lanes,
    };
    let adapters = core.adapters().ok();
    let rdma = adapters.map(|adapters| rpc::RdmaOffer {
        lanes: Some(by_tcp.clone()),
        ports: pair::ports(&adapters),
    });
    let tcp = core.settings.transports.permit(Transport::Tcp).then_some(by_tcp);
    let local = local.map(offer::Transport::Local).into_iter();
    let rdma = rdma.map(offer::Transport::Rdma);
    let offers = local.chain(rdma).chain(tcp.map(offer::Transport::Tcp));
    rpc::HelloReply {
        version: Some(version()),
        incarnation: core.incarnation.0,
        offers: offers.map(|transport| rpc::Offer { transport: Some(transport) }).collect(),
    }
}

/// What a peer offers.
#[derive(Debug)]
pub(crate) struct Offers {
    pub(crate) incarnation: Incarnation,
    tcp: Option<Offer>,
    /// The most bytes of a slice.
    local: Option<u32>,
    rdma: Option<RdmaOffer>,
}

#[derive(Debug)]
struct RdmaOffer {
    lanes: Endpoint,
    max_slice_bytes: u32,
    ports: Vec<rpc::RdmaPort>,
}

impl Offers {
    /// Reads what the engine at `endpoint` answered.
    pub(crate) fn read(endpoint: &Endpoint, reply: rpc::HelloReply) -> Result<Self, Error> {
        let unreachable = |error: &dyn std::fmt::Display| Error::unreachable(endpoint, error);
        let theirs = reply.version.map_or(0, |version| version.major);
        if theirs != u32::from(VERSION_MAJOR) {
            let (peer, ours) = (endpoint.clone(), VERSION_MAJOR.into());
            return Err(Error::Version { peer, theirs, ours });
        }
        let incarnation =
            message::incarnation("HelloReply", reply.incarnation).map_err(|e| unreachable(&e))?;
        let slices = |bytes: u32| {
            let why = format_args!("it takes slices of {bytes} bytes at most");
            if bytes < LEAST_SLICE_BYTES { Err(unreachable(&why)) } else { Ok(bytes) }
        };
        let lanes_of = |tcp: &rpc::TcpOffer| {
            let host = if tcp.host.is_empty() { endpoint.host() } else { &tcp.host };
            let port = u16::try_from(tcp.port);
            let port = port.map_err(|_| unreachable(&"its lane port is no port"))?;
            Ok::<_, Error>(Endpoint::new(host, port))
        };
        let mut offers = Self { incarnation, tcp: None, local: None, rdma: None };
        for offer in reply.offers {
            match offer.transport {
                Some(offer::Transport::Tcp(tcp)) => {
                    let most = slices(tcp.max_slice_bytes)?;
                    offers.tcp = Some(Offer::of(Way::Tcp(lanes_of(&tcp)?), incarnation, most));
                }
                Some(offer::Transport::Local(local)) => {
                    offers.local = Some(slices(local.max_slice_bytes)?);
                }
                Some(offer::Transport::Rdma(rdma)) => {
                    let tcp = rdma.lanes.ok_or_else(|| unreachable(&"it says not where"))?;
                    offers.rdma = Some(RdmaOffer {
                        lanes: lanes_of(&tcp)?,
                        max_slice_bytes: slices(tcp.max_slice_bytes)?,
                        ports: rdma.ports,
                    });
                }
                // Of a transport that this version does not know.
                None => {}
            }
        }
        Ok(offers)
    }

    /// Lanes over TCP, and why they are no better.
    pub(crate) fn by_tcp(self, endpoint: &Endpoint, why: Why) -> Result<Offer, Error> {
        let no_tcp = || Error::NoTransport { peer: endpoint.clone(), wanted: "tcp" };
        let offer = self.tcp.ok_or_else(no_tcp)?;
        Ok(Offer { why, ..offer })
    }

    /// The ports that the peer offers, where it offers RDMA.
    pub(super) fn rdma_ports(&self) -> Option<&[rpc::RdmaPort]> {
        self.rdma.as_ref().map(|rdma| &*rdma.ports)
    }

    /// Lanes with queue pairs on these pairs of ports, and by TCP in their place if that is allowed and
    /// offered.
    pub(super) fn by_rdma(
        self,
        endpoint: &Endpoint,
        pairs: Arc<PairChoice>,
        may_be_replaced: bool,
        why: Why,
    ) -> Result<Offer, Error> {
        let no_rdma = || Error::NoTransport { peer: endpoint.clone(), wanted: "rdma" };
        let RdmaOffer { lanes, max_slice_bytes, .. } = self.rdma.ok_or_else(no_rdma)?;
        let offer = Offer::of(Way::Rdma { lanes, pairs }, self.incarnation, max_slice_bytes);
        let offer = Offer { why, ..offer };
        Ok(match self.tcp.filter(|_| may_be_replaced) {
            // Slices may move from one to the other.
            Some(tcp) => Offer {
                spare: Some(tcp.way),
                max_slice_bytes: max_slice_bytes.min(tcp.max_slice_bytes),
                ..offer
            },
            None => offer,
        })
    }

    /// Lanes over the Unix socket at `path`, where the peer offers that.
    pub(crate) fn by_local(&self, path: PathBuf) -> Option<Offer> {
        Some(Offer::of(Way::Local(path), self.incarnation, self.local?))
    }
}
