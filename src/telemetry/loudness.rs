//! How much is logged, which may change while the gateway runs.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::config::{Access, LogLevel, Telemetry};

/// `log.level` and `log.access`, read at every line.
pub struct Loudness {
    level: AtomicU8,
    access: AtomicU8,
}

impl Loudness {
    pub(super) fn new(config: &Telemetry) -> Loudness {
        Loudness { level: AtomicU8::new(config.level as u8), access: AtomicU8::new(config.access as u8) }
    }

    /// Changes what is logged from now on.
    pub fn set(&self, config: &Telemetry) {
        self.access.store(config.access as u8, Ordering::Relaxed);
        let before = self.level.swap(config.level as u8, Ordering::Relaxed);
        if before != config.level as u8 {
            // `tracing` asks each place that logs once and remembers the answer.
            tracing::callsite::rebuild_interest_cache();
        }
    }

    pub(super) fn level(&self) -> LogLevel {
        const LEVELS: [LogLevel; 5] =
            [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];
        let level = self.level.load(Ordering::Relaxed);
        LEVELS.into_iter().find(|known| *known as u8 == level).unwrap_or(LogLevel::Trace)
    }

    /// Whether `log.access` asks for a line about a message; `failed` says how that ended.
    pub(super) fn admits(&self, failed: bool) -> bool {
        let access = self.access.load(Ordering::Relaxed);
        access == Access::All as u8 || (access == Access::Errors as u8 && failed)
    }
}
