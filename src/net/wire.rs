//! The socket of one connection, leaving signs for its clock.
//!
//! The stall of a write is seen here and nowhere else: hyper does not poll a body while its buffer
//! is full, so a deadline inside the body of a large answer would never come due.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use super::clock::{Signals, Stage};
use super::frames::{Flood, Frames};
use super::tls::TlsSocket;

/// Up to so many bytes in several pieces are written as one: the system call of a single piece is the cheaper by more than
/// the copy.
const GATHERED: usize = 1024;

/// An accepted socket.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// After the handshake; its socket leaves the signs of writes.
    Tls(Box<TlsStream<TlsSocket>>),
}

/// A socket whose reads and writes leave [`Signals`].
pub(super) struct Wire {
    stream: Stream,
    signals: Arc<Signals>,
    /// Our side is shut.
    shut: bool,
    /// Reads along where the connection speaks HTTP/2.
    frames: Option<Box<Frames>>,
}

impl Wire {
    pub(super) fn new(stream: Stream, signals: Arc<Signals>) -> Wire {
        Wire { stream, signals, shut: false, frames: None }
    }

    /// A wire that speaks HTTP/2.
    pub(super) fn framed(stream: Stream, signals: Arc<Signals>, frames: Frames) -> Wire {
        Wire { frames: Some(Box::new(frames)), ..Wire::new(stream, signals) }
    }

    /// Leaves signs of what came.
    fn note_read(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(frames) = &mut self.frames else {
            self.signals.received();
            return Ok(());
        };
        let position = frames.read(bytes).map_err(|Flood| {
            self.signals.flood();
            io::Error::new(io::ErrorKind::InvalidData, "too many control frames")
        })?;
        self.signals.read_frames(position);
        Ok(())
    }

    /// Throws away what the peer still sends, so that nothing unread turns our close into a reset
    /// that overtakes the answer. `Ready` when the peer is done, when it sent nothing, or when the
    /// clock has had enough.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut scratch = [MaybeUninit::uninit(); 16 * 1024];
        // A peer that sends faster than we read must not keep this worker.
        for _ in 0..16 {
            let mut buffer = ReadBuf::uninit(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                _ if self.signals.stage() == Stage::Over => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    if self.signals.stage() != Stage::Lingering {
                        self.signals.enter(Stage::Lingering);
                    }
                }
                Poll::Pending if self.signals.stage() == Stage::Lingering => return Poll::Pending,
                _ => return Poll::Ready(Ok(())),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Stream::Tls(stream) => match Pin::new(stream).poll_read(cx, buffer) {
                // Many clients close without a word in TLS. HTTP says itself where a message ends (RFC 9112, 9.8).
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
                outcome => outcome,
            },
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.note_read(&buffer.filled()[before..])?;
        }
        outcome
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => return Pin::new(stream).poll_write(cx, bytes),
        };
        self.signals.note_write(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut gathered = [0; GATHERED];
        if let Some(bytes) = gather(slices, &mut gathered) {
            return self.poll_write(cx, bytes);
        }
        let outcome = match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Tls(stream) => return Pin::new(stream).poll_write_vectored(cx, slices),
        };
        self.signals.note_write(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Unix(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            // A socket holds nothing back.
            Stream::Tcp(_) | Stream::Unix(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shut {
            ready!(match &mut self.stream {
                Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
                Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
                Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            })?;
            self.shut = true;
        }
        self.poll_linger(cx)
    }
}

/// Copies pieces into `room`, one behind the other; `None` if it is too small.
fn gather<'r>(slices: &[IoSlice<'_>], room: &'r mut [u8]) -> Option<&'r [u8]> {
    let mut end = 0;
    for slice in slices {
        room.get_mut(end..end + slice.len())?.copy_from_slice(slice);
        end += slice.len();
    }
    Some(&room[..end])
}
