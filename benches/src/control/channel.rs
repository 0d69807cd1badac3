//! JSON values, one a line, over a socket.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::Socket;

/// The longest line that is read. The longest that is written is an error's text.
const LINE_BYTES: usize = 64 << 10;

/// How much of a line that was not understood is shown.
const SHOWN_CHARS: usize = 80;

/// A socket to the other process.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: Socket,
    /// What was read and not yet asked for.
    received: Vec<u8>,
}

/// Why nothing was said or heard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error("the connection was closed")]
    Closed,
    #[error("nothing came for {} s", waited.as_secs_f64())]
    Silent { waited: Duration },
    #[error("a line is longer than {LINE_BYTES} bytes: this is not kvbench")]
    TooLong,
    #[error("not understood: `{line}`")]
    Malformed {
        line: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("the connection broke")]
    Broken(#[from] io::Error),
}

impl Channel {
    /// Speaks over this socket, which nobody else reads.
    pub(crate) fn new(socket: impl Into<Socket>) -> Self {
        Self { socket: socket.into(), received: Vec::new() }
    }

    /// Writes one line, for at most `patience`: the other end may not be reading.
    pub(crate) fn say(
        &mut self,
        value: &impl Serialize,
        patience: Duration,
    ) -> Result<(), ChannelError> {
        let mut line = serde_json::to_vec(value).map_err(io::Error::from)?;
        line.push(b'\n');
        let deadline = Deadline::after(patience);
        let mut rest = line.as_slice();
        while !rest.is_empty() {
            self.socket.set_write_timeout(Some(deadline.left()?))?;
            match self.socket.write(rest) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(written) => rest = &rest[written..],
                Err(error) => deadline.passes(error)?,
            }
        }
        Ok(())
    }

    /// Reads one line, for at most `patience`.
    pub(crate) fn hear<T: DeserializeOwned>(
        &mut self,
        patience: Duration,
    ) -> Result<T, ChannelError> {
        let line = self.line(patience)?;
        serde_json::from_slice(&line).map_err(|source| {
            let text = String::from_utf8_lossy(&line);
            ChannelError::Malformed { line: text.chars().take(SHOWN_CHARS).collect(), source }
        })
    }

    fn line(&mut self, patience: Duration) -> Result<Vec<u8>, ChannelError> {
        let deadline = Deadline::after(patience);
        let mut searched = 0;
        loop {
            let end = self.received[searched..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = end.map(|end| searched + end) {
                let rest = self.received.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.pop();
                return Ok(line);
            }
            searched = self.received.len();
            if searched > LINE_BYTES {
                return Err(ChannelError::TooLong);
            }
            self.socket.set_read_timeout(Some(deadline.left()?))?;
            let mut chunk = [0; 4096];
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(read) => self.received.extend_from_slice(&chunk[..read]),
                Err(error) => deadline.passes(error)?,
            }
        }
    }
}

/// When a wait ends.
struct Deadline {
    begun: Instant,
    patience: Duration,
}

impl Deadline {
    fn after(patience: Duration) -> Self {
        Self { begun: Instant::now(), patience }
    }

    /// Never zero, which sockets take for "without a limit".
    fn left(&self) -> Result<Duration, ChannelError> {
        let left = self.patience.saturating_sub(self.begun.elapsed());
        if left.is_zero() { Err(ChannelError::Silent { waited: self.patience }) } else { Ok(left) }
    }

    /// Whether a call that failed is tried again: the time that is left decides.
    fn passes(&self, error: io::Error) -> Result<(), ChannelError> {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
                self.left().map(|_| ())
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Err(ChannelError::Closed),
            _ => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(20);

    fn ends() -> (Channel, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        (Channel::new(one), other)
    }

    #[test]
    fn lines_arrive_one_by_one_however_they_were_cut() {
        let (mut channel, mut other) = ends();
        other.write_all(b"[1,2]\n[3").unwrap();
        assert_eq!(channel.hear::<Vec<u8>>(LONG).unwrap(), [1, 2]);
        assert!(matches!(channel.hear::<Vec<u8>>(SOON), Err(ChannelError::Silent { .. })));
        other.write_all(b",4]\n").unwrap();
        assert_eq!(channel.hear::<Vec<u8>>(LONG).unwrap(), [3, 4]);
        drop(other);
        assert!(matches!(channel.hear::<Vec<u8>>(LONG), Err(ChannelError::Closed)));
    }

    #[test]
    fn a_line_without_an_end_is_given_up_at_its_bound() {
        let (mut channel, mut other) = ends();
        let writer = std::thread::spawn(move || {
            // Fails once the reader has gone.
            while other.write_all(&[b'x'; 4096]).is_ok() {}
        });
        assert!(matches!(channel.hear::<u8>(LONG), Err(ChannelError::TooLong)));
        assert!(channel.received.len() <= LINE_BYTES + 4096);
        drop(channel);
        writer.join().unwrap();
    }

    #[test]
    fn a_line_of_something_else_is_shown_in_part() {
        let (mut channel, mut other) = ends();
        other.write_all("GET / HTTP/1.1 ".repeat(20).as_bytes()).unwrap();
        other.write_all(b"\xff\n").unwrap();
        let error = channel.hear::<u8>(LONG).unwrap_err();
        let ChannelError::Malformed { line, .. } = error else { panic!("{error}") };
        assert!(line.starts_with("GET / HTTP/1.1") && line.len() == SHOWN_CHARS);
    }

    #[test]
    fn an_end_that_does_not_read_is_not_waited_for() {
        let (mut channel, _other) = ends();
        let line = "x".repeat(60_000);
        let error = (0..1000).find_map(|_| channel.say(&line, SOON).err()).unwrap();
        assert!(matches!(error, ChannelError::Silent { .. }), "{error}");
    }
}
