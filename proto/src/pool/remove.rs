//! Removing: by name, by what matches.

use super::find::keys;
use super::{KEY_BYTES, Key, Outcome, REGEX_BYTES, Tenant, bounded};
use crate::message::MessageError;
use crate::rpc::pool as rpc;

/// These are to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remove {
    /// Whose.
    pub tenant: Tenant,
    /// Which.
    pub keys: Vec<Key>,
    /// Also what is leased or pinned. Its bytes stay until the leases are over.
    pub force: bool,
}

/// What became of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveAnswer {
    /// One for each key.
    pub outcomes: Vec<Outcome>,
    /// Whether every owner has taken them out of its inventory. If not, they can come back with a
    /// new master.
    pub is_recorded: bool,
}

/// All objects of a tenant that match are to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveMatching {
    /// Whose.
    pub tenant: Tenant,
    /// Which.
    pub matching: Matching,
    /// Also what is leased or pinned. Its bytes stay until the leases are over.
    pub force: bool,
}

/// Which objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matching {
    /// Those whose keys begin so.
    Prefix(String),
    /// Those in whose keys this regular expression is found.
    Regex(String),
    /// All.
    All,
}

/// What became of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoveMatchingAnswer {
    /// How many were removed.
    pub removed: u64,
    /// How many matched and stay, because of a lease or a pin.
    pub kept: u64,
    /// As in [`RemoveAnswer`].
    pub is_recorded: bool,
}

impl From<Remove> for rpc::RemoveRequest {
    fn from(remove: Remove) -> Self {
        Self {
            tenant: remove.tenant.into(),
            keys: remove.keys.into_iter().map(Into::into).collect(),
            force: remove.force,
        }
    }
}

impl TryFrom<rpc::RemoveRequest> for Remove {
    type Error = MessageError;

    fn try_from(remove: rpc::RemoveRequest) -> Result<Self, MessageError> {
        Ok(Self {
            tenant: Tenant::new(remove.tenant)?,
            keys: keys("RemoveRequest", remove.keys)?,
            force: remove.force,
        })
    }
}

impl From<&RemoveAnswer> for rpc::RemoveReply {
    fn from(answer: &RemoveAnswer) -> Self {
        let outcomes = answer.outcomes.iter().map(|outcome| outcome.to_wire()).collect();
        Self { outcomes, is_recorded: answer.is_recorded }
    }
}

impl RemoveAnswer {
    /// The answer to a request that named `expected` keys.
    ///
    /// # Errors
    /// [`MessageError`] where it is none.
    pub fn from_wire(reply: &rpc::RemoveReply, expected: usize) -> Result<Self, MessageError> {
        let outcomes = Outcome::list("RemoveReply", &reply.outcomes, expected)?;
        Ok(Self { outcomes, is_recorded: reply.is_recorded })
    }
}

impl From<RemoveMatching> for rpc::RemoveMatchingRequest {
    fn from(remove: RemoveMatching) -> Self {
        use rpc::remove_matching_request::{All, Which};
        Self {
            tenant: remove.tenant.into(),
            which: Some(match remove.matching {
                Matching::Prefix(prefix) => Which::Prefix(prefix.into()),
                Matching::Regex(regex) => Which::Regex(regex),
                Matching::All => Which::All(All {}),
            }),
            force: remove.force,
        }
    }
}

impl TryFrom<rpc::RemoveMatchingRequest> for RemoveMatching {
    type Error = MessageError;

    fn try_from(remove: rpc::RemoveMatchingRequest) -> Result<Self, MessageError> {
        use rpc::remove_matching_request::Which;
        let message = "RemoveMatchingRequest";
        let which = remove.which.ok_or(MessageError::Missing { message, field: "which" })?;
        let matching = match which {
            Which::Prefix(prefix) => {
                bounded(message, "bytes in its prefix", prefix.len(), KEY_BYTES)?;
                let prefix = String::from_utf8(prefix.into());
                Matching::Prefix(prefix.map_err(|error| MessageError::Malformed {
                    message,
                    reason: error.to_string(),
                })?)
            }
            Which::Regex(regex) => {
                bounded(message, "bytes in its regular expression", regex.len(), REGEX_BYTES)?;
                Matching::Regex(regex)
            }
            Which::All(_) => Matching::All,
        };
        Ok(Self { tenant: Tenant::new(remove.tenant)?, matching, force: remove.force })
    }
}

impl From<RemoveMatchingAnswer> for rpc::RemoveMatchingReply {
    fn from(answer: RemoveMatchingAnswer) -> Self {
        let RemoveMatchingAnswer { removed, kept, is_recorded } = answer;
        Self { removed, kept, is_recorded }
    }
}

impl From<rpc::RemoveMatchingReply> for RemoveMatchingAnswer {
    fn from(reply: rpc::RemoveMatchingReply) -> Self {
        let rpc::RemoveMatchingReply { removed, kept, is_recorded } = reply;
        Self { removed, kept, is_recorded }
    }
}
