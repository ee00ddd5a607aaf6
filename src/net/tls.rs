//! TLS of a listener: the certificates in effect, and the handshake of one connection.
//!
//! TLS 1.3 and 1.2 with the suites and groups of the provider, the hybrid X25519MLKEM768 first. A configuration for
//! rustls is built whole whenever a file changes; connections that are open keep the one they began with.

mod client_certificate;
mod credentials;
mod pair;
mod socket;

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::caller::ClientCertificate;
use crate::rare::rarely;

use super::clock::{LINGER, Signals};
use super::observe::End;
use super::wire::Stream;

pub use credentials::{Credentials, TlsProblem};
pub(super) use socket::TlsSocket;

/// HTTP/2 over TLS (RFC 9113, 3.2).
const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// What TLS connections of a listener begin with; replaced when a file changes.
#[derive(Debug)]
pub struct Tls {
    /// Cloned out once by each connection.
    current: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Begins with these.
    #[must_use]
    pub fn new(credentials: &Credentials) -> Arc<Tls> {
        Arc::new(Tls { current: RwLock::new(server_config(credentials)) })
    }

    /// Connections that come from now on get these. None is resumed from before: who showed a certificate then may
    /// not be trusted now.
    pub fn set(&self, credentials: &Credentials) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = server_config(credentials);
    }

    pub(super) fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The cryptography of this process. Named wherever it is used, since a process-wide default may be set only once.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn server_config(credentials: &Credentials) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .expect("the provider has suites of both versions")
        .with_client_cert_verifier(credentials.verifier())
        .with_cert_resolver(credentials.resolver());
    config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
    Arc::new(config)
}

/// What a client reads that speaks HTTP without TLS.
const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 36\r\n\
    connection: close\r\n\r\nThis port speaks TLS: ask by https.\n";

/// A connection after its handshake, where there is one.
pub(super) struct Secured {
    pub(super) stream: Stream,
    /// Whether HTTP/2 was agreed upon.
    pub(super) h2: bool,
    pub(super) certificate: Option<Arc<ClientCertificate>>,
}

/// Shakes hands within `limit` where the listener speaks TLS.
///
/// # Errors
/// How the connection ended instead. The peer was sent the alert that says why.
pub(super) async fn secure(
    stream: Stream,
    tls: Option<Arc<ServerConfig>>,
    signals: &Arc<Signals>,
    limit: Duration,
) -> Result<Secured, End> {
    match (stream, tls) {
        (Stream::Tcp(tcp), Some(config)) => rarely(|| shake_hands(tcp, config, Arc::clone(signals), limit)).await,
        (stream, _) => Ok(Secured { stream, h2: false, certificate: None }),
    }
}

async fn shake_hands(
    tcp: TcpStream,
    config: Arc<ServerConfig>,
    signals: Arc<Signals>,
    limit: Duration,
) -> Result<Secured, End> {
    let shaken = async {
        let mut first = [0];
        // A request line begins with a letter, which no record of TLS does (RFC 8446 section 5.1).
        if tcp.peek(&mut first).await.is_ok_and(|length| length == 1) && first[0].is_ascii_uppercase() {
            return Err(refuse_plain(tcp).await);
        }
        let accepted = TlsAcceptor::from(config).accept(TlsSocket::new(tcp, signals)).await;
        accepted.map_err(|error| failed(&error))
    };
    let stream = timeout(limit, shaken).await.map_err(|_| End::HandshakeTimeout)??;
    let (_, session) = stream.get_ref();
    let h2 = session.alpn_protocol() == Some(H2);
    let leaf = session.peer_certificates().and_then(<[_]>::first);
    let certificate = leaf.map(|leaf| client_certificate::read(leaf)).transpose().map_err(|_| End::Handshake)?;
    Ok(Secured { h2, certificate: certificate.map(Arc::new), stream: Stream::Tls(Box::new(stream)) })
}

/// Says what is spoken here, and waits until it was heard: closed before, what was not read would have it thrown away.
async fn refuse_plain(mut tcp: TcpStream) -> End {
    let mut rest = [0; 1024];
    if tcp.write_all(PLAIN).await.is_ok() && tcp.shutdown().await.is_ok() {
        while matches!(timeout(LINGER, tcp.read(&mut rest)).await, Ok(Ok(1..))) {}
    }
    End::PlainHttp
}

fn failed(error: &io::Error) -> End {
    tracing::debug!(event = "tls_handshake_failed", error = %error);
    End::Handshake
}
