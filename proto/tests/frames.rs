//! What is written is what is read, and no input is anything but a value or an error.

use kvferry_proto::frame::{
    Control, Descriptor, FrameError, Hello, Kind, Loan, Prefix, Reply, Request, Section,
    SectionWriter, SliceHead, Status, Welcome, limits,
};
use kvferry_proto::message::{MessageError, Ticket, TicketSpan};
use kvferry_proto::{Access, GrantId, Incarnation, LaneId, RegionId, TransferId};
use proptest::collection::vec;
use proptest::prelude::*;

type Entry = (GrantId, RegionId, Descriptor);

fn entry() -> impl Strategy<Value = Entry> {
    (0..4_u32, 0..3_u32, any::<u64>(), 1..2048_u32, 1..8_u32, any::<u64>()).prop_map(
        |(slot, generation, offset, bytes, count, stride)| {
            let stride = if count == 1 { 0 } else { stride };
            (
                GrantId::new(slot, 77),
                RegionId { slot, generation },
                Descriptor { offset, bytes, count, stride },
            )
        },
    )
}

fn split(frame: &[u8]) -> (Prefix, &[u8]) {
    let (prefix, head) = frame.split_first_chunk::<{ Prefix::BYTES }>().expect("a prefix");
    let prefix = Prefix::decode(prefix).expect("a valid prefix");
    assert_eq!(prefix.head_bytes as usize, head.len());
    (prefix, head)
}

fn encode_slice(
    head: SliceHead,
    prefix: Prefix,
    note: Option<&[u8]>,
    entries: &[Entry],
) -> Vec<u8> {
    let mut out = Vec::new();
    head.encode(&mut out, prefix, note, |writer| {
        for (grant, region, descriptor) in entries {
            writer.push(*grant, *region, *descriptor);
        }
    });
    out
}

proptest! {
    #[test]
    fn a_slice_comes_back_as_it_was_written(
        entries in vec(entry(), 1..64),
        note in proptest::option::of(vec(any::<u8>(), 0..100)),
        transfer in any::<u64>(), floor in any::<u64>(), slice in any::<u32>(),
        remaining_us in any::<u64>(), crc32c in any::<u32>(),
    ) {
        let head = SliceHead {
            transfer: TransferId(transfer), floor: TransferId(floor), slice, remaining_us, crc32c,
        };
        let bytes: u64 = entries.iter().map(|(_, _, d)| d.total_bytes()).sum();
        let payload_bytes = u32::try_from(bytes).unwrap();
        let prefix = Prefix { payload_bytes, checksum: true, ..Prefix::new(Kind::Write) };
        let frame = encode_slice(head, prefix, note.as_deref(), &entries);
        let (prefix, body) = split(&frame);
        let Request::Write(mut request) = Request::decode(&prefix, body).unwrap() else {
            panic!("not a write")
        };
        prop_assert_eq!(request.head, head);
        prop_assert_eq!(request.notification, note.as_deref());
        prop_assert_eq!(u64::from(request.total.bytes), bytes);
        let mut read = Vec::new();
        while request.sections.next_section::<FrameError>(|section, descriptor| {
            read.push((section.grant, section.region, descriptor));
            Ok(())
        }).unwrap().is_some() {}
        prop_assert_eq!(read, entries);
    }

    #[test]
    fn no_bytes_are_more_than_an_error(
        kind in any::<u8>(), flags in any::<u8>(), payload in any::<u32>(),
        mut head in vec(any::<u8>(), 0..400), small in any::<bool>(),
    ) {
        // Small values in the counts reach deeper than random ones, which fail at the first limit.
        if small {
            for byte in head.iter_mut().skip(24) { *byte &= 3; }
        }
        let mut bytes = Prefix::new(Kind::Ping).encode();
        bytes[2] = kind;
        bytes[3] = flags;
        bytes[8..12].copy_from_slice(&payload.to_le_bytes());
        if let Ok(prefix) = Prefix::decode(&bytes) {
            let _ = Request::decode(&prefix, &head);
            let _ = Reply::decode(&prefix, &head);
        }
        let _ = Ticket::decode(&head);
    }

    #[test]
    fn a_damaged_slice_never_describes_more_than_its_payload(
        entries in vec(entry(), 1..16), at in any::<prop::sample::Index>(), bit in 0..8_u32,
    ) {
        let head = SliceHead {
            transfer: TransferId(1), floor: TransferId(1), slice: 0, remaining_us: 1, crc32c: 0,
        };
        let bytes: u64 = entries.iter().map(|(_, _, d)| d.total_bytes()).sum();
        let prefix = Prefix {
            payload_bytes: u32::try_from(bytes).unwrap(), ..Prefix::new(Kind::Write)
        };
        let mut frame = encode_slice(head, prefix, None, &entries);
        let at = Prefix::BYTES + at.index(frame.len() - Prefix::BYTES);
        frame[at] ^= 1 << bit;
        let (prefix, body) = split(&frame);
        if let Ok(Request::Write(request)) = Request::decode(&prefix, body) {
            prop_assert_eq!(request.total.bytes, prefix.payload_bytes);
            prop_assert!(request.total.spans <= limits::SPANS);
        }
    }
}

