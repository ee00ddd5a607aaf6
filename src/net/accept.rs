//! The accept loop: takes connections, owns them, survives running out of descriptors, drains.

use std::error::Error;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::Body;
use hyper::server::conn::http1;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::caller::Peer;
use crate::config::{Limits, Network};
use crate::rare::rarely;
use crate::telemetry::label::Accepted;

use super::cap::{Caps, Place};
use super::clock::{Clock, Signals};
use super::connection::{self, Asked, Connection, Reported};
use super::front::Front;
use super::introduction::introduce;
use super::listen::{ListenSocket, Listener};
use super::multiplex;
use super::observe::{End, Observer};
use super::refusal_log::RefusalLog;
use super::tls::{Tls, secure};
use super::wire::Stream;

/// How far the gateway is on its way out. It only ever moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Connections are taken.
    Serving,
    /// No connection is taken; idle ones close, busy ones after their answer.
    Draining,
    /// Whatever is left is dropped.
    Closed,
}

/// What connections are held to.
#[derive(Clone, Debug)]
pub struct Terms {
    /// `[limits]`
    pub limits: Limits,
    /// The networks that the per-address cap does not count.
    pub trusted: Vec<Network>,
    /// Whether those are the only ones that connect, and say for whom.
    pub proxy_protocol: bool,
}

/// First and longest pause after `accept` ran out of something.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Serves `listener` until `phase` is [`Phase::Draining`] and every connection has ended, or until
/// it is [`Phase::Closed`]. Dropping the future drops every connection.
///
/// Each request is handed to `service` with its connection; the returned future is dropped if the
/// client leaves first. A panic in it ends that connection only. `terms` may change meanwhile:
/// connections taken from then on are held to the new ones.
pub async fn serve<S, F, B>(
    listener: Listener,
    mut terms: watch::Receiver<Terms>,
    phase: watch::Receiver<Phase>,
    service: Arc<S>,
    observer: Arc<dyn Observer>,
) where
    S: Fn(Asked, Arc<Connection>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let Terms { limits, trusted, proxy_protocol } = terms.borrow_and_update().clone();
    let door = Door {
        name: listener.name,
        tls: listener.tls.clone(),
        caps: Caps::new(&limits, trusted),
        builder: connection::builder(&limits),
        limits: Arc::new(limits),
        proxy_protocol,
        log: Arc::default(),
        terms,
        phase,
        service,
        observer,
    };
    door.run(listener).await;
}

/// What the accept loop needs for each connection.
struct Door<S> {
    name: &'static str,
    tls: Option<Arc<Tls>>,
    limits: Arc<Limits>,
    proxy_protocol: bool,
    log: Arc<RefusalLog>,
    terms: watch::Receiver<Terms>,
    caps: Arc<Caps>,
    builder: http1::Builder,
    phase: watch::Receiver<Phase>,
    service: Arc<S>,
    observer: Arc<dyn Observer>,
}

impl<S, F, B> Door<S>
where
    S: Fn(Asked, Arc<Connection>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    async fn run(mut self, listener: Listener) {
        let mut connections = JoinSet::new();
        let mut sockets = Sockets { listener, next: 0 };
        let mut pause = Pause::default();
        let mut phase = self.phase.clone();
        while *phase.borrow_and_update() == Phase::Serving {
            tokio::select! {
                _ = phase.changed() => if phase.has_changed().is_err() { break },
                // The sender may be gone: then the terms stay as they are.
                Ok(()) = self.terms.changed() => self.take_terms(),
                Some(ended) = connections.join_next() => report(ended),
                accepted = sockets.accept_after(pause.until) => match accepted {
                    Ok(taken) => {
                        pause = Pause::default();
                        self.admit(taken, &mut connections);
                    }
                    Err(error) => self.accept_failed(&error, &mut pause),
                },
            }
        }
        // Closed here, not at the end: what waits in the backlog must go elsewhere at once.
        drop(sockets);
        while !connections.is_empty() {
            tokio::select! {
                // Dropping the set drops what is left.
                _ = phase.wait_for(|phase| *phase == Phase::Closed) => break,
                Some(ended) = connections.join_next() => report(ended),
            }
        }
        connections.shutdown().await;
    }

    fn take_terms(&mut self) {
        let Terms { limits, trusted, proxy_protocol } = self.terms.borrow_and_update().clone();
        self.caps.set(&limits, trusted);
        self.builder = connection::builder(&limits);
        self.limits = Arc::new(limits);
        self.proxy_protocol = proxy_protocol;
    }

    /// The place of a connection below the caps; `None` where it is refused.
    fn place(&self, peer: Peer) -> Option<Place> {
        let address = match peer {
            Peer::Ip(address) => Some(address),
            Peer::Local => None,
        };
        let may_enter = !self.proxy_protocol || address.is_none_or(|address| self.caps.is_exempt(address));
        let entered = if may_enter { self.caps.enter(address) } else { Err(Accepted::Untrusted) };
        let refuse = |why| {
            self.observer.refused(self.name, why);
            self.log.refused(self.name, why, peer);
        };
        entered.map_err(refuse).ok()
    }

    fn admit(&self, taken: Taken, connections: &mut JoinSet<()>) {
        let Taken { stream, peer, local_bind } = taken;
        let Some(place) = self.place(peer) else { return };
        let reported = Reported::new(self.name, Arc::clone(&self.observer));
        let (name, limits, caps, phase) =
            (self.name, Arc::clone(&self.limits), Arc::clone(&self.caps), self.phase.clone());
        let log = Arc::clone(&self.log);
        let has_introduction = self.proxy_protocol;
        let tls = self.tls.as_ref().map(|tls| tls.current());
        let http1 = (self.builder.clone(), Front::new(&self.limits));
        let service = Arc::clone(&self.service);
        connections.spawn(async move {
            // Given back in this order: the socket, the report, the place below the caps.
            let (mut place, mut reported, mut stream) = (place, reported, stream);
            let client = if has_introduction {
                match rarely(|| introduce(&mut stream, &mut place, &caps, limits.header_timeout)).await {
                    Ok(client) => client,
                    Err((why, end)) => {
                        reported.end = end;
                        log.unintroduced(name, why, peer);
                        return;
                    }
                }
            } else {
                None
            };
            let peer = client.map_or(peer, Peer::Ip);
            let signals = Arc::<Signals>::default();
            let secured = match secure(stream, tls, &signals, limits.tls_handshake).await {
                Ok(secured) => secured,
                Err(end) => {
                    reported.end = end;
                    if end == End::PlainHttp {
                        log.plain(name, peer);
                    }
                    return;
                }
            };
            let connection = Arc::new(Connection::new(name, peer, local_bind));
            reported.connection = Some(Arc::clone(&connection));
            if let Some(certificate) = secured.certificate {
                connection.shows(certificate);
            }
            // The time of a handshake is not that of a head.
            let clock = Clock::start(&limits, rand::random_range(0.0..1.0));
            if secured.h2 {
                let stream = secured.stream;
                rarely(|| multiplex::serve(stream, connection, signals, limits, clock, phase, service)).await;
            } else {
                connection::serve(secured.stream, connection, signals, http1, clock, phase, service).await;
            }
        });
    }

    fn accept_failed(&self, error: &io::Error, pause: &mut Pause) {
        let name = symbol(error);
        self.observer.accept_error(self.name, name);
        if is_of_one_connection(error) {
            return;
        }
        let first = pause.until.is_none();
        pause.lengthen();
        if first {
            tracing::warn!(
                event = "accept_error",
                listener = self.name,
                errno = name,
                error = %error,
                "no connection can be taken for now; raise the limit on open files (ulimit -n) or lower limits.connections"
            );
        }
    }
}

