//! What all streams hold together, against the memory budget and the replay total.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::budget::{Budget, Step};
use crate::telemetry::Metrics;

/// Bytes and events of every stream log.
pub struct Ledger {
    budget: Arc<Budget>,
    metrics: Arc<Metrics>,
    total: AtomicUsize,
    replay: AtomicUsize,
    exceeded: Notify,
}

/// What one log holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Bytes in all.
    pub bytes: usize,
    /// Bytes kept only for a resume.
    pub replay_bytes: usize,
    /// Events in all.
    pub events: usize,
}

impl Ledger {
    /// An empty ledger; `total` bounds the bytes kept for resumes.
    #[must_use]
    pub fn new(budget: Arc<Budget>, metrics: Arc<Metrics>, total: usize) -> Arc<Ledger> {
        Arc::new(Ledger {
            budget,
            metrics,
            total: AtomicUsize::new(total),
            replay: AtomicUsize::new(0),
            exceeded: Notify::new(),
        })
    }

    fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// Changes the bound on the bytes kept for resumes.
    pub fn set_total(&self, total: usize) {
        self.total.store(total, Ordering::Relaxed);
        if self.replay.load(Ordering::Relaxed) > total {
            self.exceeded.notify_one();
        }
    }

    /// Notes that a log changed.
    pub fn settle(&self, before: Holding, after: Holding) {
        if before == after {
            return;
        }
        if after.bytes >= before.bytes {
            self.budget.overdraw(after.bytes - before.bytes);
        } else {
            self.budget.give_back(before.bytes - after.bytes);
        }
        let difference = |after: usize, before: usize| after as i64 - before as i64;
        self.metrics
            .replay(difference(after.replay_bytes, before.replay_bytes), difference(after.events, before.events));
        let replay = if after.replay_bytes >= before.replay_bytes {
            let more = after.replay_bytes - before.replay_bytes;
            self.replay.fetch_add(more, Ordering::Relaxed) + more
        } else {
            self.replay.fetch_sub(before.replay_bytes - after.replay_bytes, Ordering::Relaxed);
            return;
        };
        if replay > self.total() {
            self.exceeded.notify_one();
        }
    }

    /// Waits until the total is exceeded; whoever owns the sessions then makes room.
    pub async fn exceeded(&self) {
        self.exceeded.notified().await;
    }

    /// Bytes to give up: for the total a tenth more than need be, so that not every event after it
    /// asks for room again; for the budget what is short.
    #[must_use]
    pub fn excess(&self) -> usize {
        let replay = self.replay.load(Ordering::Relaxed);
        let short = usize::try_from(self.budget.shortage(Step::Replay)).unwrap_or(usize::MAX);
        let total = self.total();
        replay.saturating_sub(total - total / 10).max(short.min(replay))
    }

    /// Whether memory is so short that little may be kept for resumes.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.budget.step() >= Step::Replay
    }

    /// The memory budget.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The numbers evictions are counted in.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}
