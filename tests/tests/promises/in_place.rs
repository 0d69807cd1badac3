//! What is particular to memory of another process that is read where it lies: whose it is, what stands
//! in the way, and what becomes of it in the middle.

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command as Program, Stdio};
use std::time::Duration;

use kvferry_proto::frame::{Loan, Request, Status};
use kvferry_proto::{GrantId, RegionId};
use kvferry_tests::command::{Answer, Command, Move, Setup};
use kvferry_tests::process::{Process, over, pull, push};
use kvferry_tests::skip;
use kvferry_tests::wire::RawLane;
use kvferry_transport::local::{Beacon, Obstacle};
use kvferry_transport::memory::{Memory, Pages};
use socket2::{Domain, SockAddr, Socket, Type};

use super::by_hand::{LENT, OWN_PIDS, ack, contained, granted_to, write_lent};
use super::copied::{COUNT, large, pairs};
use super::{OVER, start_with};

fn foreign() -> Setup {
    over(OVER, Setup { foreign: true, ..Setup::default() })
}

fn why_not_in_place(process: &mut Process, peer: &Process) -> Option<String> {
    match process.tell(&Command::NotInPlace { address: peer.address.clone() }) {
        Answer::Why(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_that_nobody_can_map_is_copied_by_its_receiver_from_where_it_is() {
    let mut target = start_with(Setup::default(), large(true));
    let mut initiator = start_with(Setup::default(), large(true));
    initiator.connect(&target);
    assert_eq!(why_not_in_place(&mut initiator, &target), None);
    initiator.fill(0..COUNT, 1);
    assert!(initiator.transfer(push(&target, COUNT)).is_by_reference());
    target.assert_holds(0..COUNT, 1);
    target.fill(0..COUNT, 2);
    assert!(initiator.transfer(pull(&target, COUNT)).is_by_reference());
    initiator.assert_holds(0..COUNT, 2);
}

#[test]
fn what_one_process_maps_and_another_cannot_goes_both_ways() {
    let mut mapped = Process::start_over(OVER, Setup::default(), large(true));
    let mut initiator = start_with(Setup::default(), large(true));
    initiator.connect(&mapped);
    initiator.fill(0..COUNT, 1);
    assert!(initiator.transfer(push(&mapped, COUNT)).is_by_reference());
    mapped.assert_holds(0..COUNT, 1);
    mapped.fill(0..COUNT, 2);
    assert!(initiator.transfer(pull(&mapped, COUNT)).is_by_reference());
    initiator.assert_holds(0..COUNT, 2);
}

#[test]
fn a_process_that_another_pid_namespace_hides_is_reached_through_the_socket_and_it_says_so() {
    if let Err(why) = contained(&OWN_PIDS) {
        return skip(&format!("this system gives no pid namespace to a user ({why})"));
    }
    let inside = || Process::start_wrapped("unshare", &OWN_PIDS, foreign(), large(true));
    // Both have the same id, each in its own namespace: neither finds the other by it.
    let (mut one, mut other) = (inside(), inside());
    one.connect(&other);
    let why = why_not_in_place(&mut one, &other).expect("they do not see each other");
    assert!(why.contains("this process cannot") && why.contains("the peer cannot"), "{why}");
    assert!(why.contains("pid namespace"), "{why}");
    one.fill(0..COUNT, 1);
    let end = one.transfer(push(&other, COUNT));
    assert!(end.is_done() && !end.is_by_reference(), "{end:?}");
    assert_eq!(end.transport(), "local");
    other.assert_holds(0..COUNT, 1);
    other.fill(0..COUNT, 2);
    let end = one.transfer(pull(&other, COUNT));
    assert!(end.is_done() && !end.is_by_reference(), "{end:?}");
    one.assert_holds(0..COUNT, 2);
}

#[test]
fn who_sees_the_other_reads_it_in_place_though_the_other_does_not() {
    if let Err(why) = contained(&OWN_PIDS) {
        return skip(&format!("this system gives no pid namespace to a user ({why})"));
    }
    let mut inside = Process::start_wrapped("unshare", &OWN_PIDS, foreign(), large(true));
    let mut outside = start_with(Setup::default(), large(true));
    outside.connect(&inside);
    let why = why_not_in_place(&mut outside, &inside).expect("what is inside does not see out");
    assert!(why.contains("the peer cannot") && !why.contains("this process cannot"), "{why}");
    inside.fill(0..COUNT, 1);
    assert!(outside.transfer(pull(&inside, COUNT)).is_by_reference());
    outside.assert_holds(0..COUNT, 1);
    outside.fill(0..COUNT, 2);
    let end = outside.transfer(push(&inside, COUNT));
    assert!(end.is_done() && !end.is_by_reference(), "{end:?}");
    inside.assert_holds(0..COUNT, 2);
}

#[test]
fn a_source_that_is_stopped_in_the_middle_of_a_copy_is_copied_on() {
    let mut target = start_with(Setup::default(), large(true));
    let mut initiator = start_with(Setup::default(), large(true));
    initiator.connect(&target);
    for round in 0..8_u64 {
        initiator.fill(0..COUNT, round);
        initiator.submit("t", Move { notify: Some("there".into()), ..push(&target, COUNT) });
        std::thread::sleep(Duration::from_micros(round * 300));
        initiator.stop();
        std::thread::sleep(Duration::from_millis(20));
        initiator.wake();
        assert!(initiator.wait("t", Duration::from_secs(20)).is_by_reference(), "round {round}");
        target.assert_holds(0..COUNT, round);
    }
}

/// A network namespace, and a cable to it. Gone when dropped.
struct OwnNetwork(String);

impl OwnNetwork {
    /// Its address there, for whoever has the other end of the cable.
    const INSIDE: &str = "10.213.113.2";

    fn make() -> Result<Self, String> {
        let name = format!("kvf{}", std::process::id());
        let cable = [format!("{name}a"), format!("{name}b")];
        let [outside, inside] = &cable;
        ip(&["netns", "add", &name])?;
        let network = Self(name);
        let name = &network.0;
        ip(&["link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name])?;
        ip(&["addr", "add", "10.213.113.1/30", "dev", outside])?;
        ip(&["link", "set", outside, "up"])?;
        ip(&["-n", name, "addr", "add", &format!("{}/30", Self::INSIDE), "dev", inside])?;
        ip(&["-n", name, "link", "set", inside, "up"])?;
        Ok(network)
    }
}

impl Drop for OwnNetwork {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    match Program::new("ip").args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        other => Err(format!("ip {}: {other:?}", arguments.join(" "))),
    }
}

#[test]
fn processes_in_different_network_namespaces_read_each_other_where_they_share_the_run_directory() {
    let network = match OwnNetwork::make() {
        Ok(network) => network,
        Err(why) => return skip(&format!("this takes root and iproute2 ({why})")),
    };
    let listen = Some(format!("{}:0", OwnNetwork::INSIDE));
    let setup = Setup { listen, ..foreign() };
    let arguments = ["netns", "exec", &network.0];
    let mut inside = Process::start_wrapped("ip", &arguments, setup, large(true));
    let mut outside = start_with(Setup::default(), large(true));
    outside.connect(&inside);
    assert_eq!(why_not_in_place(&mut outside, &inside), None);
    outside.fill(0..COUNT, 1);
    assert!(outside.transfer(push(&inside, COUNT)).is_by_reference());
    inside.assert_holds(0..COUNT, 1);
    inside.fill(0..COUNT, 2);
    assert!(outside.transfer(pull(&inside, COUNT)).is_by_reference());
    outside.assert_holds(0..COUNT, 2);
}

/// A connection to a process's socket that another process has made, which runs `program` now.
fn connected_by(program: &mut Program, to: &Process) -> (UnixStream, Child) {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    let (theirs, address) = (socket.try_clone().unwrap(), RawLane::socket(to));
    let address = SockAddr::unix(address).unwrap();
    // SAFETY: between fork and exec one system call is made, on a descriptor that the child has.
    unsafe { program.pre_exec(move || theirs.connect(&address)) };
    let child = program.stdin(Stdio::piped()).spawn().unwrap();
    (socket.into(), child)
}

const NUMBER: [u8; 16] = *b"sixteen of these";

#[test]
fn a_process_under_the_peers_id_that_is_not_the_peer_is_never_read() {
    let (mut target, grant, region) = granted_to(77);
    let beacon = Beacon::new(NUMBER).unwrap();
    // It lives as long as its input is open.
    let (stream, mut decoy) = connected_by(&mut Program::new("cat"), &target);
    let mut lane = RawLane::over(stream);
    assert_eq!(lane.prove_with(NUMBER, beacon.address()), Err(Obstacle::Stranger));
    // The lane is as good as any. To lend on it in place, where that was refused, ends it.
    let mut lane = lane.greet(&target, 77, 1).unwrap();
    lane.send(&write_lent(1, (grant, region), (LENT, 0)));
    assert_eq!(lane.reply(), ack(1, Status::RegionGone));
    lane.send(&lend(beacon.address(), 4096));
    assert!(lane.is_closed());
    decoy.kill().unwrap();
    decoy.wait().unwrap();
    target.assert_holds(0..8, 5);
}

#[test]
fn the_id_of_a_process_that_has_ended_is_never_read() {
    let (target, ..) = granted_to(77);
    let beacon = Beacon::new(NUMBER).unwrap();
    let (stream, mut ended) = connected_by(&mut Program::new("true"), &target);
    ended.wait().unwrap();
    let found = RawLane::over(stream).prove_with(NUMBER, beacon.address());
    assert!(matches!(found, Err(Obstacle::Gone)), "{found:?}");
}

#[test]
fn an_address_that_does_not_show_the_number_leads_nowhere() {
    let (target, ..) = granted_to(77);
    let other = Beacon::new([9; 16]).unwrap();
    for address in [other.address(), 1, 0x7fff_ffff_f000, u64::MAX, u64::MAX - 8] {
        let found = RawLane::connect_locally(&target).prove_with(NUMBER, address);
        assert_eq!(found, Err(Obstacle::Stranger), "{address:#x}");
    }
    let found = RawLane::connect_locally(&target).prove_with(NUMBER, 0);
    assert_eq!(found, Err(Obstacle::NoBeacon));
}

fn lend(base: u64, length: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    Request::encode_lend(&mut frame, Loan { region: LENT, length, base: Some(base) });
    frame
}

#[test]
fn what_is_not_mapped_fails_the_slice_by_name_and_nothing_else() {
    let (mut target, grant, region) = granted_to(77);
    let memory = Memory::anonymous(8192, Pages::Small).unwrap();
    memory.copy_in(0, &[1; 8192]).unwrap();
    let mut lane = RawLane::open_locally(&target, 77, 1).unwrap();
    // It says that it has more than it has: the pages before the end of the address space are no
    // process's.
    let beyond = 0x7fff_ffff_f000_u64;
    lane.send(&lend(memory.base(), beyond - memory.base()));
    lane.send(&write_lent(1, (grant, region), (LENT, beyond - memory.base() - 4096)));
    assert_eq!(lane.reply(), ack(1, Status::MemoryFault));
    assert_bounds(&mut lane, (grant, region), beyond - memory.base());
    target.assert_holds(0..8, 5);
    lane.send(&write_lent(9, (grant, region), (LENT, 0)));
    assert_eq!(lane.reply(), ack(9, Status::Done));
    assert_eq!(target.wrong(&pairs(0..8), 5), [0]);
}

fn assert_bounds(lane: &mut RawLane, to: (GrantId, RegionId), length: u64) {
    for offset in [length, length - 4095, u64::MAX] {
        lane.send(&write_lent(8, to, (LENT, offset)));
        assert_eq!(lane.reply(), ack(8, Status::OutOfBounds), "{offset:#x}");
    }
}

#[test]
fn a_process_that_cannot_be_recognised_any_more_loses_the_lane_and_nothing_of_it_lands() {
    let (mut target, grant, region) = granted_to(77);
    let memory = Memory::anonymous(8192, Pages::Small).unwrap();
    let mut lane = RawLane::open_locally(&target, 77, 1).unwrap();
    lane.send(&lend(memory.base(), memory.length()));
    lane.send(&write_lent(1, (grant, region), (LENT, 0)));
    assert_eq!(lane.reply(), ack(1, Status::Done));
    target.fill(0..8, 5);
    lane.hide();
    lane.send(&write_lent(2, (grant, region), (LENT, 4096)));
    assert!(lane.is_closed());
    target.assert_holds(0..8, 5);
}
