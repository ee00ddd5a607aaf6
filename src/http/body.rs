//! What an answer carries.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

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
#[derive(Debug)]
pub struct Chunks {
    chunks: [Bytes; 3],
    next: u8,
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
        Body::Full(Chunks { chunks, next: 0 })
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
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;
    use http_body::Body as _;

    use super::Body;

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
}
