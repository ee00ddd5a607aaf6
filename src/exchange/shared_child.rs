//! One child of many sessions: who has a place, whose turn it is, what everybody wishes, and what is whose.
//!
//! It takes part in the child's conversation in its own name: it makes the handshake, sets levels and subscriptions, and
//! is told what the child says to nobody in particular. The answers and the progress of calls go straight to the
//! sessions that made them. It outlives its process: another one takes over, and the sessions stay.
//!
//! Lock order: `telling`, then `state`. Nothing here calls into a session while holding either, nor into the
//! conversation while holding `state`.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;
use tracing::debug;

use crate::budget::Budget;
use crate::config::{Pool, Queue};
use crate::exchange::greeting::Greeting;
use crate::exchange::lists::{List, Lists};
use crate::exchange::session::Session;
use crate::exchange::shared_calls::Waiting;
use crate::exchange::tasks::Tasks;
use crate::exchange::turns::Turns;
use crate::exchange::wishes::{Level, Wishes};
use crate::mcp::message::Message;
use crate::mcp::revision::Revision;
use crate::telemetry::ServerMetrics;
use crate::telemetry::label::{Direction, Dropped, Notice, SessionEnd};
use crate::upstream::conversation::Conversation;
use crate::upstream::lifespan::Lifespan;
use crate::upstream::participant::{Answer, Gone, Loss, Owner, Participant};

#[cfg(test)]
mod tests;

/// How long a call that was given up may still be what the child logs about: it was told to stop, and does not say when
/// it has.
const LINGER: Duration = Duration::from_secs(30);

/// What a shared child is built with.
pub struct SharedParts {
    /// The server's name.
    pub server: Arc<str>,
    /// The revision its sessions asked for.
    pub revision: Revision,
    /// Sessions and calls it may have at once, and how long it is kept.
    pub limits: Pool,
    /// Calls that may wait for their turn, and their bytes.
    pub waiting: Queue,
    /// The memory budget.
    pub budget: Arc<Budget>,
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
    /// Its process ended; another one is started then.
    Paused(Instant),
    /// Its first process did not come up.
    Failed,
    /// No slot came free for a process.
    Full,
    /// It takes no session any more.
    Closed,
}

#[derive(Default)]
pub(super) struct Members {
    by_number: HashMap<u64, Weak<Session>>,
    next: u64,
}

impl Members {
    /// Whether this session has a place.
    pub(super) fn has(&self, number: u64) -> bool {
        self.by_number.contains_key(&number)
    }

    /// How many have one.
    pub(super) fn count(&self) -> usize {
        self.by_number.len()
    }

    /// The session with this place, if it is seated.
    pub(super) fn get(&self, number: u64) -> Option<Arc<Session>> {
        self.by_number.get(&number)?.upgrade()
    }
}

pub(super) struct State {
    /// The dialogue with the process there is, from its start on.
    pub(super) process: Option<Arc<Conversation>>,
    /// Whether that process answered, and has been told what is in effect.
    pub(super) is_ready: bool,
    pub(super) greeting: Option<Arc<Greeting>>,
    pub(super) members: Members,
    pub(super) turns: Turns<Waiting>,
    pub(super) wishes: Wishes,
    pub(super) tasks: Tasks,
    pub(super) lists: Lists,
    /// Requests of its own whose answers are waited for.
    pub(super) own: HashMap<u64, oneshot::Sender<Result<Message, Loss>>>,
    /// Requests of its own that the child has not answered, and nobody waits for; oldest first.
    pub(super) told: VecDeque<u64>,
    /// The sessions that gave calls up, and when last.
    abandoned: HashMap<u64, Instant>,
    /// That of its process.
    pub(super) lifespan: Lifespan,
}

impl State {
    /// The dialogue with the process, if sessions can use it.
    pub(super) fn conversation(&self) -> Option<Arc<Conversation>> {
        self.process.clone().filter(|_| self.is_ready)
    }

    /// A subscription is gone. Gives the sessions that had it.
    pub(super) fn lose(&mut self, uri: &str) -> Vec<Arc<Session>> {
        self.wishes.lose(uri).into_iter().filter_map(|number| self.members.get(number)).collect()
    }
}

