//! Memory of another process that is read where it lies. The process is this one, where it does not
//! have to be another.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use kvferry_transport::local::{Beacon, Obstacle, PeerMemory, PeerProcess, PeerSpans};
use kvferry_transport::memory::{Memory, MemoryError, Pages, SpanList};
use socket2::{Domain, SockAddr, Socket, Type};

const NUMBER: [u8; 16] = *b"sixteen of these";

/// This process, found as another would find it.
fn this_process(beacon: &Beacon) -> Arc<PeerProcess> {
    let (here, _there) = UnixStream::pair().unwrap();
    Arc::new(PeerProcess::find(here.as_fd(), beacon.address(), NUMBER).unwrap())
}

fn spans_of(memory: &Memory, spans: &[(u64, u32)]) -> SpanList {
    let mut list = SpanList::new();
    list.attach(memory);
    for (offset, bytes) in spans {
        list.push(*offset, *bytes).unwrap();
    }
    list
}

fn peer_spans_of(memories: &[(&PeerMemory, &[(u64, u32)])]) -> PeerSpans {
    let mut list = PeerSpans::new();
    for (memory, spans) in memories {
        list.attach(memory);
        for (offset, bytes) in *spans {
            list.push(*offset, *bytes).unwrap();
        }
    }
    list
}

fn copy_all(to: &mut SpanList, from: &mut PeerSpans, most: usize) -> Result<(), MemoryError> {
    while to.remaining() > 0 {
        let copied = to.copy_from(from, most)?;
        assert!(copied > 0 && copied <= most, "{copied}");
    }
    assert_eq!(to.copy_from(from, most)?, 0);
    Ok(())
}

