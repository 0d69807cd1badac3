//! Whether a put, a get and a remove work, tried on an object of the master's own.

use std::sync::Arc;
use std::time::Duration;

use kvferry_proto::pool::{
    Ended, Join, Key, Locate, Outcome, Put, PutEnd, PutStart, Remove, SegmentId, Tenant,
};
use serde_json::{Value, json};

use crate::server::desk::Desk;
use crate::state::Told;

/// Whose the probe's objects are: nobody else has this tenant in mind.
const TENANT: &str = "kvferry/ready";

/// Whether the master is ready, and what that says.
pub(super) async fn ready(desk: &Arc<Desk>) -> Result<Value, String> {
    if desk.is_closing() {
        return Err("the master is shutting down".to_owned());
    }
    if desk.pool.is_recovering(desk.now()) {
        return Err("recovering: owners may still have to say what they have".to_owned());
    }
    if desk.pool.totals().segments == 0 {
        return Ok(json!({
            "ready": true,
            "segments": 0,
            "proves": "the master answers; no segment is mounted, so that nothing can be put yet",
        }));
    }
    let owner = try_object(desk).await?;
    Ok(json!({
        "ready": true,
        "segments": desk.pool.totals().segments,
        "proves": "room was reserved, an object was found and removed, and the owner of its segment \
                   recorded it; no byte was moved",
        "owner": owner,
    }))
}

/// Puts, finds and removes an object of one byte, which is never written. The owner's incarnation.
async fn try_object(desk: &Arc<Desk>) -> Result<String, String> {
    let failed = |step: &str, why: Outcome| format!("{step}: {why}");
    let client = desk.master;
    let tenant = Tenant::new(TENANT).map_err(|error| error.to_string())?;
    let text = format!("{:016x}", desk.clock.seed());
    let key = Key::try_from(text.as_str()).map_err(|error| error.to_string())?;
    let join = Join { client, host: String::new(), epoch: 0 };
    desk.pool.join(desk.now(), &join).map_err(|why| failed("joining", why))?;
    let start = PutStart {
        client,
        tenant: tenant.clone(),
        puts: vec![Put { key: key.clone(), length: 1, group: None }],
        replicas: 1,
        preferred: Vec::new(),
        is_pinned: false,
        soft_pin: Duration::ZERO,
        at_once: false,
    };
    let answer = desk.put_start(&start).await;
    let (owner, segment): (String, Option<SegmentId>) = match answer.segments.first() {
        Some(placed) => (placed.owner.to_string(), Some(placed.lent.segment)),
        None => (String::new(), None),
    };
    let version = match answer.reserved.into_iter().next() {
        Some(Ok(reserved)) => reserved.version,
        // A pool that is full of what may not be evicted is full, and works.
        Some(Err(Outcome::NoSpace | Outcome::Full)) => {
            return Ok("none: the pool is full".to_owned());
        }
        Some(Err(why)) => return Err(failed("reserving room", why)),
        None => return Err("reserving room: no answer".to_owned()),
    };
    let ended = Ended { key: key.clone(), version, checksum: None, lost: Vec::new() };
    let end = PutEnd { client, tenant: tenant.clone(), puts: vec![ended] };
    let mut told = Told::default();
    let ended = desk.pool.put_end(desk.now(), &end, &mut told);
    let locate = Locate { tenant: tenant.clone(), keys: vec![key.clone()] };
    let found = desk.pool.query(desk.now(), &locate.tenant, &locate.keys[0]);
    let remove = Remove { tenant, keys: vec![key], force: true };
    let removed = desk.pool.remove(desk.now(), &remove, &mut told);
    if ended != [Outcome::Ok] {
        return Err(format!("ending a put: {ended:?}"));
    }
    if let Err(why) = found {
        return Err(failed("finding the object", why));
    }
    if removed != [Outcome::Ok] {
        return Err(format!("removing the object: {removed:?}"));
    }
    if !desk.record(&told).await {
        let segment = segment.map_or(String::new(), |segment| segment.to_string());
        return Err(format!(
            "owner {owner} of segment {segment} lives, and does not record what changes: is it \
             following?"
        ));
    }
    Ok(owner)
}
