//! The lines between whoever logs and the thread that writes them.
//!
//! Whoever logs only ever copies bytes under a short lock: a sink that blocks or fails costs the
//! lines that no longer fit, which are counted, and nothing else.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::line::{Format, Line};
use super::timestamp;
use crate::config::LogLevel;

/// Most bytes that wait to be written; as much again may be in the hands of the writing thread.
pub(super) const CAPACITY: usize = 1 << 20;

/// How long the writing thread lets lines gather once there is one. Waking a thread for each line
/// would cost more than making the line.
const GATHER: Duration = Duration::from_millis(5);

/// Waiting bytes that end the gathering early.
const ENOUGH: usize = CAPACITY / 4;

/// Pause before writing again to a sink that is non-blocking and full.
const RETRY: Duration = Duration::from_millis(10);

/// Shortest time between two lines that say how many were dropped.
const DROPS_TOLD_EVERY: Duration = Duration::from_secs(1);

/// Lines waiting to be written.
pub(super) struct Spool {
    state: Mutex<State>,
    /// Tells the writing thread that there is something to do.
    work: Condvar,
    /// Tells whoever flushes that something was done.
    progress: Condvar,
    dropped: AtomicU64,
}

#[derive(Default)]
struct State {
    pending: Vec<u8>,
    /// Bytes ever accepted, and of those the ones no longer waiting: written, or lost with their
    /// sink.
    accepted: u64,
    done: u64,
    /// Bytes somebody waits for: up to here nothing gathers.
    wanted: u64,
    rest: Rest,
    closed: bool,
}

/// What the writing thread waits for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Rest {
    /// Nothing: it is at work and looks again by itself.
    #[default]
    None,
    /// The first byte.
    Idle,
    /// More bytes.
    Gathering,
}

impl Spool {
    pub(super) fn new() -> Self {
        Spool { state: Mutex::default(), work: Condvar::new(), progress: Condvar::new(), dropped: AtomicU64::new(0) }
    }

    /// Takes one whole line, newline included, or drops and counts it.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.closed || state.pending.len() + line.len() > CAPACITY {
            drop(state);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.pending.extend_from_slice(line);
        state.accepted += line.len() as u64;
        let wake = match state.rest {
            Rest::None => false,
            Rest::Idle => true,
            Rest::Gathering => state.pending.len() >= ENOUGH,
        };
        if wake {
            state.rest = Rest::None;
        }
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// Lines dropped so far, for want of room or with their sink.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until every line taken so far left for the sink; false if the bound came first.
    pub(super) fn flush(&self, bound: Duration) -> bool {
        let mut state = self.lock();
        let target = state.accepted;
        state.wanted = target;
        self.work.notify_one();
        let waited = self.progress.wait_timeout_while(state, bound, |state| state.done < target);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Takes no more lines and flushes; the writing thread ends when it is through.
    pub(super) fn close(&self, bound: Duration) -> bool {
        self.lock().closed = true;
        self.flush(bound)
    }

    /// Writes until the spool is closed and empty. For a thread of its own: it blocks with the sink. What was dropped is
    /// told in the sink where that has a `format` for it.
    pub(super) fn write_to(&self, sink: &mut dyn Write, format: Option<Format>) {
        let mut batch = Vec::new();
        let mut output = Output { spool: self, sink, format, torn: false, told: 0, told_at: None };
        while self.next_batch(&mut batch) {
            output.write(&batch);
            output.tell_drops();
            let mut state = self.lock();
            state.done += batch.len() as u64;
            drop(state);
            self.progress.notify_all();
        }
    }

    /// Waits for lines and swaps them into `batch`; false when there will be no more.
    fn next_batch(&self, batch: &mut Vec<u8>) -> bool {
        batch.clear();
        let mut state = self.lock();
        while state.pending.is_empty() {
            if state.closed {
                return false;
            }
            state.rest = Rest::Idle;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let hurried = |state: &State| state.closed || state.wanted > state.done;
        if !hurried(&state) && state.pending.len() < ENOUGH {
            state.rest = Rest::Gathering;
            let more = |state: &mut State| !hurried(state) && state.pending.len() < ENOUGH;
            state = self.work.wait_timeout_while(state, GATHER, more).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.rest = Rest::None;
        std::mem::swap(&mut state.pending, batch);
        true
    }

    /// A panic under this lock leaves at worst half a line behind, so the lock stays usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writing thread's side: the sink and what happened to it.
struct Output<'a> {
    spool: &'a Spool,
    sink: &'a mut dyn Write,
    format: Option<Format>,
    /// Whether the sink failed within a line, which the next write then ends first.
    torn: bool,
    /// Dropped lines the log has told of, and when it last did.
    told: u64,
    told_at: Option<Instant>,
}

impl Output<'_> {
    /// Writes whole lines. A sink that fails loses what is left of them; the next write tries again.
    fn write(&mut self, lines: &[u8]) {
        let lost = memchr::memchr_iter(b'\n', self.put(lines)).count() as u64;
        self.spool.dropped.fetch_add(lost, Ordering::Relaxed);
    }

    /// Writes whole lines and returns the rest that the sink did not take.
    fn put<'l>(&mut self, lines: &'l [u8]) -> &'l [u8] {
        if self.torn && self.write_some(b"\n") == 0 {
            return lines;
        }
        let (written, rest) = lines.split_at(self.write_some(lines));
        self.torn = written.last().is_some_and(|last| *last != b'\n');
        rest
    }

    /// Writes as much as the sink takes before it fails.
    fn write_some(&mut self, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            match self.sink.write(&bytes[written..]) {
                Ok(0) => break,
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY),
                Err(_) => break,
            }
        }
        written
    }

    /// Writes how many lines were dropped since that was last said; where this fails too, they are
    /// told of once the sink works again.
    fn tell_drops(&mut self) {
        let Some(format) = self.format else { return };
        let dropped = self.spool.dropped();
        if dropped == self.told || self.told_at.is_some_and(|at| at.elapsed() < DROPS_TOLD_EVERY) {
            return;
        }
        let mut out = Vec::new();
        let mut line = Line::begin(&mut out, format, timestamp::now(), LogLevel::Warn, "log_dropped");
        line.whole("lines", dropped - self.told);
        line.end();
        self.told_at = Some(Instant::now());
        if self.put(&out).is_empty() {
            self.told = dropped;
        }
    }
}

#[cfg(test)]
#[path = "spool_test.rs"]
mod tests;
