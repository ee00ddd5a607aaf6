//! One POST that waits for answers: JSON if the first thing that comes is the answer, a stream else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::exchange::capacity::Permit;
use crate::exchange::stream::{Reader, Stream};
use crate::mcp::payload::{Payload, Spliced};
use crate::mcp::stream_log::EventKind;
use crate::telemetry::label::Outcome;

/// Which forms of answer the client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Both; the first message decides.
    Either,
    /// Only `application/json`.
    Json,
    /// Only `text/event-stream`.
    EventStream,
}

/// One answer, ready to be sent.
pub struct Reply {
    /// The JSON-RPC response.
    pub payload: Payload,
    /// How the call ended.
    pub outcome: Outcome,
    /// The code, where it is a JSON-RPC error.
    pub rpc_code: Option<i64>,
    /// The refusal or loss behind it, if the gateway made it up.
    pub trouble: Option<Trouble>,
    /// The place of its request, until the answer is written.
    pub permit: Option<Permit>,
}

/// A call the gateway itself had to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// HTTP status that says the same, for those who want it.
    pub status: u16,
    /// `data.reason`
    pub reason: &'static str,
    /// When the same call may succeed, if it did not run.
    pub retry_after: Option<Duration>,
    /// Whether the HTTP status says so in any case: there is no session it could be told in.
    pub always: bool,
}

impl Reply {
    /// An answer to what was no proper request.
    #[must_use]
    pub fn refused(payload: Payload) -> Reply {
        Reply { payload, outcome: Outcome::Refused, rpc_code: None, trouble: None, permit: None }
    }

    /// Counts its bytes: no stream's log does.
    fn hold(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.hold(self.payload.len());
        }
    }
}

/// What decides a response's head.
pub enum Head {
    /// The one answer, for a JSON body.
    Answer(Reply),
    /// Every answer of a batch, for a JSON body.
    Answers(Vec<Reply>),
    /// A stream that is being filled.
    Stream(Reader),
}

enum State {
    Waiting {
        head: oneshot::Sender<Head>,
        replies: Vec<Reply>,
    },
    Streaming(Arc<Stream>),
    /// The answers go to a stream that is not this POST's and goes on after them.
    Shared(Arc<Stream>),
    /// The connection was lost before the head.
    Lost,
    Done,
}

struct Inner {
    state: State,
    /// Answers still to come.
    owed: usize,
}

/// The waiting side of one POST.
pub struct Post {
    form: Form,
    /// Whether several requests came in one body.
    pub batch: bool,
    primed: bool,
    inner: Mutex<Inner>,
}

/// Where a message for a POST went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// Into the JSON body.
    Json,
    /// Into the stream, which was resumed so often by then.
    Stream {
        /// How often.
        resumed: u64,
    },
    /// Nowhere: the connection was lost before its head.
    Lost,
}

/// Decides the head of a POST that waits, which then is done.
fn send_head(state: &mut State, head_of: impl FnOnce(Vec<Reply>) -> Head) -> Delivered {
    match std::mem::replace(state, State::Done) {
        State::Waiting { head, replies } => match head.send(head_of(replies)) {
            Ok(()) => Delivered::Json,
            Err(_connection_lost) => Delivered::Lost,
        },
        State::Streaming(_) | State::Shared(_) | State::Lost | State::Done => Delivered::Lost,
    }
}

impl Post {
    /// A POST that owes `owed` answers; `primed` streams start with a priming event.
    #[must_use]
    pub fn new(form: Form, owed: usize, batch: bool, primed: bool) -> (Arc<Post>, oneshot::Receiver<Head>) {
        let (head, receiver) = oneshot::channel();
        let state = State::Waiting { head, replies: Vec::new() };
        (Arc::new(Post { form, batch, primed, inner: Mutex::new(Inner { state, owed }) }), receiver)
    }

