//! A child's stderr: always drained, its last lines kept, the rest of it logged within limits.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use memchr::memchr;
use rustix::process::Pid;
use tokio::net::unix::pipe;

use super::command::StderrCount;
use super::token_bucket::TokenBucket;
use crate::telemetry::{KnownSecrets, child_text};

/// Lines kept for the report of a child's end.
const KEPT_LINES: usize = 20;
/// Characters kept and logged of one line.
const LINE_CHARACTERS: usize = 512;
/// Bytes taken of one line: what is shown of it, with room to see whole secrets that are masked.
const LINE_BYTES: usize = 8 * 1024;
/// Bytes of lines logged per second, and at once.
const LOGGED_PER_SECOND: u32 = 8 * 1024;
const LOGGED_AT_ONCE: u32 = 64 * 1024;
const READ_BYTES: usize = 8 * 1024;
/// Bytes still taken once the child has ended. A pipe of default size holds less; a grandchild that
/// escaped and writes on must not hold up the report of the end.
const DRAINED_BYTES: usize = 1024 * 1024;

/// The last lines of one child's stderr, shared with whoever wants to report them.
#[derive(Clone, Debug, Default)]
pub struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    /// The lines so far, oldest first: at most 20 of at most 512 characters. Text
    /// of the child, secrets masked.
    #[must_use]
    pub fn snapshot(&self) -> Arc<[String]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut slot = if lines.len() < KEPT_LINES { None } else { lines.pop_front() }.unwrap_or_default();
        slot.clear();
        slot.push_str(line);
        lines.push_back(slot);
    }
}

/// Drains one child's stderr.
pub(super) struct Stderr {
    /// `None` once everybody who could write has closed it.
    pipe: Option<pipe::Receiver>,
    /// The beginning of the line that has not ended yet, cut.
    line: Vec<u8>,
    last: LastLines,
    count: Option<StderrCount>,
    known: KnownSecrets,
    log: Log,
}

/// Writes lines to the log as far as the rate allows.
struct Log {
    server: Arc<str>,
    pid: i32,
    bucket: TokenBucket,
    /// Lines not logged since the last one that was.
    suppressed: u64,
}

impl Stderr {
    /// `known` are the secrets the child was given.
    pub(super) fn new(
        pipe: pipe::Receiver,
        server: Arc<str>,
        pid: Pid,
        count: Option<StderrCount>,
        known: KnownSecrets,
    ) -> Self {
        let bucket = TokenBucket::new(LOGGED_PER_SECOND, LOGGED_AT_ONCE, Instant::now());
        Self {
            pipe: Some(pipe),
            line: Vec::new(),
            last: LastLines::default(),
            count,
            known,
            log: Log { server, pid: pid.as_raw_nonzero().get(), bucket, suppressed: 0 },
        }
    }

    pub(super) fn last_lines(&self) -> LastLines {
        self.last.clone()
    }

    /// Returns when there is something to [`take`](Self::take); never once it is closed. Cancel-safe.
    pub(super) async fn readable(&self) {
        match &self.pipe {
            // An error shows again in `take`, which ends the pipe.
            Some(pipe) => drop(pipe.readable().await),
            None => std::future::pending().await,
        }
    }

    /// Takes what one read gives; false if that was nothing.
    pub(super) fn take(&mut self) -> bool {
        self.read() > 0
    }

    /// Takes what is left after the child's end, and closes the pipe.
    pub(super) fn finish(&mut self) {
        let mut left = DRAINED_BYTES;
        while left > 0 {
            match self.read() {
                0 => break,
                taken => left = left.saturating_sub(taken),
            }
        }
        self.pipe = None;
        if !self.line.is_empty() {
            self.end_line();
            self.report(1);
        }
        self.log.tell_suppressed();
    }

    /// Bytes read; 0 if there are none now, or will never be.
    fn read(&mut self) -> usize {
        let mut chunk = [0; READ_BYTES];
        let Some(pipe) = &self.pipe else { return 0 };
        match pipe.try_read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Ok(0) | Err(_) => {
                self.pipe = None;
                0
            }
            Ok(length) => {
                let ended = self.add(&chunk[..length]);
                self.report(ended);
                length
            }
        }
    }

    /// Cuts `chunk` into lines and returns how many ended in it.
    fn add(&mut self, mut chunk: &[u8]) -> usize {
        let mut ended = 0;
        while let Some(end) = memchr(b'\n', chunk) {
            self.extend_line(&chunk[..end]);
            self.end_line();
            ended += 1;
            chunk = &chunk[end + 1..];
        }
        self.extend_line(chunk);
        ended
    }

    fn extend_line(&mut self, part: &[u8]) {
        let room = LINE_BYTES - self.line.len();
        self.line.extend_from_slice(&part[..room.min(part.len())]);
    }

    fn end_line(&mut self) {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        let line = child_text(line, LINE_CHARACTERS, &self.known);
        self.last.push(&line);
        self.log.write(&line, Instant::now());
        self.line.clear();
    }

    fn report(&self, ended: usize) {
        if ended > 0
            && let Some(count) = &self.count
        {
            count(ended);
        }
    }
}

