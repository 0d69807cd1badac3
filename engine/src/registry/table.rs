//! What peers are told: regions that are shared or have published layouts, and what changed.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use kvferry_proto::RegionId;
use kvferry_proto::message::{LayoutDescription, TableUpdate};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Registry;
use super::region::RegionInner;
use crate::error::Error;

/// How many changes are remembered: a watcher that is further behind gets everything anew.
const LOG_CHANGES: usize = 65_536;

/// How many entries one update carries, so that its message stays small.
const UPDATE_ENTRIES: usize = 1000;

#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Region(RegionId),
    Layout(Arc<str>),
}

#[derive(Default)]
struct State {
    version: u64,
    /// Changes, oldest first: the version that each made.
    log: VecDeque<(u64, Key)>,
    regions: BTreeSet<RegionId>,
    layouts: HashMap<Arc<str>, LayoutDescription>,
}

pub(crate) struct Table {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

impl Default for Table {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

/// How far one watcher is.
#[derive(Default)]
pub(crate) struct Cursor {
    /// The version that the watcher has; `None` before the first snapshot.
    version: Option<u64>,
    /// Entries of a snapshot that are still to be sent.
    snapshot: VecDeque<Key>,
}

impl Table {
    /// The version now.
    pub(crate) fn version(&self) -> u64 {
        self.state.lock().version
    }

    /// Tells when the version has changed.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// A region is to be told of, or is told differently.
    pub(super) fn touch_region(&self, registry: &Registry, id: RegionId) {
        let listed = registry.by_id(id).is_some_and(|region| region.describe().is_some());
        self.change(|state| {
            if listed {
                state.regions.insert(id);
            } else {
                state.regions.remove(&id);
            }
            vec![Key::Region(id)]
        });
    }

    /// A region goes, and with it its layouts.
    pub(super) fn withdraw_region(&self, registry: &Registry, id: RegionId) {
        if !self.state.lock().regions.contains(&id) {
            return;
        }
        self.change(|state| {
            let gone: Vec<Arc<str>> = state
                .layouts
                .iter()
                .filter(|(_, layout)| layout.region == id)
                .map(|(name, _)| name.clone())
                .collect();
            for name in &gone {
                state.layouts.remove(name);
            }
            gone.into_iter().map(Key::Layout).collect()
        });
        self.touch_region(registry, id);
    }

    pub(super) fn publish(
        &self,
        registry: &Registry,
        region: &RegionInner,
        layout: LayoutDescription,
    ) -> Result<(), Error> {
        let name: Arc<str> = layout.name.as_str().into();
        region.count_published(1);
        let mut taken = false;
        self.change(|state| {
            taken = state.layouts.contains_key(&name);
            if taken {
                return Vec::new();
            }
            state.layouts.insert(name.clone(), layout);
            state.regions.insert(region.id);
            vec![Key::Region(region.id), Key::Layout(name.clone())]
        });
        if taken {
            region.count_published(-1);
            return Err(Error::NameTaken { name: name.to_string() });
        }
        // An unregistering marks its region first and withdraws its layouts then: one of the two
        // sees the other.
        if region.is_closing() {
            self.withdraw(registry, &name);
            return Err(Error::Unregistered { region: region.id });
        }
        Ok(())
    }

    fn withdraw(&self, registry: &Registry, name: &str) -> bool {
        let mut region = None;
        self.change(|state| {
            region = state.layouts.remove(name).map(|layout| layout.region);
            region.map(|_| Key::Layout(name.into())).into_iter().collect()
        });
        let Some(id) = region else { return false };
        if let Some(region) = registry.by_id(id) {
            region.count_published(-1);
        }
        self.touch_region(registry, id);
        true
    }

    fn change(&self, change: impl FnOnce(&mut State) -> Vec<Key>) {
        let mut state = self.state.lock();
        let keys = change(&mut state);
        if keys.is_empty() {
            return;
        }
        state.version += 1;
        let version = state.version;
        state.log.extend(keys.into_iter().map(|key| (version, key)));
        while state.log.len() > LOG_CHANGES {
            // A version is dropped whole, or a watcher at it would miss the rest of it.
            let dropped = state.log.front().map(|(version, _)| *version);
            while state.log.front().map(|(version, _)| *version) == dropped {
                state.log.pop_front();
            }
        }
        drop(state);
        self.changed.send_replace(version);
    }

    /// What the watcher is to be told next; `None` when it knows everything.
    pub(crate) fn next_update(
        &self,
        registry: &Registry,
        cursor: &mut Cursor,
    ) -> Option<TableUpdate> {
        let mut update = TableUpdate::default();
        let keys: Vec<Key> = {
            let state = self.state.lock();
            if cursor.snapshot.is_empty() {
                match cursor.version {
                    Some(version) if version == state.version => return None,
                    Some(version) if state.remembers(version) => {
                        let keys = state.since(version);
                        cursor.version = Some(state.version);
                        cursor.snapshot.extend(keys);
                    }
                    _ => {
                        update.reset = true;
                        cursor.version = Some(state.version);
                        let regions = state.regions.iter().copied().map(Key::Region);
                        let layouts = state.layouts.keys().cloned().map(Key::Layout);
                        cursor.snapshot.extend(regions.chain(layouts));
                    }
                }
            }
            let count = cursor.snapshot.len().min(UPDATE_ENTRIES);
            let keys: Vec<Key> = cursor.snapshot.drain(..count).collect();
            for key in &keys {
                if let Key::Layout(name) = key {
                    match state.layouts.get(name) {
                        Some(layout) => update.layouts.push(layout.clone()),
                        None => update.gone_layouts.push(name.to_string()),
                    }
                }
            }
            keys
        };
        for key in keys {
            if let Key::Region(id) = key {
                match registry.by_id(id).and_then(|region| region.describe()) {
                    Some(region) => update.regions.push(region),
                    None => update.gone_regions.push(id),
                }
            }
        }
        update.version = cursor.version.unwrap_or(0);
        update.complete = cursor.snapshot.is_empty();
        Some(update)
    }
}

impl State {
    /// Whether every change after `version` is in the log.
    fn remembers(&self, version: u64) -> bool {
        self.log.front().is_some_and(|(oldest, _)| *oldest <= version + 1)
    }

    fn since(&self, version: u64) -> Vec<Key> {
        let start = self.log.partition_point(|(changed, _)| *changed <= version);
        let mut seen = HashSet::new();
        self.log
            .range(start..)
            .map(|(_, key)| key.clone())
            .filter(|k| seen.insert(k.clone()))
            .collect()
    }
}

impl Registry {
    /// Withdraws a published layout. Returns whether there was one of this name.
    pub fn withdraw(&self, name: &str) -> bool {
        self.table().withdraw(self, name)
    }
}
