//! Lists of devices.

use std::fmt;

use kvferry_transport::rdma::device::{DeviceName, GpuIndex, PortNumber};

use super::{Source, WishError};
use crate::topology::endpoint::PortName;

/// A device as users write it: `mlx5_0` means all its ports, `mlx5_0:2` one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListedDevice {
    /// The name.
    pub device: DeviceName,
    /// The port, where one is named.
    pub port: Option<PortNumber>,
}

/// Which devices the user wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceList {
    /// These.
    Names(Vec<ListedDevice>),
    /// One for each physical GPU; a process gets those of its GPUs, each once.
    ByGpu(Vec<ListedDevice>),
    /// Those that match.
    Matching(Patterns),
}

/// Patterns as `NCCL_IB_HCA` has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patterns {
    /// Whether those that match are unwanted: a leading `^`.
    pub exclude: bool,
    /// Whether names must be equal: a leading `=`. Otherwise a pattern is the beginning of a name.
    pub exact: bool,
    /// The patterns.
    pub patterns: Vec<ListedDevice>,
}

impl DeviceList {
    /// Names, separated by commas. `None` for an empty text, which asks for nothing.
    ///
    /// # Errors
    /// [`WishError`] for an empty entry or a port that is none.
    pub fn parse_names(from: Source, text: &str) -> Result<Option<Self>, WishError> {
        Ok(parse_entries(from, text)?.map(Self::Names))
    }

    /// Names by physical GPU, separated by commas.
    ///
    /// # Errors
    /// [`WishError`] for an empty entry or a port that is none.
    pub fn parse_by_gpu(from: Source, text: &str) -> Result<Option<Self>, WishError> {
        Ok(parse_entries(from, text)?.map(Self::ByGpu))
    }

    /// Patterns as `NCCL_IB_HCA` has them: `^` excludes, `=` demands the whole name.
    ///
    /// # Errors
    /// [`WishError`] for an empty entry or a port that is none.
    pub fn parse_patterns(from: Source, text: &str) -> Result<Option<Self>, WishError> {
        let (exclude, rest) = prefix(text.trim(), '^');
        let (exact, rest) = prefix(rest, '=');
        let matching = |patterns| Self::Matching(Patterns { exclude, exact, patterns });
        Ok(parse_entries(from, rest)?.map(matching))
    }
}

impl ListedDevice {
    /// Whether this means a port.
    #[must_use]
    pub fn names(&self, port: &PortName) -> bool {
        self.device == port.device && self.has_port(port)
    }

    /// Whether this is the beginning of a port's name.
    #[must_use]
    pub fn begins(&self, port: &PortName) -> bool {
        port.device.as_str().starts_with(self.device.as_str()) && self.has_port(port)
    }

    fn has_port(&self, port: &PortName) -> bool {
        self.port.is_none_or(|number| number == port.port)
    }
}

impl Patterns {
    /// Whether one of the patterns means a port.
    pub(in crate::topology) fn pattern_matches(
        &self,
        pattern: &ListedDevice,
        port: &PortName,
    ) -> bool {
        if self.exact { pattern.names(port) } else { pattern.begins(port) }
    }
}

/// The entries of a list by GPU that belong to some GPUs, each once, in the order of the list. The
/// error is the first GPU that the list does not reach.
pub(in crate::topology) fn of_gpus(
    list: &[ListedDevice],
    gpus: Option<&[GpuIndex]>,
) -> Result<Vec<ListedDevice>, GpuIndex> {
    let mut wanted = Vec::new();
    let mut add = |entry: &ListedDevice| {
        if !wanted.contains(entry) {
            wanted.push(entry.clone());
        }
    };
    match gpus {
        None => list.iter().for_each(add),
        Some(gpus) => {
            for gpu in gpus {
                let at = usize::try_from(gpu.0).unwrap_or(usize::MAX);
                add(list.get(at).ok_or(*gpu)?);
            }
        }
    }
    Ok(wanted)
}

fn prefix(text: &str, mark: char) -> (bool, &str) {
    text.strip_prefix(mark).map_or((false, text), |rest| (true, rest))
}

fn parse_entries(from: Source, text: &str) -> Result<Option<Vec<ListedDevice>>, WishError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let entries = (1..).zip(text.split(',').map(str::trim)).map(|(position, entry)| {
        if entry.is_empty() {
            return Err(WishError::EmptyEntry { from, value: text.to_owned(), position });
        }
        parse_entry(from, entry)
    });
    entries.collect::<Result<_, _>>().map(Some)
}

fn parse_entry(from: Source, entry: &str) -> Result<ListedDevice, WishError> {
    let bad = || WishError::Port { from, entry: entry.to_owned() };
    let Some((device, port)) = entry.split_once(':') else {
        return Ok(ListedDevice { device: DeviceName::new(entry), port: None });
    };
    match port.parse() {
        Ok(number) if number > 0 && !device.is_empty() => {
            Ok(ListedDevice { device: DeviceName::new(device), port: Some(PortNumber(number)) })
        }
        _ => Err(bad()),
    }
}

impl fmt::Display for ListedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.device),
            None => write!(f, "{}", self.device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Source = Source("KVFERRY_RDMA_DEVICES");

    #[test]
    fn a_process_gets_the_devices_of_its_gpus_each_once() {
        let text = "mlx5_0,mlx5_0,mlx5_1,mlx5_2";
        let Ok(Some(DeviceList::ByGpu(list))) = DeviceList::parse_by_gpu(FROM, text) else {
            panic!("a list by GPU");
        };
        let of = |gpus: &[u32]| {
            let gpus: Vec<_> = gpus.iter().copied().map(GpuIndex).collect();
            of_gpus(&list, Some(&gpus))
                .map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(of(&[0, 1]), Ok(vec!["mlx5_0".into()]));
        assert_eq!(of(&[3, 1]), Ok(vec!["mlx5_2".into(), "mlx5_0".into()]));
        assert_eq!(of(&[4]), Err(GpuIndex(4)));
        assert_eq!(of_gpus(&list, None).map(|found| found.len()), Ok(3));
    }

    #[test]
    fn empty_entries_and_impossible_ports_are_errors_that_name_them() {
        let names = |text| DeviceList::parse_names(FROM, text);
        assert_eq!(names("  "), Ok(None));
        assert!(matches!(names("a,,b"), Err(WishError::EmptyEntry { position: 2, .. })));
        assert!(matches!(names("a,"), Err(WishError::EmptyEntry { position: 2, .. })));
        for entry in ["a:0", "a:256", "a:x", "a:", ":1", "a:-1", "a:1:1"] {
            assert!(matches!(names(entry), Err(WishError::Port { .. })), "{entry}");
        }
    }

    #[test]
    fn patterns_match_beginnings_unless_told_to_match_whole_names() {
        let port = PortName { device: DeviceName::new("mlx5_10"), port: PortNumber(1) };
        let matches = |text| {
            let Ok(Some(DeviceList::Matching(found))) = DeviceList::parse_patterns(FROM, text)
            else {
                panic!("patterns");
            };
            (found.exclude, found.pattern_matches(&found.patterns[0], &port))
        };
        assert_eq!(matches("mlx5_1"), (false, true));
        assert_eq!(matches("=mlx5_1"), (false, false));
        assert_eq!(matches("^mlx5"), (true, true));
        assert_eq!(matches("^=mlx5_10:2"), (true, false));
    }
}
