//! Whether what a shared child lists is still what its sessions have read, whichever process is behind it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::exchange::lists::{Digest, List, Next, Pages, Stale};
use crate::exchange::shared_child::SharedChild;
use crate::exchange::shared_tasks::result_of;
use crate::mcp::message::Message;
use crate::mcp::scan::Author;
use crate::upstream::participant::{Answer, Loss};

/// Between two looks at a list that keeps changing, and at whether the child is idle.
const PAUSE: Duration = Duration::from_secs(1);

/// Looks at whether the child is idle before a list is read all the same.
const LOOKS: usize = 60;

/// How long the child may take for a whole list.
const LIST_WAIT: Duration = Duration::from_secs(30);

impl SharedChild {
    /// Reads the lists of its process, again after each change, and tells the sessions what is not as it was with the
    /// process before. For as long as that process lives.
    pub async fn follow_lists(self: &Arc<Self>) -> Infallible {
        // Whether what is stale may be read now that nobody waits for.
        let mut may_read = false;
        loop {
            let next = self.state().lists.next();
            match next {
                Some(stale) if stale.is_due || may_read => may_read &= self.look_at(stale).await,
                Some(_) => {
                    self.idle().await;
                    may_read = true;
                }
                None => {
                    self.changed.notified().await;
                    may_read = false;
                }
            }
        }
    }

    /// Reads a list. Whether it is known now.
    async fn look_at(self: &Arc<Self>, stale: Stale) -> bool {
        let digest = match timeout(LIST_WAIT, self.read_list(stale.list)).await {
            Ok(Ok(digest)) => digest,
            Ok(Err(Loss::ChildGone { .. })) => {
                // Another process may follow, and another try.
                sleep(PAUSE).await;
                return false;
            }
            Ok(Err(Loss::TooLarge | Loss::BadLine)) | Err(_) => None,
        };
        let learned = self.state().lists.learn(stale, digest);
        let Some(is_other) = learned else { return false };
        debug!(event = "child_list", server = %self.parts.server, list = stale.list.name(), told = is_other);
        if is_other {
            self.announce(stale.list);
        }
        true
    }

    /// Waits until a list can be read without being in a session's way, which a server that is always busy never lets be.
    async fn idle(&self) {
        for _ in 0..LOOKS {
            sleep(PAUSE).await;
            if self.state().turns.is_empty() {
                return;
            }
        }
    }

    /// Reads every page of a list. `None` if it cannot be compared.
    async fn read_list(self: &Arc<Self>, list: List) -> Result<Option<Digest>, Loss> {
        let conversation = self.conversation().ok_or(Loss::ChildGone { sent: false })?;
        if !self.greeting().is_some_and(|greeting| greeting.offers(list.name())) {
            return Ok(Some(Digest::default()));
        }
        let method = format!("{}/list", list.name());
        let mut pages = Pages::default();
        let mut params = "{}".to_owned();
        loop {
            let answer = self.ask(&conversation, &method, &params).await?;
            let Some(result) = result_of(Answer::Message(&answer)) else { return Ok(None) };
            match pages.take(result) {
                Next::Page(cursor) => params = format!(r#"{{"cursor":{cursor}}}"#),
                Next::End(digest) => return Ok(Some(digest)),
                Next::Unknown => return Ok(None),
            }
        }
    }

    /// The process says that a list has changed.
    pub(super) fn note_change(&self, list: List) {
        self.state().lists.change(list);
        self.changed.notify_one();
    }

    /// Tells every session that a list has changed.
    pub(super) fn announce(&self, list: List) {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{}/list_changed"}}"#, list.name());
        if let Ok(message) = Message::parse(Bytes::from(text), Author::Child) {
            self.tell_everybody(&message);
        }
    }
}
