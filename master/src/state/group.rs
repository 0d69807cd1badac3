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

/// What a member takes in its group, about: a place in a tree whose nodes are two thirds full.
const MEMBER_BYTES: usize = size_of::<(Version, u64)>() * 3 / 2;

impl Group {
    /// What a group takes beyond its members: its names stand in the index, too.
    fn bytes(tenant: &str, name: &str) -> usize {
        type Entry = ((Box<str>, Box<str>), u32);
        2 * (tenant.len() + name.len()) + size_of::<Option<Group>>() + size_of::<Entry>()
    }
}

/// All groups that have members.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Slab<Group>,
    index: HashMap<(Box<str>, Box<str>), u32>,
}

impl Groups {
    /// Adds a member. The number of its group, and how much memory that takes.
    pub(super) fn join(
        &mut self,
        tenant: &str,
        name: &str,
        version: Version,
        hash: u64,
    ) -> (u32, usize) {
        if self.groups.len() >= slab::MOST {
            return (NO_GROUP, 0);
        }
        let by: (Box<str>, Box<str>) = (tenant.into(), name.into());
        let groups = &mut self.groups;
        let mut bytes = 0;
        let number = *self.index.entry(by).or_insert_with(|| {
            bytes += Group::bytes(tenant, name);
            let members = BTreeMap::new();
            groups.insert(Group { tenant: tenant.into(), name: name.into(), members })
        });
        if let Some(group) = groups.get_mut(number)
            && group.members.insert(version, hash).is_none()
        {
            bytes += MEMBER_BYTES;
        }
        (number, bytes)
    }

    /// Takes a member out. How much memory that gives back.
    pub(super) fn leave(&mut self, number: u32, version: Version) -> usize {
        let Some(group) = self.groups.get_mut(number) else { return 0 };
        let mut bytes = if group.members.remove(&version).is_some() { MEMBER_BYTES } else { 0 };
        if group.members.is_empty()
            && let Some(group) = self.groups.remove(number)
        {
            bytes += Group::bytes(&group.tenant, &group.name);
            self.index.remove(&(group.tenant, group.name));
        }
        bytes
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
        let (first, taken) = groups.join("x", "g", Version(1), 10);
        let (same, taken_more) = groups.join("x", "g", Version(2), 20);
        assert_eq!(same, first);
        let (other, other_taken) = groups.join("y", "g", Version(3), 30);
        assert_ne!(other, first);
        assert_eq!(groups.members(first), [(Version(1), 10), (Version(2), 20)]);
        let given_back = [
            groups.leave(first, Version(1)),
            groups.leave(first, Version(2)),
            groups.leave(first, Version(2)),
        ];
        assert_eq!(given_back, [taken_more, taken, 0], "as much as it took");
        assert!(taken > taken_more && taken == other_taken);
        assert_eq!(groups.name(first), None);
        assert_eq!(groups.index.len(), 1);
    }
}
