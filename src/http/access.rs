//! What one endpoint asks of its callers, and which tools it has for them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::auth::{Admitted, Answer, Metadata, Operation, Rejection, Requirements, Resource};
use crate::config::Tools;
use crate::http::refusal::Refused;
use crate::mcp::message::Message;
use crate::mcp::scan::Author;

/// The rules of one endpoint beyond who may come in.
pub(super) struct Access {
    resource: Resource,
    requirements: Arc<Requirements>,
    tools: Arc<Tools>,
}

impl Access {
    pub(super) fn new(resource: Resource, requirements: &Arc<Requirements>, tools: &Arc<Tools>) -> Access {
        Access { resource, requirements: Arc::clone(requirements), tools: Arc::clone(tools) }
    }

    /// The metadata of the server, if it takes access tokens.
    pub(super) fn metadata(&self) -> Option<&Metadata> {
        self.resource.metadata()
    }

    /// What a caller is told that is not let in.
    pub(super) fn refuse(&self, rejection: Rejection) -> Refused {
        match rejection.answer() {
            Answer::Malformed(text) => self.malformed(text),
            Answer::Missing => Refused::Unauthenticated(self.resource.missing()),
            Answer::InvalidToken(fault) => Refused::Unauthenticated(self.resource.invalid(fault)),
            Answer::Unavailable => Refused::IssuerUnavailable,
        }
    }

    /// What a caller is told that shows more than one credential.
    pub(super) fn malformed(&self, text: &'static str) -> Refused {
        match self.resource.malformed(text) {
            Some(challenge) => Refused::Credentials(text, challenge),
            None => Refused::BadHeader(text),
        }
    }

    /// Lets a caller do what is no message.
    ///
    /// # Errors
    /// It was granted too little for anything here.
    pub(super) fn authorize(&self, caller: &Admitted) -> Result<(), Refused> {
        self.verdict(caller, self.requirements.check(&caller.scopes, []))
    }

    /// Lets a caller send a message.
    ///
    /// # Errors
    /// It was granted too little for that.
    pub(super) fn authorize_message(&self, caller: &Admitted, message: &Message) -> Result<(), Refused> {
        if !self.requirements.tells_messages_apart() {
            return self.authorize(caller);
        }
        let tool = self.named_tool(message);
        let operation = Operation { method: message.method(), tool: tool.as_deref() };
        self.verdict(caller, self.requirements.check(&caller.scopes, [operation]))
    }

    /// Lets a caller send every message of a batch. What is none of them is for its reader to judge.
    ///
    /// # Errors
    /// It was granted too little for all of them together.
    pub(super) fn authorize_batch(&self, caller: &Admitted, text: &Bytes) -> Result<(), Refused> {
        if !self.requirements.tells_messages_apart() {
            return self.authorize(caller);
        }
        let parts = Message::parse_batch(text, Author::Client).unwrap_or_default();
        let messages: Vec<Message> = parts.into_iter().filter_map(Result::ok).collect();
        let tools: Vec<Option<String>> = messages.iter().map(|message| self.named_tool(message)).collect();
        let operations = messages
            .iter()
            .zip(&tools)
            .map(|(message, tool)| Operation { method: message.method(), tool: tool.as_deref() });
        self.verdict(caller, self.requirements.check(&caller.scopes, operations))
    }

    /// The tool whose scopes are asked for. For one that is hidden nothing is: more scopes would not help.
    fn named_tool(&self, message: &Message) -> Option<String> {
        let called = message.calls("tools/call") && !self.hides(message);
        called.then(|| message.string(message.fields().name)).flatten().map(std::borrow::Cow::into_owned)
    }

    fn verdict(&self, caller: &Admitted, checked: Result<(), BTreeSet<&str>>) -> Result<(), Refused> {
        checked.map_err(|lacking| Refused::Scope(self.resource.insufficient(&lacking, &caller.principal)))
    }

    /// Whether this calls a tool that is not there for clients. Where rules go by the name of a tool, neither is one that
    /// is named in two ways: the server might take the other one for it.
    pub(super) fn hides(&self, message: &Message) -> bool {
        let by_name = self.tools.hides_some() || self.requirements.tells_tools_apart();
        if !by_name || !message.calls("tools/call") {
            return false;
        }
        let fields = message.fields();
        fields.name_twin || message.string(fields.name).is_some_and(|name| !self.tools.admits(&name))
    }

    /// The tools a list may name, if this asks for one and some are hidden.
    pub(super) fn listed(&self, message: &Message) -> Option<Arc<Tools>> {
        (self.tools.hides_some() && message.calls("tools/list")).then(|| Arc::clone(&self.tools))
    }
}
