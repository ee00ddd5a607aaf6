//! Stdout: whole lines only, from two threads, as few writes as the backlog allows.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard};

/// What is written without waiting for [`Output::flush`], in bytes, so that a long backlog stays bounded.
const WRITE_AT: usize = 64 * 1024;

/// A buffer that grew beyond this is given back once it was written.
const KEEP: usize = 1024 * 1024;

/// Where messages leave the server. A message is appended whole, so lines never mix.
pub(super) struct Output {
    // A lock rather than a channel: appending copies a few hundred bytes, and whoever appends
    // should feel a reader that is slow.
    state: Mutex<State>,
}

struct State {
    pending: Vec<u8>,
    sink: Box<dyn Write + Send>,
    /// The first failure; reported at the next flush, after which the server ends.
    failed: Option<io::Error>,
}

impl Output {
    /// Writes to `sink`, which should not buffer.
    pub(super) fn new(sink: Box<dyn Write + Send>) -> Self {
        Self { state: Mutex::new(State { pending: Vec::with_capacity(WRITE_AT), sink, failed: None }) }
    }

    /// Appends one message with `write`, which must produce JSON without a raw newline, and its line end.
    pub(super) fn line(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.line_if(|pending| {
            write(pending);
            true
        });
    }

    /// As [`Output::line`], but `write` may decline: it then returns false and has written nothing.
    pub(super) fn line_if(&self, write: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        let mut state = self.lock();
        if !write(&mut state.pending) {
            return false;
        }
        state.pending.push(b'\n');
        if state.pending.len() >= WRITE_AT {
            state.write();
        }
        true
    }

    /// Writes what is pending and reports the first failure there was.
    pub(super) fn flush(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.write();
        state.failed.take().map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it appends or writes")
    }
}

impl State {
    fn write(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        if let Err(error) = self.sink.write_all(&self.pending) {
            self.failed.get_or_insert(error);
        }
        self.pending.clear();
        if self.pending.capacity() > KEEP {
            self.pending = Vec::with_capacity(WRITE_AT);
        }
    }
}
