//! Each thing that `kvctl doctor` may find, on a machine made for it.

use std::fs;
use std::path::Path;

use kvctl::cli::Machine;
use kvctl::{Environment, doctor};
use serde_json::Value;

/// A machine of a few files.
struct Host {
    directory: tempfile::TempDir,
}

/// What the doctor said.
struct Findings {
    json: Value,
    success: bool,
}

impl Host {
    fn new(files: &[(&str, &str)]) -> Self {
        let host = Self { directory: tempfile::tempdir().expect("a directory") };
        for (path, content) in files {
            host.file(path, content);
        }
        host
    }

    /// The same with an RDMA adapter that can be used, its library and its device file.
    fn with_rdma(files: &[(&str, &str)]) -> Self {
        let host = Self::new(files);
        for (path, content) in [
            ("sys/class/infiniband/rxe0/node_type", "1: CA"),
            ("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE"),
            ("sys/class/infiniband/rxe0/ports/1/link_layer", "Ethernet"),
            ("sys/class/infiniband/rxe0/ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:0a4d:0001"),
            ("sys/class/infiniband/rxe0/ports/1/gid_attrs/types/0", "RoCE v2"),
            ("sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0", "rdma0"),
            ("sys/class/net/rdma0/mtu", "9000"),
            ("ip-address.txt", "2: rdma0    inet 10.77.0.1/24 scope global rdma0"),
            ("usr/lib64/libibverbs.so.1", ""),
            ("dev/infiniband/uverbs0", ""),
        ] {
            host.file(path, content);
        }
        host
    }

    /// The same with a GPU.
    fn with_gpu(self) -> Self {
        for (path, content) in [("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", "0")] {
            self.file(&format!("sys/bus/pci/devices/0000:18:00.0/{path}"), content);
        }
        self
    }

    fn file(&self, path: &str, content: &str) {
        let file = self.directory.path().join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
        fs::write(file, content).expect("a file");
    }

    fn remove(self, path: &str) -> Self {
        fs::remove_file(self.directory.path().join(path)).expect("a file");
        self
    }

    fn examine(&self) -> Findings {
        self.examine_with(doctor::Arguments::default(), &Environment::default())
    }

    fn examine_with(&self, arguments: doctor::Arguments, environment: &Environment) -> Findings {
        examine(Some(self.directory.path()), arguments, environment)
    }
}

fn examine(
    root: Option<&Path>,
    arguments: doctor::Arguments,
    environment: &Environment,
) -> Findings {
    let machine = Machine { root: root.map(Path::to_owned) };
    let arguments = doctor::Arguments { json: true, machine, ..arguments };
    let outcome = doctor::run(&arguments, environment).expect("findings");
    let json = serde_json::from_str(&outcome.text).expect("JSON");
    Findings { json, success: outcome.success }
}

impl Findings {
    /// The level of the one finding of an area that says `part`, and whether it has a fix.
    fn level(&self, area: &str, part: &str) -> &str {
        let all = self.json["findings"].as_array().expect("findings");
        let says = |finding: &&Value| {
            finding["area"] == area
                && finding["what"].as_str().is_some_and(|what| what.contains(part))
        };
        let found: Vec<_> = all.iter().filter(says).collect();
        let [finding] = found[..] else { panic!("{area}: {part}: {found:?} of {all:#?}") };
        let level = finding["level"].as_str().expect("a level");
        assert_eq!(finding["fix"].is_string(), matches!(level, "failure" | "warning"), "{finding}");
        level
    }
}

#[test]
fn a_host_without_rdma_is_well_unless_rdma_is_required() {
    let host = Host::new(&[]);
    let found = host.examine();
    assert_eq!(found.level("rdma", "no RDMA devices"), "note");
    assert!(found.success);
    let arguments = doctor::Arguments { require_rdma: true, ..doctor::Arguments::default() };
    let required = host.examine_with(arguments, &Environment::default());
    assert_eq!(required.level("rdma", "no RDMA devices"), "failure");
    assert!(!required.success);
}

