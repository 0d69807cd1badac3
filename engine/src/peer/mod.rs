//! A remote engine as seen from here: the handle, and the driver that carries out what the
//! [session](crate::session) decides.

mod alarm;
#[cfg(feature = "simulation")]
mod by_hand;
mod driver;
mod fetched;
mod frames;
mod handle;
mod lent;
mod replies;
mod way;

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use kvferry_proto::frame::{Reply, Request as WireRequest};
use kvferry_proto::{Incarnation, LaneId, TransferId};
use kvferry_transport::baton::Baton;
use kvferry_transport::lanes::{self, Outgoing};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, oneshot};

use crate::control::client::Shaken;
use crate::control::offer::{Offer, Why};
use crate::core::Core;
use crate::error::Error;
use crate::lanes::{Lanes, Open};
use crate::net::Endpoint;
use crate::outreach;
use crate::plan::PlanLimits;
use crate::registry::Registry;
use crate::remote::RemoteTable;
use crate::session::{Action, Connection, Means, Session};
use crate::time;
use crate::transfer::Spec;
use crate::transfer::cargo::{Cargo, Post};
use crate::transports::Transport;

use alarm::Alarm;
use frames::SliceFrame;
use way::Way;

pub(crate) use driver::PeerDriver;
pub use handle::{Peer, PeerStatus};
pub(crate) use replies::{OnGone, ReplyHandler};

/// What those who connect are told.
type Answer = Result<(), Error>;

/// What comes of connecting.
enum Connecting {
    Up,
    Pending(oneshot::Receiver<Answer>),
    Closed,
}

type Actions = VecDeque<Action<Arc<Cargo>>>;

/// What a lane takes several of at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Slice,
    Control,
}

pub(crate) struct PeerInner {
    endpoint: Endpoint,
    core: Arc<Core>,
    /// Which of this engine's sessions it is.
    number: u64,
    session: Mutex<Session<Arc<Cargo>>>,
    /// Held by whoever carries out what the session decides.
    driving: Baton<()>,
    lanes: Lanes,
    table: RwLock<RemoteTable>,
    /// Where lanes are accepted, since the last handshake.
    offer: Mutex<Option<Offer>>,
    control: Mutex<Option<outreach::Connection>>,
    waiting: Mutex<Vec<oneshot::Sender<Answer>>>,
    alarm: Arc<Alarm>,
    table_changed: Notify,
}

impl PeerInner {
    pub(crate) fn start(core: &Arc<Core>, endpoint: Endpoint) -> Arc<Self> {
        let session = Session::new(endpoint.clone(), core.settings.session, time::now());
        let peer = Arc::new(Self {
            endpoint,
            core: core.clone(),
            number: core.next_session(),
            session: Mutex::new(session),
            driving: Baton::default(),
            lanes: Lanes::default(),
            table: RwLock::default(),
            offer: Mutex::default(),
            control: Mutex::default(),
            waiting: Mutex::default(),
            alarm: Arc::default(),
            table_changed: Notify::new(),
        });
        core.outreach.keep_time(&peer);
        peer
    }

