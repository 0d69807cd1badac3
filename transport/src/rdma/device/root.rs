//! Where the facts are read from.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::fact::{Absence, Fact};

/// A file system in which `sys` and `proc` of a host lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoot {
    directory: PathBuf,
    live: bool,
}

/// The longest file that is read. The longest honest one is the IPv4 trie of a host with a few
/// hundred thousand routes.
const FILE_BYTES: u64 = 64 << 20;

impl HostRoot {
    /// The running kernel.
    #[must_use]
    pub fn live() -> Self {
        Self { directory: PathBuf::from("/"), live: true }
    }

    /// A directory into which another machine was captured. It holds `sys`, `proc` and, because no
    /// file of the kernel lists addresses with their prefix lengths, `ip-address.txt`: the output
    /// of `ip -o address show`.
    #[must_use]
    pub fn captured(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), live: false }
    }

    /// Whether this is the running kernel.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Where a path of the host lies.
    #[must_use]
    pub fn locate(&self, path: &str) -> PathBuf {
        self.directory.join(path.trim_start_matches('/'))
    }

    /// What a file says, without white space at its ends.
    ///
    /// # Errors
    /// [`Absence`], whatever the reason.
    pub fn text(&self, path: &str) -> Fact<String> {
        let failed = |error| Absence::from_io(path, &error);
        let file = File::open(self.locate(path)).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_BYTES) {
            return Err(Absence::TooLong { path: path.to_owned(), limit_bytes: FILE_BYTES });
        }
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// What a file says, read by `parse`, which answers `None` for what is not `expected`.
    ///
    /// # Errors
    /// [`Absence`], whatever the reason.
    pub fn parsed<T>(
        &self,
        path: &str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Fact<T> {
        let text = self.text(path)?;
        parse(&text).ok_or_else(|| Absence::malformed(path, &text, expected))
    }

    /// The names in a directory, sorted bytewise. A name that is not UTF-8 is no name of the
    /// kernel's and is left out.
    ///
    /// # Errors
    /// [`Absence`], whatever the reason.
    pub fn names(&self, path: &str) -> Fact<Vec<String>> {
        let failed = |error| Absence::from_io(path, &error);
        let mut names = Vec::new();
        for entry in fs::read_dir(self.locate(path)).map_err(failed)? {
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether there is anything under this path.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.locate(path).exists()
    }

    /// Where a link leads in the end, as a path of the host.
    ///
    /// # Errors
    /// [`Absence`], whatever the reason.
    pub fn target(&self, path: &str) -> Fact<PathBuf> {
        let failed = |error| Absence::from_io(path, &error);
        let root = self.directory.canonicalize().map_err(failed)?;
        let target = self.locate(path).canonicalize().map_err(failed)?;
        match target.strip_prefix(&root) {
            Ok(inside) => Ok(Path::new("/").join(inside)),
            Err(_) => {
                Err(Absence::malformed(path, &target.to_string_lossy(), "a link within the root"))
            }
        }
    }
}
