//! Cross-origin answers (Fetch standard, "CORS protocol"), for origins the guard has admitted.
//!
//! Never `*`: neither an answer that names a session nor `Authorization` in a request would be
//! covered by it, and it would speak to origins nobody listed.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ALLOW, HeaderMap, HeaderName, HeaderValue, VARY,
};
use http::{Response, StatusCode};

use super::body::Body;
use super::guard::Admitted;

/// Methods of an MCP endpoint, for `Allow`.
pub const ENDPOINT_METHODS: &str = "POST, GET, DELETE, OPTIONS";

const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
const ALLOWED_HEADERS: &str =
    "Authorization, Content-Type, Accept, Mcp-Session-Id, MCP-Protocol-Version, Last-Event-ID, Mcp-Method, Mcp-Name";
const EXPOSED_HEADERS: HeaderValue =
    HeaderValue::from_static("Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, Retry-After");
/// Two hours, the longest any browser keeps.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");
const PREFLIGHT_VARY: HeaderValue =
    HeaderValue::from_static("Origin, Access-Control-Request-Method, Access-Control-Request-Headers");
/// Parameters of a call that its client also writes into headers of this form.
const PARAMETER_PREFIX: &str = "mcp-param-";
const PARAMETERS_MAX: usize = 64;

/// The answer to `OPTIONS`, before any authentication: browsers send no credentials with it.
/// `allow` is what the path serves.
#[must_use]
pub fn answer_options(headers: &HeaderMap, admitted: &Admitted, allow: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    answer.insert(ALLOW, HeaderValue::from_static(allow));
    let Some(origin) = &admitted.origin else {
        return response;
    };
    answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    answer.insert(VARY, PREFLIGHT_VARY);
    if headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS);
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(headers));
        answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    }
    response
}

/// Lets the page that asked read an ordinary answer, errors too.
pub fn expose(answer: &mut HeaderMap, admitted: &Admitted) {
    if let Some(origin) = &admitted.origin {
        answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
        answer.append(VARY, HeaderValue::from_static("Origin"));
    }
}

/// The fixed list, and every parameter header that was asked for.
fn allowed_headers(headers: &HeaderMap) -> HeaderValue {
    let mut allowed = String::from(ALLOWED_HEADERS);
    let requested = headers
        .get_all(ACCESS_CONTROL_REQUEST_HEADERS)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| name.as_str().starts_with(PARAMETER_PREFIX))
        .take(PARAMETERS_MAX);
    for name in requested {
        allowed.push_str(", ");
        allowed.push_str(name.as_str());
    }
    HeaderValue::from_str(&allowed).expect("header names are legal in a header value")
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Request, Response};

    use super::{Admitted, Body, ENDPOINT_METHODS, answer_options, expose};

    fn preflight(requested: &'static str) -> Response<Body> {
        let request = Request::builder()
            .header("access-control-request-method", "DELETE")
            .header("access-control-request-headers", requested)
            .body(())
            .expect("the head is legal");
        answer_options(request.headers(), &admitted(), ENDPOINT_METHODS)
    }

    fn admitted() -> Admitted {
        Admitted { origin: Some(HeaderValue::from_static("https://app.example.com")) }
    }

    fn list(response: &Response<Body>, name: &str) -> Vec<String> {
        let value = response.headers()[name].to_str().expect("text").to_ascii_lowercase();
        value.split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn a_preflight_gets_all_an_mcp_client_needs() {
        let asked = "authorization, content-type, mcp-protocol-version, mcp-session-id, last-event-id, mcp-method, mcp-name, accept";
        let response = preflight(asked);
        assert_eq!(response.status(), 204);
        assert_eq!(response.headers()["access-control-allow-origin"], "https://app.example.com");
        assert_eq!(list(&response, "access-control-allow-methods"), ["get", "post", "delete"]);
        let allowed = list(&response, "access-control-allow-headers");
        assert!(asked.split(", ").all(|name| allowed.iter().any(|allowed| allowed == name)), "{allowed:?}");
        assert!(list(&response, "vary").contains(&"origin".to_owned()));
        assert!(!response.headers().contains_key("access-control-allow-credentials"));
    }

    #[test]
    fn parameters_are_echoed_and_nothing_else() {
        let allowed = list(
            &preflight("Mcp-Param-Region,x-evil , mcp-param-tier, mcp-param-\"q\""),
            "access-control-allow-headers",
        );
        assert!(allowed.contains(&"mcp-param-region".to_owned()) && allowed.contains(&"mcp-param-tier".to_owned()));
        assert!(!allowed.iter().any(|name| name.contains("evil") || name.contains('"')), "{allowed:?}");
    }

    #[test]
    fn without_an_origin_nothing_is_said_about_origins() {
        let response = answer_options(&HeaderMap::new(), &Admitted { origin: None }, "GET");
        assert_eq!((response.status().as_u16(), &response.headers()["allow"]), (204, &HeaderValue::from_static("GET")));
        assert!(!response.headers().contains_key("access-control-allow-origin"));
        let mut answer = HeaderMap::new();
        expose(&mut answer, &Admitted { origin: None });
        assert!(answer.is_empty());
    }

    #[test]
    fn an_ordinary_answer_can_be_read_with_its_session() {
        let mut answer = HeaderMap::new();
        answer.insert("vary", HeaderValue::from_static("Accept"));
        expose(&mut answer, &admitted());
        assert_eq!(answer["access-control-allow-origin"], "https://app.example.com");
        assert!(answer["access-control-expose-headers"].to_str().expect("text").contains("Mcp-Session-Id"));
        assert_eq!(answer.get_all("vary").iter().count(), 2, "what varied before still does");
    }
}
