//! What the kernel says of memory.

use std::fs;

use crate::decide::room::{Files, Room};

struct Kernel;

impl Files for Kernel {
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(path).ok()
    }
}

/// How much memory this process can have now: what the host has available, or one of its control
/// groups leaves, whichever is less. `None` where the kernel says nothing of any.
#[must_use]
pub fn room() -> Option<Room> {
    Room::of(&Kernel)
}
