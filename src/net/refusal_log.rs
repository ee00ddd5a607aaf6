//! The log of connections that were closed at once.

use std::time::Duration;

use crate::caller::Peer;
use crate::telemetry::Occasion;
use crate::telemetry::label::Accepted;

/// A line at most this often.
const EVERY: Duration = Duration::from_secs(10);

/// Keeps a flood of refused connections from becoming a flood of lines.
pub(super) struct RefusalLog(Occasion);

impl Default for RefusalLog {
    fn default() -> Self {
        RefusalLog(Occasion::each(EVERY))
    }
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
        let Some(unlogged) = self.0.take() else { return };
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
}
