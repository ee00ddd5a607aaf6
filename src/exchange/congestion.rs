//! Tells a session's own child to wait while one of the session's readers is too far behind.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// How many streams of one session are full.
#[derive(Debug)]
pub struct Congestion {
    full: AtomicUsize,
    state: watch::Sender<bool>,
}

impl Congestion {
    /// None is full.
    #[must_use]
    pub fn new() -> Congestion {
        Congestion { full: AtomicUsize::new(0), state: watch::Sender::new(false) }
    }

    /// One more stream is full.
    pub fn enter(&self) {
        self.full.fetch_add(1, Ordering::AcqRel);
        self.publish();
    }

    /// One stream has room again.
    pub fn leave(&self) {
        self.full.fetch_sub(1, Ordering::AcqRel);
        self.publish();
    }

    /// The count is read inside the channel's lock, so the last writer publishes the truth.
    fn publish(&self) {
        self.state.send_if_modified(|congested| {
            let now = self.full.load(Ordering::Acquire) > 0;
            std::mem::replace(congested, now) != now
        });
    }

    /// A receiver to wait with, while any stream is full.
    #[must_use]
    pub fn wait(&self) -> Option<watch::Receiver<bool>> {
        (self.full.load(Ordering::Acquire) > 0).then(|| self.state.subscribe())
    }
}

impl Default for Congestion {
    fn default() -> Self {
        Congestion::new()
    }
}
