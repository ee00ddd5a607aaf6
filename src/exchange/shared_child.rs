//! One child of many sessions: who has a place, whose turn it is, what everybody wishes, and what is whose.
//!
//! It takes part in the child's conversation in its own name: it makes the handshake, sets levels and subscriptions, and
//! is told what the child says to nobody in particular. The answers and the progress of calls go straight to the
//! sessions that made them. It outlives its process: another one takes over, and the sessions stay.
//!
//! Lock order: nothing here calls into a session or the conversation while holding `state`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{oneshot, watch};
use tokio::time::{timeout, timeout_at};
use tracing::{debug, info};

use crate::exchange::handshake::settled_revision;
use crate::exchange::session::Session;
use crate::exchange::turns::{Turn, Turns};
use crate::exchange::wishes::{Level, Wishes};
use crate::mcp::ids::put_u64;
use crate::mcp::message::{Kind, Message};
use crate::mcp::revision::Revision;
use crate::mcp::scan::Author;
use crate::telemetry::ServerMetrics;
use crate::telemetry::label::{Direction, Dropped, Notice, Start};
use crate::upstream::conversation::{Conversation, Terms};
use crate::upstream::lease::Lease;
use crate::upstream::outbound::NotSent;
use crate::upstream::participant::{Answer, Gone, Loss, Owner, Participant};

/// How long the child may take for a level or a subscription that is restored.
const RESTORE_WAIT: Duration = Duration::from_secs(10);

/// What a shared child is built with.
pub struct SharedParts {
    /// The server's name.
    pub server: Arc<str>,
    /// The revision its sessions asked for.
    pub revision: Revision,
    /// Sessions it may have at once.
    pub sessions: usize,
    /// Calls the child may have at once.
    pub calls: usize,
    /// Calls that may wait for their turn.
    pub waiting: usize,
    /// The server's numbers.
    pub metrics: Arc<ServerMetrics>,
    /// The next child-side id of the server.
    pub next_id: Arc<AtomicU64>,
}

/// Whether sessions can use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A process is on its way.
    Starting,
    /// Its process answers.
    Ready,
    /// There will be none soon; why.
    Failed(Start),
    /// No slot came free for a process.
    Full,
    /// It takes no session any more.
    Closed,
}

/// A call that waits for its turn.
pub(super) struct Waiting {
    who: Arc<dyn Participant>,
    message: Message,
}

#[derive(Default)]
struct Members {
    by_number: HashMap<u64, Weak<Session>>,
    next: u64,
}

struct State {
    conversation: Option<Arc<Conversation>>,
    greeting: Option<Arc<Message>>,
    members: Members,
    turns: Turns<Waiting>,
    wishes: Wishes,
    /// Requests of its own that the child has not answered.
    own: HashMap<u64, oneshot::Sender<Result<Message, Loss>>>,
    /// Since when it has no session.
    unused: Option<Instant>,
    uses: usize,
}

/// The child of many sessions.
pub struct SharedChild {
    parts: SharedParts,
    born: Instant,
    /// The process of the last handshake.
    pid: AtomicU32,
    state: Mutex<State>,
    condition: watch::Sender<Condition>,
}

/// A session's place at a shared child; dropping it frees it.
pub struct Place {
    child: Arc<SharedChild>,
    number: u64,
}

impl Place {
    /// The child.
    #[must_use]
    pub fn child(&self) -> &Arc<SharedChild> {
        &self.child
    }

