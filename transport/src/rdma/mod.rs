//! RDMA verbs.
//!
//! | module | what stands there |
//! |---|---|
//! | [`device`] | what the kernel says about adapters, ports, addresses, routes and GPUs; no verbs call is made |
//! | [`verbs`] | what adapters do: registered memory, queue pairs, completions |

pub mod device;
pub mod verbs;
