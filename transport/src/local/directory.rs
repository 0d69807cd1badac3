//! Where processes of one host find each other: a directory of Unix sockets that belongs to the
//! user that they run as, and that nobody else can enter.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// The longest path of a socket: `sun_path` of `sockaddr_un` (unix(7)), with its closing zero.
const PATH_BYTES: usize = 108;

/// The longest name of a socket in the directory, with the slash before it.
const NAME_BYTES: usize = 28;

/// What the name of a socket ends with on which somebody listens.
const LISTENING: &str = ".sock";

/// How many sockets are looked at for leftovers at one start.
const MOST_SWEPT: usize = 4096;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunDirectoryError {
    /// Sockets in it could not be bound.
    #[error(
        "the run directory {path} has a path of {bytes} bytes, at most {limit} leave room for a \
         socket's name: set KVFERRY_RUN_DIR to a shorter one"
    )]
    TooLong {
        /// The directory.
        path: PathBuf,
        /// Its length in bytes.
        bytes: usize,
        /// The most that is possible.
        limit: usize,
    },
    /// There is something else in its place.
    #[error("{path} is no directory: remove it, or set KVFERRY_RUN_DIR to another path")]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// It belongs to another user, who could put sockets of their own there.
    #[error(
        "the run directory {path} belongs to user {owner} and this process runs as {ours}: set \
         KVFERRY_RUN_DIR to a directory of this user's"
    )]
    OtherOwner {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        ours: u32,
    },
    /// Others can enter it.
    #[error("the run directory {path} is open to others (mode {mode:03o}): chmod 700 it")]
    Open {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The system refused.
    #[error("{what} {path} failed: {source}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// Of which path.
        path: PathBuf,
        /// What it answered.
        source: io::Error,
    },
}

impl RunDirectoryError {
    fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, path: path.into(), source }
    }
}

/// A directory of sockets, checked: it is this user's, and nobody else's to enter.
#[derive(Clone, Debug)]
pub struct RunDirectory(PathBuf);

impl RunDirectory {
    /// Opens the directory, or makes it, for this user alone.
    ///
    /// # Errors
    /// [`RunDirectoryError`] when sockets in it could not be bound or not be trusted.
    pub fn open(path: PathBuf) -> Result<Self, RunDirectoryError> {
        let bytes = path.as_os_str().len();
        let limit = PATH_BYTES - NAME_BYTES;
        if bytes > limit {
            return Err(RunDirectoryError::TooLong { path, bytes, limit });
        }
        let metadata = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match DirBuilder::new().mode(0o700).create(&path) {
                    // Another process may have been faster.
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(RunDirectoryError::system("making", &path)(error));
                    }
                    _ => fs::symlink_metadata(&path),
                }
            }
            found => found,
        };
        let metadata = metadata.map_err(RunDirectoryError::system("looking at", &path))?;
        check(&path, &metadata)?;
        Ok(Self(path))
    }

    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of the socket with this name.
    #[must_use]
    pub fn socket(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}{LISTENING}"))
    }

    /// Listens on a socket of this name, and removes what killed processes have left here.
    ///
    /// # Errors
    /// [`RunDirectoryError::System`] when it cannot be bound.
    pub fn listen(&self, name: &str) -> Result<(UnixListener, Doorway), RunDirectoryError> {
        self.sweep();
        // Under another name until somebody listens on it, so that a socket that refuses connections
        // is always one that was left.
        let bound = self.0.join(format!("{name}.new"));
        let listener = UnixListener::bind(&bound)
            .map_err(RunDirectoryError::system("listening on", &bound))?;
        let mut doorway = Doorway { path: bound };
        let path = self.socket(name);
        fs::rename(&doorway.path, &path).map_err(RunDirectoryError::system("renaming", &path))?;
        doorway.path = path;
        Ok((listener, doorway))
    }

    /// Removes sockets on which nobody listens. That one cannot be removed is no error: it is in
    /// nobody's way.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        for entry in entries.map_while(Result::ok).take(MOST_SWEPT) {
            let path = entry.path();
            let is_socket = path.to_str().is_some_and(|path| path.ends_with(LISTENING));
            if is_socket && is_deserted(&path) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), RunDirectoryError> {
    let path = path.to_path_buf();
    if !metadata.is_dir() {
        return Err(RunDirectoryError::NotADirectory { path });
    }
    // SAFETY: the call takes nothing and changes nothing.
    let ours = unsafe { libc::geteuid() };
    let owner = metadata.uid();
    if owner != ours {
        return Err(RunDirectoryError::OtherOwner { path, owner, ours });
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(RunDirectoryError::Open { path, mode });
    }
    Ok(())
}

/// Whether nobody listens on a socket. Does not wait: a listener that is busy is there.
fn is_deserted(path: &Path) -> bool {
    let connected = Socket::new(Domain::UNIX, Type::STREAM, None).and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    });
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// A socket's name in the directory: removed when dropped.
#[derive(Debug)]
pub struct Doorway {
    path: PathBuf,
}

impl Doorway {
    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Doorway {
    fn drop(&mut self) {
        // Somebody may have removed it already.
        let _ = fs::remove_file(&self.path);
    }
}
