//! The way from a session to its child: one of its own, or a place at one it shares.

use std::sync::{Arc, OnceLock};

use crate::exchange::shared_child::{Place, SharedChild};
use crate::upstream::conversation::Conversation;

/// Whose child it is.
pub(super) enum Link {
    /// The session's own; empty until its handshake starts.
    Own(OnceLock<Arc<Conversation>>),
    /// One among others.
    Shared(Place),
}

impl Link {
    /// The dialogue with the child; `None` before it began, and while a shared child is being replaced.
    pub(super) fn conversation(&self) -> Option<Arc<Conversation>> {
        match self {
            Link::Own(conversation) => conversation.get().cloned(),
            Link::Shared(place) => place.child().conversation(),
        }
    }

    /// The child's process id.
    pub(super) fn child_pid(&self) -> Option<u32> {
        match self {
            Link::Own(conversation) => conversation.get().map(|conversation| conversation.pid()),
            Link::Shared(place) => Some(place.child().pid()).filter(|pid| *pid != 0),
        }
    }

    /// The place at a shared child.
    pub(super) fn place(&self) -> Option<&Place> {
        match self {
            Link::Own(_) => None,
            Link::Shared(place) => Some(place),
        }
    }

    /// Ends the session's part in it: a child of its own is given back.
    pub(super) fn close(&self) {
        match self {
            Link::Own(conversation) => {
                if let Some(conversation) = conversation.get() {
                    conversation.close();
                }
            }
            Link::Shared(place) => place.leave(),
        }
    }

    /// The child that is shared, if it is.
    pub(super) fn shared(&self) -> Option<&Arc<SharedChild>> {
        self.place().map(Place::child)
    }
}
