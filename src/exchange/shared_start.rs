//! How a process comes to stand behind a shared child: its handshake, and what is restored from the one before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::{timeout, timeout_at};
use tracing::{info, warn};

use crate::exchange::greeting::Greeting;
use crate::exchange::session::Session;
use crate::exchange::shared_child::{Condition, SharedChild, tell};
use crate::mcp::message::Message;
use crate::mcp::scan::Author;
use crate::telemetry::label::Start;
use crate::upstream::conversation::{Conversation, Terms};
use crate::upstream::lease::Lease;
use crate::upstream::lifespan::Lifespan;
use crate::upstream::own_request::{own_introduction, own_request};
use crate::upstream::participant::{Loss, Participant};

/// How long a fresh process may take for the level and the subscriptions that are restored.
const RESTORE_WAIT: Duration = Duration::from_secs(10);

/// What a fresh process said to the subscriptions of the one before.
struct Restored {
    /// Those it has, or may have.
    on: Vec<Box<str>>,
    /// Those it said no to.
    refused: Vec<Box<str>>,
}

impl SharedChild {
    /// Makes the handshake with a fresh process, restores what was in effect with the one before, and lets the sessions
    /// use it.
    ///
    /// # Errors
    /// How the start ended instead.
    pub async fn bring_up(self: &Arc<Self>, lease: Lease, terms: Terms, patience: Duration) -> Result<(), Start> {
        let who: Arc<dyn Participant> = Arc::<SharedChild>::clone(self);
        let conversation = {
            // A process may have said something before anybody reads it; whoever takes that finds it here.
            let mut state = self.state();
            let conversation = Conversation::start(lease, terms, Arc::downgrade(&who)).ok_or(Start::SpawnError)?;
            state.process = Some(Arc::clone(&conversation));
            conversation
        };
        let begun = match self.shake_hands(&conversation, patience).await {
            Ok(greeting) => self.begin(&conversation, greeting).await,
            Err(how) => Err(how),
        };
        if begun.is_err() {
            self.state().process.take_if(|process| Arc::ptr_eq(process, &conversation));
            conversation.close();
        }
        begun
    }

    async fn shake_hands(
        self: &Arc<Self>,
        conversation: &Arc<Conversation>,
        patience: Duration,
    ) -> Result<Greeting, Start> {
        let deadline = tokio::time::Instant::now() + patience;
        let params = own_introduction(self.parts.revision);
        let answer = match timeout_at(deadline, self.ask(conversation, "initialize", &params)).await {
            Err(_elapsed) => return Err(Start::Timeout),
            Ok(Err(Loss::ChildGone { .. })) => return Err(Start::Exited),
            Ok(Err(Loss::TooLarge | Loss::BadLine)) => return Err(Start::Protocol),
            Ok(Ok(answer)) => answer,
        };
        let greeting = Greeting::read(&answer).ok_or(Start::Protocol)?;
        conversation.confirm_initialized();
        info!(event = "child_ready", server = %self.parts.server, child_pid = conversation.pid());
        Ok(greeting)
    }

    /// Lets the sessions use a process that has made the handshake, unless it ended meanwhile.
    async fn begin(self: &Arc<Self>, conversation: &Arc<Conversation>, greeting: Greeting) -> Result<(), Start> {
        let restored = self.restore(conversation).await;
        let (on, unknown, lost) = {
            let mut state = self.state();
            if !state.process.as_ref().is_some_and(|process| Arc::ptr_eq(process, conversation)) {
                return Err(Start::Exited);
            }
            state.is_ready = true;
            self.pid.store(conversation.pid(), Ordering::Relaxed);
            // Under the lock, as its end is: of the two the later one counts.
            self.condition.send_replace(Condition::Ready);
            let is_another = state.greeting.is_some();
            let unknown = state.lists.begin(&greeting, is_another);
            state.greeting = Some(Arc::new(greeting));
            if is_another {
                // It serves those who are there.
                let mut lifespan = Lifespan::begin(&self.parts.limits, Instant::now(), rand::random());
                (0..state.members.count()).for_each(|_| lifespan.enter());
                state.lifespan = lifespan;
            }
            let Restored { on, refused } = restored;
            let lost: Vec<_> = refused.into_iter().map(|uri| (state.lose(&uri), uri)).collect();
            (on, unknown, lost)
        };
        self.catch_up(on);
        for list in unknown {
            self.announce(list);
        }
        for (sessions, uri) in lost {
            tell_lost(sessions, &uri);
        }
        Ok(())
    }

    /// Level and subscriptions, as the sessions wish them.
    async fn restore(self: &Arc<Self>, conversation: &Arc<Conversation>) -> Restored {
        let (level, uris) = self.state().wishes.begin_anew();
        let (mut on, mut refused) = (uris.clone(), Vec::new());
        let restored = async {
            if let Some(level) = level {
                let params = json!({ "level": level.name() });
                let _answer = self.ask(conversation, "logging/setLevel", &params.to_string()).await;
            }
            for uri in &uris {
                let answer = self.ask(conversation, "resources/subscribe", &json!({ "uri": uri }).to_string()).await;
                if let Some(code) = answer.ok().and_then(|answer| answer.error_code()) {
                    warn!(event = "subscription_lost", server = %self.parts.server, uri = %uri, rpc_code = code);
                    on.retain(|known| known != uri);
                    refused.push(uri.clone());
                }
            }
        };
        // One that is not answered in time may still be on.
        let _in_time = timeout(RESTORE_WAIT, restored).await;
        Restored { on, refused }
    }

    /// Makes a request in its own name.
    pub(super) async fn ask(
        self: &Arc<Self>,
        conversation: &Arc<Conversation>,
        method: &str,
        params: &str,
    ) -> Result<Message, Loss> {
        let call = conversation.reserve();
        let message = own_request(method, params, call).map_err(|_| Loss::BadLine)?;
        let (answer, waiting) = oneshot::channel();
        self.state().own.insert(call, answer);
        // `initialize` must not be cancelled (cancellation, Behavior Requirements); who gives it up ends the process.
        let given_up = (method != "initialize").then_some(&**conversation);
        let _unless_answered = Forget { child: self, call, given_up };
        let who: Arc<dyn Participant> = Arc::<SharedChild>::clone(self);
        if conversation.request(call, who, &message).is_err() {
            return Err(Loss::ChildGone { sent: false });
        }
        waiting.await.unwrap_or(Err(Loss::ChildGone { sent: true }))
    }
}

/// Forgets a request of the child's own, whoever asked having an answer or having stopped waiting: then the process is told
/// so, and nobody keeps a place for its answer.
struct Forget<'a> {
    child: &'a SharedChild,
    call: u64,
    given_up: Option<&'a Conversation>,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let is_unanswered = self.child.state().own.remove(&self.call).is_some();
        if let Some(conversation) = self.given_up.filter(|_| is_unanswered) {
            let _seen = conversation.cancel(self.call, None, "not answered");
        }
    }
}

/// A subscription is gone, which the protocol has no word for. Whoever hears that the resource was updated reads it, and
/// learns what became of it.
fn tell_lost(sessions: Vec<Arc<Session>>, uri: &str) {
    let params = json!({ "uri": uri });
    let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{params}}}"#);
    if let Ok(message) = Message::parse(Bytes::from(text), Author::Child) {
        tell(sessions, &message);
    }
}
