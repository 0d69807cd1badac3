//! What a host says about its RDMA devices: facts, and no opinion on them.
//!
//! [`HostFacts::read`] takes a [`HostRoot`]: the running kernel, or a directory that holds what was
//! captured on another machine. Nothing here fails as a whole: every file may be missing, cut,
//! nonsense or refuse to be read, and what it would have said is then an [`Absence`] that names
//! the file and the reason. Whoever decides (the engine) decides with that.
//!
//! ```text
//! ROOT/sys/class/infiniband/X      adapter: node type, GUID, ports, their GIDs and partition keys
//! ROOT/sys/class/infiniband/X/device    its place in the PCIe tree, its NUMA node
//! ROOT/sys/class/net/N             netdev behind a GID: MTU, bridge, bond, kind
//! ROOT/sys/bus/pci/devices         GPUs and their place in the PCIe tree
//! ROOT/proc/net/route, ipv6_route  routes of the main tables
//! ROOT/proc/net/fib_trie           whether there are other tables
//! ROOT/ip-address.txt              captured only: the output of `ip -o address show`
//! ```
//!
//! ```
//! use kvferry_transport::rdma::device::{HostFacts, HostRoot};
//!
//! let facts = HostFacts::read(&HostRoot::live());
//! match &facts.adapters {
//!     Ok(adapters) => println!("{} adapters", adapters.len()),
//!     Err(absence) => println!("no adapters: {absence}"),
//! }
//! ```

mod adapter;
mod address;
mod fact;
mod gid;
mod gpu;
mod host;
mod name;
mod netdev;
mod network;
mod pci;
mod pkey;
mod port;
mod root;
mod route;

pub use adapter::{Adapter, Guid, NodeType};
pub use address::InterfaceAddress;
pub use fact::{Absence, Fact};
pub use gid::{Gid, GidEntry, GidIndex, GidScope, GidType, SubnetPrefix};
pub use gpu::{Gpu, GpuIndex};
pub use host::HostFacts;
pub use name::DeviceName;
pub use netdev::{Netdev, NetdevName};
pub use network::{IpNetwork, NetworkError};
pub use pci::{NumaNode, PciAddress, PciPath};
pub use pkey::{PKey, PKeyIndex};
pub use port::{Lid, LinkLayer, LinkRate, Numbered, Port, PortNumber, PortState};
pub use root::HostRoot;
pub use route::{Route, RoutingTables};
