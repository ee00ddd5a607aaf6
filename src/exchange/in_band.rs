//! Answers the gateway makes up for a live session's call: JSON-RPC errors under the caller's id.
//!
//! Their codes are HTTP's numbers, outside the range JSON-RPC reserves, but for what JSON-RPC has a
//! code for; `data` says that the gateway speaks, why, and whether the child may have acted.

use std::time::Duration;

use crate::exchange::gateway_error::{
    BAD_TOKEN, GatewayError, INVALID_PARAMS, LATER, NOT_AUDITED, SHORT_OF_MEMORY, SOON, STOPPING,
};
use crate::exchange::post::{Reply, Trouble};
use crate::mcp::ids::Id;
use crate::mcp::payload::Payload;
use crate::telemetry::label::{Outcome, Refusal};

/// Why a call has no answer of its child's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The queue to the child is full.
    Full,
    /// Too much is in flight.
    Busy,
    /// Memory is short.
    Memory,
    /// The gateway is draining.
    Draining {
        /// Whether the child may have seen the call: its time to end was over.
        sent: bool,
    },
    /// The child is gone.
    ChildGone {
        /// Whether it may have seen the call.
        sent: bool,
    },
    /// One of the clocks ran out.
    Timeout {
        /// Whether the child may have seen the call.
        sent: bool,
    },
    /// The result was longer than `line_bytes`.
    TooLarge,
    /// The line that held the result was no message.
    BadChildLine,
    /// The client took the call back.
    Cancelled {
        /// Whether the child may have seen the call.
        sent: bool,
    },
    /// The session ended.
    SessionEnded {
        /// Whether the child may have seen the call.
        sent: bool,
    },
    /// The child answered `initialize` with a revision that has no sessions.
    BadRevision,
    /// The progress token is none.
    BadToken,
    /// It calls a tool that is not there for clients.
    UnknownTool,
    /// Its entry in the audit log, which is required, cannot be written.
    NotAudited {
        /// Whether the child may have seen the call.
        sent: bool,
    },
}

/// What is said, and as which HTTP status it could be said.
struct Words {
    status: u16,
    reason: &'static str,
    executed: &'static str,
    message: &'static str,
    retry_after: Option<Duration>,
}

/// Whether the child may have acted on what it may have seen.
fn executed(sent: bool) -> &'static str {
    if sent { "maybe" } else { "no" }
}

impl Cause {
    fn words(self) -> Words {
        let words =
            |status, reason, executed, message, retry_after| Words { status, reason, executed, message, retry_after };
        match self {
            Cause::Full | Cause::Busy => words(503, "busy", "no", "The server is busy; try again.", Some(SOON)),
            Cause::Memory => words(503, Refusal::Memory.as_str(), "no", SHORT_OF_MEMORY, Some(LATER)),
            Cause::Draining { sent: false } => words(503, Refusal::Draining.as_str(), "no", STOPPING, Some(SOON)),
            Cause::Draining { sent: true } => {
                words(503, Refusal::Draining.as_str(), "maybe", "The gateway shut down during the call.", None)
            }
            Cause::ChildGone { sent: false } => words(502, "child_gone", "no", "The server ended.", None),
            Cause::ChildGone { sent: true } => {
                words(502, "child_gone", "maybe", "The server ended during the call.", None)
            }
            Cause::Timeout { sent } => {
                words(504, "timeout", executed(sent), "The server did not answer in time.", None)
            }
            Cause::TooLarge => words(
                413,
                Refusal::TooLarge.as_str(),
                "maybe",
                "The result is larger than the gateway passes on.",
                None,
            ),
            Cause::BadChildLine => words(502, "bad_child_line", "maybe", "The server's answer was not valid.", None),
            Cause::Cancelled { sent } => words(499, "cancelled", executed(sent), "The call was cancelled.", None),
            Cause::SessionEnded { sent } => {
                words(502, "child_gone", executed(sent), "The session ended during the call.", None)
            }
            Cause::BadRevision => words(
                502,
                "bad_child_line",
                "no",
                "The server answered with a protocol revision the gateway does not speak.",
                None,
            ),
            // A server answers a call of a tool it does not have; so no status tells the two apart.
            Cause::UnknownTool => words(200, "unknown_tool", "no", "Unknown tool", None),
            Cause::NotAudited { sent } => {
                words(503, Refusal::Audit.as_str(), executed(sent), NOT_AUDITED, Some(LATER).filter(|_| !sent))
            }
            Cause::BadToken => words(400, Refusal::Parse.as_str(), "no", BAD_TOKEN, None),
        }
    }

