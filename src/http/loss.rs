//! How a call of a live session fails: inside the answer, not as a status.
//!
//! One 503 on a call ends the whole connection of common clients, and proxies repeat calls that
//! failed with a 5xx. So the error travels in a 200, and `data` says whether the call may have run.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::body::Body;
use super::refusal::{error_response, json_rpc_error};

/// Why a call was refused or lost; `data.reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Too much waits for the child already.
    Busy,
    /// The caller has too much under way.
    Rate,
    /// The memory budget is used up.
    Memory,
    /// The gateway is stopping.
    Draining,
    /// The server fails to start and is left alone for a while.
    Breaker,
    /// The child ended before it answered.
    ChildGone,
    /// The child did not answer in time.
    Timeout,
    /// The answer is larger than allowed.
    TooLarge,
    /// The child's answer is no message.
    BadChildLine,
}

/// Whether a call that failed may have had its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Executed {
    /// It never reached the child: repeating it is safe.
    No,
    /// It may have.
    Maybe,
}

impl Executed {
    /// The text in `data.executed`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Executed::No => "no",
            Executed::Maybe => "maybe",
        }
    }
}

impl Reason {
    /// Every reason.
    pub const ALL: [Reason; 9] = [
        Reason::Busy,
        Reason::Rate,
        Reason::Memory,
        Reason::Draining,
        Reason::Breaker,
        Reason::ChildGone,
        Reason::Timeout,
        Reason::TooLarge,
        Reason::BadChildLine,
    ];

    /// The text in `data.reason` and in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Busy => "busy",
            Reason::Rate => "rate",
            Reason::Memory => "memory",
            Reason::Draining => "draining",
            Reason::Breaker => "breaker",
            Reason::ChildGone => "child_gone",
            Reason::Timeout => "timeout",
            Reason::TooLarge => "too_large",
            Reason::BadChildLine => "bad_child_line",
        }
    }

    /// The status that means the same; also the code of the JSON-RPC error.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Reason::Busy | Reason::Memory | Reason::Draining | Reason::Breaker => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Reason::Rate => StatusCode::TOO_MANY_REQUESTS,
            Reason::ChildGone | Reason::BadChildLine => StatusCode::BAD_GATEWAY,
            Reason::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Reason::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Reason::Busy => "Too much is waiting for this server",
            Reason::Rate => "This caller has too many requests waiting",
            Reason::Memory => "The gateway is short of memory",
            Reason::Draining => "The gateway is stopping",
            Reason::Breaker => "This server fails to start and is being left alone for a while",
            Reason::ChildGone => "The server ended before it answered",
            Reason::Timeout => "The server did not answer in time",
            Reason::TooLarge => "The answer is too large",
            Reason::BadChildLine => "The server answered with something that is no message",
        }
    }
}

/// The failure of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Why.
    pub reason: Reason,
    /// Whether it may have run.
    pub executed: Executed,
    /// When the same call may succeed.
    pub retry_after: Option<Duration>,
}

impl Loss {
    /// The JSON-RPC error for the call with `id`, which is JSON as the client wrote it.
    #[must_use]
    pub fn in_band(&self, id: &[u8]) -> Bytes {
        let (reason, executed) = (self.reason.as_str(), self.executed.as_str());
        let retry = self
            .retry_after
            .map(|pause| format!(r#","retry_after_ms":{}"#, pause.as_millis()))
            .unwrap_or_default();
        let data =
            format!(r#"{{"gateway":true,"reason":"{reason}","executed":"{executed}"{retry}}}"#);
        let code = i32::from(self.reason.status().as_u16());
        json_rpc_error(Some(id), code, self.reason.text(), &data)
    }

    /// The answer where `strict_status` asks for a status instead; the error is the same.
    #[must_use]
    pub fn strict(&self, id: &[u8]) -> Response<Body> {
        let status = self.reason.status();
        let comes_back = matches!(
            status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        );
        let retry_after = self
            .retry_after
            .or(comes_back.then_some(Duration::from_secs(1)));
        error_response(status, self.in_band(id), retry_after)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, from_slice};

    use super::{Executed, Loss, Reason};

    #[test]
    fn the_error_says_what_a_client_needs() {
        for reason in Reason::ALL {
            let loss = Loss {
                reason,
                executed: Executed::Maybe,
                retry_after: None,
            };
            let error: Value = from_slice(&loss.in_band(br#""a\"b""#)).expect("it is JSON");
            assert_eq!(error["id"], "a\"b");
            assert_eq!(error["error"]["code"], reason.status().as_u16());
            let data = &error["error"]["data"];
            assert_eq!(data["gateway"], true);
            assert_eq!(
                (&data["reason"], &data["executed"]),
                (&reason.as_str().into(), &"maybe".into())
            );
            assert!(data.get("retry_after_ms").is_none());
        }
    }

    #[test]
    fn a_pause_is_told_in_both_forms() {
        let retry_after = Some(Duration::from_millis(2500));
        let loss = Loss {
            reason: Reason::Busy,
            executed: Executed::No,
            retry_after,
        };
        let error: Value = from_slice(&loss.in_band(b"1")).expect("it is JSON");
        assert_eq!(error["error"]["data"]["retry_after_ms"], 2500);
        let response = loss.strict(b"1");
        assert_eq!(
            (
                response.status().as_u16(),
                response.headers()["retry-after"].as_bytes()
            ),
            (503, b"3".as_slice())
        );
        let gone = Loss {
            reason: Reason::ChildGone,
            executed: Executed::Maybe,
            retry_after: None,
        };
        assert!(!gone.strict(b"1").headers().contains_key("retry-after"));
    }
}
