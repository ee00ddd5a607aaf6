//! What stands between a wire and hyper: hyper reads what is let through, and writes as it likes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Decides what of a wire is read.
pub(super) trait Filter<W> {
    /// As [`AsyncRead::poll_read`] does.
    fn poll_read(&mut self, wire: Pin<&mut W>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;

    /// Looks after a peer whom hyper does not read at the moment, and has the task woken when there is something to see.
    ///
    /// # Errors
    /// When the peer left.
    fn look_ahead(&mut self, _wire: Pin<&mut W>, _cx: &mut Context<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// A wire of which only what passed the filter is read.
pub(super) struct Filtered<W, F> {
    wire: W,
    filter: F,
}

impl<W, F> Filtered<W, F> {
    pub(super) fn new(wire: W, filter: F) -> Filtered<W, F> {
        Filtered { wire, filter }
    }
}

impl<W: Unpin, F: Filter<W>> Filtered<W, F> {
    /// A peer that takes nothing may have left.
    fn look_while_blocked(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if outcome.is_pending() {
            self.filter.look_ahead(Pin::new(&mut self.wire), cx)?;
        }
        outcome
    }
}

impl<W: AsyncRead + Unpin, F: Filter<W> + Unpin> AsyncRead for Filtered<W, F> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Filtered { wire, filter } = self.get_mut();
        filter.poll_read(Pin::new(wire), cx, buffer)
    }
}

/// Whenever hyper looks at a connection it reads where it wants more, and flushes, or writes as long as there is something
/// to write. So the peer is looked after here while hyper does not read it.
impl<W: AsyncRead + AsyncWrite + Unpin, F: Filter<W> + Unpin> AsyncWrite for Filtered<W, F> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.wire).poll_write(cx, bytes);
        self.look_while_blocked(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.wire).poll_write_vectored(cx, slices);
        self.look_while_blocked(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Filtered { wire, filter } = self.get_mut();
        filter.look_ahead(Pin::new(wire), cx)?;
        Pin::new(wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}

/// What a growing buffer grows by: it is held by whoever comes, so it takes up little more than what was sent.
const STEP: usize = 4 * 1024;

/// Bytes that came and that hyper does not read yet; most often none.
#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    /// How many of them, from their start, may be read.
    free: usize,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Lets everything through.
    pub(super) fn free_all(&mut self) {
        self.free = self.bytes.len();
    }

    /// Whether any may be read.
    pub(super) fn is_free(&self) -> bool {
        self.free > 0
    }

    /// Has all of them looked at again, of which none may be read so far.
    pub(super) fn look_again(&mut self, look: impl FnOnce(&mut [u8]) -> usize) {
        self.free = look(&mut self.bytes);
    }

    /// Hands over what may be read, as far as there is room.
    pub(super) fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let length = self.free.min(buffer.remaining());
        buffer.put_slice(&self.bytes[..length]);
        self.free -= length;
        if length == self.bytes.len() {
            self.bytes = Vec::new();
        } else {
            self.bytes.drain(..length);
        }
    }

    /// Takes what came, which stands in `buffer` from `before` on, and leaves there what may be read at once. `look` says
    /// how many bytes may be, of everything that may not yet.
    pub(super) fn take(&mut self, buffer: &mut ReadBuf<'_>, before: usize, look: impl FnOnce(&mut [u8]) -> usize) {
        let came = &mut buffer.filled_mut()[before..];
        if self.bytes.is_empty() {
            let pass = look(came);
            self.bytes.extend_from_slice(&came[pass..]);
            buffer.set_filled(before + pass);
        } else {
            let wanted = (self.bytes.len() + came.len()).next_multiple_of(STEP);
            self.bytes.reserve_exact(wanted.saturating_sub(self.bytes.len()));
            self.bytes.extend_from_slice(came);
            buffer.set_filled(before);
            self.look_again(look);
        }
    }

    /// Drops what may not be read.
    pub(super) fn cut(&mut self) {
        self.bytes.truncate(self.free);
    }

    /// Takes back what was let through, and nobody read. It stands before all else.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        self.bytes.splice(0..0, bytes.iter().copied());
        self.free += bytes.len();
    }

    /// Puts this behind everything else, to be read.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.free_all();
    }
}
