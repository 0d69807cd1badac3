//! The engines that own segments: connections to them, and who of them did not answer lately.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_engine::{Endpoint, Engine, Incarnation, Peer, RegionId, RemoteRegion, RemoteSpan};
use parking_lot::Mutex;

use crate::decide::load::{Load, Part};
use crate::error::Error;

/// How many regions of others are remembered. More than any pool has; what is forgotten is looked up
/// again.
const KNOWN: usize = 1 << 16;

/// For how long an owner that failed is tried after the others.
const SUSPICION: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Owners {
    engine: Arc<Engine>,
    known: Mutex<HashMap<(Incarnation, RegionId), Known>>,
    suspects: Mutex<HashMap<Incarnation, Instant>>,
}

#[derive(Clone, Debug)]
struct Known {
    peer: Peer,
    region: RemoteRegion,
}

impl Owners {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, known: Mutex::default(), suspects: Mutex::default() }
    }

    /// Whether an owner failed lately.
    pub(crate) fn is_suspect(&self, owner: Incarnation) -> bool {
        self.suspects.lock().get(&owner).is_some_and(|until| Instant::now() < *until)
    }

    /// An owner failed: it is looked up anew, and tried after others for a while.
    pub(crate) fn suspect(&self, owner: Incarnation) {
        self.known.lock().retain(|(known, _), _| *known != owner);
        let now = Instant::now();
        let mut suspects = self.suspects.lock();
        suspects.retain(|_, until| now < *until);
        suspects.insert(owner, now + SUSPICION);
    }

    /// The peer that owns the copies of a load, and where each lies there.
    ///
    /// # Errors
    /// [`Error::OwnerGone`], [`Error::SegmentGone`], and those of a connection.
    pub(crate) async fn places(&self, load: &Load) -> Result<(Peer, Vec<RemoteSpan>), Error> {
        let mut peer = None;
        let mut spans = Vec::with_capacity(load.parts.len());
        for part in &load.parts {
            let known = self.find(part).await?;
            let lent = &part.place.segment.lent;
            // Both were checked to lie within the segment, and the segment not to overflow.
            spans.push(known.region.span(lent.offset + part.place.offset, part.length)?);
            peer = Some(known.peer);
        }
        // A load has at least one part.
        let peer = peer.ok_or(Error::TakenBack)?;
        Ok((peer, spans))
    }

    async fn find(&self, part: &Part) -> Result<Known, Error> {
        let (owner, lent) = (part.place.owner(), &part.place.segment.lent);
        if let Some(known) = self.known.lock().get(&(owner, lent.region)) {
            return Ok(known.clone());
        }
        let endpoint: Endpoint = lent.address.parse()?;
        let peer = self.engine.connect(endpoint).await?;
        let (segment, address) = (lent.segment, Arc::<str>::from(lent.address.as_str()));
        match peer.incarnation() {
            Some(found) if found == owner => {}
            Some(found) => {
                return Err(Error::OwnerGone { segment, address, expected: owner, found });
            }
            None => return Err(Error::SegmentGone { segment, address }),
        }
        let region = peer.regions().into_iter().find(|region| region.id() == lent.region);
        let region = region.ok_or(Error::SegmentGone { segment, address })?;
        let known = Known { peer, region };
        let mut all = self.known.lock();
        if all.len() >= KNOWN {
            all.clear();
        }
        all.insert((owner, lent.region), known.clone());
        Ok(known)
    }
}
