//! Which sessions share which child, and how long each child is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::warn;

use crate::caller::Principal;
use crate::config;
use crate::exchange::session::SessionTerms;
use crate::exchange::shared_child::{Condition, Place, SharedChild, SharedParts};
use crate::mcp::revision::Revision;
use crate::server::breaker::Breaker;
use crate::telemetry::label::Start;
use crate::upstream::conversation::Terms;
use crate::upstream::pool::{NoChild, Pool};

/// How often it is looked whether a child is needed any longer.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A child that lived for less is replaced after a pause only, which doubles each time.
const SHORT_LIFE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Who may share a child: sessions that asked for the same revision, of the same caller where callers are kept apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) revision: Revision,
    pub(super) principal: Option<Principal>,
}

#[derive(Default)]
struct State {
    by_key: HashMap<Key, Vec<Arc<SharedChild>>>,
    keepers: JoinSet<()>,
    closed: bool,
}

/// The shared children of one server.
pub(super) struct SharedChildren {
    pub(super) pool: Arc<Pool>,
    pub(super) config: Arc<config::Server>,
    pub(super) terms: Terms,
    pub(super) session_terms: Arc<SessionTerms>,
    pub(super) breaker: Arc<Mutex<Breaker>>,
    state: Mutex<State>,
}

/// Why there is no place.
pub(super) enum NoPlace {
    /// Starts fail; the next one is tried after this.
    Breaker(Duration),
    /// The gateway is draining.
    Closed,
}

/// Why a child needs no keeper any more, or another process.
enum Done {
    Gone,
    Unused,
}

impl SharedChildren {
    pub(super) fn new(
        pool: Arc<Pool>,
        config: Arc<config::Server>,
        terms: Terms,
        session_terms: Arc<SessionTerms>,
        breaker: Arc<Mutex<Breaker>>,
    ) -> Arc<SharedChildren> {
        Arc::new(SharedChildren { pool, config, terms, session_terms, breaker, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place at the child with the most room, or at a new one where none has any.
    pub(super) fn enter(self: &Arc<Self>, key: &Key) -> Result<Place, NoPlace> {
        let mut state = self.state();
        if state.closed {
            return Err(NoPlace::Closed);
        }
        while state.keepers.try_join_next().is_some() {}
        let mut open: Vec<Arc<SharedChild>> = state.by_key.get(key).into_iter().flatten().cloned().collect();
        open.retain(|child| self.takes_more(child));
        open.sort_by_key(|child| child.members());
        // Sessions are spread over so many children before any gets more.
        let spread = open.len() >= self.config.pool.min_idle.max(1);
        let place = || open.iter().find_map(SharedChild::enter);
        if let Some(place) = spread.then(place).flatten() {
            return Ok(place);
        }
        if let Err(retry) = self.breaker().admit(Instant::now()) {
            return place().ok_or(NoPlace::Breaker(retry));
        }
        let child = SharedChild::new(self.parts(key.revision));
        let place = child.enter().ok_or(NoPlace::Closed)?;
        state.by_key.entry(key.clone()).or_default().push(Arc::clone(&child));
        let (children, key) = (Arc::clone(self), key.clone());
        state.keepers.spawn(async move {
            children.keep(&child).await;
            children.forget(&key, &child);
        });
        Ok(place)
    }

    fn parts(&self, revision: Revision) -> SharedParts {
        let pool = &self.config.pool;
        SharedParts {
            server: Arc::clone(&self.terms.server),
            revision,
            sessions: pool.max_sessions_per_child.unwrap_or(usize::MAX),
            calls: pool.max_calls_per_child.unwrap_or(usize::MAX),
            waiting: self.config.queue.messages,
            metrics: Arc::clone(&self.terms.metrics),
            next_id: Arc::clone(&self.terms.next_id),
        }
    }

    fn takes_more(&self, child: &SharedChild) -> bool {
        let usable = matches!(child.condition(), Condition::Ready | Condition::Starting);
        usable && !self.is_retired(child)
    }

    /// Whether it takes no new session.
    fn is_retired(&self, child: &SharedChild) -> bool {
        let pool = &self.config.pool;
        let is_old = pool.max_lifetime.is_some_and(|most| child.born().elapsed() >= most);
        is_old || pool.max_uses.is_some_and(|most| child.uses() >= most)
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a process behind a child for as long as sessions need one.
    async fn keep(&self, child: &Arc<SharedChild>) {
        let mut pause = Duration::ZERO;
        loop {
            let began = Instant::now();
            match self.start(child).await {
                Ok(()) => {}
                Err(condition) => {
                    child.change(condition);
                    let Condition::Failed(_) = condition else { return };
                    // Whoever waits for the first process is told; sessions that live on get another try.
                    if child.greeting().is_none() || child.members() == 0 {
                        return;
                    }
                    let retry = self.breaker().admit(Instant::now()).err();
                    sleep(retry.unwrap_or(FIRST_PAUSE)).await;
                    child.change(Condition::Starting);
                    continue;
                }
            }
            match self.until_done(child).await {
                Done::Unused => return,
                Done::Gone if child.close_if_unused() => return,
                Done::Gone => {}
            }
            pause = if began.elapsed() >= SHORT_LIFE {
                Duration::ZERO
            } else {
                (pause * 2).clamp(FIRST_PAUSE, self.config.breaker.backoff_max)
            };
            // The first time at once: whoever kills a child once wants to see it served again.
            if pause > FIRST_PAUSE {
                child.change(Condition::Failed(Start::Exited));
                sleep(pause).await;
                child.change(Condition::Starting);
            }
        }
    }

    /// One process and its handshake.
    async fn start(&self, child: &Arc<SharedChild>) -> Result<(), Condition> {
        let began = Instant::now();
        let started = match self.pool.lease().await {
            Ok(lease) => child.bring_up(lease, self.terms.clone(), self.config.timeouts.start).await,
            Err(NoChild::Full) => return Err(Condition::Full),
            Err(NoChild::Closed) => return Err(Condition::Closed),
            Err(NoChild::Spawn(error)) => {
                warn!(event = "child_start", server = %self.terms.server, error = %error);
                Err(Start::SpawnError)
            }
        };
        (self.session_terms.handshakes)(started.err().unwrap_or(Start::Ok), began.elapsed());
        started.map_err(Condition::Failed)
    }

    async fn until_done(&self, child: &SharedChild) -> Done {
        loop {
            tokio::select! {
                () = child.gone() => return Done::Gone,
                () = sleep(LOOK_EVERY) => {}
            }
            let idle = self.config.pool.idle_timeout;
            let unused = child.unused_since().is_some_and(|since| idle.is_some_and(|most| since.elapsed() >= most));
            if (unused || self.is_retired(child)) && child.close_if_unused() {
                return Done::Unused;
            }
        }
    }

    fn forget(&self, key: &Key, child: &Arc<SharedChild>) {
        let mut state = self.state();
        if let Some(children) = state.by_key.get_mut(key) {
            children.retain(|known| !Arc::ptr_eq(known, child));
            if children.is_empty() {
                state.by_key.remove(key);
            }
        }
    }

    /// Gives every child back, and starts none any more. Sessions must have ended.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.keepers.abort_all();
        let children: Vec<_> = state.by_key.drain().flat_map(|(_, children)| children).collect();
        drop(state);
        for child in children {
            child.close();
        }
    }
}
