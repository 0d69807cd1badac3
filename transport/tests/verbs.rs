//! Verbs, on a library with the interface of libibverbs that does what it is told. On adapters whose
//! packets travel they are tested by `make test-rdma`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use kvferry_transport::memory::Memory;
use kvferry_transport::rdma::device::{DeviceName, GidIndex, PKeyIndex, PortNumber};
use kvferry_transport::rdma::verbs::{
    Capacity, Completion, CompletionQueue, Context, LocalSpan, MemoryRegion, Operation, Outcome,
    ProtectionDomain, QueuePair, Rights, Route, Status, TrialError, Unconnected, Verbs, VerbsError,
    Work, write_and_read_back,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const ROUTE: Route = Route { port: PortNumber(1), gid: GidIndex(0), pkey: PKeyIndex(0) };
const CAPACITY: Capacity = Capacity { requests: 4, announcements: 2, spans: 2, inline_bytes: 0 };
const EVERYTHING: Rights = Rights { read: true, write: true, relaxed_ordering: true };

/// The library, loaded a second time to tell it what to do: a file of its own for each test, since a
/// file is loaded once in a process.
struct StandIn {
    library: libloading::Library,
    verbs: Verbs,
    _directory: tempfile::TempDir,
}

impl StandIn {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libstandin.so");
        std::fs::copy(built(), &path).unwrap();
        // SAFETY: the stand-in's constructor does nothing.
        let library = unsafe { libloading::Library::new(&path) }.unwrap();
        // SAFETY: it has the interface of libibverbs.
        let verbs = unsafe { Verbs::load_from(path.as_os_str()) }.unwrap();
        Self { library, verbs, _directory: directory }
    }

    fn open(&self) -> Context {
        self.verbs.open(&DeviceName::new("standin0")).unwrap()
    }

    fn devices(&self, count: usize) {
        // SAFETY: the function of this name has this type.
        unsafe { self.library.get::<extern "C" fn(usize)>(b"standin_devices") }.unwrap()(count);
    }

    fn switch(&self, name: &[u8], on: bool) {
        // SAFETY: as above, for all that are switched.
        unsafe { self.library.get::<extern "C" fn(c_int)>(name) }.unwrap()(c_int::from(on));
    }

    fn hold(&self) {
        self.switch(b"standin_hold", true);
    }

    fn release(&self, most: usize) -> usize {
        // SAFETY: as above.
        unsafe { self.library.get::<extern "C" fn(usize) -> usize>(b"standin_release") }.unwrap()(
            most,
        )
    }

    fn refuse(&self, call: &CStr) {
        // SAFETY: as above; the name ends in zero.
        unsafe {
            let refuse = self.library.get::<unsafe extern "C" fn(*const c_char)>(b"standin_refuse");
            refuse.unwrap()(call.as_ptr());
        }
    }

    fn live(&self) -> usize {
        // SAFETY: as above.
        unsafe { self.library.get::<extern "C" fn() -> usize>(b"standin_live") }.unwrap()()
    }
}

/// Where cargo has built it: beside this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libkvferry_standin.so")
}

/// Two queue pairs of a device that are connected to each other, and memory that both reach.
struct Ends {
    context: Context,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    memory: Memory,
    region: MemoryRegion,
    here: QueuePair,
    there: QueuePair,
}

impl Ends {
    fn new(standin: &StandIn) -> Self {
        let context = standin.open();
        let domain = ProtectionDomain::new(&context).unwrap();
        let queue = CompletionQueue::new(&context, 12).unwrap();
        let memory = Memory::allocate(1 << 16).unwrap();
        let region = domain.register(&memory, 0, 1 << 16, EVERYTHING).unwrap();
        let (here, there) = connected(&domain, &queue);
        Self { context, domain, queue, memory, region, here, there }
    }

    fn span(&self, offset: u64, bytes: u32) -> LocalSpan<'_> {
        LocalSpan { region: &self.region, offset, bytes }
    }

    /// What has completed, and nothing is left after it.
    fn completed(&self) -> Vec<(u64, Outcome)> {
        let mut found = Vec::<Completion>::new();
        self.queue.poll(&mut found, 1000).unwrap();
        found.iter().map(|end| (end.id, end.outcome)).collect()
    }

    fn content(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        self.memory.copy_out(offset, &mut content).unwrap();
        content
    }
}

