//! When a session's clocks are looked at next: most sessions are idle most of the time, and need no look until one of
//! their limits is near.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Whatever may bring a clock nearer has just happened.
const NOW: u64 = 0;

/// The look is being taken.
const LOOKING: u64 = 1;

/// The time of the next look.
pub(super) struct NextLook {
    since: Instant,
    /// [`NOW`], [`LOOKING`], or milliseconds after `since`.
    at: AtomicU64,
}

impl NextLook {
    /// At once, until a look says otherwise.
    pub(super) fn new(since: Instant) -> NextLook {
        NextLook { since, at: AtomicU64::new(NOW) }
    }

    /// Asks for a look. Whoever changed what the look goes by calls this after the change.
    pub(super) fn ask(&self) {
        self.at.store(NOW, Ordering::Release);
    }

    /// Whether a look is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let at = Duration::from_millis(self.at.load(Ordering::Relaxed));
        now.saturating_duration_since(self.since) >= at
    }

    /// Begins a look, before anything is looked at.
    pub(super) fn begin(&self) {
        self.at.swap(LOOKING, Ordering::AcqRel);
    }

    /// Ends a look that found nothing to do before `next`. What happened since it began counts more.
    pub(super) fn end(&self, next: Option<Instant>) {
        // Earlier than `next`, never later: a session that is over by then is ended by then.
        let after = next.map_or(u128::MAX, |next| next.saturating_duration_since(self.since).as_millis());
        let at = u64::try_from(after).unwrap_or(u64::MAX).max(LOOKING);
        let _asked_meanwhile = self.at.compare_exchange(LOOKING, at, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::NextLook;

    #[test]
    fn what_happens_during_a_look_is_looked_at_again() {
        let start = Instant::now();
        let later = start + Duration::from_secs(5);
        let look = NextLook::new(start);
        assert!(look.is_due(start), "nobody has looked yet");
        look.begin();
        look.end(Some(later));
        assert!(!look.is_due(start + Duration::from_secs(4)) && look.is_due(later));
        look.begin();
        look.ask();
        look.end(Some(later + Duration::from_secs(5)));
        assert!(look.is_due(later), "something happened meanwhile");
        look.begin();
        look.end(None);
        assert!(!look.is_due(later + Duration::from_secs(1_000_000)), "no limit ends it");
        look.ask();
        assert!(look.is_due(later));
    }
}