    /// The session's number there.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Place {
    /// Frees it; only the first call does anything.
    pub(super) fn leave(&self) {
        self.child.leave(self.number);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

impl SharedChild {
    /// One without a process yet.
    #[must_use]
    pub fn new(parts: SharedParts) -> Arc<SharedChild> {
        let state = State {
            conversation: None,
            greeting: None,
            members: Members::default(),
            turns: Turns::new(parts.calls, parts.waiting),
            wishes: Wishes::default(),
            own: HashMap::new(),
            unused: Some(Instant::now()),
            uses: 0,
        };
        Arc::new(SharedChild {
            parts,
            born: Instant::now(),
            pid: AtomicU32::new(0),
            state: Mutex::new(state),
            condition: watch::Sender::new(Condition::Starting),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for one session; `None` if there is none.
    #[must_use]
    pub fn enter(self: &Arc<Self>) -> Option<Place> {
        let mut state = self.state();
        if state.members.by_number.len() >= self.parts.sessions || *self.condition.borrow() == Condition::Closed {
            return None;
        }
        let number = state.members.next;
        state.members.next += 1;
        state.members.by_number.insert(number, Weak::new());
        state.unused = None;
        state.uses += 1;
        drop(state);
        Some(Place { child: Arc::clone(self), number })
    }

    /// Says whose place it is; from here on the session hears what concerns it.
    pub(super) fn seat(&self, number: u64, session: &Arc<Session>) {
        if let Some(member) = self.state().members.by_number.get_mut(&number) {
            *member = Arc::downgrade(session);
        }
    }

    /// Places taken.
    #[must_use]
    pub fn members(&self) -> usize {
        self.state().members.by_number.len()
    }

    /// Places ever taken.
    #[must_use]
    pub fn uses(&self) -> usize {
        self.state().uses
    }

    /// Since when nobody has a place.
    #[must_use]
    pub fn unused_since(&self) -> Option<Instant> {
        self.state().unused
    }

    /// The process of the last handshake.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// A fresh id for a call.
    pub(super) fn reserve(&self) -> u64 {
        self.parts.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The dialogue with the process, while one answers.
    #[must_use]
    pub fn conversation(&self) -> Option<Arc<Conversation>> {
        self.state().conversation.clone()
    }

    /// What the process answered to `initialize`.
    #[must_use]
    pub fn greeting(&self) -> Option<Arc<Message>> {
        self.state().greeting.clone()
    }

    /// Whether sessions can use it.
    #[must_use]
    pub fn condition(&self) -> Condition {
        *self.condition.borrow()
    }

    /// Says whether it can be used.
    pub fn change(&self, condition: Condition) {
        self.condition.send_replace(condition);
    }

    /// When it was made.
    #[must_use]
    pub fn born(&self) -> Instant {
        self.born
    }

    /// Waits until it is known whether it can be used, for `patience` at most.
    pub async fn settled(&self, patience: Duration) -> Condition {
        let mut condition = self.condition.subscribe();
        let settled = timeout(patience, condition.wait_for(|condition| *condition != Condition::Starting)).await;
        match settled {
            Ok(Ok(condition)) => *condition,
            Ok(Err(_)) | Err(_) => Condition::Starting,
        }
    }

    /// Waits until its process is gone.
    pub async fn gone(&self) {
        let mut condition = self.condition.subscribe();
        let _closed = condition.wait_for(|condition| *condition != Condition::Ready).await;
    }

    /// Makes the handshake with a fresh process, restores what was in effect with the one before, and lets the sessions
    /// use it.
    ///
    /// # Errors
    /// How the start ended instead.
    pub async fn bring_up(self: &Arc<Self>, lease: Lease, terms: Terms, patience: Duration) -> Result<(), Start> {
        let deadline = tokio::time::Instant::now() + patience;
        let who: Arc<dyn Participant> = Arc::<SharedChild>::clone(self);
        let conversation = Conversation::start(lease, terms, Arc::downgrade(&who)).ok_or(Start::SpawnError)?;
        let params = initialize(self.parts.revision);
        let answer = match timeout_at(deadline, self.ask(&conversation, "initialize", &params)).await {
            Err(_elapsed) => return Err(Start::Timeout),
            Ok(Err(Loss::ChildGone { .. })) => return Err(Start::Exited),
            Ok(Err(Loss::TooLarge | Loss::BadLine)) => return Err(Start::Protocol),
            Ok(Ok(answer)) if answer.kind() != Kind::Result || settled_revision(&answer).is_none() => {
                return Err(Start::Protocol);
            }
            Ok(Ok(answer)) => answer,
        };
        conversation.confirm_initialized();
        info!(event = "child_ready", server = %self.parts.server, child_pid = conversation.pid());
        self.restore(&conversation).await;
        let replaced = {
            let mut state = self.state();
            // One that went meanwhile has said so already, and will not again.
            if conversation.is_over() {
                return Err(Start::Exited);
            }
            self.pid.store(conversation.pid(), Ordering::Relaxed);
            state.conversation = Some(conversation);
            // Under the lock, so that an end comes before or after it.
            self.condition.send_replace(Condition::Ready);
            state.greeting.replace(Arc::new(answer.detached())).is_some()
        };
        if replaced {
            self.announce_changes();
        }
        Ok(())
    }

    /// Level and subscriptions, as the sessions wish them.
    async fn restore(self: &Arc<Self>, conversation: &Arc<Conversation>) {
        let (level, uris): (Option<Level>, Vec<String>) = {
            let state = self.state();
            (state.wishes.level(), state.wishes.uris().map(str::to_owned).collect())
        };
        let mut restored = Vec::new();
        if let Some(level) = level {
            restored.push(("logging/setLevel", serde_json::json!({ "level": level.name() })));
        }
        restored.extend(uris.into_iter().map(|uri| ("resources/subscribe", serde_json::json!({ "uri": uri }))));
        for (method, params) in restored {
            // One that fails is lost to its sessions as it would be had it failed at first; the others are not.
            let _failed = timeout(RESTORE_WAIT, self.ask(conversation, method, &params.to_string())).await;
        }
    }

    /// The lists of another process may be others.
    fn announce_changes(&self) {
        let lists = [
            "notifications/tools/list_changed",
            "notifications/resources/list_changed",
            "notifications/prompts/list_changed",
        ];
        let Some(greeting) = self.greeting() else { return };
        for list in lists {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"{list}"}}"#);
            if let Ok(message) = Message::parse(Bytes::from(text), Author::Child)
                && declares_changes(&greeting, list)
            {
                self.tell(self.everybody(), &message);
            }
        }
    }

    /// Makes a request in its own name.
    async fn ask(
        self: &Arc<Self>,
        conversation: &Arc<Conversation>,
        method: &str,
        params: &str,
    ) -> Result<Message, Loss> {
        let call = conversation.reserve();
        let mut text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":"#).into_bytes();
        put_u64(&mut text, call);
        text.push(b'}');
        let message = Message::parse(Bytes::from(text), Author::Client).map_err(|_| Loss::BadLine)?;
        let (answer, waiting) = oneshot::channel();
        self.state().own.insert(call, answer);
        let _unless_answered = Forget { child: self, call };
        let who: Arc<dyn Participant> = Arc::<SharedChild>::clone(self);
        if conversation.request(call, who, &message).is_err() {
            return Err(Loss::ChildGone { sent: false });
        }
        waiting.await.unwrap_or(Err(Loss::ChildGone { sent: true }))
    }

    /// As [`SharedChild::ask`], for what nobody waits for.
    pub(super) fn wish(self: &Arc<Self>, method: &'static str, params: String) {
        let Some(conversation) = self.conversation() else { return };
        let child = Arc::clone(self);
        tokio::spawn(async move {
            let _unanswered = timeout(RESTORE_WAIT, child.ask(&conversation, method, &params)).await;
        });
    }

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
            let Some(conversation) = state.conversation.clone() else { return Err(NotSent::Closed) };
            let keep = || Waiting { who: Arc::clone(&who), message: message.clone().detached() };
            match state.turns.ask(session, call, keep) {
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

    /// Takes a call back that waits for its turn. Tells whether it did.
    pub(super) fn take_back(&self, session: u64, call: u64) -> bool {
        self.state().turns.take_back(session, call).is_some()
    }

    /// A call is no longer with the child: the next one goes.
    pub(super) fn end_turn(&self, call: u64) {
        let mut ended = call;
        loop {
            let next = {
                let mut state = self.state();
                let conversation = state.conversation.clone();
                state.turns.end(ended).map(|next| (next, conversation))
            };
            let Some(((call, waiting), conversation)) = next else { return };
            let sent = conversation.map(|it| it.request(call, Arc::clone(&waiting.who), &waiting.message));
            if matches!(sent, Some(Ok(()))) {
                return;
            }
            waiting.who.answer(call, Answer::Lost(Loss::ChildGone { sent: false }));
            ended = call;
        }
    }

    /// What the sessions wish.
    pub(super) fn wishes<T>(&self, change: impl FnOnce(&mut Wishes) -> T) -> T {
        change(&mut self.state().wishes)
    }

    fn leave(self: &Arc<Self>, number: u64) {
        let (uris, level) = {
            let mut state = self.state();
            if state.members.by_number.remove(&number).is_none() {
                return;
            }
            if state.members.by_number.is_empty() {
                state.unused = Some(Instant::now());
            }
            state.wishes.leave(number)
        };
        // Without a runtime the process is ending.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        for uri in uris {
            self.wish("resources/unsubscribe", serde_json::json!({ "uri": uri }).to_string());
        }
        if let Some(level) = level {
            self.wish("logging/setLevel", serde_json::json!({ "level": level.name() }).to_string());
        }
    }

    /// As [`SharedChild::close`], unless a session has a place. Tells whether it was closed.
    pub fn close_if_unused(&self) -> bool {
        {
            let state = self.state();
            if !state.members.by_number.is_empty() {
                return false;
            }
            // Under the lock that gives out places.
            self.condition.send_replace(Condition::Closed);
        }
        self.close();
        true
    }

    /// Ends the dialogue with the process, which is then stopped.
    pub fn close(&self) {
        self.condition.send_replace(Condition::Closed);
        let conversation = self.state().conversation.take();
        if let Some(conversation) = conversation {
            conversation.close();
        }
    }

    fn everybody(&self) -> Vec<Arc<Session>> {
        self.state().members.by_number.values().filter_map(Weak::upgrade).collect()
    }

    fn tell(&self, sessions: Vec<Arc<Session>>, message: &Message) {
        for session in sessions {
            session.hear(message);
        }
    }

    /// Subscribers hear of updates, and nobody else.
    fn tell_subscribers(&self, message: &Message) {
        let sessions: Vec<Arc<Session>> = {
            let state = self.state();
            let subscribers = message.string(message.fields().uri).map(|uri| state.wishes.subscribers(&uri));
            let members = &state.members.by_number;
            subscribers.into_iter().flatten().filter_map(|number| members.get(&number)?.upgrade()).collect()
        };
        if sessions.is_empty() {
            self.drop_notification(Dropped::NoRequest);
        }
        self.tell(sessions, message);
    }

    /// A log message names no request: it is some session's only where one call alone can have caused it.
    fn tell_the_only_caller(&self, message: &Message) {
        let level = message.string(message.fields().level).and_then(|name| Level::named(&name));
        let session = {
            let state = self.state();
            let hears = |number: &u64| level.is_none_or(|level| state.wishes.hears(*number, level));
            let caller = state.turns.only().filter(hears);
            caller.and_then(|number| state.members.by_number.get(&number)?.upgrade())
        };
        match session {
            Some(session) => session.hear(message),
            None => {
                debug!(event = "child_log", server = %self.parts.server, level = level.map_or("", Level::name));
                self.drop_notification(Dropped::NoRequest);
            }
        }
    }

    /// Whether the server declared this capability.
    pub(super) fn offers(&self, capability: &str) -> bool {
        let greeting = self.greeting();
        greeting.is_some_and(|greeting| !capabilities(&greeting)[capability].is_null())
    }

    fn drop_notification(&self, why: Dropped) {
        self.parts.metrics.notification_dropped(why);
    }
}

/// Forgets a request of the child's own, whoever asked having an answer or having stopped waiting.
struct Forget<'a> {
    child: &'a SharedChild,
    call: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.child.state().own.remove(&self.call);
    }
}

impl Participant for SharedChild {
    fn answer(&self, call: u64, answer: Answer<'_>) {
        let waiting = self.state().own.remove(&call);
        if let Some(waiting) = waiting {
            // Whoever asked may have stopped waiting.
            let _late = waiting.send(match answer {
                Answer::Message(message) => Ok(message.clone()),
                Answer::Lost(loss) => Err(loss),
            });
        }
    }

    /// Whose it would be cannot be known, and the child was told of no capability.
    fn request(&self, message: &Message) {
        if let (Some(id), Some(conversation)) = (message.id(), self.conversation()) {
            conversation.refuse(&id, -32601, "a shared server cannot ask its clients");
        }
    }

    fn notification(&self, message: &Message, _owner: Option<Owner>) {
        let kind = Notice::of(message.method());
        self.parts.metrics.notification(Direction::ToClient, kind);
        match kind {
            Notice::ListChanged => self.tell(self.everybody(), message),
            Notice::ResourceUpdated => self.tell_subscribers(message),
            Notice::Log => self.tell_the_only_caller(message),
            Notice::Progress | Notice::Cancelled | Notice::Other => self.drop_notification(Dropped::NoRequest),
        }
    }

    fn settle(&self) {}

    /// Every call that was with it has its answer; those that waited for their turn get one here.
    fn gone(&self, _gone: Gone) {
        let waiting = {
            let mut state = self.state();
            state.conversation = None;
            state.own.clear();
            self.condition.send_if_modified(|condition| {
                let was_ready = *condition == Condition::Ready;
                if was_ready {
                    *condition = Condition::Starting;
                }
                was_ready
            });
            state.turns.clear()
        };
        for (call, waiting) in waiting {
            waiting.who.answer(call, Answer::Lost(Loss::ChildGone { sent: false }));
        }
    }

    fn takes_batches(&self) -> bool {
        self.greeting().and_then(|greeting| settled_revision(&greeting)).is_some_and(Revision::has_batches)
    }

    /// A slow reader costs itself only: the child is read on for the others.
    fn congestion(&self) -> Option<watch::Receiver<bool>> {
        None
    }
}

/// Whether the server said that it tells of changes of this list.
fn declares_changes(greeting: &Message, list: &str) -> bool {
    let kind = list.trim_start_matches("notifications/").trim_end_matches("/list_changed");
    capabilities(greeting)[kind]["listChanged"] == true
}

/// The capabilities of an InitializeResult; null where there are none.
fn capabilities(greeting: &Message) -> serde_json::Value {
    let result = greeting.fields().result.map_or(&b"null"[..], |result| result.of(greeting.text()));
    let mut result: serde_json::Value = serde_json::from_slice(result).unwrap_or_default();
    result["capabilities"].take()
}

/// The parameters of `initialize`: the gateway's own name, and no capability a session might not have.
fn initialize(revision: Revision) -> String {
    serde_json::json!({
        "protocolVersion": revision.name(),
        "capabilities": {},
        "clientInfo": { "name": "gangway", "version": env!("CARGO_PKG_VERSION") },
    })
    .to_string()
}
