//! What engines tell each other first: who they are, and where they accept lanes.

use kvferry_proto::Incarnation;
use kvferry_proto::frame::limits;
use kvferry_proto::message::{self, VERSION_MAJOR, VERSION_MINOR};
use kvferry_proto::rpc::{self, offer};

use crate::core::Core;
use crate::error::Error;
use crate::net::Endpoint;

/// A peer that takes less at once makes us cut transfers into more pieces than is reasonable.
const LEAST_SLICE_BYTES: u32 = 64 << 10;

/// Where a peer accepts lanes, and what it takes.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(super) endpoint: Endpoint,
    pub(super) incarnation: Incarnation,
    pub(crate) max_slice_bytes: u32,
}

fn version() -> rpc::Version {
    rpc::Version { major: VERSION_MAJOR.into(), minor: VERSION_MINOR.into() }
}

/// What an engine says of itself to one that it wants to reach.
pub(crate) fn hello(core: &Core) -> rpc::HelloRequest {
    rpc::HelloRequest {
        version: Some(version()),
        incarnation: core.incarnation.0,
        transports: vec!["tcp".into()],
    }
}

/// What an engine answers. A peer of another version is told ours, and finds the words for it.
pub(crate) fn hello_reply(core: &Core, lane_port: u16) -> rpc::HelloReply {
    let lanes = core.settings.lane_address.as_ref();
    let tcp = rpc::TcpOffer {
        host: lanes.map_or(String::new(), |lanes| lanes.host().into()),
        port: lanes.map_or(lane_port, Endpoint::port).into(),
        max_slice_bytes: limits::PAYLOAD_BYTES,
        max_lanes: u32::try_from(core.settings.max_lanes_per_peer).unwrap_or(u32::MAX),
    };
    rpc::HelloReply {
        version: Some(version()),
        incarnation: core.incarnation.0,
        offers: vec![rpc::Offer { transport: Some(offer::Transport::Tcp(tcp)) }],
    }
}

impl Offer {
    /// Reads what the engine at `endpoint` answered.
    pub(crate) fn read(
        endpoint: &Endpoint,
        reply: rpc::HelloReply,
    ) -> Result<(Incarnation, Self), Error> {
        let unreachable = |error: &dyn std::fmt::Display| Error::unreachable(endpoint, error);
        let theirs = reply.version.map_or(0, |version| version.major);
        if theirs != u32::from(VERSION_MAJOR) {
            let (peer, ours) = (endpoint.clone(), VERSION_MAJOR.into());
            return Err(Error::Version { peer, theirs, ours });
        }
        let incarnation =
            message::incarnation("HelloReply", reply.incarnation).map_err(|e| unreachable(&e))?;
        let offer = reply
            .offers
            .into_iter()
            .find_map(|offer| offer.transport.map(|offer::Transport::Tcp(tcp)| tcp))
            .ok_or_else(|| Error::NoTransport { peer: endpoint.clone(), wanted: "tcp" })?;
        let host = if offer.host.is_empty() { endpoint.host() } else { &offer.host };
        let port =
            u16::try_from(offer.port).map_err(|_| unreachable(&"its lane port is no port"))?;
        if offer.max_slice_bytes < LEAST_SLICE_BYTES {
            let why = format_args!("it takes slices of {} bytes at most", offer.max_slice_bytes);
            return Err(unreachable(&why));
        }
        let max_slice_bytes = offer.max_slice_bytes;
        Ok((
            incarnation,
            Self { endpoint: Endpoint::new(host, port), incarnation, max_slice_bytes },
        ))
    }
}
