//! RDMA devices and the library that drives them.

use std::time::Duration;

use kvferry_engine::topology::{Endpoint, Refusal, Topology};
use kvferry_transport::rdma::verbs::{
    Route, TRIAL_BYTES, TrialError, Verbs, VerbsError, write_and_read_back,
};

use super::Host;
use super::finding::{Finding, Findings};
use super::library;

const LIBRARY: &str = "libibverbs.so.1";
const DEVICE_FILES: &str = "/dev/infiniband";

pub(super) fn check(host: &Host<'_>, required: bool) -> Vec<Finding> {
    let mut found = Findings::of("rdma");
    match &host.topology {
        Err(error) => found.failure(error.to_string(), "correct the variable, or unset it"),
        Ok(topology) => {
            check_devices(&mut found, topology, required);
            if host.has_usable_rdma() {
                check_access(&mut found, host);
                if host.root.is_live() {
                    try_adapters(&mut found, topology);
                }
                found.unchecked("whether packets get through: only a transfer with the peer tells");
            }
        }
    }
    found.take()
}

fn check_devices(found: &mut Findings, topology: &Topology, required: bool) {
    let ports = topology.ports.len();
    let used = topology.ports.iter().filter(|port| port.verdict.is_ok()).count();
    let without = if ports == 0 {
        let why = topology.no_adapters.as_ref().map(|absence| format!(" ({absence})"));
        format!("this host has no RDMA devices{}: transfers use TCP", why.unwrap_or_default())
    } else {
        format!("none of {ports} ports can be used: transfers use TCP")
    };
    match (used, ports) {
        (0, _) if required => {
            found.failure(without, "see `kvctl topology`; load the driver, or do without RDMA");
        }
        (0, 0) => found.note(without),
        // Somebody bought RDMA and does not get it.
        (0, _) => found.failure(without, "mend what is listed below, or hide the devices"),
        _ => found.ok(format!("{used} of {ports} ports are used, in {}", groups(topology))),
    }
    for port in &topology.ports {
        match &port.verdict {
            Err(
                Refusal::NotListed { .. } | Refusal::Excluded { .. } | Refusal::OtherPort { .. },
            ) => {}
            Err(refusal) => {
                found.warning(format!("{} is not used: {refusal}", port.name), fix_of(refusal));
            }
            Ok(_) => {
                for caution in &port.cautions {
                    found.note(format!("{}: {caution}", port.name));
                }
            }
        }
    }
    for error in &topology.errors {
        found.failure(error.to_string(), "correct the list, or mend the device");
    }
    for unheeded in &topology.unheeded {
        found.note(unheeded.to_string());
    }
}

fn groups(topology: &Topology) -> String {
    match &topology.groups[..] {
        [one] => format!("route group {one}"),
        groups => {
            let names: Vec<_> = groups.iter().map(ToString::to_string).collect();
            format!("{} route groups: {}", groups.len(), names.join(", "))
        }
    }
}

fn fix_of(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotActive { .. } => "`ip link set IF up`, or look at cable and switch",
        Refusal::NoGid { .. } | Refusal::NoRoceV2 { .. } => {
            "`ip address add ADDRESS/LENGTH dev IF`"
        }
        Refusal::LimitedMember { .. } | Refusal::NoPartition { .. } | Refusal::NoPKey { .. } => {
            "make the port a full member at the subnet manager, or choose another index"
        }
        Refusal::WishedGid { .. } => "unset the variable to have the best GID chosen",
        _ => "nothing, if the device is not meant for transfers",
    }
}

fn check_access(found: &mut Findings, host: &Host<'_>) {
    if library::is_installed(host, LIBRARY) {
        found.ok(format!("{LIBRARY} is installed"));
    } else {
        let fix = "install rdma-core (Debian and Ubuntu: libibverbs1 and ibverbs-providers)";
        found.failure(format!("{LIBRARY} is not installed: devices cannot be opened"), fix);
    }
    let files = host.root.names(DEVICE_FILES).unwrap_or_default();
    if files.iter().any(|file| file.starts_with("uverbs")) {
        found.ok(format!("{DEVICE_FILES} has the devices' files"));
    } else {
        found.failure(
            format!("{DEVICE_FILES} has no uverbs file: devices cannot be opened"),
            "load ib_uverbs; in a container, pass --device=/dev/infiniband",
        );
    }
}

/// Has every adapter that is used write to itself, and read back.
fn try_adapters(found: &mut Findings, topology: &Topology) {
    let verbs = match Verbs::load() {
        Ok(verbs) => verbs,
        // One that is missing has been found already; one that is there and does not load has not.
        Err(error) => {
            let fix = "install rdma-core 29 or later";
            return found.failure(error.to_string(), fix);
        }
    };
    for endpoint in topology.endpoints() {
        let name = &endpoint.name;
        match try_adapter(&verbs, &endpoint) {
            Ok(took) => found.ok(format!(
                "{name}: {TRIAL_BYTES} bytes written and read back through the adapter in {} us",
                took.as_micros()
            )),
            Err(error) => found.failure(format!("{name}: {error}"), fix_of_trial(&error)),
        }
    }
}

fn try_adapter(verbs: &Verbs, endpoint: &Endpoint) -> Result<Duration, TrialError> {
    let context = verbs.open(&endpoint.name.device)?;
    let Endpoint { name, gid_index, pkey_index, .. } = endpoint;
    write_and_read_back(&context, Route { port: name.port, gid: *gid_index, pkey: *pkey_index })
}

fn fix_of_trial(error: &TrialError) -> &'static str {
    match error {
        TrialError::Verbs(VerbsError::MemoryLock { .. }) => "raise the limit on locked memory",
        TrialError::Verbs(VerbsError::NoDevice { .. }) => {
            "give this process the device's file: --device=/dev/infiniband for a container"
        }
        _ => {
            "look at the adapter's firmware, driver and link; name the others in KVFERRY_RDMA_DEVICES"
        }
    }
}
