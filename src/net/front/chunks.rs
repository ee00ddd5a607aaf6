//! Content in chunks (RFC 9112 section 7.1).

use memchr::memchr;

use super::head::{Meaning, split_field};

/// Longest line that begins a chunk, its extensions included.
const LONGEST_LINE: usize = 256;
/// Digits of a chunk's size.
const MOST_DIGITS: usize = 16;
/// Bytes of all trailer fields.
const LONGEST_TRAILER: usize = 4096;

/// Content in chunks, as far as it came.
#[derive(Debug)]
pub(super) struct Chunks {
    expected: Expected,
    /// Trailer fields that may still come, and their bytes.
    fields_left: usize,
    bytes_left: usize,
}

#[derive(Debug)]
enum Expected {
    /// The line that begins a chunk.
    Size,
    /// So many bytes of a chunk.
    Bytes(u64),
    /// The end of a chunk.
    End,
    /// A trailer field, or the empty line.
    Trailer,
}

/// How far the bytes may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// So many; none where more are needed first.
    Part(usize),
    /// So many, and the content ends there.
    End(usize),
}

impl Chunks {
    /// At their beginning; `fields` trailer fields may follow them.
    pub(super) fn new(fields: usize) -> Chunks {
        Chunks { expected: Expected::Size, fields_left: fields, bytes_left: LONGEST_TRAILER }
    }

    /// Goes on in `bytes`, which begin where it stopped; `None` is a fault.
    pub(super) fn look(&mut self, bytes: &[u8]) -> Option<Seen> {
        match &mut self.expected {
            Expected::Size => {
                let Some(line) = whole_line(bytes, LONGEST_LINE)? else { return Some(Seen::Part(0)) };
                let size = size_of(line)?;
                self.expected = if size == 0 { Expected::Trailer } else { Expected::Bytes(size) };
                Some(Seen::Part(line.len() + 2))
            }
            Expected::Bytes(left) => {
                let here = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= here as u64;
                if *left == 0 {
                    self.expected = Expected::End;
                }
                Some(Seen::Part(here))
            }
            Expected::End => match bytes {
                [b'\r'] => Some(Seen::Part(0)),
                [b'\r', b'\n', ..] => {
                    self.expected = Expected::Size;
                    Some(Seen::Part(2))
                }
                _ => None,
            },
            Expected::Trailer => {
                let Some(line) = whole_line(bytes, self.bytes_left)? else { return Some(Seen::Part(0)) };
                let length = line.len() + 2;
                if line.is_empty() {
                    return Some(Seen::End(length));
                }
                let (name, _) = split_field(line, 0..line.len()).ok()?;
                // None of these may come so late (RFC 9110 section 6.5.1).
                if Meaning::of(&line[name]) != Meaning::Other {
                    return None;
                }
                self.bytes_left -= length;
                self.fields_left = self.fields_left.checked_sub(1)?;
                Some(Seen::Part(length))
            }
        }
    }
}

/// The first line, without its end; `Some(None)` where it has none yet, `None` where it is too long or badly ended.
fn whole_line(bytes: &[u8], longest: usize) -> Option<Option<&[u8]>> {
    let near = &bytes[..bytes.len().min(longest)];
    match memchr(b'\n', near) {
        Some(end) => near[..end].strip_suffix(b"\r").map(Some),
        None => (near.len() < longest).then_some(None),
    }
}

/// The size in a line, whose extensions mean nothing to us.
fn size_of(line: &[u8]) -> Option<u64> {
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (digits, extensions) = line.split_at(digits);
    let is_legal = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
    let extensions_are_legal = matches!(extensions, [] | [b';', ..]) && extensions.iter().all(is_legal);
    if digits.is_empty() || digits.len() > MOST_DIGITS || !extensions_are_legal {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
