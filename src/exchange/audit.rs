//! What sessions and their calls leave in the audit log.

use crate::caller::Peer;
use crate::exchange::account::{Account, kept};
use crate::exchange::in_band::Cause;
use crate::exchange::post::Reply;
use crate::exchange::session::Session;
use crate::mcp::ids::Id;
use crate::mcp::message::Message;
use crate::telemetry::label::SessionEnd;
use crate::telemetry::{AuditEntry, AuditEvent, NotAudited};

/// What a request asks for, kept for the entry about its refusal.
#[derive(Debug)]
pub struct Asked {
    /// The method.
    pub method: Box<str>,
    /// The tool of a `tools/call`.
    pub tool: Option<Box<str>>,
}

impl Asked {
    /// What this message asks for.
    #[must_use]
    pub fn of(message: &Message) -> Asked {
        let tool = message.calls("tools/call").then(|| message.string(message.fields().name)).flatten();
        Asked { method: kept(message.method()), tool: tool.map(|tool| kept(&tool)) }
    }
}

impl Session {
    /// Writes the entry of a call that is about to be answered with `reply`. Where it must be written and cannot be, that
    /// answer is kept back and another one given.
    pub(super) fn audit_call(&self, account: &Account, id: &Id, reply: &Reply) -> Option<Reply> {
        let audit = self.accounts().log.audit();
        if !audit.is_on() {
            return None;
        }
        let entry = AuditEntry {
            client_addr: Some(account.peer()),
            method: Some(account.method()),
            tool: account.tool(),
            outcome: Some(reply.outcome.as_str()),
            reason: reply.trouble.map(|trouble| trouble.reason),
            request_id: std::str::from_utf8(id.raw()).ok(),
            ..self.entry(AuditEvent::Call)
        };
        audit.record(&entry).err().map(|NotAudited| Cause::NotAudited { sent: account.was_sent() }.reply(id))
    }

    /// Writes the entry of an element of a batch that is no request.
    pub(super) fn audit_fault(&self, reply: &Reply) {
        let entry = AuditEntry { outcome: Some(reply.outcome.as_str()), ..self.entry(AuditEvent::Call) };
        // What it is answered is an error anyway.
        let _unwritten = self.accounts().log.audit().record(&entry);
    }

    /// Writes that the session is open. If that fails, so does the entry of its `initialize`.
    pub(super) fn audit_opened(&self, peer: Peer) {
        let entry = AuditEntry { client_addr: Some(peer), ..self.entry(AuditEvent::SessionOpen) };
        let _unwritten = self.accounts().log.audit().record(&entry);
    }

    /// Writes that the session is closed. If that fails, the next request is refused.
    pub(super) fn audit_closed(&self, why: SessionEnd) {
        let entry = AuditEntry { reason: Some(why.as_str()), ..self.entry(AuditEvent::SessionClose) };
        let _unwritten = self.accounts().log.audit().record(&entry);
    }

    fn entry(&self, event: AuditEvent) -> AuditEntry<'_> {
        AuditEntry {
            server: Some(self.server()),
            principal: Some(self.principal()),
            session: Some(self.digest()),
            ..AuditEntry::new(event)
        }
    }
}
