//! What stands before hyper on an HTTP/2 connection until somebody is let in: requests come in by turns.
//!
//! For each request that is open hyper keeps half a dozen kilobytes, and for a head that does not end several times its
//! bytes. A client that is let in is worth that. One of whom nothing is known has [`REQUESTS`] at once and [`BYTES`] of
//! their heads and bodies; what follows is not read before these have ended, and TCP tells the client. A head goes on as a
//! whole, so that one without an end takes up its own bytes alone.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::filter::{Filter, Held};
use super::frames::{CONTINUATION, DATA, END_HEADERS, END_STREAM, HEAD, HEADERS, PING, PREFACE};

/// Requests of one turn.
const REQUESTS: usize = 4;
/// Bytes of one turn, unless a single frame has more.
const BYTES: usize = 16 * 1024;
/// Bytes of a head that is not whole yet, on the wire: a little more than one that may come in has, however it is written.
const UNFINISHED: usize = 20 * 1024;
/// The largest frame hyper takes (RFC 9113, 4.2). It refuses others by their head.
const LARGEST_FRAME: usize = 16 * 1024;

/// Requests that may follow GOAWAY: more than can be open at once, which may all have been sent before it was heard.
const UNHEARD: usize = 256;

/// A type nobody knows, which is to be ignored (RFC 9113, 5.5), and where a frame has its type.
const HIDDEN: u8 = 0xff;
const KIND: usize = 3;

/// What hyper reads in place of a head that is longer: `accept-encoding: gzip, deflate` (RFC 7541, appendix A) so often
/// that it is too large as well, which it answers with 431.
const TOO_LARGE: &[u8] = &[0x90; 300];
/// And next, so often that it ends the connection and says why.
const FAR_TOO_LARGE: &[u8] = &[0x90; 2 * 1024];

/// What those who take the requests tell whoever lets them through.
pub(super) trait Watch {
    /// Whether somebody was let in: there are no turns any more.
    fn is_known(&self) -> bool;

    /// Whether the turn is over: whatever came with it was taken, and has ended. Said once.
    fn is_over(&self) -> bool;

    /// Whether the client was told to take further requests elsewhere. Those it sends all the same are not answered; the
    /// last GOAWAY says so (RFC 9113, 6.8), once the PING before it comes back.
    fn is_leaving(&self) -> bool;

    /// Nothing more is read until the turn is over.
    fn waits(&self);
}

/// Lets through what is of the turn.
pub(super) struct Turns<T> {
    watch: Arc<T>,
    turn: Turn,
    held: Held,
}

impl<T> Turns<T> {
    pub(super) fn new(watch: Arc<T>) -> Turns<T> {
        Turns { watch, turn: Turn::new(), held: Held::default() }
    }

    /// Has hyper refuse a head it is not shown.
    fn refuse_too_long(&mut self) {
        if let Next::End(stream) = self.turn.next {
            self.held.cut();
            self.held.append(&headers(stream, TOO_LARGE));
        }
    }
}

/// How far a turn is. Pure: what came in, and how much of it goes on.
#[derive(Debug)]
struct Turn {
    /// Bytes that go on whatever they are: of the preface, and of a frame of which a part went on.
    rest: usize,
    requests: usize,
    bytes: usize,
    next: Next,
    /// Further requests are hidden.
    leaves: bool,
    /// How many were.
    hidden: usize,
}

/// What has to happen for more to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// More has to come.
    More,
    /// The turn has to end.
    Turn,
    /// A head is too long, the one of this stream. When the turn has ended the connection does.
    End([u8; 4]),
    /// Nothing ever does.
    Nothing,
}

impl Turn {
    fn new() -> Turn {
        Turn { rest: PREFACE, requests: 0, bytes: 0, next: Next::More, leaves: false, hidden: 0 }
    }

    /// Begins another one.
    fn begin(&mut self) {
        (self.requests, self.bytes) = (0, 0);
    }

