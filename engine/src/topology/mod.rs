//! Which RDMA devices are used, with whom, and why the others are not.
//!
//! Everything here is a pure function from facts to a choice with its reasons; the facts come from
//! [`kvferry_transport::rdma::device`], the peer's from its handshake.
//!
//! ```text
//! HostFacts + Wishes -> Topology: a verdict for each port, route groups, distances to GPUs
//!                          |
//!            its Endpoints + the peer's -> Pairing -> pairs of ports, or who was refused and why
//!                                             |
//!                                    questions for a Probe, where no table decides
//! ```
//!
//! | module | what stands there |
//! |---|---|
//! | [`wishes`] | what the user asked for, and the environment variables that say so |
//! | [`verdict`] | why a port is not used, and what to mind where it is |
//! | [`endpoint`] | what a peer must know of a port that is used |
//! | [`reach`] | whether two ports can reach each other, as far as tables tell |
//! | [`group`] | the ports of a host that reach each other |
//! | [`pairing`] | which ports of two hosts work together |
//! | [`probe`] | finding out where tables cannot tell |
//! | [`affinity`] | how far GPUs and memory are from ports |
//!
//! ```
//! use kvferry_engine::topology::{Topology, Wishes};
//! use kvferry_transport::rdma::device::{HostFacts, HostRoot};
//!
//! let facts = HostFacts::read(&HostRoot::live());
//! let wishes = Wishes::from_environment(|name| std::env::var(name).ok())?;
//! let topology = Topology::choose(&facts, &wishes);
//! for port in &topology.ports {
//!     match &port.verdict {
//!         Ok(endpoint) => println!("{} is used with GID {}", port.name, endpoint.gid),
//!         Err(refusal) => println!("{} is not used: {refusal}", port.name),
//!     }
//! }
//! # Ok::<(), kvferry_engine::topology::WishError>(())
//! ```

pub mod affinity;
mod assess;
mod assign;
mod choice;
pub mod endpoint;
mod gid;
pub mod group;
mod overlay;
pub mod pairing;
mod pkey;
pub mod probe;
pub mod reach;
mod selection;
pub mod verdict;
pub mod wishes;

pub use affinity::{Distance, Place};
pub use choice::{GpuPlace, PortReport, Topology};
pub use endpoint::{Endpoint, EthernetReach, Fabric, Mtu, PortName, RoceVersion};
pub use group::{GroupLabel, RouteGroup};
pub use overlay::{Overlay, Sign};
pub use pairing::{Pair, Pairing, PairingError, Question, QuestionId, Refused, RefusedReason};
pub use probe::{Answer, Answers, Probe};
pub use reach::{Doubt, Obstacle, Reach};
pub use selection::SelectionError;
pub use verdict::{Caution, GidProblem, Refusal};
pub use wishes::{DeviceList, ListedDevice, Patterns, Source, Unheeded, WishError, Wished, Wishes};
