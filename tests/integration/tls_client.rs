//! TLS from the client's side: authorities and certificates made for one test, and clients over rustls.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Method, Response as HttpResponse};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::PATIENCE;
use crate::gateway::Directory;
use crate::issuer::base64url;

/// An authority and the files of what it signed.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: Directory,
}

/// A certificate and its key.
#[derive(Clone)]
pub struct Issued {
    pub cert: String,
    pub key: String,
    pub der: CertificateDer<'static>,
    pub key_der: Vec<u8>,
}

impl Issued {
    /// A server that shows it.
    pub fn server(&self) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::try_from(self.key_der.clone()).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![self.der.clone()], key).unwrap())
    }

    /// What tokens are bound to that count with it only (RFC 8705, 3.1).
    pub fn thumbprint(&self) -> String {
        base64url(Sha256::digest(&self.der))
    }
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "integration authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer, directory: Directory::new() }
    }

    /// A certificate for these names.
    pub fn issue(&self, names: &[&str]) -> Issued {
        self.issue_until(names, 2099)
    }

    /// A certificate for these names that ends with the beginning of this year.
    pub fn issue_until(&self, names: &[&str], year: i32) -> Issued {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(year, 1, 1));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    /// A client's certificate with this common name.
    pub fn issue_client(&self, name: &str) -> Issued {
        self.sign(&Self::client_params(name))
    }

    /// The same, which ends after this time.
    pub fn issue_client_for(&self, name: &str, time: Duration) -> Issued {
        let mut params = Self::client_params(name);
        params.not_after = (SystemTime::now() + time).into();
        self.sign(&params)
    }

    fn client_params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params
    }

    fn sign(&self, params: &CertificateParams) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued {
            cert: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().clone(),
            key_der: key.serialize_der(),
        }
    }

    /// Its own certificate as a file.
    pub fn file(&self) -> PathBuf {
        let path = self.directory.path().join("authority.pem");
        fs::write(&path, self.issuer.pem()).unwrap();
        path
    }

    /// Writes a pair under this name; where its two files are.
    pub fn write(&self, name: &str, issued: &Issued) -> (PathBuf, PathBuf) {
        let (cert, key) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}-key.pem")));
        fs::write(&cert, &issued.cert).unwrap();
        fs::write(&key, &issued.key).unwrap();
        (cert, key)
    }

    /// A file beside its own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `[listen.tls]` with these pairs, further lines after it.
    pub fn toml(&self, pairs: &[(&str, &Issued)], lines: &str) -> String {
        let pair = |(name, issued): &(&str, &Issued)| {
            let (cert, key) = self.write(name, issued);
            format!("{{ cert = {cert:?}, key = {key:?} }}")
        };
        let pairs: Vec<String> = pairs.iter().map(pair).collect();
        format!("[listen.tls]\ncertificates = [{}]\n{lines}\n", pairs.join(", "))
    }

    /// A client that trusts this authority, offers these protocols and shows this certificate.
    pub fn client(&self, alpn: &[&str], shown: Option<&Issued>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(issued) => {
                let key = PrivateKeyDer::try_from(issued.key_der.clone()).unwrap();
                builder.with_client_auth_cert(vec![issued.der.clone()], key).unwrap()
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// Bytes over TLS, blocking.
pub type Secure = StreamOwned<ClientConnection, TcpStream>;

/// Connects and shakes hands, asking for this name.
pub fn shake_hands(address: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> io::Result<Secure> {
    let mut tcp = TcpStream::connect_timeout(&address, PATIENCE)?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    tcp.set_write_timeout(Some(PATIENCE))?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut session = ClientConnection::new(Arc::clone(config), name).unwrap();
    while session.is_handshaking() {
        session.complete_io(&mut tcp)?;
    }
    Ok(StreamOwned::new(session, tcp))
}

/// Sends one HTTP/1.1 request and reads until the gateway closes.
pub fn exchange(stream: &mut Secure, request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof && answer.is_empty() => return Err(error),
        _ => {}
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The certificate the other side showed.
pub fn shown(stream: &Secure) -> CertificateDer<'static> {
    stream.conn.peer_certificates().unwrap()[0].clone()
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// An HTTP client on one TLS connection, of the version that was agreed upon.
pub struct Https {
    runtime: Arc<Runtime>,
    sender: Sender,
    authority: String,
    /// Whether hyper's end of the connection is there still.
    driver: tokio::task::JoinHandle<hyper::Result<()>>,
}

/// An answer of which the head was read.
pub struct Reply {
    runtime: Arc<Runtime>,
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
}

impl Https {
    /// Connects, asking for `localhost`.
    #[track_caller]
    pub fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let connector = TlsConnector::from(Arc::clone(config));
        let (sender, driver) = runtime.block_on(async {
            let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
            let stream = connector.connect(ServerName::try_from("localhost").unwrap(), tcp).await.unwrap();
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(64 * 1024)
                    .handshake(TokioIo::new(stream))
                    .await
                    .unwrap();
                (Sender::Http2(sender), tokio::spawn(connection))
            } else {
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
                (Sender::Http1(sender), tokio::spawn(connection))
            }
        });
        Self { runtime: Arc::new(runtime), sender, authority: format!("localhost:{}", address.port()), driver }
    }

    pub fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    /// Sends a request and waits for the head of its answer.
    pub fn try_send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> hyper::Result<Reply> {
        let uri = if self.is_http2() { format!("https://{}{path}", self.authority) } else { path.to_owned() };
        let mut request = http::Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(uri);
        if !self.is_http2() && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request = request.header("host", &self.authority);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let sender = &mut self.sender;
        let answer = self.runtime.block_on(async {
            let answer = async {
                match sender {
                    Sender::Http1(sender) => {
                        sender.ready().await?;
                        sender.send_request(request).await
                    }
                    Sender::Http2(sender) => {
                        sender.ready().await?;
                        sender.send_request(request).await
                    }
                }
            };
            timeout(PATIENCE, answer).await.expect("an answer comes")
        })?;
        Ok(Reply::new(Arc::clone(&self.runtime), answer))
    }

    #[track_caller]
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        self.try_send(method, path, headers, body).unwrap()
    }

    /// A POST of MCP.
    #[track_caller]
    pub fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut all = vec![("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
        all.extend_from_slice(headers);
        self.send("POST", path, &all, body)
    }

    /// Waits until the connection is over.
    #[track_caller]
    pub fn await_close(self) {
        let Self { runtime, sender, driver, .. } = self;
        runtime.block_on(async {
            let _ = timeout(PATIENCE, driver).await.expect("the connection ends");
        });
        drop(sender);
    }
}

impl Reply {
    fn new(runtime: Arc<Runtime>, answer: HttpResponse<Incoming>) -> Self {
        let (head, body) = answer.into_parts();
        Self { runtime, status: head.status.as_u16(), headers: head.headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The next piece of the body; `None` at its end, or where it breaks.
    pub fn next(&mut self) -> Option<Bytes> {
        let body = &mut self.body;
        let frame = self.runtime.block_on(async { timeout(PATIENCE, body.frame()).await.expect("a piece comes") });
        frame.and_then(Result::ok).and_then(|frame| frame.into_data().ok())
    }

    /// Reads until the text so far holds this.
    #[track_caller]
    pub fn read_until(&mut self, wanted: &str) -> String {
        let mut text = String::new();
        while !text.contains(wanted) {
            let piece = self.next().unwrap_or_else(|| panic!("the end before {wanted}: {text}"));
            text.push_str(&String::from_utf8_lossy(&piece));
        }
        text
    }

    /// The whole body.
    pub fn text(mut self) -> String {
        let mut all = Vec::new();
        while let Some(piece) = self.next() {
            all.extend_from_slice(&piece);
        }
        String::from_utf8(all).unwrap()
    }
}
