//! From what a caller names to a plan: which regions, under which grants, which pairs. All of it is
//! checked before anything is sent.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use kvferry_proto::message::Geometry;
use kvferry_proto::{Access, GrantId, Incarnation, RegionId};

use super::{LocalPiece, LocalSpans, RemotePiece, RemoteSpans};
use crate::error::Error;
use crate::net::Endpoint;
use crate::peer::PeerInner;
use crate::plan::{Pair, Plan, Planner};
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
}

impl Resolved {
    pub(super) fn new(
        peer: &PeerInner,
        op: Op,
        local: &LocalSpans,
        remote: &RemoteSpans,
    ) -> Result<Self, Error> {
        let mut regions = Numbering::new();
        let mut here = Side::new(local_pieces(peer, local, &mut regions)?);
        let mut remotes = Numbering::new();
        let table = peer.table().read();
        let incarnation = peer.incarnation_of(&table)?;
        let known = Known { peer: peer.endpoint(), table: &table, incarnation, op };
        let mut there = Side::new(known.pieces(remote, &mut remotes)?);
        // Planning a long list takes a while, in which the table may change.
        drop(table);

        let pairs = here.count();
        if pairs != there.count() {
            return Err(Error::CountMismatch { local: pairs, remote: there.count() });
        }
        // At most a million, so it fits.
        let expected = usize::try_from(pairs.min(EXPECTED_PAIRS)).unwrap_or(0);
        let mut planner = Planner::new(peer.plan_limits(), expected);
        let mut index = 0;
        while let (Some(local), Some(remote_span)) = (here.next()?, there.next()?) {
            let bytes = local.length;
            if bytes != remote_span.length {
                let remote = remote_span.length;
                return Err(Error::LengthMismatch { index, local: bytes, remote });
            }
            if let Some(grant) = &remote.grant {
                let (_, region) = remotes.values[usize::from(remote_span.region)];
                check_covered(grant, region, &remote_span)?;
            }
            planner.push(Pair {
                local: local.region,
                remote: remote_span.region,
                local_offset: local.offset,
                remote_offset: remote_span.offset,
                bytes,
            });
            index += 1;
        }
        let plan = planner.finish();
        Ok(Self { incarnation, plan, regions: regions.values, remotes: remotes.values })
    }
}

/// A span of the region with this number.
#[derive(Clone, Copy)]
struct Flat {
    region: u16,
    offset: u64,
    length: u64,
}

enum Piece<'a> {
    Span(Flat),
    Blocks { region: u16, geometry: Geometry, indices: &'a [u32] },
}

/// One side's spans, one after the other.
struct Side<'a> {
    pieces: Vec<Piece<'a>>,
    piece: usize,
    index: usize,
}

impl<'a> Side<'a> {
    fn new(pieces: Vec<Piece<'a>>) -> Self {
        Self { pieces, piece: 0, index: 0 }
    }

    fn count(&self) -> u64 {
        let count = |piece: &Piece<'_>| match piece {
            Piece::Span(_) => 1,
            Piece::Blocks { indices, .. } => indices.len() as u64,
        };
        self.pieces.iter().map(count).sum()
    }

    #[inline]
    fn next(&mut self) -> Result<Option<Flat>, Error> {
        loop {
            match self.pieces.get(self.piece) {
                None => return Ok(None),
                Some(Piece::Span(span)) => {
                    self.piece += 1;
                    return Ok(Some(*span));
                }
                Some(Piece::Blocks { region, geometry, indices }) => {
                    if let Some(block) = indices.get(self.index) {
                        self.index += 1;
                        let offset = block_offset(geometry, *block)?;
                        let length = geometry.block_bytes;
                        return Ok(Some(Flat { region: *region, offset, length }));
                    }
                    self.piece += 1;
                    self.index = 0;
                }
            }
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
            LocalPiece::Span(span) => Piece::Span(Flat {
                region: regions.number(span.region.id, || Ok(span.region.clone()))?,
                offset: span.offset,
                length: span.length,
            }),
            LocalPiece::Blocks(blocks) => Piece::Blocks {
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
                Piece::Span(Flat { region: number, offset: address - base, length })
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
                RemotePiece::Span(span) => Piece::Span(Flat {
                    region: number(span.incarnation, span.region)?,
                    offset: span.offset,
                    length: span.length,
                }),
                RemotePiece::Blocks(blocks) => Piece::Blocks {
                    region: number(blocks.incarnation, blocks.region)?,
                    geometry: blocks.geometry,
                    indices: &blocks.indices,
                },
                RemotePiece::Address { address, length } => {
                    let (address, length) = (*address, *length);
                    let region = self.table.find(address, length).ok_or_else(|| {
                        Error::NotShared { address, length, peer: self.peer.clone() }
                    })?;
                    Piece::Span(Flat {
                        region: number(self.incarnation, region.id)?,
                        offset: address - region.base,
                        length,
                    })
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
