//! The one memory budget: request bodies, queues to children, send windows and replay all draw on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Bytes that may be held for clients and children together.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    scarce: Notify,
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget { limit: AtomicU64::new(limit), used: AtomicU64::new(0), scarce: Notify::new() })
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes there are.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes how many there are; what is taken beyond a smaller number is not taken back.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        self.took(self.used());
    }

    /// Bytes above the mark of seven eighths, from which on whatever is kept for convenience must
    /// give way, so that work is refused only for what cannot.
    #[must_use]
    pub fn shortage(&self) -> u64 {
        self.used().saturating_sub(self.mark())
    }

    /// Waits until something is taken while there is a shortage.
    pub async fn scarce(&self) {
        self.scarce.notified().await;
    }

    fn mark(&self) -> u64 {
        let limit = self.limit();
        limit - limit / 8
    }

    fn took(&self, used: u64) {
        if used > self.mark() {
            self.scarce.notify_one();
        }
    }

    /// Takes `bytes` if there is room.
    #[must_use]
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reserved> {
        let mut reserved = Reserved { budget: Arc::clone(self), bytes: 0 };
        reserved.grow(bytes).then_some(reserved)
    }

    fn take(&self, bytes: u64) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        self.took(before.saturating_add(bytes));
        if before.saturating_add(bytes) <= self.limit() {
            return true;
        }
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    /// Takes `bytes` whether there is room or not: for what must not be lost. New work is refused
    /// until what was overdrawn is back.
    pub fn overdraw(&self, bytes: usize) {
        let before = self.used.fetch_add(bytes as u64, Ordering::Relaxed);
        self.took(before.saturating_add(bytes as u64));
    }

    /// Gives back what [`Budget::overdraw`] took.
    pub fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes as u64, Ordering::Relaxed);
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
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Makes the allocator give every large block back to the system as soon as it is freed.
///
/// Left alone, glibc raises its own bound to the largest block it ever saw freed, and from then on a
/// few large results stay resident for good (mallopt(3), `M_MMAP_THRESHOLD`). To be called before
/// the first of them; other allocators do as they do.
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // Results of a megabyte or two are common: for them, fresh pages each time would cost more
        // than the work on their bytes.
        const LARGE_BLOCK: libc::c_int = 4 * 1024 * 1024;
        // SAFETY: sets two numbers in the allocator, under its own lock.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK);
            libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BLOCK);
        }
    }
}

/// Gives free memory back to the system, also what lies between blocks in use; takes about a
/// millisecond. glibc keeps it otherwise, so that the memory of many sessions stays resident after
/// they ended; other allocators do as they do.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: releases pages that hold no block, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;

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
}
