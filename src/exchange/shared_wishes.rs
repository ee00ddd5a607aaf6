//! What the sessions on one shared child wish of it, told the child in its own name.

use std::sync::{Arc, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::exchange::shared_child::SharedChild;
use crate::exchange::wishes::{Level, Subscribed};
use crate::upstream::conversation::Conversation;
use crate::upstream::own_request::own_request;
use crate::upstream::participant::Participant;

/// Requests of its own that may be unanswered; for each further one the oldest is given up. As many as there can be tasks
/// to cancel: what is given up may not happen.
const UNANSWERED: usize = 1_024;

impl SharedChild {
    fn telling(&self) -> MutexGuard<'_, ()> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session is there.
    pub(super) fn begin_wishing(self: &Arc<Self>, session: u64) {
        let _order = self.telling();
        let level = self.state().wishes.enter(session);
        self.tell_level(level);
    }

    /// A session is over, and wishes nothing any more.
    pub(super) fn end_wishing(self: &Arc<Self>, session: u64) {
        let _order = self.telling();
        let (uris, level) = self.state().wishes.leave(session);
        for uri in uris {
            self.tell_unsubscribed(&uri);
        }
        self.tell_level(level);
    }

    /// A session sets its level.
    pub(super) fn set_level(self: &Arc<Self>, session: u64, level: Level) {
        let _order = self.telling();
        let level = self.state().wishes.set_level(session, level);
        self.tell_level(level);
    }

    /// A session subscribes. Whether it is subscribed with that; else the child must be asked.
    pub(super) fn subscribe(&self, session: u64, uri: &str) -> bool {
        let _order = self.telling();
        self.state().wishes.subscribe(session, uri)
    }

    /// A session's request for a subscription ended.
    pub(super) fn note_subscribed(self: &Arc<Self>, session: u64, uri: &str, how: Subscribed) {
        let _order = self.telling();
        let is_unwanted = self.state().wishes.answered(session, uri, how);
        if is_unwanted {
            self.tell_unsubscribed(uri);
        }
    }

    /// A session wants no more updates.
    pub(super) fn unsubscribe(self: &Arc<Self>, session: u64, uri: &str) {
        let _order = self.telling();
        let is_unwanted = self.state().wishes.unsubscribe(session, uri);
        if is_unwanted {
            self.tell_unsubscribed(uri);
        }
    }

    /// What changed while a fresh process was being told: `restored` is what it was subscribed to.
    pub(super) fn catch_up(self: &Arc<Self>, restored: Vec<Box<str>>) {
        let _order = self.telling();
        let (level, unwanted) = {
            let wishes = &mut self.state().wishes;
            let unwanted: Vec<_> = restored.into_iter().filter(|uri| !wishes.wants(uri)).collect();
            (wishes.retune(), unwanted)
        };
        for uri in unwanted {
            self.tell_unsubscribed(&uri);
        }
        self.tell_level(level);
    }

    fn tell_level(self: &Arc<Self>, level: Option<Level>) {
        if let Some(level) = level
            && !self.tell_child("logging/setLevel", &json!({ "level": level.name() }))
        {
            self.state().wishes.not_told();
        }
    }

    fn tell_unsubscribed(self: &Arc<Self>, uri: &str) {
        // One that is not told sends updates that nobody hears; a process that is gone needs to be told nothing.
        let _told = self.tell_child("resources/unsubscribe", &json!({ "uri": uri }));
    }

    /// Makes a request nobody waits for. Tells whether it is on its way.
    pub(super) fn tell_child(self: &Arc<Self>, method: &str, params: &Value) -> bool {
        let Some(conversation) = self.conversation() else { return false };
        let call = conversation.reserve();
        let Ok(message) = own_request(method, &params.to_string(), call) else { return false };
        self.await_unheard(&conversation, call);
        let who: Arc<dyn Participant> = Arc::<SharedChild>::clone(self);
        let is_sent = conversation.request(call, who, &message).is_ok();
        if !is_sent {
            self.state().told.retain(|told| *told != call);
        }
        is_sent
    }
    /// Remembers a request whose answer no session waits for. Of too many the oldest is given up.
    pub(super) fn await_unheard(&self, conversation: &Conversation, call: u64) {
        let forgotten = {
            let mut state = self.state();
            state.told.push_back(call);
            let forgotten = if state.told.len() > UNANSWERED { state.told.pop_front() } else { None };
            if let Some(oldest) = forgotten {
                state.tasks.expect_no_more(oldest);
            }
            forgotten
        };
        if let Some(oldest) = forgotten {
            let _sent = conversation.cancel(oldest, None, "not answered");
        }
    }
}
