//! The streams of a session's POSTs: those that run, and those that ended and are kept for a resume.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::exchange::stream::Stream;
use crate::mcp::stream_log::Nonce;
use crate::telemetry::label::Eviction;

/// Streams of one session that are kept although they ended and were read to their end.
const ENDED_KEPT: usize = 256;

/// So many streams may come before all are looked at again.
const LOOK_EVERY: usize = 32;

/// The streams, by name.
pub struct Streams {
    by_nonce: HashMap<Nonce, Arc<Stream>>,
    /// The number of streams at which those that ended are looked at next.
    look_at: usize,
}

impl Default for Streams {
    fn default() -> Self {
        Streams { by_nonce: HashMap::new(), look_at: ENDED_KEPT + LOOK_EVERY }
    }
}

impl Streams {
    /// Adds one. Where too many ended and were read, the oldest of them are forgotten; one that
    /// nobody has read to its end stays for its time.
    pub fn insert(&mut self, stream: &Arc<Stream>) {
        self.by_nonce.insert(stream.nonce(), Arc::clone(stream));
        if self.by_nonce.len() >= self.look_at {
            self.forget_oldest();
            self.look_at = self.by_nonce.len().max(ENDED_KEPT) + LOOK_EVERY;
        }
    }

    fn forget_oldest(&mut self) {
        let mut read: Vec<(Instant, Nonce)> =
            self.iter().filter_map(|stream| Some((stream.read_and_ended()?, stream.nonce()))).collect();
        read.sort_unstable_by_key(|(ended, _)| *ended);
        let excess = read.len().saturating_sub(ENDED_KEPT);
        for (_, nonce) in &read[..excess] {
            if let Some(stream) = self.by_nonce.remove(nonce) {
                stream.report_forgotten(Eviction::Streams);
            }
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_nonce.is_empty()
    }

    /// The one with this name.
    #[must_use]
    pub fn get(&self, nonce: Nonce) -> Option<&Arc<Stream>> {
        self.by_nonce.get(&nonce)
    }

    /// Every one.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.by_nonce.values()
    }

    /// Forgets those that ended longer ago than they are kept.
    pub fn expire(&mut self, now: Instant) {
        self.by_nonce.retain(|_, stream| {
            let expired = stream.is_expired(now);
            if expired {
                stream.report_forgotten(Eviction::Age);
            }
            !expired
        });
    }
}