fn content(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(memory.length()).unwrap()];
    memory.copy_out(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn spans_of_any_cut_are_read_in_order_in_pieces_of_any_size() {
    const BYTES: usize = 1_000_000;
    let beacon = Beacon::new(NUMBER).unwrap();
    let process = this_process(&beacon);
    let source = Memory::anonymous(BYTES, Pages::Small).unwrap();
    let wanted: Vec<u8> = (0..BYTES).map(|index| index.to_le_bytes()[0] ^ 0x5a).collect();
    source.copy_in(0, &wanted).unwrap();
    let peer = PeerMemory::in_place(&process, source.base(), source.length()).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(BYTES as u64).unwrap();
    for here in [Memory::allocate(BYTES).unwrap(), Memory::map_file(file).unwrap()] {
        // Many more ranges than a call takes, cut differently at both ends.
        let cut = |bytes: usize| -> Vec<(u64, u32)> {
            let starts = (0..BYTES).step_by(bytes);
            starts.map(|at| (at as u64, u32::try_from(bytes.min(BYTES - at)).unwrap())).collect()
        };
        for (ours, theirs, most) in [(700, 1000, 4096), (999, 500, 100_000), (BYTES, 77, 1 << 20)] {
            here.copy_in(0, &vec![0; BYTES]).unwrap();
            let mut to = spans_of(&here, &cut(ours));
            let mut from = peer_spans_of(&[(&peer, &cut(theirs))]);
            copy_all(&mut to, &mut from, most).unwrap();
            assert!(content(&here) == wanted, "{ours} {theirs} {most}");
        }
    }
}

#[test]
fn mapped_memory_and_memory_in_place_mix_in_one_list() {
    let beacon = Beacon::new(NUMBER).unwrap();
    let process = this_process(&beacon);
    let foreign = Memory::anonymous(8192, Pages::Huge).unwrap();
    let shared = Memory::allocate(8192).unwrap();
    foreign.copy_in(0, &[1; 8192]).unwrap();
    shared.copy_in(0, &[2; 8192]).unwrap();
    let in_place = PeerMemory::in_place(&process, foreign.base(), 8192).unwrap();
    let mapped = PeerMemory::map(shared.lend().unwrap().unwrap(), 8192).unwrap();
    let here = Memory::allocate(600).unwrap();
    let mut to = spans_of(&here, &[(0, 250), (250, 350)]);
    let mut from = peer_spans_of(&[
        (&in_place, &[(0, 100), (5000, 50)]),
        (&mapped, &[(8, 100), (4000, 200)]),
        (&in_place, &[(8092, 100)]),
        (&mapped, &[(0, 50)]),
    ]);
    copy_all(&mut to, &mut from, 1 << 20).unwrap();
    let wanted = [vec![1; 150], vec![2; 300], vec![1; 100], vec![2; 50]].concat();
    assert_eq!(content(&here)[..600], wanted);
}

/// Memory of which the second half is not there. It is not unmapped: another thread might map something
/// in its place.
fn half_there(bytes: usize) -> *mut u8 {
    // SAFETY: a fresh mapping, of which the second half is closed to all; nobody else knows of it.
    unsafe {
        let (all, rw) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = libc::mmap(all, bytes, rw, flags, -1, 0);
        assert!(base != libc::MAP_FAILED);
        let second = base.byte_add(bytes / 2);
        assert_eq!(libc::mprotect(second, bytes / 2, libc::PROT_NONE), 0);
        base.cast()
    }
}

#[test]
fn a_range_that_ends_in_its_middle_fails_as_a_whole_and_says_on_which_side() {
    const BYTES: u32 = 64 << 10;
    let beacon = Beacon::new(NUMBER).unwrap();
    let process = this_process(&beacon);
    let broken = half_there(BYTES as usize);
    let whole = Memory::anonymous(BYTES as usize, Pages::Small).unwrap();
    let peer = |base| PeerMemory::in_place(&process, base, BYTES.into()).unwrap();
    for block in [1000, 4096, BYTES] {
        let blocks: Vec<_> = (0..BYTES / block).map(|at| (u64::from(at * block), block)).collect();
        let mut to = spans_of(&whole, &blocks);
        let mut from = peer_spans_of(&[(&peer(broken as u64), &blocks)]);
        let error = copy_all(&mut to, &mut from, 1 << 20).unwrap_err();
        assert!(matches!(error, MemoryError::PeerFault), "{block}: {error}");
        assert!(to.remaining() > 0);

        // SAFETY: no reference into it exists. That half of it is not there is what is tested; it is
        // only touched by system calls here.
        let here = unsafe { Memory::foreign(broken, BYTES as usize) }.unwrap();
        let mut to = spans_of(&here, &blocks);
        let mut from = peer_spans_of(&[(&peer(whole.base()), &blocks)]);
        let error = copy_all(&mut to, &mut from, 1 << 20).unwrap_err();
        assert!(matches!(error, MemoryError::System { .. }), "{block}: {error}");
    }
}

#[test]
fn a_process_whose_number_is_gone_is_not_read_any_more() {
    let beacon = Beacon::new(NUMBER).unwrap();
    let process = this_process(&beacon);
    let source = Memory::anonymous(4096, Pages::Small).unwrap();
    let peer = PeerMemory::in_place(&process, source.base(), 4096).unwrap();
    let here = Memory::allocate(4096).unwrap();
    let read = || {
        let mut from = peer_spans_of(&[(&peer, &[(0, 4096)])]);
        copy_all(&mut spans_of(&here, &[(0, 4096)]), &mut from, 4096)
    };
    read().unwrap();
    drop(beacon);
    let error = read().unwrap_err();
    let MemoryError::OutOfReach { obstacle } = error else { panic!("{error}") };
    assert_eq!(obstacle, Obstacle::Stranger);
}

/// A listener, and an address for it that goes with the directory.
fn listen() -> (UnixListener, SockAddr, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sock");
    let listener = UnixListener::bind(&path).unwrap();
    (listener, SockAddr::unix(path).unwrap(), directory)
}

#[test]
fn a_process_that_made_the_connection_for_another_is_not_taken_for_it_until_it_ends() {
    let (listener, address, _directory) = listen();
    let beacon = Beacon::new(NUMBER).unwrap();
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    let theirs = socket.try_clone().unwrap();
    let mut other = Command::new("cat");
    // SAFETY: between fork and exec one system call is made, on a descriptor that the child has.
    unsafe { other.pre_exec(move || theirs.connect(&address)) };
    let mut other = other.stdin(Stdio::piped()).spawn().unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let find = || PeerProcess::find(accepted.as_fd(), beacon.address(), NUMBER).unwrap_err();
    assert_eq!(find(), Obstacle::Stranger);
    drop(other.stdin.take());
    other.wait().unwrap();
    assert_eq!(find(), Obstacle::Gone);
}

#[test]
fn a_forked_child_does_not_show_its_parents_number() {
    let (listener, address, _directory) = listen();
    let beacon = Beacon::new(NUMBER).unwrap();
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    // SAFETY: the child makes system calls on what it inherits, and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failed = socket.connect(&address).is_err();
        // Until the parent has looked.
        let _ = (&socket).read(&mut [0]);
        // SAFETY: ends the child, without what the parent does at its end.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    assert!(child > 0);
    let (accepted, _) = listener.accept().unwrap();
    // The same address is mapped there, with other content.
    let found = PeerProcess::find(accepted.as_fd(), beacon.address(), NUMBER);
    assert_eq!(found.unwrap_err(), Obstacle::Stranger);
    drop((accepted, socket));
    let mut status = 0;
    // SAFETY: a child of ours that nobody else waits for; the status is borrowed for the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn what_one_end_finds_is_understood_by_the_other() {
    assert_eq!(Obstacle::decode(Obstacle::encode(Ok(()))), Ok(()));
    for obstacle in [
        Obstacle::OtherNamespace,
        Obstacle::Forbidden,
        Obstacle::Unsupported,
        Obstacle::Stranger,
        Obstacle::Gone,
        Obstacle::NoBeacon,
        Obstacle::Exhausted,
    ] {
        assert_eq!(Obstacle::decode(Obstacle::encode(Err(obstacle))), Err(obstacle));
    }
    // Of a later version.
    assert_eq!(Obstacle::decode(200), Err(Obstacle::Exhausted));
}

#[test]
fn what_is_no_range_of_addresses_is_not_lent() {
    let beacon = Beacon::new(NUMBER).unwrap();
    let process = this_process(&beacon);
    for (base, length) in [(4096, 0), (u64::MAX, 2), (1, u64::MAX)] {
        let lent = PeerMemory::in_place(&process, base, length);
        assert!(matches!(lent, Err(MemoryError::NotLent { .. })), "{base} {length}");
    }
}
