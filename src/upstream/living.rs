//! How many processes were started and not reaped yet.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A count that whoever must not end before the last process can wait for.
#[derive(Clone, Debug, Default)]
pub struct Living(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    count: Mutex<usize>,
    none: Condvar,
}

/// One process, counted until this is dropped.
#[derive(Debug)]
pub(super) struct Counted(Living);

impl Living {
    /// Counts one more.
    pub(super) fn one(&self) -> Counted {
        *self.count() += 1;
        Counted(self.clone())
    }

    /// Blocks the thread until every process is reaped, at most for `patience`. Gives the number
    /// of those that are not.
    #[must_use]
    pub fn wait_for_none(&self, patience: Duration) -> usize {
        let waited = self.0.none.wait_timeout_while(self.count(), patience, |count| *count > 0);
        let (count, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *count
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.0.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut count = self.0.count();
        *count -= 1;
        if *count == 0 {
            self.0.0.none.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Living;
    use std::time::Duration;

    #[test]
    fn the_last_one_is_waited_for() {
        let living = Living::default();
        assert_eq!(living.wait_for_none(Duration::ZERO), 0);
        let (one, other) = (living.one(), living.one());
        drop(one);
        assert_eq!(living.wait_for_none(Duration::ZERO), 1);
        let ends = std::thread::spawn(move || drop(other));
        assert_eq!(living.wait_for_none(Duration::from_secs(30)), 0);
        ends.join().expect("no panic");
    }
}
