//! Other people's machines.
//!
//! `fixtures/hosts/NAME.toml` says in a page what a machine has; [`Manifest::build`] makes of it
//! the tree of files that its kernel would show, as
//! [`HostRoot::captured`](kvferry_transport::rdma::device::HostRoot::captured) expects it. All of
//! them at once: `cargo run -p kvferry-tests --bin make-host-fixtures -- DIRECTORY`.
//!
//! The manifests are written from what reports and documentation say about such machines; none
//! is copied from one.

mod build;
mod manifest;
mod tables;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kvferry_transport::rdma::device::{HostFacts, HostRoot};

pub use manifest::Manifest;

/// A machine in a temporary directory that lives as long as this.
#[derive(Debug)]
pub struct Host {
    directory: tempfile::TempDir,
}

impl Host {
    /// Builds the machine of a manifest.
    ///
    /// # Errors
    /// Where there is no such manifest, or it says something impossible.
    pub fn build(name: &str) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("no temporary directory")?;
        Manifest::named(name)?.build(directory.path())?;
        Ok(Self { directory })
    }

    /// Builds the machine of a manifest that is given in full.
    ///
    /// # Errors
    /// Where it is malformed, or says something impossible.
    pub fn of_manifest(text: &str) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("no temporary directory")?;
        let manifest: Manifest = toml::from_str(text).context("no manifest")?;
        manifest.build(directory.path())?;
        Ok(Self { directory })
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Its root.
    #[must_use]
    pub fn root(&self) -> HostRoot {
        HostRoot::captured(self.directory.path())
    }

    /// What it says.
    #[must_use]
    pub fn facts(&self) -> HostFacts {
        HostFacts::read(&self.root())
    }
}

/// The names of all manifests, in order.
///
/// # Errors
/// Where the directory of manifests cannot be read.
pub fn names() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in manifests().read_dir().context("the directory of manifests cannot be read")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml")
            && let Some(name) = path.file_stem().and_then(|stem| stem.to_str())
        {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hosts")
}
