//! Values of the pool's control path, and their checked conversion from and to the wire.
//!
//! A client sends requests and reads answers, a master the reverse; both use the same values. What
//! is converted is right in form: names have their lengths, counts match, indices lead somewhere.
//!
//! | file | what stands there |
//! |---|---|
//! | `name` | keys and tenants, segments and versions |
//! | `outcome` | what becomes of a key, and its number in the old dialect |
//! | `client` | joining, signs of life, leaving |
//! | `segment` | segments, what is in them, what changes |
//! | `find` | which objects are there, and where |
//! | `put` | reserving, ending, revoking |
//! | `remove` | by name, by what matches |

mod client;
mod find;
mod name;
mod outcome;
mod put;
mod remove;
mod segment;

#[cfg(test)]
mod tests;

pub use client::{Beat, BeatAnswer, Join, JoinAnswer};
pub use find::{Exists, ExistsAnswer, Locate, LocateAnswer, Located, Presence, Replica};
pub use name::{Key, SegmentId, Tenant, Version};
pub use outcome::Outcome;
pub use put::{
    Ended, Put, PutEnd, PutEndAnswer, PutRevoke, PutStart, PutStartAnswer, Reserved, Revoked,
};
pub use remove::{Matching, Remove, RemoveAnswer, RemoveMatching, RemoveMatchingAnswer};
pub use segment::{
    Change, Changes, Follow, Held, Lent, MountPart, Placed, SegmentState, SegmentStatus, Unmount,
    What,
};

use crate::message::MessageError;

/// The most keys, puts or objects of one message: with the longest keys they fit in 8 MiB.
pub const BATCH: usize = 4096;

/// The most bytes of one message, either way.
pub const MESSAGE_BYTES: usize = 16 << 20;

/// The most bytes of a key.
pub const KEY_BYTES: usize = 1024;

/// The most bytes of the names of tenants, groups, hosts, segments and addresses.
pub const NAME_BYTES: usize = 256;

/// The most bytes of a regular expression.
pub const REGEX_BYTES: usize = 1024;

/// The most replicas of an object, and the most preferred segments of a put.
pub const REPLICAS: usize = 16;

/// The longest segment: addresses have 48 bits.
pub const SEGMENT_BYTES: u64 = 1 << 48;

fn bounded(
    message: &'static str,
    field: &'static str,
    found: usize,
    limit: usize,
) -> Result<(), MessageError> {
    if found > limit {
        return Err(MessageError::TooMany { message, field, found, limit });
    }
    Ok(())
}

fn name(message: &'static str, field: &'static str, name: String) -> Result<String, MessageError> {
    bounded(message, field, name.len(), NAME_BYTES)?;
    Ok(name)
}

/// A name where an empty one means none.
fn group(message: &'static str, group: String) -> Result<Option<String>, MessageError> {
    let group = name(message, "bytes in its group", group)?;
    Ok((!group.is_empty()).then_some(group))
}

/// Applies a conversion to a list of bounded length. Where both types are of one size, the list
/// stays where it is in memory.
fn list<From, To>(
    message: &'static str,
    field: &'static str,
    list: Vec<From>,
    convert: impl FnMut(From) -> Result<To, MessageError>,
) -> Result<Vec<To>, MessageError> {
    bounded(message, field, list.len(), BATCH)?;
    list.into_iter().map(convert).collect()
}