#[test]
fn controls_and_replies_come_back_as_they_were_written() {
    let controls = [
        Control::Landed { transfer: TransferId(3), slice: 9 },
        Control::Cancel { transfer: TransferId(u64::MAX), floor: TransferId(8) },
        Control::FenceLane { lane: LaneId(4) },
        Control::Ping { nonce: 1, floor: TransferId(2) },
    ];
    for control in controls {
        let mut frame = Vec::new();
        control.encode(&mut frame);
        let (prefix, head) = split(&frame);
        match Request::decode(&prefix, head).unwrap() {
            Request::Control(read) => assert_eq!(read, control),
            other => panic!("{other:?}"),
        }
        assert!(matches!(Reply::decode(&prefix, head), Err(FrameError::Direction { .. })));
    }
    let transfer = TransferId(5);
    let replies = [
        Reply::Ack { transfer, slice: 1, status: Status::OutOfBounds },
        Reply::Ack { transfer, slice: 1, status: Status::RdmaOnly },
        Reply::Data { transfer, slice: 2, crc32c: 3 },
        Reply::Held { transfer, slice: 4, status: Status::HeldUntilLanded },
        Reply::Notified { transfer, status: Status::Backpressure },
        Reply::Cancelled { transfer },
        Reply::LaneFenced { lane: LaneId(6) },
        Reply::Pong { nonce: 7 },
        Reply::Lent(Loan { region: REGION, length: 1, base: None }),
        Reply::Lent(Loan { region: REGION, length: 1, base: Some(u64::MAX - 1) }),
        Reply::Recalled(REGION),
    ];
    for reply in replies {
        let mut frame = Vec::new();
        reply.encode_plain(&mut frame);
        let (prefix, head) = split(&frame);
        assert_eq!(Reply::decode(&prefix, head).unwrap(), reply);
        assert!(matches!(Request::decode(&prefix, head), Err(FrameError::Direction { .. })));
        assert!(matches!(
            Reply::decode(&prefix, &head[..head.len() - 1]),
            Err(FrameError::Truncated { .. })
        ));
    }
}

#[test]
fn lengths_above_their_limits_are_refused_before_anything_is_allocated() {
    let too_long = Prefix { head_bytes: limits::HEAD_BYTES + 1, ..Prefix::new(Kind::Write) };
    assert!(matches!(Prefix::decode(&too_long.encode()), Err(FrameError::Limit { .. })));
    let payload = Prefix { payload_bytes: limits::PAYLOAD_BYTES + 1, ..Prefix::new(Kind::Write) };
    assert!(matches!(Prefix::decode(&payload.encode()), Err(FrameError::Limit { .. })));
    let unexpected = Prefix { payload_bytes: 1, ..Prefix::new(Kind::Ping) };
    assert!(matches!(Prefix::decode(&unexpected.encode()), Err(FrameError::Limit { .. })));
}

const FIRST_SLICE: SliceHead = SliceHead {
    transfer: TransferId(1),
    floor: TransferId(1),
    slice: 0,
    remaining_us: 1,
    crc32c: 0,
};

#[test]
fn a_descriptor_whose_spans_overflow_the_slice_is_refused() {
    let huge = Descriptor { offset: 0, bytes: u32::MAX, count: u32::MAX, stride: 1 };
    let entries = [(GrantId(1), RegionId { slot: 0, generation: 1 }, huge)];
    let frame = encode_slice(FIRST_SLICE, Prefix::new(Kind::Read), None, &entries);
    let (prefix, body) = split(&frame);
    assert!(matches!(Request::decode(&prefix, body), Err(FrameError::Limit { .. })));
}

#[test]
fn a_lane_hello_and_its_welcome_come_back_as_they_were_written() {
    let hello = Hello {
        version: 1,
        initiator: Incarnation(5),
        target: Incarnation(6),
        session: 8,
        lane: LaneId(7),
        ping_ms: 9,
        with_pair: false,
    };
    assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
    let welcome = Welcome { target: Incarnation(6), refusal: None };
    assert_eq!(Welcome::decode(&welcome.encode()).unwrap(), welcome);
    let mut http = [0; Hello::BYTES];
    http[..16].copy_from_slice(b"GET / HTTP/1.1\r\n");
    assert!(matches!(Hello::decode(&http), Err(FrameError::Magic { .. })));
}

