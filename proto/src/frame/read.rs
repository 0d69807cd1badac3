//! A cursor over a head that cannot run past its end.

use super::FrameError;

#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(head: &'a [u8]) -> Self {
        Self { rest: head }
    }

    pub(super) fn bytes(
        &mut self,
        count: usize,
        what: &'static str,
    ) -> Result<&'a [u8], FrameError> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or(FrameError::Truncated { what })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FrameError> {
        let (taken, rest) =
            self.rest.split_first_chunk::<N>().ok_or(FrameError::Truncated { what })?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, FrameError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, FrameError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, FrameError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn end(&self) -> Result<(), FrameError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Excess { bytes: self.rest.len() })
        }
    }
}
