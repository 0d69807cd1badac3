//! Queue pairs of new lanes.

use std::sync::Arc;

use kvferry_proto::frame::PairAddress;
use kvferry_transport::rdma::device::{Gid, Lid};
use kvferry_transport::rdma::fetch::{Fetcher, Registered};
use kvferry_transport::rdma::verbs::{
    Address, Capacity, CompletionQueue, Mtu, Unconnected, VerbsError,
};

use super::adapters::Adapters;

/// One end's half of a connection of queue pairs, before the other end's is known.
pub(crate) struct Half {
    pair: Unconnected,
    queue: CompletionQueue,
    capacity: Capacity,
    registered: Arc<Registered>,
}

impl Adapters {
    /// A queue pair on one of the ports; `None` where there is no such port.
    pub(crate) fn half(&self, port: usize) -> Option<Result<Half, VerbsError>> {
        let (device, route) = self.way(port)?;
        let make = || {
            let capacity = Fetcher::capacity(&device.context);
            let queue = Fetcher::queue(&device.context)?;
            let registered = device.registered.clone();
            // So that a packet of an earlier connection is not taken for one of this.
            let first_packet = getrandom::u32().unwrap_or(0);
            let pair =
                Unconnected::new(registered.domain(), &queue, route, capacity, first_packet)?;
            Ok(Half { pair, queue, capacity, registered })
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
    pub(crate) fn connect(
        self,
        theirs: &PairAddress,
    ) -> Result<(Fetcher, Arc<Registered>), VerbsError> {
        let PairAddress { number, first_packet, gid, lid, mtu_bytes, reads, .. } = *theirs;
        // It is one of those that there are, or it would not have been read.
        let mtu = Mtu::of_bytes(mtu_bytes).unwrap_or(self.pair.address().mtu);
        let theirs = Address { number, first_packet, gid: Gid(gid), lid: Lid(lid), mtu, reads };
        let pair = self.pair.connect(&theirs)?;
        let fetcher = Fetcher::new(pair, self.queue, self.capacity, self.registered.clone());
        Ok((fetcher, self.registered))
    }
}
