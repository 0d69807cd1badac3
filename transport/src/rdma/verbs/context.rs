//! Devices that are open.

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{
    IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL,
    IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
    IBV_EVENT_SM_CHANGE, IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_PORT_ACTIVE,
    ibv_async_event, ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_port_attr, ibv_qp,
};
use super::counts::{Counts, Tally};
use super::error::VerbsError;
use super::library::Verbs;
use super::nonblocking::set_nonblocking;
use super::queue_pair::Mtu;
use crate::rdma::device::{DeviceName, Gid, GidIndex, Lid, PortNumber};

/// A device that this process has opened. Clones are handles of the same; it is closed when the
/// last thing that was made with it is gone.
#[derive(Clone, Debug)]
pub struct Context(pub(super) Arc<Open>);

#[derive(Debug)]
pub(super) struct Open {
    pub(super) context: NonNull<ibv_context>,
    pub(super) verbs: Verbs,
    pub(super) name: DeviceName,
    pub(super) limits: Limits,
    pub(super) tally: Tally,
}

// SAFETY: the library's functions on a context may be called from any thread at any time
// (`ibv_open_device` and the verbs specification have no thread of their own); what is read of the
// context here does not change while it is open.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

/// What a device can do, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest registration, in bytes.
    pub region_bytes: u64,
    /// How many requests a queue pair may hold.
    pub requests: u32,
    /// How many local spans a request may name.
    pub spans: u32,
    /// How many completions a completion queue may hold.
    pub completions: u32,
    /// How many reads of a queue pair may be under way, as initiator.
    pub reads: u8,
    /// How many reads of a peer may be under way on a queue pair, as target.
    pub reads_served: u8,
    /// How many ports it has.
    pub ports: u8,
}

/// What a port says of itself when asked by verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// Whether it carries traffic.
    pub is_active: bool,
    /// Its state, as the verbs specification numbers them; 4 is active.
    pub state: i32,
    /// The longest packet's payload.
    pub mtu: Mtu,
    /// Its local identifier; 0 on Ethernet.
    pub lid: Lid,
    /// What it is connected to.
    pub link: Link,
}

/// What a port is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// An InfiniBand fabric.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Something else, by the library's number.
    Other(u8),
}

/// What a device tells of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A port carries traffic (again).
    PortActive(PortNumber),
    /// A port no longer carries traffic.
    PortDown(PortNumber),
    /// Addresses of a port have come or gone, or another keeps the fabric: those that are used may be the
    /// same as before.
    AddressesChanged(PortNumber),
    /// The local identifier or the keys of a port have changed: what was agreed on with peers is stale.
    PortChanged(PortNumber),
    /// A queue pair, by its number, does not work any more.
    QueuePairBroken(u32),
    /// The device does not work any more.
    DeviceBroken,
    /// Something that needs no answer.
    Other(i32),
}

impl Verbs {
    /// The devices that this process can open.
    ///
    /// # Errors
    /// Where the library cannot list them, as for want of memory.
    pub fn devices(&self) -> Result<Vec<DeviceName>, VerbsError> {
        let list = DeviceList::new(self)?;
        Ok(list.iter().map(|(name, _)| name).collect())
    }

    /// Opens a device.
    ///
    /// # Errors
    /// Where there is none of this name, with those that there are, or it cannot be opened.
    pub fn open(&self, name: &DeviceName) -> Result<Context, VerbsError> {
        let list = DeviceList::new(self)?;
        let Some((_, device)) = list.iter().find(|(found, _)| found == name) else {
            let present = list.iter().map(|(name, _)| name).collect();
            return Err(VerbsError::NoDevice { name: name.clone(), present });
        };
        // SAFETY: the device is in the list, which lives until after this call.
        let context = unsafe { (self.library().open_device)(device) };
        let context = NonNull::new(context).ok_or_else(|| failed("ibv_open_device", name))?;
        let limits = match limits(self, context, name) {
            Ok(limits) => limits,
            Err(error) => {
                // SAFETY: the context has just been opened, and nothing was made with it.
                unsafe { (self.library().close_device)(context.as_ptr()) };
                return Err(error);
            }
        };
        let (verbs, name, tally) = (self.clone(), name.clone(), Tally::default());
        let open = Open { context, verbs, name, limits, tally };
        // An event is fetched when there is one; nobody waits inside the library.
        set_nonblocking(open.async_fd()).map_err(|source| open.error("fcntl", source))?;
        Ok(Context(Arc::new(open)))
    }
}

