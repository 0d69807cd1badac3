//! The pool: its messages, what its master does with them, its queries over HTTP, its command line.

use std::time::Duration;

use kv_master::flags::{Flags, translate};
use kv_master::query::{LISTED, METADATA_KEY_BYTES, QUERIED, Query};
use kv_master::state::{Matcher, Moment, Mounting, Pool, Settings, Told};
use kvferry_proto::pool::{
    BATCH, Beat, BeatAnswer, Changes, Exists, ExistsAnswer, Follow, Held, Join, JoinAnswer,
    KEY_BYTES, Key, Lent, Locate, LocateAnswer, Located, Matching, MountPart, NAME_BYTES, Outcome,
    Placed, Put, PutEnd, PutEndAnswer, PutRevoke, PutStart, PutStartAnswer, REGEX_BYTES, REPLICAS,
    Remove, RemoveAnswer, RemoveMatching, Replica, Reserved, SEGMENT_BYTES, SegmentStatus, Tenant,
    Unmount,
};
use kvferry_proto::rpc::pool as rpc;
use prost::Message;

/// Decodes, checks, encodes and decodes again: what was accepted arrives as it was said.
fn round<Wire, Value>(bytes: &[u8]) -> Option<Value>
where
    Wire: Message + Default + From<Value>,
    Value: TryFrom<Wire> + Clone + PartialEq + std::fmt::Debug,
    Value::Error: std::fmt::Debug,
{
    let value = Value::try_from(Wire::decode(bytes).ok()?).ok()?;
    let again = Wire::from(value.clone()).encode_to_vec();
    let twice = Wire::decode(&*again).expect("what is encoded can be decoded");
    assert_eq!(Value::try_from(twice).expect("it was accepted before"), value);
    Some(value)
}

/// A request to a master.
#[derive(Clone, Debug)]
enum Request {
    Join(Join),
    Beat(Beat),
    Mount(MountPart),
    Unmount(Unmount),
    Follow(Follow),
    Exists(Exists),
    Locate(Locate),
    PutStart(PutStart),
    PutEnd(PutEnd),
    PutRevoke(PutRevoke),
    Remove(Remove),
    RemoveMatching(RemoveMatching),
}

fn join(bytes: &[u8]) -> Option<Join> {
    let join = Join::try_from(rpc::JoinRequest::decode(bytes).ok()?).ok()?;
    assert!(join.host.len() <= NAME_BYTES);
    let again = rpc::JoinRequest::from(&join);
    assert_eq!(Join::try_from(again).as_ref(), Ok(&join));
    Some(join)
}

