//! Every issuer whose access tokens count here: kept fresh, and replaced by a reload.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tracing::info;

use super::authority::Authority;
use super::circle::{Circle, Renewed, Shown, digest};
use super::fetch::Fetcher;
use super::renewals::{Due, Renewals};
use super::{Asked, Verdict};
use crate::caller::Principal;
use crate::config::{Auth, Issuer};
use crate::rare::rarely;
use crate::telemetry::Metrics;
use crate::unix_time;

/// Pause between two looks at what is to be asked about again.
const LOOK: Duration = Duration::from_secs(1);

/// The issuers of the configuration in effect. Requests read it, and a reload replaces it as a whole.
pub struct Issuers {
    /// Readers clone the `Arc` out and never hold a lock while they work; whoever keeps keys fresh watches it.
    current: watch::Sender<Arc<Circle>>,
    fetcher: Arc<Fetcher>,
    renewals: Renewals,
    metrics: Arc<Metrics>,
    /// Whether every issuer could be asked at once, some time.
    was_ready: AtomicBool,
}

impl fmt::Debug for Issuers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.current().authorities.keys()).finish()
    }
}

impl Issuers {
    /// Takes over the issuers of `[auth]`; nobody is asked anything yet.
    #[must_use]
    pub fn new(auth: &Auth, metrics: Arc<Metrics>) -> Arc<Issuers> {
        let issuers = Issuers {
            current: watch::Sender::default(),
            fetcher: Arc::default(),
            renewals: Renewals::default(),
            metrics,
            was_ready: AtomicBool::new(false),
        };
        issuers.replace(auth);
        Arc::new(issuers)
    }

    /// Puts the issuers of `[auth]` in the place of all there were. One that did not change keeps its keys; what is
    /// known of tokens is judged anew.
    pub fn replace(&self, auth: &Auth) {
        let before = self.current();
        let kept = |name: &Arc<str>, config: &Arc<Issuer>| {
            before.authorities.get(name).filter(|authority| authority.config == *config).cloned()
        };
        let authority = |(name, config): (&Arc<str>, &Arc<Issuer>)| {
            let fresh = || Arc::new(Authority::new(Arc::clone(name), Arc::clone(config), Arc::clone(&self.fetcher)));
            (Arc::clone(name), kept(name, config).unwrap_or_else(fresh))
        };
        let authorities: BTreeMap<_, _> = auth.issuers.iter().map(authority).collect();
        for gone in before.authorities.keys().filter(|name| !authorities.contains_key(*name)) {
            self.metrics.issuer_gone(gone);
        }
        self.current.send_replace(Arc::new(Circle::new(authorities)));
    }

    fn current(&self) -> Arc<Circle> {
        Arc::clone(&self.current.borrow())
    }

    /// Keeps the keys of every issuer fresh, of those too that come with a reload; ends never.
    pub async fn follow(self: Arc<Self>) {
        let mut current = self.current.subscribe();
        let mut fresh: JoinSet<()> = JoinSet::new();
        let mut followed: Vec<(Arc<Authority>, tokio::task::AbortHandle)> = Vec::new();
        loop {
            let circle = Arc::clone(&current.borrow_and_update());
            let has = |authority: &Arc<Authority>| circle.authorities.values().any(|one| Arc::ptr_eq(one, authority));
            followed.retain(|(authority, task)| {
                has(authority) || {
                    task.abort();
                    false
                }
            });
            for authority in circle.authorities.values() {
                if followed.iter().all(|(one, _)| !Arc::ptr_eq(one, authority)) {
                    let (issuers, own) = (Arc::clone(&self), Arc::clone(authority));
                    let task = fresh.spawn(async move { own.keep_fresh(&issuers.metrics, || issuers.loaded()).await });
                    followed.push((Arc::clone(authority), task));
                }
            }
            drop(circle);
            if current.changed().await.is_err() {
                return;
            }
            while fresh.try_join_next().is_some() {}
        }
    }

    fn loaded(&self) {
        let every = self.current().authorities.values().all(|authority| authority.is_ready());
        if every && !self.was_ready.swap(true, Ordering::AcqRel) {
            info!(event = "issuers_ready");
        }
    }

    /// Whether every issuer could be asked at once, some time since the start. Afterwards an issuer that is out of reach
    /// makes nothing unready: its keys are kept.
    #[must_use]
    pub fn were_ready(&self) -> bool {
        self.was_ready.load(Ordering::Acquire) || self.current().authorities.is_empty()
    }

    /// The names of issuers whose tokens cannot be judged now.
    #[must_use]
    pub fn unready(&self) -> Vec<Arc<str>> {
        let circle = self.current();
        let unready = circle.authorities.values().filter(|authority| !authority.is_ready());
        unready.map(|authority| Arc::clone(&authority.name)).collect()
    }

    /// Whether what was opened by this caller may stay open: its issuer still counts.
    #[must_use]
    pub fn stands(&self, principal: &Principal) -> bool {
        let Principal::Token(holder) = principal else { return true };
        self.current().authorities.values().any(|authority| authority.config.issuer == holder.issuer)
    }

    /// Judges an access token for the server that is asked for. A JWT that was verified before is judged without waiting
    /// and without an allocation.
    pub async fn verify(&self, token: &[u8], asked: &Asked<'_>) -> Verdict {
        let circle = self.current();
        let token = Shown { text: token, digest: digest(token, &asked.policy.issuers) };
        if let Some(verdict) = circle.recall(&token, asked, &self.renewals) {
            return verdict;
        }
        rarely(|| circle.judge(&token, asked, &self.renewals)).await
    }

    /// Asks again about opaque tokens by which something is open, before it has to end; ends never.
    pub async fn renew(self: Arc<Self>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asking: JoinSet<()> = JoinSet::new();
        loop {
            looks.tick().await;
            while asking.try_join_next().is_some() {}
            for due in self.renewals.due() {
                let issuers = Arc::clone(&self);
                asking.spawn(async move { issuers.ask_again(&due).await });
            }
        }
    }

    async fn ask_again(&self, due: &Due) {
        match self.current().renew(due, unix_time::seconds).await {
            Renewed::Good | Renewed::Unknown => self.renewals.asked(due),
            Renewed::Over => self.renewals.forget(due),
        }
    }
}
