//! What the gateway asks authorization servers: one bounded HTTP exchange at a time, over TLS or on this machine.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, HOST, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, RootCertStore};

/// Time for one exchange, from looking up the name to the last byte.
const TIME: Duration = Duration::from_secs(5);

/// Largest answer, in bytes.
const BYTES: usize = 1 << 20;

/// Why there is no answer that could be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FetchError {
    /// It is no URL that may be asked: https, or http on this machine.
    Url,
    /// Nobody answers there; why not.
    Unreachable(String),
    /// It took longer than 5 s.
    Timeout,
    /// Another status than 200; redirects are not followed.
    Status(StatusCode),
    /// More than 1 MiB.
    TooLarge,
    /// The answer is encoded (`Content-Encoding`), which was not asked for.
    Encoded,
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Url => f.write_str("only https URLs are asked, or http ones on this machine"),
            FetchError::Unreachable(why) => f.write_str(why),
            FetchError::Timeout => write!(f, "no whole answer within {} s", TIME.as_secs()),
            FetchError::Status(status) if status.is_redirection() => {
                write!(f, "status {}: redirects are not followed", status.as_u16())
            }
            FetchError::Status(status) => write!(f, "status {}", status.as_u16()),
            FetchError::TooLarge => write!(f, "the answer has more than {BYTES} bytes"),
            FetchError::Encoded => f.write_str("the answer is compressed, which was not asked for"),
        }
    }
}

impl std::error::Error for FetchError {}

/// Asks authorization servers. Each exchange has a connection of its own: they are minutes apart.
#[derive(Default)]
pub(super) struct Fetcher {
    /// Made for the first https URL: it reads the system's certificate authorities.
    tls: OnceCell<TlsConnector>,
}

impl Fetcher {
    /// Gets what stands at `url`: its headers and its bytes.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub(super) async fn get(&self, url: &str) -> Result<(HeaderMap, Bytes), FetchError> {
        let request = Request::get(url).body(Full::default()).map_err(|_| FetchError::Url)?;
        let response = self.send(request).await?;
        match response.status() {
            StatusCode::OK => {
                let (parts, body) = response.into_parts();
                Ok((parts.headers, body))
            }
            status => Err(FetchError::Status(status)),
        }
    }

    /// Sends one request and reads the whole answer, whatever its status.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub(super) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, FetchError> {
        timeout(TIME, self.exchange(request)).await.unwrap_or(Err(FetchError::Timeout))
    }

    async fn tls(&self) -> Result<&TlsConnector, FetchError> {
        let made = || async { spawn_blocking(connector).await };
        self.tls.get_or_try_init(made).await.map_err(|error| FetchError::Unreachable(error.to_string()))
    }

    async fn exchange(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Bytes>, FetchError> {
        let uri = request.uri().clone();
        let authority = uri.authority().ok_or(FetchError::Url)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(FetchError::Url),
        };
        let port = authority.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        let unreachable = |error: std::io::Error| FetchError::Unreachable(error.to_string());
        if !encrypted && !may_be_local(host) {
            return Err(FetchError::Url);
        }
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(authority.as_str()).map_err(|_| FetchError::Url)?);
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("gangway/", env!("CARGO_PKG_VERSION"))));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        *request.uri_mut() = origin_form(&uri)?;
        let stream = TcpStream::connect((host, port)).await.map_err(unreachable)?;
        if !encrypted {
            // A name may be given any address: plain HTTP does not leave this machine.
            let peer = stream.peer_addr().map_err(unreachable)?;
            return if peer.ip().to_canonical().is_loopback() {
                talk(stream, request).await
            } else {
                Err(FetchError::Url)
            };
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|_| FetchError::Url)?;
        talk(self.tls().await?.connect(name, stream).await.map_err(distrusted)?, request).await
    }
}

/// Why a handshake failed, with what an operator may do where the certificate is of an authority nobody told us of.
fn distrusted(error: std::io::Error) -> FetchError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    // The second is what another authority of the same name gives.
    use CertificateError::{BadSignature, UnknownIssuer};
    let is_unknown = matches!(inner, Some(rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)));
    let remedy = ": name the file of its authority in SSL_CERT_FILE";
    FetchError::Unreachable(format!("{error}{}", if is_unknown { remedy } else { "" }))
}

