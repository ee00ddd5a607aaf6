//! What is logged once in a while, however often it happens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Keeps a flood of one kind from becoming a flood of lines.
#[derive(Debug)]
pub struct Occasion {
    began: Instant,
    pause: Duration,
    /// Milliseconds from the beginning to the next line.
    next: AtomicU64,
    untold: AtomicU64,
}

impl Occasion {
    /// A line at most each `pause`; the first is due at once.
    #[must_use]
    pub fn each(pause: Duration) -> Occasion {
        Occasion { began: Instant::now(), pause, next: AtomicU64::new(0), untold: AtomicU64::new(0) }
    }

    /// How many went without a line before this one, or `None` if this one does too.
    pub fn take(&self) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let now = self.began.elapsed();
        let next = self.next.load(Ordering::Relaxed);
        let later = millis(now + self.pause);
        let is_due = millis(now) >= next
            && self.next.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due {
            return Some(self.untold.swap(0, Ordering::Relaxed));
        }
        self.untold.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Occasion;

    #[test]
    fn those_between_are_counted_and_not_told() {
        let rare = Occasion::each(Duration::from_secs(600));
        assert_eq!([rare.take(), rare.take(), rare.take()], [Some(0), None, None]);
        let always = Occasion::each(Duration::ZERO);
        assert_eq!([always.take(), always.take()], [Some(0), Some(0)]);
    }
}
