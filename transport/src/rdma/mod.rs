//! RDMA verbs.
//!
//! | module | what stands there |
//! |---|---|
//! | [`device`] | what the kernel says about adapters, ports, addresses, routes and GPUs; no verbs call is made |
//! | [`verbs`] | what adapters do: registered memory, queue pairs, completions |
//! | [`fetch`] | bringing lists of spans of a peer's memory here, by reads on one queue pair |

pub mod device;
pub mod fetch;
pub mod verbs;
