//! Frames of the data path.

use kvferry_proto::frame::{
    Control, Descriptor, FrameError, Hello, Kind, PairAddress, Prefix, Reply, Request,
    SectionWriter, Sections, SliceHead, SliceRequest, Welcome, limits,
};
use kvferry_proto::{GrantId, RegionId};

type Entry = (GrantId, RegionId, Descriptor);

/// A prefix of these bytes whose head is the rest of them, as a lane hands it over.
fn frame(bytes: &[u8]) -> Option<(Prefix, &[u8], Vec<u8>)> {
    let (prefix, head) = bytes.split_first_chunk::<{ Prefix::BYTES }>()?;
    let mut prefix = *prefix;
    prefix[4..8].copy_from_slice(&u32::try_from(head.len()).ok()?.to_le_bytes());
    let mut whole = prefix.to_vec();
    let decoded = Prefix::decode(&prefix).ok()?;
    assert_eq!(decoded.encode(), prefix, "a prefix is encoded to what it was");
    assert!(decoded.head_bytes <= limits::HEAD_BYTES);
    assert!(decoded.payload_bytes <= limits::PAYLOAD_BYTES);
    whole.extend_from_slice(head);
    Some((decoded, head, whole))
}

/// A request: prefix and head.
///
/// # Panics
/// Where a rule is broken.
pub fn request(bytes: &[u8]) {
    let Some((prefix, head, whole)) = frame(bytes) else { return };
    let Ok(request) = Request::decode(&prefix, head) else { return };
    let mut again = Vec::new();
    match request {
        Request::Write(slice) => {
            let payload = if prefix.by_reference { 0 } else { slice.total.bytes };
            assert_eq!(payload, prefix.payload_bytes, "the payload is what is described");
            assert_eq!(slice.sources.is_some(), prefix.by_reference);
            check_slice(&prefix, &slice, &whole);
            return;
        }
        Request::Read(slice) => return check_slice(&prefix, &slice, &whole),
        Request::Notify { transfer, floor, notification } => {
            assert!(notification.len() <= limits::NOTIFICATION_BYTES as usize);
            Request::encode_notify(&mut again, transfer, floor, notification);
        }
        Request::Control(control) => {
            assert!(Reply::decode(&prefix, head).is_err(), "a request is no reply");
            Control::encode(control, &mut again);
        }
        Request::Lend(loan) => Request::encode_lend(&mut again, loan),
        Request::LendKey(loan) => Request::encode_lend_key(&mut again, loan),
        Request::Recall(region) => Request::encode_recall(&mut again, region),
    }
    assert_same_but_flags(&again, &whole);
}

/// The list of remote spans in a read slice: how many sections, then the sections.
///
/// # Panics
/// Where a rule is broken.
pub fn sections(bytes: &[u8]) {
    let Some((count, body)) = bytes.split_first_chunk::<4>() else { return };
    let mut whole = Prefix::new(Kind::Read).encode().to_vec();
    // Transfer, floor, remaining time, slice and checksum; no notification; padding.
    whole.extend_from_slice(&[0; 32]);
    whole.extend_from_slice(count);
    whole.extend_from_slice(&[0; 8]);
    whole.extend_from_slice(body);
    request(&whole);
}