impl Request {
    /// The first byte says which, the rest is the message.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, bytes) = bytes.split_first()?;
        Some(match kind % 12 {
            0 => Self::Join(join(bytes)?),
            1 => Self::Beat(round::<rpc::BeatRequest, _>(bytes)?),
            2 => Self::Mount(round::<rpc::MountPart, _>(bytes)?),
            3 => Self::Unmount(round::<rpc::UnmountRequest, _>(bytes)?),
            4 => Self::Follow(round::<rpc::FollowRequest, _>(bytes)?),
            5 => Self::Exists(round::<rpc::ExistsRequest, _>(bytes)?),
            6 => Self::Locate(round::<rpc::LocateRequest, _>(bytes)?),
            7 => Self::PutStart(round::<rpc::PutStartRequest, _>(bytes)?),
            8 => Self::PutEnd(round::<rpc::PutEndRequest, _>(bytes)?),
            9 => Self::PutRevoke(round::<rpc::PutRevokeRequest, _>(bytes)?),
            10 => Self::Remove(round::<rpc::RemoveRequest, _>(bytes)?),
            _ => Self::RemoveMatching(round::<rpc::RemoveMatchingRequest, _>(bytes)?),
        })
    }

    /// Bytes that are held in its lists, and in its longest names.
    fn held(&self) -> usize {
        match self {
            Self::Mount(MountPart::First { held, lent, .. }) => {
                check_lent(lent);
                check_held(held)
            }
            Self::Mount(MountPart::More(held)) => check_held(held),
            Self::Exists(Exists { keys, .. })
            | Self::Locate(Locate { keys, .. })
            | Self::Remove(Remove { keys, .. }) => {
                check_keys(keys.iter());
                keys.capacity() * size_of::<Key>()
            }
            Self::PutStart(start) => {
                check_keys(start.puts.iter().map(|put| &put.key));
                assert!((1..=REPLICAS).contains(&start.replicas));
                assert!(start.preferred.len() <= REPLICAS && start.client.0 != 0);
                assert!(start.puts.iter().all(|put| (1..=SEGMENT_BYTES).contains(&put.length)));
                start.puts.capacity() * size_of::<Put>()
            }
            Self::PutEnd(end) => {
                check_keys(end.puts.iter().map(|ended| &ended.key));
                assert!(
                    end.puts.iter().all(|put| put.version.0 != 0 && put.lost.len() <= REPLICAS)
                );
                end.puts.capacity() * size_of::<kvferry_proto::pool::Ended>()
            }
            Self::PutRevoke(revoke) => {
                check_keys(revoke.puts.iter().map(|revoked| &revoked.key));
                revoke.puts.capacity() * size_of::<kvferry_proto::pool::Revoked>()
            }
            Self::RemoveMatching(remove) => match &remove.matching {
                Matching::Regex(regex) => {
                    assert!(regex.len() <= REGEX_BYTES);
                    regex.capacity()
                }
                Matching::Prefix(prefix) => {
                    assert!(prefix.len() <= KEY_BYTES);
                    prefix.capacity()
                }
                Matching::All => 0,
            },
            Self::Join(_) | Self::Beat(_) | Self::Unmount(_) | Self::Follow(_) => 0,
        }
    }
}

fn check_keys<'a>(keys: impl ExactSizeIterator<Item = &'a Key>) {
    assert!(keys.len() <= BATCH);
    for key in keys {
        assert!((1..=KEY_BYTES).contains(&key.as_bytes().len()));
        assert_eq!(key.as_str().as_bytes(), key.as_bytes(), "a key is text");
    }
}

fn check_lent(lent: &Lent) {
    assert!((1..=SEGMENT_BYTES).contains(&lent.length) && lent.segment.0 != 0);
    assert!(lent.offset.checked_add(lent.length).is_some());
    assert!(lent.name.len() <= NAME_BYTES && (1..=NAME_BYTES).contains(&lent.address.len()));
}

fn check_held(held: &Vec<Held>) -> usize {
    check_keys(held.iter().map(|held| &held.key));
    for held in held {
        assert!(held.length > 0 && held.offset.checked_add(held.length).is_some());
        assert!(held.version.0 != 0 && held.tenant.as_str().len() <= NAME_BYTES);
        assert!(held.group.as_ref().is_none_or(|group| group.len() <= NAME_BYTES));
    }
    held.capacity() * size_of::<Held>()
}

/// What a client asks of a master: the first byte says what.
///
/// # Panics
/// Where a rule is broken.
pub fn pool_request(bytes: &[u8]) {
    if let Some(request) = Request::decode(bytes) {
        super::assert_bounded(request.held(), bytes.len());
    }
}

