//! One connection: hyper, its clocks, and its part in the drain.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use tokio::sync::watch;

use crate::caller::{ClientCertificate, Fate, Malformed, Peer};
use crate::config::Limits;

use super::accept::Phase;
use super::clock::{Clock, Signals, Stage};
use super::drive::{Protocol, drive};
use super::filter::Filtered;
use super::front::Front;
use super::observe::{End, Observer};
use super::strict::{Strict, refused};
use super::wire::{Stream, Wire};

/// Fields hyper parses without an allocation; a lower limit is the guard's to enforce.
const FIELDS_ON_STACK: usize = 100;
/// Read and write buffer of a connection where heads are not allowed to be larger.
const BUFFER: usize = 128 * 1024;

/// Requests in a row of nobody who may ask, with the last of which a client has to connect again. Who sends many at once
/// pays a tenth of what it costs to refuse them, and a connection costs both the same; HTTP/2 keeps memory for as many
/// streams as there ever were at once, and for each that we end early a while longer.
const MOST_OF_STRANGERS: u32 = 32;
/// How many times as many are as good where somebody was let in before: more than can be open at once, all of which begin
/// before any is let in. And how often as many may follow from a client that does not hear of it.
const PATIENT: u32 = 8;

/// How many requests in a row were nobody's who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strangers {
    Few,
    /// So many that the client is to connect again.
    Many,
    /// So many that it was told in vain.
    TooMany,
}

/// What a service is asked: a request, or to refuse what was none.
pub type Asked = Result<Request<Incoming>, Malformed>;

/// How hyper reads a connection of HTTP/1, and what stands before it.
pub(super) type Http1 = (http1::Builder, Front);

/// What is known of a connection, the same for all its requests.
#[derive(Debug)]
pub struct Connection {
    /// Name of the listener that took it.
    pub listener: &'static str,
    /// The other side; an IPv4-mapped address is given as IPv4.
    pub peer: Peer,
    /// Whether the socket it came in by is bound so that only this machine can reach it.
    pub local_bind: bool,
    /// Why it ends: what came next was no request.
    pub(super) malformed: OnceLock<Malformed>,
    end: OnceLock<End>,
    certificate: OnceLock<Arc<ClientCertificate>>,
    /// The connection this is one stream of, where a connection has several.
    carrier: Option<Arc<Connection>>,
    /// Requests since the last one of a caller who is known.
    of_strangers: AtomicU32,
    /// One of them was let in.
    known: AtomicBool,
    /// The client is to take its next requests elsewhere.
    leaving: AtomicBool,
    /// Of its task, while it waits for a peer that does not read: nothing else may come to wake it.
    blocked: Mutex<Option<Waker>>,
}

impl Connection {
    pub(super) fn new(listener: &'static str, peer: Peer, local_bind: bool) -> Connection {
        Connection {
            listener,
            peer,
            local_bind,
            malformed: OnceLock::new(),
            end: OnceLock::new(),
            certificate: OnceLock::new(),
            carrier: None,
            of_strangers: AtomicU32::new(0),
            known: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            blocked: Mutex::default(),
        }
    }

    /// One stream of a connection: it can be cut alone, and ends with the connection.
    pub(super) fn stream_of(carrier: &Arc<Connection>) -> Connection {
        let own = Connection::new(carrier.listener, carrier.peer, carrier.local_bind);
        Connection { carrier: Some(Arc::clone(carrier)), certificate: carrier.certificate.clone(), ..own }
    }

    /// What the client showed in the TLS handshake.
    #[must_use]
    pub fn certificate(&self) -> Option<Arc<ClientCertificate>> {
        self.certificate.get().cloned()
    }

    /// Notes what the client showed, once, before the first request.
    pub(super) fn shows(&self, certificate: Arc<ClientCertificate>) {
        let _ = self.certificate.set(certificate);
    }

    /// Counts a request as nobody's, until it is [let in](Fate::let_in).
    pub(super) fn begins(&self) -> Strangers {
        // All that may be open at once begin before any of them is let in.
        let most = if self.is_known() { MOST_OF_STRANGERS * PATIENT } else { MOST_OF_STRANGERS };
        match (self.of_strangers.fetch_add(1, Ordering::Relaxed) + 1) / most {
            0 => Strangers::Few,
            1..PATIENT => Strangers::Many,
            _ => Strangers::TooMany,
        }
    }

