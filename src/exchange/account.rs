//! What is counted and logged about a message, at its end.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::caller::Peer;
use crate::exchange::capacity::Permit;
use crate::exchange::post::{Delivered, Reply, Trouble};
use crate::exchange::session::Session;
use crate::mcp::ids::Id;
use crate::mcp::message::Message;
use crate::mcp::revision::Revision;
use crate::telemetry::label::{Answer, Method, Outcome};
use crate::telemetry::{AccessLine, AccessLog, CallEnd, ServerMetrics, TraceId};

/// Where the messages of one server are counted and logged.
pub struct Accounts {
    /// The access log.
    pub log: AccessLog,
    /// The node tag.
    pub node: Arc<str>,
    /// The server's name.
    pub server: Arc<str>,
    /// The server's numbers.
    pub metrics: Arc<ServerMetrics>,
    /// Whether the gateway's own answers become HTTP statuses.
    pub strict_status: bool,
}

/// Bytes that are kept of a method or a tool's name: more than any that is known has, and than a log
/// line shows. The text it stood in is not held back by the name.
const NAME_KEPT: usize = 256;

/// A method or a tool's name as it is kept for logs and numbers.
pub(super) fn kept(name: &str) -> Box<str> {
    name[..name.floor_char_boundary(NAME_KEPT)].into()
}

/// One request on its way.
pub struct Account {
    started: Instant,
    sent: Option<Instant>,
    method: Cow<'static, str>,
    tool: Option<Box<str>>,
    in_bytes: usize,
    peer: Peer,
    trace: Option<TraceId>,
    events: u64,
    end: Option<End>,
    permit: Option<Permit>,
}

struct End {
    at: Instant,
    outcome: Outcome,
    rpc_code: Option<i64>,
    out_bytes: usize,
    trouble: Option<Trouble>,
}

impl Account {
    /// A request that arrived at `started`, holding its place among those in flight.
    #[must_use]
    pub fn new(message: &Message, peer: Peer, started: Instant, permit: Option<Permit>) -> Account {
        let fields = message.fields();
        let tool = (message.calls("tools/call")).then(|| message.string(fields.name)).flatten();
        Account {
            started,
            sent: None,
            method: named(message.method()),
            tool: tool.map(|tool| kept(&tool)),
            in_bytes: message.text().len(),
            peer,
            trace: None,
            events: 0,
            end: None,
            permit,
        }
    }

    /// The same, as a part of this trace.
    #[must_use]
    pub fn in_trace(self, trace: Option<TraceId>) -> Account {
        Account { trace, ..self }
    }

    /// When it arrived.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Whether the child may have seen it.
    pub(super) fn was_sent(&self) -> bool {
        self.sent.is_some()
    }

    pub(super) fn method(&self) -> &str {
        &self.method
    }

    pub(super) fn tool(&self) -> Option<&str> {
        self.tool.as_deref()
    }

    /// Where it came from.
    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether it is the handshake.
    #[must_use]
    pub fn is_initialize(&self) -> bool {
        self.method == "initialize"
    }

    /// It is on its way to the child, now.
    pub fn sent(&mut self) -> Instant {
        *self.sent.insert(Instant::now())
    }

    /// How long the child has had it.
    #[must_use]
    pub fn child_time(&self) -> Duration {
        self.sent.map_or(Duration::ZERO, |sent| sent.elapsed())
    }

    /// So many messages went out on its stream.
    pub fn count_events(&mut self, events: u64) {
        self.events += events;
    }

    /// It got this answer, which has its place from here on.
    pub fn answered(&mut self, reply: &mut Reply) {
        reply.permit = self.permit.take();
        self.end = Some(End {
            at: Instant::now(),
            outcome: reply.outcome,
            rpc_code: reply.rpc_code,
            out_bytes: reply.payload.len(),
            trouble: reply.trouble,
        });
    }

