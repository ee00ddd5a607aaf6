//! The access log: one line per message, made on the hot path.
//!
//! These lines do not go through `tracing`: their fields are known, and a typed struct written
//! straight into a buffer that the thread keeps costs no look-up and no allocation.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::audit::Audit;
use super::label::{Answer, Outcome, Refusal};
use super::line::{Format, Line};
use super::loudness::Loudness;
use super::mask::mask_secrets;
use super::own_secrets::OwnSecrets;
use super::session_digest::SessionDigest;
use super::spool::Spool;
use super::timestamp;
use super::trace_id::TraceId;
use crate::caller::{Peer, Principal};
use crate::config::LogLevel;

/// Longest `client`, `rpc_id` and offending value, in characters.
const LONGEST_SHORT: usize = 64;

/// Longest `method`, `tool` and `reason`, in characters.
const LONGEST_NAME: usize = 128;

/// Longest `principal`, in characters.
const LONGEST_PRINCIPAL: usize = 128;

thread_local! {
    /// The buffer lines of this thread are made in. Taken out while in use.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What a client calls itself in `initialize`.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// `clientInfo.name`
    pub name: &'a str,
    /// `clientInfo.version`
    pub version: &'a str,
}

/// One message that came to its end. Text is borrowed as it came; it is cut and escaped here.
/// Fields that are `None`, and the counts that are zero where said so, are left out of the line.
#[derive(Clone, Copy, Debug)]
pub struct AccessLine<'a> {
    /// The node tag of this gateway.
    pub node: &'a str,
    /// The server's configured name.
    pub server: &'a str,
    /// The JSON-RPC method; empty for a response.
    pub method: &'a str,
    /// The tool of a `tools/call`.
    pub tool: Option<&'a str>,
    /// How it ended.
    pub outcome: Outcome,
    /// The HTTP status; none for a request a child made.
    pub status: Option<u16>,
    /// The code of a JSON-RPC error.
    pub rpc_code: Option<i64>,
    /// From arrival to end.
    pub total: Duration,
    /// From arrival to the write to the child.
    pub queue: Option<Duration>,
    /// From the write to the child's answer.
    pub child: Option<Duration>,
    /// Bytes of the message.
    pub in_bytes: u64,
    /// Bytes of what answered it.
    pub out_bytes: u64,
    /// How it was answered.
    pub answer: Option<Answer>,
    /// The session it belongs to.
    pub session: Option<SessionDigest>,
    /// Who sent it.
    pub principal: Option<&'a Principal>,
    /// Where it came from.
    pub client_addr: Option<Peer>,
    /// What sent it.
    pub client: Option<Client<'a>>,
    /// The session's protocol revision.
    pub protocol: Option<&'a str>,
    /// The id as it stands in the message: an integer, or a string with its quotes, which are left
    /// out of the line.
    pub rpc_id: Option<&'a str>,
    /// Messages other than the answer that its stream carried; left out if zero.
    pub stream_events: u64,
    /// How often its stream was resumed; left out if zero.
    pub resumed: u64,
    /// The trace it belongs to.
    pub trace_id: Option<TraceId>,
    /// The process that served it.
    pub child_pid: Option<u32>,
    /// Why it was refused or failed: a word, not a sentence.
    pub reason: Option<&'a str>,
}

impl<'a> AccessLine<'a> {
    /// A line with what every line has; the rest is empty.
    #[must_use]
    pub fn new(node: &'a str, server: &'a str, method: &'a str, outcome: Outcome, total: Duration) -> Self {
        AccessLine {
            node,
            server,
            method,
            tool: None,
            outcome,
            status: None,
            rpc_code: None,
            total,
            queue: None,
            child: None,
            in_bytes: 0,
            out_bytes: 0,
            answer: None,
            session: None,
            principal: None,
            client_addr: None,
            client: None,
            protocol: None,
            rpc_id: None,
            stream_events: 0,
            resumed: 0,
            trace_id: None,
            child_pid: None,
            reason: None,
        }
    }

    fn write(&self, line: &mut Line<'_>) {
        line.text("node", self.node);
        line.text("server", self.server);
        line.cut_text("method", self.method, LONGEST_NAME);
        optional(self.tool, |tool| line.cut_text("tool", tool, LONGEST_NAME));
        line.text("outcome", self.outcome.as_str());
        optional(self.status, |status| line.whole("status", u64::from(status)));
        optional(self.rpc_code, |code| line.signed("rpc_code", code));
        line.millis("ms", self.total);
        optional(self.queue, |queue| line.millis("queue_ms", queue));
        optional(self.child, |child| line.millis("child_ms", child));
        line.whole("in_bytes", self.in_bytes);
        line.whole("out_bytes", self.out_bytes);
        optional(self.answer, |answer| line.text("answer", answer.as_str()));
        optional(self.session, |session| line.text("session", session.as_str()));
        optional(self.principal, |principal| write_principal(line, principal));
        optional(self.client_addr, |address| line.peer("client_addr", address));
        optional(self.client, |client| {
            line.pair("client", (client.name, b'/', client.version), LONGEST_SHORT);
        });
        optional(self.protocol, |protocol| line.cut_text("protocol", protocol, LONGEST_SHORT));
        optional(self.rpc_id, |id| line.cut_text("rpc_id", without_quotes(id), LONGEST_SHORT));
        optional((self.stream_events > 0).then_some(self.stream_events), |events| line.whole("stream_events", events));
        optional((self.resumed > 0).then_some(self.resumed), |resumed| line.whole("resumed", resumed));
        optional(self.trace_id, |id| line.shown_whole("trace_id", &id));
        optional(self.child_pid, |pid| line.whole("child_pid", u64::from(pid)));
        optional(self.reason, |reason| line.cut_text("reason", reason, LONGEST_NAME));
    }
}

