//! One connection: hyper, its clocks, and its part in the drain.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use tokio::sync::watch;

use crate::caller::{ClientCertificate, Fate, Peer};
use crate::config::Limits;

use super::accept::Phase;
use super::clock::{Clock, Signals, Stage};
use super::drive::{Protocol, drive};
use super::observe::{End, Observer};
use super::wire::{Stream, Wire};

/// Fields hyper parses without an allocation; a lower limit is the guard's to enforce.
const FIELDS_ON_STACK: usize = 100;
/// Read and write buffer of a connection where heads are not allowed to be larger.
const BUFFER: usize = 128 * 1024;

/// What is known of a connection, the same for all its requests.
#[derive(Debug)]
pub struct Connection {
    /// Name of the listener that took it.
    pub listener: &'static str,
    /// The other side; an IPv4-mapped address is given as IPv4.
    pub peer: Peer,
    /// Whether `peer` is in `listen.trusted_proxies`, so that its forwarded headers count.
    pub trusted_proxy: bool,
    /// Whether the socket it came in by is bound so that only this machine can reach it.
    pub local_bind: bool,
    end: OnceLock<End>,
    certificate: OnceLock<Arc<ClientCertificate>>,
    /// The connection this is one stream of, where a connection has several.
    carrier: Option<Arc<Connection>>,
    /// The client is to take its next requests elsewhere.
    leaving: AtomicBool,
    /// Of its task, while it waits for a peer that does not read: nothing else may come to wake it.
    blocked: Mutex<Option<Waker>>,
}

impl Connection {
    pub(super) fn new(listener: &'static str, peer: Peer, trusted_proxy: bool, local_bind: bool) -> Connection {
        Connection {
            listener,
            peer,
            trusted_proxy,
            local_bind,
            end: OnceLock::new(),
            certificate: OnceLock::new(),
            carrier: None,
            leaving: AtomicBool::new(false),
            blocked: Mutex::default(),
        }
    }

    /// One stream of a connection: it can be cut alone, and ends with the connection.
    pub(super) fn stream_of(carrier: &Arc<Connection>) -> Connection {
        let own = Connection::new(carrier.listener, carrier.peer, carrier.trusted_proxy, carrier.local_bind);
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

    fn leave(&self) {
        if let Some(carrier) = &self.carrier {
            carrier.leaving.store(true, Ordering::Relaxed);
            carrier.wake();
        }
    }
}

/// Reports the end of a connection however its task ends.
pub(super) struct Reported {
    pub(super) connection: Arc<Connection>,
    pub(super) observer: Arc<dyn Observer>,
}

impl Drop for Reported {
    fn drop(&mut self) {
        let end = *self.connection.end.get_or_init(|| End::Aborted);
        self.observer.closed(self.connection.listener, end);
    }
}

/// The hyper settings every connection of a listener shares.
pub(super) fn builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // The clocks are ours: hyper's head timer would also cut idle connections.
    builder.header_read_timeout(None);
    builder.half_close(false);
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
    builder: http1::Builder,
    clock: Clock,
    phase: watch::Receiver<Phase>,
    service: Arc<S>,
) where
    S: Fn(Request<Incoming>, Arc<Connection>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let wire = TokioIo::new(Wire::new(stream, Arc::clone(&signals)));
    let answer = service_fn(|request| {
        let stage = InRequest::enter(&signals);
        let answer = service(request, Arc::clone(&connection));
        async move { Ok::<_, Infallible>(answer.await.map(|body| Watched { body, _stage: stage })) }
    });
    let http = pin!(builder.serve_connection(wire, answer));
    let end = drive(http, &signals, clock, phase, &connection).await;
    // Before hyper and the answers inside it go away; a cut from outside has set it already.
    let _ = connection.end.set(end);
}

impl<S, B> Protocol for http1::Connection<TokioIo<Wire>, S>
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
