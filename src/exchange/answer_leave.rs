//! Leave to read what may be a client's answer although memory is spent: the answer frees what waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::exchange::session::Session;

/// The right to read one body past the budget.
pub struct AnswerLeave(Arc<Session>);

impl Session {
    /// Leave for one more body, of which there are as many as requests of the child's are open: so no answer is
    /// refused, and whoever is asked nothing gets none.
    #[must_use]
    pub fn leave_to_answer(self: &Arc<Self>) -> Option<AnswerLeave> {
        let taken = self.answer_leaves.fetch_add(1, Ordering::Relaxed);
        let leave = AnswerLeave(Arc::clone(self));
        (taken < self.state().asks.len()).then_some(leave)
    }
}

impl Drop for AnswerLeave {
    fn drop(&mut self) {
        self.0.answer_leaves.fetch_sub(1, Ordering::Relaxed);
    }
}
