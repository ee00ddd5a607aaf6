//! What happens while one of a session's readers is too far behind: its own child waits, or, where others use the child
//! too, the reader loses notifications.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;

/// How many streams of one session are full.
#[derive(Debug)]
pub struct Congestion {
    full: AtomicUsize,
    /// Nothing waits for a reader.
    is_shared: AtomicBool,
    state: watch::Sender<bool>,
}

impl Congestion {
    /// None is full.
    #[must_use]
    pub fn new() -> Congestion {
        Congestion { full: AtomicUsize::new(0), is_shared: AtomicBool::new(false), state: watch::Sender::new(false) }
    }

    /// The child is others' too: it waits for no reader. Said before there is any.
    pub fn share(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }

    /// Whether a reader that is too far behind loses notifications.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
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
