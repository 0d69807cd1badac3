//! `kvctl topology`: which RDMA devices are used, with whom, and why the others are not.

mod endpoint;
mod peer;
mod report;
mod table;

use std::path::PathBuf;

use clap::Args;
use kvferry_engine::topology::{Topology, Wishes};
use kvferry_transport::rdma::device::HostFacts;

use crate::cli::{Environment, Machine, Outcome};

/// Show which RDMA devices are used, with whom, and why the others are not.
///
/// Every port is shown with its state, speed, NUMA node, distance to each GPU, and the GID,
/// partition key and route group that were chosen. Ports reach each other within a route group
/// only: an InfiniBand subnet, or an IP network and those that routes join to it.
///
/// The choice follows the environment: KVFERRY_RDMA_DEVICES (names, as mlx5_0,mlx5_1:2),
/// KVFERRY_RDMA_DEVICES_BY_GPU (one name for each physical GPU; CUDA_VISIBLE_DEVICES says which
/// are this process's), KVFERRY_RDMA_GID_INDEX, KVFERRY_RDMA_PKEY_INDEX, KVFERRY_RDMA_PORT; then
/// MOONCAKE_DEVICE, MC_TE_FILTERS, MC_MS_FILTERS, MC_GID_INDEX, MC_PKEY_INDEX, MC_IB_PORT; then
/// NCCL_IB_HCA, NCCL_IB_GID_INDEX, NCCL_IB_PKEY. The first that is set wins; those that give way
/// are shown.
///
/// Distances are named as nvidia-smi names them: PIX below one PCIe switch, PXB over several, PHB
/// over the host bridge, NODE within a NUMA node, SYS across, - unknown.
///
/// Ends with status 1 where a device that was asked for cannot be used, or no device reaches the
/// peer's.
#[derive(Clone, Debug, Default, Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// Print JSON, which is also what --peer-topology reads.
    #[arg(long)]
    pub json: bool,

    /// Show how this host's ports pair with another's: FILE is the output of
    /// `kvctl topology --json` there.
    #[arg(long, value_name = "FILE")]
    pub peer_topology: Option<PathBuf>,

    /// Which machine to look at.
    #[command(flatten)]
    pub machine: Machine,
}

/// Carries out the command.
///
/// # Errors
/// Where the environment or the peer's file say nothing that can be understood.
pub fn run(arguments: &Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let facts = HostFacts::read(&arguments.machine.root());
    let wishes = Wishes::from_environment(|name| environment.get(name))?;
    let topology = Topology::choose(&facts, &wishes);
    let meeting = match &arguments.peer_topology {
        None => None,
        Some(file) => Some(peer::meet(&topology, file)?),
    };
    let success =
        topology.errors.is_empty() && meeting.as_ref().is_none_or(peer::Meeting::may_work);
    let text = if arguments.json {
        report::render(&topology, meeting.as_ref())?
    } else {
        let mut text = table::render(&topology);
        if let Some(meeting) = &meeting {
            text.push_str(&meeting.render());
        }
        text
    };
    Ok(Outcome { text, success })
}