    /// A POST of HTTP+SSE: its answers go to the one stream there is.
    #[must_use]
    pub fn shared(stream: Arc<Stream>) -> Arc<Post> {
        let inner = Inner { state: State::Shared(stream), owed: 1 };
        Arc::new(Post { form: Form::EventStream, batch: false, primed: false, inner: Mutex::new(inner) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether messages beside the answer can reach the client on this POST.
    #[must_use]
    pub fn can_stream(&self) -> bool {
        match &self.inner().state {
            State::Waiting { head, .. } => self.form != Form::Json && !head.is_closed(),
            State::Streaming(_) | State::Shared(_) => true,
            State::Lost | State::Done => false,
        }
    }

    /// Whether the connection was lost before the head.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match &self.inner().state {
            State::Waiting { head, .. } => head.is_closed(),
            State::Lost => true,
            State::Streaming(_) | State::Shared(_) | State::Done => false,
        }
    }

    /// Turns a waiting POST into a stream; `false` if it is none and cannot become one.
    pub fn promote(&self, open: impl FnOnce() -> Arc<Stream>) -> bool {
        self.become_stream(&mut self.inner(), open)
    }

    fn become_stream(&self, inner: &mut Inner, open: impl FnOnce() -> Arc<Stream>) -> bool {
        if matches!(inner.state, State::Streaming(_) | State::Shared(_)) {
            return true;
        }
        match std::mem::replace(&mut inner.state, State::Lost) {
            State::Waiting { head, replies } if self.form != Form::Json && !head.is_closed() => {
                debug_assert!(replies.is_empty(), "a POST that can be a stream collects no answers");
                let stream = open();
                // Position 0 of a new log is always there.
                if let Ok(reader) = stream.attach(None, self.primed)
                    && head.send(Head::Stream(reader)).is_ok()
                {
                    inner.state = State::Streaming(stream);
                    return true;
                }
                // Its session knows it already, and nobody ever will beside.
                stream.discard();
                false
            }
            other => {
                inner.state = other;
                false
            }
        }
    }

    /// Appends something beside the answers to the stream this POST is or becomes, and gives the
    /// stream, which must be told. `None` if there is no way to the client here.
    pub fn push_quietly(
        &self,
        kind: EventKind,
        message: &Spliced<'_>,
        open: impl FnOnce() -> Arc<Stream>,
    ) -> Option<Arc<Stream>> {
        let mut inner = self.inner();
        if !self.become_stream(&mut inner, open) {
            return None;
        }
        match &inner.state {
            State::Streaming(stream) | State::Shared(stream) => {
                stream.push_quietly(kind, message);
                Some(Arc::clone(stream))
            }
            State::Waiting { .. } | State::Lost | State::Done => None,
        }
    }

    /// Delivers one owed answer.
    pub fn answer(&self, mut reply: Reply, open: impl FnOnce() -> Arc<Stream>) -> Delivered {
        if self.form == Form::EventStream || (self.batch && self.form == Form::Either) {
            self.promote(open);
        }
        let mut inner = self.inner();
        inner.owed = inner.owed.saturating_sub(1);
        let last = inner.owed == 0;
        match &mut inner.state {
            State::Waiting { replies, .. } => {
                reply.hold();
                if !self.batch {
                    return send_head(&mut inner.state, |_none| Head::Answer(reply));
                }
                replies.push(reply);
            }
            State::Streaming(stream) => {
                if last {
                    stream.finish(EventKind::Response, &reply.payload);
                } else {
                    stream.push(EventKind::Response, &reply.payload);
                }
                return Delivered::Stream { resumed: stream.resumes() };
            }
            State::Shared(stream) => {
                stream.push(EventKind::Response, &reply.payload);
                return Delivered::Stream { resumed: 0 };
            }
            State::Lost | State::Done => return Delivered::Lost,
        }
        if last { send_head(&mut inner.state, Head::Answers) } else { Delivered::Json }
    }

    /// The connection was lost before the head: what comes has nowhere to go.
    pub fn lose(&self) {
        let mut inner = self.inner();
        match std::mem::replace(&mut inner.state, State::Lost) {
            State::Waiting { .. } | State::Lost => {}
            // A stream whose head went nowhere has a name nobody knows.
            State::Streaming(stream) => stream.discard(),
            other @ (State::Shared(_) | State::Done) => inner.state = other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};
    use std::time::{Duration, Instant};

    use bytes::Bytes;

    use super::{Delivered, Form, Head, Post, Reply};
    use crate::budget::Budget;
    use crate::config::Metrics as MetricsConfig;
    use crate::exchange::ledger::Ledger;
    use crate::exchange::stream::{Frames, Look, Stream, StreamTerms};
    use crate::mcp::payload::{Payload, Spliced};
    use crate::mcp::stream_log::{Bounds, EventKind};
    use crate::telemetry::Metrics;
    use crate::telemetry::label::StreamKind;

    fn stream() -> Arc<Stream> {
        let metrics = Metrics::new(&MetricsConfig { tools: false, max_tools: 0 });
        let terms = StreamTerms {
            server: "test".into(),
            bounds: Bounds { events: 8, bytes: 8, window: 8 },
            age: Duration::ZERO,
            retry: Duration::ZERO,
            metrics: metrics.server("test"),
            ledger: Ledger::new(Budget::new(1 << 20), metrics, 1 << 20),
        };
        Stream::new(StreamKind::Post, terms, Arc::default())
    }

    fn answer(post: &Post) -> Delivered {
        post.answer(Reply::refused(Payload::default()), stream)
    }

    #[test]
    fn no_progress_follows_an_answer() {
        let (post, mut head) = Post::new(Form::EventStream, 1, false, false);
        let text = Bytes::from_static(b"{}");
        let report = || drop(post.push_quietly(EventKind::Progress(1), &Spliced::unchanged(&text), stream));
        report();
        assert_eq!(answer(&post), Delivered::Stream { resumed: 0 });
        // As a child's lines may that were read before its call was cancelled.
        report();
        let Ok(Head::Stream(mut reader)) = head.try_recv() else { panic!("it is a stream") };
        let mut frames = Frames::default();
        let look = reader.poll_take(&mut Context::from_waker(Waker::noop()), 1 << 20, &mut frames);
        assert_eq!((look, reader.events()), (Poll::Ready(Look::End), 2));
    }

    #[test]
    fn a_client_that_leaves_while_its_stream_opens_leaves_none() {
        let (post, head) = Post::new(Form::Either, 1, false, true);
        let opened = stream();
        let was_promoted = post.promote(|| {
            drop(head);
            Arc::clone(&opened)
        });
        assert!(!was_promoted);
        assert!(opened.is_expired(Instant::now()), "or its session would keep it for good");
        assert_eq!(answer(&post), Delivered::Lost);
    }

    #[test]
    fn a_stream_whose_head_went_nowhere_is_none() {
        let (post, head) = Post::new(Form::Either, 2, true, false);
        let opened = stream();
        assert!(post.promote(|| Arc::clone(&opened)));
        assert_eq!(answer(&post), Delivered::Stream { resumed: 0 });
        drop(head);
        post.lose();
        assert!(opened.is_expired(Instant::now()) && !opened.has_unwritten());
        assert_eq!(answer(&post), Delivered::Lost);
    }
}
