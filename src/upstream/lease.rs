//! The right to use one child; dropping it gives the child back, to be stopped, or to be a spare if nobody ever had its pipes.

use std::sync::Arc;

use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::telemetry::label::{ChildExit, ChildState};
use crate::telemetry::{KnownSecrets, ServerMetrics};
use crate::upstream::Child;
use crate::upstream::Exit;
use crate::upstream::lifespan::Lifespan;
use crate::upstream::pool::Pool;

/// A child and the pool slot it fills.
pub(super) struct Slotted {
    pub(super) child: Child,
    pub(super) state: StateGauge,
    pub(super) slot: Slot,
    pub(super) lifespan: Lifespan,
}

/// The room for one child; free again when dropped.
pub(super) struct Slot {
    pub(super) _permit: OwnedSemaphorePermit,
    /// As long as one of these is left the pool is not empty.
    pub(super) _taken: watch::Receiver<()>,
}

/// Exclusive use of one child that served nobody before.
pub struct Lease {
    held: Option<Slotted>,
    pool: Arc<Pool>,
    why: Option<ChildExit>,
    /// Its pipes were taken, so it must serve nobody else.
    used: bool,
    exit: watch::Receiver<Option<Exit>>,
    pid: u32,
}

impl Lease {
    pub(super) fn new(mut held: Slotted, pool: Arc<Pool>) -> Lease {
        held.state.set(ChildState::Leased);
        let (exit, pid) = (held.child.exit(), held.child.pid().unsigned_abs());
        Lease { held: Some(held), pool, why: None, used: false, exit, pid }
    }

    /// The child's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Both pipes, once.
    pub fn take_pipes(&mut self) -> Option<(pipe::Sender, pipe::Receiver)> {
        let held = self.held.as_mut()?;
        let pipes = (held.child.take_stdin()?, held.child.take_stdout()?);
        held.lifespan.enter();
        self.used = true;
        Some(pipes)
    }

    /// Holds how the child ended as soon as it did.
    #[must_use]
    pub fn exit(&self) -> watch::Receiver<Option<Exit>> {
        self.exit.clone()
    }

    /// The child's last lines on stderr so far.
    #[must_use]
    pub fn last_lines(&self) -> Arc<[String]> {
        self.held.as_ref().map_or_else(|| Arc::from([]), |held| held.child.last_lines().snapshot())
    }

    /// The secrets the child was given.
    pub(super) fn known_secrets(&self) -> KnownSecrets {
        self.held.as_ref().map_or_else(KnownSecrets::default, |held| held.child.known_secrets())
    }

    /// Says why the child is about to be stopped, where it is not simply done with.
    pub fn blame(&mut self, why: ChildExit) {
        self.why = Some(why);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match self.held.take() {
            Some(held) if self.used || self.why.is_some() => self.pool.retire(held, self.why),
            Some(held) => self.pool.take_back(held),
            None => {}
        }
    }
}

/// Counts one child under what it is doing.
pub(super) struct StateGauge {
    metrics: Arc<ServerMetrics>,
    state: ChildState,
}

impl StateGauge {
    pub(super) fn new(metrics: Arc<ServerMetrics>, state: ChildState) -> StateGauge {
        metrics.child_state(state, 1);
        StateGauge { metrics, state }
    }

    pub(super) fn set(&mut self, state: ChildState) {
        self.metrics.child_state(self.state, -1);
        self.metrics.child_state(state, 1);
        self.state = state;
    }
}

impl Drop for StateGauge {
    fn drop(&mut self) {
        self.metrics.child_state(self.state, -1);
    }
}
