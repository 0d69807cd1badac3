//! Contents that tell where a byte belongs and which version it is.

use anyhow::Result;
use kvferry_engine::Region;

/// How much is written or compared at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// The byte that belongs at `offset` of the contents called `seed`.
#[must_use]
pub fn byte_at(seed: u64, offset: u64) -> u8 {
    let word = (offset / 8).wrapping_add(seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ (word >> 32)).to_le_bytes()[usize::from(offset.to_le_bytes()[0] & 7)]
}

/// The bytes that belong at `[offset, offset + length)`.
#[must_use]
pub fn bytes_at(seed: u64, offset: u64, length: u64) -> Vec<u8> {
    (offset..offset + length).map(|at| byte_at(seed, at)).collect()
}

/// Fills a part of a region with what belongs at `source` and on of the contents called `seed`.
///
/// # Errors
/// When the part is outside.
pub fn fill(region: &Region, offset: u64, length: u64, seed: u64, source: u64) -> Result<()> {
    for start in (0..length).step_by(1 << 20) {
        let bytes = bytes_at(seed, source + start, CHUNK_BYTES.min(length - start));
        region.write_at(offset + start, &bytes)?;
    }
    Ok(())
}

/// The first offset of a part whose byte is not the one of `seed`, counted from the part's start.
///
/// # Errors
/// When the part is outside.
pub fn first_wrong(
    region: &Region,
    offset: u64,
    length: u64,
    seed: u64,
    source: u64,
) -> Result<Option<u64>> {
    let mut found = Vec::new();
    for start in (0..length).step_by(1 << 20) {
        let expected = bytes_at(seed, source + start, CHUNK_BYTES.min(length - start));
        found.resize(expected.len(), 0);
        region.read_at(offset + start, &mut found)?;
        if let Some(at) = found.iter().zip(&expected).position(|(a, b)| a != b) {
            return Ok(Some(start + at as u64));
        }
    }
    Ok(None)
}
