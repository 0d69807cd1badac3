//! The master of a pool: which memory engines lend to it, what is in it, and for how long it is kept.
//!
//! ```text
//!   lender: engine + inventory          kv-master                      client
//!   --------------------------      ------------------      --------------------------
//!   mount, what is in it     ---->   segments, objects   <----  put start, end; locate
//!   changes, and how far     <---->  and leases on both  ---->  where, and for how long
//!   signs of life            ---->   (own port, thread)  <----  signs of life
//!        ^                                                              |
//!        +----------------- bytes: engine to engine -------------------+
//! ```
//!
//! Bytes never come here. Owners are the truth about what is in their segments: a master that starts
//! is told by them, and nothing of it is on a disk.
//!
//! | module | what stands there | I/O |
//! |---|---|---|
//! | [`state`] | segments, objects and leases: what becomes of every command | none |
//! | [`server`] | gRPC for clients, signs of life, HTTP; threads, start and end | sockets |
//! | [`query`] | what a request over HTTP asks for | none |
//! | [`flags`] | the command line, Mooncake's spellings included | none |
//! | [`program`] | from the command line to the exit code | signals |
//!
//! ```no_run
//! use kv_master::server::{Listen, Master};
//! use kv_master::state::Settings;
//!
//! let any = || ("127.0.0.1".to_owned(), 0);
//! let listen = Listen { clients: any(), heartbeat_port: 0, metrics: any(), metadata: None };
//! let master = Master::start(Settings::default(), &listen, 2)?;
//! println!("clients connect to {}", master.addresses().clients);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod flags;
pub mod program;
pub mod query;
pub mod server;
pub mod state;
