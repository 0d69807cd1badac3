//! Libraries that are loaded at run time.

use kvferry_transport::rdma::device::HostRoot;

use super::Host;

/// Where libraries lie that no cache knows of.
const DIRECTORIES: [&str; 9] = [
    "/lib64",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
];

/// Whether the dynamic linker would find a library: its cache, the usual directories and
/// `LD_LIBRARY_PATH` are looked through.
pub(super) fn is_installed(host: &Host<'_>, library: &str) -> bool {
    let added = host.environment.get("LD_LIBRARY_PATH").unwrap_or_default();
    let added = added.split(':').filter(|directory| !directory.is_empty());
    in_cache(&host.root, library)
        || DIRECTORIES
            .into_iter()
            .chain(added)
            .any(|directory| host.root.exists(&format!("{directory}/{library}")))
}

/// `/etc/ld.so.cache` holds the names of libraries as strings that end in zero.
fn in_cache(root: &HostRoot, library: &str) -> bool {
    let cache = root.text("/etc/ld.so.cache");
    cache.is_ok_and(|cache| cache.split('\0').any(|entry| entry == library))
}