    /// How many of these bytes, which follow what went on, go on too.
    fn look(&mut self, pending: &mut [u8]) -> usize {
        let mut pass = 0;
        self.next = Next::More;
        while self.next == Next::More {
            let here = self.rest.min(pending.len() - pass);
            self.rest -= here;
            pass += here;
            let Some(frame) = FrameHead::read(&pending[pass..]) else { break };
            if self.leaves {
                self.hidden += usize::from(frame.kind == HEADERS);
                if frame.kind != PING {
                    pending[pass + KIND] = HIDDEN;
                }
                self.rest = HEAD + frame.length;
            } else if let Some(length) = self.admit(&pending[pass..], frame) {
                self.rest = length;
            } else {
                break;
            }
        }
        pass
    }

    /// How many bytes go on of what begins with this frame, whether they have come or not; `None` while none does.
    fn admit(&mut self, pending: &[u8], frame: FrameHead) -> Option<usize> {
        let length = match frame.kind {
            HEADERS => match block(pending) {
                Block::Whole(length) => length,
                Block::Part(length) if length <= UNFINISHED => return None,
                Block::Part(_) => {
                    self.next = Next::End(frame.stream);
                    return None;
                }
            },
            _ => HEAD + frame.length,
        };
        if !matches!(frame.kind, HEADERS | DATA) {
            return Some(length);
        }
        let is_first = self.bytes == 0;
        if !is_first && (self.bytes + length > BYTES || self.requests == REQUESTS && frame.kind == HEADERS) {
            self.next = Next::Turn;
            return None;
        }
        self.bytes += length;
        self.requests += usize::from(frame.kind == HEADERS);
        Some(length)
    }
}

