//! What a bootstrap server does, asked of one by a plain HTTP client over real sockets.
//!
//! | module | what stands there |
//! |---|---|
//! | [`http`] | requests written by hand, well or badly |
//! | [`server`] | the servers that are asked: beside an engine, and a process |
//! | [`worker`] | somebody who can be connected to, or cannot any more |
//! | [`cases`] | what is asked, and what has to be answered |
//!
//! [`bootstrap_cases!`](crate::bootstrap_cases) makes a test of each case for a kind of server, so
//! that each kind is asked the same.

pub mod cases;
pub mod http;
pub mod server;
pub mod worker;
