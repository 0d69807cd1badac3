//! Connections between hosts: bytes that take their time, connections that break, hosts that do not
//! reach each other.
//!
//! A lane's ends are socket pairs: the engine holds one half, the network the other. The network
//! takes what an end sends, in pieces of its own choosing, and stores it at the other end when it
//! has arrived, in order, as TCP would. What is sent while two hosts do not reach each other arrives
//! once they do, also when its sender has given the connection up long ago.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;

use crate::random::Random;

/// The smallest buffer that the kernel gives a socket, about.
const SOCKET_BYTES: usize = 2 << 10;

/// How many pieces are remembered of what went by.
const OVERHEARD: usize = 32;

pub(crate) type ConnectionId = u64;

/// One of the two ends of a connection: 0 opened it.
pub(crate) type Side = usize;

/// Something that happens to a connection later.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    /// The next piece reaches an end.
    Piece(ConnectionId, Side),
    /// An end learns that the other has closed, after everything that it sent.
    End(ConnectionId, Side),
    /// An end learns that the connection is gone, whatever was still under way.
    Reset(ConnectionId, Side),
}

#[derive(Debug)]
struct End {
    host: usize,
    /// The network's half; `None` once either is closed.
    stream: Option<UnixStream>,
    /// On their way to this end.
    coming: VecDeque<Vec<u8>>,
    coming_bytes: usize,
    last_arrival: Instant,
    /// Arrived, and not taken by this end's socket yet.
    arrived: VecDeque<u8>,
    /// Nothing follows what has arrived.
    ended: bool,
}

/// Whether the other half of a pair is closed, unread bytes or not.
fn is_closed(stream: &UnixStream) -> bool {
    let mut looked_at = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut looked_at, Some(&Timespec::default())).expect("it only looks");
    looked_at[0].revents().contains(PollFlags::HUP)
}

/// All connections, and who reaches whom.
#[derive(Debug)]
pub(crate) struct Network {
    connections: BTreeMap<ConnectionId, [End; 2]>,
    next: ConnectionId,
    /// Until when two hosts do not reach each other.
    cut: BTreeMap<(usize, usize), Instant>,
    /// How many bytes may be between two ends before the sender has to wait.
    window_bytes: usize,
    /// Pieces that went by, for whoever listens.
    overheard: VecDeque<Vec<u8>>,
    /// Delays are long and connections break.
    pub(crate) stormy: bool,
}

impl Network {
    pub(crate) fn new(window_bytes: usize) -> Self {
        Self {
            connections: BTreeMap::new(),
            next: 1,
            cut: BTreeMap::new(),
            window_bytes,
            overheard: VecDeque::new(),
            stormy: true,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.connections.len()
    }

    /// Keeps two hosts apart.
    pub(crate) fn cut(&mut self, a: usize, b: usize, until: Instant) {
        self.cut.insert((a.min(b), a.max(b)), until);
    }

    /// Lets everybody reach everybody.
    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    /// When something sent now from one host to another arrives.
    pub(crate) fn arrival(
        &self,
        random: &mut Random,
        now: Instant,
        from: usize,
        to: usize,
    ) -> Instant {
        let passable = self.cut.get(&(from.min(to), from.max(to))).map_or(now, |cut| now.max(*cut));
        let most = match self.stormy && random.one_in(20) {
            true => 300_000,
            false => 2_000,
        };
        passable + random.micros(10, most)
    }

    /// A new connection, and the halves that belong to its ends.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        from: usize,
        to: usize,
    ) -> (ConnectionId, [OwnedFd; 2]) {
        let half = |host| {
            let (theirs, ours) = UnixStream::pair().expect("a socket pair");
            ours.set_nonblocking(true).expect("a socket");
            for socket in [SockRef::from(&theirs), SockRef::from(&ours)] {
                socket.set_send_buffer_size(SOCKET_BYTES).expect("a socket");
            }
            let end = End {
                host,
                stream: Some(ours),
                coming: VecDeque::new(),
                coming_bytes: 0,
                last_arrival: now,
                arrived: VecDeque::new(),
                ended: false,
            };
            (end, OwnedFd::from(theirs))
        };
        let ((opener, opener_half), (other, other_half)) = (half(from), half(to));
        let id = self.next;
        self.next += 1;
        self.connections.insert(id, [opener, other]);
        (id, [opener_half, other_half])
    }

    pub(crate) fn of_host(&self, host: usize) -> Vec<(ConnectionId, Side)> {
        let ends = self.connections.iter().flat_map(|(id, ends)| [(*id, 0, ends), (*id, 1, ends)]);
        ends.filter(|(_, side, ends)| ends[*side].host == host)
            .map(|(id, side, _)| (id, side))
            .collect()
    }

    /// Something that went by a while ago.
    pub(crate) fn overheard(&self, random: &mut Random) -> Option<Vec<u8>> {
        let count = self.overheard.len();
        (count > 0).then(|| self.overheard[random.below(count)].clone())
    }

    /// How many sockets a host has open. What it sent before it closed one may still be under way.
    pub(crate) fn open_ends(&self, host: usize) -> usize {
        let ends = self.connections.values().flatten().filter(|end| end.host == host);
        ends.filter_map(|end| end.stream.as_ref()).filter(|stream| !is_closed(stream)).count()
    }

    pub(crate) fn any(&self, random: &mut Random) -> Option<ConnectionId> {
        let count = self.connections.len();
        (count > 0).then(|| *self.connections.keys().nth(random.below(count)).expect("in range"))
    }

