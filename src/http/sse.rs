//! The small pieces of an event stream that are no message (WHATWG HTML, section 9.2.5).

use std::time::Duration;

use bytes::Bytes;

/// A comment on its own, which keeps an idle stream alive and carries no id.
pub const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// How soon to come back after the connection ends; no event, so no client sees a message.
#[must_use]
pub fn retry(pause: Duration) -> Bytes {
    Bytes::from(format!("retry: {}\n\n", pause.as_millis()))
}

/// The first event of HTTP+SSE (2024-11-05): where to post. `uri` is one of ours.
#[must_use]
pub fn endpoint(uri: &str) -> Bytes {
    debug_assert!(!uri.contains(['\r', '\n']), "a URI has no line breaks");
    Bytes::from(format!("event: endpoint\ndata: {uri}\n\n"))
}
