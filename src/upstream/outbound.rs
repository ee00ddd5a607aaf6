//! The way to one child's stdin: at once where the pipe has room, through a bounded queue else.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::unix::pipe;
use tokio::sync::Notify;

use crate::budget::Budget;
use crate::config::Queue;
use crate::telemetry::ServerMetrics;
use crate::telemetry::label::Direction;
use crate::upstream::backlog::Backlog;

/// Why a line was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// The queue is full.
    Full,
    /// The memory budget is spent.
    Memory,
    /// The child is gone.
    Closed,
}

/// Who wants a line written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A client: bounded by `queue`.
    Client,
    /// A client that answers what the child asked: bounded by `queue`. That memory is spent does not stop it, since
    /// it frees what waits for it.
    Answer,
    /// The gateway itself (cancellations, answers to pings): short lines that may go past the
    /// clients' bound, yet not without end.
    Gateway,
}

/// How many times the clients' bound the gateway's own lines may fill.
const OWN_SHARE: usize = 2;

impl Sender {
    /// How many times the bounds of the queue hold for its lines.
    fn share(self) -> usize {
        if self == Sender::Gateway { OWN_SHARE } else { 1 }
    }
}

/// Lines that are gathered before whoever brings the next one writes them all.
const GATHER: usize = 16;

#[derive(Debug, Default)]
struct State {
    backlog: Backlog,
    /// Requests of which nothing had been given to the pipe when it was closed.
    unsent: Vec<u64>,
    closed: bool,
}

/// How far a flush got.
enum Flushed {
    All,
    /// The pipe is full.
    Blocked,
}

/// The sending end.
pub struct Outbound {
    pipe: pipe::Sender,
    state: Mutex<State>,
    wake: Notify,
    bounds: Queue,
    budget: Arc<Budget>,
    metrics: Arc<ServerMetrics>,
}

impl Outbound {
    /// Wraps a child's stdin. [`Outbound::write_queued`] must run beside it.
    pub fn new(pipe: pipe::Sender, bounds: Queue, budget: Arc<Budget>, metrics: Arc<ServerMetrics>) -> Outbound {
        Outbound { pipe, state: Mutex::default(), wake: Notify::new(), bounds, budget, metrics }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the state whole, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the one line that `write` appends. `alone` says that nothing else is on its way to or
    /// from the child: then it is written here and now; else it may wait a moment for others, so
    /// that one system call carries them all.
    ///
    /// # Errors
    /// When it can neither be written nor queued; then no byte of it reaches the child.
    pub fn send(
        &self,
        sender: Sender,
        call: Option<u64>,
        alone: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), NotSent> {
        let mut state = self.state();
        if state.closed {
            return Err(NotSent::Closed);
        }
        let (queued, waiting) = (state.backlog.lines(), state.backlog.unwritten().len());
        if queued >= self.bounds.messages.saturating_mul(sender.share()) {
            return Err(NotSent::Full);
        }
        let mut rest = state.backlog.push(call, write);
        if alone && queued == 0 {
            let written = match self.pipe.try_write(state.backlog.unwritten()) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(_) => {
                    state.backlog.take_newest();
                    return Err(self.fail(&mut state));
                }
            };
            self.metrics.pipe_bytes(Direction::ToChild, written);
            state.backlog.note_written(written);
            rest -= written;
        }
        if rest == 0 {
            return Ok(());
        }
        if let Err(refused) = self.admit(&state.backlog, sender, waiting, rest) {
            state.backlog.take_newest();
            return Err(refused);
        }
        self.budget.overdraw(rest);
        self.metrics.queue_messages(1);
        if queued == 0 {
            self.wake.notify_one();
        } else if queued + 1 >= GATHER && self.flush(&mut state).is_err() {
            // The line was accepted; its owner learns of the end like that of every other.
            self.fail(&mut state);
        }
        Ok(())
    }

    /// Whether the newest line may wait behind the `waiting` bytes of the others.
    fn admit(&self, backlog: &Backlog, sender: Sender, waiting: usize, rest: usize) -> Result<(), NotSent> {
        // A line of which a part is in the pipe already cannot be refused any more.
        if backlog.newest_has_begun() {
            return Ok(());
        }
        if waiting > 0 && waiting + rest > self.bounds.bytes.saturating_mul(sender.share()) {
            return Err(NotSent::Full);
        }
        // The gateway's own lines are short, and few by the bound above; losing one would leave a
        // child waiting for ever.
        if sender == Sender::Client && self.budget.used() + rest as u64 > self.budget.limit() {
            return Err(NotSent::Memory);
        }
        Ok(())
    }

    /// The pipe is broken. The writer sleeps while nothing is queued; its end is how the owner learns.
    fn fail(&self, state: &mut State) -> NotSent {
        state.closed = true;
        self.wake.notify_one();
        NotSent::Closed
    }

    /// Takes a request back that was not yet given to the pipe. Tells whether it was there.
    pub fn take_back(&self, call: u64) -> bool {
        let taken = self.state().backlog.take_back(call);
        if let Some(length) = taken {
            self.settle(1, length);
        }
        taken.is_some()
    }

    fn settle(&self, messages: usize, bytes: usize) {
        self.budget.give_back(bytes);
        self.metrics.queue_messages(-(messages as i64));
    }

    /// Writes what is queued until the pipe fails or [`Outbound::close`] is called.
    pub async fn write_queued(&self) {
        loop {
            self.wake.notified().await;
            // Tasks that are ready to bring more go first.
            tokio::task::yield_now().await;
            loop {
                let flushed = {
                    let mut state = self.state();
                    if state.closed {
                        return;
                    }
                    self.flush(&mut state)
                };
                match flushed {
                    Ok(Flushed::All) => break,
                    Ok(Flushed::Blocked) if self.pipe.writable().await.is_ok() => {}
                    Ok(Flushed::Blocked) | Err(_) => return self.close(),
                }
            }
        }
    }

    /// Gives the pipe what it takes, as many lines in one go as possible.
    fn flush(&self, state: &mut State) -> io::Result<Flushed> {
        while state.backlog.lines() > 0 {
            let written = match self.pipe.try_write(state.backlog.unwritten()) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Flushed::Blocked),
                Err(error) => return Err(error),
            };
            self.metrics.pipe_bytes(Direction::ToChild, written);
            let lines = state.backlog.note_written(written);
            self.settle(lines, written);
        }
        Ok(Flushed::All)
    }

    /// Refuses everything from now on and drops what is queued.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        self.settle(state.backlog.lines(), state.backlog.unwritten().len());
        let unsent = state.backlog.clear();
        state.unsent.extend(unsent);
        self.wake.notify_one();
    }

    /// The requests of which no byte had been given to the pipe when it was closed; told once.
    pub fn take_unsent(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().unsent)
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        self.close();
    }
}
