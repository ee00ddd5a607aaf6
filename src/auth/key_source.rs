//! The keys of one issuer: fetched in the background, kept while the issuer is out of reach, and fetched again when a
//! token names a key that is not there.
//!
//! One task fetches, so there is never more than one exchange with an issuer. A request that wants a key waits for that
//! task, and for no longer than one attempt. Tokens of strangers cost at most one fetch in [`PAUSE`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::jwks::{KeySet, NoKey, SigningKey};
use crate::config::Algorithm;

/// Least time between two fetches that tokens cause.
const PAUSE: Duration = Duration::from_secs(30);

/// How long an unknown `kid` is not asked for again: some issuers sign with a new key a little before they publish it.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);

/// How many unknown `kid`s are remembered.
const UNKNOWN: usize = 128;

/// How long keys are used without having been fetched anew.
const STALE: Duration = Duration::from_secs(24 * 3600);

/// Longest time a request waits for a fetch: metadata in two places and a key set, at 5 s each.
const WAIT: Duration = Duration::from_secs(15);

/// Longest time a request waits for the first fetch of all: one that fails or takes longer is a 503 to it.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// When keys are fetched again where the issuer does not say, and the bounds of what it may say.
const AGE: Duration = Duration::from_secs(900);
const LEAST_AGE: Duration = Duration::from_secs(300);
const MOST_AGE: Duration = Duration::from_secs(6 * 3600);

/// Pauses after a failure: the first, and the longest before any key was there and after.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Keys that were fetched.
#[derive(Clone)]
pub(super) struct Loaded {
    pub(super) keys: Arc<KeySet>,
    /// Differs from what was before exactly when the keys do.
    pub(super) generation: u64,
    /// When they were fetched last.
    pub(super) at: Instant,
}

/// Why there is no key for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// No key was ever loaded, or none for a day.
    NeverLoaded,
    /// The keys are there, and none fits.
    NoKey(NoKey),
}

/// The keys of one issuer.
pub(super) struct KeySource {
    loaded: RwLock<Option<Loaded>>,
    /// Asks the task to fetch.
    asked: Notify,
    /// How many fetches have ended.
    ended: watch::Sender<u64>,
    demand: Mutex<Demand>,
}

/// What tokens asked for.
#[derive(Default)]
struct Demand {
    /// When a token last caused a fetch.
    last: Option<Instant>,
    /// Whether that fetch has not ended.
    pending: bool,
    /// Whether the fetch under way began after it was asked for: one that began before may have missed the key.
    serving: bool,
    /// Whether somebody fetches when asked.
    followed: bool,
    /// `kid`s that a fetch did not bring, oldest first.
    unknown: VecDeque<(Box<str>, Instant)>,
}

impl KeySource {
    pub(super) fn new() -> KeySource {
        KeySource {
            loaded: RwLock::default(),
            asked: Notify::new(),
            ended: watch::Sender::new(0),
            demand: Mutex::default(),
        }
    }