/// Trusts the certificate authorities of the system, or of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
fn connector() -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let _counts = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has the suites of TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// The longest URL that is shown, in characters.
const SHOWN: usize = 200;

/// A URL as its operator may read it: without user and query, either of which may hold a secret.
pub(super) struct ShownUrl<'a>(pub(super) &'a str);

impl fmt::Display for ShownUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uri = self.0.parse::<Uri>().unwrap_or_default();
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return f.write_str("no URL");
        };
        let host = authority.as_str().rsplit('@').next().unwrap_or_default();
        write!(f, "{:.SHOWN$}", format!("{scheme}://{host}{}", uri.path()))
    }
}

/// How long an answer may be taken for fresh, in seconds, where it says so (RFC 9111, 5.2.2.1).
pub(super) fn max_age(headers: &HeaderMap) -> Option<u64> {
    let values = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut directives = values.flat_map(|value| value.split(',')).map(str::trim);
    directives.find_map(|directive| directive.strip_prefix("max-age=")?.trim_matches('"').parse().ok())
}

fn may_be_local(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost"),
    }
}

fn origin_form(uri: &Uri) -> Result<Uri, FetchError> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    path.parse().map_err(|_| FetchError::Url)
}

async fn talk<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |error: hyper::Error| FetchError::Unreachable(error.to_string());
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let answer = async move { read(sender.send_request(request).await.map_err(broken)?).await };
    tokio::pin!(answer, connection);
    tokio::select! {
        answer = &mut answer => answer,
        // What was received before its end still waits to be read.
        _ = &mut connection => answer.await,
    }
}

async fn read(response: Response<Incoming>) -> Result<Response<Bytes>, FetchError> {
    let (parts, body) = response.into_parts();
    if parts.headers.contains_key(CONTENT_ENCODING) {
        return Err(FetchError::Encoded);
    }
    let body = Limited::new(body, BYTES).collect().await.map_err(|error| {
        match error.is::<http_body_util::LengthLimitError>() {
            true => FetchError::TooLarge,
            false => FetchError::Unreachable(error.to_string()),
        }
    })?;
    Ok(Response::from_parts(parts, body.to_bytes()))
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http::header::CACHE_CONTROL;

    use super::{FetchError, Fetcher, SHOWN, ShownUrl, max_age};

    #[tokio::test]
    async fn plain_http_does_not_leave_this_machine() {
        let fetcher = Fetcher::default();
        for url in ["http://169.254.169.254/", "http://10.0.0.1/keys", "http://example.com/", "ftp://127.0.0.1/", "/x"]
        {
            assert_eq!(fetcher.get(url).await.map(|_| ()), Err(FetchError::Url), "{url}");
        }
    }

    #[test]
    fn a_url_is_shown_without_what_may_be_secret() {
        for (url, shown) in [
            ("https://id.example:8443/keys", "https://id.example:8443/keys"),
            ("https://me:secret@id.example/keys?key=secret", "https://id.example/keys"),
            ("http://[::1]:80", "http://[::1]:80/"),
            ("/keys?secret", "no URL"),
            ("https://id.example/\nsecret", "no URL"),
        ] {
            assert_eq!(ShownUrl(url).to_string(), shown, "{url}");
        }
        let long = format!("https://id.example/{}", "x".repeat(SHOWN));
        assert_eq!(ShownUrl(&long).to_string(), long[..SHOWN]);
    }

    #[test]
    fn the_age_of_an_answer_is_read() {
        for (value, expected) in [
            ("max-age=300", Some(300)),
            ("public, max-age=\"60\", must-revalidate", Some(60)),
            ("s-maxage=10", None),
            ("no-store", None),
            ("max-age=soon", None),
        ] {
            let headers = HeaderMap::from_iter([(CACHE_CONTROL, value.parse().expect(value))]);
            assert_eq!(max_age(&headers), expected, "{value}");
        }
    }
}