#[test]
fn a_ticket_comes_back_as_it_was_written_and_a_foreign_one_says_what_is_wrong() {
    let region = RegionId { slot: 2, generation: 3 };
    let ticket = Ticket {
        owner: Incarnation(9),
        grant: GrantId::new(4, 5),
        access: Access::Write,
        remaining_ms: 1500,
        spans: vec![TicketSpan { region, offset: 64, length: 128 }],
    };
    assert_eq!(Ticket::decode(&ticket.encode()).unwrap(), ticket);
    let none = Ticket { grant: GrantId(0), ..ticket.clone() };
    assert_eq!(
        Ticket::decode(&none.encode()),
        Err(MessageError::Missing { message: "Ticket", field: "grant" })
    );
    let span = TicketSpan { region, offset: u64::MAX, length: 2 };
    let overflowing = Ticket { spans: vec![span], ..ticket };
    assert!(matches!(Ticket::decode(&overflowing.encode()), Err(MessageError::Value { .. })));
}

const REGION: RegionId = RegionId { slot: 3, generation: 8 };

fn by_reference(described: u32, sources: &[u32]) -> Vec<u8> {
    let span = |bytes| Descriptor { offset: 64, bytes, count: 1, stride: 0 };
    let mut frame = Vec::new();
    let target = |writer: &mut SectionWriter<'_>| writer.push(GrantId(9), REGION, span(described));
    FIRST_SLICE.encode_by_reference(&mut frame, true, target, |writer| {
        for bytes in sources {
            writer.push(GrantId(0), REGION, span(*bytes));
        }
    });
    frame
}

#[test]
fn a_slice_by_reference_names_both_sides_and_as_many_bytes_on_each() {
    let frame = by_reference(300, &[100, 200]);
    let (prefix, head) = split(&frame);
    assert!(prefix.by_reference && prefix.answer_now && prefix.payload_bytes == 0);
    let Request::Write(request) = Request::decode(&prefix, head).unwrap() else {
        panic!("not a write")
    };
    assert_eq!((request.total.bytes, request.total.spans), (300, 1));
    let mut sources = request.sources.expect("it names its source");
    let mut read = Vec::new();
    let visit = |section: &Section<'_>, descriptor: Descriptor| {
        read.push((section.region, descriptor.bytes));
        Ok::<_, FrameError>(())
    };
    sources.next_section(visit).unwrap();
    assert_eq!(read, [(REGION, 100), (REGION, 200)]);
    for (described, sources) in [(300, &[100][..]), (300, &[100, 201]), (300, &[])] {
        let frame = by_reference(described, sources);
        let (prefix, head) = split(&frame);
        let decoded = Request::decode(&prefix, head);
        assert!(matches!(decoded, Err(FrameError::PayloadMismatch { .. })), "{sources:?}");
    }
}

#[test]
fn a_slice_by_reference_has_no_payload_no_checksum_and_no_notification() {
    let frame = by_reference(8, &[8]);
    let (prefix, head) = split(&frame);
    let refused = |prefix: Prefix| Prefix::decode(&prefix.encode()).is_err();
    assert!(!refused(prefix));
    assert!(refused(Prefix { payload_bytes: 8, ..prefix }));
    assert!(refused(Prefix { checksum: true, ..prefix }));
    for kind in [Kind::Ping, Kind::Notify, Kind::Data, Kind::Ack, Kind::Lend] {
        assert!(refused(Prefix { by_reference: true, ..Prefix::new(kind) }), "{kind:?}");
    }
    // One that would be announced before its source may change.
    let mut announced = head.to_vec();
    announced[36] = 1;
    assert!(Request::decode(&prefix, &announced).is_err());
    // And sources without the flag.
    let plain = Prefix { by_reference: false, payload_bytes: 8, ..prefix };
    assert!(Request::decode(&plain, head).is_err());
}

#[test]
fn loans_come_back_as_they_were_written_each_in_its_direction() {
    for base in [None, Some(1), Some(u64::MAX - 4096)] {
        let loan = Loan { region: REGION, length: 4096, base };
        let mut lend = Vec::new();
        Request::encode_lend(&mut lend, loan);
        let (prefix, head) = split(&lend);
        let decoded = Request::decode(&prefix, head);
        assert!(matches!(decoded, Ok(Request::Lend(found)) if found == loan), "{decoded:?}");
        assert!(matches!(Reply::decode(&prefix, head), Err(FrameError::Direction { .. })));
        assert!(Request::decode(&prefix, &head[1..]).is_err());
        let nothing = [&head[..8], &[0; 8]].concat();
        assert!(Request::decode(&prefix, &nothing).is_err(), "a region of no bytes");
        for nowhere in [0, u64::MAX - 4095] {
            let nowhere = [&head[..16], &nowhere.to_le_bytes()].concat();
            assert!(Request::decode(&prefix, &nowhere).is_err(), "no range of addresses");
        }
    }
    let mut recall = Vec::new();
    Request::encode_recall(&mut recall, REGION);
    let (prefix, head) = split(&recall);
    let decoded = Request::decode(&prefix, head);
    assert!(matches!(decoded, Ok(Request::Recall(found)) if found == REGION));
    assert!(matches!(Reply::decode(&prefix, head), Err(FrameError::Direction { .. })));
}
