//! Which sessions share which child, and how long each child is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::warn;

use crate::caller::{OwnVariables, Principal};
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

/// A child that lived for less is replaced after a pause, which doubles each time.
const SHORT_LIFE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Who may share a child: sessions that asked for the same revision, of the same caller where callers are kept apart, and
/// that brought the same values for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) revision: Revision,
    pub(super) principal: Option<Principal>,
    /// The digest of the values.
    pub(super) own: Option<[u8; 32]>,
}

#[derive(Default)]
struct State {
    by_key: HashMap<Key, Vec<Arc<SharedChild>>>,
    keepers: JoinSet<()>,
    /// No place is given out any more; children go with their last session.
    retired: bool,
    closed: bool,
}

/// The shared children of one server.
pub(super) struct SharedChildren {
    pool: Arc<Pool>,
    config: Arc<config::Server>,
    terms: Terms,
    session_terms: Arc<SessionTerms>,
    breaker: Arc<Mutex<Breaker>>,
    state: Mutex<State>,
}

/// Why there is no place.
pub(super) enum NoPlace {
    /// Starts fail; the next one is tried after this.
    Breaker(Duration),
    /// The gateway is draining.
    Closed,
}

/// The pauses before processes that follow some that ended soon.
struct Backoff {
    next: Option<Duration>,
    most: Duration,
}