    /// Takes what a host's ends have sent, and gives its sockets what has arrived. What follows is in
    /// `arrivals`. Whether anything moved.
    pub(crate) fn pump(
        &mut self,
        random: &mut Random,
        now: Instant,
        host: usize,
        arrivals: &mut Vec<(Instant, Arrival)>,
    ) -> bool {
        let mut moved = false;
        for (id, side) in self.of_host(host) {
            moved |= self.give(id, side);
            moved |= self.take(random, now, id, side, arrivals);
        }
        moved
    }

    /// Takes what an end has sent.
    fn take(
        &mut self,
        random: &mut Random,
        now: Instant,
        id: ConnectionId,
        side: Side,
        arrivals: &mut Vec<(Instant, Arrival)>,
    ) -> bool {
        let mut moved = false;
        loop {
            let Some(ends) = self.connections.get_mut(&id) else { return moved };
            let (from, to) = (ends[side].host, ends[1 - side].host);
            if ends[1 - side].coming_bytes + ends[1 - side].arrived.len() >= self.window_bytes {
                return moved;
            }
            let Some(stream) = &mut ends[side].stream else { return moved };
            let mut piece = vec![0; random.between(1, 5000)];
            let taken = match stream.read(&mut piece) {
                Ok(taken) => taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return moved,
                // Closed with something unread: what TCP answers with a reset.
                Err(_) => 0,
            };
            moved = true;
            if taken == 0 {
                ends[side].stream = None;
                // What a closed end sent last may arrive, or be overtaken by the reset.
                let at = self.arrival(random, now, from, to);
                let arrival = match random.one_in(2) {
                    true => Arrival::End(id, 1 - side),
                    false => Arrival::Reset(id, 1 - side),
                };
                let ends = self.connections.get(&id).expect("looked up above");
                let behind = ends[1 - side].last_arrival + Duration::from_nanos(1);
                let at = if matches!(arrival, Arrival::End(..)) { at.max(behind) } else { at };
                arrivals.push((at, arrival));
                return moved;
            }
            piece.truncate(taken);
            self.overheard.push_back(piece.clone());
            if self.overheard.len() > OVERHEARD {
                self.overheard.pop_front();
            }
            let at = self.arrival(random, now, from, to);
            let end = &mut self.connections.get_mut(&id).expect("looked up above")[1 - side];
            let at = at.max(end.last_arrival + Duration::from_nanos(1));
            end.last_arrival = at;
            end.coming_bytes += piece.len();
            end.coming.push_back(piece);
            arrivals.push((at, Arrival::Piece(id, 1 - side)));
        }
    }

    /// Gives an end's socket what has arrived, as far as it takes it.
    fn give(&mut self, id: ConnectionId, side: Side) -> bool {
        let Some(ends) = self.connections.get_mut(&id) else { return false };
        let end = &mut ends[side];
        let mut moved = false;
        while let (Some(stream), false) = (&mut end.stream, end.arrived.is_empty()) {
            let (bytes, _) = end.arrived.as_slices();
            match stream.write(bytes) {
                Ok(taken) => {
                    end.arrived.drain(..taken);
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return moved,
                Err(_) => end.arrived.clear(),
            }
        }
        if end.ended && end.arrived.is_empty() {
            moved |= end.stream.take().is_some();
        }
        if ends.iter().all(|end| end.stream.is_none()) {
            self.connections.remove(&id);
        }
        moved
    }

    /// Something that was on its way has arrived. Returns the host whose lanes have something to do.
    pub(crate) fn arrive(&mut self, arrival: Arrival) -> Option<usize> {
        let (Arrival::Piece(id, side) | Arrival::End(id, side) | Arrival::Reset(id, side)) =
            arrival;
        let end = &mut self.connections.get_mut(&id)?[side];
        let host = end.host;
        match arrival {
            Arrival::Piece(..) => {
                if let Some(piece) = end.coming.pop_front() {
                    end.coming_bytes -= piece.len();
                    end.arrived.extend(piece);
                }
            }
            Arrival::End(..) => end.ended = true,
            Arrival::Reset(..) => {
                end.coming.clear();
                end.coming_bytes = 0;
                end.arrived.clear();
                end.ended = true;
            }
        }
        self.give(id, side);
        Some(host)
    }

    /// A connection breaks: each end learns of it in its own time.
    pub(crate) fn break_off(
        &mut self,
        random: &mut Random,
        now: Instant,
        id: ConnectionId,
    ) -> Vec<(Instant, Arrival)> {
        [0, 1].map(|side| (now + random.millis(0, 900), Arrival::Reset(id, side))).to_vec()
    }

    /// A host's sockets are gone with its process.
    pub(crate) fn crash(
        &mut self,
        random: &mut Random,
        now: Instant,
        host: usize,
    ) -> Vec<(Instant, Arrival)> {
        let mut arrivals = Vec::new();
        for (id, side) in self.of_host(host) {
            let ends = self.connections.get_mut(&id).expect("just listed");
            ends[side].stream = None;
            let peer = ends[1 - side].host;
            let gone = ends[1 - side].stream.is_none();
            if gone {
                self.connections.remove(&id);
            } else {
                let at = self.arrival(random, now, host, peer);
                arrivals.push((at, Arrival::Reset(id, 1 - side)));
            }
        }
        arrivals
    }
}
