//! What prost and tonic generate from `proto/kvferry/peer/v1/peer.proto`.
#![allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]

tonic::include_proto!("kvferry.peer.v1");
