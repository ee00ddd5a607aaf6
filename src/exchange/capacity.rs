//! How many requests may wait for an answer, in all and of one caller, and what their answers weigh until they are
//! written.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::budget::Budget;
use crate::caller::Principal;
use crate::exchange::places::{Place, Places};

/// The counts and their bounds; `usize::MAX` is no bound.
pub struct Capacity {
    total: AtomicUsize,
    each: AtomicUsize,
    waiting: AtomicUsize,
    places: Arc<Places>,
    budget: Arc<Budget>,
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
    /// Nothing waits; `budget` bears what is held. `None` is no bound.
    #[must_use]
    pub fn new(total: Option<usize>, each: Option<usize>, budget: Arc<Budget>) -> Arc<Capacity> {
        let (total, each) = (AtomicUsize::new(bound(total)), AtomicUsize::new(bound(each)));
        Arc::new(Capacity { total, each, waiting: AtomicUsize::new(0), places: Arc::default(), budget })
    }

    /// Changes the bounds; whoever has a place keeps it.
    pub fn set_bounds(&self, total: Option<usize>, each: Option<usize>) {
        self.total.store(bound(total), Ordering::Relaxed);
        self.each.store(bound(each), Ordering::Relaxed);
    }

    /// Takes a place for one request. Anonymous callers cannot be told apart and share the total
    /// only.
    ///
    /// # Errors
    /// The bound that was reached.
    pub fn enter(self: &Arc<Self>, principal: &Principal) -> Result<Permit, Reached> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut permit = Permit { capacity: Arc::clone(self), place: None, held: 0 };
        if waiting >= self.total.load(Ordering::Relaxed) {
            return Err(Reached::Total);
        }
        let each = self.each.load(Ordering::Relaxed);
        if each < usize::MAX && !principal.is_anonymous() {
            permit.place = Some(self.places.take(principal, each).ok_or(Reached::Principal)?);
        }
        Ok(permit)
    }
}

fn bound(most: Option<usize>) -> usize {
    most.unwrap_or(usize::MAX)
}

/// The place of one request; dropping it frees it. It goes with the answer, so that a client that
/// does not read what it asked for is bounded in what it may ask.
pub struct Permit {
    capacity: Arc<Capacity>,
    place: Option<Place>,
    held: usize,
}

impl Permit {
    /// Takes `bytes` of the budget, whether there is room or not, until this is dropped: an answer
    /// must not be lost.
    pub fn hold(&mut self, bytes: usize) {
        self.capacity.budget.overdraw(bytes);
        self.held += bytes;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.capacity.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.held > 0 {
            self.capacity.budget.give_back(self.held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Capacity, Reached};
    use crate::budget::Budget;
    use crate::caller::Principal;
    use std::sync::Arc;

    #[test]
    fn places_are_freed() {
        let budget = Budget::new(100);
        let capacity = Capacity::new(Some(3), Some(2), Arc::clone(&budget));
        let key = Principal::Key("a".into());
        let mut held: Vec<_> = (0..2).map(|_| capacity.enter(&key).map_err(drop).expect("room")).collect();
        assert_eq!(capacity.enter(&key).err(), Some(Reached::Principal));
        let other = capacity.enter(&Principal::Anonymous).map_err(drop).expect("room");
        assert_eq!(capacity.enter(&Principal::Anonymous).err(), Some(Reached::Total));
        held[0].hold(150);
        assert!(budget.reserve(1).is_none(), "an answer that waits leaves no room");
        drop((held, other));
        assert_eq!(budget.used(), 0);
        assert!(capacity.places.is_empty());
        assert!(capacity.enter(&key).is_ok());
    }
}
