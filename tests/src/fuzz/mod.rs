//! Everything that parses what comes from the network, fed with anything.
//!
//! A target takes bytes, and panics where a rule is broken: what is decoded is encoded to the same
//! again, what is declared is what is there, and what is held is in proportion to what came. The
//! targets of `fuzz/` call these, with libFuzzer to choose the bytes; `tests/tests/fuzz.rs` calls
//! them with what libFuzzer found worth keeping, and with that again, damaged.
//!
//! | module | targets |
//! |---|---|
//! | [`frames`] | `request`, `sections`, `reply`, `hello` |
//! | [`messages`] | `table_update`, `ticket` |
//! | [`bootstrap`] | `registration`, `listing`, `address` |
//! | [`pool`] | `pool_request`, `pool_reply`, `pool_state`, `pool_query`, `pool_flags` |

pub mod bootstrap;
pub mod frames;
pub mod messages;
pub mod pool;

/// Something that parses bytes, by the name of its directory in `fuzz/corpus`.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name.
    pub name: &'static str,
    /// Parses, and panics where a rule is broken.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 14] = [
    Target { name: "request", run: frames::request },
    Target { name: "sections", run: frames::sections },
    Target { name: "reply", run: frames::reply },
    Target { name: "hello", run: frames::hello },
    Target { name: "table_update", run: messages::table_update },
    Target { name: "ticket", run: messages::ticket },
    Target { name: "registration", run: bootstrap::registration },
    Target { name: "listing", run: bootstrap::listing },
    Target { name: "address", run: bootstrap::address },
    Target { name: "pool_request", run: pool::pool_request },
    Target { name: "pool_reply", run: pool::pool_reply },
    Target { name: "pool_state", run: pool::pool_state },
    Target { name: "pool_query", run: pool::pool_query },
    Target { name: "pool_flags", run: pool::pool_flags },
];

/// How many bytes may be held for each that came: an empty entry of a list is two bytes on the
/// wire, and a few numbers in memory; a vector has up to twice the room that it needs.
const HELD_PER_BYTE: usize = 64;

/// Asserts that what is held of `came` bytes is in proportion to them.
fn assert_bounded(held: usize, came: usize) {
    assert!(held <= HELD_PER_BYTE * (came + 16), "{held} bytes are held of {came} that came");
}
