//! How messages of the pool are written and read: as prost does, but that none is read that would take
//! far more memory than it has bytes.
//!
//! An entry of a list takes two bytes where it is empty, and a hundred once it is read. How many there
//! are is checked afterwards, of what was read; so it is counted here before.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf as _;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

/// The most fields of a message, each entry of a list counted, those of its entries not: many times
/// what any of them needs, and with the longest entries no more than [`MESSAGE_BYTES`] once read.
///
/// [`MESSAGE_BYTES`]: crate::pool::MESSAGE_BYTES
pub const FIELDS: usize = 1 << 17;

/// Writes `T` and reads `U`.
#[derive(Debug)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = BoundedDecoder<<ProstCodec<T, U> as Codec>::Decoder>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstCodec::<T, U>::default().decoder())
    }
}

/// Reads what has no more than [`FIELDS`] fields.
#[derive(Debug)]
pub struct BoundedDecoder<Inner>(Inner);

impl<Inner: Decoder<Error = Status>> Decoder for BoundedDecoder<Inner> {
    type Item = Inner::Item;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        // A message lies in one piece.
        if bytes.chunk().len() < bytes.remaining() || has_too_many(bytes.chunk(), FIELDS) {
            let message = format!(
                "a message of {} bytes with more than {FIELDS} fields: send less at once",
                bytes.remaining()
            );
            return Err(Status::invalid_argument(message));
        }
        self.0.decode(bytes)
    }
}

/// Whether a message has more than so many fields, as far as it can be read, or what nobody sends.
fn has_too_many(mut bytes: &[u8], most: usize) -> bool {
    let mut count = 0;
    while let Some(key) = varint(&mut bytes) {
        count += 1;
        if count > most {
            return true;
        }
        let skipped = match key & 7 {
            0 => varint(&mut bytes).map(|_| 0),
            1 => Some(8),
            2 => varint(&mut bytes),
            5 => Some(4),
            // Groups, which have no length, and what does not exist.
            _ => return true,
        };
        // Where it ends too early whoever reads it finds that too, and takes nothing of what is left.
        let skipped = skipped.and_then(|skipped| usize::try_from(skipped).ok());
        let Some(rest) = skipped.and_then(|skipped| bytes.get(skipped..)) else { return false };
        bytes = rest;
    }
    false
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            *bytes = &bytes[index + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::rpc::pool as rpc;

    #[test]
    fn entries_are_counted_also_where_they_are_empty() {
        let keys = |count| rpc::ExistsRequest {
            keys: vec![Vec::new().into(); count],
            tenant: "t".into(),
            lease: true,
        };
        for (count, most) in [(7, 9), (8, 9)] {
            let bytes = keys(count).encode_to_vec();
            // The tenant and the lease are fields, too.
            assert_eq!(has_too_many(&bytes, most), count + 2 > most);
        }
        // As many as go into the largest message are not read.
        let bytes = [0x12_u8, 0].repeat(crate::pool::MESSAGE_BYTES / 2);
        assert!(has_too_many(&bytes, FIELDS));
        assert!(!has_too_many(&bytes[..2 * FIELDS], FIELDS));
    }

    #[test]
    fn groups_are_refused() {
        assert!(has_too_many(&[0x0b, 0x0c], FIELDS));
    }

    proptest! {
        #[test]
        fn whatever_can_be_read_has_been_counted(bytes in vec(any::<u8>(), 0..200)) {
            // Every entry has two bytes at the least, and so is a field that was counted.
            if let Ok(read) = rpc::ExistsRequest::decode(bytes.as_slice()) {
                let keys = read.keys.len();
                prop_assert!(keys == 0 || has_too_many(&bytes, keys - 1));
            }
        }

        #[test]
        fn keys_of_any_length_are_skipped(lengths in vec(0_usize..300, 0..50)) {
            let keys: Vec<_> = lengths.iter().map(|length| vec![0xff; *length].into()).collect();
            let request = rpc::LocateRequest { tenant: String::new(), keys };
            let bytes = request.encode_to_vec();
            prop_assert!(!has_too_many(&bytes, lengths.len()));
            prop_assert_eq!(lengths.is_empty(), !has_too_many(&bytes, lengths.len().saturating_sub(1)));
        }
    }
}
