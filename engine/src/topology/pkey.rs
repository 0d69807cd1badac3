//! Which partition key an InfiniBand port uses.

use kvferry_transport::rdma::device::{PKey, PKeyIndex, Port};

use super::verdict::{Caution, Refusal};
use super::wishes::Wished;

/// The key at the index in use: the one that the user asked for, else the first.
///
/// A limited member is taken only where the user asked for that very index: it works with a peer
/// that is a full member, which the pairing checks.
pub(super) fn choose(
    port: &Port,
    wish: Option<&Wished<PKeyIndex>>,
    cautions: &mut Vec<Caution>,
) -> Result<(PKeyIndex, PKey), Refusal> {
    let unknown = |absence| Refusal::Unknown { absence };
    let index = wish.map_or(PKeyIndex(0), |wish| wish.value);
    let table = port.pkeys.as_ref().map_err(|absence| unknown(absence.clone()))?;
    let entry = table.get(&index).ok_or(Refusal::NoPKey { index, entries: table.len() })?;
    let key = *entry.as_ref().map_err(|absence| unknown(absence.clone()))?;
    let full = || {
        let mut readable =
            table.iter().filter_map(|(index, key)| Some((*index, *key.as_ref().ok()?)));
        readable.find(|(_, key)| key.is_full_member() && key.partition() != 0)
    };
    if key.partition() == 0 {
        return Err(Refusal::NoPartition { index, key, full: full() });
    }
    if !key.is_full_member() {
        if wish.is_none() {
            return Err(Refusal::LimitedMember { index, key, full: full() });
        }
        cautions.push(Caution::LimitedMember { key });
    }
    Ok((index, key))
}
