//! One connection from its TLS handshake to its end, in whichever version of HTTP was agreed upon.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body::Body;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::config::Limits;

use super::accept::Phase;
use super::clock::{Clock, Signals};
use super::connection::{self, Asked, Connection, Http1};
use super::multiplex;
use super::observe::End;
use super::refusal_log::RefusalLog;
use super::tls::shake_hands;

/// What a connection is held to and what it is served by.
pub(super) struct Terms<S> {
    pub(super) config: Arc<ServerConfig>,
    pub(super) limits: Arc<Limits>,
    pub(super) http1: Http1,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) service: Arc<S>,
    pub(super) log: Arc<RefusalLog>,
}

/// Serves one connection to its end.
pub(super) async fn serve<S, F, B>(tcp: TcpStream, connection: Arc<Connection>, terms: Terms<S>)
where
    S: Fn(Asked, Arc<Connection>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let Terms { config, limits, http1, phase, service, log } = terms;
    let signals = Arc::new(Signals::default());
    let secured = match shake_hands(tcp, config, Arc::clone(&signals), limits.tls_handshake).await {
        Ok(secured) => secured,
        Err(end) => {
            if end == End::PlainHttp {
                log.plain(connection.listener, connection.peer);
            }
            connection.ends(end);
            return;
        }
    };
    if let Some(certificate) = secured.certificate {
        connection.shows(certificate);
    }
    // The time of a handshake is not that of a head.
    let clock = Clock::start(&limits, rand::random_range(0.0..1.0));
    if secured.h2 {
        multiplex::serve(secured.stream, connection, signals, &limits, clock, phase, service).await;
    } else {
        connection::serve(secured.stream, connection, signals, http1, clock, phase, service).await;
    }
}
