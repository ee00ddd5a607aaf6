//! HTTP/2 (RFC 9113), which is spoken over TLS where ALPN agrees on it, and nowhere else.
//!
//! Each stream is a task of its own, owned by its connection and gone with it. What a client can make us hold:
//!
//! - [`STREAMS`] requests at once, each head within `limits.header_bytes` and [`HEAD`];
//! - 65,535 bytes of bodies nobody has read, in all, until a body is read: hyper lets the windows grow with the
//!   bandwidth it measures, and measures only what the service takes. A refused request's body is never taken, so
//!   the windows of a client that was let in nowhere stay as they are. They never exceed 16 MiB;
//! - [`SEND_BUFFER`] bytes of answer a stream, and one piece.
//!
//! Until a request is let in far less comes in at once (`turns`).
//!
//! A client that reads nothing is seen in two places: where the kernel takes no more, the connection's own clock cuts
//! it all; where only the window of one stream is spent, that stream is cut alone after the same time, since the
//! others may be well.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::caller::Malformed;
use crate::config::Limits;

use super::accept::{Phase, report};
use super::clock::{Clock, Signals, Stage};
use super::connection::{Asked, Connection, Strangers};
use super::drive::{Protocol, drive, poll_timer};
use super::filter::Filtered;
use super::frames::{Credit, Frames};
use super::front::may_pass_for_another;
use super::observe::End;
use super::turns::{Turns, Watch};
use super::wire::{Stream, Wire};

/// Streams a client may have open.
const STREAMS: u32 = 128;
/// Bytes of a head, names and values and 32 for each field, however much `limits.header_bytes` allows: h2 holds a head
/// that does not end several times over, for whoever sends it.
const HEAD: usize = 16 * 1024;
/// Bytes of one stream that may wait for the socket.
const SEND_BUFFER: usize = 64 * 1024;
/// Bytes of an answer that are handed over at once, which is a frame's size: a reader that takes them is not stalled.
const PIECE: usize = 16 * 1024;
/// Streams we had to reset for what the client sent, until the connection ends.
const BAD_STREAMS: usize = 100;
/// Streams that were opened and reset before we looked.
const EARLY_RESETS: usize = 20;
/// Silence after which a client is asked whether it is there.
const PING_AFTER: Duration = Duration::from_secs(30);

/// Serves one HTTP/2 connection to its end.
pub(super) async fn serve<S, F, B>(
    stream: Stream,
    connection: Arc<Connection>,
    signals: Arc<Signals>,
    limits: Arc<Limits>,
    clock: Clock,
    phase: watch::Receiver<Phase>,
    service: Arc<S>,
) where
    S: Fn(Asked, Arc<Connection>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let requests = Arc::new(Requests::new(&connection));
    // Dropped with the connection, and its tasks with it. They only have a weak handle, else they would keep each other.
    let tasks = Arc::new(Mutex::new(JoinSet::new()));
    let next = Arc::new(Mutex::new(None));
    let executor =
        StreamTasks { tasks: Arc::downgrade(&tasks), next: Arc::clone(&next), write_stall: limits.write_stall };
    let wire = Wire::framed(stream, Arc::clone(&signals), Frames::new(Arc::clone(&requests.credit)));
    let wire = Filtered::new(wire, Turns::new(Arc::clone(&requests)));
    let begun = Arc::clone(&requests);
    let answer = service_fn(move |request: Request<Incoming>| {
        match begun.connection.begins() {
            Strangers::TooMany => {
                begun.connection.ends(End::Flooded);
                begun.connection.wake();
            }
            Strangers::Many => begun.connection.leaves(),
            Strangers::Few => {}
        }
        let own = Arc::new(StreamLife::new(Connection::stream_of(&begun.connection)));
        *locked(&next) = Some(Arc::clone(&own));
        let open = Open::begin(&begun);
        let asked = fault(request.headers()).map_or(Ok(request), Err);
        let service = Arc::clone(&service);
        async move {
            // Called in here: a future that is handed in is kept twice.
            let answer = service(asked, Arc::clone(&own.connection)).await;
            Ok::<_, Infallible>(answer.map(|body| Pieces { body, rest: Bytes::new(), life: own, open }))
        }
    });
    let http = Box::pin(builder(executor, &limits).serve_connection(TokioIo::new(wire), answer));
    let multiplexed =
        pin!(Multiplexed { http, requests, tasks: Arc::clone(&tasks), signals: Arc::clone(&signals), seen: 0 });
    let end = drive(multiplexed, &signals, clock, phase, &connection).await;
    // Before the streams' tasks go away.
    connection.ends(end);
    drop(tasks);
}