impl Log {
    fn write(&mut self, line: &str, now: Instant) {
        // The newline counts, so that empty lines are limited too.
        let cost = u32::try_from(line.len()).unwrap_or(u32::MAX).saturating_add(1);
        if !self.bucket.take(cost, now) {
            self.suppressed += 1;
            return;
        }
        self.tell_suppressed();
        tracing::info!(event = "child_stderr", server = &*self.server, child_pid = self.pid, line);
    }

    fn tell_suppressed(&mut self) {
        if self.suppressed > 0 {
            let lines = std::mem::take(&mut self.suppressed);
            tracing::info!(event = "child_stderr_suppressed", server = &*self.server, child_pid = self.pid, lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LINE_BYTES, LINE_CHARACTERS, LOGGED_AT_ONCE, Stderr};
    use crate::telemetry::KnownSecrets;
    use rustix::process::Pid;
    use std::collections::BTreeMap;
    use std::fmt;
    use std::sync::{Arc, Mutex};
    use tokio::net::unix::pipe;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    /// Keeps the fields of every event.
    #[derive(Clone, Default)]
    struct Events(Arc<Mutex<Vec<Fields>>>);

    #[derive(Default)]
    struct Fields(BTreeMap<&'static str, String>);

    impl Visit for Fields {
        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.insert(field.name(), value.to_owned());
        }

        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.insert(field.name(), format!("{value:?}"));
        }
    }

    impl Subscriber for Events {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut fields = Fields::default();
            event.record(&mut fields);
            self.0.lock().expect("unpoisoned").push(fields);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// What the log gets of `text`, as pairs of event and line or count.
    fn logged(text: &[u8]) -> Vec<(String, String)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.expect("a runtime");
        let _inside = runtime.enter();
        let (sender, receiver) = pipe::pipe().expect("a pipe");
        let pid = Pid::from_raw(7).expect("positive");
        let mut stderr =
            Stderr::new(receiver, Arc::from("name"), pid, None, KnownSecrets::new(["Zq9 in no known shape"]));
        let events = Events::default();
        let feed = async |stderr: &mut Stderr| {
            let mut rest = text;
            while !rest.is_empty() {
                sender.writable().await.expect("a reader");
                rest = &rest[sender.try_write(rest).unwrap_or(0)..];
                stderr.readable().await;
                while stderr.take() {}
            }
        };
        tracing::subscriber::with_default(events.clone(), || {
            runtime.block_on(feed(&mut stderr));
            stderr.finish();
        });
        let events = events.0.lock().expect("unpoisoned");
        let pair = |Fields(fields): &Fields| {
            assert_eq!((fields["server"].as_str(), fields["child_pid"].as_str()), ("name", "7"));
            let value = fields.get("line").or(fields.get("lines")).expect("a value");
            (fields["event"].clone(), value.clone())
        };
        events.iter().map(pair).collect()
    }

    fn pair(event: &str, value: &str) -> (String, String) {
        (event.to_owned(), value.to_owned())
    }

    #[test]
    fn lines_are_logged_one_by_one_and_cut() {
        let long = "a".repeat(LINE_CHARACTERS - 1);
        let text = format!("one\r\n\n{long}\u{e9}{}\nend", "b".repeat(9));
        let lines = ["one", "", &format!("{long}\u{e9}"), "end"].map(|line| pair("child_stderr", line));
        assert_eq!(logged(text.as_bytes()), lines);
    }

    #[test]
    fn secrets_are_masked_wherever_the_line_is_cut() {
        for before in [0, LINE_CHARACTERS - 10, LINE_BYTES - 20] {
            let text = format!("{} token=hunter2hunter2 Zq9 in no known shape\n", "a".repeat(before));
            let events = logged(text.as_bytes());
            assert!(
                events.iter().all(|(_, line)| !line.contains("hunt") && !line.contains("known")),
                "{before}: {events:?}"
            );
        }
    }

    #[test]
    fn a_flood_is_suppressed_and_counted() {
        let line = "f".repeat(255);
        let admitted = usize::try_from(LOGGED_AT_ONCE).expect("fits") / 256;
        let flood = format!("{line}\n").repeat(admitted * 40);
        let events = logged(flood.as_bytes());
        let lines = events.iter().filter(|(event, _)| event == "child_stderr").count();
        let suppressed: usize = events
            .iter()
            .filter(|(event, _)| event == "child_stderr_suppressed")
            .map(|(_, count)| count.parse::<usize>().expect("a number"))
            .sum();
        assert_eq!(lines + suppressed, admitted * 40);
        assert!(lines >= admitted && suppressed > 0, "{lines} logged, {suppressed} suppressed");
    }
}
