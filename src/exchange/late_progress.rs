//! The progress that a reader too far behind has not been given: of each call the latest, which stands for those before.

use bytes::BytesMut;

use crate::mcp::payload::{Payload, Spliced};
use crate::mcp::stream_log::{EventKind, StreamLog};

/// The latest progress of each call; few calls have one stream.
#[derive(Debug, Default)]
pub(super) struct LateProgress(Vec<(u64, Payload)>);

impl LateProgress {
    /// Keeps it until there is room. Tells whether one before it is lost with that.
    pub(super) fn keep(&mut self, call: u64, message: &Spliced<'_>) -> bool {
        let mut text = BytesMut::with_capacity(message.len());
        message.put(&mut text);
        let message = Payload::whole(text.freeze());
        match self.0.iter_mut().find(|(known, _)| *known == call) {
            Some((_, late)) => {
                *late = message;
                true
            }
            None => {
                self.0.push((call, message));
                false
            }
        }
    }

    /// Appends what was kept.
    pub(super) fn catch_up(&mut self, log: &mut StreamLog) {
        for (call, message) in self.0.drain(..) {
            log.push(EventKind::Progress(call), &message);
        }
    }

    /// Bytes kept.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(_, message)| message.len()).sum()
    }
}
