//! How long what a caller has shown counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// No end.
const FOREVER: u64 = u64::MAX;

/// How long what a caller has shown counts: to a fixed time, or on and on, as long as its issuer says so when asked.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// When it loses its force, in seconds since the Unix epoch; `None` is never.
    pub until: Option<u64>,
    /// By which it may go on beyond that.
    pub renewal: Option<Arc<Renewal>>,
}

impl Proof {
    /// One that counts until then, in seconds since the Unix epoch.
    #[must_use]
    pub fn until(end: u64) -> Proof {
        Proof { until: Some(end), renewal: None }
    }
}

/// Links whoever has something open by a proof with whoever can find out whether it counts still. It says nothing of what
/// was shown.
#[derive(Debug, Default)]
pub struct Renewal {
    /// The end as last found out, in seconds since the Unix epoch.
    until: AtomicU64,
    /// From when on it is to be asked about again: some time before the end, since its issuer may be slow.
    due: AtomicU64,
    /// Somebody has something open by it, and it is due.
    wanted: AtomicBool,
}

impl Renewal {
    /// Counts until this time at least, and is to be asked about again from `due` on; in seconds since the Unix epoch.
    pub fn extend(&self, due: u64, until: u64) {
        self.due.fetch_max(due, Ordering::Relaxed);
        self.until.fetch_max(until, Ordering::Relaxed);
    }

    /// Whether it is to be asked about now. Saying so takes the wish away.
    #[must_use]
    pub fn take_wish(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::Relaxed)
    }
}

/// The latest end of everything a caller has shown.
#[derive(Debug, Default)]
pub struct Proven {
    /// In seconds since the Unix epoch; 0 before anything was shown.
    until: AtomicU64,
    /// That of what was shown last.
    renewal: Mutex<Option<Arc<Renewal>>>,
}

impl Proven {
    /// Takes note of what a caller shows. The latest end counts: a client that refreshes its token keeps what it opened
    /// with the one before.
    pub fn take(&self, proof: &Proof) {
        let until = proof.until.unwrap_or(FOREVER);
        if self.until.load(Ordering::Relaxed) < until {
            self.until.fetch_max(until, Ordering::Relaxed);
        }
        if let Some(renewal) = &proof.renewal {
            *self.renewal() = Some(Arc::clone(renewal));
        }
    }

    fn renewal(&self) -> MutexGuard<'_, Option<Arc<Renewal>>> {
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is an end to it at all.
    fn ends(&self) -> bool {
        !matches!(self.until.load(Ordering::Relaxed), 0 | FOREVER)
    }

    /// Whether nothing of it counts any more at `now`, in seconds since the Unix epoch. Whoever asks has something open
    /// by it: if the end is near, it is asked about again.
    #[must_use]
    pub fn is_over(&self, now: u64) -> bool {
        if !self.ends() {
            return false;
        }
        let fixed = self.until.load(Ordering::Relaxed);
        let renewal = self.renewal();
        let until = renewal.as_ref().map_or(fixed, |renewal| fixed.max(renewal.until.load(Ordering::Relaxed)));
        let is_due = |renewal: &&Arc<Renewal>| renewal.due.load(Ordering::Relaxed) <= now && now < until;
        if let Some(renewal) = renewal.as_ref().filter(is_due) {
            renewal.wanted.store(true, Ordering::Relaxed);
        }
        now >= until
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Proof, Proven, Renewal};

    #[test]
    fn the_latest_end_counts() {
        let proven = Proven::default();
        assert!(!proven.is_over(u64::MAX), "nothing was shown");
        proven.take(&Proof::until(2_000));
        proven.take(&Proof::until(1_000));
        assert!(!proven.is_over(1_999) && proven.is_over(2_000));
        proven.take(&Proof::default());
        assert!(!proven.is_over(u64::MAX));
    }

    #[test]
    fn what_can_be_renewed_is_asked_about_before_its_end_and_not_after() {
        let (proven, renewal) = (Proven::default(), Arc::new(Renewal::default()));
        renewal.extend(990, 1_000);
        proven.take(&Proof { until: Some(1_000), renewal: Some(Arc::clone(&renewal)) });
        assert!(!proven.is_over(989) && !renewal.take_wish());
        assert!(!proven.is_over(990) && renewal.take_wish() && !renewal.take_wish());
        renewal.extend(1_090, 1_100);
        assert!(!proven.is_over(1_050) && !renewal.take_wish());
        assert!(proven.is_over(1_100) && !renewal.take_wish());
    }
}
