//! The log of one gateway: where it goes, and its end.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tracing::Subscriber;
use tracing_subscriber::Registry;
use tracing_subscriber::layer::SubscriberExt as _;

use super::access::AccessLog;
use super::audit::Audit;
use super::layer::EventLayer;
use super::line::{Format, Line};
use super::loudness::Loudness;
use super::own_secrets::OwnSecrets;
use super::spool::Spool;
use super::timestamp;
use crate::config::{self, LogFormat, LogLevel};

/// Longest wait for the last lines when the log ends.
const LAST_FLUSH: Duration = Duration::from_secs(1);

/// Where lines are written. Whatever it does, only the log's own thread waits for it.
pub enum Sink {
    /// The standard error of this process.
    Stderr,
    /// Anything else; a sink that is no terminal.
    Writer(Box<dyn Write + Send>),
}

/// The log. Dropping it writes what is left, for at most a second.
///
/// A line that finds the log full or its sink broken is dropped and counted; logging neither
/// blocks nor ends the process. How many lines were lost stands in the log itself
/// (`event="log_dropped"`) once it takes lines again.
pub struct Logs {
    spool: Arc<Spool>,
    format: Format,
    loudness: Arc<Loudness>,
    secrets: Arc<OwnSecrets>,
    hushed: Arc<AtomicBool>,
    audit: Audit,
}

/// Keeps everything but errors and access lines out of the log; dropping it ends that.
#[must_use]
pub struct Hush(Arc<AtomicBool>);

impl Drop for Hush {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Logs {
    /// Starts the writing thread and sends every `tracing` event of the process here. `tracing`
    /// has one receiver in a process: where one is set already it stays, and only access lines and
    /// [`line_json`](Self::line_json) come here.
    ///
    /// # Errors
    /// The system has no thread to give, or the audit log cannot be opened.
    pub fn start(config: &config::Telemetry, to: Sink) -> io::Result<Self> {
        let (logs, receiver) = Self::build(config, to)?;
        // An error means another receiver is set, which the documentation above allows.
        let _ = tracing::subscriber::set_global_default(receiver);
        Ok(logs)
    }

    pub(super) fn build(
        config: &config::Telemetry,
        to: Sink,
    ) -> io::Result<(Self, impl Subscriber + Send + Sync + 'static)> {
        let format = format(config.format, &to);
        let audit = Audit::open(config.audit.as_ref())?;
        let spool = Arc::new(Spool::new());
        let written = Arc::clone(&spool);
        thread::Builder::new().name("gangway-log".to_owned()).spawn(move || match to {
            Sink::Stderr => written.write_to(&mut *stderr(), Some(format)),
            Sink::Writer(mut sink) => written.write_to(&mut *sink, Some(format)),
        })?;
        let hushed = Arc::new(AtomicBool::new(false));
        let loudness = Arc::new(Loudness::new(config));
        let secrets = Arc::<OwnSecrets>::default();
        let layer = EventLayer {
            spool: Arc::clone(&spool),
            format,
            loudness: Arc::clone(&loudness),
            secrets: Arc::clone(&secrets),
            hushed: Arc::clone(&hushed),
        };
        Ok((Logs { spool, format, loudness, secrets, hushed, audit }, Registry::default().with(layer)))
    }

    /// Where access lines go.
    #[must_use]
    pub fn access(&self) -> AccessLog {
        AccessLog {
            spool: Arc::clone(&self.spool),
            format: self.format,
            loudness: Arc::clone(&self.loudness),
            secrets: Arc::clone(&self.secrets),
            audit: self.audit.clone(),
        }
    }

    /// Leaves out what is neither an error nor an access line, for as long as somebody draws on the same terminal.
    pub fn hush(&self) -> Hush {
        self.hushed.store(true, Ordering::Relaxed);
        Hush(Arc::clone(&self.hushed))
    }

    /// Logs an event whose fields hold structure, such as `ready`; they stand in the order given.
    pub fn line_json(&self, level: LogLevel, event: &str, fields: &[(&str, Value)]) {
        if level > self.loudness.level() {
            return;
        }
        let mut out = Vec::new();
        let mut line = Line::begin(&mut out, self.format, timestamp::now(), level, event);
        for (key, value) in fields {
            line.value(key, value);
        }
        line.end();
        self.spool.push(&out);
    }

    /// Lines dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.spool.dropped()
    }

    /// Waits until every line logged so far left for the sink; false if the bound came first.
    pub fn flush(&self, bound: Duration) -> bool {
        self.spool.flush(bound)
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        self.audit.end(LAST_FLUSH);
        // The thread is not joined: with a sink that blocks it never ends, and the bound holds.
        self.spool.close(LAST_FLUSH);
    }
}

fn format(asked: LogFormat, to: &Sink) -> Format {
    match (asked, to) {
        (LogFormat::Text, _) => Format::Text,
        (LogFormat::Auto, Sink::Stderr) if io::stderr().is_terminal() => Format::Text,
        (LogFormat::Json | LogFormat::Auto, _) => Format::Json,
    }
}

/// Standard error through a descriptor of its own: holding the lock of [`io::stderr`] while a
/// write blocks would also stop every thread that panics.
fn stderr() -> Box<dyn Write> {
    match io::stderr().as_fd().try_clone_to_owned() {
        Ok(own) => Box::new(File::from(own)),
        Err(_) => Box::new(io::stderr()),
    }
}

#[cfg(test)]
#[path = "log_test.rs"]
mod tests;
