//! The other end of a queue pair, or somebody who wants memory registered: see
//! [`kvferry_tests::verbs`].
#![forbid(unsafe_code)]

use anyhow::{Context as _, bail};
use kvferry_tests::verbs::{Side, serve};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", device, bytes, fill] => serve(device, bytes.parse()?, fill.parse()?),
        ["register", device, bytes] => {
            Side::open(device, bytes.parse()?).context("nothing is registered")?;
            Ok(())
        }
        _ => bail!("usage: kvferry-test-verbs serve DEVICE BYTES FILL | register DEVICE BYTES"),
    }
}
