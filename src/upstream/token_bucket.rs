//! A rate limit that takes the time as an argument.

use std::time::Instant;

/// Admits `burst` units at once and `per_second` from then on.
#[derive(Debug)]
pub(super) struct TokenBucket {
    per_second: f64,
    burst: f64,
    level: f64,
    filled: Instant,
}

impl TokenBucket {
    /// A full bucket.
    pub(super) fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let burst = f64::from(burst);
        Self { per_second: f64::from(per_second), burst, level: burst, filled: now }
    }

    /// Takes `units` if they are there; otherwise takes nothing and says so.
    pub(super) fn take(&mut self, units: u32, now: Instant) -> bool {
        let gained = now.saturating_duration_since(self.filled).as_secs_f64() * self.per_second;
        self.level = (self.level + gained).min(self.burst);
        self.filled = self.filled.max(now);
        let units = f64::from(units);
        let admitted = units <= self.level;
        if admitted {
            self.level -= units;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::TokenBucket;
    use std::time::{Duration, Instant};

    #[test]
    fn admits_the_burst_then_the_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(10, 100, start);
        assert!(bucket.take(60, start));
        assert!(!bucket.take(41, start), "a refusal takes nothing");
        assert!(bucket.take(40, start));
        assert!(!bucket.take(1, start));
        assert!(!bucket.take(11, start + Duration::from_secs(1)));
        assert!(bucket.take(10, start + Duration::from_secs(1)));
        assert!(!bucket.take(101, start + Duration::from_secs(3600)), "never above the burst");
        assert!(bucket.take(100, start + Duration::from_secs(3600)));
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(10, 10, start + Duration::from_secs(10));
        assert!(bucket.take(10, start + Duration::from_secs(10)));
        assert!(!bucket.take(1, start));
        assert!(!bucket.take(1, start + Duration::from_secs(10)));
    }
}
