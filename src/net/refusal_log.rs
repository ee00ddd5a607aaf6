//! The log of connections that were closed at once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::caller::Peer;
use crate::telemetry::label::Accepted;

/// A line at most this often.
const EVERY: Duration = Duration::from_secs(10);

/// Keeps a flood of refused connections from becoming a flood of lines.
#[derive(Default)]
pub(super) struct RefusalLog(Mutex<Silence>);

#[derive(Default)]
struct Silence {
    until: Option<Instant>,
    unlogged: u64,
}

impl RefusalLog {
    /// One was not taken.
    pub(super) fn refused(&self, listener: &'static str, why: Accepted, peer: Peer) {
        let key = match why {
            Accepted::AddressLimit => "limits.connections_per_address, or listen.trusted_proxies for a proxy",
            Accepted::Untrusted => "listen.trusted_proxies, or listen.proxy_protocol where no proxy writes it",
            _ => "limits.connections",
        };
        self.write(listener, why.as_str(), peer, key);
    }

    /// One was taken that did not say for whom it speaks, or spoke for one that has too many.
    pub(super) fn unintroduced(&self, listener: &'static str, why: &'static str, peer: Peer) {
        let key = match why {
            "address_limit" => "limits.connections_per_address",
            _ => "listen.proxy_protocol",
        };
        self.write(listener, why, peer, key);
    }

    /// One spoke HTTP where TLS is spoken.
    pub(super) fn plain(&self, listener: &'static str, peer: Peer) {
        self.write(listener, "plain_http", peer, "listen.tls");
    }

    fn write(&self, listener: &'static str, reason: &'static str, peer: Peer, key: &'static str) {
        let Some(unlogged) = self.unlogged() else { return };
        tracing::warn!(
            event = "refused",
            listener,
            reason,
            client_addr = %peer,
            key,
            unlogged,
            "connection closed at once"
        );
    }

    /// How many went without a line before this one, or `None` if this one does too.
    fn unlogged(&self) -> Option<u64> {
        let mut silence = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if silence.until.is_some_and(|until| now < until) {
            silence.unlogged += 1;
            return None;
        }
        silence.until = Some(now + EVERY);
        Some(std::mem::take(&mut silence.unlogged))
    }
}
