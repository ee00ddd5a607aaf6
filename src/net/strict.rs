//! The [`Front`] of one connection, between its wire and hyper.
//!
//! In place of a head that is refused hyper reads a request of ours, so that its answer waits for all before it, is
//! written and ends the connection as any other does. It has no `Host`, which no request of HTTP/1.1 that comes through
//! the front lacks, and is never handed to the service.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::HOST;
use http::{Request, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::caller::Malformed;

use super::clock::{Signals, Stage};
use super::connection::Connection;
use super::front::{Fault, Front};

/// What hyper reads in place of a head that is refused.
const IN_PLACE: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// Why the request hyper read is not the client's; `None` where it is.
pub(super) fn refused<B>(request: &Request<B>, connection: &Connection) -> Option<Malformed> {
    let malformed = *connection.malformed.get()?;
    // Those before the one that is refused are still to be answered.
    (request.version() == Version::HTTP_11 && !request.headers().contains_key(HOST)).then_some(malformed)
}

/// A wire of which hyper reads only what passed the front.
pub(super) struct Strict<W> {
    wire: W,
    front: Front,
    signals: Arc<Signals>,
    connection: Arc<Connection>,
    /// What came and hyper did not read yet; most often nothing.
    held: Vec<u8>,
    /// How much of that it may read.
    free: usize,
    end: Option<Fault>,
}

impl<W> Strict<W> {
    pub(super) fn new(wire: W, front: Front, signals: Arc<Signals>, connection: Arc<Connection>) -> Strict<W> {
        Strict { wire, front, signals, connection, held: Vec::new(), free: 0, end: None }
    }

    /// Hands over what may be read of what is held.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let length = self.free.min(buffer.remaining());
        buffer.put_slice(&self.held[..length]);
        self.free -= length;
        if length == self.held.len() {
            self.held = Vec::new();
        } else {
            self.held.drain(..length);
        }
    }

    /// Looks at what came, which stands in `buffer` from `before` on. What may not go on yet is held.
    fn look(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        let fault = if self.held.is_empty() {
            let look = self.front.look(&buffer.filled()[before..]);
            self.held.extend_from_slice(&buffer.filled()[before + look.pass..]);
            buffer.set_filled(before + look.pass);
            look.fault
        } else {
            self.held.extend_from_slice(&buffer.filled()[before..]);
            buffer.set_filled(before);
            let look = self.front.look(&self.held);
            self.free = look.pass;
            look.fault
        };
        if let Some(fault) = fault {
            self.held.truncate(self.free);
            if let Fault::Head(malformed) = fault {
                self.held.extend_from_slice(IN_PLACE);
                self.free = self.held.len();
                // It is the first: after one the front is not asked again.
                let _ = self.connection.malformed.set(malformed);
            }
            self.end = Some(fault);
        }
    }
}

impl<W: AsyncRead + Unpin> AsyncRead for Strict<W> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let strict = self.get_mut();
        let before = buffer.filled().len();
        loop {
            if strict.free > 0 {
                strict.give(buffer);
            }
            if buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            match strict.end {
                None => {}
                // hyper has all it will ever get, and ends the connection once it is answered.
                Some(Fault::Head(_)) => return Poll::Pending,
                // An end in the middle of content, which fails whoever reads it.
                Some(Fault::Content) => return Poll::Ready(Ok(())),
            }
            if !strict.held.is_empty() && strict.signals.stage() == Stage::Idle {
                // The head began while the request before it was answered.
                strict.signals.received();
            }
            if strict.front.is_upgrading() && strict.signals.stage() != Stage::Request {
                strict.front.answered();
            }
            ready!(Pin::new(&mut strict.wire).poll_read(cx, buffer))?;
            if buffer.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            strict.look(buffer, before);
        }
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Strict<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}
