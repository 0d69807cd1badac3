//! Generates the gRPC types without `protoc`: protox parses the `.proto` files in Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let peer = protox::compile(["kvferry/peer/v1/peer.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(peer)?;
    let pool = protox::compile(["kvferry/pool/v1/pool.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Keys of a batch are pieces of the message that was received, not copies.
        .bytes(".kvferry.pool.v1")
        .codec_path("crate::codec::BoundedCodec")
        .compile_fds(pool)?;
    Ok(())
}
