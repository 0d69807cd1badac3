//! Tests across the crates, and what they need.
//!
//! | module | what stands there |
//! |---|---|
//! | [`hosts`] | other people's machines, from a page of facts to a tree of files |
#![forbid(unsafe_code)]

pub mod hosts;
