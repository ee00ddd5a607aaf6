//! Protected resource metadata (RFC 9728 section 3): for everybody, from any page, and kept for a while.

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW, CACHE_CONTROL,
    CONTENT_TYPE,
};
use http::{HeaderValue, Method, Response, StatusCode};

use crate::http::body::Body;
use crate::http::refusal::Refused;

const METHODS: &str = "GET, HEAD, OPTIONS";

/// Long enough that a client asks once in an authorization, short enough that a change is soon seen.
const CACHED: HeaderValue = HeaderValue::from_static("public, max-age=300");

/// Answers a request for the document. It says nothing that is not public, and no cookie or key matters to it, so that
/// every page may read it.
pub(super) fn answer(method: &Method, document: &Bytes) -> Result<Response<Body>, Refused> {
    let mut response = match *method {
        Method::OPTIONS => {
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::NO_CONTENT;
            let headers = response.headers_mut();
            headers.insert(ALLOW, HeaderValue::from_static(METHODS));
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD"));
            // Clients name the revision they speak, so that browsers ask first.
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*"));
            response
        }
        Method::GET | Method::HEAD => {
            let mut response = Response::new(Body::from(document.clone()));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(CACHE_CONTROL, CACHED);
            response
        }
        _ => return Err(Refused::Method(METHODS)),
    };
    response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    Ok(response)
}
