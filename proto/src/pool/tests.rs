//! What is converted to the wire and back is the same, and what no sender writes is refused.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message as _;
use prost::bytes::Bytes;

use super::*;
use crate::identity::{Incarnation, RegionId};
use crate::rpc::pool as rpc;

fn lent() -> Lent {
    Lent {
        segment: SegmentId(7),
        name: "host-a".to_owned(),
        address: "host-a:7001".to_owned(),
        region: RegionId { slot: 3, generation: 2 },
        offset: 4096,
        length: 1 << 30,
    }
}

fn key() -> impl Strategy<Value = Key> {
    "[^\u{0}]{1,40}".prop_map(|text| Key::try_from(text.as_str()).unwrap())
}

fn held() -> impl Strategy<Value = Held> {
    let rest = (any::<Option<u32>>(), any::<bool>(), "[a-z]{0,4}");
    (key(), 1..u64::MAX, 0..1_u64 << 40, 1..1_u64 << 40, rest).prop_map(
        |(key, version, offset, length, (checksum, is_pinned, group))| Held {
            tenant: Tenant::new(group.clone()).unwrap(),
            key,
            version: Version(version),
            offset,
            length,
            checksum,
            is_pinned,
            group: (!group.is_empty()).then_some(group),
        },
    )
}

proptest! {
    #[test]
    fn what_an_owner_says_of_its_segment_arrives_as_it_was_said(held in vec(held(), 0..8)) {
        let (client, is_fenced) = (Incarnation(9), true);
        let first = MountPart::First { client, lent: lent(), is_fenced, held: held.clone() };
        for part in [first, MountPart::More(held)] {
            let wire = rpc::MountPart::from(part.clone()).encode_to_vec();
            let read = rpc::MountPart::decode(Bytes::from(wire)).unwrap();
            prop_assert_eq!(MountPart::try_from(read).unwrap(), part);
        }
    }

    #[test]
    fn changes_arrive_in_their_order(held in vec(held(), 0..8), number: u64) {
        let keep = |held| Change { segment: SegmentId(7), what: What::Keep(held) };
        let gone = |version| Change { segment: SegmentId(8), what: What::Drop(version) };
        let versions: Vec<_> = held.iter().map(|held| held.version).collect();
        let changes = held.into_iter().map(keep).chain(versions.into_iter().map(gone)).collect();
        let changes = Changes { number, changes };
        prop_assert_eq!(Changes::try_from(rpc::Changes::from(changes.clone())), Ok(changes));
    }

    #[test]
    fn any_bytes_are_a_request_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        let _ = rpc::MountPart::decode(bytes.clone()).map(MountPart::try_from);
        let _ = rpc::PutStartRequest::decode(bytes.clone()).map(PutStart::try_from);
        let _ = rpc::PutEndRequest::decode(bytes.clone()).map(PutEnd::try_from);
        let _ = rpc::ExistsRequest::decode(bytes.clone()).map(Exists::try_from);
        let _ = rpc::RemoveMatchingRequest::decode(bytes.clone()).map(RemoveMatching::try_from);
        let _ = rpc::LocateReply::decode(bytes).map(|reply| LocateAnswer::from_wire(reply, 1));
    }
}

#[test]
fn a_put_arrives_as_it_was_asked_for() {
    let put = Put { key: Key::try_from("a").unwrap(), length: 5, group: Some("g".to_owned()) };
    let start = PutStart {
        client: Incarnation(4),
        tenant: Tenant::default(),
        puts: vec![put],
        replicas: 2,
        preferred: vec!["host-a".to_owned()],
        is_pinned: true,
        soft_pin: Duration::from_secs(3),
        at_once: true,
    };
    let wire = rpc::PutStartRequest::from(start.clone());
    assert_eq!(PutStart::try_from(wire.clone()), Ok(start));
    let none = rpc::PutStartRequest { replicas: 0, ..wire.clone() };
    assert_eq!(PutStart::try_from(none).map(|start| start.replicas), Ok(1));
    assert!(PutStart::try_from(rpc::PutStartRequest { replicas: 17, ..wire }).is_err());
}

#[test]
fn an_answer_with_another_number_of_objects_or_a_replica_outside_is_refused() {
    let placed = Placed { owner: Incarnation(9), lent: lent(), host: String::new() };
    let located = |offset| {
        Ok(Located {
            length: 100,
            version: Version(1),
            checksum: Some(5),
            replicas: vec![Replica { segment: 0, offset }],
        })
    };
    let answer = |offset| LocateAnswer {
        objects: vec![located(offset), Err(Outcome::NotFound)],
        segments: vec![placed.clone()],
        lease: Duration::from_millis(1500),
    };
    let last = (1 << 30) - 100;
    let read = |answer: &LocateAnswer, count| LocateAnswer::from_wire(answer.into(), count);
    assert_eq!(read(&answer(last), 2), Ok(answer(last)));
    assert!(read(&answer(last), 3).is_err());
    assert!(read(&answer(last + 1), 2).is_err());
    let mut nowhere: rpc::LocateReply = (&answer(0)).into();
    nowhere.objects[0].replicas[0].segment = 1;
    assert!(LocateAnswer::from_wire(nowhere, 2).is_err());
}

#[test]
fn every_outcome_has_a_number_on_the_wire_and_in_the_old_dialect() {
    for outcome in Outcome::ALL {
        assert_eq!(Outcome::from_wire("test", outcome.to_wire()), Ok(outcome));
        assert_eq!(outcome.mooncake_code() == 0, outcome == Outcome::Ok);
        assert!(outcome.mooncake_code() <= 0);
        assert!(!outcome.is_backpressure() || outcome.is_retryable());
    }
    assert!(Outcome::from_wire("test", 0).is_err());
    assert!(Outcome::from_wire("test", 99).is_err());
}

#[test]
fn a_key_is_text_of_bounded_length() {
    assert!(Key::try_from("").is_err());
    assert!(Key::new(vec![0xff]).is_err());
    assert!(Key::new(vec![b'k'; KEY_BYTES]).is_ok());
    assert!(Key::new(vec![b'k'; KEY_BYTES + 1]).is_err());
}

#[test]
fn versions_of_a_later_epoch_are_higher() {
    let (first, second) = (Version::first(1), Version::first(2));
    assert!(second > first && second.epoch() == 2);
    assert!(Version(first.0 + (1 << 39)) < second);
    assert_eq!(Version::first(Version::MOST_EPOCH).epoch(), Version::MOST_EPOCH);
}