fn connected(domain: &ProtectionDomain, queue: &CompletionQueue) -> (QueuePair, QueuePair) {
    let pair = || Unconnected::new(domain, queue, ROUTE, CAPACITY, 1).unwrap();
    let (here, there) = (pair(), pair());
    there.expect(&[100, 101]).unwrap();
    let (here_address, there_address) = (here.address(), there.address());
    (here.connect(&there_address).unwrap(), there.connect(&here_address).unwrap())
}

fn signaled(id: u64, operation: Operation<'_>) -> Work<'_> {
    Work { id, signaled: true, operation }
}

fn is_failure(outcome: Outcome, wanted: Status) -> bool {
    matches!(outcome, Outcome::Failed { status, .. } if status == wanted)
}

#[test]
fn without_the_library_the_error_says_what_to_install() {
    // SAFETY: there is none.
    let error = unsafe { Verbs::load_from(OsStr::new("/nowhere/libibverbs.so.1")) };
    let error = error.unwrap_err().to_string();
    for part in ["/nowhere/libibverbs.so.1", "install rdma-core", "libibverbs1"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    // SAFETY: it is loaded already, and has no function of these names.
    let error = unsafe { Verbs::load_from(OsStr::new("libc.so.6")) }.unwrap_err().to_string();
    assert!(error.contains("ibv_get_device_list"), "what is missing in it: {error}");
}

#[test]
fn a_device_that_is_not_there_is_missed_with_those_that_are() {
    let standin = StandIn::new();
    standin.devices(16);
    assert_eq!(standin.verbs.devices().unwrap().len(), 16);
    let error = standin.verbs.open(&DeviceName::new("mlx5_0")).unwrap_err().to_string();
    assert!(error.contains("no RDMA device mlx5_0") && error.contains("standin15"), "{error}");
    standin.devices(0);
    let error = standin.verbs.open(&DeviceName::new("standin0")).unwrap_err().to_string();
    assert!(error.contains("there is none"), "{error}");
}

#[test]
fn a_trial_says_what_is_wrong_with_an_adapter() {
    let standin = StandIn::new();
    let context = standin.open();
    write_and_read_back(&context, ROUTE).unwrap();

    standin.switch(b"standin_corrupt", true);
    assert!(matches!(write_and_read_back(&context, ROUTE), Err(TrialError::Wrong)));
    standin.switch(b"standin_corrupt", false);

    standin.switch(b"standin_port_down", true);
    let error = write_and_read_back(&context, ROUTE).unwrap_err();
    assert!(matches!(error, TrialError::Verbs(VerbsError::NotActive { state: 1, .. })), "{error}");
    standin.switch(b"standin_port_down", false);

    standin.hold();
    let error = write_and_read_back(&context, ROUTE).unwrap_err();
    assert!(matches!(error, TrialError::Silent { what: "write" }), "{error}");
    drop(context);
    assert_eq!(standin.live(), 0, "nothing is left of any of them");
}

#[test]
fn writes_are_in_place_when_they_are_announced() {
    let standin = StandIn::new();
    let ends = Ends::new(&standin);
    ends.memory.copy_in(0, b"first, and second").unwrap();
    let from = [ends.span(11, 6), ends.span(0, 5)];
    let work = [
        Work {
            id: 1,
            signaled: false,
            operation: Operation::Write { from: &from, to: ends.region.address_of(4096) },
        },
        signaled(2, Operation::Announce { word: 0x0102_0304 }),
    ];
    ends.here.post(&work).unwrap();
    let announced = Outcome::Announced { word: 0x0102_0304 };
    assert_eq!(ends.completed(), [(100, announced), (2, Outcome::Done)]);
    assert_eq!(ends.content(4096, 12), b"secondfirst\0");
}

#[test]
fn a_queue_pair_gets_room_for_its_completions_before_it_can_post() {
    let standin = StandIn::new();
    let ends = Ends::new(&standin);
    let another = || Unconnected::new(&ends.domain, &ends.queue, ROUTE, CAPACITY, 1);
    let error = another().unwrap_err();
    assert!(
        matches!(error, VerbsError::CompletionsFull { depth: 12, free: 0, wanted: 6 }),
        "{error}"
    );

    // What a queue pair leaves behind takes its room until it was fetched.
    let from = [ends.span(0, 8)];
    let write = Operation::Write { from: &from, to: ends.region.address_of(64) };
    ends.here.post(&[signaled(1, write)]).unwrap();
    let Ends { here, there, ref queue, ref domain, .. } = ends;
    drop(here);
    let error = Unconnected::new(domain, queue, ROUTE, CAPACITY, 1).unwrap_err();
    assert!(matches!(error, VerbsError::CompletionsFull { free: 0, .. }), "{error}");
    let mut found = Vec::new();
    assert_eq!(queue.poll(&mut found, 10).unwrap(), 1);
    Unconnected::new(domain, queue, ROUTE, CAPACITY, 1).unwrap();
    drop(there);
}

#[test]
fn a_refused_queue_pair_takes_no_room() {
    let standin = StandIn::new();
    let context = standin.open();
    let domain = ProtectionDomain::new(&context).unwrap();
    let queue = CompletionQueue::new(&context, 6).unwrap();
    standin.refuse(c"ibv_create_qp");
    let new = || Unconnected::new(&domain, &queue, ROUTE, CAPACITY, 1);
    let error = new().unwrap_err().to_string();
    assert!(error.contains("ibv_create_qp failed on standin0"), "{error}");
    queue.poll(&mut Vec::new(), 1).unwrap();
    new().unwrap();
}

#[test]
fn memory_of_a_device_is_reached_by_its_dma_buf_and_no_request_carries_it_by_value() {
    const ADDRESS: u64 = 0x0dea_0000_0000;
    let standin = StandIn::new();
    let Ends { domain, memory: host, region: on_host, context, .. } = &Ends::new(&standin);
    let memfd = rustix::fs::memfd_create("exported", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let exported = std::fs::File::from(memfd);
    exported.set_len(1 << 16).unwrap();
    exported.write_all_at(b"on the device", 4096 + 16).unwrap();
    let memory =
        Memory::dma_buf(exported.try_clone().unwrap().into(), 4096, ADDRESS, 8192).unwrap();
    let region = domain.register(&memory, 0, 8192, EVERYTHING).unwrap();
    assert_eq!(region.address_of(16).address, ADDRESS + 16);

    let queue = CompletionQueue::new(context, 12).unwrap();
    let capacity = Capacity { inline_bytes: 64, ..CAPACITY };
    let pair = || Unconnected::new(domain, &queue, ROUTE, capacity, 1).unwrap();
    let (here, there) = (pair(), pair());
    let (here_address, there_address) = (here.address(), there.address());
    let here = here.connect(&there_address).unwrap();
    let _there = there.connect(&here_address).unwrap();
    let span = |region, offset, bytes| LocalSpan { region, offset, bytes };
    host.copy_in(0, b", from the host").unwrap();
    // There is room for as much by value, of memory that a processor reads.
    let from = [span(&region, 16, 13), span(on_host, 0, 15)];
    let to = on_host.address_of(64);
    here.post(&[signaled(1, Operation::Write { from: &from, to })]).unwrap();
    let into = [span(&region, 4096, 13)];
    here.post(&[signaled(2, Operation::Read { from: to, into: &into })]).unwrap();
    let mut ended = Vec::new();
    queue.poll(&mut ended, 10).unwrap();
    assert!(ended.iter().all(|end| end.outcome == Outcome::Done) && ended.len() == 2, "{ended:?}");
    let mut landed = [0; 28];
    host.copy_out(64, &mut landed).unwrap();
    assert_eq!(&landed, b"on the device, from the host");
    let mut back = [0; 13];
    exported.read_exact_at(&mut back, 8192).unwrap();
    assert_eq!(&back, b"on the device");

    // A part starts where it should in the dma-buf, too.
    let live = standin.live();
    let part = domain.register(&memory, 4096, 4096, EVERYTHING).unwrap();
    let to = part.address_of(4096);
    here.post(&[signaled(3, Operation::Write { from: &[span(on_host, 0, 15)], to })]).unwrap();
    exported.read_exact_at(&mut back, 8192).unwrap();
    assert_eq!(&back, b", from the ho");
    drop(part);
    assert_eq!(standin.live(), live);
}

#[test]
fn a_full_queue_pair_says_how_many_it_took() {
    let standin = StandIn::new();
    let ends = Ends::new(&standin);
    standin.hold();
    let from = [ends.span(0, 8)];
    let write = Operation::Write { from: &from, to: ends.region.address_of(64) };
    let work: Vec<_> = (0..6).map(|id| signaled(id, write)).collect();
    let error = ends.here.post(&work).unwrap_err();
    assert!(matches!(error, VerbsError::QueueFull { posted: 4 }), "{error}");
    assert!(error.is_backpressure());
    assert_eq!(standin.release(2), 2);
    let error = ends.here.post(&work[4..]).unwrap_err();
    assert!(
        matches!(error, VerbsError::QueueFull { posted: 0 }),
        "not fetched, so in the queue: {error}"
    );
    assert_eq!(ends.completed().len(), 2);
    ends.here.post(&work[4..]).unwrap();
    assert_eq!(standin.release(10), 4);
    let ids: Vec<u64> = ends.completed().iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [2, 3, 4, 5]);
    let error = ends.there.expect(&[102]).unwrap_err();
    assert!(matches!(error, VerbsError::QueueFull { posted: 0 }), "{error}");
}

#[test]
fn requests_that_do_not_complete_by_themselves_have_room_again_with_the_next_that_does() {
    let standin = StandIn::new();
    let ends = Ends::new(&standin);
    let from = [ends.span(0, 8)];
    let operation = Operation::Write { from: &from, to: ends.region.address_of(64) };
    let silent = Work { id: 0, signaled: false, operation };
    ends.here.post(&[silent, silent, signaled(1, operation), silent]).unwrap();
    assert!(ends.here.post(&[silent]).unwrap_err().is_backpressure());
    assert_eq!(ends.completed().len(), 1);
    ends.here.post(&[silent, silent, signaled(2, operation)]).unwrap();
    assert!(ends.here.post(&[silent]).unwrap_err().is_backpressure());
    assert_eq!(ends.completed().len(), 1);
    ends.here.post(&[silent, silent, silent, silent]).unwrap();
}

#[test]
fn what_is_of_another_device_is_refused() {
    let standin = StandIn::new();
    standin.devices(2);
    let ends = Ends::new(&standin);
    let other = standin.verbs.open(&DeviceName::new("standin1")).unwrap();
    let queue = CompletionQueue::new(&other, 12).unwrap();
    let error = Unconnected::new(&ends.domain, &queue, ROUTE, CAPACITY, 1).unwrap_err();
    assert!(
        matches!(error, VerbsError::OtherDevice { what: "the completion queue", .. }),
        "{error}"
    );
    let domain = ProtectionDomain::new(&other).unwrap();
    let region = domain.register(&ends.memory, 0, 4096, EVERYTHING).unwrap();
    let from = [LocalSpan { region: &region, offset: 0, bytes: 8 }];
    let write = Operation::Write { from: &from, to: ends.region.address_of(64) };
    let error = ends.here.post(&[signaled(1, write)]).unwrap_err();
    assert!(matches!(error, VerbsError::OtherDevice { what: "a local span", .. }), "{error}");
    let route = Route { gid: GidIndex(256), ..ROUTE };
    let error = Unconnected::new(&ends.domain, &ends.queue, route, CAPACITY, 1).unwrap_err();
    assert!(matches!(error, VerbsError::GidIndex { index: 256, .. }), "{error}");
}

#[test]
fn a_queue_pair_that_cannot_be_destroyed_says_so_and_keeps_its_room() {
    let standin = StandIn::new();
    let ends = Ends::new(&standin);
    standin.refuse(c"ibv_destroy_qp");
    let error = ends.here.destroy().unwrap_err().to_string();
    assert!(error.contains("ibv_destroy_qp failed on standin0"), "{error}");
    ends.queue.poll(&mut Vec::new(), 1).unwrap();
    let error = Unconnected::new(&ends.domain, &ends.queue, ROUTE, CAPACITY, 1).unwrap_err();
    assert!(matches!(error, VerbsError::CompletionsFull { free: 0, .. }), "{error}");
}

#[test]
fn a_chain_with_a_bad_request_is_not_posted_at_all() {
    let standin = StandIn::new();
    let ends = Ends::new(&standin);
    let to = ends.region.address_of(64);
    let good = [ends.span(0, 8)];
    let outside = [ends.span((1 << 16) - 4, 8)];
    let many = [ends.span(0, 1), ends.span(1, 1), ends.span(2, 1)];
    for bad in [&outside[..], &many[..]] {
        let chain = [
            signaled(1, Operation::Write { from: &good, to }),
            signaled(2, Operation::Write { from: bad, to }),
        ];
        ends.here.post(&chain).unwrap_err();
        assert_eq!(ends.completed(), []);
    }
}

#[test]
fn what_lands_late_lands_in_no_memory_that_was_unregistered_or_whose_queue_pair_is_gone() {
    let standin = StandIn::new();
    let Ends { domain, queue, memory, region, here, there, .. } = Ends::new(&standin);
    memory.copy_in(0, &[7; 8]).unwrap();
    standin.hold();

    // A read whose destination is unregistered while it is under way.
    let gone = domain.register(&memory, 4096, 4096, Rights::default()).unwrap();
    let into = [LocalSpan { region: &gone, offset: 4096, bytes: 8 }];
    here.post(&[signaled(1, Operation::Read { from: region.address_of(0), into: &into })]).unwrap();
    drop(gone);
    assert_eq!(standin.release(1), 1);
    let mut found = Vec::new();
    queue.poll(&mut found, 10).unwrap();
    assert!(is_failure(found[0].outcome, Status::LocalProtection), "{found:?}");
    drop((here, there));
    queue.poll(&mut found, 10).unwrap();

    // A write that is under way when its queue pair goes.
    let (here, _there) = connected(&domain, &queue);
    let from = [LocalSpan { region: &region, offset: 0, bytes: 8 }];
    here.post(&[signaled(2, Operation::Write { from: &from, to: region.address_of(8192) })])
        .unwrap();
    drop(here);
    standin.release(1);
    let mut all = vec![0; 1 << 16];
    memory.copy_out(0, &mut all).unwrap();
    assert_eq!(all.iter().filter(|byte| **byte != 0).count(), 8, "only what was there before");
}

#[test]
fn taken_down_a_queue_pair_flushes_what_is_posted_and_expected() {
    let standin = StandIn::new();
    let ends = Ends::new(&standin);
    standin.hold();
    let from = [ends.span(0, 8)];
    let write = Operation::Write { from: &from, to: ends.region.address_of(64) };
    // One that is not signalled, too: what fails always completes.
    ends.there.post(&[Work { signaled: false, ..signaled(1, write) }, signaled(2, write)]).unwrap();
    ends.there.fail().unwrap();
    let ended = ends.completed();
    let ids: Vec<u64> = ended.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [1, 2, 100, 101]);
    assert!(ended.iter().all(|(_, outcome)| is_failure(*outcome, Status::Flushed)), "{ended:?}");
    let error = ends.there.post(&[signaled(3, write)]).unwrap_err();
    assert!(matches!(error, VerbsError::QueuePairFailed) && !error.is_backpressure(), "{error}");
}

#[test]
fn who_sleeps_is_woken_by_the_next_completion_and_not_by_one_that_is_there() {
    let standin = StandIn::new();
    let ends = Ends::new(&standin);
    let is_readable = || {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(ends.queue.as_fd(), PollFlags::IN)], Some(&at_once))
            .unwrap()
            == 1
    };
    let announce = signaled(1, Operation::Announce { word: 1 });
    ends.here.post(&[announce]).unwrap();
    ends.queue.arm().unwrap();
    assert!(!is_readable(), "which is why one polls once more before one sleeps");
    assert_eq!(ends.completed().len(), 2);
    ends.here.post(&[announce]).unwrap();
    assert!(is_readable());
    assert!(ends.queue.take_wakeup().unwrap());
    assert!(!is_readable());
    assert!(!ends.queue.take_wakeup().unwrap());
}

#[test]
fn a_registration_is_bounded_by_device_and_memory() {
    let standin = StandIn::new();
    let context = standin.open();
    let domain = ProtectionDomain::new(&context).unwrap();
    let memory = Memory::allocate(4096).unwrap();
    let outside = domain.register(&memory, 4000, 97, EVERYTHING).unwrap_err();
    assert!(matches!(outside, VerbsError::Memory(_)), "{outside}");
    domain.register(&memory, 4000, 96, EVERYTHING).unwrap();
    assert!(context.limits().region_bytes >= 4096);
}

#[test]
fn everything_is_given_back_whatever_is_dropped_first() {
    let standin = StandIn::new();
    for order in 0..3 {
        let Ends { context, domain, queue, memory, region, here, there } = Ends::new(&standin);
        assert_eq!(standin.live(), 7);
        match order {
            0 => drop((context, domain, queue, memory, region, here, there)),
            1 => drop((there, here, region, memory, queue, domain, context)),
            _ => drop((region, queue, here, context, memory, domain, there)),
        }
        assert_eq!(standin.live(), 0, "order {order}");
    }
}
