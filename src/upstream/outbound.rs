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

/// Bytes the writer takes out of the queue at a time; what is left can still be taken back.
const BATCH_BYTES: usize = 64 * 1024;

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
    /// Messages and bytes accepted and not yet written, those in the writer's hands included.
    messages: usize,
    bytes: usize,
    /// The writer holds lines that are older than whatever comes now.
    writing: bool,
    closed: bool,
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

    /// Sends the one line that `write` appends.
    ///
    /// # Errors
    /// When it can neither be written nor queued; then no byte of it reaches the child.
    pub fn send(&self, sender: Sender, call: Option<u64>, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), NotSent> {
        let mut state = self.state();
        if state.closed {
            return Err(NotSent::Closed);
        }
        let share = if sender == Sender::Gateway { OWN_SHARE } else { 1 };
        if state.messages >= self.bounds.messages * share {
            return Err(NotSent::Full);
        }
        let mut line = std::mem::take(&mut state.scratch);
        line.clear();
        write(&mut line);
        let mut done = 0;
        if state.queue.is_empty() && !state.writing {
            done = match self.pipe.try_write(&line) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(_) => {
                    state.closed = true;
                    // The writer sleeps while nothing is queued; its end is how the owner learns.
                    self.wake.notify_one();
                    return Err(NotSent::Closed);
                }
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

    /// A line of which a part is in the pipe already cannot be refused any more.
    fn enqueue(&self, state: &mut State, share: usize, item: Item) -> Result<(), NotSent> {
        let rest = item.line.len() - item.done;
        if item.done == 0 {
            if state.messages > 0 && state.bytes + rest > self.bounds.bytes * share {
                return Err(NotSent::Full);
            }
            if self.budget.used() + rest as u64 > self.budget.limit() {
                return Err(NotSent::Memory);
            }
        }
        self.budget.overdraw(rest);
        state.bytes += rest;
        state.messages += 1;
        state.queue.push_back(item);
        self.metrics.queue_messages(1);
        self.wake.notify_one();
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

    fn settle(&self, state: &mut State, messages: usize, bytes: usize) {
        state.messages -= messages;
        state.bytes -= bytes;
        self.budget.give_back(bytes);
        self.metrics.queue_messages(-(messages as i64));
    }

    /// Writes what is queued until the pipe fails or [`Outbound::close`] is called.
    pub async fn write_queued(&self) {
        while let Some(batch) = self.next_batch().await {
            if self.write_batch(batch).await.is_err() {
                self.close();
                return;
            }
        }
    }

    async fn next_batch(&self) -> Option<VecDeque<Item>> {
        loop {
            {
                let mut state = self.state();
                if state.closed {
                    return None;
                }
                state.writing = !state.queue.is_empty();
                if state.writing {
                    return Some(take_batch(&mut state.queue));
                }
            }
            self.wake.notified().await;
        }
    }

    async fn write_batch(&self, mut batch: VecDeque<Item>) -> io::Result<()> {
        // Whatever way this ends, lines that were not written are no longer owed.
        let mut owed = Owed {
            outbound: self,
            messages: batch.len(),
            bytes: batch.iter().map(|item| item.line.len() - item.done).sum(),
        };
        while !batch.is_empty() {
            self.pipe.writable().await?;
            let slices: Vec<IoSlice<'_>> =
                batch.iter().take(64).map(|item| IoSlice::new(&item.line[item.done..])).collect();
            let mut written = match self.pipe.try_write_vectored(&slices) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            self.metrics.pipe_bytes(Direction::ToChild, written);
            owed.pay(0, written);
            while let Some(item) = batch.front_mut() {
                let rest = item.line.len() - item.done;
                if written < rest {
                    item.done += written;
                    break;
                }
                written -= rest;
                owed.pay(1, 0);
                batch.pop_front();
            }
        }
        Ok(())
    }

    /// Refuses everything from now on and drops what is queued.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let (messages, bytes) = (state.queue.len(), state.queue.iter().map(|item| item.line.len() - item.done).sum());
        state.queue.clear();
        self.settle(&mut state, messages, bytes);
        self.wake.notify_one();
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        self.close();
    }
}

fn take_batch(queue: &mut VecDeque<Item>) -> VecDeque<Item> {
    let mut bytes = 0;
    let count = queue
        .iter()
        .take_while(|item| {
            let fits = bytes < BATCH_BYTES;
            bytes += item.line.len();
            fits
        })
        .count();
    queue.drain(..count).collect()
}

/// What the writer holds; the rest is given back when it stops for any reason.
struct Owed<'a> {
    outbound: &'a Outbound,
    messages: usize,
    bytes: usize,
}

impl Owed<'_> {
    fn pay(&mut self, messages: usize, bytes: usize) {
        self.messages -= messages;
        self.bytes -= bytes;
        self.outbound.settle(&mut self.outbound.state(), messages, bytes);
    }
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        self.outbound.settle(&mut self.outbound.state(), self.messages, self.bytes);
    }
}
