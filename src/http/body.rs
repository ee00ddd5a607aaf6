//! What an answer carries.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::exchange::capacity::Permit;
use crate::http::event_stream::EventStream;

/// The body of every answer of the gateway.
#[derive(Default)]
pub enum Body {
    /// Nothing; a `Content-Length` of 0.
    #[default]
    Empty,
    /// Bytes that are there already.
    Full(Chunks),
    /// Events as they come.
    Stream(Box<EventStream>),
}

/// Up to three pieces written one after the other without being joined: what comes before an id,
/// the id, what comes after it.
pub struct Chunks {
    chunks: [Bytes; 3],
    next: u8,
    _permit: Option<Permit>,
}

/// An answer from this size on keeps its permit until its last byte is written. A smaller one gives
/// it back with the body, which hyper drops as soon as its own bounded buffer has the bytes.
const LARGE: usize = 16 * 1024;

/// Bytes that keep something until they are dropped.
struct Kept<K> {
    bytes: Bytes,
    _kept: K,
}

impl<K> AsRef<[u8]> for Kept<K> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Chunks {
    /// The first piece not yet taken that is not empty.
    fn take(&mut self) -> Option<Bytes> {
        while let Some(chunk) = self.chunks.get_mut(usize::from(self.next)) {
            self.next += 1;
            if !chunk.is_empty() {
                return Some(std::mem::take(chunk));
            }
        }
        None
    }

    fn remaining(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }
}

impl Body {
    /// Bytes not yet taken, where the body's length is known: all but streams.
    #[must_use]
    pub fn len(&self) -> Option<usize> {
        match self {
            Body::Empty => Some(0),
            Body::Full(chunks) => Some(chunks.remaining()),
            Body::Stream(_) => None,
        }
    }

    /// Whether it is known that nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The answer to one request; its permit is given back when it was written or has nowhere to go.
    #[must_use]
    pub fn answer(mut chunks: [Bytes; 3], permit: Option<Permit>) -> Body {
        if chunks.iter().map(Bytes::len).sum::<usize>() < LARGE {
            return Body::Full(Chunks { chunks, next: 0, _permit: permit });
        }
        // Written last, so that nothing is given back before.
        if let Some(last) = chunks.iter_mut().rfind(|chunk| !chunk.is_empty()) {
            *last = Bytes::from_owner(Kept { bytes: std::mem::take(last), _kept: permit });
        }
        Body::from(chunks)
    }

    /// The answers to several requests in one text, with their permits.
    #[must_use]
    pub fn answers(text: Bytes, permits: Vec<Option<Permit>>) -> Body {
        Body::from(Bytes::from_owner(Kept { bytes: text, _kept: permits }))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body::from([bytes, Bytes::new(), Bytes::new()])
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Body::from(Bytes::from(text))
    }
}

impl From<[Bytes; 3]> for Body {
    fn from(chunks: [Bytes; 3]) -> Body {
        Body::Full(Chunks { chunks, next: 0, _permit: None })
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Body::Empty => Poll::Ready(None),
            Body::Full(chunks) => Poll::Ready(chunks.take().map(|chunk| Ok(Frame::data(chunk)))),
            Body::Stream(events) => events.poll_bytes(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match self.len() {
            Some(length) => SizeHint::with_exact(length as u64),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;
    use http_body::Body as _;

    use super::{Body, LARGE};
    use crate::budget::Budget;
    use crate::caller::Principal;
    use crate::exchange::capacity::Capacity;

    /// Every piece the body gives, after each of which the hint must be exact.
    fn pieces(mut body: Body) -> Vec<Bytes> {
        let mut context = Context::from_waker(Waker::noop());
        let mut pieces = Vec::new();
        let mut left = body.size_hint().exact().expect("the length is known");
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) {
            let piece = frame.into_data().expect("there are no trailers");
            left -= piece.len() as u64;
            assert_eq!(body.size_hint().exact(), Some(left));
            assert_eq!(body.is_end_stream(), left == 0);
            pieces.push(piece);
        }
        assert_eq!(left, 0);
        pieces
    }

    #[test]
    fn pieces_come_in_order_and_empty_ones_not_at_all() {
        assert!(pieces(Body::Empty).is_empty());
        assert!(pieces(Body::from(Bytes::new())).is_empty());
        assert_eq!(pieces(Body::from(String::from("a"))), ["a"]);
        let three = [Bytes::from_static(b"a"), Bytes::new(), Bytes::from_static(b"bc")];
        assert_eq!(pieces(Body::from(three)), ["a", "bc"]);
    }

    #[test]
    fn an_answer_is_held_until_its_last_byte_is_dropped() {
        let budget = Budget::new(1 << 20);
        let capacity = Capacity::new(None, None, Arc::clone(&budget));
        for (length, held_after) in [(LARGE / 2, 0), (LARGE, LARGE as u64)] {
            let mut permit = capacity.enter(&Principal::Anonymous).map_err(drop).expect("room");
            permit.hold(length);
            let text = Bytes::from(vec![b'x'; length - 2]);
            let chunks = [Bytes::from_static(b"["), text, Bytes::from_static(b"]")];
            let pieces = pieces(Body::answer(chunks, Some(permit)));
            assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), length);
            assert_eq!(budget.used(), held_after, "the body is gone, its bytes are not");
            drop(pieces);
            assert_eq!(budget.used(), 0);
        }
    }
}
