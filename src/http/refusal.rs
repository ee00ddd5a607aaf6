//! Every way to say no before a call runs, and what each looks like on the wire.
//!
//! The status speaks for the connection and the session; a call of a live session fails in-band
//! instead (see `exchange::in_band`). The text is fixed: it never quotes the request.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::caller::Malformed;
use crate::exchange::gateway_error::{
    GatewayError, INVALID_PARAMS, LATER, NOT_AUDITED, SHORT_OF_MEMORY, SOON, STOPPING, TOO_FAST,
};
use crate::telemetry::label::Refusal;

use super::body::Body;
use super::quota::Over;

/// JSON-RPC 2.0 section 5.1: the bytes are no JSON.
pub const PARSE_ERROR: i32 = -32700;
/// JSON-RPC 2.0 section 5.1: the JSON is no request.
pub const INVALID_REQUEST: i32 = -32600;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No request, or one that could be read in two ways.
    Malformed(Malformed),
    /// No `Host`, several, or one that is no host (RFC 9112 section 3.2).
    HostMalformed,
    /// The target names another host than `Host` does.
    HostDisagrees,
    /// A host that is not served here.
    HostForbidden,
    /// An origin that may not call, several, or a cross-site request without one.
    OriginForbidden,
    /// More fields than `limits.header_fields`.
    TooManyFields,
    /// A header the gateway needs is malformed or repeated; the text says which.
    BadHeader(&'static str),
    /// `MCP-Protocol-Version` names a revision that is not served here.
    ProtocolVersion,
    /// Nothing is served at this path.
    NotFound,
    /// The path is served, the method is not; the value of `Allow`.
    Method(&'static str),
    /// No type of `Accept` can be given.
    NotAcceptable,
    /// The body is not said to be JSON in UTF-8.
    MediaType,
    /// The body is encoded (`Content-Encoding`).
    Encoded,
    /// The body paused longer than `limits.body_idle`.
    BodyTimeout,
    /// The body is larger than `limits.body_bytes`.
    TooLarge,
    /// The body is no JSON.
    Parse,
    /// The body is JSON but no message; the text says what is wrong.
    Invalid(&'static str),
    /// A message with a parameter that cannot be; the text says which.
    InvalidParams(&'static str),
    /// No `Mcp-Session-Id` on what is no `initialize`.
    SessionMissing,
    /// No such session here, or not this caller's.
    SessionUnknown,
    /// A `Last-Event-ID` that cannot be resumed from.
    EventId,
    /// Nothing, or nothing valid, was presented; the value of `WWW-Authenticate`.
    Unauthenticated(HeaderValue),
    /// Several credentials at a server that takes access tokens: what is wrong, and the value of `WWW-Authenticate`.
    Credentials(&'static str, HeaderValue),
    /// The caller was granted too little; the value of `WWW-Authenticate`.
    Scope(HeaderValue),
    /// An access token that cannot be judged now.
    IssuerUnavailable,
    /// The admin listener, off this machine, without `admin.token`.
    AdminToken,
    /// A rate of the client's address or of the caller is used up.
    Rate(Over),
    /// The caller has `sessions.max_per_principal` sessions.
    PrincipalSessions,
    /// There are `sessions.max` sessions and none can make room.
    Sessions,
    /// No child came free within `pool.wait`.
    PoolFull,
    /// The server failed to start too often; it is tried again after this.
    Breaker(Duration),
    /// The child did not start or did not answer the handshake.
    StartFailed,
    /// The memory budget is used up.
    Memory,
    /// `limits.requests_in_flight` requests wait for an answer.
    Overload,
    /// The caller has `limits.requests_in_flight_per_principal` requests waiting.
    PrincipalRequests,
    /// The gateway is stopping.
    Draining,
    /// The audit log is required and cannot be written.
    NotAudited,
}

impl Refused {
    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Refused::Malformed(malformed) => status_of(*malformed),
            Refused::HostMalformed
            | Refused::HostDisagrees
            | Refused::BadHeader(_)
            | Refused::Credentials(..)
            | Refused::ProtocolVersion
            | Refused::Parse
            | Refused::Invalid(_)
            | Refused::InvalidParams(_)
            | Refused::SessionMissing
            | Refused::EventId => StatusCode::BAD_REQUEST,
            Refused::Unauthenticated(_) | Refused::AdminToken => StatusCode::UNAUTHORIZED,
            Refused::HostForbidden | Refused::OriginForbidden | Refused::Scope(_) => StatusCode::FORBIDDEN,
            Refused::NotFound | Refused::SessionUnknown => StatusCode::NOT_FOUND,
            Refused::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Refused::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Refused::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Refused::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Refused::MediaType | Refused::Encoded => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Refused::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Refused::Rate(_) | Refused::PrincipalSessions | Refused::PrincipalRequests => StatusCode::TOO_MANY_REQUESTS,
            Refused::Sessions
            | Refused::PoolFull
            | Refused::Breaker(_)
            | Refused::StartFailed
            | Refused::Memory
            | Refused::Overload
            | Refused::IssuerUnavailable
            | Refused::Draining
            | Refused::NotAudited => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The code of the JSON-RPC error: the reserved ones with their own meaning, else the status,
    /// which lies outside the range JSON-RPC 2.0 section 5.1 reserves.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Refused::Parse => PARSE_ERROR,
            Refused::Invalid(_) | Refused::SessionMissing | Refused::ProtocolVersion => INVALID_REQUEST,
            Refused::InvalidParams(_) => INVALID_PARAMS,
            _ => i32::from(self.status().as_u16()),
        }
    }

    /// What the client is told.
    #[must_use]
    pub fn text(&self) -> &'static str {
        match self {
            Refused::Malformed(malformed) => text_of(*malformed),
            Refused::HostMalformed => "The request must name exactly one host",
            Refused::HostDisagrees => "The request target and the Host header disagree",
            Refused::HostForbidden => "This host name is not served here",
            Refused::OriginForbidden => "This origin may not call this server",
            Refused::TooManyFields => "The request has too many header fields",
            Refused::BadHeader(text)
            | Refused::Credentials(text, _)
            | Refused::Invalid(text)
            | Refused::InvalidParams(text) => text,
            Refused::ProtocolVersion => "This MCP-Protocol-Version is not supported",
            Refused::NotFound => "Nothing is served at this path",
            Refused::Method(_) => "This method is not served at this path",
            Refused::NotAcceptable => "Accept must allow application/json or text/event-stream",
            Refused::MediaType => "Content-Type must be application/json, in UTF-8",
            Refused::Encoded => "The body must not be encoded: leave Content-Encoding out",
            Refused::BodyTimeout => "The body did not arrive in time",
            Refused::TooLarge => "The body is too large",
            Refused::Parse => "The body is not JSON",
            Refused::SessionMissing => "Everything but initialize needs an Mcp-Session-Id header",
            Refused::SessionUnknown => "There is no such session: start again with initialize",
            Refused::EventId => "This Last-Event-ID cannot be resumed from",
            Refused::Unauthenticated(_) => "Valid credentials are needed: Authorization: Bearer",
            Refused::Scope(_) => "More scopes are needed for this: WWW-Authenticate names them",
            Refused::IssuerUnavailable => "Access tokens cannot be checked at the moment",
            Refused::AdminToken => "The operator's token is needed: Authorization: Bearer TOKEN",
            Refused::Rate(_) => TOO_FAST,
            Refused::PrincipalSessions => "This caller has too many sessions open",
            Refused::PrincipalRequests => "This caller has too many requests waiting",
            Refused::Sessions => "Too many sessions are open",
            Refused::PoolFull => "Every process of this server is in use",
            Refused::Breaker(_) => "This server fails to start and is being left alone for a while",
            Refused::StartFailed => "This server did not start",
            Refused::Memory => SHORT_OF_MEMORY,
            Refused::Overload => "Too many requests are waiting",
            Refused::Draining => STOPPING,
            Refused::NotAudited => NOT_AUDITED,
        }
    }

    /// The label of `refusals_total`; `None` is what belongs to ordinary life, like a session that
    /// is over.
    #[must_use]
    pub fn label(&self) -> Option<Refusal> {
        Some(match self {
            Refused::HostMalformed
            | Refused::HostDisagrees
            | Refused::HostForbidden
            | Refused::Malformed(Malformed::Host | Malformed::HostDisagrees) => Refusal::Host,
            Refused::OriginForbidden => Refusal::Origin,
            Refused::Malformed(_)
            | Refused::TooManyFields
            | Refused::BadHeader(_)
            | Refused::Credentials(..)
            | Refused::ProtocolVersion
            | Refused::Method(_)
            | Refused::SessionMissing
            | Refused::EventId => Refusal::Headers,
            Refused::NotAcceptable | Refused::MediaType | Refused::Encoded => Refusal::MediaType,
            Refused::BodyTimeout | Refused::Parse | Refused::Invalid(_) | Refused::InvalidParams(_) => Refusal::Parse,
            Refused::TooLarge => Refusal::TooLarge,
            Refused::Unauthenticated(_) | Refused::IssuerUnavailable | Refused::AdminToken => Refusal::Unauthenticated,
            Refused::Rate(_) => Refusal::Rate,
            Refused::Scope(_) => Refusal::Scope,
            Refused::PrincipalSessions | Refused::Sessions => Refusal::Sessions,
            Refused::PoolFull => Refusal::PoolFull,
            Refused::Breaker(_) => Refusal::Breaker,
            Refused::Memory => Refusal::Memory,
            Refused::Overload | Refused::PrincipalRequests => Refusal::Overload,
            Refused::Draining => Refusal::Draining,
            Refused::NotAudited => Refusal::Audit,
            Refused::NotFound | Refused::SessionUnknown | Refused::StartFailed => return None,
        })
    }

    /// The word of the audit log, which has one for each refusal.
    #[must_use]
    pub fn audit_reason(&self) -> &'static str {
        match self {
            Refused::SessionUnknown => "session_unknown",
            Refused::StartFailed => "start_failed",
            // RFC 6750 section 3.1: whoever showed nothing is told no error.
            Refused::Unauthenticated(challenge) if error_of(challenge) == Some("invalid_token") => "invalid_token",
            refused => refused.label().map_or("not_found", Refusal::as_str),
        }
    }

    /// The configuration key that decides this; for the log, never for the client.
    #[must_use]
    pub fn key(&self) -> Option<&'static str> {
        Some(match self {
            Refused::HostForbidden => "listen.allowed_hosts",
            Refused::OriginForbidden => "listen.allowed_origins",
            Refused::Malformed(Malformed::TargetTooLong | Malformed::HeadTooLarge) => "limits.header_bytes",
            Refused::Malformed(Malformed::Tls) => "listen.tls",
            Refused::TooManyFields | Refused::Malformed(Malformed::TooManyFields) => "limits.header_fields",
            Refused::AdminToken => "admin.token",
            Refused::IssuerUnavailable => "auth.issuers",
            Refused::Scope(_) => "auth.scopes",
            Refused::BodyTimeout => "limits.body_idle",
            Refused::TooLarge => "limits.body_bytes",
            Refused::Rate(over) => over.key,
            Refused::PrincipalSessions => "sessions.max_per_principal",
            Refused::PrincipalRequests => "limits.requests_in_flight_per_principal",
            Refused::Sessions => "sessions.max",
            Refused::PoolFull => "servers.NAME.pool",
            Refused::Breaker(_) => "servers.NAME.breaker",
            Refused::StartFailed => "servers.NAME.command",
            Refused::Memory => "limits.memory",
            Refused::Overload => "limits.requests_in_flight",
            Refused::NotAudited => "telemetry.log.audit_required",
            _ => return None,
        })
    }

    /// When the same request may succeed.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Refused::Breaker(pause) => Some(*pause),
            Refused::Rate(over) => Some(over.wait),
            Refused::PrincipalSessions
            | Refused::Sessions
            | Refused::PoolFull
            | Refused::StartFailed
            | Refused::IssuerUnavailable
            | Refused::NotAudited => Some(LATER),
            Refused::PrincipalRequests | Refused::Memory | Refused::Overload | Refused::Draining => Some(SOON),
            _ => None,
        }
    }

    /// Whether the connection must not carry another request: where the next one begins is in
    /// doubt, or bytes of this one are still on their way.
    fn closes(&self) -> bool {
        matches!(
            self,
            Refused::Malformed(_)
                | Refused::HostMalformed
                | Refused::HostDisagrees
                | Refused::TooManyFields
                | Refused::BodyTimeout
                | Refused::TooLarge
                | Refused::Draining
        )
    }

    /// The answer; for `id` see [`GatewayError::to_json`].
    #[must_use]
    pub fn into_response(self, id: Option<&[u8]>) -> Response<Body> {
        let mut response = error_response(self.status(), self.error(id), self.retry_after());
        let headers = response.headers_mut();
        if self.closes() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        match self {
            Refused::Method(allow) => {
                headers.insert(ALLOW, HeaderValue::from_static(allow));
            }
            Refused::Unauthenticated(challenge) | Refused::Credentials(_, challenge) | Refused::Scope(challenge) => {
                headers.insert(WWW_AUTHENTICATE, challenge);
            }
            Refused::AdminToken => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }

    /// The JSON-RPC error by itself.
    #[must_use]
    pub fn error(&self, id: Option<&[u8]>) -> Bytes {
        let error = GatewayError {
            code: self.code(),
            message: self.text(),
            reason: self.label().map(Refusal::as_str),
            executed: None,
            retry_after: self.retry_after(),
        };
        error.to_json(id)
    }
}

