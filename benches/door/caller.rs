//! Callers: what they show, and the requests they make.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use aws_lc_rs::digest::{SHA256, digest};

use crate::request::{ECHO, INITIALIZE, INITIALIZED};

/// An API key.
pub const KEY: &str = "gangway_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// What the gateway keeps of it.
pub fn key_hash() -> String {
    let digest = digest(&SHA256, KEY.as_bytes());
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// One caller of one server.
pub struct Caller {
    address: SocketAddr,
    path: &'static str,
    credential: String,
    session: String,
}

impl Caller {
    /// Opens a session over `stream`.
    pub fn open(
        stream: &mut (impl Read + Write),
        address: SocketAddr,
        path: &'static str,
        credential: &str,
    ) -> io::Result<Caller> {
        let mut caller = Caller { address, path, credential: credential.to_owned(), session: String::new() };
        let head = exchange(stream, &caller.post(INITIALIZE))?;
        let id = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        id.ok_or_else(|| io::Error::other(format!("no session: {head}")))?.clone_into(&mut caller.session);
        exchange(stream, &caller.post(INITIALIZED))?;
        Ok(caller)
    }

    /// A call of its session.
    pub fn call(&self) -> Vec<u8> {
        self.post(ECHO)
    }

    fn post(&self, body: &str) -> Vec<u8> {
        let Caller { address, path, credential, session } = self;
        let session = if session.is_empty() { String::new() } else { format!("mcp-session-id: {session}\r\n") };
        format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {credential}\r\n\
             accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n{session}\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}

/// A request nobody may make.
pub fn stranger(address: SocketAddr, path: &str) -> Vec<u8> {
    let body = INITIALIZE;
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\naccept: application/json, text/event-stream\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends a request and reads its answer, which has a length; gives the head.
///
/// # Errors
/// When the server closes before its end.
pub fn exchange(stream: &mut (impl Read + Write), request: &[u8]) -> io::Result<String> {
    stream.write_all(request)?;
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed"));
        }
        seen.extend_from_slice(&buffer[..length]);
        let Some(end) = memchr::memmem::find(&seen, b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&seen[..end]).into_owned();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        if seen.len() >= end + 4 + length {
            return Ok(head);
        }
    }
}

/// A connection that sends at once.
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