/// What is refused in HTTP/1 too and HTTP/2 lets through: whoever hands such fields on to HTTP/1 makes another request of
/// them.
fn fault(fields: &HeaderMap) -> Option<Malformed> {
    let may_pass = |name: &HeaderName| name.as_str().contains('_') && may_pass_for_another(name.as_str().as_bytes());
    if fields.get_all(CONTENT_LENGTH).iter().nth(1).is_some() {
        Some(Malformed::Length)
    } else if fields.keys().any(may_pass) {
        Some(Malformed::Underscore)
    } else {
        None
    }
}

fn builder(executor: StreamTasks, limits: &Limits) -> http2::Builder<StreamTasks> {
    let mut builder = http2::Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .adaptive_window(true)
        .max_concurrent_streams(STREAMS)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(limits.header_bytes.min(HEAD)).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(EARLY_RESETS)
        .max_local_error_reset_streams(BAD_STREAMS)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(limits.write_stall);
    builder
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks can be left half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The requests of one connection, counted by the tasks of its streams.
struct Requests {
    connection: Arc<Connection>,
    open: AtomicUsize,
    begun: AtomicU64,
    /// None was open when hyper was last polled, and nothing has come since.
    is_over: AtomicBool,
    /// The client was told to take further ones elsewhere.
    is_leaving: AtomicBool,
    /// Something is not read before none is open.
    waits: AtomicBool,
    credit: Arc<Credit>,
}

impl Requests {
    fn new(connection: &Arc<Connection>) -> Requests {
        Requests {
            connection: Arc::clone(connection),
            open: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            credit: Arc::default(),
        }
    }
}

impl Watch for Requests {
    fn is_known(&self) -> bool {
        self.connection.is_known()
    }

    fn is_over(&self) -> bool {
        self.is_over.swap(false, Ordering::Relaxed)
    }

    fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    fn waits(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }
}

/// A request, from the call of the service to the end of its answer.
struct Open(Arc<Requests>);

impl Open {
    fn begin(requests: &Arc<Requests>) -> Open {
        requests.open.fetch_add(1, Ordering::AcqRel);
        requests.begun.fetch_add(1, Ordering::AcqRel);
        Open(Arc::clone(requests))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            // It is idle from now on, and its clock must see that.
            self.0.connection.wake();
        }
    }
}

/// hyper's connection, telling its clock whether there are requests.
struct Multiplexed<H> {
    http: Pin<Box<H>>,
    requests: Arc<Requests>,
    tasks: Arc<Mutex<JoinSet<()>>>,
    signals: Arc<Signals>,
    /// Requests that had begun at the last look.
    seen: u64,
}

impl<H> Multiplexed<H> {
    fn follow_requests(&mut self) {
        let (begun, open) = (self.requests.begun.load(Ordering::Acquire), self.requests.open.load(Ordering::Acquire));
        let stage = self.signals.stage();
        let is_new = begun != std::mem::replace(&mut self.seen, begun);
        match (open, stage) {
            (1.., Stage::Opened | Stage::Idle) => self.signals.enter(Stage::Request),
            (0, Stage::Request) => self.signals.enter(Stage::Idle),
            // One came and went since.
            (0, Stage::Opened | Stage::Idle) if is_new => self.signals.enter(Stage::Idle),
            _ => {}
        }
    }
}

impl<H: Graceful> Future for Multiplexed<H> {
    type Output = hyper::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        let connection = Arc::clone(&self.requests.connection);
        // Before the counts are read, so that no change is missed.
        connection.wake_when_cut(cx.waker());
        if connection.is_to_leave() {
            self.requests.is_leaving.store(true, Ordering::Relaxed);
            self.signals.retire();
            self.http.as_mut().shut_down();
        }
        // hyper has handed what it read before to the service, or has refused it.
        let is_over = self.requests.open.load(Ordering::Acquire) == 0;
        self.requests.is_over.store(is_over, Ordering::Relaxed);
        let outcome = self.http.as_mut().poll(cx);
        if self.requests.waits.swap(false, Ordering::Relaxed) && self.requests.open.load(Ordering::Acquire) == 0 {
            // Nobody else does who ended before, or was refused.
            cx.waker().wake_by_ref();
        }
        reap(&self.tasks);
        self.follow_requests();
        outcome
    }
}

impl<H: Graceful> Protocol for Multiplexed<H> {
    fn retire(mut self: Pin<&mut Self>) {
        self.http.as_mut().shut_down();
    }
}

