//! One log line, as JSON or as text, written field by field into a buffer.

use std::fmt::{self, Display, Write as _};
use std::io::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;

use super::escape::{cut, push_escaped};
use super::timestamp::push_timestamp;
use crate::caller::Peer;
use crate::config::LogLevel;

/// Longest value, in characters, of a field that has no limit of its own.
const LONGEST_VALUE: usize = 8192;

/// How lines look. Both hold the same fields in the same order with the same spelling of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// One JSON object.
    Json,
    /// Time, level and event in columns, then `key=value`.
    Text,
}

/// The name of a level, the same in both formats.
pub(super) fn level_name(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    }
}

/// The line being written. Keys are literals of this program and are not escaped.
pub(super) struct Line<'b> {
    out: &'b mut Vec<u8>,
    format: Format,
}

impl<'b> Line<'b> {
    /// Begins a line with its time (since the Unix epoch), level and event.
    pub(super) fn begin(out: &'b mut Vec<u8>, format: Format, at: Duration, level: LogLevel, event: &str) -> Self {
        let level = level_name(level);
        match format {
            Format::Json => {
                out.extend_from_slice(b"{\"ts\":\"");
                push_timestamp(out, at);
                out.extend_from_slice(b"\",\"level\":\"");
                out.extend_from_slice(level.as_bytes());
                out.extend_from_slice(b"\",\"event\":\"");
                push_escaped(out, event);
                out.push(b'"');
            }
            Format::Text => {
                push_timestamp(out, at);
                out.push(b' ');
                push_column(out, level, 5);
                out.push(b' ');
                push_column(out, event, 13);
            }
        }
        Line { out, format }
    }

    /// Fields only, to be put into a line by [`Line::fields`].
    pub(super) fn part(out: &'b mut Vec<u8>, format: Format) -> Self {
        Line { out, format }
    }

    /// Fields that were written by a [`Line::part`] of the same format.
    pub(super) fn fields(&mut self, part: &[u8]) {
        self.out.extend_from_slice(part);
    }

    /// Ends the line.
    pub(super) fn end(self) {
        if self.format == Format::Json {
            self.out.push(b'}');
        }
        self.out.push(b'\n');
    }

