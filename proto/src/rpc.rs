//! What prost and tonic generate from the files in `proto/kvferry`: `peer/v1/peer.proto` here, and
//! `pool/v1/pool.proto` in [`pool`].
#![allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]

tonic::include_proto!("kvferry.peer.v1");

pub mod pool {
    tonic::include_proto!("kvferry.pool.v1");
}
