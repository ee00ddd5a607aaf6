//! Bytes of one outgoing message: pieces of the original text around what was rewritten.

use bytes::{Bytes, BytesMut};

/// Below this many bytes one copy is cheaper than carrying pieces around.
const COPY_BELOW: usize = 16 * 1024;

/// A text in which one part is to be replaced; nothing is copied yet.
#[derive(Clone, Copy, Debug)]
pub struct Spliced<'a> {
    text: &'a Bytes,
    start: usize,
    end: usize,
    with: &'a [u8],
}

impl<'a> Spliced<'a> {
    /// `text` as it is.
    #[must_use]
    pub fn unchanged(text: &'a Bytes) -> Spliced<'a> {
        Spliced { text, start: text.len(), end: text.len(), with: &[] }
    }

    /// `text` with the bytes from `start` to `end` replaced.
    #[must_use]
    pub fn replaced(text: &'a Bytes, start: usize, end: usize, with: &'a [u8]) -> Spliced<'a> {
        Spliced { text, start, end, with }
    }

    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.text.len() - (self.end - self.start) + self.with.len()
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the whole text.
    pub fn put(&self, out: &mut BytesMut) {
        out.extend_from_slice(&self.text[..self.start]);
        out.extend_from_slice(self.with);
        out.extend_from_slice(&self.text[self.end..]);
    }

    /// The same as a message of its own.
    #[must_use]
    pub fn to_payload(&self) -> Payload {
        Payload::replaced(self.text, self.start, self.end, self.with)
    }
}

/// One message in up to three pieces. Long texts are never copied to change an id.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    pieces: [Bytes; 3],
}

impl Payload {
    /// A message in one piece.
    #[must_use]
    pub fn whole(text: Bytes) -> Payload {
        Payload { pieces: [text, Bytes::new(), Bytes::new()] }
    }

    /// `text` with the bytes from `start` to `end` replaced.
    #[must_use]
    pub fn replaced(text: &Bytes, start: usize, end: usize, with: &[u8]) -> Payload {
        if text.len() < COPY_BELOW {
            let mut copy = BytesMut::with_capacity(text.len() - (end - start) + with.len());
            copy.extend_from_slice(&text[..start]);
            copy.extend_from_slice(with);
            copy.extend_from_slice(&text[end..]);
            return Payload::whole(copy.freeze());
        }
        Payload { pieces: [text.slice(..start), Bytes::copy_from_slice(with), text.slice(end..)] }
    }

    /// `message` between two short pieces. A message that is itself in pieces is copied once.
    #[must_use]
    pub fn joined(head: Bytes, message: &Payload, tail: Bytes) -> Payload {
        Payload { pieces: [head, message.to_bytes(), tail] }
    }

    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces in order; some may be empty.
    #[must_use]
    pub fn pieces(&self) -> &[Bytes; 3] {
        &self.pieces
    }

    /// The pieces in order; some may be empty.
    #[must_use]
    pub fn into_pieces(self) -> [Bytes; 3] {
        self.pieces
    }

    /// The whole text in one piece.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        if self.pieces[1].is_empty() && self.pieces[2].is_empty() {
            return self.pieces[0].clone();
        }
        let mut copy = BytesMut::with_capacity(self.len());
        for piece in &self.pieces {
            copy.extend_from_slice(piece);
        }
        copy.freeze()
    }
}
