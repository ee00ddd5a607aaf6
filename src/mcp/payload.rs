//! Bytes of one outgoing message: pieces of the original text around what was rewritten.

use bytes::{Bytes, BytesMut};

/// Below this many bytes one copy is cheaper than carrying pieces around.
const COPY_BELOW: usize = 16 * 1024;

/// Below this many bytes a text that is kept for long gets memory of its own: as it was read it may
/// hold on to a buffer many times its size. Larger ones have their buffer almost to themselves.
const DETACH_BELOW: usize = 256 * 1024;

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

    /// `message` between two short pieces, to be kept. A message that is itself in pieces, or that
    /// may share a larger buffer, is copied once.
    #[must_use]
    pub fn kept_between(head: Bytes, message: &Payload, tail: Bytes) -> Payload {
        let shares = message.is_one_piece() && message.len() < DETACH_BELOW;
        let text = if shares { Bytes::copy_from_slice(&message.pieces[0]) } else { message.to_bytes() };
        Payload { pieces: [head, text, tail] }
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

    fn is_one_piece(&self) -> bool {
        self.pieces[1].is_empty() && self.pieces[2].is_empty()
    }

    /// The whole text in one piece.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        if self.is_one_piece() {
            return self.pieces[0].clone();
        }
        let mut copy = BytesMut::with_capacity(self.len());
        for piece in &self.pieces {
            copy.extend_from_slice(piece);
        }
        copy.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::{DETACH_BELOW, Payload};
    use bytes::Bytes;

    #[test]
    fn what_is_kept_does_not_hold_on_to_a_buffer_it_shares() {
        let buffer = Bytes::from(vec![b'x'; 2 * DETACH_BELOW]);
        let shares = |length: usize| {
            let message = Payload::whole(buffer.slice(..length));
            let kept = Payload::kept_between(Bytes::new(), &message, Bytes::new());
            assert_eq!(kept.len(), length);
            buffer.as_ptr_range().contains(&kept.pieces()[1].as_ptr())
        };
        assert!(!shares(20 * 1024));
        assert!(shares(DETACH_BELOW), "a large one is not copied");
    }
}
