//! Queue pairs of new lanes.

use kvferry_proto::frame::PairAddress;
use kvferry_transport::rdma::device::{Gid, Lid};
use kvferry_transport::rdma::fetch::Fetcher;
use kvferry_transport::rdma::verbs::{
    Address, Capacity, CompletionQueue, Mtu, Unconnected, VerbsError,
};

use super::adapters::Adapters;
use super::device::Berth;
use super::error::RdmaError;

/// One end's half of a connection of queue pairs, before the other end's is known.
pub(crate) struct Half {
    pair: Unconnected,
    queue: CompletionQueue,
    capacity: Capacity,
    berth: Berth,
}

impl Adapters {
    /// A queue pair on one of the ports; `None` where there is no such port.
    pub(crate) fn half(&self, port: usize) -> Option<Result<Half, RdmaError>> {
        let (adapter, route) = self.way(port)?;
        let make = || {
            let device = self.device(adapter).map_err(|why| RdmaError::PortDown { why })?;
            if let Some(why) = device.obstacle_of(route.port) {
                return Err(RdmaError::PortDown { why });
            }
            let capacity = Fetcher::capacity(device.context());
            let queue = Fetcher::queue(device.context())?;
            // So that a packet of an earlier connection is not taken for one of this.
            let first_packet = getrandom::u32().unwrap_or(0);
            let domain = device.registered().domain();
            let pair = Unconnected::new(domain, &queue, route, capacity, first_packet)?;
            let berth = Berth { device, port: route.port };
            Ok(Half { pair, queue, capacity, berth })
        };
        Some(make())
    }
}

impl Half {
    /// What the other end is told, with the position of the target's port.
    pub(crate) fn address(&self, port: u16) -> PairAddress {
        let Address { number, first_packet, gid, lid, mtu, reads } = self.pair.address();
        let (gid, lid, mtu_bytes, reads) = (gid.0, lid.0, mtu.bytes(), reads.max(1));
        PairAddress { number, first_packet, gid, lid, port, mtu_bytes, reads }
    }

    /// Connects it to the other end's.
    pub(crate) fn connect(self, theirs: &PairAddress) -> Result<(Fetcher, Berth), VerbsError> {
        let PairAddress { number, first_packet, gid, lid, mtu_bytes, reads, .. } = *theirs;
        // It is one of those that there are, or it would not have been read.
        let mtu = Mtu::of_bytes(mtu_bytes).unwrap_or(self.pair.address().mtu);
        let theirs = Address { number, first_packet, gid: Gid(gid), lid: Lid(lid), mtu, reads };
        let pair = self.pair.connect(&theirs)?;
        let registered = self.berth.registered().clone();
        let fetcher = Fetcher::new(pair, self.queue, self.capacity, registered);
        Ok((fetcher, self.berth))
    }
}