/// What a master answers, and tells owners: the first byte says which, the second how many keys were
/// asked about.
///
/// # Panics
/// Where a rule is broken.
pub fn pool_reply(bytes: &[u8]) {
    let [kind, asked, bytes @ ..] = bytes else { return };
    let (asked, came) = (usize::from(*asked), bytes.len());
    match kind % 10 {
        0 => {
            let Ok(wire) = rpc::JoinReply::decode(bytes) else { return };
            let Ok(answer) = JoinAnswer::try_from(wire) else { return };
            assert!(answer.heartbeat_port != 0 && !answer.beat_every.is_zero());
            assert_eq!(JoinAnswer::try_from(rpc::JoinReply::from(&answer)), Ok(answer));
        }
        1 => {
            round::<rpc::BeatReply, BeatAnswer>(bytes);
        }
        2 => {
            let Ok(wire) = rpc::ExistsReply::decode(bytes) else { return };
            let Ok(answer) = ExistsAnswer::from_wire(&wire, asked) else { return };
            assert_eq!(answer.found.len(), asked);
            let again = rpc::ExistsReply::from(&answer);
            assert_eq!(ExistsAnswer::from_wire(&again, asked), Ok(answer));
        }
        3 => {
            let Ok(wire) = rpc::LocateReply::decode(bytes) else { return };
            let Ok(answer) = LocateAnswer::from_wire(wire, asked) else { return };
            assert_eq!(answer.objects.len(), asked);
            let mut held = answer.objects.capacity() * size_of::<Result<Located, Outcome>>();
            for object in answer.objects.iter().flatten() {
                held += check_replicas(&object.replicas, &answer.segments, object.length);
            }
            super::assert_bounded(held + answer.segments.capacity() * size_of::<Placed>(), came);
            let again = rpc::LocateReply::from(&answer);
            assert_eq!(LocateAnswer::from_wire(again, asked), Ok(answer));
        }
        4 => {
            let lengths: Vec<u64> = (1..).take(asked).collect();
            let Ok(wire) = rpc::PutStartReply::decode(bytes) else { return };
            let Ok(answer) = PutStartAnswer::from_wire(wire, &lengths) else { return };
            let mut held = answer.reserved.capacity() * size_of::<Result<Reserved, Outcome>>();
            for (reserved, length) in answer.reserved.iter().zip(&lengths) {
                let Ok(reserved) = reserved else { continue };
                held += check_replicas(&reserved.replicas, &answer.segments, *length);
            }
            super::assert_bounded(held + answer.segments.capacity() * size_of::<Placed>(), came);
            let again = rpc::PutStartReply::from(&answer);
            assert_eq!(PutStartAnswer::from_wire(again, &lengths), Ok(answer));
        }
        5 => {
            let Ok(wire) = rpc::PutEndReply::decode(bytes) else { return };
            let Ok(answer) = PutEndAnswer::from_wire(&wire, asked) else { return };
            let again = rpc::PutEndReply::from(&answer);
            assert_eq!(PutEndAnswer::from_wire(&again, asked), Ok(answer));
        }
        6 => {
            let Ok(wire) = rpc::PutRevokeReply::decode(bytes) else { return };
            let Ok(outcomes) = PutRevoke::outcomes(&wire, asked) else { return };
            assert_eq!(PutRevoke::outcomes(&PutRevoke::answer(&outcomes), asked), Ok(outcomes));
        }
        7 => {
            let Ok(wire) = rpc::RemoveReply::decode(bytes) else { return };
            let Ok(answer) = RemoveAnswer::from_wire(&wire, asked) else { return };
            let again = rpc::RemoveReply::from(&answer);
            assert_eq!(RemoveAnswer::from_wire(&again, asked), Ok(answer));
        }
        8 => {
            let Some(changes) = round::<rpc::Changes, Changes>(bytes) else { return };
            let each = size_of::<kvferry_proto::pool::Change>();
            super::assert_bounded(changes.changes.capacity() * each, came);
        }
        _ => {
            let Ok(wire) = rpc::SegmentStatus::decode(bytes) else { return };
            let Ok(status) = SegmentStatus::try_from(wire) else { return };
            check_lent(&status.placed.lent);
            let again = rpc::SegmentStatus::from(&status);
            assert_eq!(SegmentStatus::try_from(again), Ok(status));
        }
    }
}

