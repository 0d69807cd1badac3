//! Memory of the three kinds: what is got, what is refused, what a file that shrinks does.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;

use kvferry_transport::local::{PeerMemory, PeerSpans};
use kvferry_transport::memory::{Location, Memory, MemoryError, SpanList};
use proptest::prelude::*;

const HUGE: u64 = 2 << 20;

#[test]
fn allocated_memory_is_aligned_to_huge_pages_and_zero() {
    for length in [1, 4096, 3 << 20, 64 << 20] {
        let memory = Memory::allocate(length).unwrap();
        assert_eq!(memory.base() % HUGE, 0);
        assert_eq!(memory.length(), length as u64);
        assert!(matches!(memory.location(), Location::Shared { .. }));
        assert!([4096, 2 << 20].contains(&memory.page_bytes()), "{}", memory.page_bytes());
        let mut last = [1];
        memory.copy_out(memory.length() - 1, &mut last).unwrap();
        assert_eq!(last, [0]);
    }
}

#[test]
fn lengths_that_cannot_be_are_named_errors() {
    assert!(matches!(Memory::allocate(0), Err(MemoryError::Empty)));
    assert!(matches!(Memory::allocate(usize::MAX), Err(MemoryError::Overflow { .. })));
    assert!(matches!(Memory::allocate(1 << 60), Err(MemoryError::System { .. })));
    let null = std::ptr::null_mut();
    // SAFETY: a range that is refused is never touched.
    assert!(matches!(unsafe { Memory::foreign(null, 8) }, Err(MemoryError::Overflow { .. })));
    let high = std::ptr::without_provenance_mut(usize::MAX - 3);
    // SAFETY: as above.
    assert!(matches!(unsafe { Memory::foreign(high, 8) }, Err(MemoryError::Overflow { .. })));
    // SAFETY: as above.
    assert!(matches!(unsafe { Memory::foreign(high, 0) }, Err(MemoryError::Empty)));
}

#[test]
fn nothing_outside_a_memory_is_copied() {
    let memory = Memory::allocate(100).unwrap();
    for (offset, length) in [(0, 101), (100, 1), (99, 2), (u64::MAX, 2), (u64::MAX, 1)] {
        let mut bytes = vec![0; length];
        let out = memory.copy_out(offset, &mut bytes);
        assert!(matches!(out, Err(MemoryError::OutOfBounds { .. })), "{offset}+{length}");
        let into = memory.copy_in(offset, &bytes);
        assert!(matches!(into, Err(MemoryError::OutOfBounds { .. })), "{offset}+{length}");
    }
    memory.copy_in(100, &[]).unwrap();
}

#[test]
fn foreign_memory_is_the_callers() {
    let mut bytes = vec![7_u8; 100];
    // SAFETY: `bytes` outlives every use of the handle, and is not looked at meanwhile.
    let memory = unsafe { Memory::foreign(bytes.as_mut_ptr(), bytes.len()) }.unwrap();
    memory.copy_in(3, b"abc").unwrap();
    drop(memory);
    assert_eq!(&bytes[..8], b"\x07\x07\x07abc\x07\x07");
}

#[test]
fn a_file_that_is_truncated_is_an_error_and_not_a_signal() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[5; 20_000]).unwrap();
    let memory = Memory::map_file(file.try_clone().unwrap()).unwrap();
    assert_eq!((memory.length(), memory.location()), (20_000, Location::File));
    memory.copy_in(19_000, b"new").unwrap();
    let mut back = [0; 4];
    memory.copy_out(18_999, &mut back).unwrap();
    assert_eq!(&back, b"\x05new");

    file.set_len(10).unwrap();
    let truncated = |result| {
        matches!(result, Err(MemoryError::Truncated { file_bytes: 10, needed_bytes: 20_000 }))
    };
    assert!(truncated(memory.copy_out(18_999, &mut back)));
    assert!(truncated(memory.copy_in(18_999, &back)));
    assert_eq!(file.metadata().unwrap().len(), 10, "writing must not make it longer again");
    let mut spans = SpanList::new();
    spans.attach(&memory);
    spans.push(0, 20_000).unwrap();
    assert!(truncated(spans.crc32c().map(|_| ())));
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    let sent = spans.gather(fd, &[], &mut Default::default());
    assert!(kvferry_transport::lanes::is_memory_fault(&sent.unwrap_err()));

    let empty = tempfile::tempfile().unwrap();
    assert!(matches!(Memory::map_file(empty), Err(MemoryError::Empty)));
}

#[test]
fn memory_that_is_unmapped_under_a_span_is_an_error_of_the_call() {
    let map = memmap2::MmapMut::map_anon(1 << 20).unwrap();
    let base = map.as_ptr().cast_mut();
    // SAFETY: the range is unmapped below, and from then on only touched by system calls, which
    // answer EFAULT: that is what this test is about.
    let memory = unsafe { Memory::foreign(base, 1 << 20) }.unwrap();
    let mut spans = SpanList::new();
    spans.attach(&memory);
    spans.push(0, 1 << 20).unwrap();
    drop(map);
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    let error = spans.gather(fd, &[], &mut Default::default()).unwrap_err();
    assert!(kvferry_transport::lanes::is_memory_fault(&error), "{error}");
}

/// The textbook CRC-32C, bit by bit (reflected polynomial 0x82f63b78).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }
        })
    })
}

