//! How long a child may be used, and how long it is kept without use.
//!
//! Pure: whoever asks says what time it is, and acts on the answer. No answer ever concerns a child that somebody
//! uses, so nothing is cut.

use std::time::{Duration, Instant};

use crate::config;

/// The most that is taken off one child's `pool.max_lifetime`, as a share of it.
const SPREAD: f64 = 0.1;

/// One child's age, uses and idle time, against the limits of `[servers.NAME.pool]`.
#[derive(Clone, Debug)]
pub struct Lifespan {
    /// From then on it takes no new session.
    ends: Option<Instant>,
    /// How many more sessions it may serve.
    uses_left: Option<usize>,
    idle_timeout: Option<Duration>,
    /// Sessions that use it now.
    users: usize,
    /// When the last of them left, or the child began.
    idle_since: Instant,
}

impl Lifespan {
    /// That of a child that was started at `now` and is used by nobody yet. `share`, from 0 to 1, says how much of the
    /// 10 % by which lives differ is its own: children that were started together should get different ones.
    #[must_use]
    pub fn begin(limits: &config::Pool, now: Instant, share: f64) -> Lifespan {
        let shortened = |life: Duration| now + life.mul_f64(1.0 - SPREAD * share.clamp(0.0, 1.0));
        Lifespan {
            ends: limits.max_lifetime.map(shortened),
            uses_left: limits.max_uses,
            idle_timeout: limits.idle_timeout,
            users: 0,
            idle_since: now,
        }
    }

    /// Whether one more session may use the child.
    #[must_use]
    pub fn takes_session(&self, now: Instant) -> bool {
        self.uses_left != Some(0) && self.ends.is_none_or(|end| now < end)
    }

    /// A session uses it from now on.
    pub fn enter(&mut self) {
        self.users += 1;
        self.uses_left = self.uses_left.map(|uses| uses.saturating_sub(1));
    }

    /// A session that [entered](Self::enter) uses it no longer.
    pub fn leave(&mut self, now: Instant) {
        self.users = self.users.saturating_sub(1);
        self.idle_since = now;
    }

    /// Since when nobody uses it.
    #[must_use]
    pub fn unused_since(&self) -> Option<Instant> {
        (self.users == 0).then_some(self.idle_since)
    }

    /// Whether the child is to be stopped: nobody uses it, and it either takes no session any more, or is one that can
    /// be spared and nobody used for `pool.idle_timeout`.
    #[must_use]
    pub fn is_over(&self, now: Instant, can_be_spared: bool) -> bool {
        let idle_too_long = self.idle_timeout.is_some_and(|longest| now >= self.idle_since + longest);
        self.users == 0 && (!self.takes_session(now) || can_be_spared && idle_too_long)
    }

    /// When [`is_over`](Self::is_over) may next turn true by itself; `None` if only a session's leaving can do that.
    #[must_use]
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        let idle_end = self.idle_timeout.map(|longest| self.idle_since + longest);
        let unused = self.users == 0;
        [self.ends, idle_end].into_iter().flatten().filter(|at| unused && *at > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::Lifespan;
    use crate::config::Pool;
    use std::time::{Duration, Instant};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn limits(idle_timeout: Option<u64>, max_lifetime: Option<u64>, max_uses: Option<usize>) -> Pool {
        Pool {
            min_idle: 0,
            max_size: None,
            wait: seconds(1),
            idle_timeout: idle_timeout.map(seconds),
            max_lifetime: max_lifetime.map(seconds),
            max_uses,
            max_sessions_per_child: None,
            max_calls_per_child: None,
        }
    }

    #[test]
    fn nothing_ends_without_limits() {
        let start = Instant::now();
        let mut life = Lifespan::begin(&limits(None, None, None), start, 0.5);
        let late = start + seconds(1_000_000);
        for _ in 0..1000 {
            life.enter();
        }
        assert!(life.takes_session(late) && !life.is_over(late, true));
        for _ in 0..1000 {
            life.leave(late);
        }
        assert!(life.takes_session(late) && !life.is_over(late + seconds(1_000_000), true));
        assert_eq!(life.next_look(late), None);
    }

    #[test]
    fn lives_differ_by_a_tenth_at_most() {
        let start = Instant::now();
        for (share, longest) in [(0.0, 1000), (0.5, 950), (1.0, 900), (7.0, 900), (-1.0, 1000)] {
            let life = Lifespan::begin(&limits(None, Some(1000), None), start, share);
            let end = start + seconds(longest);
            assert!(life.takes_session(end - seconds(1)), "{share}");
            assert!(!life.takes_session(end + Duration::from_millis(1)), "{share}");
            let look = life.next_look(start).expect("it ends");
            assert!(look.max(end) - look.min(end) < Duration::from_millis(1), "{share}");
        }
    }

    /// Its end waits until the last session has left, however long that takes.
    #[test]
    fn an_old_child_ends_once_nobody_uses_it() {
        let start = Instant::now();
        let mut life = Lifespan::begin(&limits(None, Some(10), None), start, 0.0);
        life.enter();
        life.enter();
        let old = start + seconds(50);
        assert!(!life.takes_session(old) && !life.is_over(old, true));
        assert_eq!(life.next_look(start), None, "somebody uses it");
        life.leave(old);
        assert!(!life.is_over(old, true), "one is left");
        life.leave(old);
        assert!(life.is_over(old, false));
    }

    #[test]
    fn uses_are_counted_over_the_whole_life() {
        let now = Instant::now();
        let mut life = Lifespan::begin(&limits(None, None, Some(2)), now, 0.0);
        life.enter();
        life.leave(now);
        assert!(life.takes_session(now) && !life.is_over(now, true));
        life.enter();
        assert!(!life.takes_session(now) && !life.is_over(now, true));
        life.leave(now);
        assert!(life.is_over(now, false));
    }

    #[test]
    fn only_who_can_be_spared_ends_for_idleness() {
        let start = Instant::now();
        let mut life = Lifespan::begin(&limits(Some(10), Some(100), None), start, 0.0);
        let at = |after: u64| start + seconds(after);
        assert_eq!(life.next_look(start), Some(at(10)));
        assert!(!life.is_over(at(9), true) && life.is_over(at(10), true) && !life.is_over(at(10), false));
        assert_eq!(life.next_look(at(10)), Some(at(100)), "a look that changed nothing is not repeated");
        // Each use begins the time anew.
        life.enter();
        assert!(!life.is_over(at(30), true) && life.unused_since().is_none());
        life.leave(at(30));
        assert_eq!(life.unused_since(), Some(at(30)));
        assert_eq!(life.next_look(at(30)), Some(at(40)));
        assert!(!life.is_over(at(39), true) && life.is_over(at(40), true));
    }
}