/// Every replica is inside a segment that is there. How many bytes are held.
fn check_replicas(replicas: &Vec<Replica>, segments: &[Placed], length: u64) -> usize {
    assert!((1..=REPLICAS).contains(&replicas.len()));
    for replica in replicas {
        let lent = &segments[replica.segment].lent;
        assert!(replica.offset.checked_add(length).is_some_and(|end| end <= lent.length));
    }
    replicas.capacity() * size_of::<Replica>()
}

/// How long each request of [`pool_state`] is after the one before, in milliseconds.
const STEPS: [u64; 4] = [0, 40, 1200, 11_000];

/// Requests as a master's state is given them, one after the other: two bytes say how long each is,
/// and how much later it comes.
///
/// # Panics
/// Where a rule is broken.
pub fn pool_state(bytes: &[u8]) {
    let settings = Settings { recovery: Duration::ZERO, ..Settings::default() };
    let pool = Pool::new(settings, 1);
    let (mut now, mut rest, mut mounting) = (Moment(0), bytes, None);
    for seed in 0..32 {
        let [low, high, more @ ..] = rest else { break };
        let length = usize::from(u16::from_le_bytes([*low, *high & 0x3f])).min(more.len());
        let (request, more) = more.split_at(length);
        rest = more;
        now = now.after(Duration::from_millis(STEPS[usize::from(high >> 6)]));
        if let Some(request) = Request::decode(request) {
            apply(&pool, now, seed, request, &mut mounting);
        }
        pool.look(now);
        pool.tend(now, seed, &mut Told::default());
        let totals = pool.totals();
        assert!(totals.used <= totals.capacity && totals.writing <= totals.keys, "{totals:?}");
    }
    // Whatever it was, it can be removed, and nothing is left.
    if let Some(mounting) = mounting {
        pool.give_up(&mounting);
    }
    for owner in pool.segments().iter().map(|status| status.placed.owner) {
        pool.leave(now, owner);
    }
    pool.tend(now, 0, &mut Told::default());
    let totals = pool.totals();
    assert_eq!((totals.keys, totals.key_bytes, totals.used), (0, 0, 0), "{totals:?}");
    assert_eq!(pool.segments(), []);
}

fn apply(pool: &Pool, now: Moment, seed: u64, request: Request, open: &mut Option<Mounting>) {
    let told = &mut Told::default();
    match request {
        Request::Join(join) => drop(pool.join(now, &join)),
        Request::Beat(beat) => drop(pool.beat(now, beat.client)),
        Request::Mount(MountPart::First { client, lent, is_fenced, held }) => {
            if let Some(open) = open.take() {
                pool.give_up(&open);
            }
            let Ok(Some(mounting)) = pool.mount(now, client, lent, is_fenced) else { return };
            *open = Some(mounting);
            adopt(pool, now, held, open);
        }
        Request::Mount(MountPart::More(held)) => {
            adopt(pool, now, held, open);
            if let Some(open) = open.take() {
                let _ = pool.mounted(&open);
            }
        }
        Request::Unmount(Unmount { client, segment, .. }) => {
            if let Ok(leaving) = pool.unmount(now, client, segment) {
                pool.unmounted(now, &leaving);
            }
        }
        Request::Follow(follow) => {
            let _ = pool.follow(now, follow);
            let _ = pool.changes(follow.client, follow.applied);
        }
        Request::Exists(exists) => {
            assert_eq!(pool.exists(now, &exists).found.len(), exists.keys.len());
        }
        Request::Locate(locate) => {
            let answer = pool.locate(now, &locate);
            assert_eq!(answer.objects.len(), locate.keys.len());
            for object in answer.objects.iter().flatten() {
                check_replicas(&object.replicas, &answer.segments, object.length);
            }
        }
        Request::PutStart(start) => {
            let (answer, wanted) = pool.put_start(now, seed, &start, told);
            for (put, reserved) in start.puts.iter().zip(&answer.reserved) {
                let Ok(reserved) = reserved else { continue };
                check_replicas(&reserved.replicas, &answer.segments, put.length);
            }
            if wanted > 0 {
                pool.make_room(now, seed, wanted, told);
            }
        }
        Request::PutEnd(end) => {
            assert_eq!(pool.put_end(now, &end, told).len(), end.puts.len());
        }
        Request::PutRevoke(revoke) => {
            assert_eq!(pool.put_revoke(now, &revoke).len(), revoke.puts.len());
        }
        Request::Remove(remove) => {
            assert_eq!(pool.remove(now, &remove, told).len(), remove.keys.len());
        }
        Request::RemoveMatching(RemoveMatching { tenant, matching, force }) => {
            let Ok(matcher) = Matcher::new(matching) else { return };
            for shard in 0..kv_master::state::SHARDS {
                pool.remove_matching(now, shard, &tenant, &matcher, force, told);
            }
        }
    }
}

