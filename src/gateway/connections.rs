//! Counts connections for the metrics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::net::{End, Observer};
use crate::telemetry::label::Accepted;
use crate::telemetry::{ConnectionGauge, Metrics};

/// The open connections of each listener.
pub(super) struct Connections {
    metrics: Arc<Metrics>,
    open: Mutex<HashMap<&'static str, Vec<ConnectionGauge>>>,
}

impl Connections {
    pub(super) fn new(metrics: Arc<Metrics>) -> Connections {
        Connections { metrics, open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<&'static str, Vec<ConnectionGauge>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Connections {
    fn accepted(&self, listener: &'static str) {
        self.metrics.accepted(listener, Accepted::Ok);
        self.open().entry(listener).or_default().push(self.metrics.connection_opened(listener));
    }

    fn closed(&self, listener: &'static str, end: End) {
        match end {
            End::Handshake | End::PlainHttp | End::HandshakeTimeout => {
                self.metrics.accepted(listener, Accepted::Handshake)
            }
            End::TooMany => self.metrics.accepted(listener, Accepted::AddressLimit),
            End::Flooded => self.metrics.accepted(listener, Accepted::Flood),
            _ => {}
        }
        if let Some(gauges) = self.open().get_mut(listener) {
            gauges.pop();
        }
    }

    fn refused(&self, listener: &'static str, why: Accepted) {
        self.metrics.accepted(listener, why);
    }

    fn accept_error(&self, _listener: &'static str, errno: &'static str) {
        self.metrics.accept_error(errno);
    }
}
