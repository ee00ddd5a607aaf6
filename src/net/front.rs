//! What stands before hyper on an HTTP/1 connection: lets through only requests that everybody reads the same way.
//!
//! hyper is lenient where two readers of one connection may come to differ: it takes two `Host`, bare LF, a length
//! beside a coding, and bytes behind an `Upgrade`. A proxy in front of us that reads such a request in another way
//! hands us somebody else's request, or makes us hand it a wrong answer. Those never reach hyper.
//!
//! Pure: bytes in, verdicts out; what is counted is not looked at. See RFC 9112.

mod chunks;
mod head;

use crate::caller::Malformed;
use crate::config::Limits;

use self::chunks::{Chunks, Seen};
use self::head::{Head, HeadBounds};

pub(super) use self::head::may_pass_for_another;

/// Follows the bytes of one connection.
#[derive(Debug)]
pub struct Front {
    bounds: HeadBounds,
    expected: Expected,
    /// Where the head that is looked at stands; only while one is expected.
    head: Head,
    /// The last request asked for another protocol and has no answer yet.
    is_upgrading: bool,
}

/// What comes next.
#[derive(Debug)]
enum Expected {
    Head,
    /// So many bytes of content.
    Content(u64),
    Chunks(Chunks),
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// How many of the bytes, from their start, may go on.
    pub pass: usize,
    /// Why none after them ever may.
    pub fault: Option<Fault>,
}

/// What is wrong with what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The head of a request; nothing of it went on.
    Head(Malformed),
    /// The framing of a request's content, whose head went on.
    Content,
}

impl Front {
    /// At the beginning of a connection.
    #[must_use]
    pub fn new(limits: &Limits) -> Front {
        let bounds = HeadBounds { bytes: limits.header_bytes, fields: limits.header_fields };
        Front { bounds, expected: Expected::Head, head: Head::default(), is_upgrading: false }
    }

    /// Looks at `pending`: everything that came and did not go on yet. A head goes on as a whole, and so does the line
    /// that begins a chunk; content goes on as it comes. After a fault this must not be called again.
    pub fn look(&mut self, pending: &[u8]) -> Look {
        let mut pass = 0;
        loop {
            let rest = &pending[pass..];
            let step = match &mut self.expected {
                _ if rest.is_empty() => Ok(None),
                Expected::Head if self.is_upgrading => Err(Fault::Head(Malformed::AfterUpgrade)),
                Expected::Head => self.look_at_head(rest),
                Expected::Content(left) => {
                    let here = usize::try_from(*left).map_or(rest.len(), |left| left.min(rest.len()));
                    *left -= here as u64;
                    if *left == 0 {
                        self.expected = Expected::Head;
                    }
                    Ok(Some(here))
                }
                Expected::Chunks(chunks) => match chunks.look(rest) {
                    Some(Seen::Part(length)) => Ok((length > 0).then_some(length)),
                    Some(Seen::End(length)) => {
                        self.expected = Expected::Head;
                        Ok(Some(length))
                    }
                    None => Err(Fault::Content),
                },
            };
            match step {
                Ok(Some(length)) => pass += length,
                Ok(None) => return Look { pass, fault: None },
                Err(fault) => return Look { pass, fault: Some(fault) },
            }
        }
    }

    /// Whether all of the last request went on.
    #[must_use]
    pub fn is_between(&self) -> bool {
        matches!(self.expected, Expected::Head)
    }

    /// Whether bytes before the answer to the last request would be a fault.
    #[must_use]
    pub fn is_upgrading(&self) -> bool {
        self.is_upgrading
    }

    /// The last request was answered, in the protocol of before.
    pub fn answered(&mut self) {
        self.is_upgrading = false;
    }

    fn look_at_head(&mut self, rest: &[u8]) -> Result<Option<usize>, Fault> {
        let Some(found) = self.head.look(rest, self.bounds).map_err(Fault::Head)? else { return Ok(None) };
        self.head = Head::default();
        self.is_upgrading = found.upgrade;
        self.expected = match found.content {
            None => Expected::Chunks(Chunks::new(self.bounds.fields)),
            Some(0) => Expected::Head,
            Some(length) => Expected::Content(length),
        };
        Ok(Some(found.length))
    }
}

#[cfg(test)]
mod tests;
