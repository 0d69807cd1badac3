//! Makes the trees of files of all fixture hosts, to be looked at: `kvctl topology --root
//! DIRECTORY/NAME`.

use std::path::PathBuf;

use anyhow::Context as _;
use kvferry_tests::hosts::{self, Manifest};

#[allow(clippy::print_stdout, reason = "a command for people")]
fn main() -> anyhow::Result<()> {
    let directory: PathBuf = std::env::args_os()
        .nth(1)
        .context("usage: make-host-fixtures DIRECTORY\n\nMakes DIRECTORY/NAME for every tests/fixtures/hosts/NAME.toml.")?
        .into();
    for name in hosts::names()? {
        let manifest = Manifest::named(&name)?;
        let host = directory.join(&name);
        anyhow::ensure!(!host.exists(), "{} exists: give an empty directory", host.display());
        manifest.build(&host).with_context(|| name.clone())?;
        println!("{}\n    {}", host.display(), manifest.about);
    }
    Ok(())
}
