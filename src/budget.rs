//! The one memory budget: request bodies, queues to children, send windows and replay all draw on it.

mod ladder;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use ladder::Ladder;
pub use ladder::Step;

/// Bytes that may be held for clients and children together.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    /// The number of the step the ladder stands on, for those who only want to know.
    step: AtomicU8,
    ladder: Mutex<Ladder>,
    changes: AtomicU64,
    changed: Notify,
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            step: AtomicU8::new(Step::Calm.number()),
            ladder: Mutex::new(Ladder::new(limit)),
            changes: AtomicU64::new(0),
            changed: Notify::new(),
        })
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    /// Bytes there are.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes how many there are; what is taken beyond a smaller number is not taken back.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::SeqCst);
        self.ladder.lock().unwrap_or_else(PoisonError::into_inner).set_limit(limit);
        self.look();
    }

    /// What is being done about how full it is.
    #[must_use]
    pub fn step(&self) -> Step {
        Step::numbered(self.step.load(Ordering::SeqCst))
    }

    /// Bytes that must be given back for the step of the ladder to be left; none where all is calm.
    #[must_use]
    pub fn shortage(&self, step: Step) -> u64 {
        if self.step() < step { 0 } else { (self.used() + 1).saturating_sub(step.left_below(self.limit())) }
    }

    /// Changes of the step so far.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Waits for the next change of the step; one that came since the last wait counts.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Looks at the ladder, which time may have moved on.
    pub fn look(&self) -> Step {
        let mut ladder = self.ladder.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let used = self.used();
            let step = ladder.look(used, Instant::now());
            let before = self.step.swap(step.number(), Ordering::SeqCst);
            if before != step.number() {
                self.changes.fetch_add(1, Ordering::Relaxed);
                self.changed.notify_one();
            }
            // Whoever changed what is used after it was read here has not seen the new step, and left the look to us:
            // its change and our store are in one order, so that one of the two sees the other.
            if self.used() == used {
                return step;
            }
        }
    }

    /// Every change of what is used ends here.
    fn note(&self, used: u64) {
        if !self.step().holds(self.limit(), used) {
            self.look();
        }
    }

    fn add(&self, bytes: u64) {
        let before = self.used.fetch_add(bytes, Ordering::SeqCst);
        self.note(before.saturating_add(bytes));
    }

    fn subtract(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        self.note(before.saturating_sub(bytes));
    }

    /// Takes `bytes` if there is room.
    #[must_use]
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reserved> {
        let mut reserved = self.reserve_nothing();
        reserved.grow(bytes).then_some(reserved)
    }

    /// A part that is empty yet.
    #[must_use]
    pub fn reserve_nothing(self: &Arc<Self>) -> Reserved {
        Reserved { budget: Arc::clone(self), bytes: 0 }
    }

    /// Adds only what fits, so that what is refused moves the ladder nowhere.
    fn take(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit());
        let taken = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits);
        if let Ok(before) = taken {
            self.note(before + bytes);
        }
        taken.is_ok()
    }

    /// Takes `bytes` whether there is room or not: for what must not be lost. New work is refused
    /// until what was overdrawn is back.
    pub fn overdraw(&self, bytes: usize) {
        self.add(bytes as u64);
    }

    /// Gives back what [`Budget::overdraw`] took.
    pub fn give_back(&self, bytes: usize) {
        self.subtract(bytes as u64);
    }
}

/// A part of the budget; dropping it gives it back.
#[derive(Debug)]
pub struct Reserved {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reserved {
    /// Takes `bytes` more; `false` (and nothing taken) if there is no room.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let taken = self.budget.take(bytes as u64);
        if taken {
            self.bytes += bytes as u64;
        }
        taken
    }

    /// Takes `bytes` more whether there is room or not: for what must not be lost.
    pub fn overdraw(&mut self, bytes: usize) {
        self.budget.add(bytes as u64);
        self.bytes += bytes as u64;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.subtract(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Step};

    #[test]
    fn holds_its_limit_and_gives_back() {
        let budget = Budget::new(100);
        let mut held = budget.reserve(60).expect("room");
        assert!(budget.reserve(41).is_none());
        assert!(!held.grow(41));
        assert!(held.grow(40));
        drop(held);
        assert_eq!(budget.used(), 0);
        budget.overdraw(150);
        assert!(budget.reserve(1).is_none());
        budget.give_back(150);
        assert!(budget.reserve(100).is_some());
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_step_follows_what_is_used() {
        let budget = Budget::new(1000);
        let mut held = budget.reserve(799).expect("room");
        assert_eq!((budget.step(), budget.shortage(Step::Replay)), (Step::Calm, 0));
        assert!(held.grow(100));
        assert_eq!((budget.step(), budget.shortage(Step::Replay)), (Step::Replay, 150));
        assert_eq!(budget.shortage(Step::Streams), 0);
        assert!(!held.grow(200), "what is refused");
        assert_eq!(budget.step(), Step::Replay, "moves nothing");
        held.overdraw(201);
        assert_eq!((budget.used(), budget.step()), (1100, Step::Streams));
        assert_eq!(budget.shortage(Step::Streams), 201);
        budget.overdraw(10);
        budget.give_back(10);
        drop(held);
        assert_eq!((budget.used(), budget.step()), (0, Step::Calm));
    }

    /// However changes interleave, the step is that of the last one.
    #[test]
    fn no_change_is_missed() {
        let budget = Budget::new(1000);
        for _ in 0..200 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            budget.overdraw(260);
                            budget.give_back(260);
                        }
                    });
                }
            });
            assert_eq!((budget.used(), budget.step()), (0, Step::Calm));
        }
    }
}
