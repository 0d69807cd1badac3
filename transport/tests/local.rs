//! What two processes of one host rely on: the directory where they meet, the proof, memory that
//! is lent.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File, Permissions};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use kvferry_transport::local::{
    Challenge, PeerMemory, PeerSpans, RunDirectory, RunDirectoryError, answer, is_same_user,
    receive_greeting, send_greeting,
};
use kvferry_transport::memory::{Memory, MemoryError, SpanList};

const NUMBER: [u8; 16] = *b"sixteen of these";

#[test]
fn whoever_passes_descriptors_can_meet_the_challenge() {
    let (here, there) = UnixStream::pair().unwrap();
    let challenge = Challenge::new(NUMBER).unwrap();
    send_greeting(here.as_fd(), &challenge).unwrap();
    let passed = receive_greeting(there.as_fd()).unwrap();
    let answer = answer(passed).unwrap();
    assert!(challenge.is_met_by(answer));
    assert!(!challenge.is_met_by([0; 16]));
    assert!(is_same_user(here.as_fd()).unwrap());
}

#[test]
fn a_relay_that_passes_bytes_alone_cannot() {
    let (mut relay, there) = UnixStream::pair().unwrap();
    // What a relay got of the greeting.
    relay.write_all(b"kvfLOCAL").unwrap();
    let error = receive_greeting(there.as_fd()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("descriptor"), "{error}");
    relay.write_all(b"GET / HT").unwrap();
    assert_eq!(receive_greeting(there.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_challenge_that_could_block_or_change_is_not_read() {
    let (pipe, _writer) = io::pipe().unwrap();
    let file = tempfile::tempfile().unwrap();
    for other in [OwnedFd::from(pipe), OwnedFd::from(file)] {
        assert_eq!(answer(other).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
    let lendable = Memory::allocate(4096).unwrap().lend().unwrap().unwrap();
    assert!(answer(lendable).is_err(), "its owner can still write to it");
}

#[test]
fn what_is_lent_is_read_where_it_changes_and_never_written() {
    let memory = Memory::allocate(3 << 20).unwrap();
    memory.copy_in(5000, b"before").unwrap();
    let lent = memory.lend().unwrap().expect("this kernel seals against writes");

    // Nobody who has the descriptor can write, cut it short, or map it writable.
    let mut file = File::from(lent.try_clone().unwrap());
    assert!(file.write(b"x").is_err());
    assert!(file.set_len(0).is_err());
    assert!(Memory::map_file(file).is_err());

    let peer = PeerMemory::map(lent, 3 << 20).unwrap();
    memory.copy_in(5000, b"behind").unwrap();
    let here = Memory::allocate(4096).unwrap();
    assert_eq!(copied(&here, &peer, &[(5000, 6)], 6), b"behind");
    // The mapping outlives the memory that was lent.
    drop(memory);
    assert_eq!(copied(&here, &peer, &[(5000, 6)], 6), b"behind");
}

/// Copies spans of a peer's memory one behind the other, and returns what that gave.
fn copied(here: &Memory, peer: &PeerMemory, spans: &[(u64, u32)], most: usize) -> Vec<u8> {
    let mut from = PeerSpans::new();
    from.attach(peer);
    for (offset, bytes) in spans {
        from.push(*offset, *bytes).unwrap();
    }
    let bytes = usize::try_from(from.bytes()).unwrap();
    let mut to = SpanList::new();
    to.attach(here);
    to.push(0, u32::try_from(bytes).unwrap()).unwrap();
    let mut done = 0;
    while to.remaining() > 0 {
        let step = to.copy_from(&mut from, most).unwrap();
        assert!(step > 0 && step <= most, "{step}");
        done += step;
    }
    assert_eq!((done, to.copy_from(&mut from, most).unwrap()), (bytes, 0));
    let mut result = vec![0; bytes];
    here.copy_out(0, &mut result).unwrap();
    result
}

#[test]
fn spans_of_any_cut_are_copied_in_order_in_pieces_of_any_size() {
    const BYTES: u32 = 2_000_000;
    let content: Vec<u8> = (0..BYTES).map(|index| (index % 251).to_le_bytes()[0]).collect();
    let memory = Memory::allocate(content.len()).unwrap();
    memory.copy_in(0, &content).unwrap();
    let peer = PeerMemory::map(memory.lend().unwrap().unwrap(), memory.length()).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(content.len() as u64).unwrap();
    for here in [Memory::allocate(content.len()).unwrap(), Memory::map_file(file).unwrap()] {
        for (spans, most) in [
            (vec![(10, 1), (0, 3), (1_000_000, 70_000)], 4096),
            (vec![(3, 400_000), (500_001, 300_017), (7, 90_000)], 100_000),
            (vec![(0, BYTES)], 1 << 30),
        ] {
            let mut wanted = Vec::new();
            for (offset, bytes) in &spans {
                let at = wanted.len();
                wanted.resize(at + *bytes as usize, 0);
                memory.copy_out(*offset, &mut wanted[at..]).unwrap();
            }
            assert!(copied(&here, &peer, &spans, most) == wanted, "{spans:?}");
        }
    }
}

#[test]
fn what_a_peer_says_of_its_memory_is_not_believed() {
    let memory = Memory::allocate(4096).unwrap();
    let lent = || memory.lend().unwrap().unwrap();
    let not_lent = |result| matches!(result, Err(MemoryError::NotLent { .. }));
    assert!(not_lent(PeerMemory::map(lent(), u64::MAX)));
    assert!(not_lent(PeerMemory::map(lent(), (2 << 20) + 1)), "it is 2 MiB long");
    assert!(not_lent(PeerMemory::map(lent(), 0)));
    // A file can be cut short under its reader, and a pipe cannot be mapped.
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[0; 4096]).unwrap();
    file.rewind().unwrap();
    assert!(not_lent(PeerMemory::map(file.into(), 4096)));
    assert!(not_lent(PeerMemory::map(io::pipe().unwrap().0.into(), 4096)));

    let peer = PeerMemory::map(lent(), 4096).unwrap();
    let mut spans = PeerSpans::new();
    assert!(spans.push(0, 1).is_err(), "nothing is attached");
    spans.attach(&peer);
    spans.push(4095, 1).unwrap();
    for (offset, bytes) in [(4096, 1), (0, 4097), (u64::MAX, 1), (1 << 40, 1)] {
        assert!(spans.push(offset, bytes).is_err(), "{offset} {bytes}");
    }
    assert_eq!(spans.bytes(), 1);
}

#[test]
fn foreign_memory_and_files_are_lent_to_nobody() {
    let mut bytes = vec![0_u8; 4096];
    // SAFETY: the vector outlives the handle, and nobody else uses it meanwhile.
    let foreign = unsafe { Memory::foreign(bytes.as_mut_ptr(), bytes.len()) }.unwrap();
    assert!(foreign.lend().unwrap().is_none());
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_run_directory_is_made_for_its_user_alone() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("kvferry");
    RunDirectory::open(path.clone()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    RunDirectory::open(path).unwrap();
}

#[test]
fn a_directory_that_others_could_enter_or_own_is_refused_with_what_to_do() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("open");
    fs::create_dir(&path).unwrap();
    for mode in [0o755, 0o710, 0o701, 0o777] {
        set_mode(&path, mode);
        let error = RunDirectory::open(path.clone()).unwrap_err();
        assert!(matches!(error, RunDirectoryError::Open { .. }), "{mode:o}: {error}");
        assert!(error.to_string().contains("chmod 700"), "{error}");
    }
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let link = parent.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for other in [file, link] {
        let error = RunDirectory::open(other).unwrap_err();
        assert!(matches!(error, RunDirectoryError::NotADirectory { .. }), "{error}");
    }
    let long = parent.path().join("x".repeat(100));
    let error = RunDirectory::open(long).unwrap_err();
    assert!(matches!(error, RunDirectoryError::TooLong { .. }), "{error}");
    assert!(error.to_string().contains("KVFERRY_RUN_DIR"), "{error}");
    let orphan = RunDirectory::open(parent.path().join("not/there")).unwrap_err();
    assert!(matches!(orphan, RunDirectoryError::System { .. }), "{orphan}");
}

#[test]
fn sockets_that_were_left_go_and_those_in_use_stay() {
    let parent = tempfile::tempdir().unwrap();
    let directory = RunDirectory::open(parent.path().join("run")).unwrap();
    let left = directory.socket("killed");
    drop(UnixListener::bind(&left).unwrap());
    let other = directory.path().join("notes");
    fs::write(&other, "somebody's").unwrap();
    let (_first, first_door) = directory.listen("first").unwrap();
    assert!(!left.exists());
    let (_second, second_door) = directory.listen("second").unwrap();
    assert!(first_door.path().exists() && other.exists());
    drop(UnixStream::connect(first_door.path()).unwrap());
    let path = second_door.path().to_path_buf();
    drop(second_door);
    assert!(!path.exists(), "it is gone with its owner");
}
