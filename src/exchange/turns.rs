//! Whose call a shared child gets next: a bounded number at once, and sessions in turn.

use std::collections::{HashMap, VecDeque};

/// Calls of many sessions on one child. `T` is what is kept of a call that waits.
#[derive(Debug)]
pub struct Turns<T> {
    /// Calls the child may have at once.
    at_once: usize,
    /// Calls that may wait, in all and of one session.
    waiting_most: usize,
    bytes_most: usize,
    /// By call, the session it is of.
    with_child: HashMap<u64, u64>,
    /// By session; no queue is empty.
    queues: HashMap<u64, Queue<T>>,
    /// The sessions that wait, the next one first.
    order: VecDeque<u64>,
    waiting: usize,
    waiting_bytes: usize,
}

/// The calls of one session that wait.
#[derive(Debug)]
struct Queue<T> {
    calls: VecDeque<Waiting<T>>,
    bytes: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    call: u64,
    bytes: usize,
    kept: T,
}

/// One session may have so much of what may wait.
const SHARE: usize = 4;

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
    /// No calls. `at_once` is at least 1; one session may have a quarter of the calls and bytes that may wait, and any
    /// session one call.
    #[must_use]
    pub fn new(at_once: usize, waiting_most: usize, bytes_most: usize) -> Turns<T> {
        Turns {
            at_once: at_once.max(1),
            waiting_most,
            bytes_most,
            with_child: HashMap::new(),
            queues: HashMap::new(),
            order: VecDeque::new(),
            waiting: 0,
            waiting_bytes: 0,
        }
    }

    /// A session makes a call of so many bytes; `keep` is asked for what is kept of it only if it has to wait, and may
    /// find that it cannot be.
    pub fn ask<E>(
        &mut self,
        session: u64,
        call: u64,
        bytes: usize,
        keep: impl FnOnce() -> Result<T, E>,
    ) -> Result<Turn, E> {
        if self.with_child.len() < self.at_once && self.waiting == 0 {
            self.with_child.insert(call, session);
            return Ok(Turn::Now);
        }
        let (own, own_bytes) = self.queues.get(&session).map_or((0, 0), |queue| (queue.calls.len(), queue.bytes));
        let too_many = self.waiting >= self.waiting_most || own >= self.waiting_most.div_ceil(SHARE);
        let too_long = self.waiting > 0 && self.waiting_bytes.saturating_add(bytes) > self.bytes_most
            || own > 0 && own_bytes.saturating_add(bytes) > self.bytes_most / SHARE;
        if too_many || too_long {
            return Ok(Turn::Refused);
        }
        let kept = keep()?;
        if own == 0 {
            self.order.push_back(session);
        }
        let queue = self.queues.entry(session).or_insert_with(|| Queue { calls: VecDeque::new(), bytes: 0 });
        queue.calls.push_back(Waiting { call, bytes, kept });
        queue.bytes += bytes;
        self.waiting += 1;
        self.waiting_bytes += bytes;
        Ok(Turn::Later)
    }

    /// A call no longer is with the child. Gives the one whose turn it is now, which then is.
    pub fn end(&mut self, call: u64) -> Option<(u64, T)> {
        if self.with_child.remove(&call).is_none() || self.with_child.len() >= self.at_once {
            return None;
        }
        let session = self.order.pop_front()?;
        let Waiting { call, kept, .. } = self.remove(session, 0)?;
        if self.queues.contains_key(&session) {
            self.order.push_back(session);
        }
        self.with_child.insert(call, session);
        Some((call, kept))
    }

    /// Takes back a call that waits; `None` if it does not.
    pub fn take_back(&mut self, session: u64, call: u64) -> Option<T> {
        let at = self.queues.get(&session)?.calls.iter().position(|waiting| waiting.call == call)?;
        let taken = self.remove(session, at)?;
        if !self.queues.contains_key(&session) {
            self.order.retain(|waiting| *waiting != session);
        }
        Some(taken.kept)
    }

    fn remove(&mut self, session: u64, at: usize) -> Option<Waiting<T>> {
        let queue = self.queues.get_mut(&session)?;
        let taken = queue.calls.remove(at)?;
        queue.bytes -= taken.bytes;
        self.waiting -= 1;
        self.waiting_bytes -= taken.bytes;
        if queue.calls.is_empty() {
            self.queues.remove(&session);
        }
        Some(taken)
    }

    /// The child is gone: nothing is with it. Gives what waited.
    pub fn clear(&mut self) -> Vec<(u64, T)> {
        self.with_child.clear();
        self.order.clear();
        (self.waiting, self.waiting_bytes) = (0, 0);
        self.queues.drain().flat_map(|(_, queue)| queue.calls).map(|waiting| (waiting.call, waiting.kept)).collect()
    }

    /// Whether no call is with the child, and none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.with_child.is_empty() && self.waiting == 0
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
    use std::convert::Infallible;

    use proptest::prelude::{ProptestConfig, any, prop, proptest};

    use super::{Turn, Turns};

    fn ask<T>(turns: &mut Turns<T>, session: u64, call: u64, bytes: usize, kept: T) -> Turn {
        turns.ask(session, call, bytes, || Ok::<T, Infallible>(kept)).expect("it can be kept")
    }

    #[test]
    fn sessions_take_turns_however_much_one_of_them_wants() {
        let mut turns = Turns::new(2, 400, 0);
        for call in 0..100 {
            ask(&mut turns, 1, call, 0, ());
        }
        assert_eq!(ask(&mut turns, 2, 100, 0, ()), Turn::Later);
        assert_eq!(ask(&mut turns, 3, 101, 0, ()), Turn::Later);
        let next: Vec<u64> = [0, 1, 2].iter().filter_map(|call| turns.end(*call)).map(|(call, ())| call).collect();
        assert_eq!(next, [2, 100, 101], "one of each, and not in the order they came");
        assert_eq!(turns.end(0), None, "it ended before");
    }

    #[test]
    fn one_session_cannot_fill_the_queue() {
        let mut turns = Turns::new(1, 8, 1_000);
        assert_eq!(ask(&mut turns, 1, 0, 5_000, ()), Turn::Now);
        let outcomes: Vec<Turn> = (1..4).map(|call| ask(&mut turns, 1, call, 0, ())).collect();
        assert_eq!(outcomes, [Turn::Later, Turn::Later, Turn::Refused]);
        assert_eq!(ask(&mut turns, 2, 10, 400, ()), Turn::Later, "longer than its part, but alone");
        assert_eq!(ask(&mut turns, 2, 11, 1, ()), Turn::Refused);
        assert_eq!(ask(&mut turns, 3, 12, 601, ()), Turn::Refused, "longer than all of them may be");
        assert_eq!(turns.take_back(1, 1), Some(()));
        assert_eq!(turns.take_back(1, 1), None);
        assert_eq!(ask(&mut turns, 1, 4, 0, ()), Turn::Later);
        assert_eq!(turns.ask(3, 12, 0, || Err(())), Err(()), "there is no room for it elsewhere");
        assert_eq!(turns.clear().len(), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        /// Whatever comes, never more are with the child than may be, each call gets its turn at most once, a session's
        /// in the order it made them, none is forgotten while one could go, and a session that waits is passed over by
        /// each other once at most.
        #[test]
        fn no_call_is_lost(steps in prop::collection::vec((any::<u8>(), 0u64..5), 1..120), at_once in 1usize..4) {
            let mut turns = Turns::new(at_once, 64, 200);
            let (mut with_child, mut waiting, mut next) = (Vec::new(), Vec::<(u64, u64, usize)>::new(), 0u64);
            for (step, session) in steps {
                match step % 4 {
                    0 | 1 => {
                        next += 1;
                        let bytes = usize::from(step) / 4;
                        match ask(&mut turns, session, next, bytes, session) {
                            Turn::Now => with_child.push(next),
                            Turn::Later => waiting.push((session, next, bytes)),
                            Turn::Refused => assert!(!waiting.is_empty()),
                        }
                    }
                    2 if !with_child.is_empty() => {
                        let call = with_child.remove(usize::from(step) % with_child.len());
                        match turns.end(call) {
                            Some((number, session)) => {
                                let at = waiting.iter().position(|it| it.0 == session).expect("it waited");
                                assert_eq!(waiting.remove(at).1, number, "in its own order");
                                with_child.push(number);
                            }
                            None => assert!(waiting.is_empty()),
                        }
                    }
                    3 if !waiting.is_empty() => {
                        let (session, call, _) = waiting.remove(usize::from(step) % waiting.len());
                        assert_eq!(turns.take_back(session, call), Some(session));
                    }
                    _ => {}
                }
                assert!(with_child.len() <= at_once);
                assert_eq!(turns.is_empty(), with_child.is_empty());
                assert!(waiting.is_empty() || with_child.len() == at_once);
                assert_eq!(turns.only().is_some(), with_child.len() == 1 && waiting.is_empty());
                assert!(waiting.len() <= 64 && waiting.iter().map(|it| it.2).sum::<usize>() <= 200);
            }
            // What is left goes in turns: between two calls of one session each other that waits has one.
            while !with_child.is_empty() {
                let before: std::collections::HashSet<u64> = waiting.iter().map(|it| it.0).collect();
                let round: Vec<u64> = (0..before.len()).filter_map(|_| {
                    let (number, session) = turns.end(with_child.remove(0))?;
                    waiting.retain(|it| it.1 != number);
                    with_child.push(number);
                    Some(session)
                }).collect();
                assert_eq!(round.iter().copied().collect::<std::collections::HashSet<u64>>(), before);
                if waiting.is_empty() {
                    break;
                }
            }
            assert_eq!(turns.clear().len(), waiting.len());
        }
    }
}
