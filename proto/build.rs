//! Generates the gRPC types without `protoc`: protox parses the `.proto` files in Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["kvferry/peer/v1/peer.proto", "kvferry/pool/v1/pool.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    // Keys of a batch are pieces of the message that was received, not copies.
    tonic_prost_build::configure().bytes(".kvferry.pool.v1").compile_fds(descriptors)?;
    Ok(())
}
