//! Requests of an MCP client as bytes, and one-off exchanges that are not measured.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A POST as the official SDKs send it.
pub fn post(address: SocketAddr, path: &str, session: Option<&str>, body: &str) -> Vec<u8> {
    let session =
        session.map_or_else(String::new, |id| format!("mcp-session-id: {id}\r\nmcp-protocol-version: 2025-11-25\r\n"));
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\naccept: application/json, text/event-stream\r\n\
         content-type: application/json\r\n{session}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The end of a session.
pub fn delete(address: SocketAddr, path: &str, session: &str) -> Vec<u8> {
    format!("DELETE {path} HTTP/1.1\r\nhost: {address}\r\nmcp-session-id: {session}\r\n\r\n").into_bytes()
}

/// A response read to its end.
pub struct Response {
    /// Its head, names in lower case.
    pub head: String,
    /// Its body, chunks joined.
    pub body: Vec<u8>,
}

impl Response {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Sends one request and reads its response.
///
/// # Errors
/// When the server closes, or answers anything but success.
pub fn exchange(mut stream: &TcpStream, request: &[u8]) -> io::Result<Response> {
    stream.write_all(request)?;
    // Nothing follows the response, so nothing is lost in the buffer.
    let mut input = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if input.read_line(&mut head)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed"));
        }
    }
    if !head.starts_with("HTTP/1.1 20") {
        return Err(io::Error::other(format!("no success: {head}")));
    }
    let mut response = Response { head, body: Vec::new() };
    if response.header("transfer-encoding") == Some("chunked") {
        while read_chunk(&mut input, &mut response.body)? {}
    } else {
        let length = response.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        response.body.resize(length, 0);
        input.read_exact(&mut response.body)?;
    }
    Ok(response)
}

/// Appends one chunk; false at the last.
fn read_chunk(input: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<bool> {
    let mut size = String::new();
    input.read_line(&mut size)?;
    let size = usize::from_str_radix(size.trim_end(), 16).map_err(io::Error::other)?;
    let start = body.len();
    body.resize(start + size + 2, 0);
    input.read_exact(&mut body[start..])?;
    body.truncate(start + size);
    Ok(size > 0)
}
