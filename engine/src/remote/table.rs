//! This process's copy of a peer's table.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kvferry_proto::message::{LayoutDescription, Location, RegionDescription, TableUpdate};
use kvferry_proto::{Incarnation, RegionId};

use super::{RemoteLayout, RemoteRegion};

/// How much a peer can make this process remember: entries of its table.
const ENTRIES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct RemoteTable {
    incarnation: Option<Incarnation>,
    version: u64,
    regions: HashMap<RegionId, Arc<RegionDescription>>,
    by_base: BTreeMap<u64, RegionId>,
    layouts: HashMap<String, LayoutDescription>,
}

impl RemoteTable {
    /// The table of an incarnation of which nothing is known yet.
    pub(crate) fn of(incarnation: Incarnation) -> Self {
        Self { incarnation: Some(incarnation), ..Self::default() }
    }

    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Applies an update. False when the table would grow beyond its bound: nothing more is taken
    /// from such a peer.
    pub(crate) fn apply(&mut self, update: TableUpdate) -> bool {
        if update.reset {
            *self = Self { incarnation: self.incarnation, ..Self::default() };
        }
        // Every piece of an update states the version that the whole has.
        if update.complete {
            self.version = update.version;
        }
        for id in update.gone_regions {
            self.remove_region(id);
        }
        for name in update.gone_layouts {
            self.layouts.remove(&name);
        }
        for region in update.regions {
            self.remove_region(region.id);
            self.by_base.insert(region.base, region.id);
            self.regions.insert(region.id, Arc::new(region));
        }
        for layout in update.layouts {
            self.layouts.insert(layout.name.clone(), layout);
        }
        self.regions.len() + self.layouts.len() <= ENTRIES
    }

    fn remove_region(&mut self, id: RegionId) {
        if let Some(region) = self.regions.remove(&id)
            && self.by_base.get(&region.base) == Some(&id)
        {
            self.by_base.remove(&region.base);
        }
    }

    pub(crate) fn region(&self, id: RegionId) -> Option<&Arc<RegionDescription>> {
        self.regions.get(&id)
    }

    /// Whether any of these regions is known to live there.
    pub(crate) fn is_any_at(
        &self,
        location: Location,
        mut regions: impl Iterator<Item = RegionId>,
    ) -> bool {
        regions.any(|id| self.region(id).is_some_and(|region| region.location == location))
    }

    /// The region that covers an address range of the peer's process.
    pub(crate) fn find(&self, address: u64, length: u64) -> Option<&Arc<RegionDescription>> {
        let (_, id) = self.by_base.range(..=address).next_back()?;
        let region = self.regions.get(id)?;
        let end = address.checked_add(length)?;
        (end <= region.base + region.length).then_some(region)
    }

    pub(crate) fn remote_region(&self, region: &Arc<RegionDescription>) -> Option<RemoteRegion> {
        Some(RemoteRegion { incarnation: self.incarnation?, region: region.clone() })
    }

    /// A layout, unless the peer describes one that does not fit its region.
    pub(crate) fn layout(&self, name: &str) -> Option<RemoteLayout> {
        let layout = self.layouts.get(name)?;
        let region = self.regions.get(&layout.region)?;
        let fits = layout.geometry.end().is_some_and(|end| end <= region.length);
        fits.then_some(RemoteLayout {
            incarnation: self.incarnation?,
            region: layout.region,
            geometry: layout.geometry,
            region_length: region.length,
        })
    }

    pub(crate) fn layout_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.layouts.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn regions(&self) -> Vec<RemoteRegion> {
        self.by_base
            .values()
            .filter_map(|id| self.regions.get(id))
            .filter_map(|region| self.remote_region(region))
            .collect()
    }
}
