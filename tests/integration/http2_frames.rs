//! HTTP/2 by hand: any frame, in any order (RFC 9113).

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;

use crate::tls_client::{Secure, shake_hands};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;

/// A frame as it came.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// One frame's bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header block without compression: each field literal, never indexed (RFC 7541, 6.2.3).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0x10);
        for text in [name, value] {
            // An integer with a prefix of seven bits (RFC 7541, 5.1).
            match text.len() {
                length @ 0..127 => bytes.push(u8::try_from(length).unwrap()),
                length => {
                    bytes.push(127);
                    let mut rest = length - 127;
                    while rest >= 128 {
                        bytes.push(u8::try_from(rest % 128).unwrap() | 128);
                        rest /= 128;
                    }
                    bytes.push(u8::try_from(rest).unwrap());
                }
            }
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// The fields of a POST to this path, with more.
pub fn post<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ];
    fields.extend_from_slice(more);
    fields
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// GOAWAY with this code.
    GoAway(u32),
    /// Closed without a word.
    Closed,
}

/// One connection.
pub struct Frames {
    stream: Secure,
    buffer: Vec<u8>,
}

impl Frames {
    /// Connects; preface, empty SETTINGS and the acknowledgement of the gateway's are sent.
    #[track_caller]
    pub fn open(address: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let mut frames = Self::connect(address, config);
        frames.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        frames.send(&frame(SETTINGS, 0, 0, &[]));
        frames.send(&frame(SETTINGS, ACK, 0, &[]));
        frames
    }

    /// Connects and says nothing.
    #[track_caller]
    pub fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let stream = shake_hands(address, config, "localhost").unwrap();
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
        Self { stream, buffer: Vec::new() }
    }

    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends until it is over; whether the gateway ended it. What it sends meanwhile is read, so that nobody waits.
    pub fn pour(&mut self, bytes: &[u8], times: usize) -> bool {
        for at in 0..times {
            if self.stream.write_all(bytes).is_err() {
                return true;
            }
            if at % 64 == 63 && !self.read_what_is_there() {
                return true;
            }
        }
        false
    }

    fn read_what_is_there(&mut self) -> bool {
        self.stream.sock.set_nonblocking(true).unwrap();
        let mut piece = [0; 16 * 1024];
        let open = loop {
            match self.stream.read(&mut piece) {
                Ok(0) => break false,
                Ok(count) => self.buffer.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break true,
                Err(_) => break false,
            }
        };
        // Fails on a socket that was reset; the next write says so.
        let _ = self.stream.sock.set_nonblocking(false);
        open
    }

    /// The next frame; `None` when the connection is over.
    #[track_caller]
    pub fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(length) = self.buffer.get(..3) {
                let length = usize::from(length[0]) << 16 | usize::from(length[1]) << 8 | usize::from(length[2]);
                if self.buffer.len() >= 9 + length {
                    let bytes: Vec<u8> = self.buffer.drain(..9 + length).collect();
                    let stream = u32::from_be_bytes(bytes[5..9].try_into().unwrap());
                    return Some(Frame { kind: bytes[3], flags: bytes[4], stream, payload: bytes[9..].to_vec() });
                }
            }
            let mut piece = [0; 16 * 1024];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&piece[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("neither a frame nor an end: {error}")
                }
                Err(_) => return None,
            }
        }
    }

    /// The next frame of this kind on this stream; fails if the connection ends first.
    #[track_caller]
    pub fn await_frame(&mut self, kind: u8, stream: u32) -> Frame {
        loop {
            let frame = self.next().expect("the connection ended");
            if frame.kind == kind && frame.stream == stream {
                return frame;
            }
        }
    }

    /// The status of the answer on this stream. hpack's static table has most (RFC 7541, A); another one is understood
    /// in the first answer of a connection only, since further ones may name it by its place in a table.
    #[track_caller]
    pub fn status(&mut self, stream: u32) -> u16 {
        let mut payload = self.await_frame(HEADERS, stream).payload;
        // A change of that table's size.
        payload.drain(..usize::from(payload[0] & 0xe0 == 0x20));
        match payload[0] & 0x7f {
            8 => 200,
            9 => 204,
            11 => 304,
            12 => 400,
            13 => 404,
            14 => 500,
            _ => {
                // A literal with the indexed name ":status", its three digits perhaps in Huffman's code.
                let value = &payload[2..2 + usize::from(payload[1] & 0x7f)];
                if payload[1] & 0x80 == 0 {
                    std::str::from_utf8(value).unwrap().parse().unwrap()
                } else {
                    digits(value)
                }
            }
        }
    }

    /// Reads to the end.
    #[track_caller]
    pub fn ending(mut self) -> Ending {
        let mut ending = Ending::Closed;
        while let Some(frame) = self.next() {
            if frame.kind == GOAWAY {
                ending = Ending::GoAway(u32::from_be_bytes(frame.payload[4..8].try_into().unwrap()));
            }
        }
        ending
    }
}

/// Digits in the code of RFC 7541, B: 0, 1 and 2 have five bits, the others six.
fn digits(bytes: &[u8]) -> u16 {
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let mut rest = bits.as_str();
    let mut value = 0;
    for _ in 0..3 {
        let (digit, length) = match u8::from_str_radix(&rest[..5], 2).unwrap() {
            digit @ 0..=2 => (digit, 5),
            _ => (u8::from_str_radix(&rest[..6], 2).unwrap() - 0x19 + 3, 6),
        };
        value = value * 10 + u16::from(digit);
        rest = &rest[length..];
    }
    value
}
