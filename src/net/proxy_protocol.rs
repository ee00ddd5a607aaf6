//! The header a proxy writes before everything else to say whom it speaks for: the PROXY protocol, versions 1 and 2.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::wire::Stream;

/// What version 2 begins with.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// What version 1 begins with.
const WORD: &[u8] = b"PROXY ";
/// The shortest header there is: `PROXY UNKNOWN` and its end.
const SHORTEST: usize = 15;
/// Longest line of version 1.
const LONGEST_LINE: usize = 107;
/// Fixed part of version 2.
const FIXED: usize = 16;
/// Longest further part of version 2, whose extensions mean nothing to us.
const LONGEST_PART: usize = 4096;

/// Why nobody was named.
#[derive(Debug)]
pub(super) enum Unnamed {
    /// What came is no header.
    Malformed,
    /// None came in time.
    TooLate,
    /// The connection ended.
    Gone,
}

/// Reads the header, and nothing behind it: who connected to the proxy, or `None` where it speaks for itself or does
/// not say.
///
/// # Errors
/// No header came within `limit`.
pub(super) async fn read_source(stream: &mut Stream, limit: Duration) -> Result<Option<IpAddr>, Unnamed> {
    let reading = async {
        let mut header = Vec::with_capacity(LONGEST_LINE);
        loop {
            match next(&header).ok_or(Unnamed::Malformed)? {
                Next::Source(source) => return Ok(source),
                Next::Read(length) => {
                    let before = header.len();
                    header.resize(length, 0);
                    stream.read_exact(&mut header[before..]).await.map_err(|_: io::Error| Unnamed::Gone)?;
                }
            }
        }
    };
    timeout(limit, reading).await.unwrap_or(Err(Unnamed::TooLate))
}

/// What to do with a header as far as it came.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Read on until it has so many bytes, which it has at least.
    Read(usize),
    /// It is whole.
    Source(Option<IpAddr>),
}

/// Looks at a header; `None` is none.
fn next(header: &[u8]) -> Option<Next> {
    if header.len() < SHORTEST {
        return Some(Next::Read(SHORTEST));
    }
    if header.starts_with(WORD) { next_of_line(header) } else { next_of_binary(header) }
}

