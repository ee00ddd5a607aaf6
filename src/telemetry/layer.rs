//! Events of `tracing` as log lines.

use std::borrow::Cow;
use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::line::{Format, Line};
use super::loudness::Loudness;
use super::mask::KnownSecrets;
use super::own_secrets::OwnSecrets;
use super::spool::Spool;
use super::timestamp;
use crate::config::LogLevel;

/// What every target of this program begins with.
const OWN_TARGET: &str = "gangway";

/// The event of a line that names none.
const UNNAMED: &str = "note";

thread_local! {
    /// The buffers lines of this thread are made in: the line, its fields, its event. Taken out
    /// while in use, so that an event within the `Display` of a field finds others.
    static BUFFERS: Cell<(Vec<u8>, Vec<u8>, String)> = const { Cell::new((Vec::new(), Vec::new(), String::new())) };
}

/// Writes every event that is loud enough. Other crates are heard from `warn` up. Spans are off:
/// nothing here reads them.
pub(super) struct EventLayer {
    pub(super) spool: Arc<Spool>,
    pub(super) format: Format,
    pub(super) loudness: Arc<Loudness>,
    pub(super) secrets: Arc<OwnSecrets>,
    /// Whether everything but errors is left out for now.
    pub(super) hushed: Arc<AtomicBool>,
}

impl EventLayer {
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let own = is_own(metadata.target());
        let level = self.loudness.level();
        let limit = if own { level } else { level.min(LogLevel::Warn) };
        metadata.is_event() && log_level(*metadata.level()) <= limit
    }
}

impl<S: Subscriber> Layer<S> for EventLayer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.loudness.level() {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        })
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > Level::ERROR && self.hushed.load(Ordering::Relaxed) {
            return;
        }
        let (mut whole, mut fields, mut name) = BUFFERS.take();
        whole.clear();
        fields.clear();
        name.clear();
        let mut part = Line::part(&mut fields, self.format);
        if !is_own(event.metadata().target()) {
            part.text("target", event.metadata().target());
        }
        let secrets = self.secrets.current();
        event.record(&mut Fields { part, event: &mut name, secrets: &secrets });
        let level = log_level(*event.metadata().level());
        let shown = if name.is_empty() { UNNAMED } else { &name };
        let mut line = Line::begin(&mut whole, self.format, timestamp::now(), level, shown);
        line.fields(&fields);
        line.end();
        self.spool.push(&whole);
        BUFFERS.set((whole, fields, name));
    }
}

fn is_own(target: &str) -> bool {
    target.strip_prefix(OWN_TARGET).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn log_level(level: Level) -> LogLevel {
    match level {
        Level::ERROR => LogLevel::Error,
        Level::WARN => LogLevel::Warn,
        Level::INFO => LogLevel::Info,
        Level::DEBUG => LogLevel::Debug,
        Level::TRACE => LogLevel::Trace,
    }
}

/// Writes fields in the order they were given, all but `event`, which is kept for the line's head.
struct Fields<'a> {
    part: Line<'a>,
    event: &'a mut String,
    secrets: &'a KnownSecrets,
}

impl Fields<'_> {
    fn shown(&mut self, field: &Field, value: &dyn fmt::Display) {
        if self.secrets.is_empty() {
            self.part.shown_whole(key(field), value);
        } else {
            self.part.text(key(field), &self.secrets.mask(Cow::Owned(value.to_string())));
        }
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.part.fraction(key(field), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.part.signed(key(field), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.part.whole(key(field), value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.part.whole(key(field), u64::try_from(value).unwrap_or(u64::MAX));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.part.flag(key(field), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "event" {
            self.event.push_str(value);
        } else {
            self.part.text(key(field), &self.secrets.mask(Cow::Borrowed(value)));
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.shown(field, &value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.shown(field, &format_args!("{value:?}"));
    }
}

/// A field's name without the mark of a raw identifier.
fn key(field: &Field) -> &'static str {
    let name = field.name();
    name.strip_prefix("r#").unwrap_or(name)
}

#[cfg(test)]
#[path = "layer_test.rs"]
mod tests;