/// The error that a challenge names.
fn error_of(challenge: &HeaderValue) -> Option<&str> {
    let (_, rest) = challenge.to_str().ok()?.split_once("error=\"")?;
    rest.split('"').next()
}

fn status_of(malformed: Malformed) -> StatusCode {
    match malformed {
        Malformed::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
        Malformed::TargetTooLong => StatusCode::URI_TOO_LONG,
        Malformed::HeadTooLarge | Malformed::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        _ => StatusCode::BAD_REQUEST,
    }
}

fn text_of(malformed: Malformed) -> &'static str {
    match malformed {
        Malformed::RequestLine => "The request line is not HTTP/1.1",
        Malformed::Version => "This version of HTTP is not spoken here",
        Malformed::TargetTooLong => "The request target is too long",
        Malformed::HeadTooLarge => "The head of the request is too large",
        Malformed::TooManyFields => "The request has too many header fields",
        Malformed::Tls => "No TLS is spoken at this port",
        Malformed::LineEnd => "A line does not end with CR LF",
        Malformed::Field => "A header field is malformed",
        Malformed::Underscore => "The name of a header field passes for another with its underscore",
        Malformed::Host => "The request must name exactly one host",
        Malformed::HostDisagrees => "The request target and the Host header disagree",
        Malformed::Length => "The request must say once how long it is",
        Malformed::Coding => "The only transfer coding is chunked",
        Malformed::Content => "This request cannot have a body",
        Malformed::AfterUpgrade => "Nothing may follow a request to upgrade before its answer",
    }
}