    /// The answer went out, or had nowhere to go: counts and logs.
    pub fn delivered(&self, delivered: Delivered, id: &Id, session: &Session) {
        let Some(end) = &self.end else { return };
        let accounts = session.accounts();
        let outcome = if delivered == Delivered::Lost { Outcome::ClientGone } else { end.outcome };
        let total = end.at.duration_since(self.started);
        let queue = self.sent.map_or(total, |sent| sent.duration_since(self.started));
        let child = self.sent.map(|sent| end.at.duration_since(sent));
        let tool = self.tool.as_deref();
        accounts.metrics.call_ended(&CallEnd { method: &self.method, tool, outcome, total, queue, child });
        if !accounts.log.wants(outcome) {
            return;
        }
        let status = match (delivered, end.trouble) {
            (Delivered::Json, Some(trouble)) if accounts.strict_status || trouble.always => Some(trouble.status),
            (Delivered::Lost, _) => None,
            _ => Some(200),
        };
        accounts.log.rpc(&AccessLine {
            tool,
            status,
            rpc_code: end.rpc_code,
            queue: Some(queue),
            child,
            in_bytes: self.in_bytes as u64,
            out_bytes: end.out_bytes as u64,
            answer: match delivered {
                Delivered::Json => Some(Answer::Json),
                Delivered::Stream { .. } => Some(Answer::Sse),
                Delivered::Lost => None,
            },
            session: Some(session.digest()),
            principal: Some(session.principal()),
            client_addr: Some(self.peer),
            client: session.client(),
            protocol: session.revision().map(Revision::name),
            rpc_id: std::str::from_utf8(id.raw()).ok(),
            stream_events: self.events,
            resumed: match delivered {
                Delivered::Stream { resumed } => resumed,
                Delivered::Json | Delivered::Lost => 0,
            },
            trace_id: self.trace,
            child_pid: session.child_pid(),
            reason: end.trouble.map(|trouble| trouble.reason),
            ..AccessLine::new(&accounts.node, &accounts.server, &self.method, outcome, total)
        });
    }
}

/// A method's name, without a copy where it is one of the protocol's.
fn named(method: &str) -> Cow<'static, str> {
    Method::from_text(method)
        .map_or_else(|| Cow::Owned(kept(method).into_string()), |known| Cow::Borrowed(known.as_str()))
}

impl Accounts {
    /// Logs a notification or response of a client's that was answered 202.
    pub fn accepted(
        &self,
        message: &Message,
        session: &Session,
        (peer, trace_id): (Peer, Option<TraceId>),
        took: Duration,
        outcome: Outcome,
    ) {
        if !self.log.wants(outcome) {
            return;
        }
        self.log.rpc(&AccessLine {
            status: Some(202),
            in_bytes: message.text().len() as u64,
            answer: Some(Answer::Accepted),
            session: Some(session.digest()),
            principal: Some(session.principal()),
            client_addr: Some(peer),
            trace_id,
            client: session.client(),
            protocol: session.revision().map(Revision::name),
            child_pid: session.child_pid(),
            ..AccessLine::new(&self.node, &self.server, message.method(), outcome, took)
        });
    }

    /// Logs a request of a child's at its end.
    pub fn asked(&self, id: &Id, method: &str, session: &Session, took: Duration, outcome: Outcome) {
        if !self.log.wants(outcome) {
            return;
        }
        self.log.rpc(&AccessLine {
            session: Some(session.digest()),
            principal: Some(session.principal()),
            client: session.client(),
            protocol: session.revision().map(Revision::name),
            rpc_id: std::str::from_utf8(id.raw()).ok(),
            child_pid: session.child_pid(),
            ..AccessLine::new(&self.node, &self.server, method, outcome, took)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, NAME_KEPT};
    use crate::caller::Peer;
    use crate::mcp::message::Message;
    use crate::mcp::scan::Author;
    use bytes::Bytes;
    use std::time::Instant;

    #[test]
    fn keeps_the_beginning_of_a_long_name() {
        let long = "é".repeat(10_000);
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{long}"}}}}"#);
        let message = Message::parse(Bytes::from(text), Author::Client).expect("a call");
        let account = Account::new(&message, Peer::Local, Instant::now(), None);
        assert_eq!(account.tool.as_deref().map(str::len), Some(NAME_KEPT));
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x{long}"}}"#);
        let message = Message::parse(Bytes::from(text), Author::Client).expect("a request");
        let account = Account::new(&message, Peer::Local, Instant::now(), None);
        assert_eq!(account.method.len(), NAME_KEPT - 1, "cut between two characters");
    }
}