fn check_slice(prefix: &Prefix, slice: &SliceRequest<'_>, whole: &[u8]) {
    let entries = entries(slice.sections);
    let sources = slice.sources.map(self::entries);
    let bytes: u64 = entries.iter().map(|(_, _, descriptor)| descriptor.total_bytes()).sum();
    let spans: u64 = entries.iter().map(|(_, _, descriptor)| u64::from(descriptor.count)).sum();
    assert_eq!((bytes, spans), (slice.total.bytes.into(), slice.total.spans.into()));
    assert!(bytes > 0 && bytes <= limits::PAYLOAD_BYTES.into());
    assert!(spans > 0 && spans <= limits::SPANS.into());
    let notification = slice.notification;
    assert!(notification.is_none_or(|said| said.len() <= limits::NOTIFICATION_BYTES as usize));
    let listed = entries.len() + sources.as_ref().map_or(0, Vec::len);
    super::assert_bounded(listed * size_of::<Entry>(), whole.len());
    if let Some(sources) = &sources {
        let named: u64 = sources.iter().map(|(_, _, descriptor)| descriptor.total_bytes()).sum();
        assert_eq!(named, bytes, "a slice by reference names as much as it describes");
        assert!(notification.is_none(), "and announces nothing");
    }

    let again = encode(slice.head, *prefix, notification, &entries, sources.as_deref());
    // Sections of the same grant and region, one behind the other, are written as one.
    let is_merged = again.len() < whole.len();
    if !is_merged {
        assert_eq!(again, whole, "a slice is encoded to what it was");
    }
    let (start, head) = again.split_first_chunk().expect("a prefix");
    let start = Prefix::decode(start).expect("what is encoded can be decoded");
    let (Ok(Request::Write(twice) | Request::Read(twice)), true) =
        (Request::decode(&start, head), start.kind == prefix.kind)
    else {
        panic!("what is encoded can be decoded")
    };
    assert_eq!((twice.head, twice.total), (slice.head, slice.total));
    assert_eq!(twice.notification, notification);
    assert_eq!(self::entries(twice.sections), entries);
    assert_eq!(twice.sources.map(self::entries), sources);
}

fn entries(mut sections: Sections<'_>) -> Vec<Entry> {
    let mut entries = Vec::new();
    while sections
        .next_section::<FrameError>(|section, descriptor| {
            assert!(descriptor.bytes > 0 && descriptor.count > 0);
            entries.push((section.grant, section.region, descriptor));
            Ok(())
        })
        .expect("the sections were checked")
        .is_some()
    {}
    entries
}

fn encode(
    head: SliceHead,
    prefix: Prefix,
    notification: Option<&[u8]>,
    entries: &[Entry],
    sources: Option<&[Entry]>,
) -> Vec<u8> {
    let push = |writer: &mut SectionWriter<'_>, entries: &[Entry]| {
        for (grant, region, descriptor) in entries {
            writer.push(*grant, *region, *descriptor);
        }
    };
    let mut out = Vec::new();
    let targets = |writer: &mut SectionWriter<'_>| push(writer, entries);
    match sources {
        None => head.encode(&mut out, prefix, notification, targets),
        Some(sources) => head.encode_by_reference(&mut out, prefix.answer_now, targets, |writer| {
            push(writer, sources);
        }),
    }
    out
}

/// A reply: prefix and head.
///
/// # Panics
/// Where a rule is broken.
pub fn reply(bytes: &[u8]) {
    let Some((prefix, head, whole)) = frame(bytes) else { return };
    let Ok(reply) = Reply::decode(&prefix, head) else { return };
    assert!(Request::decode(&prefix, head).is_err(), "a reply is no request");
    let mut again = Vec::new();
    reply.encode(&mut again, prefix.payload_bytes, prefix.checksum);
    assert_same_but_flags(&again, &whole);
}

/// Whether an answer is urgent is the sender's choice, and not part of what it says.
fn assert_same_but_flags(again: &[u8], whole: &[u8]) {
    let without_flags = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[3] = 0;
        bytes
    };
    assert_eq!(without_flags(again), without_flags(whole), "a frame is encoded to what it was");
}

/// What either end of a lane says first.
///
/// # Panics
/// Where a rule is broken.
pub fn hello(bytes: &[u8]) {
    if let Some(bytes) = bytes.first_chunk::<{ Hello::BYTES }>()
        && let Ok(hello) = Hello::decode(bytes)
    {
        assert_eq!(&hello.encode(), bytes, "a hello is encoded to what it was");
    }
    if let Some(bytes) = bytes.first_chunk::<{ Welcome::BYTES }>()
        && let Ok(welcome) = Welcome::decode(bytes)
    {
        assert_eq!(&welcome.encode(), bytes, "a welcome is encoded to what it was");
    }
    if let Some(bytes) = bytes.first_chunk::<{ PairAddress::BYTES }>()
        && let Ok(address) = PairAddress::decode(bytes)
    {
        assert_eq!(&address.encode(), bytes, "a queue pair's address is encoded to what it was");
    }
}