#[test]
fn rdma_devices_of_which_none_can_be_used_are_a_failure_and_each_is_named() {
    let host = Host::with_rdma(&[]);
    host.file("sys/class/infiniband/rxe0/ports/1/state", "1: DOWN");
    let found = host.examine();
    assert_eq!(found.level("rdma", "none of 1 ports can be used"), "failure");
    assert_eq!(found.level("rdma", "rxe0:1 is not used: the port is DOWN"), "warning");
    assert!(!found.success);
}

#[test]
fn a_usable_device_is_well_and_what_was_not_tried_is_said() {
    let found = Host::with_rdma(&[]).examine();
    assert_eq!(found.level("rdma", "1 of 1 ports are used, in route group 10.77.0.0/24"), "ok");
    assert_eq!(found.level("rdma", "whether packets get through"), "unchecked");
    assert!(found.success);
}

#[test]
fn a_missing_verbs_library_breaks_transfers_and_a_cache_or_a_path_may_know_it() {
    let without = || Host::with_rdma(&[]).remove("usr/lib64/libibverbs.so.1");
    let found = without().examine();
    assert_eq!(found.level("rdma", "libibverbs.so.1 is not installed"), "failure");
    assert!(!found.success);

    let cached = without();
    cached.file("etc/ld.so.cache", "glibc-ld.so.cache1.1\0libibverbs.so.1\0/opt/libibverbs.so.1\0");
    assert_eq!(cached.examine().level("rdma", "libibverbs.so.1 is installed"), "ok");

    let added = without();
    added.file("opt/verbs/libibverbs.so.1", "");
    let path = Environment::of([("LD_LIBRARY_PATH", ":/opt/verbs")]);
    let found = added.examine_with(doctor::Arguments::default(), &path);
    assert_eq!(found.level("rdma", "libibverbs.so.1 is installed"), "ok");
}

#[test]
fn missing_device_files_break_transfers() {
    let found = Host::with_rdma(&[]).remove("dev/infiniband/uverbs0").examine();
    assert_eq!(found.level("rdma", "no uverbs file"), "failure");
    assert!(!found.success);
}

#[test]
fn wishes_that_cannot_be_granted_or_understood_break_transfers() {
    let host = Host::with_rdma(&[]);
    let with = |name, value| {
        host.examine_with(doctor::Arguments::default(), &Environment::of([(name, value)]))
    };
    let missing = with("KVFERRY_RDMA_DEVICES", "mlx5_0");
    assert_eq!(missing.level("rdma", "KVFERRY_RDMA_DEVICES lists mlx5_0"), "failure");
    assert!(!missing.success);
    let nonsense = with("MC_GID_INDEX", "50%");
    assert_eq!(nonsense.level("rdma", "MC_GID_INDEX=\"50%\""), "failure");
    assert!(!nonsense.success);
    assert_eq!(with("NCCL_IB_DISABLE", "1").level("rdma", "NCCL_IB_DISABLE"), "note");
}

