//! Where an answer ends: after so many lines of a pipe, or where HTTP/1.1 says so (RFC 9112 section 6).

use std::io::{self, ErrorKind};

use memchr::{memchr_iter, memmem};

/// Finds the ends of answers in a stream of bytes.
pub enum Framing {
    /// Answers of a fixed number of lines.
    Lines {
        /// Lines of one answer.
        each: usize,
        /// Lines of the current one that were seen.
        seen: usize,
    },
    /// HTTP responses.
    Http {
        /// The head as far as it came.
        head: Vec<u8>,
        /// What is awaited.
        rest: Rest,
    },
}

/// What is still to come of a response.
pub enum Rest {
    /// Its head.
    Head,
    /// So many bytes.
    Bytes(usize),
    /// The line that says how long the next chunk is, read so far.
    Size(usize),
    /// So many bytes of a chunk, its line end included.
    Chunk(usize),
    /// So many bytes behind the last chunk.
    Tail(usize),
}

impl Framing {
    /// HTTP responses, all of which must be 200 or 202.
    pub fn http() -> Framing {
        Framing::Http { head: Vec::new(), rest: Rest::Head }
    }

    /// Answers of `each` lines.
    pub fn lines(each: usize) -> Framing {
        Framing::Lines { each, seen: 0 }
    }

    /// Takes what came and gives the number of answers that ended in it.
    ///
    /// # Errors
    /// When a response is no success.
    pub fn take(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Framing::Lines { each, seen } => {
                *seen += memchr_iter(b'\n', bytes).count();
                let ended = *seen / *each;
                *seen %= *each;
                Ok(ended)
            }
            Framing::Http { head, rest } => {
                let (mut bytes, mut ended) = (bytes, 0);
                while !bytes.is_empty() {
                    let (taken, done) = rest.take(head, bytes)?;
                    bytes = &bytes[taken..];
                    ended += usize::from(done);
                }
                Ok(ended)
            }
        }
    }
}

impl Rest {
    /// Takes a part of `bytes`; gives its length and whether the response ended with it.
    fn take(&mut self, head: &mut Vec<u8>, bytes: &[u8]) -> io::Result<(usize, bool)> {
        let taken;
        (taken, *self) = match *self {
            Rest::Head => {
                let before = head.len();
                head.extend_from_slice(bytes);
                let Some(end) = memmem::find(head, b"\r\n\r\n") else { return Ok((bytes.len(), false)) };
                let rest = body_of(&head[..end])?;
                head.clear();
                (end + 4 - before, rest)
            }
            Rest::Bytes(left) => (left.min(bytes.len()), Rest::Bytes(left - left.min(bytes.len()))),
            Rest::Tail(left) => (left.min(bytes.len()), Rest::Tail(left - left.min(bytes.len()))),
            Rest::Size(size) => match (bytes[0], char::from(bytes[0]).to_digit(16)) {
                (_, Some(digit)) => (1, Rest::Size(size << 4 | digit as usize)),
                (b'\n', None) if size == 0 => (1, Rest::Tail(2)),
                (b'\n', None) => (1, Rest::Chunk(size + 2)),
                (_, None) => (1, Rest::Size(size)),
            },
            Rest::Chunk(left) if left > bytes.len() => (bytes.len(), Rest::Chunk(left - bytes.len())),
            Rest::Chunk(left) => (left, Rest::Size(0)),
        };
        let done = matches!(self, Rest::Bytes(0) | Rest::Tail(0));
        if done {
            *self = Rest::Head;
        }
        Ok((taken, done))
    }
}

/// How a response's body is delimited.
fn body_of(head: &[u8]) -> io::Result<Rest> {
    let text = String::from_utf8_lossy(head);
    let refused = || io::Error::new(ErrorKind::InvalidData, format!("not a success: {text}"));
    if !head.starts_with(b"HTTP/1.1 20") {
        return Err(refused());
    }
    for line in head.split(|byte| *byte == b'\n').skip(1) {
        let line = line.trim_ascii();
        if let Some(length) = strip_name(line, b"content-length:") {
            let length = std::str::from_utf8(length).ok().and_then(|length| length.parse().ok());
            return length.map(Rest::Bytes).ok_or_else(refused);
        }
        if strip_name(line, b"transfer-encoding:").is_some_and(|coding| coding == b"chunked") {
            return Ok(Rest::Size(0));
        }
    }
    Ok(Rest::Bytes(0))
}

fn strip_name<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}
