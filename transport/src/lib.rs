//! Registered memory, and the lanes that carry it between processes.
//!
//! | module | what stands there |
//! |---|---|
//! | [`rdma`] | verbs: which adapters this host has, and what the kernel says about them |

pub mod rdma;
