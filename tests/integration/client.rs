//! HTTP/1.1 by hand: exact bytes out, the answer as it comes, and every way to break a connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use socket2::{Domain, SockRef, Socket, Type};

use crate::PATIENCE;

/// A request to be written; `Host` and `Content-Length` are added unless given or left out.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    omitted: Vec<String>,
    body: Option<Vec<u8>>,
}

impl Request {
    /// Any method.
    pub fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            omitted: Vec::new(),
            body: None,
        }
    }

    /// `GET`
    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// `POST` of JSON, accepting both answers, as every MCP client must.
    pub fn post(target: &str, body: impl AsRef<[u8]>) -> Self {
        Self::new("POST", target)
            .header("Content-Type", "application/json")
            .header("Accept", "application/json, text/event-stream")
            .body(body)
    }

    /// Adds a field; the same name may come twice.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Removes every field of this name, an automatic one too.
    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.omitted.push(name.to_ascii_lowercase());
        self
    }

    /// Replaces every field of this name by one.
    pub fn with(self, name: &str, value: &str) -> Self {
        self.without(name).header(name, value)
    }

    /// Sets the body.
    pub fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = Some(body.as_ref().to_vec());
        self
    }

    /// What goes over the wire.
    pub fn bytes(&self, host: SocketAddr) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        let mut field = |name: &str, value: &str| head.push_str(&format!("{name}: {value}\r\n"));
        if !self.has("host") {
            field("Host", &host.to_string());
        }
        for (name, value) in &self.headers {
            field(name, value);
        }
        if let Some(body) = &self.body
            && !self.has("content-length")
            && !self.has("transfer-encoding")
        {
            field("Content-Length", &body.len().to_string());
        }
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(self.body.as_deref().unwrap_or_default());
        bytes
    }

    fn has(&self, name: &str) -> bool {
        self.omitted.iter().any(|omitted| omitted == name)
            || self.headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name))
    }

    /// Sends it on a connection of its own and reads the whole answer.
    #[track_caller]
    pub fn send(&self, address: SocketAddr) -> Response {
        let mut connection = Connection::open(address);
        connection.request(self);
        connection.response()
    }
}

/// Status line and fields of a response.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The first field of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// Every field of this name.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let wanted = move |(other, _): &&(String, String)| other.eq_ignore_ascii_case(name);
        self.headers.iter().filter(wanted).map(|(_, value)| value.as_str())
    }
}

/// A whole response.
#[derive(Clone, Debug)]
pub struct Response {
    pub head: Head,
    pub body: Vec<u8>,
}

impl Response {
    pub fn status(&self) -> u16 {
        self.head.status
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// The body as text.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        self.text().parse().unwrap_or_else(|error| panic!("{error} in the body of {self:?}"))
    }
}

/// How the rest of a body is framed (RFC 9112, "Message Body Length").
#[derive(Debug)]
enum Framing {
    /// Between messages.
    None,
    Length(usize),
    /// Bytes left of the current chunk; none before the first.
    Chunk(Option<usize>),
    UntilClose,
}

/// One connection.
pub struct Connection {
    pub stream: TcpStream,
    buffer: Vec<u8>,
    framing: Framing,
    peer: SocketAddr,
}