    /// Whether anybody was ever [let in](Fate::let_in).
    pub(super) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    /// Has the client take its next requests elsewhere.
    pub(super) fn leaves(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Whether the client is to take its next requests elsewhere, told once.
    pub(super) fn is_to_leave(&self) -> bool {
        self.leaving.load(Ordering::Relaxed) && self.leaving.swap(false, Ordering::Relaxed)
    }

    /// Ends it for this reason, unless it has ended.
    pub(super) fn ends(&self, end: End) -> bool {
        self.end.set(end).is_ok()
    }

    /// Has its task look again.
    pub(super) fn wake(&self) {
        let waker = self.blocked.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Has its task woken when it is cut from outside. Its end must be asked for after this.
    pub(super) fn wake_when_cut(&self, waker: &Waker) {
        let mut blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        if !blocked.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *blocked = Some(waker.clone());
        }
    }

    /// Why the connection ended. A cut by a clock is set before the answers under way are dropped,
    /// so that their own end can tell a stalled reader from one that left; `None` while it lives,
    /// and to an answer whose client left.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end.get().copied().or_else(|| self.carrier.as_ref().and_then(|carrier| carrier.end()))
    }
}

impl Fate for Connection {
    fn is_stalled(&self) -> bool {
        self.end() == Some(End::Stalled)
    }

    fn cut(&self) {
        if self.ends(End::Stalled) {
            self.wake();
        }
    }

    fn let_in(&self) {
        let connection = self.carrier.as_deref().unwrap_or(self);
        connection.of_strangers.store(0, Ordering::Relaxed);
        if !connection.is_known() {
            connection.known.store(true, Ordering::Relaxed);
            // It may have left off reading.
            connection.wake();
        }
    }

    fn leave(&self) {
        if let Some(carrier) = &self.carrier {
            carrier.leaves();
        }
    }
}

/// Reports the end of a connection however its task ends.
pub(super) struct Reported {
    pub(super) listener: &'static str,
    pub(super) observer: Arc<dyn Observer>,
    /// Once it is known whose it is.
    pub(super) connection: Option<Arc<Connection>>,
    /// Before that.
    pub(super) end: End,
}

impl Reported {
    /// From now on.
    pub(super) fn new(listener: &'static str, observer: Arc<dyn Observer>) -> Reported {
        observer.accepted(listener);
        Reported { listener, observer, connection: None, end: End::Aborted }
    }
}

impl Drop for Reported {
    fn drop(&mut self) {
        let end = self.connection.as_ref().map_or(self.end, |known| *known.end.get_or_init(|| End::Aborted));
        self.observer.closed(self.listener, end);
    }
}

/// The hyper settings every connection of a listener shares.
pub(super) fn builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // The clocks are ours: hyper's head timer would also cut idle connections.
    builder.header_read_timeout(None);
    // Who leaves is noticed by `net::strict`, at a lower price.
    builder.half_close(true);
    builder.max_header_size(limits.header_bytes);
    builder.max_buf_size(limits.header_bytes.max(BUFFER));
    if limits.header_fields > FIELDS_ON_STACK {
        builder.max_headers(limits.header_fields);
    }
    builder
}

/// Serves one HTTP/1 connection to its end.
pub(super) async fn serve<S, F, B>(
    stream: Stream,
    connection: Arc<Connection>,
    signals: Arc<Signals>,
    (builder, front): Http1,
    clock: Clock,
    phase: watch::Receiver<Phase>,
    service: Arc<S>,
) where
    S: Fn(Asked, Arc<Connection>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let wire = Wire::new(stream, Arc::clone(&signals));
    let strict = Strict::new(front, Arc::clone(&signals), Arc::clone(&connection));
    let wire = TokioIo::new(Filtered::new(wire, strict));
    let service = &service;
    let answer = service_fn(|request| {
        let stage = InRequest::enter(&signals);
        let is_last = connection.begins() != Strangers::Few;
        let asked = refused(&request, &connection).map_or(Ok(request), Err);
        let connection = Arc::clone(&connection);
        async move {
            // Called in here: a future that is handed in is kept twice.
            let mut answer = service(asked, connection).await.map(|body| Watched { body, _stage: stage });
            if is_last {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let http = pin!(builder.serve_connection(wire, answer));
    let end = drive(http, &signals, clock, phase, &connection).await;
    let end = match (end, connection.malformed.get()) {
        (End::Closed, Some(malformed)) => End::of(*malformed),
        (end, _) => end,
    };
    // Before hyper and the answers inside it go away; a cut from outside has set it already.
    let _ = connection.end.set(end);
}

impl<S, B> Protocol for http1::Connection<TokioIo<Filtered<Wire, Strict>>, S>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn retire(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// While this lives, the connection is in a request: from the call of the service to the end of
/// the answer's body.
struct InRequest(Arc<Signals>);

impl InRequest {
    fn enter(signals: &Arc<Signals>) -> InRequest {
        signals.enter(Stage::Request);
        InRequest(Arc::clone(signals))
    }
}

impl Drop for InRequest {
    fn drop(&mut self) {
        self.0.enter(Stage::Idle);
    }
}

/// A body whose end is the end of its request.
struct Watched<B> {
    body: B,
    _stage: InRequest,
}

impl<B: Body + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