/// Version 1: one line of text. Its end is not known before it is there.
fn next_of_line(header: &[u8]) -> Option<Next> {
    let Some(line) = header.strip_suffix(b"\r\n") else {
        let is_open = header.len() < LONGEST_LINE && header[..header.len() - 1].iter().all(|byte| *byte != b'\n');
        return is_open.then_some(Next::Read(header.len() + 1));
    };
    let mut words = std::str::from_utf8(line.strip_prefix(WORD)?).ok()?.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(Next::Source(None));
    }
    let (source, target) = (words.next()?, words.next()?);
    let ports_are_good = [words.next()?, words.next()?].iter().all(|port| is_port(port));
    let source: IpAddr = match family {
        "TCP4" => target.parse().and_then(|_: Ipv4Addr| source.parse::<Ipv4Addr>()).ok()?.into(),
        "TCP6" => target.parse().and_then(|_: Ipv6Addr| source.parse::<Ipv6Addr>()).ok()?.into(),
        _ => return None,
    };
    (ports_are_good && words.next().is_none()).then(|| Next::Source(Some(source.to_canonical())))
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Version 2: binary, with its length in it.
fn next_of_binary(header: &[u8]) -> Option<Next> {
    if !header.starts_with(SIGNATURE) {
        return None;
    }
    let Some((fixed, rest)) = header.split_at_checked(FIXED) else { return Some(Next::Read(FIXED)) };
    let (command, family) = (fixed[12], fixed[13]);
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if length > LONGEST_PART {
        return None;
    }
    if rest.len() < length {
        return Some(Next::Read(FIXED + length));
    }
    let source = match (command, family) {
        // A proxy that looks whether we live, or that cannot say.
        (0x20, _) | (0x21, 0x00 | 0x31) => None,
        (0x21, 0x11) if length >= 12 => Some(IpAddr::from(<[u8; 4]>::try_from(&rest[..4]).ok()?)),
        (0x21, 0x21) if length >= 36 => Some(IpAddr::from(<[u8; 16]>::try_from(&rest[..16]).ok()?)),
        _ => return None,
    };
    Some(Next::Source(source.map(|source| source.to_canonical())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::{Next, SIGNATURE, next};

    /// Reads from `bytes` as from a connection: the source and how many were taken, or no header.
    fn read(bytes: &[u8]) -> Option<(Option<String>, usize)> {
        let mut taken = 0;
        loop {
            match next(&bytes[..taken])? {
                Next::Source(source) => return Some((source.map(|source| source.to_string()), taken)),
                Next::Read(length) => {
                    assert!(length > taken, "nothing more is read");
                    taken = Some(length).filter(|length| *length <= bytes.len())?;
                }
            }
        }
    }

    fn binary(command: u8, family: u8, part: &[u8]) -> Vec<u8> {
        let length = u16::try_from(part.len()).expect("short").to_be_bytes();
        [SIGNATURE, &[command, family], &length, part].concat()
    }

    #[test]
    fn both_versions_name_the_source_and_no_byte_more_is_taken() {
        let v4 = [&[192, 0, 2, 7, 10, 0, 0, 1, 1, 2, 3, 4][..], b"\x03\0\x04abcd"].concat();
        let mut v6 = [0; 36];
        v6[..2].copy_from_slice(&[0x20, 0x01]);
        v6[15] = 9;
        for (header, source) in [
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\r\n".to_vec(), Some("192.0.2.7")),
            (b"PROXY TCP6 2001::9 ::1 1 65535\r\n".to_vec(), Some("2001::9")),
            (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n".to_vec(), Some("192.0.2.7")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff::1 whatever\r\n".to_vec(), None),
            (binary(0x21, 0x11, &v4), Some("192.0.2.7")),
            (binary(0x21, 0x21, &v6), Some("2001::9")),
            (binary(0x20, 0x00, &[]), None),
            (binary(0x20, 0x11, &v4), None),
            (binary(0x21, 0x00, b"abc"), None),
        ] {
            let length = header.len();
            let read = read(&[&header[..], b"GET / HTTP/1.1\r\n"].concat());
            assert_eq!(read, Some((source.map(str::to_owned), length)), "{:?}", String::from_utf8_lossy(&header));
        }
    }

    #[test]
    fn anything_else_is_no_header() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 56324\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 56324 443 1\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 56324 65536\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 +1 443\r\n",
            "PROXY TCP4 192.0.2.777 10.0.0.1 1 443\r\n",
            "PROXY TCP4 2001::9 10.0.0.1 1 443\r\n",
            "PROXY TCP4  192.0.2.7 10.0.0.1 1 443\r\n",
            "PROXY TCP6 192.0.2.7 ::1 1 443\r\n",
            "PROXY UDP4 192.0.2.7 10.0.0.1 1 443\r\n",
            "PROXY TCP4 192.0.2.7 10.0.0.1 1 443\nGET",
            "PROXY UNKNOWN\n\r\n",
            "proxy TCP4 192.0.2.7 10.0.0.1 1 443\r\n",
        ] {
            assert_eq!(read(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(read(format!("PROXY UNKNOWN {}\r\n", "x".repeat(107)).as_bytes()), None);
        for (command, family, part) in [
            (0x11, 0x11, 12),
            (0x22, 0x11, 12),
            (0x21, 0x11, 11),
            (0x21, 0x21, 35),
            (0x21, 0x12, 12),
            (0x21, 0x11, 4097),
        ] {
            assert_eq!(read(&binary(command, family, &vec![0; part])), None, "{command:x} {family:x} {part}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_never_read_without_end(begin in 0_usize..3, garbage in proptest::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [[&b""[..], b"PROXY ", SIGNATURE][begin], &garbage].concat();
            if let Some((_, taken)) = read(&bytes) {
                prop_assert!(taken <= bytes.len());
            }
        }
    }
}