fn adopt(pool: &Pool, now: Moment, held: Vec<Held>, open: &mut Option<Mounting>) {
    let Some(mounting) = open else { return };
    if pool.adopt(now, mounting, held, &mut Told::default()).is_err() {
        pool.give_up(mounting);
        *open = None;
    }
}

/// The parameters of a request over HTTP.
///
/// # Panics
/// Where a rule is broken.
pub fn pool_query(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let query = Query::new(Some(text));
    for name in ["key", "keys", "segment", "tenant", "limit", "format", "force"] {
        let Some(value) = query.get(name) else { continue };
        super::assert_bounded(value.capacity(), bytes.len());
        let encode = |byte: u8| format!("%{byte:02X}");
        let encoded: String = value.bytes().map(encode).collect();
        let again = format!("{name}={encoded}");
        assert_eq!(Query::new(Some(&again)).get(name), Some(value));
    }
    if let Ok(key) = query.key() {
        check_keys([key].iter());
    }
    if let Ok(keys) = query.keys() {
        assert!((1..=QUERIED).contains(&keys.len()));
        for (text, key) in keys {
            assert!(key.is_none_or(|key| key.as_str() == text));
        }
    }
    assert!(query.limit().is_ok_and(|limit| limit <= LISTED) || query.get("limit").is_some());
    assert!(
        query.metadata_key().is_ok_and(|key| (1..=METADATA_KEY_BYTES).contains(&key.len()))
            || query.get("key").is_none_or(|key| !(1..=METADATA_KEY_BYTES).contains(&key.len()))
    );
    assert!(
        query.tenant().is_ok_and(|tenant| !tenant.as_str().is_empty())
            || query.get("tenant").is_some_and(|name| Tenant::new(name).is_err())
    );
}

/// A command line, one argument a line.
///
/// # Panics
/// Where a rule is broken.
pub fn pool_flags(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let arguments: Vec<String> = text.lines().take(32).map(str::to_owned).collect();
    let line = || std::iter::once("kv-master".to_owned()).chain(arguments.iter().cloned());
    let spelled = match translate(line()) {
        Ok(spelled) => spelled,
        Err(refused) => {
            assert!(refused.to_string().contains("Leave it out"), "an error says what to do");
            return;
        }
    };
    assert!(spelled.len() <= arguments.len() + 1, "nothing is made of nothing");
    assert_eq!(translate(spelled.clone()).as_ref(), Ok(&spelled), "what is spelled well stays so");
    let Ok(flags) = <Flags as clap::Parser>::try_parse_from(spelled) else { return };
    let settings = flags.settings();
    assert!((0.0..=1.0).contains(&settings.high_watermark));
    assert!((0.0..=1.0).contains(&settings.eviction_ratio));
    assert!(!settings.read_lease.is_zero() && !settings.reservation.is_zero());
    assert!(settings.clients.suspect < settings.clients.expire);
    assert!(settings.clients.expire < settings.clients.forget);
    assert!((1..=1024).contains(&flags.workers()));
    assert_eq!(flags.listen().metadata.is_some(), flags.enable_http_metadata_server);
}