    /// Text, cut to [`LONGEST_VALUE`].
    #[inline]
    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.cut_text(key, value, LONGEST_VALUE);
    }

    /// Text, cut to so many characters before escaping.
    #[inline]
    pub(super) fn cut_text(&mut self, key: &str, value: &str, characters: usize) {
        self.string(key, |out| push_escaped(out, cut(value, characters)));
    }

    /// What a value shows of itself, cut to so many characters before escaping.
    pub(super) fn shown(&mut self, key: &str, value: &dyn Display, characters: usize) {
        self.string(key, |out| {
            // It only ever fails to stop a value that is longer than its limit.
            let _ = write!(Escaping { out, left: characters }, "{value}");
        });
    }

    /// What a value shows of itself, cut to [`LONGEST_VALUE`].
    pub(super) fn shown_whole(&mut self, key: &str, value: &dyn Display) {
        self.shown(key, value, LONGEST_VALUE);
    }

    /// Two texts with a mark between them, together cut to so many characters before escaping.
    #[inline]
    pub(super) fn pair(&mut self, key: &str, (first, mark, second): (&str, u8, &str), characters: usize) {
        self.string(key, |out| {
            let first = cut(first, characters);
            push_escaped(out, first);
            if let Some(left) = characters.checked_sub(first.chars().count() + 1) {
                out.push(mark);
                push_escaped(out, cut(second, left));
            }
        });
    }

    /// Where somebody is.
    #[inline]
    pub(super) fn peer(&mut self, key: &str, peer: Peer) {
        let Peer::Ip(IpAddr::V4(address)) = peer else {
            return self.shown_whole(key, &peer);
        };
        // By far the most frequent, in every line of the access log: formatting it the general way takes ten times as long.
        self.string(key, |out| {
            for (at, octet) in address.octets().into_iter().enumerate() {
                if at > 0 {
                    out.push(b'.');
                }
                push_decimal(out, u64::from(octet));
            }
        });
    }

    /// A whole number.
    #[inline]
    pub(super) fn whole(&mut self, key: &str, value: u64) {
        self.key(key);
        push_decimal(self.out, value);
    }

    /// A whole number that may be negative.
    pub(super) fn signed(&mut self, key: &str, value: i64) {
        self.key(key);
        if value < 0 {
            self.out.push(b'-');
        }
        push_decimal(self.out, value.unsigned_abs());
    }

    /// A point in time, since the Unix epoch.
    pub(super) fn moment(&mut self, key: &str, at: Duration) {
        self.string(key, |out| push_timestamp(out, at));
    }

    /// A time as milliseconds with microsecond digits.
    #[inline]
    pub(super) fn millis(&mut self, key: &str, value: Duration) {
        self.key(key);
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        push_decimal(self.out, micros / 1000);
        let rest = micros % 1000;
        // Each is one digit, so nothing is cut off.
        let digits = [b'.', b'0' + (rest / 100) as u8, b'0' + (rest / 10 % 10) as u8, b'0' + (rest % 10) as u8];
        self.out.extend_from_slice(&digits);
    }

    /// A number with a fraction; what is no number is `null`.
    pub(super) fn fraction(&mut self, key: &str, value: f64) {
        self.key(key);
        if value.is_finite() {
            write!(self.out, "{value}").expect("a Vec takes every write");
        } else {
            self.out.extend_from_slice(b"null");
        }
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, key: &str, value: bool) {
        self.key(key);
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// Any JSON; within text, strings stand as text and everything else as JSON.
    pub(super) fn value(&mut self, key: &str, value: &Value) {
        if let Value::String(text) = value {
            return self.text(key, text);
        }
        self.key(key);
        push_value(self.out, value);
    }

    /// Inlined, since keys are known then and take a store or two instead of three calls each.
    #[inline(always)]
    fn key(&mut self, key: &str) {
        match self.format {
            Format::Json => {
                self.out.extend_from_slice(b",\"");
                self.out.extend_from_slice(key.as_bytes());
                self.out.extend_from_slice(b"\":");
            }
            Format::Text => {
                self.out.push(b' ');
                self.out.extend_from_slice(key.as_bytes());
                self.out.push(b'=');
            }
        }
    }

    /// A string in JSON's quotes; in text they are left away where the value needs none.
    #[inline(always)]
    fn string(&mut self, key: &str, write_escaped: impl FnOnce(&mut Vec<u8>)) {
        self.key(key);
        if self.format == Format::Json {
            self.out.push(b'"');
        }
        let start = self.out.len();
        write_escaped(self.out);
        self.end_string(start);
    }

    fn end_string(&mut self, start: usize) {
        match self.format {
            Format::Json => self.out.push(b'"'),
            Format::Text => {
                let value = &self.out[start..];
                if value.is_empty() || value.iter().any(|byte| matches!(byte, b' ' | b'=' | b'"' | b'\\')) {
                    self.out.insert(start, b'"');
                    self.out.push(b'"');
                }
            }
        }
    }
}

/// Escapes what is written through it, up to a number of characters.
struct Escaping<'a> {
    out: &'a mut Vec<u8>,
    left: usize,
}

impl fmt::Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let part = cut(text, self.left);
        push_escaped(self.out, part);
        if part.len() < text.len() {
            return Err(fmt::Error);
        }
        self.left -= part.chars().count();
        Ok(())
    }
}

fn push_column(out: &mut Vec<u8>, text: &str, width: usize) {
    push_escaped(out, text);
    out.resize(out.len() + width.saturating_sub(text.len()), b' ');
}

/// Appends a number in decimal.
fn push_decimal(out: &mut Vec<u8>, mut value: u64) {
    /// Digits of the largest `u64`.
    const MOST: usize = 20;
    let mut digits = [0; MOST];
    let mut first = MOST;
    loop {
        first -= 1;
        // One digit, so nothing is cut off.
        digits[first] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[first..]);
}

/// Appends compact JSON. `serde_json` would pass C1, DEL and the characters that reorder text.
fn push_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            write!(out, "{value}").expect("a Vec takes every write");
        }
        Value::String(text) => push_string(out, text),
        Value::Array(items) => {
            out.push(b'[');
            for (place, item) in items.iter().enumerate() {
                push_separator(out, place);
                push_value(out, item);
            }
            out.push(b']');
        }
        Value::Object(members) => {
            out.push(b'{');
            for (place, (name, member)) in members.iter().enumerate() {
                push_separator(out, place);
                push_string(out, name);
                out.push(b':');
                push_value(out, member);
            }
            out.push(b'}');
        }
    }
}

fn push_separator(out: &mut Vec<u8>, place: usize) {
    if place > 0 {
        out.push(b',');
    }
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    push_escaped(out, text);
    out.push(b'"');
}

#[cfg(test)]
#[path = "line_test.rs"]
mod tests;
