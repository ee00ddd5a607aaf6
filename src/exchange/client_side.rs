//! What a session does with a client's notifications and answers.

use crate::exchange::call::Call;
use crate::exchange::in_band::Cause;
use crate::exchange::session::{Phase, Session, outcome_of};
use crate::mcp::message::Message;
use crate::telemetry::label::{Direction, Notice, Unmatched};
use crate::upstream::outbound::NotSent;

impl Session {
    /// Passes a notification of the client's on, or acts on it.
    ///
    /// # Errors
    /// When it could not be queued.
    pub fn tell(&self, message: &Message) -> Result<(), NotSent> {
        self.touch();
        let kind = match message.method() {
            "notifications/initialized" => {
                self.confirm();
                return Ok(());
            }
            "notifications/cancelled" => {
                self.cancel(message);
                return Ok(());
            }
            "notifications/progress" => Notice::Progress,
            _ => Notice::Other,
        };
        if self.keeps_to_itself(message) {
            return Ok(());
        }
        self.terms.metrics.notification(Direction::ToChild, kind);
        self.link.conversation().ok_or(NotSent::Closed)?.notify(message)
    }

    /// Ends every call of this session that has the id the client names: with equal ids in flight
    /// it cannot be told which was meant.
    fn cancel(&self, message: &Message) {
        self.terms.metrics.notification(Direction::ToChild, Notice::Cancelled);
        let Some(named) = message.id_at(message.fields().request_id) else { return };
        let taken: Vec<(u64, Call)> = {
            let mut state = self.state();
            // `initialize` must not be cancelled (cancellation, Behavior Requirements).
            if state.phase == Phase::Starting {
                return;
            }
            let numbers: Vec<u64> =
                state.calls.iter().filter(|(_, call)| call.id == named).map(|(number, _)| *number).collect();
            numbers.into_iter().filter_map(|number| Some((number, state.calls.remove(&number)?))).collect()
        };
        for (number, call) in taken {
            let sent = self.take_back(number, Some(message), "cancelled");
            self.conclude(call, |id| Cause::Cancelled { sent }.reply(id));
        }
    }

    /// Takes a call back from the child. Tells whether the child may have seen it.
    pub(super) fn take_back(&self, number: u64, notification: Option<&Message>, reason: &'static str) -> bool {
        let Some(place) = self.link.place() else {
            let conversation = self.link.conversation();
            return conversation.is_none_or(|conversation| conversation.cancel(number, notification, reason));
        };
        place.child().give_up(place.number(), number, notification, reason)
    }

    /// Takes the client's answer to a request of the child's. Whoever asks for nothing gets
    /// nothing: an answer nobody awaits is dropped.
    ///
    /// # Errors
    /// When it could not be queued.
    pub fn respond(&self, message: &Message) -> Result<(), NotSent> {
        self.touch();
        let ask = message.id().and_then(|id| self.take_ask(&id));
        match (ask, self.link.conversation()) {
            (Some(ask), Some(conversation)) => {
                self.accounts().asked(&ask.id, &ask.method, self, ask.since.elapsed(), outcome_of(message));
                conversation.respond(&ask.id, message)
            }
            _ => {
                self.terms.metrics.unmatched(Unmatched::Client);
                Ok(())
            }
        }
    }
}
