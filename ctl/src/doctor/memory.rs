//! Memory: how much may be locked, and huge pages.

use super::Host;
use super::capability::Capability;
use super::finding::{Finding, Findings};

const OS_RELEASE: &str = "/proc/sys/kernel/osrelease";
const LIMITS: &str = "/proc/self/limits";
const GIB: u64 = 1 << 30;
/// Less than this cannot hold a useful KV cache: the distributions' defaults are 64 KiB and 8 MiB.
const SMALLEST_USEFUL_BYTES: u64 = GIB;

/// A limit in bytes; `None` is no limit.
type Limit = Option<u64>;

pub(super) fn check_locked(host: &Host<'_>) -> Vec<Finding> {
    let mut found = Findings::of("memlock");
    let limit = match host.root.parsed(LIMITS, "a table of limits", locked_memory) {
        Ok(limit) => limit,
        Err(absence) => {
            found.unchecked(absence.to_string());
            return found.take();
        }
    };
    let capable = Capability::IpcLock.is_held(&host.root);
    match limit {
        None => found.ok("any amount of memory can be locked"),
        Some(_) if capable => found.ok("any amount of memory can be locked (CAP_IPC_LOCK)"),
        Some(bytes) if !host.has_usable_rdma() => {
            found.note(format!("{} can be locked; matters with RDMA only", size(bytes)));
        }
        Some(bytes) => {
            let what = format!(
                "{} can be locked, and memory that RDMA reaches must be: larger regions are refused",
                size(bytes)
            );
            let fix = "`ulimit -l unlimited`; LimitMEMLOCK=infinity in a systemd unit; \
                       --ulimit memlock=-1 for a container";
            if bytes < SMALLEST_USEFUL_BYTES {
                found.failure(what, fix);
            } else {
                found.warning(what, fix);
            }
        }
    }
    found.take()
}

/// The soft limit in `Max locked memory   8388608   8388608   bytes`.
fn locked_memory(limits: &str) -> Option<Limit> {
    let rest = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match rest.split_whitespace().next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    }
}

fn size(bytes: u64) -> String {
    let units = [(GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let whole = units.into_iter().find(|(unit, _)| bytes >= *unit);
    whole
        .map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{} {name}", bytes / unit))
}

const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage";
const MEMINFO: &str = "/proc/meminfo";

pub(super) fn check_huge_pages(host: &Host<'_>) -> Vec<Finding> {
    let mut found = Findings::of("huge pages");
    for (file, what, setting) in [
        ("enabled", "memory of a process", "madvise"),
        ("shmem_enabled", "memory that processes share", "advise"),
    ] {
        match host.root.parsed(&format!("{TRANSPARENT}/{file}"), "a choice in brackets", chosen) {
            Err(absence) => found.unchecked(format!("for {what}: {absence}")),
            // Off by default, but for memory that is asked to be collapsed, as ours is.
            Ok(choice) if choice == "never" && file == "shmem_enabled" && collapses(host) => {
                found.ok(format!("for {what}: by request, which this kernel takes"));
            }
            Ok(choice) if matches!(choice.as_str(), "never" | "deny") => found.warning(
                format!("none for {what}: {file} is {choice}, copies within the host are slower"),
                format!("echo {setting} > {TRANSPARENT}/{file}"),
            ),
            Ok(choice) => found.ok(format!("for {what}: {file} is {choice}")),
        }
    }
    let reserved = |name: &'static str| {
        host.root.parsed(MEMINFO, "a table of memory", move |text| count(text, name))
    };
    match (reserved("HugePages_Total:"), reserved("HugePages_Free:")) {
        (Ok(0), _) => found.note("none are reserved; transparent ones are used"),
        (Ok(total), Ok(free)) => found.ok(format!("{free} of {total} reserved ones are free")),
        (Err(absence), _) | (_, Err(absence)) => found.unchecked(absence.to_string()),
    }
    found.take()
}

/// Whether the kernel collapses memory into huge pages by request: `MADV_COLLAPSE`, since Linux
/// 6.1, whatever `shmem_enabled` says but `deny`.
fn collapses(host: &Host<'_>) -> bool {
    let release = host.root.parsed(OS_RELEASE, "a kernel's release", |text| {
        let mut numbers = text.split(['.', '-']).map(|part| part.trim().parse::<u32>().ok());
        Some((numbers.next()??, numbers.next()??))
    });
    release.is_ok_and(|release| release >= (6, 1))
}

/// The choice in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn count(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_the_one_that_counts() {
        let limits = |value: &str| locked_memory(&format!("Max locked memory  {value} 9 bytes"));
        assert_eq!(limits("8388608"), Some(Some(8_388_608)));
        assert_eq!(limits("unlimited"), Some(None));
        assert_eq!(limits("much"), None);
        assert_eq!(locked_memory("Max open files 1 1 files"), None);
    }

    #[test]
    fn choices_and_counts_are_found_in_their_files() {
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("madvise"), None);
        assert_eq!(count("HugePages_Total:     17\nHugePages_Free: 3", "HugePages_Free:"), Some(3));
        assert_eq!(size(8 << 20), "8 MiB");
        assert_eq!(size(100), "100 bytes");
    }
}
