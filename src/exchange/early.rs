//! What a child asks before its client is initialized, held until it is.

use std::sync::Arc;

use crate::budget::{Budget, Reserved};
use crate::mcp::ids::Id;
use crate::mcp::message::Message;
use crate::telemetry::label::Refusal;

/// Requests that are held.
const MOST: usize = 64;

/// Bytes they may have together; one alone may have more.
const MOST_BYTES: usize = 4 * 1024 * 1024;

struct Held {
    message: Message,
    memory: Reserved,
}

/// The requests, in the order they came.
#[derive(Default)]
pub struct Early {
    held: Vec<Held>,
    bytes: usize,
}

impl Early {
    /// Holds one, within the memory budget.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn hold(&mut self, message: &Message, budget: &Arc<Budget>) -> Result<(), Refusal> {
        let bytes = message.text().len();
        let too_long = !self.held.is_empty() && self.bytes + bytes > MOST_BYTES;
        if self.held.len() >= MOST || too_long {
            return Err(Refusal::Overload);
        }
        let memory = budget.reserve(bytes).ok_or(Refusal::Memory)?;
        self.held.push(Held { message: message.clone().detached(), memory });
        self.bytes += bytes;
        Ok(())
    }

    /// The child takes one back.
    pub fn withdraw(&mut self, id: &Id) {
        self.held.retain(|held| held.message.id().as_ref() != Some(id));
        self.bytes = self.held.iter().map(|held| held.message.text().len()).sum();
    }

    /// Gives each on, with the memory it takes.
    pub fn release(self) -> impl Iterator<Item = (Message, Reserved)> {
        self.held.into_iter().map(|held| (held.message, held.memory))
    }
}

#[cfg(test)]
mod tests {
    use super::{Early, MOST, MOST_BYTES};
    use crate::budget::Budget;
    use crate::mcp::ids::Id;
    use crate::mcp::message::Message;
    use crate::mcp::scan::Author;
    use crate::telemetry::label::Refusal;
    use bytes::Bytes;

    fn question(id: usize, bytes: usize) -> Message {
        let text = "x".repeat(bytes);
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list","params":{{"x":"{text}"}}}}"#);
        Message::parse(Bytes::from(text), Author::Child).expect("a request")
    }

    #[test]
    fn holds_so_many_and_so_much() {
        let budget = Budget::new(100 << 20);
        let mut early = Early::default();
        for id in 0..MOST {
            assert_eq!(early.hold(&question(id, 10), &budget), Ok(()));
        }
        assert_eq!(early.hold(&question(MOST, 10), &budget), Err(Refusal::Overload));
        let mut early = Early::default();
        assert_eq!(early.hold(&question(1, 2 * MOST_BYTES), &budget), Ok(()), "one may be long");
        assert_eq!(early.hold(&question(2, 10), &budget), Err(Refusal::Overload));
        early.withdraw(&Id::parse(b"1").expect("an id"));
        assert_eq!(early.hold(&question(2, MOST_BYTES / 2), &budget), Ok(()));
        assert_eq!(early.hold(&question(3, MOST_BYTES / 2), &budget), Err(Refusal::Overload));
    }

    #[test]
    fn takes_from_the_budget_and_gives_back() {
        let budget = Budget::new(1_000);
        let mut early = Early::default();
        assert_eq!(early.hold(&question(1, 500), &budget), Ok(()));
        assert_eq!(early.hold(&question(2, 500), &budget), Err(Refusal::Memory));
        assert!(budget.used() >= 500);
        let ids: Vec<_> = early.release().map(|(message, _memory)| message.numeric_id()).collect();
        assert_eq!(ids, [Some(1)]);
        assert_eq!(budget.used(), 0);
    }
}