impl Connection {
    /// Connects.
    #[track_caller]
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)
            .unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"));
        Self::of(stream, address)
    }

    /// Connects with a small receive buffer, so that the peer soon feels that nobody reads.
    #[track_caller]
    pub fn open_small(address: SocketAddr, receive_buffer: usize) -> Self {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(receive_buffer).unwrap();
        socket.connect_timeout(&address.into(), PATIENCE).unwrap();
        Self::of(socket.into(), address)
    }

    fn of(stream: TcpStream, peer: SocketAddr) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, buffer: Vec::new(), framing: Framing::None, peer }
    }

    /// Writes exactly these bytes.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).unwrap();
    }

    /// As [`Connection::send`], for a peer that may have closed.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Writes a request.
    #[track_caller]
    pub fn request(&mut self, request: &Request) {
        self.send(request.bytes(self.peer));
    }

    /// Reads a whole response.
    #[track_caller]
    pub fn response(&mut self) -> Response {
        let head = self.head();
        let body = self.body();
        Response { head, body }
    }

    /// Reads the head of a response, interim ones (1xx) skipped.
    #[track_caller]
    pub fn head(&mut self) -> Head {
        self.try_head().expect("the connection ended before a response")
    }

    /// As [`Connection::head`]; `None` if the peer closes instead.
    #[track_caller]
    pub fn try_head(&mut self) -> Option<Head> {
        loop {
            let end = loop {
                if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                    break end;
                }
                if !self.fill() {
                    assert!(self.buffer.is_empty(), "half a head: {:?}", self.peek());
                    return None;
                }
            };
            let text: Vec<u8> = self.buffer.drain(..end + 4).collect();
            let head = parse_head(std::str::from_utf8(&text[..end]).unwrap());
            if head.status >= 200 {
                self.framing = framing(&head);
                return Some(head);
            }
        }
    }

    /// Reads the rest of the body.
    #[track_caller]
    pub fn body(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        let began = Instant::now();
        while let Some(piece) = self.read_body() {
            body.extend(piece);
            // Comments keep a stream alive that will never end.
            let text = String::from_utf8_lossy(&body[body.len().saturating_sub(1000)..]);
            assert!(began.elapsed() < PATIENCE, "no end within {PATIENCE:?}: {text}");
        }
        body
    }

    /// The next bytes of the body as they come; `None` at its end. A body cut short fails, see
    /// [`Connection::try_read_body`].
    #[track_caller]
    pub fn read_body(&mut self) -> Option<Vec<u8>> {
        self.try_read_body().unwrap_or_else(|error| panic!("the body ended early: {error}"))
    }

    /// As [`Connection::read_body`]; a body cut short is an error.
    pub fn try_read_body(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let left = match &mut self.framing {
                Framing::None | Framing::Length(0) => {
                    self.framing = Framing::None;
                    return Ok(None);
                }
                Framing::Length(left) | Framing::Chunk(Some(left)) => *left,
                Framing::UntilClose => usize::MAX,
                Framing::Chunk(None) => {
                    if !self.chunk_head()? {
                        self.framing = Framing::None;
                        return Ok(None);
                    }
                    continue;
                }
            };
            if self.buffer.is_empty() && !self.try_fill()? {
                if matches!(self.framing, Framing::UntilClose) {
                    self.framing = Framing::None;
                    return Ok(None);
                }
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let count = left.min(self.buffer.len());
            let piece = self.buffer.drain(..count).collect();
            match &mut self.framing {
                Framing::Length(left) => *left -= count,
                Framing::Chunk(Some(left)) if *left > count => *left -= count,
                Framing::Chunk(chunk) => {
                    *chunk = None;
                    self.chunk_line()?;
                }
                Framing::None | Framing::UntilClose => {}
            }
            return Ok(Some(piece));
        }
    }

    /// Reads a chunk's size; false for the last chunk, whose trailer is read too.
    fn chunk_head(&mut self) -> io::Result<bool> {
        let line = self.chunk_line()?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(digits, 16).map_err(io::Error::other)?;
        self.framing = Framing::Chunk(Some(size));
        if size == 0 {
            while !self.chunk_line()?.is_empty() {}
        }
        Ok(size > 0)
    }

    fn chunk_line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return String::from_utf8(line[..end].to_vec()).map_err(io::Error::other);
            }
            if !self.try_fill()? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Waits until the peer closes or resets; fails if more bytes come or it stays open for [`PATIENCE`].
    #[track_caller]
    pub fn await_close(&mut self) {
        assert!(!self.fill() && self.buffer.is_empty(), "bytes before the end: {:?}", self.peek());
    }

    /// Everything the peer sends until it closes, unparsed.
    pub fn read_to_close(&mut self) -> Vec<u8> {
        while self.fill() {}
        std::mem::take(&mut self.buffer)
    }

    /// Whether nothing comes for `time`, and the connection stays open. For what must *not* happen only.
    pub fn is_quiet_for(&mut self, time: Duration) -> bool {
        let before = self.buffer.len();
        self.stream.set_read_timeout(Some(time)).unwrap();
        let began = Instant::now();
        let open = self.fill_or_timeout();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        open && self.buffer.len() == before && began.elapsed() >= time
    }

    fn fill_or_timeout(&mut self) -> bool {
        match self.try_fill() {
            Ok(open) => open,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }

    /// What was read and not yet taken.
    pub fn peek(&self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }

    /// Ends our half only.
    pub fn shutdown_write(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Ends the connection with a reset (RST), as a vanished client's kernel does.
    pub fn reset(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Reads once more; false when the peer closed or reset.
    #[track_caller]
    fn fill(&mut self) -> bool {
        match self.try_fill() {
            Ok(open) => open,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing came from {} for {PATIENCE:?}: {error}", self.peer),
        }
    }

    fn try_fill(&mut self) -> io::Result<bool> {
        let mut piece = [0; 16 * 1024];
        let count = loop {
            match self.stream.read(&mut piece) {
                // A stopped test that goes on, or a signal of another test's.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.buffer.extend_from_slice(&piece[..count]);
        Ok(count > 0)
    }
}

/// Sends until the peer closes or is done with us; whether it stopped us.
pub fn pour(connection: &mut Connection, piece: &[u8], times: usize) -> bool {
    for _ in 0..times {
        match connection.try_send(piece) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return true,
            Err(error) => panic!("{error}"),
        }
    }
    false
}

#[track_caller]
fn parse_head(text: &str) -> Head {
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let field = |line: &str| {
        let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("no field: {line:?}"));
        (name.to_owned(), value.trim().to_owned())
    };
    Head {
        status: status.unwrap_or_else(|| panic!("no status line: {status_line:?}")),
        headers: lines.map(field).collect(),
    }
}

#[track_caller]
fn framing(head: &Head) -> Framing {
    if matches!(head.status, 204 | 304) {
        return Framing::None;
    }
    match (head.header("transfer-encoding"), head.header("content-length")) {
        (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => Framing::Chunk(None),
        (None, Some(length)) => Framing::Length(length.parse().unwrap()),
        (None, None) => Framing::UntilClose,
        _ => panic!("a response must be framed in one way: {head:?}"),
    }
}