impl Backoff {
    /// The pause after a process that lived so long. None after the first that ended soon: whoever kills a child once
    /// wants to see it served again.
    fn after(&mut self, life: Duration) -> Duration {
        if life >= SHORT_LIFE {
            self.next = None;
        }
        let pause = self.next.unwrap_or_default();
        self.next = Some(if pause.is_zero() { FIRST_PAUSE } else { pause * 2 }.min(self.most));
        pause
    }
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
        mut terms: Terms,
        session_terms: Arc<SessionTerms>,
        breaker: Arc<Mutex<Breaker>>,
    ) -> Arc<SharedChildren> {
        // Another session's call may be what keeps a child that answers nothing; that call has its own time to end.
        terms.hang_after = config.timeouts.call_idle.map_or(terms.hang_after, |idle| idle.max(terms.hang_after));
        Arc::new(SharedChildren { pool, config, terms, session_terms, breaker, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place at the child with the most room, or at a new one where none has any. `own` is what the key has the
    /// digest of.
    pub(super) fn enter(self: &Arc<Self>, key: &Key, own: &OwnVariables) -> Result<Place, NoPlace> {
        let mut state = self.state();
        if state.closed || state.retired {
            return Err(NoPlace::Closed);
        }
        while state.keepers.try_join_next().is_some() {}
        let children = state.by_key.get(key).into_iter().flatten();
        let mut open: Vec<_> = children.filter_map(|child| Some((child.occupancy()?, child))).collect();
        open.sort_by_key(|(occupancy, _)| *occupancy);
        // Sessions are spread over so many children before any gets more.
        let spread = open.len() >= self.pool.spares_kept().max(1);
        let place = || open.iter().find_map(|(_, child)| child.enter());
        if let Some(place) = spread.then(place).flatten() {
            return Ok(place);
        }
        // The next process of a child whose processes end soon is one that is waited for, not one more.
        let known = state.by_key.get(key).into_iter().flatten().filter(|child| child.takes_session());
        let pausing = known.filter_map(|child| pause_of(child)).min();
        let refused = pausing.or_else(|| self.breaker().admit(Instant::now()).err());
        if let Some(retry) = refused {
            return place().ok_or(NoPlace::Breaker(retry));
        }
        let child = SharedChild::new(self.parts(key.revision));
        let place = child.enter().ok_or(NoPlace::Closed)?;
        state.by_key.entry(key.clone()).or_default().push(Arc::clone(&child));
        let (children, key, own) = (Arc::clone(self), key.clone(), own.clone());
        state.keepers.spawn(async move {
            children.keep(&child, &own).await;
            children.forget(&key, &child);
        });
        Ok(place)
    }

    fn parts(&self, revision: Revision) -> SharedParts {
        SharedParts {
            server: Arc::clone(&self.terms.server),
            revision,
            limits: self.config.pool.clone(),
            waiting: self.config.queue.clone(),
            budget: Arc::clone(&self.terms.budget),
            metrics: Arc::clone(&self.terms.metrics),
            next_id: Arc::clone(&self.terms.next_id),
        }
    }

    /// Gives out no place any more: each child goes with its last session, and takes its sessions along if it goes
    /// first.
    pub(super) fn retire(&self) {
        self.state().retired = true;
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a process behind a child for as long as sessions need one.
    async fn keep(&self, child: &Arc<SharedChild>, own: &OwnVariables) {
        let mut backoff = Backoff { next: None, most: self.config.breaker.backoff_max };
        loop {
            let began = Instant::now();
            let pause = match self.start(child, own).await {
                Ok(()) => {
                    let done = tokio::select! {
                        done = self.until_done(child) => done,
                        never = child.follow_lists() => match never {},
                    };
                    if matches!(done, Done::Unused) {
                        return;
                    }
                    backoff.after(began.elapsed())
                }
                // Whoever waits for the first process is told; sessions that live on get another try.
                Err(condition) if condition == Condition::Closed || child.greeting().is_none() => {
                    child.change(condition);
                    // There will be no other process for those that are here.
                    child.end_sessions();
                    return;
                }
                Err(_) => backoff.after(Duration::ZERO).max(FIRST_PAUSE),
            };
            if child.close_if_unused() {
                return;
            }
            self.pause(child, pause).await;
            if child.close_if_unused() {
                return;
            }
            child.change(Condition::Starting);
        }
    }

    /// Waits before another process is started, at least so long, and until the breaker admits one.
    async fn pause(&self, child: &SharedChild, least: Duration) {
        let mut pause = least;
        loop {
            if !pause.is_zero() {
                child.change(Condition::Paused(Instant::now() + pause));
                sleep(pause).await;
            }
            let admitted = self.breaker().admit(Instant::now());
            match admitted {
                Ok(()) => return,
                Err(retry) => pause = retry,
            }
        }
    }

    /// One process and its handshake.
    async fn start(&self, child: &Arc<SharedChild>, own: &OwnVariables) -> Result<(), Condition> {
        let began = Instant::now();
        let started = match self.pool.lease_with(own).await {
            Ok(lease) => child.bring_up(lease, self.terms.clone(), self.config.timeouts.start).await,
            Err(NoChild::Full) => return Err(Condition::Full),
            Err(NoChild::Closed) => return Err(Condition::Closed),
            Err(NoChild::Spawn(error)) => {
                warn!(event = "child_start", server = %self.terms.server, error = %error);
                Err(Start::SpawnError)
            }
        };
        (self.session_terms.handshakes)(started.err().unwrap_or(Start::Ok), began.elapsed());
        started.map_err(|_| Condition::Failed)
    }

    async fn until_done(&self, child: &Arc<SharedChild>) -> Done {
        loop {
            tokio::select! {
                () = child.gone() => return Done::Gone,
                () = sleep(LOOK_EVERY) => child.cancel_ownerless(),
            }
            // A server that a reload took the place of keeps a child only while sessions have one.
            let retired = self.state().retired;
            if child.close_if_over() || retired && child.close_if_unused() {
                return Done::Unused;
            }
        }
    }

    /// Stops the child that nobody has used for longest. Tells whether there is one.
    pub(super) fn make_room(&self) -> bool {
        let children: Vec<_> = self.state().by_key.values().flatten().cloned().collect();
        let idle = children.iter().filter(|child| child.condition() == Condition::Ready);
        let mut unused: Vec<_> = idle.filter_map(|child| Some((child.unused_since()?, child))).collect();
        unused.sort_by_key(|(since, _)| *since);
        unused.iter().any(|(_, child)| child.close_if_unused())
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

/// How long until a child whose processes end soon is given another.
fn pause_of(child: &SharedChild) -> Option<Duration> {
    match child.condition() {
        Condition::Paused(until) => Some(until.saturating_duration_since(Instant::now())),
        _ => None,
    }
}
