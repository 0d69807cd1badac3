//! What each of the two processes has: an engine, a region, and the order of its blocks.

use anyhow::{Context, bail};
use kvferry_engine::{Access, Engine, Layout, LayoutView, Region, Registry};
use serde::{Deserialize, Serialize};

use crate::pattern::{Mismatch, Pattern};
use crate::shape::{End, Placement, Shape};

/// What both sides are told at the start.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The length of each side's region: room for the largest total.
    pub(crate) region_bytes: u64,
    /// Blocks are shuffled and filled from it.
    pub(crate) seed: u64,
    /// Blocks are moved in the order in which they lie.
    pub(crate) contiguous: bool,
}

/// One process's part of the benchmark.
#[derive(Debug)]
pub(crate) struct Side {
    end: End,
    setup: Setup,
    engine: Engine,
    region: Region,
    placement: Placement,
}

impl Side {
    /// Allocates the region and starts an engine on the loopback address, with the settings that
    /// every engine has.
    pub(crate) fn start(end: End, setup: Setup) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let region = registry.allocate(setup.region_bytes).with_context(|| {
            format!(
                "each process needs {} bytes of memory: try a smaller --total",
                setup.region_bytes
            )
        })?;
        let engine = Engine::builder(registry)
            .listen("127.0.0.1:0")
            .start_blocking()
            .context("starting an engine on the loopback address")?;
        let shape = Shape { layers: 1, blocks: 1, block_bytes: 1 };
        let placement = Placement::new(shape, setup.seed, end, setup.contiguous);
        Ok(Self { end, setup, engine, region, placement })
    }

    /// Divides the region into blocks of this shape.
    pub(crate) fn place(&mut self, shape: Shape) -> anyhow::Result<()> {
        if shape.bytes() > self.setup.region_bytes {
            bail!("{} bytes do not fit the region of {}", shape.bytes(), self.setup.region_bytes);
        }
        self.placement = Placement::new(shape, self.setup.seed, self.end, self.setup.contiguous);
        Ok(())
    }

    /// The order of the blocks at either end.
    pub(crate) fn placement_at(&self, end: End) -> Placement {
        Placement::new(*self.placement.shape(), self.setup.seed, end, self.setup.contiguous)
    }

    /// A view of each layer.
    pub(crate) fn layouts(&self) -> anyhow::Result<Vec<LayoutView>> {
        let shape = self.placement.shape();
        let layout = |layer| Layout {
            offset: shape.layer_offset(layer),
            block_bytes: shape.block_bytes,
            stride: shape.block_bytes,
            count: shape.blocks.into(),
        };
        let layouts = (0..shape.layers).map(|layer| self.region.layout(layout(layer)));
        layouts.collect::<Result<_, _>>().context("laying out the blocks")
    }

    /// Tells peers of the layers, and lets them read and write.
    pub(crate) fn publish(&self, name: &str) -> anyhow::Result<()> {
        self.region.share(Access::ReadWrite).context("sharing the region")?;
        for (layer, layout) in self.layouts()?.iter().enumerate() {
            layout.publish(&format!("{name}.{layer}")).context("publishing a layer")?;
        }
        Ok(())
    }

    pub(crate) fn fill(&self, round: u64) -> anyhow::Result<()> {
        self.pattern(round).fill(&self.region, &self.placement)
    }

    pub(crate) fn verify(&self, round: u64) -> anyhow::Result<Option<Mismatch>> {
        self.pattern(round).verify(&self.region, &self.placement)
    }

    fn pattern(&self, round: u64) -> Pattern {
        Pattern { seed: self.setup.seed, round }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }
}
