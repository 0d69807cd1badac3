//! What settings are set to.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;
use clap::ValueEnum;
use kvferry_engine::{Access, Pages, Region, Registry, Transports};
use serde::{Deserialize, Serialize};

/// Which way the blocks go, from the process that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    /// From the initiator to the target.
    Write,
    /// From the target to the initiator.
    Read,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// Which ways are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OpChoice {
    /// Push: from the initiator to the target
    Write,
    /// Pull: from the target to the initiator
    Read,
    /// One after the other
    Both,
}

impl OpChoice {
    /// All that are chosen, in order, each once.
    pub(crate) fn ops(choices: &[Self]) -> Vec<Op> {
        let mut ops = Vec::new();
        for choice in choices {
            let chosen: &[Op] = match choice {
                Self::Write => &[Op::Write],
                Self::Read => &[Op::Read],
                Self::Both => &[Op::Write, Op::Read],
            };
            for op in chosen {
                if !ops.contains(op) {
                    ops.push(*op);
                }
            }
        }
        ops
    }
}

/// What is to carry the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Transport {
    /// Whatever the engine chooses
    #[default]
    Auto,
    /// TCP connections
    Tcp,
    /// Unix sockets, and memory that two processes of one host lend each other
    Local,
    /// RDMA adapters: those that each end's environment says (`KVFERRY_RDMA_DEVICES`)
    Rdma,
}

impl Transport {
    /// Whether this carrier is what was asked for.
    pub(crate) fn permits(self, carrier: &str) -> bool {
        match self {
            Self::Auto => true,
            Self::Tcp => carrier == "tcp",
            Self::Local => carrier == "local",
            Self::Rdma => carrier == "rdma",
        }
    }

    /// What the engines are told.
    pub(crate) fn setting(self) -> Transports {
        match self {
            Self::Auto => Transports::Auto,
            Self::Tcp => Transports::Only(kvferry_engine::Transport::Tcp),
            Self::Local => Transports::Only(kvferry_engine::Transport::Local),
            Self::Rdma => Transports::Only(kvferry_engine::Transport::Rdma),
        }
    }
}

/// What the blocks lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Memory {
    /// The engine's own allocation, in huge pages where there are some: processes of one host map it
    #[default]
    Shared,
    /// Memory that no other process can map, in pages of 4 KiB
    Foreign,
    /// The same in huge pages
    ForeignHuge,
}

impl Memory {
    /// A region of it.
    pub(crate) fn region(self, registry: &Registry, bytes: u64) -> anyhow::Result<Region> {
        let pages = match self {
            Self::Shared => None,
            Self::Foreign => Some(Pages::Small),
            Self::ForeignHuge => Some(Pages::Huge),
        };
        let had = match pages {
            None => registry.allocate(bytes),
            Some(pages) => {
                let memory = kvferry_engine::Memory::anonymous(usize::try_from(bytes)?, pages)?;
                registry.register(memory, Access::ReadWrite)
            }
        };
        had.with_context(|| format!("{bytes} bytes are needed: move less"))
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shared => "shared",
            Self::Foreign => "foreign",
            Self::ForeignHuge => "foreign-huge",
        })
    }
}

/// A file, or standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    Output,
    File(PathBuf),
}

impl FromStr for Sink {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "-" { Self::Output } else { Self::File(text.into()) })
    }
}

/// What keys and values are kept as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    /// One byte
    Fp8,
    /// Two bytes
    Bf16,
}

impl Dtype {
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Fp8 => 1,
            Self::Bf16 => 2,
        }
    }
}

/// What one I/O moves of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PagePattern {
    /// All layers of a pipeline stage
    Block,
    /// One layer
    Layer,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_done_once_each_in_the_order_asked_for() {
        use OpChoice::{Both, Read, Write};
        assert_eq!(OpChoice::ops(&[Both]), [Op::Write, Op::Read]);
        assert_eq!(OpChoice::ops(&[Read, Both, Write]), [Op::Read, Op::Write]);
        assert_eq!(OpChoice::ops(&[Read]), [Op::Read]);
    }
}