/// A request that was refused before its message was read.
#[derive(Clone, Copy, Debug)]
pub struct RefusedLine<'a> {
    /// The node tag of this gateway.
    pub node: &'a str,
    /// The server it was for, where the path said so.
    pub server: Option<&'a str>,
    /// The HTTP status of the answer.
    pub status: u16,
    /// Why.
    pub reason: Refusal,
    /// The configuration key that would change it, such as `listen.allowed_hosts`.
    pub key: Option<&'a str>,
    /// What was refused, such as the host name; a password in it is masked.
    pub value: Option<&'a str>,
    /// Who asked, where that was known by then.
    pub principal: Option<&'a Principal>,
    /// Where it came from.
    pub client_addr: Option<Peer>,
}

impl RefusedLine<'_> {
    fn write(&self, line: &mut Line<'_>) {
        line.text("node", self.node);
        optional(self.server, |server| line.text("server", server));
        line.whole("status", u64::from(self.status));
        optional(self.principal, |principal| write_principal(line, principal));
        optional(self.client_addr, |address| line.peer("client_addr", address));
        line.text("reason", self.reason.as_str());
        optional(self.key, |key| line.text("key", key));
        optional(self.value, |value| line.cut_text("value", &mask_secrets(value), LONGEST_SHORT));
    }
}

/// Where access lines go. Clones share one log.
///
/// `log.access` decides first, then `log.level`: what the gateway could not serve is a warning, all
/// else is information.
#[derive(Clone)]
pub struct AccessLog {
    pub(super) spool: Arc<Spool>,
    pub(super) format: Format,
    pub(super) loudness: Arc<Loudness>,
    pub(super) secrets: Arc<OwnSecrets>,
    pub(super) audit: Audit,
}

impl AccessLog {
    /// One that nobody writes anywhere.
    #[cfg(test)]
    pub(crate) fn unheard() -> AccessLog {
        use crate::config::{Access, LogFormat, Metrics, Telemetry};
        let metrics = Metrics { tools: false, max_tools: 0 };
        let config =
            Telemetry { level: LogLevel::Error, format: LogFormat::Json, access: Access::Off, audit: None, metrics };
        let (spool, loudness) = (Arc::new(Spool::new()), Arc::new(Loudness::new(&config)));
        AccessLog {
            spool,
            format: Format::Json,
            loudness,
            secrets: Arc::default(),
            audit: Audit::open(None).expect("there is none to open"),
        }
    }

    /// How much is logged, here and by everybody else.
    #[must_use]
    pub fn loudness(&self) -> &Loudness {
        &self.loudness
    }

    /// What no event may hold.
    #[must_use]
    pub fn secrets(&self) -> &OwnSecrets {
        &self.secrets
    }

    /// The audit log beside it.
    #[must_use]
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Lines dropped so far, of this log and of the events beside them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.spool.dropped()
    }

    /// Whether a message with this outcome gets a line, so that its fields need gathering.
    #[must_use]
    pub fn wants(&self, outcome: Outcome) -> bool {
        let failed = outcome != Outcome::Ok;
        self.admits(failed, level_of(outcome))
    }

    /// Logs a message at its end.
    pub fn rpc(&self, fields: &AccessLine<'_>) {
        if self.wants(fields.outcome) {
            self.line(level_of(fields.outcome), "rpc", |line| fields.write(line));
        }
    }

    /// Logs a refusal.
    pub fn refused(&self, fields: &RefusedLine<'_>) {
        if self.admits(true, LogLevel::Warn) {
            self.line(LogLevel::Warn, "refused", |line| fields.write(line));
        }
    }

    fn admits(&self, failed: bool, level: LogLevel) -> bool {
        self.loudness.admits(failed) && level <= self.loudness.level()
    }

    fn line(&self, level: LogLevel, event: &str, write: impl FnOnce(&mut Line<'_>)) {
        let mut buffer = BUFFER.take();
        buffer.clear();
        let mut line = Line::begin(&mut buffer, self.format, timestamp::now(), level, event);
        write(&mut line);
        line.end();
        self.spool.push(&buffer);
        BUFFER.set(buffer);
    }
}

fn level_of(outcome: Outcome) -> LogLevel {
    match outcome {
        Outcome::Refused | Outcome::Timeout | Outcome::ChildGone => LogLevel::Warn,
        Outcome::Ok | Outcome::ToolError | Outcome::RpcError | Outcome::Cancelled | Outcome::ClientGone => {
            LogLevel::Info
        }
    }
}

pub(super) fn optional<T>(value: Option<T>, write: impl FnOnce(T)) {
    if let Some(value) = value {
        write(value);
    }
}

fn write_principal(line: &mut Line<'_>, principal: &Principal) {
    line.shown("principal", principal, LONGEST_PRINCIPAL);
}

/// The inside of a JSON string, or the literal itself.
pub(super) fn without_quotes(id: &str) -> &str {
    id.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(id)
}

#[cfg(test)]
#[path = "access_test.rs"]
mod tests;