/// An accepted socket and where it came from.
struct Taken {
    stream: Stream,
    peer: Peer,
    local_bind: bool,
}

/// The sockets of a listener, asked in turn.
struct Sockets {
    listener: Listener,
    next: usize,
}

impl Sockets {
    /// The next connection, not before `until`.
    async fn accept_after(&mut self, until: Option<Instant>) -> io::Result<Taken> {
        if let Some(until) = until {
            sleep_until(until).await;
        }
        if self.listener.sockets.is_empty() {
            return pending().await;
        }
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Taken>> {
        let count = self.listener.sockets.len();
        for step in 0..count {
            let at = (self.next + step) % count;
            let local_bind = self.listener.addresses[at].is_local();
            if let Poll::Ready(taken) = self.listener.sockets[at].poll_accept(local_bind, cx) {
                self.next = (at + 1) % count;
                return Poll::Ready(taken);
            }
        }
        Poll::Pending
    }
}

impl ListenSocket {
    fn poll_accept(&self, local_bind: bool, cx: &mut Context<'_>) -> Poll<io::Result<Taken>> {
        match self {
            ListenSocket::Tcp(socket) => socket.poll_accept(cx).map_ok(|(stream, peer)| {
                // Linux hands the option on from the listening socket.
                #[cfg(not(target_os = "linux"))]
                let _ = stream.set_nodelay(true);
                Taken { stream: Stream::Tcp(stream), peer: Peer::Ip(peer.ip().to_canonical()), local_bind }
            }),
            ListenSocket::Unix(socket) => socket.listener.poll_accept(cx).map_ok(|(stream, _)| Taken {
                stream: Stream::Unix(stream),
                peer: Peer::Local,
                local_bind,
            }),
        }
    }
}

/// The pause after `accept` failed for want of something.
#[derive(Default)]
struct Pause {
    length: Option<Duration>,
    until: Option<Instant>,
}

impl Pause {
    fn lengthen(&mut self) {
        let length = self.length.map_or(PAUSE, |length| (length * 2).min(PAUSE_MAX));
        self.length = Some(length);
        self.until = Some(Instant::now() + length);
    }
}

pub(super) fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(event = "panic", "a request panicked; it got no answer");
    }
}

/// Whether the failure concerns the connection that was about to be taken, and not this process
/// (accept(2): such errors are to be treated like "try again").
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::ECONNRESET
                | libc::EINTR
                | libc::EPROTO
                | libc::EPERM
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
                | libc::ENOPROTOOPT
                | libc::ETIMEDOUT
        )
    )
}

fn symbol(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "EMFILE",
        Some(libc::ENFILE) => "ENFILE",
        Some(libc::ENOBUFS) => "ENOBUFS",
        Some(libc::ENOMEM) => "ENOMEM",
        Some(libc::ECONNABORTED) => "ECONNABORTED",
        Some(libc::EPERM) => "EPERM",
        _ => "other",
    }
}