impl Context {
    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &DeviceName {
        &self.0.name
    }

    /// What the device can do.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.0.limits
    }

    /// How much was asked of it since it was opened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.tally.counts()
    }

    /// What a port says of itself now.
    ///
    /// # Errors
    /// Where the device does not answer, as when it is gone.
    pub fn port(&self, port: PortNumber) -> Result<PortFacts, VerbsError> {
        let mut facts = MaybeUninit::<ibv_port_attr>::zeroed();
        let open = &*self.0;
        // SAFETY: the context is open; the structure is as long as the longest that the library
        // fills, and all zeros is a value of it.
        let (status, facts) = unsafe {
            let status =
                (open.library().query_port)(open.context.as_ptr(), port.0, facts.as_mut_ptr());
            (status, facts.assume_init())
        };
        open.check("ibv_query_port", status)?;
        Ok(PortFacts {
            is_active: facts.state == IBV_PORT_ACTIVE,
            state: facts.state,
            mtu: Mtu::from_code(facts.active_mtu),
            lid: Lid(facts.lid),
            link: match facts.link_layer {
                IBV_LINK_LAYER_INFINIBAND => Link::InfiniBand,
                IBV_LINK_LAYER_ETHERNET => Link::Ethernet,
                other => Link::Other(other),
            },
        })
    }

    /// An entry of a port's table of global identifiers.
    ///
    /// # Errors
    /// Where the table has no such entry, or the device does not answer.
    pub fn gid(&self, port: PortNumber, index: GidIndex) -> Result<Gid, VerbsError> {
        let open = &*self.0;
        let mut gid = ibv_gid([0; 16]);
        let index = c_int::from(index.0);
        // SAFETY: the context is open; the identifier is written to by this call only.
        let status = unsafe {
            (open.library().query_gid)(open.context.as_ptr(), port.0, index, &raw mut gid)
        };
        open.check("ibv_query_gid", status)?;
        Ok(Gid(gid.0))
    }

    /// A descriptor that becomes readable when there is an event.
    #[must_use]
    pub fn event_descriptor(&self) -> BorrowedFd<'_> {
        self.0.async_fd()
    }

    /// The next event that the device tells of; `None` where there is none now. Does not wait.
    ///
    /// # Errors
    /// Where the device is gone.
    pub fn next_event(&self) -> Result<Option<DeviceEvent>, VerbsError> {
        let open = &*self.0;
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open; all zeros is a value of the event, which the call fills.
        let (status, mut event) = unsafe {
            let status =
                (open.library().get_async_event)(open.context.as_ptr(), event.as_mut_ptr());
            (status, event.assume_init())
        };
        if status != 0 {
            let source = io::Error::last_os_error();
            return match source.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(open.error("ibv_get_async_event", source)),
            };
        }
        let told = told(&event);
        // SAFETY: the event was taken by the call above, and is acknowledged once.
        unsafe { (open.library().ack_async_event)(&raw mut event) };
        Ok(Some(told))
    }
}

/// What an event says, which was taken and is not acknowledged yet.
fn told(event: &ibv_async_event) -> DeviceEvent {
    // Where the event is of a port, the union's first bytes are its number.
    let [a, b, c, d, ..] = event.element.addr().to_ne_bytes();
    let port = || PortNumber(u8::try_from(c_int::from_ne_bytes([a, b, c, d])).unwrap_or(0));
    match event.event_type {
        IBV_EVENT_PORT_ACTIVE => DeviceEvent::PortActive(port()),
        IBV_EVENT_PORT_ERR => DeviceEvent::PortDown(port()),
        // Some of a port's addresses, or who keeps the fabric: queue pairs stand while theirs does.
        IBV_EVENT_GID_CHANGE | IBV_EVENT_SM_CHANGE | IBV_EVENT_CLIENT_REREGISTER => {
            DeviceEvent::AddressesChanged(port())
        }
        IBV_EVENT_LID_CHANGE | IBV_EVENT_PKEY_CHANGE => DeviceEvent::PortChanged(port()),
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
            let pair = event.element.cast::<ibv_qp>();
            // SAFETY: an event of a queue pair names one that exists: to destroy it waits until all
            // its events are acknowledged (`ibv_get_async_event`), and this one is not.
            DeviceEvent::QueuePairBroken(unsafe { (*pair).qp_num })
        }
        // What a completion queue has lost, nobody learns any more.
        IBV_EVENT_DEVICE_FATAL | IBV_EVENT_CQ_ERR => DeviceEvent::DeviceBroken,
        other => {
            debug_assert!(other >= IBV_EVENT_COMM_EST, "all others are known by name");
            DeviceEvent::Other(other)
        }
    }
}