    fn outcome(self) -> Outcome {
        match self {
            Cause::Full
            | Cause::Busy
            | Cause::Memory
            | Cause::Draining { sent: false }
            | Cause::BadToken
            | Cause::UnknownTool
            | Cause::NotAudited { .. } => Outcome::Refused,
            Cause::ChildGone { .. } => Outcome::ChildGone,
            Cause::Timeout { .. } => Outcome::Timeout,
            Cause::TooLarge | Cause::BadChildLine | Cause::BadRevision => Outcome::RpcError,
            Cause::Cancelled { .. } | Cause::SessionEnded { .. } | Cause::Draining { sent: true } => Outcome::Cancelled,
        }
    }

    /// Under which reason it counts as a refusal, if it is one.
    #[must_use]
    pub fn refusal(self) -> Option<Refusal> {
        match self {
            Cause::Full => Some(Refusal::QueueFull),
            Cause::Busy => Some(Refusal::Overload),
            Cause::Memory => Some(Refusal::Memory),
            Cause::Draining { sent: false } => Some(Refusal::Draining),
            Cause::BadToken => Some(Refusal::Parse),
            Cause::NotAudited { .. } => Some(Refusal::Audit),
            _ => None,
        }
    }

    /// The response for the call `id`.
    #[must_use]
    pub fn reply(self, id: &Id) -> Reply {
        let Words { status, reason, executed, message, retry_after } = self.words();
        let is_params = matches!(self, Cause::BadToken | Cause::UnknownTool);
        let code = if is_params { INVALID_PARAMS } else { i32::from(status) };
        let error = GatewayError { code, message, reason: Some(reason), executed: Some(executed), retry_after };
        Reply {
            payload: Payload::whole(error.to_json(Some(id.raw()))),
            outcome: self.outcome(),
            rpc_code: Some(code.into()),
            trouble: Some(Trouble { status, reason, retry_after, always: false }),
            permit: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cause;
    use crate::mcp::ids::Id;

    #[test]
    fn says_what_happened_under_the_callers_id() {
        let id = Id::parse(b"\"a\\\"b\"").expect("id");
        let causes = [
            Cause::Full,
            Cause::Busy,
            Cause::Memory,
            Cause::Draining { sent: false },
            Cause::Draining { sent: true },
            Cause::ChildGone { sent: false },
            Cause::ChildGone { sent: true },
            Cause::Timeout { sent: false },
            Cause::Timeout { sent: true },
            Cause::TooLarge,
            Cause::BadChildLine,
            Cause::Cancelled { sent: true },
            Cause::SessionEnded { sent: true },
            Cause::BadRevision,
            Cause::BadToken,
            Cause::UnknownTool,
            Cause::NotAudited { sent: false },
            Cause::NotAudited { sent: true },
        ];
        for cause in causes {
            let value: serde_json::Value = serde_json::from_slice(&cause.reply(&id).payload.to_bytes()).expect("json");
            assert_eq!(value["id"], "a\"b");
            let code = value["error"]["code"].as_i64().expect("a code");
            assert_eq!((-32768..=-32000).contains(&code), matches!(cause, Cause::BadToken | Cause::UnknownTool));
            assert_eq!(value["error"]["data"]["gateway"], true);
            assert!(value["error"]["data"]["executed"] == "no" || value["error"]["data"]["executed"] == "maybe");
        }
    }
}
