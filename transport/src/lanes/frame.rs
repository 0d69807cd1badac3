//! What this crate needs to know of a frame: how long its parts are.

/// The lengths that a frame's prefix states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePrefix {
    /// Bytes of the head, right behind the prefix.
    pub head_bytes: usize,
    /// Bytes of the payload, right behind the head.
    pub payload_bytes: usize,
}

impl FramePrefix {
    /// How long a prefix is on the wire.
    pub const BYTES: usize = 16;
}

/// Reads a prefix; `None` closes the lane, since nothing says where the next frame would start.
/// The lengths it returns must be bounded: `head_bytes` are allocated.
pub type ParsePrefix = fn(&[u8; FramePrefix::BYTES]) -> Option<FramePrefix>;