/// The nine bytes a frame begins with (RFC 9113, 4.1).
#[derive(Clone, Copy)]
struct FrameHead {
    /// Of what follows.
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

impl FrameHead {
    fn read(bytes: &[u8]) -> Option<FrameHead> {
        let [a, b, c, kind, flags, stream @ ..] = *bytes.first_chunk::<HEAD>()?;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        Some(FrameHead { length, kind, flags, stream })
    }
}

/// Bytes of a head, in HEADERS and what continues them.
enum Block {
    /// It is there to its end, or to what hyper refuses.
    Whole(usize),
    /// At least so many bytes are to come.
    Part(usize),
}

/// The head that `pending` begins with.
fn block(pending: &[u8]) -> Block {
    let mut end = 0;
    loop {
        let Some(frame) = pending.get(end..).and_then(FrameHead::read) else {
            return Block::Part(end.max(pending.len()));
        };
        let is_refused = frame.length > LARGEST_FRAME || (end > 0 && frame.kind != CONTINUATION);
        end += HEAD + frame.length;
        if is_refused || (frame.flags & END_HEADERS != 0 && end <= pending.len()) {
            return Block::Whole(end);
        }
    }
}

/// HEADERS on this stream.
fn headers(stream: [u8; 4], block: &[u8]) -> Vec<u8> {
    let length = (block.len() as u32).to_be_bytes();
    [&length[1..], &[HEADERS, END_HEADERS | END_STREAM], &stream, block].concat()
}

impl<W: AsyncRead, T: Watch> Filter<W> for Turns<T> {
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
            if self.turn.hidden > UNHEARD {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "requests after GOAWAY")));
            }
            let is_known = !self.turn.leaves && self.watch.is_known();
            self.turn.leaves |= !is_known && self.watch.is_leaving();
            if is_known && !self.held.is_empty() {
                self.held.free_all();
                continue;
            }
            match self.turn.next {
                // hyper has what it ends the connection for.
                Next::Nothing => return Poll::Pending,
                Next::Turn | Next::More if is_known => {}
                Next::End(stream) if self.watch.is_over() => {
                    self.held.append(&headers(stream, FAR_TOO_LARGE));
                    self.turn.next = Next::Nothing;
                    continue;
                }
                _ if self.watch.is_over() || (self.turn.leaves && self.turn.next == Next::Turn) => {
                    self.turn.begin();
                    self.held.look_again(|pending| self.turn.look(pending));
                    self.refuse_too_long();
                    if self.held.is_free() {
                        continue;
                    }
                }
                Next::More => {}
                Next::Turn | Next::End(_) => {
                    self.watch.waits();
                    return Poll::Pending;
                }
            }
            ready!(wire.as_mut().poll_read(cx, buffer))?;
            if is_known || buffer.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            self.held.take(buffer, before, |pending| self.turn.look(pending));
            self.refuse_too_long();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BYTES, HEAD, HIDDEN, Next, REQUESTS, Turn, UNFINISHED};
    use crate::net::frames::{CONTINUATION, DATA, END_HEADERS, HEADERS, PING};

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const STREAM: [u8; 4] = [0, 0, 0, 1];

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let mut bytes = (length as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(STREAM);
        bytes.extend(vec![0xaa; length]);
        bytes
    }

    fn request() -> Vec<u8> {
        frame(HEADERS, END_HEADERS, 50)
    }

    /// A turn in which the preface has gone on.
    fn turn() -> Turn {
        let mut turn = Turn::new();
        assert_eq!(turn.look(&mut PREFACE.to_vec()), PREFACE.len());
        turn
    }

    /// What goes on of bytes that come in pieces of this size.
    fn passed(turn: &mut Turn, input: &[u8], size: usize) -> usize {
        let (mut pending, mut passed) = (Vec::new(), 0);
        for piece in input.chunks(size) {
            pending.extend_from_slice(piece);
            let pass = turn.look(&mut pending);
            pending.drain(..pass);
            passed += pass;
        }
        passed
    }

    #[test]
    fn a_turn_has_so_many_requests_and_bytes_however_they_are_cut() {
        let requests = request().repeat(REQUESTS);
        let many = [&requests[..], &frame(PING, 0, 8), &request()].concat();
        let large = [request(), frame(DATA, 0, BYTES / 2), frame(DATA, 0, BYTES / 2)].concat();
        for size in [1, 2, 9, 10, 100, usize::MAX] {
            let mut first = turn();
            assert_eq!(passed(&mut first, &many, size), many.len() - request().len(), "PING is no request");
            assert_eq!(first.next, Next::Turn);
            let mut second = turn();
            assert_eq!(passed(&mut second, &large, size), request().len() + HEAD + BYTES / 2);
            assert_eq!(second.next, Next::Turn);
            second.begin();
            assert_eq!(second.look(&mut frame(DATA, 0, 16 * 1024)), HEAD + 16 * 1024, "one may always");
        }
    }

    #[test]
    fn a_head_goes_on_as_a_whole() {
        let parts = [frame(HEADERS, 0, 70), frame(CONTINUATION, 0, 5), frame(CONTINUATION, END_HEADERS, 30)];
        let whole = parts.concat();
        for length in 0..whole.len() {
            let mut turn = turn();
            assert_eq!(turn.look(&mut whole[..length].to_vec()), 0, "{length}");
            assert_eq!(turn.next, Next::More);
            assert_eq!(turn.look(&mut whole.clone()), whole.len(), "{length}");
        }
        let broken = [frame(HEADERS, 0, 70), frame(PING, 0, 8)].concat();
        assert_eq!(turn().look(&mut broken.clone()), broken.len(), "hyper says what is wrong");
        let huge = [0xff, 0xff, 0xff, HEADERS, 0, 0, 0, 0, 1];
        assert_eq!(turn().look(&mut huge.to_vec()), HEAD, "hyper does not wait for it");
    }

    #[test]
    fn a_head_that_is_too_long_ends_it_all_once_it_is_announced() {
        let mut turn = turn();
        let first = frame(HEADERS, 0, 16_000);
        assert_eq!(turn.look(&mut first.clone()), 0);
        assert_eq!(turn.next, Next::More);
        let second = frame(CONTINUATION, END_HEADERS, UNFINISHED - 16_000);
        assert_eq!(turn.look(&mut [&first[..], &second[..HEAD]].concat()), 0);
        assert_eq!(turn.next, Next::End(STREAM));
    }

    #[test]
    fn what_comes_after_the_end_is_hidden() {
        let mut turn = turn();
        turn.leaves = true;
        let mut bytes = [request(), frame(PING, 1, 8), frame(DATA, 0, 3)].concat();
        let (ping, data) = (request().len(), request().len() + HEAD + 8);
        assert_eq!(turn.look(&mut bytes), bytes.len());
        assert_eq!([bytes[3], bytes[ping + 3], bytes[data + 3]], [HIDDEN, PING, HIDDEN]);
    }
}
