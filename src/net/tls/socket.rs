//! The socket below TLS: where the kernel takes bytes or does not, and where strangers' records wait until they are whole.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::io::ioctl_fionread;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::net::clock::Signals;

/// Bytes before those of a record, which end with how many those are (RFC 8446 section 5.1).
const HEADER: usize = 5;

/// A TCP connection whose writes leave [`Signals`]. Above TLS a write has succeeded once it is encrypted, wherever its
/// bytes are; only here a peer that does not read is seen.
///
/// Until somebody is let in, a record is read once it is there as a whole: rustls would hold what has come of it, beside
/// all that waits above for its own end.
pub(in crate::net) struct TlsSocket {
    tcp: TcpStream,
    signals: Arc<Signals>,
    /// Bytes of the record that is being read.
    left: usize,
}

impl TlsSocket {
    pub(super) fn new(tcp: TcpStream, signals: Arc<Signals>) -> TlsSocket {
        TlsSocket { tcp, signals, left: 0 }
    }

    /// Waits for a whole record, or for the rest of the one that is being read; gives how many bytes that are.
    fn poll_record(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.tcp.poll_read_ready(cx))?;
            match self.tcp.try_io(Interest::READABLE, || self.record()) {
                // It is not readable any more, until something else comes.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn record(&self) -> io::Result<usize> {
        let length = if self.left > 0 { self.left } else { self.next_record()? };
        if (ioctl_fionread(&self.tcp)? as usize) < length && !has_ended(&self.tcp)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(length)
    }

    /// Bytes of the record that comes next; where its header is not there, of that.
    fn next_record(&self) -> io::Result<usize> {
        let mut header = [0_u8; HEADER];
        let (_, length) = recv(&self.tcp, &mut header[..], RecvFlags::PEEK)?;
        let [.., high, low] = header;
        Ok(if length < HEADER { HEADER } else { HEADER + usize::from(u16::from_be_bytes([high, low])) })
    }
}

/// Whether the peer will send nothing more: what is there is all there will be.
#[cfg(target_os = "linux")]
fn has_ended(tcp: &TcpStream) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let mut ends = [PollFd::new(tcp, PollFlags::RDHUP)];
    poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(!ends[0].revents().is_empty())
}

/// Elsewhere it cannot be known before all is read.
#[cfg(not(target_os = "linux"))]
fn has_ended(_: &TcpStream) -> io::Result<bool> {
    Ok(true)
}

impl AsyncRead for TlsSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        if socket.signals.is_admitted() {
            return Pin::new(&mut socket.tcp).poll_read(cx, buffer);
        }
        let length = ready!(socket.poll_record(cx))?;
        let room = length.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
        ready!(Pin::new(&mut socket.tcp).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        socket.left = length - read;
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.tcp).poll_write(cx, bytes);
        self.signals.note_write(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.tcp).poll_write_vectored(cx, slices);
        self.signals.note_write(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
