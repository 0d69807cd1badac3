//! What each of the two processes has: an engine, a region, and the order of its blocks.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, ensure};
use kvferry_engine::{Access, Engine, Layout, LayoutView, Region, Registry};
use serde::{Deserialize, Serialize};

use crate::cli::{Memory, Transport};
use crate::floor::Twin;
use crate::pattern::{Mismatch, Pattern};
use crate::shape::{End, Placement, Shape};

/// How many shapes a region is divided into at most: bulk, and small blocks beside it.
const MOST_PARTS: u32 = 2;

/// How many layouts are published in all: one for each layer of each shape that is measured.
const MOST_LAYOUTS: u32 = 1 << 16;

/// How long the names of layouts may be.
const NAME_BYTES: usize = 64;

/// What both sides are told at the start.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The length of each side's region: room for all that is moved at once.
    pub(crate) region_bytes: u64,
    /// Blocks are shuffled and filled from it.
    pub(crate) seed: u64,
    /// Blocks are moved in the order in which they lie.
    pub(crate) contiguous: bool,
    /// What may carry them.
    #[serde(default)]
    pub(crate) transport: Transport,
    /// What the region is of.
    #[serde(default)]
    pub(crate) memory: Memory,
}

/// One process's part of the benchmark.
#[derive(Debug)]
pub(crate) struct Side {
    end: End,
    setup: Setup,
    engine: Engine,
    region: Region,
    /// By the number of the part; `None` where none was placed yet.
    parts: Vec<Option<Placement>>,
    layouts_published: u32,
}

impl Side {
    /// Allocates the region and starts an engine on this address of the host's, with the settings
    /// that every engine has. Whoever connects may read and write a target's region.
    pub(crate) fn start(end: End, setup: Setup, host: IpAddr) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let region = setup.memory.region(&registry, setup.region_bytes)?;
        if end == End::Target {
            region.share(Access::ReadWrite).context("sharing the region")?;
        }
        let engine = Engine::builder(registry)
            .listen(SocketAddr::new(host, 0).to_string())
            .transports(setup.transport.setting())
            .start_blocking()
            .with_context(|| format!("starting an engine on {host}"))?;
        Ok(Self { end, setup, engine, region, parts: Vec::new(), layouts_published: 0 })
    }

    /// Divides a part of the region into blocks of this shape.
    pub(crate) fn place(&mut self, part: u32, shape: Shape) -> anyhow::Result<()> {
        ensure!(part < MOST_PARTS, "a region has at most {MOST_PARTS} parts, not {part}");
        shape.check(self.setup.region_bytes)?;
        let placement = self.order(shape, self.end);
        let part = usize::try_from(part)?;
        if self.parts.len() <= part {
            self.parts.resize(part + 1, None);
        }
        self.parts[part] = Some(placement);
        Ok(())
    }

    /// The order of such blocks at either end.
    pub(crate) fn order(&self, shape: Shape, end: End) -> Placement {
        Placement::new(shape, self.setup.seed, end, self.setup.contiguous)
    }

    /// The order of a part's blocks here.
    pub(crate) fn placement(&self, part: u32) -> anyhow::Result<&Placement> {
        let placement = self.parts.get(usize::try_from(part)?).and_then(Option::as_ref);
        placement.with_context(|| format!("part {part} of the region has no blocks yet"))
    }

    /// A view of each layer of a part.
    pub(crate) fn layouts(&self, part: u32) -> anyhow::Result<Vec<LayoutView>> {
        let shape = self.placement(part)?.shape();
        let layout = |layer| Layout {
            offset: shape.layer_offset(layer),
            block_bytes: shape.block_bytes,
            stride: shape.block_bytes,
            count: shape.blocks.into(),
        };
        let layouts = (0..shape.layers).map(|layer| self.region.layout(layout(layer)));
        layouts.collect::<Result<_, _>>().context("laying out the blocks")
    }

    /// Tells peers of a part's layers.
    pub(crate) fn publish(&mut self, part: u32, name: &str) -> anyhow::Result<()> {
        ensure!(name.len() <= NAME_BYTES, "a layout's name has at most {NAME_BYTES} bytes");
        // At most as many layers as a shape may have are added.
        self.layouts_published += self.placement(part)?.shape().layers;
        ensure!(
            self.layouts_published <= MOST_LAYOUTS,
            "more than {MOST_LAYOUTS} layouts would be published: measure fewer sizes at once"
        );
        for (layer, layout) in self.layouts(part)?.iter().enumerate() {
            layout.publish(&format!("{name}.{layer}")).context("publishing a layer")?;
        }
        Ok(())
    }

    pub(crate) fn fill(&self, part: u32, round: u64) -> anyhow::Result<()> {
        self.pattern(round).fill(&self.region, self.placement(part)?.all())
    }

    pub(crate) fn verify(&self, part: u32, round: u64) -> anyhow::Result<Option<Mismatch>> {
        self.pattern(round).verify(&self.region, self.placement(part)?.all())
    }

    /// The content of a round.
    pub(crate) fn pattern(&self, round: u64) -> Pattern {
        Pattern { seed: self.setup.seed, round }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// A twin of the region in this process.
    pub(crate) fn twin(&self) -> anyhow::Result<Twin> {
        Twin::of(&self.region, self.setup.memory)
    }

    pub(crate) fn transport(&self) -> Transport {
        self.setup.transport
    }

    pub(crate) fn memory(&self) -> Memory {
        self.setup.memory
    }
}
