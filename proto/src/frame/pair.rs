//! What the two ends of a lane tell each other of the queue pairs that belong to it.

use super::FrameError;
use super::read::Reader;

/// The numbers of queue pairs and of packets have 24 bits.
const NUMBER_MOST: u32 = 0x00ff_ffff;

/// The payloads that packets may have (InfiniBand Architecture Specification volume 1, section 7.7.8).
const MTU_BYTES: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// A queue pair as the other end has to know it to connect its own. Follows a hello, and a welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairAddress {
    /// Its number: 24 bits, never 0.
    pub number: u32,
    /// The number of its first packet: 24 bits.
    pub first_packet: u32,
    /// The global identifier of its port.
    pub gid: [u8; 16],
    /// The local identifier of its port; 0 on Ethernet.
    pub lid: u16,
    /// Which of the ports that the target offers the target's queue pair is on, counted from 0. Said by
    /// the initiator, and again by the target.
    pub port: u16,
    /// The longest payload that its port takes: 256 to 4,096 bytes, a power of two.
    pub mtu_bytes: u32,
    /// How many reads of the other end it serves at once: never 0.
    pub reads: u8,
}

impl PairAddress {
    /// How long it is on the wire.
    pub const BYTES: usize = 40;

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.first_packet.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.gid);
        bytes[24..26].copy_from_slice(&self.lid.to_le_bytes());
        bytes[26..28].copy_from_slice(&self.port.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.mtu_bytes.to_le_bytes());
        bytes[32] = self.reads;
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`FrameError`] when these bytes are none.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(bytes);
        let number = reader.u32("queue pair number")?;
        if number == 0 || number > NUMBER_MOST {
            return Err(FrameError::Value { what: "queue pair number", found: number.into() });
        }
        let first_packet = reader.u32("first packet")?;
        if first_packet > NUMBER_MOST {
            return Err(FrameError::Value { what: "first packet", found: first_packet.into() });
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(reader.bytes(16, "GID")?);
        let lid = reader.u16("LID")?;
        let port = reader.u16("port")?;
        let mtu_bytes = reader.u32("packet size")?;
        if !MTU_BYTES.contains(&mtu_bytes) {
            return Err(FrameError::Value { what: "packet size", found: mtu_bytes.into() });
        }
        let [reads, padding @ ..] = reader.u64("reads")?.to_le_bytes();
        if reads == 0 || padding != [0; 7] {
            return Err(FrameError::Value { what: "reads", found: reads.into() });
        }
        Ok(Self { number, first_packet, gid, lid, port, mtu_bytes, reads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: PairAddress = PairAddress {
        number: 0x1234,
        first_packet: NUMBER_MOST,
        gid: *b"0123456789abcdef",
        lid: 7,
        port: 3,
        mtu_bytes: 4096,
        reads: 16,
    };

    #[test]
    fn an_address_is_read_as_it_was_written_and_numbers_that_cannot_be_are_refused() {
        assert_eq!(PairAddress::decode(&ADDRESS.encode()), Ok(ADDRESS));
        for wrong in [
            PairAddress { number: 0, ..ADDRESS },
            PairAddress { number: NUMBER_MOST + 1, ..ADDRESS },
            PairAddress { first_packet: NUMBER_MOST + 1, ..ADDRESS },
            PairAddress { mtu_bytes: 0, ..ADDRESS },
            PairAddress { mtu_bytes: 1500, ..ADDRESS },
            PairAddress { reads: 0, ..ADDRESS },
        ] {
            assert!(PairAddress::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
        let mut padded = ADDRESS.encode();
        padded[PairAddress::BYTES - 1] = 1;
        assert!(PairAddress::decode(&padded).is_err());
    }
}
