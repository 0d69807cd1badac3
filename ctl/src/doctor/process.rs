//! What transfers between processes of one host need.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use kvferry_transport::rdma::device::Absence;

use super::Host;
use super::capability::Capability;
use super::finding::{Finding, Findings};

const KERNEL_SETTINGS: &str = "/proc/sys/kernel";
const PTRACE_SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

pub(super) fn check_ptrace(host: &Host<'_>) -> Vec<Finding> {
    let mut found = Findings::of("ptrace scope");
    let slower = "memory that is not shared cannot be read from process to process; it goes \
                  through a socket instead";
    match host.root.text(PTRACE_SCOPE).as_deref() {
        Err(Absence::Missing { .. }) if host.root.exists(KERNEL_SETTINGS) => {
            found.ok("not restricted: processes of one user read each other's memory");
        }
        Err(absence) => found.unchecked(absence.to_string()),
        Ok("0") => found.ok("0: processes of one user read each other's memory"),
        Ok(scope @ ("1" | "2")) if Capability::SysPtrace.is_held(&host.root) => {
            found.ok(format!("{scope}, and this process may read others' memory (CAP_SYS_PTRACE)"));
        }
        Ok(scope @ ("1" | "2")) => found.warning(
            format!("scope {scope}: {slower}"),
            "sysctl -w kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE for the process; not needed \
             where regions are shared",
        ),
        Ok("3") => found.warning(
            format!("scope 3: {slower}"),
            "boot with kernel.yama.ptrace_scope=0: 3 lasts until the next boot",
        ),
        Ok(scope) => found.unchecked(format!("{PTRACE_SCOPE} says {scope:?}, which is not known")),
    }
    found.take()
}

/// The longest path of a Unix socket, with its closing zero: `sockaddr_un` in `sys/un.h`.
const SOCKET_PATH_BYTES: usize = 108;
/// What a socket's own name needs of it: a slash, an incarnation of 16 digits, a suffix.
const SOCKET_NAME_BYTES: usize = 28;

pub(super) fn check_run_directory(host: &Host<'_>) -> Vec<Finding> {
    let mut found = Findings::of("run directory");
    let directory = run_directory(host);
    let shown = directory.display();
    let fix = "set KVFERRY_RUN_DIR to a short path that this user can write to, the same for all \
               processes that shall meet";
    if directory.as_os_str().len() + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES {
        found.warning(
            format!("{shown} is too long for the path of a socket: no `local` transport"),
            fix,
        );
        return found.take();
    }
    if !host.root.is_live() {
        found.unchecked(format!("whether {shown} can be written to: this is a captured machine"));
        return found.take();
    }
    match try_directory(&directory) {
        Ok(Tried::Writable) => found.ok(format!("{shown} can be written to")),
        Ok(Tried::Creatable) => found.ok(format!("{shown} is not there yet, and can be made")),
        Err(error) => {
            found.warning(
                format!("{shown} cannot be written to ({error}): no `local` transport"),
                fix,
            );
        }
    }
    found.take()
}

/// Where sockets of one host's processes lie.
fn run_directory(host: &Host<'_>) -> PathBuf {
    let set = |name| host.environment.get(name).filter(|value: &String| !value.is_empty());
    match (set("KVFERRY_RUN_DIR"), set("XDG_RUNTIME_DIR")) {
        (Some(directory), _) => directory.into(),
        (None, Some(directory)) => Path::new(&directory).join("kvferry"),
        (None, None) => "/run/kvferry".into(),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Tried {
    Writable,
    Creatable,
}

/// Makes a file and removes it: permissions, read-only mounts and quotas have a say that no
/// attribute tells.
fn try_directory(directory: &Path) -> io::Result<Tried> {
    let (existing, tried) = match directory.metadata() {
        Ok(_) => (directory, Tried::Writable),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (directory.parent().unwrap_or(directory), Tried::Creatable)
        }
        Err(error) => return Err(error),
    };
    let file = existing.join(format!(".kvctl-doctor-{}", std::process::id()));
    OpenOptions::new().write(true).create_new(true).open(&file)?;
    fs::remove_file(&file)?;
    Ok(tried)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_tried_and_left_as_it_was() {
        let own = tempfile::tempdir().expect("a directory");
        assert_eq!(try_directory(own.path()).expect("writable"), Tried::Writable);
        assert_eq!(try_directory(&own.path().join("new")).expect("creatable"), Tried::Creatable);
        assert_eq!(fs::read_dir(own.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn what_is_no_directory_or_has_no_parent_cannot_be_used() {
        let own = tempfile::tempdir().expect("a directory");
        fs::write(own.path().join("file"), "").expect("a file");
        assert!(try_directory(&own.path().join("file")).is_err());
        assert!(try_directory(&own.path().join("file/below")).is_err());
        assert!(try_directory(&own.path().join("not/there")).is_err());
    }
}
