//! Which transport a peer is reached by: the best that both ends have and may use, and what takes its
//! place.

use tokio::time::timeout;

use super::offer::{Offer, Offers, Why};
use super::{local, pair};
use crate::core::Core;
use crate::error::Error;
use crate::net::Endpoint;
use crate::transports::Transport;

/// How much of the time for a handshake it may take to find out whether a peer is on this host:
/// enough is left to reach it otherwise.
const SHARE_OF_HANDSHAKE: u32 = 4;

/// How lanes to a peer are opened: locally where both are on one host, else with queue pairs where ports
/// of both reach each other, else by TCP, as far as each is allowed.
pub(super) async fn choose(
    core: &Core,
    endpoint: &Endpoint,
    offers: Offers,
) -> Result<Offer, Error> {
    let transports = core.settings.transports;
    let has_others = transports.permit(Transport::Tcp);
    let mut why = Why::default();
    if transports.permit(Transport::Local) {
        let limit = core.settings.connect_timeout / SHARE_OF_HANDSHAKE;
        let met = match timeout(limit, local::find(core, &offers)).await {
            Ok(met) => met,
            Err(_) => Err(format!("its socket did not answer within {limit:?}").into()),
        };
        match met {
            Ok(offer) => return Ok(offer),
            Err(reason) if !has_others => {
                return Err(Error::NotLocal { peer: endpoint.clone(), reason });
            }
            Err(reason) => why.not_local = Some(reason),
        }
    }
    if transports.permit(Transport::Rdma) {
        match pair::find(core, endpoint, &offers) {
            Ok(pairs) => return offers.by_rdma(endpoint, pairs, has_others, why),
            Err(reason) if !has_others => {
                return Err(Error::NotRdma { peer: endpoint.clone(), reason });
            }
            Err(reason) => why.not_rdma = Some(reason),
        }
    }
    offers.by_tcp(endpoint, why)
}
