//! Limits on what one frame may hold. Both ends keep them: a sender never exceeds them, a receiver
//! closes the lane on whatever does. They bound what a peer can make us allocate.

/// The most bytes of a head: what the two largest descriptor lists of a slice that is written by
/// reference need, rounded up.
pub const HEAD_BYTES: u32 = 2 << 20;

/// The most payload bytes of a frame, so the largest slice that can be configured.
pub const PAYLOAD_BYTES: u32 = 16 << 20;

/// The most spans that the descriptors of one slice may describe.
pub const SPANS: u32 = 16_384;

/// The most bytes of a notification.
pub const NOTIFICATION_BYTES: u32 = 64 << 10;

/// How far transfer ids in use may lie apart: what a target remembers about one initiator is
/// bounded by it.
pub const TRANSFER_SPREAD: u64 = 1 << 18;
