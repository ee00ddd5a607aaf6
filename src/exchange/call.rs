//! One request of a client's while its child works on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{Timeouts, Tools};
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
    /// What its answer changes at a shared child.
    pub errand: Option<Errand>,
    /// The tools its answer may name, if it asks for a list of them and some are hidden.
    pub tools: Option<Arc<Tools>>,
    /// What is counted and logged when it ends.
    pub account: Account,
    /// Its clocks.
    pub clock: Clock,
    _in_flight: InFlight,
}

/// What the answer to a call on a shared child is noted for.
#[derive(Debug, PartialEq, Eq)]
pub enum Errand {
    /// It is the first to subscribe to this.
    Subscription(Box<str>),
    /// It asks to become a task.
    NewTask,
    /// It is about this task.
    Task(Query, Box<str>),
}

/// What is asked about a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// `tasks/get`
    State,
    /// `tasks/result`
    Result,
    /// `tasks/cancel`
    Cancel,
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
        Call { id, post, task, errand: None, tools: None, account, clock, _in_flight: in_flight }
    }

    /// The child showed progress, so many times since the last.
    pub fn progressed(&mut self, events: u64, now: Instant) {
        self.clock.progress(now);
        self.account.count_events(events);
    }
}

/// The two clocks of a call: one that progress winds up again, one that nothing does. Both stand
/// still while the child waits for the client on the call's behalf; the second for no longer than
/// one request of the child's may wait, however many there are.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    idle_since: Instant,
    running_since: Instant,
    /// Requests of the child's that are open.
    asks: usize,
    /// Since when there is one.
    waiting_since: Instant,
    /// How long there was one, until the last was closed.
    waited: Duration,
}

impl Clock {
    fn new(now: Instant) -> Clock {
        Clock { idle_since: now, running_since: now, asks: 0, waiting_since: now, waited: Duration::ZERO }
    }

    /// The child showed progress.
    pub fn progress(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// The child asks the client something.
    pub fn hold(&mut self, now: Instant) {
        if self.asks == 0 {
            self.waiting_since = now;
        }
        self.asks += 1;
    }

    /// One thing that was asked is settled.
    pub fn release(&mut self, now: Instant) {
        let waited = self.waiting(now);
        self.asks = self.asks.saturating_sub(1);
        if self.asks == 0 {
            self.waited += waited;
            // Progress may have come meanwhile.
            self.idle_since = (self.idle_since + waited).min(now);
        }
    }

    fn waiting(&self, now: Instant) -> Duration {
        if self.asks == 0 { Duration::ZERO } else { now.saturating_duration_since(self.waiting_since) }
    }

    /// Whether either ran out.
    #[must_use]
    pub fn is_over(&self, now: Instant, timeouts: &Timeouts) -> bool {
        let waiting = self.waiting(now);
        let waited = (self.waited + waiting).min(timeouts.ask.unwrap_or(Duration::MAX));
        let passed = |since: Instant, stood: Duration, limit: Option<Duration>| {
            limit.is_some_and(|limit| now.saturating_duration_since(since).saturating_sub(stood) >= limit)
        };
        passed(self.idle_since, waiting, timeouts.call_idle) || passed(self.running_since, waited, timeouts.call_total)
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

    fn limits(ask: Option<Duration>) -> Timeouts {
        Timeouts {
            start: seconds(1),
            call_idle: Some(seconds(10)),
            call_total: Some(seconds(25)),
            ask,
            close: seconds(1),
            term: seconds(1),
        }
    }

    #[test]
    fn progress_winds_one_clock() {
        let (start, limits) = (Instant::now(), limits(None));
        let mut clock = Clock::new(start);
        assert!(!clock.is_over(start + seconds(9), &limits));
        assert!(clock.is_over(start + seconds(10), &limits));
        clock.progress(start + seconds(9));
        assert!(!clock.is_over(start + seconds(18), &limits));
        clock.progress(start + seconds(18));
        assert!(clock.is_over(start + seconds(25), &limits), "the total is not wound up");
    }

    #[test]
    fn waiting_stops_both() {
        let (start, limits) = (Instant::now(), limits(None));
        let mut clock = Clock::new(start);
        clock.hold(start + seconds(9));
        clock.hold(start + seconds(50));
        clock.release(start + seconds(60));
        assert!(!clock.is_over(start + seconds(109), &limits), "one is still open");
        clock.release(start + seconds(109));
        assert!(!clock.is_over(start + seconds(109), &limits));
        assert!(clock.is_over(start + seconds(110), &limits), "both go on where they stood");
        // Progress while it waits does not give it time twice.
        let mut clock = Clock::new(start);
        clock.hold(start);
        clock.progress(start + seconds(100));
        clock.release(start + seconds(101));
        assert!(clock.is_over(start + seconds(111), &limits));
    }

    #[test]
    fn waiting_again_and_again_ends() {
        let (start, limits) = (Instant::now(), limits(Some(seconds(30))));
        let mut clock = Clock::new(start);
        for n in 0..9 {
            clock.hold(start + seconds(6 * n));
            clock.release(start + seconds(6 * n + 6));
        }
        clock.hold(start + seconds(54));
        assert!(!clock.is_over(start + seconds(54), &limits));
        assert!(clock.is_over(start + seconds(55), &limits), "call_total and ask together");
    }
}
