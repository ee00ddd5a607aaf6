//! What a shared child answered to `initialize`, which is every session's answer.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use memchr::memmem;

use crate::exchange::handshake::settled_revision;
use crate::mcp::ids::Id;
use crate::mcp::members::{cut_of, value_of};
use crate::mcp::message::{Kind, Message};
use crate::mcp::payload::Payload;
use crate::mcp::revision::Revision;
use crate::mcp::scan::Author;

/// A good InitializeResult.
pub struct Greeting {
    message: Message,
    revision: Revision,
    capabilities: serde_json::Value,
    /// The child offers tasks, which it must not learn anybody wants: whose they are it does not tell.
    hides_tasks: bool,
}

impl Greeting {
    /// Reads the child's answer; `None` if it is no good one.
    #[must_use]
    pub fn read(answer: &Message) -> Option<Greeting> {
        if answer.kind() != Kind::Result {
            return None;
        }
        let revision = settled_revision(answer)?;
        let plain = without(answer, tasks_of_result, Author::Child);
        let hides_tasks = plain.is_some();
        let message = plain.unwrap_or_else(|| answer.clone().detached());
        let (_, result) = result_of(&message)?;
        let mut result: serde_json::Value = serde_json::from_str(result).ok()?;
        Some(Greeting { revision, capabilities: result["capabilities"].take(), hides_tasks, message })
    }

    /// The revision its child speaks.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Whether the child declared this capability.
    #[must_use]
    pub fn offers(&self, capability: &str) -> bool {
        !self.capabilities[capability].is_null()
    }

    /// Whether the child declared that it tells of changes of this list: `tools`, `resources` or `prompts`.
    #[must_use]
    pub fn tells_of_changes(&self, list: &str) -> bool {
        self.capabilities[list]["listChanged"] == true
    }

    /// The answer to a session's `initialize`.
    #[must_use]
    pub fn answer(&self, id: &Id) -> Payload {
        self.message.with_id(id)
    }

    /// A call as the child gets it: without the wish for a task, which a receiver that declared none must not see to
    /// (2025-11-25 tasks, Task Support and Handling).
    #[must_use]
    pub fn call<'a>(&self, message: &'a Message) -> Cow<'a, Message> {
        let plain = if self.hides_tasks { without(message, task_of_params, Author::Client) } else { None };
        plain.map_or(Cow::Borrowed(message), Cow::Owned)
    }
}

/// The text of the result, and where it begins.
fn result_of(message: &Message) -> Option<(usize, &str)> {
    let span = message.fields().result?;
    Some((span.start(), std::str::from_utf8(span.of(message.text())).ok()?))
}

/// Where `capabilities.tasks` stands.
fn tasks_of_result(message: &Message) -> Option<Range<usize>> {
    let (start, result) = result_of(message)?;
    let capabilities = value_of(result, "capabilities")?;
    let tasks = cut_of(&result[capabilities.clone()], "tasks")?;
    let start = start + capabilities.start;
    Some(start + tasks.start..start + tasks.end)
}

/// Whether a call may wish for a task: very few do, and this is every call's way.
pub fn mentions_task(message: &Message) -> bool {
    message.calls("tools/call") && memmem::find(message.text(), b"\"task\"").is_some()
}

/// Where `params.task` stands.
fn task_of_params(message: &Message) -> Option<Range<usize>> {
    let params = message.fields().params?;
    let task = cut_of(std::str::from_utf8(params.of(message.text())).ok()?, "task")?;
    Some(params.start() + task.start..params.start() + task.end)
}

/// The message without a part of it; `None` where it has no such part.
fn without(message: &Message, part: impl FnOnce(&Message) -> Option<Range<usize>>, author: Author) -> Option<Message> {
    let part = part(message)?;
    let text = message.text();
    let rest = Bytes::from([&text[..part.start], &text[part.end..]].concat());
    Message::parse(rest, author).ok()
}

#[cfg(test)]
mod tests {
    use super::Greeting;
    use crate::mcp::ids::Id;
    use crate::mcp::message::Message;
    use crate::mcp::scan::Author;
    use bytes::Bytes;

    fn read(result: &str) -> Option<Greeting> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":9,"result":{result}}}"#);
        Greeting::read(&Message::parse(Bytes::from(text), Author::Child).expect("an answer"))
    }

    #[test]
    fn shows_everything_but_tasks() {
        let result = r#"{"capabilities":{"tools":{"listChanged":true},"tasks":{"list":{}},"x":1.0},"protocolVersion":"2025-11-25","z":"\u00e9"}"#;
        let greeting = read(result).expect("a good result");
        assert!(greeting.offers("tools") && greeting.tells_of_changes("tools") && !greeting.offers("tasks"));
        assert!(!greeting.offers("logging") && !greeting.tells_of_changes("prompts"));
        let id = Id::parse(b"\"a\"").expect("an id");
        let shown = result.replace(r#","tasks":{"list":{}}"#, "");
        let answer = greeting.answer(&id).to_bytes();
        assert_eq!(answer, format!(r#"{{"jsonrpc":"2.0","id":"a","result":{shown}}}"#));
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{"ttl":1},"arguments":{"task":1}}}"#;
        let message = Message::parse(Bytes::from(call), Author::Client).expect("a call");
        assert_eq!(greeting.call(&message).text(), &call.replace(r#""task":{"ttl":1},"#, ""));
    }

    #[test]
    fn is_a_good_result_only() {
        assert!(read(r#"{"protocolVersion":"2026-07-28"}"#).is_none(), "it has no sessions");
        assert!(read("{}").is_none());
        let plain = read(r#"{"protocolVersion":"2025-06-18","capabilities":null}"#).expect("a revision will do");
        assert!(!plain.offers("tools"));
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{"ttl":1}}}"#;
        let message = Message::parse(Bytes::from(call), Author::Client).expect("a call");
        assert_eq!(plain.call(&message).text(), call, "who offers no tasks sees to it himself");
    }
}
