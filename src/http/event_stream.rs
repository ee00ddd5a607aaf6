//! The body of an event stream: pulls from a stream's log as fast as the client reads.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::caller::Fate;
use crate::config::Streams;
use crate::exchange::stream::{Frames, Look, Reader};
use crate::http::sse::{COMMENT, retry};
use crate::mcp::payload::Payload;
use crate::telemetry::label::StreamCut;

/// Bytes of one body frame: small events are joined up to it, long ones cut by it, so that the
/// connection can be timed and cut between them.
const FRAME_BYTES: usize = 64 * 1024;

/// Something that must end when the connection does.
pub type Tied = Box<dyn Send + Sync>;

/// One connection's view of a stream.
pub struct EventStream {
    reader: Reader,
    timing: Timing,
    ready: VecDeque<Bytes>,
    frames: Frames,
    begun: bool,
    over: bool,
    fate: Arc<dyn Fate>,
    _tied: Option<Tied>,
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if self.fate.is_stalled() {
            self.reader.cut(StreamCut::Stall);
        }
    }
}

struct Timing {
    config: Streams,
    /// Whether the client can come back, so that the connection may be closed early.
    resumable: bool,
    opened: Instant,
    last_sent: Instant,
    timer: Pin<Box<Sleep>>,
}

impl EventStream {
    /// A body that reads `reader`; `resumable` says that it may be closed at `streams.max_age`
    /// (2025-11-25 transports, Sending Messages 6).
    #[must_use]
    pub fn new(
        reader: Reader,
        config: Streams,
        resumable: bool,
        fate: Arc<dyn Fate>,
        tied: Option<Tied>,
    ) -> EventStream {
        reader.is_on(&fate);
        let now = Instant::now();
        let timer = Box::pin(sleep_until(now + config.comment_every));
        let mut stream = EventStream {
            reader,
            timing: Timing { config, resumable, opened: now, last_sent: now, timer },
            ready: VecDeque::new(),
            frames: Frames::default(),
            begun: false,
            over: false,
            fate,
            _tied: tied,
        };
        let due = stream.timing.due();
        stream.timing.timer.as_mut().reset(due);
        stream
    }

    /// Puts bytes before everything the log holds.
    pub fn begin_with(&mut self, bytes: Bytes) {
        self.begun = true;
        self.ready.push_front(bytes);
    }

    /// The next frame, or `None` at the end.
    pub fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.ready.is_empty() && !self.over {
            self.fill(context);
        }
        if let Some(bytes) = self.ready.pop_front() {
            self.begun = true;
            self.timing.last_sent = Instant::now();
            self.reader.note_taken(self.timing.last_sent.into_std());
            return Poll::Ready(Some(bytes));
        }
        if self.over { Poll::Ready(None) } else { self.poll_timer(context) }
    }

    /// Takes what the log has, up to one frame and one long event.
    fn fill(&mut self, context: &mut Context<'_>) {
        let Poll::Ready(look) = self.reader.poll_take(context, FRAME_BYTES, &mut self.frames) else { return };
        if !self.frames.joined.is_empty() {
            self.ready.push_back(self.frames.joined.split().freeze());
        }
        for mut piece in self.frames.long.take().map(Payload::into_pieces).into_iter().flatten() {
            while !piece.is_empty() {
                let rest = piece.split_off(piece.len().min(FRAME_BYTES));
                self.ready.push_back(std::mem::replace(&mut piece, rest));
            }
        }
        match look {
            Look::TakenOver if !self.fate.is_stalled() => self.reader.cut(StreamCut::Takeover),
            Look::Expired if !self.fate.is_stalled() => {
                self.reader.cut(StreamCut::TokenExpired);
                if self.timing.resumable {
                    self.ready.push_back(retry(self.reader.retry()));
                }
            }
            _ => {}
        }
        self.over = look != Look::More;
    }

    /// Nothing to send: a first byte at once, comments in pauses, a polite end at the age limit.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !self.begun {
            self.begun = true;
            return Poll::Ready(Some(COMMENT));
        }
        loop {
            if self.timing.timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            if self.timing.is_old(now) {
                self.over = true;
                self.reader.cut(StreamCut::Age);
                return Poll::Ready(Some(retry(self.reader.retry())));
            }
            let quiet = now.duration_since(self.timing.last_sent) >= self.timing.config.comment_every;
            if quiet {
                self.timing.last_sent = now;
            }
            let due = self.timing.due();
            self.timing.timer.as_mut().reset(due);
            if quiet {
                return Poll::Ready(Some(COMMENT));
            }
        }
    }
}

impl Timing {
    fn is_old(&self, now: Instant) -> bool {
        self.resumable && self.config.max_age.is_some_and(|age| now.duration_since(self.opened) >= age)
    }

    /// When to look again.
    fn due(&self) -> Instant {
        let comment = self.last_sent + self.config.comment_every;
        match self.config.max_age.filter(|_| self.resumable) {
            Some(age) => comment.min(self.opened + age),
            None => comment,
        }
    }
}