proptest! {
    #[test]
    fn spans_are_copied_in_order_and_summed_as_one_text(
        cuts in proptest::collection::vec((0..50_000_u64, 1..3000_u32), 1..40),
        first in any::<prop::sample::Index>(),
    ) {
        let memory = Memory::allocate(64 << 10).unwrap();
        let mut spans = SpanList::new();
        spans.attach(&memory);
        // Each span right behind the one before, in another order: no two overlap.
        let mut at = 0;
        let mut placed = Vec::new();
        for (_, length) in &cuts {
            if at + u64::from(*length) > memory.length() { break; }
            placed.push((at, *length));
            at += u64::from(*length);
        }
        let rotate = first.index(placed.len());
        placed.rotate_left(rotate);
        for (offset, length) in &placed { spans.push(*offset, *length).unwrap(); }
        let text: Vec<u8> = (0..spans.bytes()).map(|at| (at * 31 % 251).to_le_bytes()[0]).collect();
        let (head, tail) = text.split_at(text.len() / 3);
        prop_assert_eq!(spans.copy_in(head).unwrap(), head.len());
        prop_assert_eq!(spans.remaining(), tail.len() as u64);
        prop_assert_eq!(spans.copy_in(&[tail, b"more than fits"].concat()).unwrap(), tail.len());
        prop_assert_eq!(spans.crc32c().unwrap(), crc32c(&text));
        let mut read = Vec::new();
        for (offset, length) in &placed {
            let mut bytes = vec![0; *length as usize];
            memory.copy_out(*offset, &mut bytes).unwrap();
            read.extend(bytes);
        }
        prop_assert_eq!(read, text);
    }
}

/// An address at which this process has nothing mapped.
const ON_DEVICE: u64 = 0x0dea_0000_0000;

/// A file in memory, which stands for a dma-buf.
fn exported(bytes: u64) -> std::fs::File {
    let memfd = rustix::fs::memfd_create("exported", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = std::fs::File::from(memfd);
    file.set_len(bytes).unwrap();
    file
}

fn on_device(bytes: u64) -> Memory {
    Memory::dma_buf(exported(bytes).into(), 0, ON_DEVICE, bytes).unwrap()
}

#[test]
fn what_is_no_place_in_a_dma_buf_is_a_named_error() {
    let of = |offset, base, length| Memory::dma_buf(exported(1 << 16).into(), offset, base, length);
    let memory = of(4096 + 8, ON_DEVICE + 8, 100).unwrap();
    assert_eq!((memory.base(), memory.length()), (ON_DEVICE + 8, 100));
    assert_eq!(memory.location(), Location::Device);
    assert!(matches!(of(0, ON_DEVICE, 0), Err(MemoryError::Empty)));
    assert!(matches!(of(0, 0, 8), Err(MemoryError::Overflow { .. })));
    assert!(matches!(of(4088, u64::MAX - 7, 16), Err(MemoryError::Overflow { .. })));
    assert!(matches!(of(8, ON_DEVICE, 8), Err(MemoryError::Misaligned { offset: 8, .. })));
    for (offset, length) in [(0, (1 << 16) + 1), (1 << 16, 1), (u64::MAX - 4095, 8192)] {
        let error = of(offset, ON_DEVICE, length).unwrap_err();
        let is_outside = matches!(error, MemoryError::OutOfBounds { memory_bytes: 65_536, .. });
        assert!(is_outside, "{offset}+{length}: {error}");
    }
    let (pipe, _writer) = std::io::pipe().unwrap();
    let error = Memory::dma_buf(pipe.into(), 0, ON_DEVICE, 8).unwrap_err();
    assert!(matches!(error, MemoryError::System { .. }), "{error}");
}

#[test]
fn no_processor_touches_memory_of_a_device() {
    let memory = on_device(1 << 16);
    let is_refused = |result: Result<(), MemoryError>| {
        assert!(matches!(result, Err(MemoryError::OnDevice)), "{result:?}");
    };
    let mut bytes = [0; 8];
    is_refused(memory.copy_out(0, &mut bytes));
    is_refused(memory.copy_in(0, &bytes));
    assert!(memory.lend().unwrap().is_none());
    assert_eq!(memory.page_bytes(), 4096);

    // Host memory in the same list makes no difference.
    let host = Memory::allocate(1 << 16).unwrap();
    let mut spans = SpanList::new();
    for memory in [&memory, &host] {
        spans.attach(memory);
        spans.push(16, 1 << 12).unwrap();
    }
    assert!(spans.push(1 << 16, 1).is_err(), "outside");
    assert_eq!(spans.ranges().next(), Some((ON_DEVICE + 16, 1 << 12)), "as adapters are told");
    is_refused(spans.crc32c().map(drop));
    is_refused(spans.copy_in(&bytes).map(drop));
    is_refused(spans.copy_out(&mut bytes).map(drop));

    let (socket, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    let sent = spans.gather(fd, b"head", &mut Default::default());
    (&other).write_all(&[1; 8192]).unwrap();
    let received = spans.scatter(fd, &mut [], &mut Default::default());
    for error in [sent.unwrap_err(), received.unwrap_err()] {
        assert!(kvferry_transport::lanes::is_memory_fault(&error), "{error}");
        assert!(error.to_string().contains("moves by RDMA only"), "{error}");
    }

    let lent = PeerMemory::map(host.lend().unwrap().unwrap(), 1 << 16).unwrap();
    let mut from = PeerSpans::new();
    from.attach(&lent);
    from.push(0, 8192).unwrap();
    is_refused(spans.copy_from(&mut from, 8192).map(drop));
    assert_eq!(spans.remaining(), 8192, "and the position is where it was");
}
