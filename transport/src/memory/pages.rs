//! What the kernel says about the pages behind an address.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ptr::NonNull;

/// The size of an x86-64 or arm64 base page as this project assumes it for accounting.
pub(super) const SMALL_PAGE_BYTES: usize = 4096;

/// The size of a huge page.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The size of the pages that `[base, base + length)` is mapped with, as `/proc/self/smaps` tells:
/// huge only where all of its mapping is.
pub(super) fn page_bytes_at(base: NonNull<u8>, length: usize) -> usize {
    let address = base.as_ptr() as usize;
    let Ok(smaps) = File::open("/proc/self/smaps") else { return SMALL_PAGE_BYTES };
    let mut inside = false;
    let mut kernel_page_kib = SMALL_PAGE_BYTES >> 10;
    let mut huge_kib = 0;
    for line in BufReader::new(smaps).lines().map_while(Result::ok) {
        if let Some((start, end)) = mapping_range(&line) {
            if inside {
                break;
            }
            inside = (start..end).contains(&address);
        } else if inside {
            if let Some(kib) = field_kib(&line, "KernelPageSize:") {
                kernel_page_kib = kib;
            }
            let huge = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"];
            huge_kib += huge.iter().find_map(|name| field_kib(&line, name)).unwrap_or(0);
        }
    }
    let kernel_page_bytes = kernel_page_kib << 10;
    if huge_kib << 10 >= length {
        HUGE_PAGE_BYTES.max(kernel_page_bytes)
    } else {
        kernel_page_bytes
    }
}

fn mapping_range(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

fn field_kib(line: &str, name: &str) -> Option<usize> {
    line.strip_prefix(name)?.split_whitespace().next()?.parse().ok()
}

/// The NUMA node of the page at `base`, where the kernel says.
pub(super) fn numa_node(base: NonNull<u8>) -> Option<u32> {
    const MPOL_F_NODE: libc::c_ulong = 1;
    const MPOL_F_ADDR: libc::c_ulong = 2;
    let mut node: libc::c_int = -1;
    // SAFETY: the kernel writes one int to `node` and, with a null mask, nothing else; it checks
    // the address itself.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            std::ptr::null_mut::<libc::c_ulong>(),
            0 as libc::c_ulong,
            base.as_ptr(),
            MPOL_F_NODE | MPOL_F_ADDR,
        )
    };
    if result == 0 { u32::try_from(node).ok() } else { None }
}
