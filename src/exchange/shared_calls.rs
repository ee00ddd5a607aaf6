//! The calls of the sessions on one shared child: each goes when it is its session's turn.

use std::sync::Arc;

use crate::budget::Reserved;
use crate::exchange::shared_child::SharedChild;
use crate::exchange::turns::Turn;
use crate::mcp::message::Message;
use crate::upstream::outbound::NotSent;
use crate::upstream::participant::{Answer, Loss, Participant};

/// A call that waits for its turn.
pub(super) struct Waiting {
    who: Arc<dyn Participant>,
    message: Message,
    _memory: Reserved,
}

impl Waiting {
    /// The child is gone, and has not seen it.
    pub(super) fn lose(self, call: u64) {
        self.who.answer(call, Answer::Lost(Loss::ChildGone { sent: false }));
    }
}

impl SharedChild {
    /// Passes a session's call to the child, or lets it wait for its turn.
    ///
    /// # Errors
    /// When neither can be; then there is no answer.
    pub(super) fn submit(
        &self,
        session: u64,
        call: u64,
        who: Arc<dyn Participant>,
        message: &Message,
    ) -> Result<(), NotSent> {
        let conversation = {
            let mut state = self.state();
            let conversation = state.conversation().ok_or(NotSent::Closed)?;
            let bytes = message.text().len();
            let keep = || {
                let memory = self.parts.budget.reserve(bytes).ok_or(NotSent::Memory)?;
                Ok(Waiting { who: Arc::clone(&who), message: message.clone().detached(), _memory: memory })
            };
            match state.turns.ask(session, call, bytes, keep)? {
                Turn::Now => conversation,
                Turn::Later => return Ok(()),
                Turn::Refused => return Err(NotSent::Full),
            }
        };
        let sent = conversation.request(call, who, message);
        if sent.is_err() {
            self.end_turn(call);
        }
        sent
    }

    /// A session gives a call up: it is taken back if it waits, else the child is told. Tells whether the child may have
    /// seen it.
    pub(super) fn give_up(
        self: &Arc<Self>,
        session: u64,
        call: u64,
        notification: Option<&Message>,
        reason: &'static str,
    ) -> bool {
        let (is_taken, may_be_task) = {
            let mut state = self.state();
            let is_taken = state.turns.take_back(session, call).is_some();
            if is_taken {
                state.tasks.expect_no_more(call);
            }
            (is_taken, state.tasks.expects(call))
        };
        if is_taken {
            return false;
        }
        let conversation = self.conversation();
        let sent = conversation.is_none_or(|conversation| {
            if may_be_task { self.adopt(&conversation, call) } else { conversation.cancel(call, notification, reason) }
        });
        if sent {
            self.note_abandoned(session);
        }
        self.end_turn(call);
        sent
    }

    /// A call is no longer with the child: the next one goes.
    pub(super) fn end_turn(&self, call: u64) {
        let mut lost = Vec::new();
        let mut ended = call;
        loop {
            let next = {
                let mut state = self.state();
                state.turns.end(ended).map(|next| (next, state.conversation()))
            };
            let Some(((call, waiting), conversation)) = next else { break };
            let sent = conversation.map(|it| it.request(call, Arc::clone(&waiting.who), &waiting.message));
            if matches!(sent, Some(Ok(()))) {
                break;
            }
            lost.push((call, waiting));
            ended = call;
        }
        // Only now that none of them has a turn to end: each of them coming back here would go ever deeper.
        for (call, waiting) in lost {
            waiting.lose(call);
        }
    }
}