    /// The keys in effect.
    pub(super) fn loaded(&self) -> Option<Loaded> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner).clone();
        loaded.filter(|loaded| loaded.at.elapsed() < STALE)
    }

    /// The generation of the keys in effect; `None` where there are none.
    pub(super) fn generation(&self) -> Option<u64> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.as_ref().filter(|loaded| loaded.at.elapsed() < STALE).map(|loaded| loaded.generation)
    }

    /// The key a token with this header is signed with, and the generation it is of.
    ///
    /// # Errors
    /// See [`Missing`].
    pub(super) async fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<(SigningKey, u64), Missing> {
        if self.loaded().is_none() {
            self.begun().await;
        }
        let ended = self.ended.subscribe();
        match self.look(kid, algorithm) {
            Err(Missing::NoKey(NoKey::Unknown)) => {}
            found => return found,
        }
        if !self.ask(kid) {
            return Err(Missing::NoKey(NoKey::Unknown));
        }
        self.wait(ended).await;
        let found = self.look(kid, algorithm);
        if let (Err(Missing::NoKey(NoKey::Unknown)), Some(kid)) = (&found, kid) {
            self.demand().remember(kid);
        }
        found
    }

    /// Waits for the end of the first fetch, well or not, but not for long: the gateway serves from its start on, and
    /// whoever comes in the first moments is not to be sent away.
    pub(super) async fn begun(&self) {
        let mut ended = self.ended.subscribe();
        let _in_time = timeout(FIRST_WAIT, ended.wait_for(|ended| *ended > 0)).await;
    }

    fn look(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<(SigningKey, u64), Missing> {
        let loaded = self.loaded().ok_or(Missing::NeverLoaded)?;
        let key = loaded.keys.find(kid, algorithm).map_err(Missing::NoKey)?;
        Ok((key.clone(), loaded.generation))
    }

    fn demand(&self) -> std::sync::MutexGuard<'_, Demand> {
        self.demand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a fetch, or joins one that was asked for; whether one is to be waited for.
    fn ask(&self, kid: Option<&str>) -> bool {
        let mut demand = self.demand();
        if demand.pending {
            return true;
        }
        let paused = demand.last.is_some_and(|last| last.elapsed() < PAUSE);
        if paused || !demand.followed || kid.is_some_and(|kid| demand.is_unknown(kid)) {
            return false;
        }
        demand.last = Some(Instant::now());
        demand.pending = true;
        self.asked.notify_one();
        true
    }

    /// Waits for the end of the fetch that is under way or asked for.
    async fn wait(&self, mut ended: watch::Receiver<u64>) {
        let _in_time = timeout(WAIT, async { while self.demand().pending && ended.changed().await.is_ok() {} }).await;
    }

    /// Takes over what a fetch brought; gives whether the keys changed.
    pub(super) fn take(&self, keys: KeySet) -> bool {
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        let (keys, generation, changed) = match loaded.take() {
            Some(before) if before.keys.is_same(&keys) => (before.keys, before.generation, false),
            before => (Arc::new(keys), before.map_or(0, |before| before.generation + 1), true),
        };
        *loaded = Some(Loaded { keys, generation, at: Instant::now() });
        drop(loaded);
        if changed {
            self.demand().unknown.clear();
        }
        changed
    }

    /// A fetch begins.
    pub(super) fn attempt_began(&self) {
        let mut demand = self.demand();
        demand.serving = demand.pending;
        demand.followed = true;
    }

    /// Tells those who wait that a fetch has ended, well or not.
    pub(super) fn attempt_ended(&self) {
        let mut demand = self.demand();
        demand.pending &= !demand.serving;
        drop(demand);
        self.ended.send_modify(|ended| *ended += 1);
    }

    /// Waits until it is time to fetch: after `pause`, or sooner for a token with an unknown key.
    pub(super) async fn due(&self, pause: Duration) {
        tokio::select! {
            () = self.asked.notified() => {}
            () = sleep(pause) => {}
        }
    }
}

impl Demand {
    fn is_unknown(&self, kid: &str) -> bool {
        self.unknown.iter().any(|(known, since)| **known == *kid && since.elapsed() < UNKNOWN_FOR)
    }

    fn remember(&mut self, kid: &str) {
        self.unknown.retain(|(known, _)| **known != *kid);
        if self.unknown.len() >= UNKNOWN {
            self.unknown.pop_front();
        }
        self.unknown.push_back((kid.into(), Instant::now()));
    }
}

/// When to fetch again after a success; `said` is the issuer's `max-age` in seconds.
pub(super) fn next_fetch(said: Option<u64>) -> Duration {
    said.map_or(AGE, Duration::from_secs).clamp(LEAST_AGE, MOST_AGE)
}

/// When to try again after a number of failures in a row, the first being 1.
pub(super) fn next_try(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(LONGEST_RETRY)
}

#[cfg(test)]
#[path = "key_source_test.rs"]
mod tests;
