//! From what a caller names to a plan: which regions, under which grants, which pairs. All of it is
//! checked before anything is sent.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use kvferry_proto::message::{Geometry, Location};
use kvferry_proto::{Access, GrantId, Incarnation, RegionId};

use super::{LocalPiece, LocalSpans, RemotePiece, RemoteSpans};
use crate::error::Error;
use crate::net::Endpoint;
use crate::peer::PeerInner;
use crate::plan::{Pair, Plan, PlanLimits, Planner};
use crate::registry::{RegionInner, block_offset};
use crate::remote::{RemoteGrant, RemoteTable};
use crate::transfer::Op;

/// How many pairs room is made for ahead.
const EXPECTED_PAIRS: u64 = 1 << 20;

/// A transfer that can be submitted.
pub(super) struct Resolved {
    pub(super) incarnation: Incarnation,
    pub(super) plan: Plan,
    pub(super) regions: Vec<Arc<RegionInner>>,
    pub(super) remotes: Vec<(GrantId, RegionId)>,
    /// Some of it is memory of a device, as far as is known here of the peer's.
    pub(super) is_on_device: bool,
}

impl Resolved {
    pub(super) fn new(
        peer: &PeerInner,
        op: Op,
        local: &LocalSpans,
        remote: &RemoteSpans,
    ) -> Result<Self, Error> {
        let mut regions = Numbering::new();
        let here = Side::new(local_pieces(peer, local, &mut regions)?);
        let mut remotes = Numbering::new();
        let table = peer.table().read();
        let incarnation = peer.incarnation_of(&table)?;
        let known = Known { peer: peer.endpoint(), table: &table, incarnation, op };
        let there = Side::new(known.pieces(remote, &mut remotes)?);
        let is_on_device = regions.values.iter().any(|region| region.is_on_device())
            || table.is_any_at(Location::Device, remotes.values.iter().map(|(_, id)| *id));
        // Planning a long list takes a while, in which the table may change.
        drop(table);

        let grant = remote.grant.as_deref();
        let plan = plan(peer.plan_limits(), here, there, |span| match grant {
            Some(grant) => check_covered(grant, remotes.values[usize::from(span.region)].1, span),
            None => Ok(()),
        })?;
        let (regions, remotes) = (regions.values, remotes.values);
        Ok(Self { incarnation, plan, regions, remotes, is_on_device })
    }
}

/// The spans of both sides, pair by pair. A function of its own: what stands around this loop has
/// no say then in what a pair costs.
#[inline(never)]
fn plan(
    limits: PlanLimits,
    mut here: Side<'_>,
    mut there: Side<'_>,
    check_remote: impl Fn(&Flat) -> Result<(), Error>,
) -> Result<Plan, Error> {
    let pairs = here.count();
    if pairs != there.count() {
        return Err(Error::CountMismatch { local: pairs, remote: there.count() });
    }
    // At most a million, so it fits.
    let expected = usize::try_from(pairs.min(EXPECTED_PAIRS)).unwrap_or(0);
    let mut planner = Planner::new(limits, expected);
    let mut index = 0;
    while let (Some(local), Some(remote)) = (here.piece(), there.piece()) {
        let bytes = local.geometry.block_bytes;
        if bytes != remote.geometry.block_bytes {
            let remote = remote.geometry.block_bytes;
            return Err(Error::LengthMismatch { index, local: bytes, remote });
        }
        let both = local.indices.len().min(remote.indices.len());
        for (block, remote_block) in local.indices[..both].iter().zip(&remote.indices[..both]) {
            let local = local.block(*block)?;
            let remote = remote.block(*remote_block)?;
            check_remote(&remote)?;
            planner.push(Pair {
                local: local.region,
                remote: remote.region,
                local_offset: local.offset,
                remote_offset: remote.offset,
                bytes,
            });
        }
        here.pass(both);
        there.pass(both);
        index += both as u64;
    }
    Ok(planner.finish())
}

/// A span of the region with this number.
#[derive(Clone, Copy)]
struct Flat {
    region: u16,
    offset: u64,
    length: u64,
}

/// Blocks of the region with this number, all of one length.
#[derive(Clone, Copy)]
struct Piece<'a> {
    region: u16,
    geometry: Geometry,
    indices: &'a [u32],
}

impl Piece<'_> {
    /// A span: the only block of a layout of its own.
    fn span(region: u16, offset: u64, length: u64) -> Self {
        let geometry = Geometry { offset, block_bytes: length, stride: length, count: 1 };
        Self { region, geometry, indices: &[0] }
    }

    #[inline]
    fn block(&self, index: u32) -> Result<Flat, Error> {
        let offset = block_offset(&self.geometry, index)?;
        Ok(Flat { region: self.region, offset, length: self.geometry.block_bytes })
    }
}

/// One side's spans, one after the other.
struct Side<'a> {
    pieces: Vec<Piece<'a>>,
    /// How many pieces are done, and how many blocks of the next.
    passed: usize,
    passed_blocks: usize,
}

impl<'a> Side<'a> {
    fn new(mut pieces: Vec<Piece<'a>>) -> Self {
        pieces.retain(|piece| !piece.indices.is_empty());
        Self { pieces, passed: 0, passed_blocks: 0 }
    }

