//! What the user asked for.
//!
//! Four wishes: which devices, which GID, which partition key, which port. Each comes from one
//! place, the strongest that has it; a weaker one is not dropped in silence but kept among
//! [`Wishes::unheeded`]. Whether a wish can be granted is checked when the topology is chosen.

mod environment;
mod list;

use std::fmt;

use kvferry_transport::rdma::device::{GidIndex, GpuIndex, PKeyIndex, PortNumber};

pub(super) use list::of_gpus;
pub use list::{DeviceList, ListedDevice, Patterns};

/// Where a wish comes from: the name of a variable, an argument or a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(pub &'static str);

/// A wish and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wished<T> {
    /// What is wanted.
    pub value: T,
    /// Who wants it.
    pub from: Source,
}

/// What the user asked for. The default is nothing: everything is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Which devices.
    pub devices: Option<Wished<DeviceList>>,
    /// Which entry of the table of GIDs, on every port.
    pub gid_index: Option<Wished<GidIndex>>,
    /// Which entry of the table of partition keys, on every InfiniBand port.
    pub pkey_index: Option<Wished<PKeyIndex>>,
    /// Which port of adapters that have several.
    pub port: Option<Wished<PortNumber>>,
    /// The physical GPUs of this process: a list of devices by GPU gives it those of its GPUs.
    /// Unknown: those of all.
    pub gpus: Option<Vec<GpuIndex>>,
    /// What was asked for and does not decide.
    pub unheeded: Vec<Unheeded>,
}

/// Something that was asked for and does not decide, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unheeded {
    /// Something stronger asked for something else.
    #[error("{from}={value:?} gives way to {winner}")]
    Overridden {
        /// Who asked.
        from: Source,
        /// For what.
        value: String,
        /// Who wins.
        winner: Source,
    },
    /// It does not speak to us.
    #[error("{from}={value:?} is not obeyed: {why}")]
    NotOurs {
        /// Who asked.
        from: Source,
        /// For what.
        value: String,
        /// Why not.
        why: &'static str,
    },
    /// An exclusion that excludes nothing.
    #[error("{from} excludes {pattern}, and there is no such device")]
    ExcludesNothing {
        /// Who asked.
        from: Source,
        /// What was to be excluded.
        pattern: ListedDevice,
    },
}

/// Why the text of a wish says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WishError {
    /// Not a number, or not one that can be.
    #[error("{from}={value:?} is not {expected}")]
    Number {
        /// The variable.
        from: Source,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// An entry of a list has no name.
    #[error("{from}={value:?}: entry {position} of the list is empty")]
    EmptyEntry {
        /// The variable.
        from: Source,
        /// Its value.
        value: String,
        /// Which entry, counted from 1.
        position: usize,
    },
    /// The port behind a name is none.
    #[error("{from}: {entry:?} asks for a port that is not a number from 1 to 255")]
    Port {
        /// The variable.
        from: Source,
        /// The entry.
        entry: String,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}
