//! libibverbs, loaded when it is asked for.

use std::error::Error;
use std::ffi::{OsStr, OsString, c_int, c_uint, c_void};
use std::fmt;
use std::sync::Arc;

use super::abi::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid,
    ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};
use super::error::VerbsError;

/// The name under which the dynamic linker finds the system's library.
const SYSTEM_LIBRARY: &str = "libibverbs.so.1";

/// The library that drives RDMA adapters. Clones are handles of the same; it stays loaded for as
/// long as anything that came from it exists.
#[derive(Clone, Debug)]
pub struct Verbs(Arc<Library>);

impl Verbs {
    /// Loads the system's libibverbs. A machine without it has no RDMA, and all else works.
    ///
    /// # Errors
    /// [`VerbsError::Unavailable`], with what is missing.
    pub fn load() -> Result<Self, VerbsError> {
        // SAFETY: this is the name of libibverbs, whose functions these are.
        unsafe { Self::load_from(OsStr::new(SYSTEM_LIBRARY)) }
    }

    /// Loads another library with the same interface, as tests do that take one apart.
    ///
    /// # Errors
    /// [`VerbsError::Unavailable`], with what is missing.
    ///
    /// # Safety
    /// It can be loaded at any time, and its functions have the types, and do what, libibverbs' do.
    pub unsafe fn load_from(path: &OsStr) -> Result<Self, VerbsError> {
        // SAFETY: as the caller says.
        Ok(Self(Arc::new(unsafe { Library::load(path) }?)))
    }

    /// Whether both are of one library, however often it was loaded.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0.get_device_list, other.0.get_device_list)
    }

    pub(super) fn library(&self) -> &Library {
        &self.0
    }
}

/// The functions that are called by name. All others are called through the table that a driver
/// puts into its context.
/// Those behind the semicolon may be missing.
macro_rules! functions {
    (
        $($(#[$attribute:meta])* $name:ident: $type:ty = $symbol:literal,)*;
        $($(#[$newer_attribute:meta])* $newer:ident: $newer_type:ty = $newer_symbol:literal,)*
    ) => {
        pub(super) struct Library {
            $($(#[$attribute])* pub(super) $name: $type,)*
            $($(#[$newer_attribute])* pub(super) $newer: Option<$newer_type>,)*
            /// Unloaded last: the functions above are its.
            _loaded: libloading::Library,
        }

        impl Library {
            /// # Safety
            /// As of [`Verbs::load_from`].
            unsafe fn load(path: &OsStr) -> Result<Self, VerbsError> {
                let unavailable = |source: libloading::Error| VerbsError::Unavailable {
                    library: OsString::from(path),
                    why: said(&source),
                };
                // SAFETY: the caller says that it can be loaded.
                let loaded = unsafe { libloading::Library::new(path) }.map_err(unavailable)?;
                Ok(Self {
                    $(
                        // SAFETY: the caller says that it is the function of this name in
                        // `infiniband/verbs.h`, whose type this is; it is kept no longer than the
                        // library.
                        $name: *unsafe { loaded.get::<$type>($symbol) }.map_err(unavailable)?,
                    )*
                    $(
                        // SAFETY: as above.
                        $newer: unsafe { loaded.get::<$newer_type>($newer_symbol) }
                            .ok()
                            .map(|found| *found),
                    )*
                    _loaded: loaded,
                })
            }
        }
    };
}

functions! {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device
        = b"ibv_get_device_list",
    free_device_list: unsafe extern "C" fn(*mut *mut ibv_device) = b"ibv_free_device_list",
    open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context = b"ibv_open_device",
    close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int = b"ibv_close_device",
    query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int
        = b"ibv_query_device",
    query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int
        = b"ibv_query_port",
    query_gid: unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int
        = b"ibv_query_gid",
    get_async_event: unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int
        = b"ibv_get_async_event",
    ack_async_event: unsafe extern "C" fn(*mut ibv_async_event) = b"ibv_ack_async_event",
    alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd = b"ibv_alloc_pd",
    dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int = b"ibv_dealloc_pd",
    /// Since libibverbs 1.8 (rdma-core 29): access flags that a driver may ignore.
    reg_mr_iova2: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr
        = b"ibv_reg_mr_iova2",
    dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int = b"ibv_dereg_mr",
    create_comp_channel: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel
        = b"ibv_create_comp_channel",
    destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int
        = b"ibv_destroy_comp_channel",
    create_cq: unsafe extern "C" fn(
        *mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int,
    ) -> *mut ibv_cq = b"ibv_create_cq",
    destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int = b"ibv_destroy_cq",
    get_cq_event: unsafe extern "C" fn(
        *mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void,
    ) -> c_int = b"ibv_get_cq_event",
    ack_cq_events: unsafe extern "C" fn(*mut ibv_cq, c_uint) = b"ibv_ack_cq_events",
    create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp
        = b"ibv_create_qp",
    modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int
        = b"ibv_modify_qp",
    destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int = b"ibv_destroy_qp",
    ;
    /// Since libibverbs 1.12 (rdma-core 34): domain, offset in the dma-buf, length, address, descriptor,
    /// access.
    reg_dmabuf_mr: unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr
        = b"ibv_reg_dmabuf_mr",
}

/// What the dynamic linker has said, which the error itself leaves to its source.
fn said(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}
