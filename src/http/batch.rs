//! Several messages in one body, which only 2025-03-26 knew (base protocol, Batching).

use bytes::Bytes;

use crate::exchange::post::Reply;
use crate::exchange::session::Session;
use crate::http::refusal::Refused;
use crate::http::streamable::refusal_of;
use crate::mcp::message::{Kind, Message};
use crate::mcp::payload::Payload;
use crate::mcp::revision::Revision;
use crate::mcp::scan::Author;

/// Messages of one batch.
const MOST_IN_BATCH: usize = 100;

/// The messages of a batch, and an answer for each element that is none.
pub(super) struct Batch {
    pub(super) good: Vec<Message>,
    pub(super) faults: Vec<Reply>,
}

impl Batch {
    /// Reads the body of a POST of `session`.
    pub(super) fn read(session: &Session, text: &Bytes) -> Result<Batch, Refused> {
        if !session.revision().is_some_and(Revision::has_batches) {
            return Err(Refused::Invalid("The body must be one message"));
        }
        let parts = Message::parse_batch(text, Author::Client).map_err(|_| Refused::Parse)?;
        if parts.is_empty() || parts.len() > MOST_IN_BATCH {
            return Err(Refused::Invalid("A batch holds 1 to 100 messages"));
        }
        let mut batch = Batch { good: Vec::new(), faults: Vec::new() };
        for part in parts {
            match part {
                Ok(message) if message.kind() == Kind::Request && message.calls("initialize") => {
                    return Err(Refused::Invalid("initialize must not be part of a batch"));
                }
                Ok(message) => batch.good.push(message),
                Err(fault) => {
                    let (refused, id) = refusal_of(&fault);
                    batch.faults.push(Reply::refused(Payload::whole(refused.error(id.as_deref()))));
                }
            }
        }
        batch.check_forms()?;
        Ok(batch)
    }

    /// How many answers the client is owed.
    pub(super) fn answers_owed(&self) -> usize {
        self.good.iter().filter(|message| message.kind() == Kind::Request).count() + self.faults.len()
    }

    /// Requests and notifications, or answers; each request under its own id.
    fn check_forms(&self) -> Result<(), Refused> {
        let answers = self.good.iter().filter(|message| matches!(message.kind(), Kind::Result | Kind::Error)).count();
        if answers > 0 && answers < self.good.len() + self.faults.len() {
            return Err(Refused::Invalid("A batch holds requests and notifications, or responses"));
        }
        let ids: Vec<_> =
            self.good.iter().filter(|message| message.kind() == Kind::Request).filter_map(Message::id).collect();
        let repeated = ids.iter().enumerate().any(|(at, id)| ids[..at].contains(id));
        if repeated { Err(Refused::Invalid("An id stands twice in the batch")) } else { Ok(()) }
    }
}
