//! What a session asks for that takes its time. The engine does it on its control runtime; a simulation
//! decides by itself what comes of it, and when.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use kvferry_proto::LaneId;

use crate::error::Error;
use crate::peer::PeerInner;
use crate::session::Means;

/// Keeps a control connection while it lives.
pub(crate) type Connection = Box<dyn Send>;

/// Does what takes its time, and tells the peer how it went.
pub(crate) trait Outreach: Send + Sync {
    /// Shakes hands and follows the peer's table for as long as what is returned lives.
    /// [`PeerInner::shaken`] follows.
    fn shake_hands(&self, peer: &Arc<PeerInner>) -> Connection;

    /// Opens a lane: the session is told whether it is up.
    fn open_lane(&self, peer: &Arc<PeerInner>, lane: LaneId, means: Means);

    /// Calls the session when its time has come, for as long as the peer is held.
    fn keep_time(&self, peer: &Arc<PeerInner>);

    /// Is through when the copy of the peer's table is at least as new as the table was when this
    /// was called.
    fn catch_up(
        &self,
        peer: &Arc<PeerInner>,
    ) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;
}
