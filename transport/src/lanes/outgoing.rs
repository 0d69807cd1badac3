//! Frames with payloads, as whoever sends them decides about them.

use std::io;
use std::os::fd::RawFd;

use super::pages::PagePipe;
use super::socket;
use crate::local::Producer;
use crate::memory::{IoVecs, SpanList};

/// A frame with a payload on its way out.
pub trait Outgoing: Send {
    /// Appends prefix and head to `out` and makes ready to send the payload. Called once, when the
    /// frame's turn has come.
    fn start(&mut self, out: &mut Vec<u8>) -> Start;

    /// Sends a part of the payload by one call of `loader`, made while permission to read the
    /// memory is held.
    fn load(&mut self, loader: &mut Loader<'_>) -> Load;

    /// All of the frame has been handed to the connection; or, where `whole` is false, permission
    /// was withdrawn and the frame was taken back or filled with zeros. Frames without payload
    /// that are appended to `out` go next. Not called when the lane closes first.
    fn sent(self: Box<Self>, whole: bool, out: &mut Vec<u8>);
}

/// Whether a frame goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Prefix and head are in `out`; this many payload bytes follow by [`Outgoing::load`].
    Payload(usize),
    /// Prefix and head are in `out`, and that is all of it.
    Bare,
    /// Nobody wants it any more; nothing was appended.
    Skip,
}

/// The result of [`Outgoing::load`].
#[derive(Debug)]
pub enum Load {
    /// Permission was there, and this came of it.
    Sent(io::Result<usize>),
    /// There is no permission any more, and the receiver is known to drop what follows: the rest
    /// is filled with zeros.
    Fill,
    /// There is no permission any more, and the receiver may still store what follows: the lane is
    /// reset, unless none of the frame is out yet.
    Reset,
}

/// Sends a part of a payload, behind whatever has to go first.
#[derive(Debug)]
pub struct Loader<'a> {
    pub(super) way: Way<'a>,
    pub(super) head: &'a [u8],
    pub(super) scratch: &'a mut IoVecs,
    pub(super) pipe: &'a mut PagePipe,
}

/// Where a frame with a payload goes.
#[derive(Debug)]
pub(super) enum Way<'a> {
    Socket(RawFd),
    /// The head into the ring, and the payload behind it. `left` is what is to come of that.
    Ring {
        ring: &'a mut Producer,
        left: usize,
    },
    /// The head into the ring, and the payload through the socket.
    Beside {
        ring: &'a mut Producer,
        socket: RawFd,
    },
}

impl Loader<'_> {
    /// Sends from `spans`.
    ///
    /// # Errors
    /// What the kernel says, `WouldBlock` included.
    pub fn load(&mut self, spans: &mut SpanList) -> io::Result<usize> {
        if let Some(sent) = self.head_into_ring() {
            return sent;
        }
        match &mut self.way {
            Way::Socket(socket) => spans.gather(*socket, self.head, self.scratch),
            Way::Beside { socket, .. } => spans.gather(*socket, &[], self.scratch),
            Way::Ring { ring, left } => {
                ring.fill(*left, |place| spans.copy_out(place).map_err(io::Error::other))
            }
        }
    }

    /// Puts the head into the ring, where there is one and any of it is left to go.
    fn head_into_ring(&mut self) -> Option<io::Result<usize>> {
        match &mut self.way {
            Way::Ring { ring, .. } | Way::Beside { ring, .. } if !self.head.is_empty() => {
                Some(ring.push(self.head))
            }
            _ => None,
        }
    }

    /// Whether [`Loader::lend`] pays for `spans`, and is to be had on this lane. The same for all of a
    /// payload.
    #[must_use]
    pub fn can_lend(&mut self, spans: &SpanList) -> bool {
        !matches!(self.way, Way::Ring { .. }) && self.pipe.takes(spans)
    }

    /// As [`Loader::load`], but what is sent are the pages and not a copy of them: what the receiver
    /// gets is what they hold when it takes them, also after this lane is closed. Only where
    /// [`Loader::can_lend`], and then for all of a payload.
    ///
    /// # Errors
    /// As [`Loader::load`].
    pub fn lend(&mut self, spans: &mut SpanList) -> io::Result<usize> {
        if let Some(sent) = self.head_into_ring() {
            return sent;
        }
        match self.way {
            Way::Ring { .. } => self.load(spans),
            Way::Socket(socket) if !self.head.is_empty() => socket::send_more(socket, self.head),
            Way::Socket(socket) | Way::Beside { socket, .. } => {
                self.pipe.pass(socket, spans, self.scratch)
            }
        }
    }
}
