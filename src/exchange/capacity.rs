//! How many requests may wait for an answer, in all and of one caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;

use crate::caller::Principal;

/// The counts and their bounds; `None` is no bound.
pub struct Capacity {
    total: Option<usize>,
    each: Option<usize>,
    waiting: AtomicUsize,
    by_principal: DashMap<Principal, usize>,
}

/// Which bound was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// `limits.requests_in_flight`
    Total,
    /// `limits.requests_in_flight_per_principal`
    Principal,
}

impl Capacity {
    /// Nothing waits.
    #[must_use]
    pub fn new(total: Option<usize>, each: Option<usize>) -> Arc<Capacity> {
        Arc::new(Capacity { total, each, waiting: AtomicUsize::new(0), by_principal: DashMap::new() })
    }

    /// Takes a place for one request. Anonymous callers cannot be told apart and share the total
    /// only.
    ///
    /// # Errors
    /// The bound that was reached.
    pub fn enter(self: &Arc<Self>, principal: &Principal) -> Result<Permit, Reached> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut permit = Permit { capacity: Arc::clone(self), principal: None };
        if self.total.is_some_and(|total| waiting >= total) {
            return Err(Reached::Total);
        }
        if let (Some(each), false) = (self.each, principal.is_anonymous()) {
            let mut count = self.by_principal.entry(principal.clone()).or_insert(0);
            if *count >= each {
                return Err(Reached::Principal);
            }
            *count += 1;
            permit.principal = Some(principal.clone());
        }
        Ok(permit)
    }
}

/// The place of one request; dropping it frees it.
pub struct Permit {
    capacity: Arc<Capacity>,
    principal: Option<Principal>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.capacity.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(principal) = &self.principal {
            self.capacity.by_principal.alter(principal, |_, count| count - 1);
            self.capacity.by_principal.remove_if(principal, |_, count| *count == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Capacity, Reached};
    use crate::caller::Principal;

    #[test]
    fn places_are_freed() {
        let capacity = Capacity::new(Some(3), Some(2));
        let key = Principal::Key("a".into());
        let held: Vec<_> = (0..2).map(|_| capacity.enter(&key).map_err(drop).expect("room")).collect();
        assert_eq!(capacity.enter(&key).err(), Some(Reached::Principal));
        let other = capacity.enter(&Principal::Anonymous).map_err(drop).expect("room");
        assert_eq!(capacity.enter(&Principal::Anonymous).err(), Some(Reached::Total));
        drop((held, other));
        assert!(capacity.by_principal.is_empty());
        assert!(capacity.enter(&key).is_ok());
    }
}
