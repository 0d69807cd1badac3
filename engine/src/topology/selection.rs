//! The user's lists against what there is.

use kvferry_transport::rdma::device::{DeviceName, GpuIndex};

use super::choice::PortReport;
use super::endpoint::PortName;
use super::verdict::Refusal;
use super::wishes::{DeviceList, ListedDevice, Source, Unheeded, Wishes};

/// A wish that cannot be granted. Nothing is chosen in its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// No device has that name.
    #[error("{from} lists {device}, and there is no such device{}", named(present))]
    NoSuchDevice {
        /// Who lists it.
        from: Source,
        /// What is listed.
        device: ListedDevice,
        /// What there is.
        present: Vec<DeviceName>,
    },
    /// There is the device, and it cannot be used.
    #[error("{from} lists {device}, which cannot be used: {reason}")]
    Useless {
        /// Who lists it.
        from: Source,
        /// What is listed.
        device: ListedDevice,
        /// Why it cannot be used.
        reason: Refusal,
    },
    /// The list by GPU is shorter than this process's GPUs.
    #[error("{from} lists devices for {listed} GPUs, and this process has GPU {gpu}")]
    GpuNotListed {
        /// The list.
        from: Source,
        /// How long it is.
        listed: usize,
        /// The first GPU that it does not reach.
        gpu: GpuIndex,
    },
    /// The wishes leave no device, and there would be some.
    #[error("{from} leaves none of {present} ports: `kvctl topology` says why for each")]
    NothingLeft {
        /// Who asked.
        from: Source,
        /// How many ports there are.
        present: usize,
    },
}

/// The user's list, resolved for this process's GPUs.
#[derive(Debug)]
pub(super) struct Selection<'a> {
    wishes: &'a Wishes,
    /// What is asked for by name, of this process's GPUs only.
    entries: Vec<ListedDevice>,
    gpu_missing: Option<SelectionError>,
}

impl<'a> Selection<'a> {
    pub(super) fn new(wishes: &'a Wishes) -> Self {
        let (mut entries, mut gpu_missing) = (Vec::new(), None);
        if let Some(wish) = &wishes.devices {
            match &wish.value {
                DeviceList::Names(names) => entries.clone_from(names),
                DeviceList::Matching(patterns) => entries.clone_from(&patterns.patterns),
                DeviceList::ByGpu(list) => {
                    match super::wishes::of_gpus(list, wishes.gpus.as_deref()) {
                        Ok(found) => entries = found,
                        Err(gpu) => {
                            let (from, listed) = (wish.from, list.len());
                            gpu_missing = Some(SelectionError::GpuNotListed { from, listed, gpu });
                        }
                    }
                }
            }
        }
        Self { wishes, entries, gpu_missing }
    }

    /// Whether the user wants a port.
    pub(super) fn admit(&self, port: &PortName) -> Result<(), Refusal> {
        if let Some(wish) = &self.wishes.devices {
            let by = wish.from;
            let listed = self.entries.iter().any(|entry| self.means(entry, port));
            match (self.is_exclusion(), listed) {
                (true, true) => return Err(Refusal::Excluded { by }),
                (false, false) => return Err(Refusal::NotListed { by }),
                _ => {}
            }
            // Who names a port means it, whatever port is asked for in general.
            let names_port = |entry: &ListedDevice| entry.port.is_some() && self.means(entry, port);
            if self.entries.iter().any(names_port) {
                return Ok(());
            }
        }
        match &self.wishes.port {
            Some(wish) if wish.value != port.port => {
                Err(Refusal::OtherPort { wanted: wish.value, by: wish.from })
            }
            _ => Ok(()),
        }
    }

    /// What was asked for and cannot be, and exclusions that exclude nothing.
    pub(super) fn check(&self, ports: &[PortReport]) -> (Vec<SelectionError>, Vec<Unheeded>) {
        let mut errors: Vec<_> = self.gpu_missing.iter().cloned().collect();
        let mut unheeded = Vec::new();
        if let Some(from) = self.wishes.devices.as_ref().map(|wish| wish.from) {
            for entry in &self.entries {
                if !self.is_exclusion() {
                    errors.extend(self.check_entry(from, entry, ports));
                } else if !ports.iter().any(|port| self.means(entry, &port.name)) {
                    unheeded.push(Unheeded::ExcludesNothing { from, pattern: entry.clone() });
                }
            }
        }
        let nothing_left = ports.iter().all(|port| port.verdict.is_err());
        if let Some(from) = ports.iter().find_map(|port| self.refused_by(port))
            && nothing_left
            && errors.is_empty()
        {
            errors.push(SelectionError::NothingLeft { from, present: ports.len() });
        }
        (errors, unheeded)
    }

    fn check_entry(
        &self,
        from: Source,
        entry: &ListedDevice,
        ports: &[PortReport],
    ) -> Option<SelectionError> {
        let meant = ports.iter().filter(|port| self.means(entry, &port.name));
        // `None` where one of them is used.
        let reasons: Vec<_> =
            meant.map(|port| port.verdict.as_ref().err()).collect::<Option<_>>()?;
        let device = entry.clone();
        Some(match reasons.first() {
            None => SelectionError::NoSuchDevice { from, device, present: present(ports) },
            Some(reason) => SelectionError::Useless { from, device, reason: (*reason).clone() },
        })
    }

    /// The wish for which a port is not used, if it is for one.
    fn refused_by(&self, port: &PortReport) -> Option<Source> {
        match port.verdict.as_ref().err()? {
            Refusal::Excluded { by } | Refusal::OtherPort { by, .. } => Some(*by),
            Refusal::WishedGid { from, .. } => Some(*from),
            Refusal::NoPKey { .. } | Refusal::NoPartition { .. } => {
                self.wishes.pkey_index.as_ref().map(|wish| wish.from)
            }
            _ => None,
        }
    }

    fn is_exclusion(&self) -> bool {
        let list = self.wishes.devices.as_ref().map(|wish| &wish.value);
        matches!(list, Some(DeviceList::Matching(patterns)) if patterns.exclude)
    }

    fn means(&self, entry: &ListedDevice, port: &PortName) -> bool {
        match self.wishes.devices.as_ref().map(|wish| &wish.value) {
            Some(DeviceList::Matching(patterns)) => patterns.pattern_matches(entry, port),
            _ => entry.names(port),
        }
    }
}

fn present(ports: &[PortReport]) -> Vec<DeviceName> {
    let mut names: Vec<_> = ports.iter().map(|port| port.name.device.clone()).collect();
    names.dedup();
    names
}

/// How many names an error lists at most.
const LISTED_NAMES: usize = 8;

fn named(present: &[DeviceName]) -> String {
    if present.is_empty() {
        return ": this host has none".to_owned();
    }
    let names: Vec<_> = present.iter().take(LISTED_NAMES).map(DeviceName::as_str).collect();
    let more = present.len().saturating_sub(LISTED_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("; there are {}{more}", names.join(", "))
}
