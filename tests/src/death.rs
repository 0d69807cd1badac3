//! How a peer dies in the middle of a request, whichever transport carries that.

use crate::command::Way;
use crate::process::Process;

/// How a process comes to do nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// It is gone, and its sockets with it.
    Killed,
    /// It does nothing, and its sockets live on.
    Stopped,
}

/// Each death in the middle of either request.
pub const CASES: [(Way, Death); 4] = [
    (Way::Push, Death::Killed),
    (Way::Push, Death::Stopped),
    (Way::Pull, Death::Killed),
    (Way::Pull, Death::Stopped),
];

impl Death {
    /// Has a process die so.
    pub fn befall(self, process: &mut Process) {
        match self {
            Self::Killed => process.kill(),
            Self::Stopped => process.stop(),
        }
    }
}
