//! What a shared child answered to `initialize`, which is every session's answer.

use std::ops::Range;

use bytes::Bytes;

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
}

impl Greeting {
    /// Reads the child's answer; `None` if it is no good one.
    #[must_use]
    pub fn read(answer: &Message) -> Option<Greeting> {
        if answer.kind() != Kind::Result {
            return None;
        }
        let revision = settled_revision(answer)?;
        let message = without_task_list(answer).unwrap_or_else(|| answer.clone().detached());
        let (_, result) = result_of(&message)?;
        let mut result: serde_json::Value = serde_json::from_str(result).ok()?;
        Some(Greeting { revision, capabilities: result["capabilities"].take(), message })
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

    /// Whether the child lets its tasks be cancelled.
    #[must_use]
    pub fn cancels_tasks(&self) -> bool {
        !self.capabilities["tasks"]["cancel"].is_null()
    }
}

/// The text of the result, and where it begins.
fn result_of(message: &Message) -> Option<(usize, &str)> {
    let span = message.fields().result?;
    Some((span.start(), std::str::from_utf8(span.of(message.text())).ok()?))
}

/// The answer without `capabilities.tasks.list`: the child's list would be that of all sessions. `None` where it has none.
fn without_task_list(answer: &Message) -> Option<Message> {
    let (start, result) = result_of(answer)?;
    let capabilities = value_of(result, "capabilities")?;
    let tasks = within(&capabilities, value_of(&result[capabilities.clone()], "tasks")?);
    let list = within(&tasks, cut_of(&result[tasks.clone()], "list")?);
    let text = answer.text();
    let rest = [&text[..start + list.start], &text[start + list.end..]].concat();
    Message::parse(Bytes::from(rest), Author::Child).ok()
}

/// A place in a part, as one in the whole.
fn within(part: &Range<usize>, place: Range<usize>) -> Range<usize> {
    part.start + place.start..part.start + place.end
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
    fn shows_everything_but_the_list_of_tasks() {
        for (tasks, shown) in [
            (r#"{"list":{},"cancel":{}}"#, r#"{"cancel":{}}"#),
            (r#"{"requests":{"tools":{"call":{}}},"list":{"a":[1.0]}}"#, r#"{"requests":{"tools":{"call":{}}}}"#),
            (r#"{ "l\u0069st" : {} }"#, "{ }"),
            (r#"{"cancel":{"list":1}}"#, r#"{"cancel":{"list":1}}"#),
            ("null", "null"),
        ] {
            let before = r#"{"capabilities":{"tools":{"listChanged":true},"tasks":"#;
            let after = r#","x":1.0},"protocolVersion":"2025-11-25","z":"\u00e9"}"#;
            let greeting = read(&format!("{before}{tasks}{after}")).expect("a good result");
            assert!(greeting.offers("tools") && greeting.tells_of_changes("tools"));
            assert_eq!(greeting.offers("tasks"), tasks != "null");
            assert_eq!(greeting.cancels_tasks(), tasks.contains("cancel"));
            assert!(!greeting.offers("logging") && !greeting.tells_of_changes("prompts"));
            let answer = greeting.answer(&Id::parse(b"\"a\"").expect("an id")).to_bytes();
            let result = format!("{before}{}{after}", shown.replace("{ }", "{}"));
            let text = String::from_utf8(answer.to_vec()).expect("text").replace("{ }", "{}");
            assert_eq!(text, format!(r#"{{"jsonrpc":"2.0","id":"a","result":{result}}}"#));
        }
    }

    #[test]
    fn is_a_good_result_only() {
        assert!(read(r#"{"protocolVersion":"2026-07-28"}"#).is_none(), "it has no sessions");
        assert!(read("{}").is_none());
        let plain = read(r#"{"protocolVersion":"2025-06-18","capabilities":null}"#).expect("a revision will do");
        assert!(!plain.offers("tools") && !plain.cancels_tasks());
    }
}
