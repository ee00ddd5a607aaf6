//! One request of a client's while its child works on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Timeouts;
use crate::exchange::account::Account;
use crate::exchange::post::Post;
use crate::mcp::ids::{Id, MAX_ID};
use crate::mcp::message::Message;
use crate::telemetry::InFlight;

/// A call in flight.
pub struct Call {
    /// The client's id.
    pub id: Id,
    /// The POST it came with.
    pub post: Arc<Post>,
    /// The task it waits for, if it is a `tasks/result`.
    pub task: Option<Box<str>>,
    /// What is counted and logged when it ends.
    pub account: Account,
    /// Its clocks.
    pub clock: Clock,
    _in_flight: InFlight,
}

impl Call {
    /// A call that starts now.
    #[must_use]
    pub fn new(message: &Message, id: Id, post: Arc<Post>, account: Account, in_flight: InFlight) -> Call {
        let task = (message.calls("tasks/result"))
            .then(|| message.string(message.fields().task_id))
            .flatten()
            // What is kept of a call is bounded; nobody can route by a longer one.
            .filter(|task| task.len() <= MAX_ID)
            .map(|task| task.into_owned().into_boxed_str());
        let clock = Clock::new(account.started());
        Call { id, post, task, account, clock, _in_flight: in_flight }
    }

    /// The child showed progress, so many times since the last.
    pub fn progressed(&mut self, events: u64, now: Instant) {
        self.clock.progress(now);
        self.account.count_events(events);
    }
}

/// The two clocks of a call: one that progress winds up again, one that nothing does. Both stand
/// still while the child waits for the client.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    idle_since: Instant,
    running_since: Instant,
}

impl Clock {
    fn new(now: Instant) -> Clock {
        Clock { idle_since: now, running_since: now }
    }

    /// The child showed progress.
    pub fn progress(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// The child waited for the client for so long.
    pub fn pause(&mut self, waited: Duration) {
        self.idle_since += waited;
        self.running_since += waited;
    }

    /// Whether either ran out.
    #[must_use]
    pub fn is_over(&self, now: Instant, timeouts: &Timeouts) -> bool {
        let passed = |since: Instant, limit: Option<Duration>| {
            limit.is_some_and(|limit| now.saturating_duration_since(since) >= limit)
        };
        passed(self.idle_since, timeouts.call_idle) || passed(self.running_since, timeouts.call_total)
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;
    use crate::config::Timeouts;
    use std::time::{Duration, Instant};

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn progress_winds_one_clock_and_waiting_stops_both() {
        let limits = Timeouts {
            start: seconds(1),
            call_idle: Some(seconds(10)),
            call_total: Some(seconds(25)),
            ask: None,
            close: seconds(1),
            term: seconds(1),
        };
        let start = Instant::now();
        let mut clock = Clock::new(start);
        assert!(!clock.is_over(start + seconds(9), &limits));
        assert!(clock.is_over(start + seconds(10), &limits));
        clock.progress(start + seconds(9));
        assert!(!clock.is_over(start + seconds(18), &limits));
        clock.progress(start + seconds(18));
        assert!(clock.is_over(start + seconds(25), &limits), "the total is not wound up");
        clock.pause(seconds(100));
        assert!(!clock.is_over(start + seconds(120), &limits));
    }
}
