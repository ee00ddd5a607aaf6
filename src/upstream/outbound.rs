//! The way to one child's stdin: at once where the pipe has room, through a bounded queue else.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::unix::pipe;
use tokio::sync::Notify;

use crate::budget::Budget;
use crate::config::Queue;
use crate::telemetry::ServerMetrics;
use crate::telemetry::label::Direction;

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
    /// The gateway itself (cancellations, answers to pings): short lines that may go past the
    /// clients' bound, yet not without end.
    Gateway,
}

/// How many times the clients' bound the gateway's own lines may fill.
const OWN_SHARE: usize = 2;

/// Lines that are gathered before whoever brings the next one writes them all.
const GATHER: usize = 16;

/// Lines of one system call.
const MOST_SLICES: usize = 64;

/// A buffer that grew past this is not kept for the next line.
const SCRATCH_KEPT: usize = 64 * 1024;

#[derive(Debug)]
struct Item {
    /// The request it carries, so that a cancellation finds it while it waits.
    call: Option<u64>,
    line: Vec<u8>,
    done: usize,
}

#[derive(Debug, Default)]
struct State {
    scratch: Vec<u8>,
    queue: VecDeque<Item>,
    /// Bytes in the queue that are not written.
    bytes: usize,
    closed: bool,
    /// Requests that were still whole in the queue when it was closed.
    unsent: Vec<u64>,
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
        let share = if sender == Sender::Gateway { OWN_SHARE } else { 1 };
        if state.queue.len() >= self.bounds.messages.saturating_mul(share) {
            return Err(NotSent::Full);
        }
        let mut line = std::mem::take(&mut state.scratch);
        line.clear();
        write(&mut line);
        let mut done = 0;
        if alone && state.queue.is_empty() {
            done = match self.pipe.try_write(&line) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(_) => return Err(self.fail(&mut state)),
            };
            self.metrics.pipe_bytes(Direction::ToChild, done);
            if done == line.len() {
                if line.capacity() <= SCRATCH_KEPT {
                    state.scratch = line;
                }
                return Ok(());
            }
        }
        self.enqueue(&mut state, share, Item { call, line, done })
    }

    /// The pipe is broken. The writer sleeps while nothing is queued; its end is how the owner learns.
    fn fail(&self, state: &mut State) -> NotSent {
        state.closed = true;
        self.wake.notify_one();
        NotSent::Closed
    }

    /// A line of which a part is in the pipe already cannot be refused any more.
    fn enqueue(&self, state: &mut State, share: usize, item: Item) -> Result<(), NotSent> {
        let rest = item.line.len() - item.done;
        if item.done == 0 {
            if !state.queue.is_empty() && state.bytes + rest > self.bounds.bytes.saturating_mul(share) {
                return Err(NotSent::Full);
            }
            // The gateway's own lines are short, and few by the bound above; losing one would leave a
            // child waiting for ever.
            if share == 1 && self.budget.used() + rest as u64 > self.budget.limit() {
                return Err(NotSent::Memory);
            }
        }
        self.budget.overdraw(rest);
        state.bytes += rest;
        state.queue.push_back(item);
        self.metrics.queue_messages(1);
        if state.queue.len() == 1 {
            self.wake.notify_one();
        } else if state.queue.len() >= GATHER && self.flush(state).is_err() {
            // The line was accepted; its owner learns of the end like that of every other.
            self.fail(state);
        }
        Ok(())
    }

    /// Takes a request back that was not yet given to the pipe. Tells whether it was there.
    pub fn take_back(&self, call: u64) -> bool {
        let mut state = self.state();
        let Some(at) = state.queue.iter().position(|item| item.call == Some(call) && item.done == 0) else {
            return false;
        };
        if let Some(item) = state.queue.remove(at) {
            self.settle(&mut state, 1, item.line.len());
        }
        true
    }

    fn settle(&self, state: &mut State, messages: i64, bytes: usize) {
        state.bytes -= bytes;
        self.budget.give_back(bytes);
        self.metrics.queue_messages(-messages);
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
        while !state.queue.is_empty() {
            let slices: Vec<IoSlice<'_>> =
                state.queue.iter().take(MOST_SLICES).map(|item| IoSlice::new(&item.line[item.done..])).collect();
            let written = match self.pipe.try_write_vectored(&slices) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Flushed::Blocked),
                Err(error) => return Err(error),
            };
            self.metrics.pipe_bytes(Direction::ToChild, written);
            self.take_written(state, written);
        }
        Ok(Flushed::All)
    }

    fn take_written(&self, state: &mut State, written: usize) {
        let (mut rest, mut lines) = (written, 0);
        while let Some(item) = state.queue.front_mut() {
            let left = item.line.len() - item.done;
            if rest < left {
                item.done += rest;
                break;
            }
            rest -= left;
            lines += 1;
            state.queue.pop_front();
        }
        self.settle(state, lines, written);
    }

    /// Refuses everything from now on and drops what is queued.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let (messages, bytes) = (state.queue.len() as i64, state.bytes);
        let dropped = std::mem::take(&mut state.queue);
        state.unsent.extend(dropped.into_iter().filter(|item| item.done == 0).filter_map(|item| item.call));
        self.settle(&mut state, messages, bytes);
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
