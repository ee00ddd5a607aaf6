//! What a child asks its client and still waits for.

use std::time::{Duration, Instant};

use crate::mcp::ids::Id;
use crate::mcp::receipt::{Passage, Receipt};

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

/// Every request of a session's child that awaits an answer.
#[derive(Debug, Default)]
pub struct Asks {
    open: Vec<Ask>,
    /// Since when at least one is open.
    waiting_since: Option<Instant>,
}

impl Asks {
    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Adds one; `false` if one with this id is open already.
    pub fn add(&mut self, id: Id, method: &str, via: Via, receipt: Receipt, now: Instant) -> bool {
        if self.open.iter().any(|ask| ask.id == id) {
            return false;
        }
        self.waiting_since.get_or_insert(now);
        self.open.push(Ask { id, method: method.into(), via, since: now, receipt });
        true
    }

    /// Removes one.
    pub fn take(&mut self, id: &Id) -> Option<Ask> {
        let at = self.open.iter().position(|ask| ask.id == *id)?;
        Some(self.open.swap_remove(at))
    }

    /// Removes all: nobody will answer them any more.
    pub fn take_all(&mut self) -> Vec<Ask> {
        self.waiting_since = None;
        std::mem::take(&mut self.open)
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
        let (expired, open) = std::mem::take(&mut self.open).into_iter().partition(over);
        self.open = open;
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
    use super::{Asks, Via};
    use crate::mcp::ids::Id;
    use crate::mcp::receipt::Receipt;
    use std::time::{Duration, Instant};

    fn id(raw: &'static str) -> Id {
        Id::parse(raw.as_bytes()).expect("an id")
    }

    #[test]
    fn each_is_answered_once() {
        let now = Instant::now();
        let mut asks = Asks::default();
        assert!(asks.add(id("\"e1\""), "ping", Via::Standalone, Receipt::default(), now));
        assert!(!asks.add(id("\"e\\u0031\""), "ping", Via::Standalone, Receipt::default(), now));
        assert!(asks.add(id("1"), "ping", Via::Post(4), Receipt::default(), now));
        assert!(asks.take(&id("\"1\"")).is_none());
        assert_eq!(asks.take(&id("\"\\u00651\"")).expect("open").id.raw(), b"\"e1\"");
        assert_eq!(asks.waited(now), None);
        assert!(asks.take(&id("1")).is_some());
        assert_eq!(asks.waited(now + Duration::from_secs(3)), Some(Duration::from_secs(3)));
        assert_eq!(asks.waited(now), None);
    }

    #[test]
    fn the_unread_expire_sooner_and_the_lost_at_once() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut asks = Asks::default();
        let [unread, read, on_post, lost] = [(); 4].map(|()| Receipt::default());
        asks.add(id("1"), "ping", Via::Standalone, unread, now);
        asks.add(id("2"), "ping", Via::Standalone, read.clone(), now);
        asks.add(id("3"), "ping", Via::Post(1), on_post, now);
        asks.add(id("4"), "ping", Via::Post(1), lost.clone(), now);
        read.write();
        lost.lose();
        let mut expired = |after: u32, unread| {
            let expired = asks.take_expired(now + second * after, Some(second * 10), unread);
            expired.iter().map(|ask| ask.id.raw()[0]).collect::<Vec<u8>>()
        };
        assert_eq!(expired(0, Some(second)), b"4");
        assert_eq!(expired(1, Some(second)), b"1", "what a reader has is not unread, whoever reads now");
        assert_eq!(expired(9, Some(second)), b"");
        assert_eq!(expired(10, None), b"23");
    }
}