/// A connection that can say GOAWAY.
trait Graceful: Future<Output = hyper::Result<()>> {
    /// Takes no further stream; ends when those there are have ended (RFC 9113, 6.8).
    fn shut_down(self: Pin<&mut Self>);
}

impl<S, B> Graceful for http2::Connection<TokioIo<Filtered<Wire, Turns<Requests>>>, S, StreamTasks>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
    StreamTasks: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    fn shut_down(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Starts the task of each stream.
#[derive(Clone)]
struct StreamTasks {
    tasks: Weak<Mutex<JoinSet<()>>>,
    /// The stream whose request hyper has just handed to the service: its task follows at once.
    next: Arc<Mutex<Option<Arc<StreamLife>>>>,
    write_stall: Duration,
}

impl<T: Future<Output = ()> + Send + 'static> Executor<T> for StreamTasks {
    fn execute(&self, stream: T) {
        let (Some(tasks), Some(life)) = (self.tasks.upgrade(), locked(&self.next).take()) else { return };
        locked(&tasks).spawn(live(Box::pin(stream), life, self.write_stall));
    }
}

/// Gives back the memory of streams that have ended, however long their connection does nothing from now on.
fn reap(tasks: &Mutex<JoinSet<()>>) {
    let mut tasks = locked(tasks);
    while let Some(ended) = tasks.try_join_next() {
        report(ended);
    }
}

/// Runs one stream to its end; one whose reader takes nothing for `write_stall` is dropped, which resets it.
async fn live(mut stream: Pin<Box<impl Future<Output = ()>>>, life: Arc<StreamLife>, write_stall: Duration) {
    let mut timer = pin!(sleep_until(Instant::now()));
    let mut seen = 0;
    let mut since = Instant::now();
    poll_fn(|cx| {
        life.connection.wake_when_cut(cx.waker());
        if life.connection.end().is_some() || stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let given = life.given.load(Ordering::Relaxed);
        if given & StreamLife::WAITS == 0 {
            return Poll::Pending;
        }
        if given != seen {
            seen = given;
            since = Instant::now();
        }
        ready!(poll_timer(timer.as_mut(), since + write_stall, cx));
        life.connection.ends(End::Stalled);
        Poll::Ready(())
    })
    .await;
}

/// What a stream's body and its task know of each other.
struct StreamLife {
    connection: Arc<Connection>,
    /// Whether a piece was handed over since the body was last asked, in the lowest bit, and the number of pieces
    /// above. hyper asks again once the piece has a window, or at once.
    given: AtomicU64,
}

impl StreamLife {
    const WAITS: u64 = 1;
    const PIECE: u64 = 2;

    fn new(connection: Connection) -> StreamLife {
        StreamLife { connection: Arc::new(connection), given: AtomicU64::new(0) }
    }
}

/// A body in pieces of one frame.
struct Pieces<B> {
    body: B,
    /// Of what the body gave, not handed over yet.
    rest: Bytes,
    life: Arc<StreamLife>,
    open: Open,
}

impl<B> Pieces<B> {
    fn hand_over(&mut self) -> Frame<Bytes> {
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        let pieces = self.life.given.load(Ordering::Relaxed) & !StreamLife::WAITS;
        self.life.given.store(pieces.wrapping_add(StreamLife::PIECE) | StreamLife::WAITS, Ordering::Relaxed);
        self.open.0.credit.earn();
        Frame::data(piece)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Pieces<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let pieces = this.life.given.load(Ordering::Relaxed) & !StreamLife::WAITS;
        this.life.given.store(pieces, Ordering::Relaxed);
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)).transpose()? {
                None => return Poll::Ready(None),
                Some(frame) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
            }
        }
        Poll::Ready(Some(Ok(this.hand_over())))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.rest.len() as u64;
        let hint = self.body.size_hint();
        match hint.exact() {
            Some(exact) => SizeHint::with_exact(exact + left),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::Arc;
    use std::time::Duration;

    use super::{StreamLife, live};
    use crate::caller::Peer;
    use crate::net::connection::Connection;

    #[test]
    fn the_task_of_a_stream_keeps_its_request_once_and_apart() {
        let stream = async {
            let room = [1_u8; 4096];
            ready(()).await;
            assert_eq!(room.len(), 4096);
        };
        let life = StreamLife::new(Connection::new("main", Peer::Local, true));
        let task = live(Box::pin(stream), Arc::new(life), Duration::from_secs(1));
        assert!(size_of_val(&task) < 1024, "{} bytes", size_of_val(&task));
    }
}
