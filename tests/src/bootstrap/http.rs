//! Requests written by hand, well or badly, one connection each.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// The HTTP status; 0 where the connection was closed without an answer.
    pub status: u16,
    /// The head, as it came.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Response {
    /// The body as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// What the error says.
    #[must_use]
    pub fn error(&self) -> String {
        let json = self.json();
        let error = json["error"].as_str();
        error.unwrap_or_else(|| panic!("no error: {self:?}")).to_owned()
    }

    /// Asserts that a registration was accepted.
    #[track_caller]
    pub fn accepted(&self) {
        assert_eq!((self.status, &*self.body), (200, "{\"status\":\"ok\"}"), "{self:?}");
    }

    /// Asserts that a request was refused with a status, and with an error that says `part`.
    #[track_caller]
    pub fn refused(&self, status: u16, part: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.error().contains(part), "{part:?} is not in {self:?}");
    }
}

/// A connection to a server.
///
/// # Panics
/// Where there is none.
#[must_use]
pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    stream.set_read_timeout(Some(ANSWER)).expect("a socket has timeouts");
    stream.set_write_timeout(Some(ANSWER)).expect("a socket has timeouts");
    stream
}

/// Sends bytes as they are, and reads until the server closes the connection.
#[must_use]
pub fn send(address: &str, bytes: &[u8]) -> Response {
    let mut stream = connect(address);
    // A server that has seen enough answers and closes while more is sent.
    let _ = stream.write_all(bytes);
    read(&mut stream)
}

/// Reads until the server closes the connection.
///
/// # Panics
/// Where it does not.
pub fn read(stream: &mut TcpStream) -> Response {
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        let closed = error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(closed, "{error}: {:?}", String::from_utf8_lossy(&answer));
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        return Response { status: 0, head: answer, body: String::new() };
    };
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Response { status, head: head.to_ascii_lowercase(), body: body.into() }
}

/// `GET` of a path.
#[must_use]
pub fn get(address: &str, path: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    send(address, request.as_bytes())
}

/// `POST /register` with a body and further header lines.
#[must_use]
pub fn post(address: &str, body: &str, headers: &str) -> Response {
    let length = body.len();
    let request = format!(
        "POST /register HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    send(address, request.as_bytes())
}

/// `POST /register` of a registration.
#[must_use]
pub fn register(address: &str, registration: &Value) -> Response {
    post(address, &registration.to_string(), "")
}

/// `GET /query`.
#[must_use]
pub fn query(address: &str) -> Response {
    get(address, "/query")
}
