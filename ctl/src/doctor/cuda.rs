//! GPUs and CUDA.

use super::Host;
use super::finding::{Finding, Findings};
use super::library;

const DRIVER: &str = "/proc/driver/nvidia/version";
const LIBRARY: &str = "libcuda.so.1";
const PEER_MEMORY: &str = "/sys/module/nvidia_peermem";

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let mut found = Findings::of("cuda");
    let gpus = match &host.facts.gpus {
        Ok(gpus) => gpus.len(),
        Err(absence) => {
            found.unchecked(format!("whether there are GPUs: {absence}"));
            return found.take();
        }
    };
    let driver = host.root.text(DRIVER).ok().and_then(|text| Some(text.lines().next()?.to_owned()));
    match (gpus, &driver) {
        (0, None) => {
            found.note("this host has no NVIDIA GPU: only host memory is transferred");
            return found.take();
        }
        (gpus, None) => {
            let what =
                format!("{gpus} GPUs and no NVIDIA driver: GPU memory cannot be transferred");
            found.warning(what, "load the driver; in a container, pass --gpus");
            return found.take();
        }
        (gpus, Some(driver)) => found.ok(format!("{gpus} GPUs; {driver}")),
    }
    if library::is_installed(host, LIBRARY) {
        found.ok(format!("{LIBRARY} is installed"));
    } else {
        found.warning(
            format!("{LIBRARY} is not installed: GPU memory cannot be transferred"),
            "install the driver's libraries; in a container, pass --gpus",
        );
    }
    if host.has_usable_rdma() {
        if host.root.exists(PEER_MEMORY) {
            found.ok("nvidia_peermem is loaded: RDMA can reach GPU memory");
        } else {
            found.warning(
                "nvidia_peermem is not loaded: without dma-buf, GPU memory is staged through host \
                 memory",
                "modprobe nvidia_peermem, or the open kernel modules with a kernel of 5.12 and later",
            );
        }
        found.unchecked("whether the driver exports GPU memory as dma-buf: only CUDA tells");
    }
    found.take()
}