/// An answer that carries a JSON-RPC error.
fn error_response(status: StatusCode, error: Bytes, pause: Option<Duration>) -> Response<Body> {
    let mut response = Response::new(Body::from(error));
    *response.status_mut() = status;
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(pause) = pause {
        headers.insert(RETRY_AFTER, retry_after(pause));
    }
    response
}

/// `Retry-After`: whole seconds (RFC 9110 section 10.2.3), never rounded down to "at once".
pub(super) fn retry_after(pause: Duration) -> HeaderValue {
    let seconds = pause.as_secs() + u64::from(pause.subsec_nanos() > 0);
    HeaderValue::from(seconds.max(1))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http::{HeaderValue, Response};
    use serde_json::Value;

    use crate::caller::Malformed;

    use super::{Body, INVALID_PARAMS, INVALID_REQUEST, Over, PARSE_ERROR, Refused};

    pub(crate) fn bytes(response: Response<Body>) -> Bytes {
        use http_body::Body as _;
        let mut body = response.into_body();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(&mut body).poll_frame(&mut context) {
            std::task::Poll::Ready(Some(Ok(frame))) => frame.into_data().expect("data comes first"),
            _ => Bytes::new(),
        }
    }

    fn every() -> Vec<Refused> {
        vec![
            Refused::Malformed(Malformed::RequestLine),
            Refused::Malformed(Malformed::Version),
            Refused::Malformed(Malformed::TargetTooLong),
            Refused::Malformed(Malformed::HeadTooLarge),
            Refused::HostMalformed,
            Refused::HostDisagrees,
            Refused::HostForbidden,
            Refused::OriginForbidden,
            Refused::TooManyFields,
            Refused::BadHeader("A header is bad"),
            Refused::ProtocolVersion,
            Refused::NotFound,
            Refused::Method("POST"),
            Refused::NotAcceptable,
            Refused::MediaType,
            Refused::Encoded,
            Refused::BodyTimeout,
            Refused::TooLarge,
            Refused::Parse,
            Refused::Invalid("The message is bad"),
            Refused::InvalidParams("A parameter is bad"),
            Refused::SessionMissing,
            Refused::SessionUnknown,
            Refused::EventId,
            Refused::Unauthenticated(HeaderValue::from_static("Bearer")),
            Refused::Credentials("There are two", HeaderValue::from_static("Bearer")),
            Refused::Scope(HeaderValue::from_static("Bearer")),
            Refused::IssuerUnavailable,
            Refused::AdminToken,
            Refused::Rate(Over { key: "limits.rate_per_address", wait: Duration::from_millis(1) }),
            Refused::PrincipalSessions,
            Refused::Sessions,
            Refused::PoolFull,
            Refused::Breaker(Duration::from_millis(1200)),
            Refused::StartFailed,
            Refused::Memory,
            Refused::Overload,
            Refused::PrincipalRequests,
            Refused::Draining,
            Refused::NotAudited,
        ]
    }

    /// C:B119: nobody is left without an answer to its request.
    #[test]
    fn each_is_json_with_a_code_outside_the_reserved_range_or_with_its_own_meaning() {
        for refused in every() {
            let (status, code, text) = (refused.status().as_u16(), refused.code(), refused.text());
            let error: Value = serde_json::from_slice(&bytes(refused.clone().into_response(Some(b"7"))))
                .expect("every refusal is JSON");
            assert_eq!(error["id"], 7, "{refused:?}");
            assert_eq!(error["error"]["message"], text);
            assert_eq!(error["error"]["code"], code);
            assert_eq!(error["error"]["data"]["gateway"], true);
            let own = [PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS].contains(&code) && status == 400;
            assert!(own || code == i32::from(status), "{refused:?} has code {code}");
        }
    }

    #[test]
    fn an_unknown_id_is_left_out_and_a_known_one_kept_to_the_byte() {
        let error = bytes(Refused::Parse.into_response(None));
        assert!(!String::from_utf8_lossy(&error).contains("\"id\""));
        let error = bytes(Refused::Sessions.into_response(Some(b"9007199254740993.00")));
        assert!(String::from_utf8_lossy(&error).contains(r#""id":9007199254740993.00,"#));
    }

    #[test]
    fn whoever_should_come_back_is_told_when() {
        for refused in every() {
            let overloaded = matches!(refused.status().as_u16(), 429 | 503);
            let response = refused.clone().into_response(None);
            assert_eq!(response.headers().contains_key("retry-after"), overloaded, "{refused:?}");
        }
        let response = Refused::Breaker(Duration::from_millis(1200)).into_response(None);
        assert_eq!(response.headers()["retry-after"], "2", "rounded up");
        assert!(String::from_utf8_lossy(&bytes(response)).contains(r#""retry_after_ms":1200"#));
    }

    #[test]
    fn statuses_that_need_a_header_have_it() {
        let response = Refused::Method("POST, OPTIONS").into_response(None);
        assert_eq!(
            (response.status().as_u16(), &response.headers()["allow"]),
            (405, &HeaderValue::from_static("POST, OPTIONS"))
        );
        let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
        let response = Refused::Unauthenticated(challenge.clone()).into_response(None);
        assert_eq!((response.status().as_u16(), &response.headers()["www-authenticate"]), (401, &challenge));
        assert_eq!(Refused::TooLarge.into_response(None).headers()["connection"], "close");
    }
}
