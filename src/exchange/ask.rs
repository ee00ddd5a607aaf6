//! What a child asks its client and still waits for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::exchange::account::kept;
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
}

impl Ask {
    /// A request that is being sent.
    #[must_use]
    pub fn new(id: Id, method: &str, via: Via, now: Instant) -> Ask {
        Ask { id, method: kept(method), via, since: now, receipt: Receipt::default() }
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
    /// Since when at least one is open.
    waiting_since: Option<Instant>,
}

impl Asks {
    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Adds one.
    ///
    /// # Errors
    /// See [`NotAdded`].
    pub fn add(&mut self, ask: Ask) -> Result<(), NotAdded> {
        if self.open.contains_key(&ask.id) {
            return Err(NotAdded::Duplicate);
        }
        if self.open.len() >= MOST_OPEN {
            return Err(NotAdded::Full);
        }
        self.waiting_since.get_or_insert(ask.since);
        self.open.insert(ask.id.clone(), ask);
        Ok(())
    }

    /// Removes one.
    pub fn take(&mut self, id: &Id) -> Option<Ask> {
        self.open.remove(id)
    }

    /// Removes all: nobody will answer them any more.
    pub fn take_all(&mut self) -> Vec<Ask> {
        self.waiting_since = None;
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// Removes those that waited too long: `limit` in general, `unread` for a reader of the
    /// standalone stream; and those no reader will ever get.
    pub fn take_expired(&mut self, now: Instant, limit: Option<Duration>, unread: Option<Duration>) -> Vec<Ask> {
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
        expired
    }

    /// How long the child waited, if nothing is open any more; told once.
    pub fn waited(&mut self, now: Instant) -> Option<Duration> {
        if !self.open.is_empty() {
            return None;
        }
        self.waiting_since.take().map(|since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::{Ask, Asks, MOST_OPEN, NotAdded, Via};
    use crate::mcp::ids::Id;
    use std::time::{Duration, Instant};

    fn id(raw: &str) -> Id {
        Id::parse(raw.as_bytes()).expect("an id")
    }

    fn ask(raw: &str, via: Via, now: Instant) -> Ask {
        Ask::new(id(raw), "ping", via, now)
    }

    #[test]
    fn each_is_answered_once() {
        let now = Instant::now();
        let mut asks = Asks::default();
        assert_eq!(asks.add(ask("\"e1\"", Via::Standalone, now)), Ok(()));
        assert_eq!(asks.add(ask("\"e\\u0031\"", Via::Standalone, now)), Err(NotAdded::Duplicate));
        assert_eq!(asks.add(ask("1", Via::Post(4), now)), Ok(()));
        assert!(asks.take(&id("\"1\"")).is_none());
        assert_eq!(asks.take(&id("\"\\u00651\"")).expect("open").id.raw(), b"\"e1\"");
        assert_eq!(asks.waited(now), None);
        assert!(asks.take(&id("1")).is_some());
        assert_eq!(asks.waited(now + Duration::from_secs(3)), Some(Duration::from_secs(3)));
        assert_eq!(asks.waited(now), None);
    }

    #[test]
    fn so_many_are_open_and_no_more() {
        let now = Instant::now();
        let mut asks = Asks::default();
        for n in 0..MOST_OPEN {
            assert_eq!(asks.add(ask(&n.to_string(), Via::Standalone, now)), Ok(()));
        }
        assert_eq!(asks.add(ask("\"more\"", Via::Standalone, now)), Err(NotAdded::Full));
        assert!(asks.take(&id("7")).is_some());
        assert_eq!(asks.add(ask("\"more\"", Via::Standalone, now)), Ok(()));
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
            assert_eq!(asks.add(ask), Ok(()));
            receipt
        };
        let _unread = add("1", Via::Standalone);
        add("2", Via::Standalone).write();
        let _on_post = add("3", Via::Post(1));
        add("4", Via::Post(1)).lose();
        let mut expired = |after: u32, unread| {
            let expired = asks.take_expired(now + second * after, Some(second * 10), unread);
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
