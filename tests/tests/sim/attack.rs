//! Somebody who is no engine connects, and sends what engines do not.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use kvferry_engine::Incarnation;
use kvferry_proto::LaneId;
use kvferry_proto::frame::Hello;
use kvferry_proto::message::VERSION_MAJOR;

use crate::host::LifeId;
use crate::random::contents;
use crate::world::World;

/// Whom no engine has met.
const STRANGER: Incarnation = Incarnation(0x0bad_0bad_0bad_0bad);

impl World {
    /// Whether a notification comes from a host and not from a stranger, whatever it calls itself.
    pub(crate) fn is_host(&self, from: Incarnation) -> bool {
        LifeId::of(from).host < self.hosts.len()
    }

    /// A stranger opens a lane to a host, or tries to, says what it wants, and goes.
    pub(crate) fn attack(&mut self, host: usize) {
        let Some(life) = &self.hosts[host].life else { return };
        let target = match self.random.one_in(4) {
            true => Incarnation(self.random.next()),
            false => life.node.incarnation(),
        };
        let hello = Hello {
            version: VERSION_MAJOR,
            initiator: STRANGER,
            target,
            session: self.random.next() % 4,
            lane: LaneId(u32::try_from(self.random.below(8)).expect("small")),
            ping_ms: u32::try_from(self.random.below(10_000)).expect("small"),
            with_pair: false,
        };
        let mut hello = hello.encode();
        if self.random.one_in(4) {
            let at = self.random.below(hello.len());
            hello[at] ^= 1 << self.random.below(8);
        }
        let (mut stranger, accepted) = UnixStream::pair().expect("a socket pair");
        stranger.set_nonblocking(true).expect("a socket");
        let answer = life.node.accept(&hello, accepted.into());
        self.trace(&[6, host as u64, u64::from(answer.is_some())]);
        for _ in 0..self.random.between(1, 6) {
            let said = self.make_up();
            // As much as is taken: the lane may be closed already.
            let _ = stranger.write(&said);
            self.settle(host);
            let _ = stranger.read(&mut [0; 4096]);
        }
        drop(stranger);
        self.settle(host);
    }

    /// Bytes that were sent somewhere else, changed or cut, or just any.
    fn make_up(&mut self) -> Vec<u8> {
        let any = contents(self.random.next(), self.random.between(1, 300));
        let mut overheard = self.network.overheard(&mut self.random).unwrap_or(any);
        match self.random.below(4) {
            0 => overheard.truncate(self.random.between(1, overheard.len())),
            1 => {}
            _ => {
                for _ in 0..self.random.between(1, 8) {
                    let at = self.random.below(overheard.len());
                    overheard[at] = self.random.next().to_le_bytes()[0];
                }
            }
        }
        overheard
    }
}
