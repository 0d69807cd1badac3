//! CRC-32C of spans: what was written by one program and is read by another, end to end.

use kvferry_transport::memory::SpanList;

use super::Span;
use crate::error::Error;

/// The longest piece that a list of spans takes at once.
const PIECE_BYTES: u32 = 1 << 30;

/// CRC-32C (Castagnoli) of the bytes of all spans, one behind the other. It reads them once, on the
/// calling thread.
///
/// # Errors
/// [`Error::Unregistered`], or [`Error::Memory`] when the memory cannot be touched.
pub fn crc32c(spans: &[Span]) -> Result<u32, Error> {
    let mut list = SpanList::new();
    for span in spans {
        let memory = span.region.memory()?;
        list.attach(&memory);
        let end = span.offset + span.length;
        let mut offset = span.offset;
        while offset < end {
            let piece = u32::try_from(end - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            list.push(offset, piece)?;
            offset += u64::from(piece);
        }
    }
    Ok(list.crc32c()?)
}

#[cfg(test)]
mod tests {
    use super::super::Registry;
    use super::*;

    #[test]
    fn a_checksum_depends_on_the_bytes_and_not_on_how_they_are_scattered() {
        let registry = Registry::new();
        let region = registry.allocate(1 << 16).unwrap();
        let other = registry.allocate(1 << 16).unwrap();
        region.write_at(0, b"123456789").unwrap();
        other.write_at(100, b"6789").unwrap();
        // The check value of CRC-32C (RFC 3720, appendix B.4 uses the same polynomial).
        assert_eq!(crc32c(&[region.span(0, 9).unwrap()]).unwrap(), 0xe306_9283);
        let scattered = [
            region.span(0, 2).unwrap(),
            region.span(2, 3).unwrap(),
            region.span(5, 0).unwrap(),
            other.span(100, 4).unwrap(),
        ];
        assert_eq!(crc32c(&scattered).unwrap(), 0xe306_9283);
        let span = region.span(0, 9).unwrap();
        drop(region);
        assert!(matches!(crc32c(&[span]), Err(Error::Unregistered { .. })));
    }
}
