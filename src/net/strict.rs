//! The [`Front`] of one connection, between its wire and hyper.
//!
//! In place of a head that is refused hyper reads a request of ours, so that its answer waits for all before it, is
//! written and ends the connection as any other does. It has no `Host`, which no request of HTTP/1.1 that comes through
//! the front lacks, and is never handed to the service.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::HOST;
use http::{Request, Version};
use tokio::io::{AsyncRead, ReadBuf};

use crate::caller::Malformed;

use super::clock::{Signals, Stage};
use super::connection::Connection;
use super::filter::{Filter, Held};
use super::front::{Fault, Front};

/// What hyper reads in place of a head that is refused.
const IN_PLACE: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// Bytes that are read before their time at most: the next requests wait in the kernel.
const AHEAD: usize = 512;

/// Why the request hyper read is not the client's; `None` where it is.
pub(super) fn refused<B>(request: &Request<B>, connection: &Connection) -> Option<Malformed> {
    let malformed = *connection.malformed.get()?;
    // Those before the one that is refused are still to be answered.
    (request.version() == Version::HTTP_11 && !request.headers().contains_key(HOST)).then_some(malformed)
}

/// Lets through what passed the front.
pub(super) struct Strict {
    front: Front,
    signals: Arc<Signals>,
    connection: Arc<Connection>,
    held: Held,
    end: Option<Fault>,
}

impl Strict {
    pub(super) fn new(front: Front, signals: Arc<Signals>, connection: Arc<Connection>) -> Strict {
        Strict { front, signals, connection, held: Held::default(), end: None }
    }

    /// Looks at what came, which stands in `buffer` from `before` on. What may not go on yet is held.
    fn look(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        let mut fault = None;
        self.held.take(buffer, before, |pending| {
            let look = self.front.look(pending);
            fault = look.fault;
            look.pass
        });
        if let Some(fault) = fault {
            self.held.cut();
            if let Fault::Head(malformed) = fault {
                self.held.append(IN_PLACE);
                // It is the first: after one the front is not asked again.
                let _ = self.connection.malformed.set(malformed);
            }
            self.end = Some(fault);
        }
    }
}

impl<W: AsyncRead> Filter<W> for Strict {
    fn poll_read(
        &mut self,
        mut wire: Pin<&mut W>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        loop {
            self.held.give(buffer);
            if buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            match self.end {
                None => {}
                // hyper has all it will ever get, and ends the connection once it is answered.
                Some(Fault::Head(_)) => return Poll::Pending,
                // An end in the middle of content, which fails whoever reads it.
                Some(Fault::Content) => return Poll::Ready(Ok(())),
            }
            if !self.held.is_empty() && self.signals.stage() == Stage::Idle {
                // The head began while the request before it was answered.
                self.signals.received();
            }
            if self.front.is_upgrading() && self.signals.stage() != Stage::Request {
                self.front.answered();
            }
            ready!(wire.as_mut().poll_read(cx, buffer))?;
            if buffer.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            self.look(buffer, before);
        }
    }

    /// While a request is answered, its content read, what comes next is of no interest yet, but that nothing ever will:
    /// then nobody waits for the answer. hyper would look by itself (what `half_close` turns off) and take a buffer of its
    /// usual size for it each time, since the request is still held by the one there is.
    fn look_ahead(&mut self, wire: Pin<&mut W>, cx: &mut Context<'_>) -> io::Result<()> {
        let is_awaited = self.signals.stage() == Stage::Request && self.front.is_between();
        if !is_awaited || self.end.is_some() || !self.held.is_empty() {
            return Ok(());
        }
        let mut room = [MaybeUninit::uninit(); AHEAD];
        let mut ahead = ReadBuf::uninit(&mut room);
        match wire.poll_read(cx, &mut ahead) {
            Poll::Pending => return Ok(()),
            Poll::Ready(outcome) => outcome?,
        }
        if ahead.filled().is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the client left before its answer"));
        }
        self.look(&mut ahead, 0);
        self.held.put_back(ahead.filled());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::{AHEAD, IN_PLACE, Strict};
    use crate::caller::{Malformed, Peer};
    use crate::net::clock::{Signals, Stage};
    use crate::net::connection::Connection;
    use crate::net::filter::Filtered;
    use crate::net::front::Front;
    use crate::net::tests::limits;

    const FIRST: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";

    /// A connection on which the first request is being answered.
    struct Answering {
        client: DuplexStream,
        wire: Filtered<DuplexStream, Strict>,
        signals: Arc<Signals>,
        connection: Arc<Connection>,
    }

    impl Answering {
        async fn begin() -> Answering {
            let (client, wire) = duplex(8 * 1024);
            let signals: Arc<Signals> = Arc::default();
            let connection = Arc::new(Connection::new("test", Peer::Local, true));
            let strict = Strict::new(Front::new(&limits()), Arc::clone(&signals), Arc::clone(&connection));
            let mut answering = Answering { client, wire: Filtered::new(wire, strict), signals, connection };
            answering.client.write_all(FIRST).await.expect("there is room");
            assert_eq!(answering.read(FIRST.len()).await, FIRST);
            answering.signals.enter(Stage::Request);
            answering.wire.flush().await.expect("the client is there");
            answering
        }

        async fn read(&mut self, length: usize) -> Vec<u8> {
            let mut bytes = vec![0; length];
            let read = timeout(Duration::from_secs(20), self.wire.read_exact(&mut bytes)).await;
            read.expect("what came is not lost").expect("there is as much");
            bytes
        }
    }

    #[tokio::test]
    async fn what_comes_early_is_read_in_its_turn() {
        let next =
            format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\nGET /third HTTP/1.1\r\nhost: a\r\n\r\n", "n".repeat(600));
        for first_part in [1, 40, AHEAD - 1, AHEAD, AHEAD + 1, 650, next.len()] {
            let mut answering = Answering::begin().await;
            let (first, rest) = next.as_bytes().split_at(first_part);
            for part in [first, rest] {
                answering.client.write_all(part).await.expect("there is room");
                answering.wire.flush().await.expect("the client is there");
            }
            answering.signals.enter(Stage::Idle);
            assert_eq!(answering.read(next.len()).await, next.as_bytes(), "{first_part} bytes first");
        }
        let small = b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n";
        let mut answering = Answering::begin().await;
        answering.client.write_all(small).await.expect("there is room");
        answering.wire.flush().await.expect("the client is there");
        answering.client.write_all(small).await.expect("there is room");
        answering.signals.enter(Stage::Idle);
        assert_eq!(answering.read(2 * small.len()).await, small.repeat(2));
    }

    #[tokio::test]
    async fn who_leaves_is_noticed_unless_something_came_before() {
        let mut answering = Answering::begin().await;
        drop(answering.client);
        assert!(answering.wire.flush().await.is_err());
        let mut answering = Answering::begin().await;
        answering.client.write_all(b"GET ").await.expect("there is room");
        answering.wire.flush().await.expect("the client is there");
        drop(answering.client);
        answering.wire.flush().await.expect("what came is to be read first");
    }

    #[tokio::test]
    async fn a_fault_that_comes_early_ends_the_connection_in_its_turn() {
        let mut answering = Answering::begin().await;
        answering.client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n").await.expect("there is room");
        answering.wire.flush().await.expect("the client is there");
        answering.signals.enter(Stage::Idle);
        assert_eq!(answering.read(IN_PLACE.len()).await, IN_PLACE);
        assert_eq!(answering.connection.malformed.get(), Some(&Malformed::Host));
    }
}