    fn count(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.indices.len() as u64).sum()
    }

    /// What is left of the piece that comes next; at least one block.
    #[inline]
    fn piece(&self) -> Option<Piece<'a>> {
        let piece = self.pieces.get(self.passed)?;
        Some(Piece { indices: &piece.indices[self.passed_blocks..], ..*piece })
    }

    /// So many blocks of that piece are done.
    #[inline]
    fn pass(&mut self, blocks: usize) {
        self.passed_blocks += blocks;
        if self.passed_blocks == self.pieces[self.passed].indices.len() {
            (self.passed, self.passed_blocks) = (self.passed + 1, 0);
        }
    }
}

/// Numbers distinct things in the order in which they come.
struct Numbering<K, V> {
    numbers: HashMap<K, u16>,
    values: Vec<V>,
}

impl<K: Hash + Eq, V> Numbering<K, V> {
    fn new() -> Self {
        Self { numbers: HashMap::new(), values: Vec::new() }
    }

    fn number(&mut self, key: K, value: impl FnOnce() -> Result<V, Error>) -> Result<u16, Error> {
        if let Some(number) = self.numbers.get(&key) {
            return Ok(*number);
        }
        let number = u16::try_from(self.values.len()).map_err(|_| Error::Backpressure {
            what: "regions in one transfer",
            limit: u64::from(u16::MAX) + 1,
        })?;
        self.values.push(value()?);
        self.numbers.insert(key, number);
        Ok(number)
    }
}

fn check_covered(grant: &RemoteGrant, region: RegionId, span: &Flat) -> Result<(), Error> {
    let (offset, length) = (span.offset, span.length);
    if grant.covers(region, offset, length) {
        return Ok(());
    }
    Err(Error::OutsideGrant { region, offset, length, grant: grant.id })
}

fn local_pieces<'a>(
    peer: &PeerInner,
    local: &'a LocalSpans,
    regions: &mut Numbering<RegionId, Arc<RegionInner>>,
) -> Result<Vec<Piece<'a>>, Error> {
    let mut pieces = Vec::with_capacity(local.0.len());
    // Addresses tend to lie in the region of the one before.
    let mut last: Option<(Arc<RegionInner>, u16)> = None;
    for piece in &local.0 {
        pieces.push(match piece {
            LocalPiece::Span(span) => {
                let region = regions.number(span.region.id, || Ok(span.region.clone()))?;
                Piece::span(region, span.offset, span.length)
            }
            LocalPiece::Blocks(blocks) => Piece {
                region: regions.number(blocks.region.id, || Ok(blocks.region.clone()))?,
                geometry: blocks.geometry,
                indices: &blocks.indices,
            },
            LocalPiece::Address { address, length } => {
                let (address, length) = (*address, *length);
                // A range of no bytes lies in no region, whatever was named before it.
                let known = last.as_ref();
                let known =
                    known.filter(|(region, _)| length > 0 && region.contains(address, length));
                let (base, number) = match known {
                    Some((region, number)) => (region.base(), *number),
                    None => {
                        let region = peer.registry().find_inner(address, length)?;
                        let number = regions.number(region.id, || Ok(region.clone()))?;
                        let base = region.base();
                        last = Some((region, number));
                        (base, number)
                    }
                };
                Piece::span(number, address - base, length)
            }
        });
    }
    Ok(pieces)
}

/// What is known of the peer.
struct Known<'a> {
    peer: &'a Endpoint,
    table: &'a RemoteTable,
    incarnation: Incarnation,
    op: Op,
}

impl Known<'_> {
    fn pieces<'a>(
        &self,
        remote: &'a RemoteSpans,
        remotes: &mut Numbering<RegionId, (GrantId, RegionId)>,
    ) -> Result<Vec<Piece<'a>>, Error> {
        if let Some(owner) = remote.owner {
            self.check_current(owner)?;
        }
        let grant = remote.grant.as_deref();
        let mut number = |incarnation: Incarnation, region: RegionId| {
            self.check_current(incarnation)?;
            remotes.number(region, || Ok((self.grant_for(region, grant)?, region)))
        };
        let mut pieces = Vec::with_capacity(remote.pieces.len());
        for piece in &remote.pieces {
            pieces.push(match piece {
                RemotePiece::Span(span) => {
                    Piece::span(number(span.incarnation, span.region)?, span.offset, span.length)
                }
                RemotePiece::Blocks(blocks) => Piece {
                    region: number(blocks.incarnation, blocks.region)?,
                    geometry: blocks.geometry,
                    indices: &blocks.indices,
                },
                RemotePiece::Address { address, length } => {
                    let (address, length) = (*address, *length);
                    let region = self.table.find(address, length).ok_or_else(|| {
                        Error::NotShared { address, length, peer: self.peer.clone() }
                    })?;
                    let offset = address - region.base;
                    Piece::span(number(self.incarnation, region.id)?, offset, length)
                }
            });
        }
        Ok(pieces)
    }

    fn check_current(&self, expected: Incarnation) -> Result<(), Error> {
        let found = self.incarnation;
        if expected == found {
            return Ok(());
        }
        Err(Error::StaleHandle { peer: self.peer.clone(), expected, found })
    }

    fn grant_for(&self, region: RegionId, grant: Option<&RemoteGrant>) -> Result<GrantId, Error> {
        let wanted = match self.op {
            Op::Write => Access::Write,
            Op::Read => Access::Read,
        };
        let granted = match grant {
            Some(grant) => {
                self.check_current(grant.owner)?;
                Some((grant.id, grant.access()))
            }
            None => self
                .table
                .region(region)
                .and_then(|region| region.standing)
                .map(|standing| (standing.grant, standing.access)),
        };
        match granted {
            Some((id, access)) if access.permits(wanted) => Ok(id),
            _ => Err(Error::NotGranted { region, wanted, peer: self.peer.clone() }),
        }
    }
}