#[test]
fn the_limit_on_locked_memory_matters_as_much_as_it_is_small() {
    let limits = |bytes: &str| format!("Max locked memory         {bytes}   {bytes}   bytes");
    let with = |bytes: &str| Host::with_rdma(&[("proc/self/limits", &limits(bytes))]);
    let small = with("8388608").examine();
    assert_eq!(small.level("memlock", "8 MiB can be locked"), "failure");
    assert!(!small.success);
    let large = with("68719476736").examine();
    assert_eq!(large.level("memlock", "64 GiB can be locked"), "warning");
    assert!(large.success);
    assert_eq!(with("unlimited").examine().level("memlock", "any amount"), "ok");

    let capable = with("8388608");
    capable.file("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
    assert_eq!(capable.examine().level("memlock", "CAP_IPC_LOCK"), "ok");
    let incapable = with("8388608");
    incapable.file("proc/self/status", "Name:\tx\nCapEff:\t0000000000003fff\n");
    assert_eq!(incapable.examine().level("memlock", "8 MiB can be locked"), "failure");

    let tcp_only = Host::new(&[("proc/self/limits", &limits("8388608"))]).examine();
    assert_eq!(tcp_only.level("memlock", "matters with RDMA only"), "note");
    let garbage = Host::new(&[("proc/self/limits", "Max locked memory much")]).examine();
    assert_eq!(garbage.level("memlock", "/proc/self/limits says"), "unchecked");
    assert_eq!(Host::new(&[]).examine().level("memlock", "does not exist"), "unchecked");
}

#[test]
fn huge_pages_are_missed_where_they_are_switched_off() {
    let directory = "sys/kernel/mm/transparent_hugepage";
    let found = Host::new(&[
        (&format!("{directory}/enabled"), "always madvise [never]"),
        (&format!("{directory}/shmem_enabled"), "always within_size [advise] never deny force"),
        ("proc/meminfo", "HugePages_Total:    1024\nHugePages_Free:      512\n"),
    ])
    .examine();
    assert_eq!(found.level("huge pages", "enabled is never"), "warning");
    assert_eq!(found.level("huge pages", "shmem_enabled is advise"), "ok");
    assert_eq!(found.level("huge pages", "512 of 1024"), "ok");
    let none = Host::new(&[
        (&format!("{directory}/shmem_enabled"), "always within_size advise never [deny] force"),
        ("proc/meminfo", "HugePages_Total:    0\nHugePages_Free:      0\n"),
    ])
    .examine();
    assert_eq!(none.level("huge pages", "shmem_enabled is deny"), "warning");
    assert_eq!(none.level("huge pages", "enabled does not exist"), "unchecked");
    assert_eq!(none.level("huge pages", "none are reserved"), "note");
    let shared =
        (format!("{directory}/shmem_enabled"), "always within_size advise [never] deny force");
    for (release, level) in [("6.1.0-9-amd64", "ok"), ("7.0", "ok"), ("5.15.0", "warning")] {
        let host = Host::new(&[(&shared.0, shared.1), ("proc/sys/kernel/osrelease", release)]);
        assert_eq!(host.examine().level("huge pages", "memory that processes share"), level);
    }
}

#[test]
fn ports_in_the_ephemeral_range_may_be_taken_unless_they_are_reserved() {
    let range = ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
    let asked = || doctor::Arguments { port: vec![50_051, 32_767], ..doctor::Arguments::default() };
    let host = Host::new(&[range]);
    let found = host.examine_with(asked(), &Environment::default());
    assert_eq!(found.level("ports", "50051"), "warning");
    assert_eq!(found.level("ports", "32767"), "ok");
    assert_eq!(found.level("ports", "8998 (bootstrap server)"), "ok");

    let reserved = ("proc/sys/net/ipv4/ip_local_reserved_ports", "50000-50100\n");
    let found = Host::new(&[range, reserved]).examine_with(asked(), &Environment::default());
    assert_eq!(
        found.level("ports", "50051 (--port) is in the ephemeral range, and reserved"),
        "ok"
    );

    let bootstrap = |port| Environment::of([("VLLM_MOONCAKE_BOOTSTRAP_PORT", port)]);
    let found = host.examine_with(doctor::Arguments::default(), &bootstrap("60999"));
    assert_eq!(found.level("ports", "60999 (VLLM_MOONCAKE_BOOTSTRAP_PORT)"), "warning");
    for port in ["65536", "-1", "http", "0"] {
        let found = host.examine_with(doctor::Arguments::default(), &bootstrap(port));
        assert_eq!(found.level("ports", "is not a port"), "failure", "{port}");
        assert!(!found.success);
    }
    assert_eq!(Host::new(&[]).examine().level("ports", "does not exist"), "unchecked");
}

#[test]
fn a_ptrace_scope_above_zero_closes_the_short_way_unless_the_process_may_pass() {
    let scope = |value| Host::new(&[("proc/sys/kernel/yama/ptrace_scope", value)]);
    assert_eq!(scope("0").examine().level("ptrace scope", "0:"), "ok");
    for value in ["1", "2", "3"] {
        let found = scope(value).examine();
        assert_eq!(found.level("ptrace scope", &format!("scope {value}:")), "warning");
        assert!(found.success, "a slower way is left");
    }
    assert_eq!(scope("9").examine().level("ptrace scope", "not known"), "unchecked");
    let capable = scope("2");
    capable.file("proc/self/status", "CapEff:\t0000000000080000");
    assert_eq!(capable.examine().level("ptrace scope", "CAP_SYS_PTRACE"), "ok");
    let no_yama = Host::new(&[("proc/sys/kernel/osrelease", "6.1.0")]).examine();
    assert_eq!(no_yama.level("ptrace scope", "not restricted"), "ok");
    assert_eq!(Host::new(&[]).examine().level("ptrace scope", "does not exist"), "unchecked");
}

#[test]
fn the_run_directory_is_tried_on_the_running_machine_only() {
    let own = tempfile::tempdir().expect("a directory");
    let directory = own.path().to_str().expect("a path");
    let live = |variable, value: &str| {
        examine(None, doctor::Arguments::default(), &Environment::of([(variable, value)]))
    };
    let level = |found: &Findings, part| found.level("run directory", part).to_owned();
    assert_eq!(level(&live("KVFERRY_RUN_DIR", directory), "can be written to"), "ok");
    let new = live("XDG_RUNTIME_DIR", directory);
    assert_eq!(level(&new, "/kvferry is not there yet, and can be made"), "ok");
    let missing = live("KVFERRY_RUN_DIR", &format!("{directory}/not/there"));
    assert_eq!(level(&missing, "cannot be written to"), "warning");
    let long = live("KVFERRY_RUN_DIR", &format!("{directory}/{}", "d".repeat(100)));
    assert_eq!(level(&long, "too long for the path of a socket"), "warning");
    assert_eq!(level(&Host::new(&[]).examine(), "captured machine"), "unchecked");
}

#[test]
fn gpus_need_their_driver_its_library_and_a_way_to_the_network() {
    let none = Host::new(&[("sys/bus/pci/devices/.keep", "")]).examine();
    assert_eq!(none.level("cuda", "no NVIDIA GPU"), "note");
    assert_eq!(Host::new(&[]).examine().level("cuda", "whether there are GPUs"), "unchecked");
    let bare = Host::new(&[]).with_gpu().examine();
    assert_eq!(bare.level("cuda", "1 GPUs and no NVIDIA driver"), "warning");

    let driver = ("proc/driver/nvidia/version", "NVRM version: 570\nGCC version: 13\n");
    let found = Host::with_rdma(&[driver]).with_gpu().examine();
    assert_eq!(found.level("cuda", "1 GPUs; NVRM version: 570"), "ok");
    assert_eq!(found.level("cuda", "libcuda.so.1 is not installed"), "warning");
    assert_eq!(found.level("cuda", "nvidia_peermem is not loaded"), "warning");
    assert_eq!(found.level("cuda", "dma-buf: only CUDA tells"), "unchecked");

    let library = ("usr/lib/x86_64-linux-gnu/libcuda.so.1", "");
    let module = ("sys/module/nvidia_peermem/refcnt", "0");
    let found = Host::with_rdma(&[driver, library, module]).with_gpu().examine();
    assert_eq!(found.level("cuda", "libcuda.so.1 is installed"), "ok");
    assert_eq!(found.level("cuda", "nvidia_peermem is loaded"), "ok");
}

#[test]
fn the_running_machine_can_be_examined() {
    let found = examine(None, doctor::Arguments::default(), &Environment::default());
    let counted = |level: &str| {
        let all = found.json["findings"].as_array().expect("findings");
        all.iter().filter(|finding| finding["level"] == level).count()
    };
    assert_eq!(found.json["failures"], counted("failure"));
    assert_eq!(found.json["warnings"], counted("warning"));
    assert_eq!(found.json["unchecked"], counted("unchecked"));
    assert_eq!(found.success, counted("failure") == 0);
}