impl Open {
    pub(super) fn library(&self) -> &super::library::Library {
        self.verbs.library()
    }

    /// The error of a verb that has just returned null or -1.
    pub(super) fn last_error(&self, call: &'static str) -> VerbsError {
        failed(call, &self.name)
    }

    pub(super) fn error(&self, call: &'static str, source: io::Error) -> VerbsError {
        VerbsError::Call { call, device: self.name.clone(), source }
    }

    /// What the status of a verb means that returns 0, an error number, or -1 with `errno` set.
    pub(super) fn check(&self, call: &'static str, status: c_int) -> Result<(), VerbsError> {
        match status {
            0 => Ok(()),
            ..0 => Err(self.last_error(call)),
            errno => Err(self.error(call, io::Error::from_raw_os_error(errno))),
        }
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and its descriptor is as long.
        unsafe { BorrowedFd::borrow_raw((*self.context.as_ptr()).async_fd) }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: everything that was made with the context holds the `Open`, so nothing is left.
        let status = unsafe { (self.library().close_device)(self.context.as_ptr()) };
        if status != 0 {
            tracing::warn!(device = %self.name, status, "the RDMA device could not be closed");
        }
    }
}

impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event_descriptor()
    }
}

fn failed(call: &'static str, device: &DeviceName) -> VerbsError {
    VerbsError::Call { call, device: device.clone(), source: io::Error::last_os_error() }
}

fn limits(
    verbs: &Verbs,
    context: NonNull<ibv_context>,
    name: &DeviceName,
) -> Result<Limits, VerbsError> {
    let mut told = MaybeUninit::<ibv_device_attr>::zeroed();
    // SAFETY: the context is open; all zeros is a value of the structure, which the call fills.
    let (status, told) = unsafe {
        let status = (verbs.library().query_device)(context.as_ptr(), told.as_mut_ptr());
        (status, told.assume_init())
    };
    if status != 0 {
        return Err(VerbsError::Call {
            call: "ibv_query_device",
            device: name.clone(),
            source: io::Error::from_raw_os_error(status.abs()),
        });
    }
    // A driver that says nonsense has less than it says, never more.
    let count = |told: c_int| u32::try_from(told).unwrap_or(0);
    let few = |told: c_int| u8::try_from(told.clamp(0, 255)).unwrap_or(u8::MAX);
    Ok(Limits {
        region_bytes: told.max_mr_size,
        requests: count(told.max_qp_wr),
        spans: count(told.max_sge),
        completions: count(told.max_cqe),
        reads: few(told.max_qp_init_rd_atom),
        reads_served: few(told.max_qp_rd_atom),
        ports: told.phys_port_cnt,
    })
}

/// The library's list of devices, for as long as it is looked through.
struct DeviceList<'a> {
    verbs: &'a Verbs,
    /// None where the kernel has no part of it.
    list: Option<NonNull<*mut ibv_device>>,
    count: usize,
}

impl<'a> DeviceList<'a> {
    fn new(verbs: &'a Verbs) -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: the call writes the count, and returns a list or null.
        let list = unsafe { (verbs.library().get_device_list)(&raw mut count) };
        let list = NonNull::new(list);
        // Without the kernel's part the library says ENOSYS: there are no devices.
        if list.is_none() && io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS) {
            return Err(failed("ibv_get_device_list", &DeviceName::new("any device")));
        }
        let count = if list.is_some() { usize::try_from(count).unwrap_or(0) } else { 0 };
        Ok(Self { verbs, list, count })
    }

    fn iter(&self) -> impl Iterator<Item = (DeviceName, *mut ibv_device)> + '_ {
        let indexed =
            self.list.into_iter().flat_map(|list| (0..self.count).map(move |at| (list, at)));
        indexed.map(|(list, index)| {
            // SAFETY: the list has `count` devices and lives as long as `self`; each device's name
            // ends in zero.
            unsafe {
                let device = *list.as_ptr().add(index);
                let name = CStr::from_ptr((&raw const (*device).name).cast());
                (DeviceName::new(name.to_string_lossy()), device)
            }
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        if let Some(list) = self.list {
            // SAFETY: the list came from the library and is given back once. Devices that were
            // opened stay: a context holds its own.
            unsafe { (self.verbs.library().free_device_list)(list.as_ptr()) };
        }
    }
}
