//! Stops starting children that end before they answer.

use std::time::{Duration, Instant};

use crate::config;

/// First pause after the breaker opened; doubles with every failed try.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// What the breaker does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Children are started.
    Closed,
    /// None is started before the pause is over.
    Open,
    /// One is being tried.
    HalfOpen,
}

/// Counts starts that ended before the handshake answered, in a row.
#[derive(Debug)]
pub struct Breaker {
    config: config::Breaker,
    failures: u32,
    pause: Duration,
    /// While open: when the next try may start.
    next_try: Option<Instant>,
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(config: config::Breaker) -> Breaker {
        Breaker { config, failures: 0, pause: FIRST_PAUSE, next_try: None }
    }

    /// Asks for a start.
    ///
    /// # Errors
    /// The time until the next try while it is open.
    pub fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        match self.next_try {
            Some(next) if now < next => Err(next - now),
            Some(_) => {
                // Whoever comes meanwhile waits for the outcome of this one.
                self.next_try = Some(now + self.pause);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A child answered its handshake. Tells whether this closed the breaker.
    pub fn succeeded(&mut self) -> bool {
        self.failures = 0;
        self.pause = FIRST_PAUSE;
        self.next_try.take().is_some()
    }

    /// A start ended before the handshake answered. `jitter`, 0 to 1, spreads the tries of several
    /// gateways. Tells whether this opened the breaker.
    pub fn failed(&mut self, now: Instant, jitter: f64) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures < self.config.failures {
            return false;
        }
        let opened = self.next_try.is_none();
        if !opened {
            self.pause = (self.pause * 2).min(self.config.backoff_max);
        }
        self.next_try = Some(now + self.pause.mul_f64(1.0 + jitter.clamp(0.0, 1.0) / 4.0));
        opened
    }

    /// Where it stands.
    #[must_use]
    pub fn position(&self, now: Instant) -> Position {
        match self.next_try {
            None => Position::Closed,
            Some(next) if now < next => Position::Open,
            Some(_) => Position::HalfOpen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Breaker, FIRST_PAUSE, Position};
    use crate::config;
    use std::time::{Duration, Instant};

    #[test]
    fn opens_tries_again_and_closes() {
        let mut now = Instant::now();
        let mut breaker = Breaker::new(config::Breaker { failures: 3, backoff_max: Duration::from_secs(1) });
        assert!(!breaker.failed(now, 0.0) && !breaker.failed(now, 0.0));
        assert!(breaker.admit(now).is_ok());
        assert!(breaker.failed(now, 0.0), "the third opens it");
        assert_eq!(breaker.admit(now), Err(FIRST_PAUSE));
        assert_eq!(breaker.position(now), Position::Open);
        for pause in [200, 400, 800, 1_000, 1_000].map(Duration::from_millis) {
            now += pause;
            assert_eq!(breaker.position(now), Position::HalfOpen);
            assert!(breaker.admit(now).is_ok(), "one try after {pause:?}");
            assert!(breaker.admit(now).is_err(), "and only one");
            assert!(!breaker.failed(now, 0.0));
        }
        now += Duration::from_secs(1);
        assert!(breaker.admit(now).is_ok());
        assert!(breaker.succeeded());
        assert_eq!(breaker.position(now), Position::Closed);
        assert!(!breaker.failed(now, 1.0), "counting starts anew");
    }
}