    /// Calls the session when its time has come, for as long as the peer is held.
    pub(crate) fn keep_time(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        alarm::keep_time(Arc::downgrade(self), self.alarm.clone())
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn table(&self) -> &RwLock<RemoteTable> {
        &self.table
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.core.registry
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// How transfers to this peer are cut.
    pub(crate) fn plan_limits(&self) -> PlanLimits {
        let mut limits = self.core.settings.plan;
        if let Some(offer) = self.offer.lock().as_ref() {
            limits.slice_bytes = limits.slice_bytes.min(offer.max_slice_bytes);
        }
        limits
    }

    /// The copy of the peer's table has changed.
    pub(crate) fn table_changed(&self) {
        self.table_changed.notify_waiters();
    }

    /// Ready when the copy has changed after this call.
    pub(crate) fn table_changes(&self) -> impl Future<Output = ()> + '_ {
        let mut changes = Box::pin(self.table_changed.notified());
        changes.as_mut().enable();
        changes
    }

    /// The incarnation that its table is of.
    pub(crate) fn incarnation_of(&self, table: &RemoteTable) -> Result<Incarnation, Error> {
        let not_connected =
            || Error::unreachable(&self.endpoint, "not connected yet: connect first");
        table.incarnation().ok_or_else(not_connected)
    }

    pub(crate) async fn ready(self: &Arc<Self>) -> Result<(), Error> {
        if self.core.is_shut() {
            return Err(Error::Shutdown);
        }
        if let Connecting::Up = self.begin_connecting() {
            if self.core.outreach.catch_up(self).await.is_ok() {
                return Ok(());
            }
            // Its control port answers no more, or answers as somebody else.
            self.event(|session, now| session.on_control_lost(now));
        }
        match self.begin_connecting() {
            Connecting::Up => Ok(()),
            Connecting::Closed => Err(Error::Shutdown),
            Connecting::Pending(answer) => answer.await.unwrap_or(Err(Error::Shutdown)),
        }
    }

    /// Whether it is connected, or what tells when it is.
    fn begin_connecting(self: &Arc<Self>) -> Connecting {
        self.event(|session, now| match session.connect(now) {
            Connection::Closed => Connecting::Closed,
            Connection::Up => Connecting::Up,
            // Under the session's lock, so that the answer comes after it.
            Connection::Pending => {
                let (sender, receiver) = oneshot::channel();
                self.waiting.lock().push(sender);
                Connecting::Pending(receiver)
            }
        })
    }

    /// Submits a transfer whose regions are held.
    pub(crate) fn submit(
        self: &Arc<Self>,
        incarnation: Incarnation,
        spec: Spec,
        cargo: &Arc<Cargo>,
    ) -> Result<(), Error> {
        if !self.core.is_own_process() {
            return Err(Error::Shutdown);
        }
        self.event(|session, now| {
            let id = session.submit(now, incarnation, spec, cargo.clone())?;
            // Before the lock is given back: nobody sees the transfer without its number.
            cargo.numbered(id);
            Ok(())
        })
    }

    /// Tells the session of an event and carries out what it decides.
    pub(crate) fn event<R>(
        self: &Arc<Self>,
        event: impl FnOnce(&mut Session<Arc<Cargo>>, Instant) -> R,
    ) -> R {
        let (result, next) = {
            let mut session = self.session.lock();
            let before = session.means();
            let result = event(&mut session, time::now());
            if before == Means::Best && session.means() == Means::Spare {
                self.core.counts.fell_back();
            }
            (result, session.next_timeout())
        };
        self.drive();
        self.alarm.arm(next);
        result
    }

    /// Carries out what the session decided, in the order in which it did, unless somebody else is
    /// at it, who then does this too. Frames go out when that is done: to send takes longer than to
    /// decide, and who has only asked for something small must not be kept with what others send.
    fn drive(self: &Arc<Self>) {
        lanes::send_afterwards(|| {
            self.driving.run(
                |()| {
                    let actions = self.session.lock().take_actions();
                    self.carry_out(actions);
                    ControlFlow::Continue(())
                },
                || self.session.lock().has_actions(),
            );
        });
    }

    fn carry_out(self: &Arc<Self>, actions: Actions) {
        // Neighbours of one kind for one lane go out together.
        let mut together = None;
        let mut frames: Vec<Box<dyn Outgoing>> = Vec::new();
        let mut controls = Vec::new();
        for action in actions {
            let belongs = match &action {
                Action::Post { lane, .. } => Some((*lane, Kind::Slice)),
                Action::Send { lane, .. } => Some((*lane, Kind::Control)),
                _ => None,
            };
            if together != belongs {
                self.send_together(together, &mut frames, &mut controls);
                together = belongs;
            }
            match action {
                Action::Post { lane, slice, answer_now, floor, token, .. } => {
                    let by_reference = match self.way(lane, &token, slice) {
                        Way::Reference => true,
                        Way::Payload => false,
                        Way::Nowhere => continue,
                        Way::Impossible(cause) => {
                            token.fail(cause);
                            continue;
                        }
                    };
                    let post = Post { slice, answer_now, floor, by_reference };
                    frames.push(Box::new(SliceFrame::new(token, post)));
                }
                Action::Send { control, .. } => control.encode(&mut controls),
                Action::Notify { lane, transfer, floor, token } => {
                    let mut frame = Vec::new();
                    let notification = token.terms().notification.as_deref().unwrap_or_default();
                    WireRequest::encode_notify(&mut frame, transfer, floor, notification);
                    if let Some(transport) = self.send(lane, &frame) {
                        token.carried_by(transport);
                    }
                }
                Action::End { outcome, repeated, token, .. } => token.end(outcome, repeated),
                Action::Handshake => {
                    let connection = self.core.outreach.shake_hands(self);
                    self.replace_control(Some(connection));
                }
                Action::Connected => self.answer_waiting(&Ok(())),
                Action::Forget(cause) => {
                    self.replace_control(None);
                    if let Some(cause) = cause {
                        self.answer_waiting(&Err(cause));
                    }
                }
                Action::OpenLane { lane, means } => {
                    self.core.outreach.open_lane(self, lane, means);
                }
                Action::CloseLane { lane, reset } => {
                    if let Some(open) = self.lanes.get(lane).filter(|_| !planted!(LeakedLane)) {
                        if reset { open.lane.reset() } else { open.lane.close() }
                    }
                }
            }
        }
        self.send_together(together, &mut frames, &mut controls);
    }

    /// Sends what there is of one kind for a lane. One that is gone takes nothing: its slices are queued
    /// again when that is reported.
    fn send_together(
        &self,
        what: Option<(LaneId, Kind)>,
        frames: &mut Vec<Box<dyn Outgoing>>,
        controls: &mut Vec<u8>,
    ) {
        let (frames, controls) = (std::mem::take(frames), std::mem::take(controls));
        let Some((lane, kind)) = what else { return };
        let Some(Open { lane, .. }) = self.lanes.get(lane) else { return };
        match kind {
            Kind::Slice => lane.send_all(frames),
            Kind::Control => lane.send(&controls),
        }
    }

    /// Returns what the lane is, while there is one.
    fn send(&self, lane: LaneId, frame: &[u8]) -> Option<Transport> {
        let open = self.lanes.get(lane)?;
        open.lane.send(frame);
        Some(open.tie.transport())
    }

    fn replace_control(&self, connection: Option<outreach::Connection>) {
        // The former goes once the lock is given back.
        let _former = std::mem::replace(&mut *self.control.lock(), connection);
    }

    fn answer_waiting(&self, answer: &Answer) {
        for waiting in std::mem::take(&mut *self.waiting.lock()) {
            // Whoever waited may be gone.
            let _ = waiting.send(answer.clone());
        }
    }

    /// The handshake is through and the peer's table is whole, or it failed.
    pub(crate) fn shaken(self: &Arc<Self>, answer: Result<Shaken, Error>) {
        let mut lanes = None;
        let incarnation = answer.map(|shaken| {
            let (peer, offer) = (&self.endpoint, &shaken.offer);
            let (best, spare) = (offer.transport(Means::Best), offer.spare());
            let settings = &self.core.settings;
            lanes =
                Some((settings.bulk_lanes(best), spare.map(|spare| settings.bulk_lanes(spare))));
            let Why { not_local, not_rdma } = &offer.why;
            tracing::info!(
                %peer,
                transport = %best,
                spare = spare.map(Transport::name),
                not_local = not_local.as_deref(),
                not_rdma = not_rdma.as_deref(),
                "met"
            );
            if let Some(why) = &offer.not_in_place {
                tracing::info!(%peer, %why, "foreign memory goes through the socket");
            }
            let is_new = self.incarnation_met() != Some(offer.incarnation);
            if is_new && best == Transport::Tcp && offer.why.is_any() {
                self.core.counts.fell_back();
            }
            *self.offer.lock() = Some(shaken.offer);
            *self.table.write() = shaken.table;
            self.table_changed();
            shaken.incarnation
        });
        match &incarnation {
            Ok(incarnation) => tracing::info!(peer = %self.endpoint, %incarnation, "connected"),
            Err(error) => tracing::warn!(peer = %self.endpoint, %error, "not connected"),
        }
        self.event(|session, now| {
            if let Some((best, spare)) = lanes {
                session.set_bulk_lanes(best, spare);
            }
            session.on_handshake(now, incarnation);
        });
    }

    /// A port of an adapter works again.
    pub(crate) fn try_best(self: &Arc<Self>) {
        let moved = self.offer.lock().as_ref().map_or_else(Vec::new, Offer::spread);
        self.event(|session, now| session.try_best(now, &moved));
    }

    /// Who was there at the last handshake.
    fn incarnation_met(&self) -> Option<Incarnation> {
        self.offer.lock().as_ref().map(|offer| offer.incarnation)
    }

    pub(crate) fn offer(&self) -> Option<Offer> {
        self.offer.lock().clone()
    }

    /// What carries transfers to it by these means, since the last handshake.
    pub(crate) fn transport(&self, means: Means) -> Option<Transport> {
        self.offer.lock().as_ref().map(|offer| offer.transport(means))
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    fn lane_closed(self: &Arc<Self>, lane: LaneId, cause: Option<Error>) {
        self.lanes.remove(lane);
        self.event(|session, now| session.on_lane_down(now, lane, cause));
    }

    fn reply(self: &Arc<Self>, lane: LaneId, reply: Reply) {
        self.event(|session, now| session.on_reply(now, lane, reply));
    }

    /// Nothing more can be dealt with on a lane now.
    fn lane_idle(self: &Arc<Self>, lane: LaneId) {
        // Looked for where it is laid down, and under the same lock: a mark of its own could be taken
        // by one who then finds nothing yet, and be gone when there is something.
        if self.session.lock().has_unsaid(lane) {
            self.event(|session, _| session.on_lane_idle(lane));
        }
    }

    fn out_bytes(&self, lane: LaneId) -> u64 {
        self.session.lock().out_bytes(lane)
    }

    /// The read that waits for the payload of a slice on a lane.
    fn awaits(&self, lane: LaneId, transfer: TransferId, slice: u32) -> Option<Arc<Cargo>> {
        self.session.lock().awaits(lane, transfer, slice).cloned()
    }

    /// Lets every transfer fail, fenced where there is time.
    pub(crate) fn drain(self: &Arc<Self>) {
        self.event(|session, now| session.fail_all(now, &Error::Shutdown));
    }

    /// Whether nothing is under way with it, and no lane is open.
    pub(crate) fn is_at_rest(&self) -> bool {
        let session = self.session.lock();
        session.open_transfers() == 0 && session.open_lanes() == 0 && self.waiting.lock().is_empty()
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.session.lock().open_transfers() == 0
    }

    /// Ends everything now.
    pub(crate) fn close(self: &Arc<Self>) {
        self.event(|session, _| session.close(&Error::Shutdown));
        self.replace_control(None);
        self.answer_waiting(&Err(Error::Shutdown));
    }
}

impl fmt::Debug for PeerInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerInner").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Drop for PeerInner {
    fn drop(&mut self) {
        self.replace_control(None);
        self.alarm.dismiss();
    }
}