/// The child of many sessions.
pub struct SharedChild {
    /// Itself, for what it asks while it is told something.
    own: Weak<SharedChild>,
    pub(super) parts: SharedParts,
    /// The process of the last handshake.
    pub(super) pid: AtomicU32,
    /// Held from a change of the wishes until the child was told: it hears of them in the order they came about.
    pub(super) telling: Mutex<()>,
    state: Mutex<State>,
    pub(super) condition: watch::Sender<Condition>,
    /// A list has changed.
    pub(super) changed: Notify,
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
        let calls = parts.limits.max_calls_per_child.unwrap_or(usize::MAX);
        let state = State {
            process: None,
            is_ready: false,
            greeting: None,
            members: Members::default(),
            turns: Turns::new(calls, parts.waiting.messages, parts.waiting.bytes),
            wishes: Wishes::default(),
            tasks: Tasks::default(),
            lists: Lists::default(),
            own: HashMap::new(),
            told: VecDeque::new(),
            abandoned: HashMap::new(),
            lifespan: Lifespan::begin(&parts.limits, Instant::now(), rand::random()),
        };
        Arc::new_cyclic(|own| SharedChild {
            own: Weak::clone(own),
            parts,
            pid: AtomicU32::new(0),
            telling: Mutex::new(()),
            state: Mutex::new(state),
            condition: watch::Sender::new(Condition::Starting),
            changed: Notify::new(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for one session; `None` if there is none.
    #[must_use]
    pub fn enter(self: &Arc<Self>) -> Option<Place> {
        let mut state = self.state();
        let most = self.parts.limits.max_sessions_per_child.unwrap_or(usize::MAX);
        let is_full = state.members.by_number.len() >= most || !state.lifespan.takes_session(Instant::now());
        if is_full || *self.condition.borrow() == Condition::Closed {
            return None;
        }
        let number = state.members.next;
        state.members.next += 1;
        state.members.by_number.insert(number, Weak::new());
        state.lifespan.enter();
        drop(state);
        Some(Place { child: Arc::clone(self), number })
    }

    /// Says whose place it is; from here on the session hears what concerns it.
    pub(super) fn seat(self: &Arc<Self>, number: u64, session: &Arc<Session>) {
        if let Some(member) = self.state().members.by_number.get_mut(&number) {
            *member = Arc::downgrade(session);
        }
        self.begin_wishing(number);
    }

    /// Places taken, unless it takes no further session now.
    #[must_use]
    pub fn occupancy(&self) -> Option<usize> {
        let is_open = matches!(self.condition(), Condition::Ready | Condition::Starting);
        let state = self.state();
        (is_open && state.lifespan.takes_session(Instant::now())).then(|| state.members.by_number.len())
    }

    /// Whether its age and its uses leave room for one more session.
    #[must_use]
    pub fn takes_session(&self) -> bool {
        self.state().lifespan.takes_session(Instant::now())
    }

    /// Since when nobody has a place.
    #[must_use]
    pub fn unused_since(&self) -> Option<Instant> {
        self.state().lifespan.unused_since()
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
        self.state().conversation()
    }

    /// What the process answered to `initialize`.
    #[must_use]
    pub fn greeting(&self) -> Option<Arc<Greeting>> {
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

    fn leave(self: &Arc<Self>, number: u64) {
        {
            let mut state = self.state();
            if state.members.by_number.remove(&number).is_none() {
                return;
            }
            state.lifespan.leave(Instant::now());
            state.tasks.leave(number);
        }
        self.end_wishing(number);
        self.cancel_ownerless();
    }

    /// As [`SharedChild::close`], if its process is to be stopped for its age, its uses or its idleness, which is never
    /// while a session has a place. Tells whether it was closed.
    pub fn close_if_over(&self) -> bool {
        let now = Instant::now();
        let (process, is_spent) = {
            let mut state = self.state();
            if !state.lifespan.is_over(now, true) {
                return false;
            }
            // Under the lock that gives out places.
            self.condition.send_replace(Condition::Closed);
            (state.process.take(), !state.lifespan.takes_session(now))
        };
        match process {
            Some(process) if is_spent => process.recycle(),
            Some(process) => process.close(),
            None => {}
        }
        true
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
        let process = {
            let mut state = self.state();
            self.condition.send_replace(Condition::Closed);
            state.process.take()
        };
        if let Some(process) = process {
            process.close();
        }
    }

    /// Ends its sessions, so that their clients start again elsewhere.
    pub fn end_sessions(&self) {
        for session in self.everybody() {
            session.end(SessionEnd::ChildGone);
        }
    }

    fn everybody(&self) -> Vec<Arc<Session>> {
        self.state().members.by_number.values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn tell_everybody(&self, message: &Message) {
        tell(self.everybody(), message);
    }

    /// Subscribers hear of updates, and nobody else.
    pub(super) fn tell_subscribers(&self, message: &Message) {
        let sessions: Vec<Arc<Session>> = {
            let state = self.state();
            let subscribers = message.string(message.fields().uri).map(|uri| state.wishes.subscribers(&uri));
            subscribers.into_iter().flatten().filter_map(|number| state.members.get(number)).collect()
        };
        if sessions.is_empty() {
            self.drop_notification(Dropped::NoRequest);
        }
        tell(sessions, message);
    }

    /// A log message names no request: unless it names a task, it is some session's only where one call alone can have
    /// caused it.
    fn tell_the_only_caller(&self, message: &Message) {
        let level = message.string(message.fields().level).and_then(|name| Level::named(&name));
        let session = {
            let mut state = self.state();
            state.abandoned.retain(|_, since| since.elapsed() < LINGER);
            let hears = |number: &u64| level.is_none_or(|level| state.wishes.hears(*number, level));
            let is_alone =
                |number: &u64| state.abandoned.keys().all(|other| other == number) && state.tasks.are_all_of(*number);
            let whose = match message.string(message.fields().related_task) {
                Some(task) => state.tasks.owner(&task),
                None => state.turns.only().filter(is_alone),
            };
            whose.filter(hears).and_then(|number| state.members.get(number))
        };
        match session {
            Some(session) => session.hear_alone(message),
            None => {
                debug!(event = "child_log", server = %self.parts.server, level = level.map_or("", Level::name));
                self.drop_notification(Dropped::NoRequest);
            }
        }
    }

    /// A session gave a call up that the child may still work on.
    pub(super) fn note_abandoned(&self, session: u64) {
        let mut state = self.state();
        state.abandoned.retain(|_, since| since.elapsed() < LINGER);
        state.abandoned.insert(session, Instant::now());
    }

    pub(super) fn drop_notification(&self, why: Dropped) {
        self.parts.metrics.notification_dropped(why);
    }
}

impl Participant for SharedChild {
    fn answer(&self, call: u64, answer: Answer<'_>) {
        let waiting = {
            let mut state = self.state();
            state.told.retain(|told| *told != call);
            state.own.remove(&call)
        };
        if let Some(waiting) = waiting {
            // Whoever asked may have stopped waiting.
            let _late = waiting.send(match answer {
                Answer::Message(message) => Ok(message.clone()),
                Answer::Lost(loss) => Err(loss),
            });
        } else if let Some(own) = self.own.upgrade() {
            own.note_new_task(call, answer, false);
        }
    }

    /// Whose it would be cannot be known, and the child was told of no capability.
    fn request(&self, message: &Message) {
        let process = self.state().process.clone();
        if let (Some(id), Some(process)) = (message.id(), process) {
            process.refuse(&id, -32601, "a shared server cannot ask its clients");
        }
    }

    fn notification(&self, message: &Message, _owner: Option<&Owner>) {
        let kind = Notice::of(message.method());
        self.parts.metrics.notification(Direction::ToClient, kind);
        match kind {
            Notice::ListChanged => {
                if let Some(list) = List::changed(message.method()) {
                    self.note_change(list);
                }
                self.tell_everybody(message);
            }
            Notice::ResourceUpdated => self.tell_subscribers(message),
            Notice::Log => self.tell_the_only_caller(message),
            Notice::Other if message.calls("notifications/tasks/status") => self.tell_owner(message),
            Notice::Progress | Notice::Cancelled | Notice::Other => self.drop_notification(Dropped::NoRequest),
        }
    }

    fn late_progress(&self, message: &Message, call: u64) -> bool {
        self.tell_progress(message, call)
    }

    fn settle(&self) {}

    /// Every call that was with it has its answer; those that waited for their turn get one here.
    fn gone(&self, _gone: Gone) {
        let process = self.state().process.clone();
        if process.is_some_and(|process| !process.is_over()) {
            // It was given up before it ended, and another one has taken its place.
            return;
        }
        let waiting = {
            let mut state = self.state();
            state.process = None;
            state.is_ready = false;
            state.own.clear();
            state.told.clear();
            state.abandoned.clear();
            state.tasks.clear();
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
            waiting.lose(call);
        }
    }

    fn takes_batches(&self) -> bool {
        self.greeting().is_some_and(|greeting| greeting.revision().has_batches())
    }

    /// A slow reader costs itself only: the child is read on for the others.
    fn congestion(&self) -> Option<watch::Receiver<bool>> {
        None
    }
}

/// Lets each of them hear it.
pub(super) fn tell(sessions: Vec<Arc<Session>>, message: &Message) {
    for session in sessions {
        session.hear(message);
    }
}
