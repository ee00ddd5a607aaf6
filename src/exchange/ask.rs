//! What a child asks its client and still waits for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::exchange::account::kept;
use crate::exchange::call::Call;
use crate::mcp::call_map::CallMap;
use crate::mcp::ids::Id;
use crate::mcp::receipt::{Passage, Receipt};

/// Requests of one child's that may await an answer at once: far more than a client could put to
/// anybody, and few enough that they cost nothing.
const MOST_OPEN: usize = 256;

/// One request of a child's.
#[derive(Debug)]
pub struct Ask {
    /// The child's own id; the client sees and answers the same one.
    pub id: Id,
    /// What it asks.
    pub method: Box<str>,
    /// Where it was sent.
    pub via: Via,
    /// When it was sent.
    pub since: Instant,
    /// Whether the client got it.
    pub receipt: Receipt,
    /// The calls whose clocks stand still for it.
    holds: Vec<u64>,
}

impl Ask {
    /// A request that is being sent.
    #[must_use]
    pub fn new(id: Id, method: &str, via: Via, now: Instant) -> Ask {
        Ask { id, method: kept(method), via, since: now, receipt: Receipt::default(), holds: Vec::new() }
    }

    fn release(&self, now: Instant, calls: &mut CallMap<Call>) {
        for number in &self.holds {
            if let Some(call) = calls.get_mut(number) {
                call.clock.release(now);
            }
        }
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        self.receipt.close();
    }
}

/// Where a request of a child's was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// On the stream of this call.
    Post(u64),
    /// On the standalone stream.
    Standalone,
}

/// Why a request of a child's cannot be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdded {
    /// One with this id is open already.
    Duplicate,
    /// As many as may be are open.
    Full,
}

/// Every request of a session's child that awaits an answer.
#[derive(Debug, Default)]
pub struct Asks {
    /// By the child's id. Whoever chose it cannot know the hasher's keys.
    open: HashMap<Id, Ask>,
}

impl Asks {
    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// How many are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Adds one, and stops the clocks of the calls that `is_held` says it may be for. A call that
    /// begins later is none of them.
    ///
    /// # Errors
    /// See [`NotAdded`].
    pub fn add(
        &mut self,
        mut ask: Ask,
        calls: &mut CallMap<Call>,
        is_held: impl Fn(&Call) -> bool,
    ) -> Result<(), NotAdded> {
        if self.open.contains_key(&ask.id) {
            return Err(NotAdded::Duplicate);
        }
        if self.open.len() >= MOST_OPEN {
            return Err(NotAdded::Full);
        }
        for (number, call) in calls.iter_mut().filter(|(_, call)| is_held(call)) {
            call.clock.hold(ask.since);
            ask.holds.push(*number);
        }
        self.open.insert(ask.id.clone(), ask);
        Ok(())
    }

    /// Removes one; the clocks it held run on.
    pub fn take(&mut self, id: &Id, now: Instant, calls: &mut CallMap<Call>) -> Option<Ask> {
        let ask = self.open.remove(id)?;
        ask.release(now, calls);
        Some(ask)
    }

    /// Removes all: nobody will answer them any more, and no call is left.
    pub fn take_all(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// Removes those that waited too long: `limit` in general, `unread` for a reader of the
    /// standalone stream; and those no reader will ever get.
    pub fn take_expired(
        &mut self,
        now: Instant,
        limit: Option<Duration>,
        unread: Option<Duration>,
        calls: &mut CallMap<Call>,
    ) -> Vec<Ask> {
        let over = |ask: &Ask| {
            let waited = now.saturating_duration_since(ask.since);
            limit.is_some_and(|limit| waited >= limit)
                || match ask.receipt.passage() {
                    Passage::Lost => true,
                    Passage::Waiting => ask.via == Via::Standalone && unread.is_some_and(|unread| waited >= unread),
                    Passage::Written => false,
                }
        };
        let mut expired: Vec<Ask> = self.open.extract_if(|_, ask| over(ask)).map(|(_, ask)| ask).collect();
        expired.sort_by_key(|ask| ask.since);
        expired.iter().for_each(|ask| ask.release(now, calls));
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::{Ask, Asks, MOST_OPEN, NotAdded, Via};
    use crate::mcp::call_map::CallMap;
    use crate::mcp::ids::Id;
    use std::time::{Duration, Instant};

    fn id(raw: &str) -> Id {
        Id::parse(raw.as_bytes()).expect("an id")
    }

    fn ask(raw: &str, via: Via, now: Instant) -> Ask {
        Ask::new(id(raw), "ping", via, now)
    }

    fn add(asks: &mut Asks, ask: Ask) -> Result<(), NotAdded> {
        asks.add(ask, &mut CallMap::default(), |_| true)
    }

    #[test]
    fn each_is_answered_once() {
        let now = Instant::now();
        let mut asks = Asks::default();
        let take = |asks: &mut Asks, raw: &str| asks.take(&id(raw), now, &mut CallMap::default());
        assert_eq!(add(&mut asks, ask("\"e1\"", Via::Standalone, now)), Ok(()));
        assert_eq!(add(&mut asks, ask("\"e\\u0031\"", Via::Standalone, now)), Err(NotAdded::Duplicate));
        assert_eq!(add(&mut asks, ask("1", Via::Post(4), now)), Ok(()));
        assert!(take(&mut asks, "\"1\"").is_none());
        assert_eq!(take(&mut asks, "\"\\u00651\"").expect("open").id.raw(), b"\"e1\"");
        assert!(take(&mut asks, "1").is_some());
        assert!(take(&mut asks, "1").is_none() && asks.is_empty());
    }

    #[test]
    fn so_many_are_open_and_no_more() {
        let now = Instant::now();
        let mut asks = Asks::default();
        for n in 0..MOST_OPEN {
            assert_eq!(add(&mut asks, ask(&n.to_string(), Via::Standalone, now)), Ok(()));
        }
        assert_eq!(add(&mut asks, ask("\"more\"", Via::Standalone, now)), Err(NotAdded::Full));
        assert!(asks.take(&id("7"), now, &mut CallMap::default()).is_some());
        assert_eq!(add(&mut asks, ask("\"more\"", Via::Standalone, now)), Ok(()));
        let long = Ask::new(id("1"), &"x".repeat(100_000), Via::Standalone, now);
        assert!(long.method.len() < 1_000);
    }

    #[test]
    fn the_unread_expire_sooner_and_the_lost_at_once() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut asks = Asks::default();
        let mut add = |raw: &str, via: Via| {
            let ask = ask(raw, via, now);
            let receipt = ask.receipt.clone();
            assert_eq!(add(&mut asks, ask), Ok(()));
            receipt
        };
        let _unread = add("1", Via::Standalone);
        add("2", Via::Standalone).write();
        let _on_post = add("3", Via::Post(1));
        add("4", Via::Post(1)).lose();
        let mut expired = |after: u32, unread| {
            let expired = asks.take_expired(now + second * after, Some(second * 10), unread, &mut CallMap::default());
            let mut ids: Vec<u8> = expired.iter().map(|ask| ask.id.raw()[0]).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(expired(0, Some(second)), b"4");
        assert_eq!(expired(1, Some(second)), b"1", "what a reader has is not unread, whoever reads now");
        assert_eq!(expired(9, Some(second)), b"");
        assert_eq!(expired(10, None), b"23");
    }
}
