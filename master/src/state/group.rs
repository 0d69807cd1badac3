//! Objects that are evicted together, because one without the others is worth nothing.

use std::collections::{BTreeMap, HashMap};

use kvferry_proto::pool::Version;

use super::object::NO_GROUP;
use super::slab::{self, Slab};

#[derive(Debug)]
struct Group {
    tenant: Box<str>,
    name: Box<str>,
    /// The hash of each member's key.
    members: BTreeMap<Version, u64>,
}

/// All groups that have members.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Slab<Group>,
    index: HashMap<(Box<str>, Box<str>), u32>,
}

impl Groups {
    /// Adds a member. The number of its group.
    pub(super) fn join(&mut self, tenant: &str, name: &str, version: Version, hash: u64) -> u32 {
        if self.groups.len() >= slab::MOST {
            return NO_GROUP;
        }
        let by: (Box<str>, Box<str>) = (tenant.into(), name.into());
        let groups = &mut self.groups;
        let number = *self.index.entry(by).or_insert_with(|| {
            let members = BTreeMap::new();
            groups.insert(Group { tenant: tenant.into(), name: name.into(), members })
        });
        if let Some(group) = groups.get_mut(number) {
            group.members.insert(version, hash);
        }
        number
    }

    /// Takes a member out.
    pub(super) fn leave(&mut self, number: u32, version: Version) {
        let Some(group) = self.groups.get_mut(number) else { return };
        group.members.remove(&version);
        if group.members.is_empty()
            && let Some(group) = self.groups.remove(number)
        {
            self.index.remove(&(group.tenant, group.name));
        }
    }

    pub(super) fn name(&self, number: u32) -> Option<String> {
        self.groups.get(number).map(|group| group.name.to_string())
    }

    /// The members, with the hashes of their keys.
    pub(super) fn members(&self, number: u32) -> Vec<(Version, u64)> {
        let group = self.groups.get(number);
        group.map_or(Vec::new(), |group| {
            group.members.iter().map(|(version, hash)| (*version, *hash)).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_lasts_for_as_long_as_it_has_members_and_is_of_one_tenant() {
        let mut groups = Groups::default();
        let first = groups.join("x", "g", Version(1), 10);
        assert_eq!(groups.join("x", "g", Version(2), 20), first);
        assert_ne!(groups.join("y", "g", Version(3), 30), first);
        assert_eq!(groups.members(first), [(Version(1), 10), (Version(2), 20)]);
        groups.leave(first, Version(1));
        groups.leave(first, Version(2));
        assert_eq!(groups.name(first), None);
        groups.leave(first, Version(2));
        assert_eq!(groups.index.len(), 1);
    }
}
