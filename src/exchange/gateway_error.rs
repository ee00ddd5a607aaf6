//! What the gateway says in its own name: one JSON-RPC error, whether it refuses a request by its
//! HTTP status or fails a call of a live session in-band.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

/// JSON-RPC 2.0 section 5.1: the parameters are not what the method takes.
pub const INVALID_PARAMS: i32 = -32602;

/// When to come back, where nothing better is known.
pub const SOON: Duration = Duration::from_secs(1);
/// The same, where something has to come free first, or a process has to be replaced.
pub const LATER: Duration = Duration::from_secs(5);

/// Said of a new session, a body and a call alike: the memory budget is spent.
pub const SHORT_OF_MEMORY: &str = "The gateway is short of memory; try again later.";
/// Said of a new session and a call alike: the gateway is draining.
pub const STOPPING: &str = "The gateway is shutting down; try again.";
/// Said of a new session and a call alike: what cannot be written down is not done.
pub const NOT_AUDITED: &str = "The gateway cannot keep its records; try again later.";
/// Said of `initialize` and a call alike.
pub const BAD_TOKEN: &str = "A progress token is a string or an integer, up to 256 characters.";

/// One error object (JSON-RPC 2.0 section 5.1), whose `data` tells that the gateway speaks, and why.
pub struct GatewayError {
    /// One of the reserved codes with its own meaning, or an HTTP status, which lies outside the
    /// range that is reserved.
    pub code: i32,
    /// A fixed sentence of ours, which needs no escaping: it never quotes a request or a child.
    pub message: &'static str,
    /// `data.reason`, a word that metrics and the log use too.
    pub reason: Option<&'static str>,
    /// `data.executed`: whether the child may have acted. `None` where there was no call.
    pub executed: Option<&'static str>,
    /// `data.retry_after_ms`
    pub retry_after: Option<Duration>,
}

impl GatewayError {
    /// The whole response. `id` is the request's id as it stands in its JSON; without one the
    /// member is left out (Streamable HTTP, "Sending Messages to the Server", item 4), never null.
    #[must_use]
    pub fn to_json(&self, id: Option<&[u8]>) -> Bytes {
        let plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
        debug_assert!(self.message.bytes().all(plain), "{}", self.message);
        let mut text = BytesMut::with_capacity(192 + self.message.len() + id.map_or(0, <[u8]>::len));
        text.put_slice(br#"{"jsonrpc":"2.0","#);
        if let Some(id) = id {
            text.put_slice(br#""id":"#);
            text.put_slice(id);
            text.put_u8(b',');
        }
        let GatewayError { code, message, .. } = self;
        text.put_slice(format!(r#""error":{{"code":{code},"message":"{message}","data":{{"gateway":true"#).as_bytes());
        for (name, word) in [("reason", self.reason), ("executed", self.executed)] {
            if let Some(word) = word {
                text.put_slice(format!(r#","{name}":"{word}""#).as_bytes());
            }
        }
        if let Some(pause) = self.retry_after {
            text.put_slice(format!(r#","retry_after_ms":{}"#, pause.as_millis()).as_bytes());
        }
        text.put_slice(b"}}}");
        text.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::{GatewayError, LATER};

    #[test]
    fn says_what_is_known_and_nothing_else() {
        let bare = GatewayError { code: -32700, message: "No.", reason: None, executed: None, retry_after: None };
        let text = r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"No.","data":{"gateway":true}}}"#;
        assert_eq!(bare.to_json(None), text);
        let full = GatewayError { reason: Some("busy"), executed: Some("no"), retry_after: Some(LATER), ..bare };
        let text = concat!(
            r#"{"jsonrpc":"2.0","id":"a\u0062","error":{"code":-32700,"message":"No.","data":"#,
            r#"{"gateway":true,"reason":"busy","executed":"no","retry_after_ms":5000}}}"#
        );
        assert_eq!(full.to_json(Some(br#""a\u0062""#)), text);
    }
}
