//! Whose call a shared child gets next: a bounded number at once, and sessions in turn.

use std::collections::{HashMap, VecDeque};

/// Calls of many sessions on one child. `T` is what is kept of a call that waits.
#[derive(Debug)]
pub struct Turns<T> {
    /// Calls the child may have at once.
    at_once: usize,
    /// Calls that may wait, in all and of one session.
    waiting_most: usize,
    waiting_most_each: usize,
    /// By call, the session it is of.
    with_child: HashMap<u64, u64>,
    /// By session; no queue is empty.
    queues: HashMap<u64, VecDeque<(u64, T)>>,
    /// The sessions that wait, the next one first.
    order: VecDeque<u64>,
    waiting: usize,
}

/// What becomes of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// It goes to the child now.
    Now,
    /// It waits for its turn.
    Later,
    /// Too many wait.
    Refused,
}

impl<T> Turns<T> {
    /// No calls. `at_once` is at least 1; one session may have a quarter of what may wait.
    #[must_use]
    pub fn new(at_once: usize, waiting_most: usize) -> Turns<T> {
        Turns {
            at_once: at_once.max(1),
            waiting_most,
            waiting_most_each: waiting_most.div_ceil(4),
            with_child: HashMap::new(),
            queues: HashMap::new(),
            order: VecDeque::new(),
            waiting: 0,
        }
    }

    /// A session makes a call; `keep` is asked for what is kept of it only if it has to wait.
    pub fn ask(&mut self, session: u64, call: u64, keep: impl FnOnce() -> T) -> Turn {
        if self.with_child.len() < self.at_once && self.waiting == 0 {
            self.with_child.insert(call, session);
            return Turn::Now;
        }
        let own = self.queues.get(&session).map_or(0, VecDeque::len);
        if self.waiting >= self.waiting_most || own >= self.waiting_most_each {
            return Turn::Refused;
        }
        if own == 0 {
            self.order.push_back(session);
        }
        self.queues.entry(session).or_default().push_back((call, keep()));
        self.waiting += 1;
        Turn::Later
    }

    /// A call no longer is with the child. Gives the one whose turn it is now, which then is.
    pub fn end(&mut self, call: u64) -> Option<(u64, T)> {
        if self.with_child.remove(&call).is_none() || self.with_child.len() >= self.at_once {
            return None;
        }
        let session = self.order.pop_front()?;
        let queue = self.queues.get_mut(&session)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&session);
        } else {
            self.order.push_back(session);
        }
        self.waiting -= usize::from(next.is_some());
        let (number, kept) = next?;
        self.with_child.insert(number, session);
        Some((number, kept))
    }

    /// Takes back a call that waits; `None` if it does not.
    pub fn take_back(&mut self, session: u64, call: u64) -> Option<T> {
        let queue = self.queues.get_mut(&session)?;
        let at = queue.iter().position(|(number, _)| *number == call)?;
        let (_, kept) = queue.remove(at)?;
        if queue.is_empty() {
            self.queues.remove(&session);
            self.order.retain(|waiting| *waiting != session);
        }
        self.waiting -= 1;
        Some(kept)
    }

    /// The child is gone: nothing is with it. Gives what waited.
    pub fn clear(&mut self) -> Vec<(u64, T)> {
        self.with_child.clear();
        self.order.clear();
        self.waiting = 0;
        self.queues.drain().flat_map(|(_, queue)| queue).collect()
    }

    /// The session of the only call that is with the child, if there is exactly one and none waits.
    #[must_use]
    pub fn only(&self) -> Option<u64> {
        let mut calls = self.with_child.values();
        calls.next().copied().filter(|_| calls.next().is_none() && self.waiting == 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::{Turn, Turns};

    #[test]
    fn sessions_take_turns_however_much_one_of_them_wants() {
        let mut turns = Turns::new(2, 400);
        for call in 0..100 {
            turns.ask(1, call, || ());
        }
        assert_eq!(turns.ask(2, 100, || ()), Turn::Later);
        assert_eq!(turns.ask(3, 101, || ()), Turn::Later);
        let next: Vec<u64> = [0, 1, 2].iter().filter_map(|call| turns.end(*call)).map(|(call, ())| call).collect();
        assert_eq!(next, [2, 100, 101], "one of each, and not in the order they came");
        assert_eq!(turns.end(0), None, "it ended before");
    }

    #[test]
    fn one_session_cannot_fill_the_queue() {
        let mut turns = Turns::new(1, 8);
        assert_eq!(turns.ask(1, 0, || ()), Turn::Now);
        let outcomes: Vec<Turn> = (1..4).map(|call| turns.ask(1, call, || ())).collect();
        assert_eq!(outcomes, [Turn::Later, Turn::Later, Turn::Refused]);
        assert_eq!(turns.ask(2, 10, || ()), Turn::Later);
        assert_eq!(turns.take_back(1, 1), Some(()));
        assert_eq!(turns.take_back(1, 1), None);
        assert_eq!(turns.ask(1, 4, || ()), Turn::Later);
    }

    proptest! {
        /// Whatever comes, never more are with the child than may be, each call gets its turn at most once, and none
        /// is forgotten while one could go.
        #[test]
        fn no_call_is_lost(steps in prop::collection::vec((any::<u8>(), 0u64..5), 1..400), at_once in 1usize..4) {
            let mut turns = Turns::new(at_once, 64);
            let (mut with_child, mut waiting, mut next) = (Vec::new(), Vec::new(), 0u64);
            for (step, session) in steps {
                match step % 3 {
                    0 => {
                        next += 1;
                        match turns.ask(session, next, || session) {
                            Turn::Now => with_child.push(next),
                            Turn::Later => waiting.push((session, next)),
                            Turn::Refused => assert!(waiting.len() >= 16),
                        }
                    }
                    1 if !with_child.is_empty() => {
                        let call = with_child.remove(usize::from(step) % with_child.len());
                        match turns.end(call) {
                            Some((number, session)) => {
                                let at = waiting.iter().position(|it| *it == (session, number)).expect("it waited");
                                waiting.remove(at);
                                with_child.push(number);
                            }
                            None => assert!(waiting.is_empty()),
                        }
                    }
                    2 if !waiting.is_empty() => {
                        let (session, call) = waiting.remove(usize::from(step) % waiting.len());
                        assert_eq!(turns.take_back(session, call), Some(session));
                    }
                    _ => {}
                }
                assert!(with_child.len() <= at_once);
                assert!(waiting.is_empty() || with_child.len() == at_once);
                assert_eq!(turns.only().is_some(), with_child.len() == 1 && waiting.is_empty());
            }
            assert_eq!(turns.clear().len(), waiting.len());
        }
    }
}
