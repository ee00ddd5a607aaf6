//! The children of one server: spares kept started, slots that bound their number, their end.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, sleep_until, timeout_at};
use tracing::{info, warn};

use crate::caller::OwnVariables;
use crate::config::Server;
use crate::telemetry::ServerMetrics;
use crate::telemetry::label::{ChildExit, ChildState, StopStep};
use crate::upstream::Command;
use crate::upstream::Ending;
use crate::upstream::Exit;
use crate::upstream::SpawnError;
use crate::upstream::Spawner;
use crate::upstream::lease::{Lease, Slot, Slotted, StateGauge};
use crate::upstream::lifespan::Lifespan;

/// Pause before a spare that ended by itself is replaced; doubles up to the breaker's maximum.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);

/// Why there is no child to lease.
#[derive(Debug)]
pub enum NoChild {
    /// Every slot stayed taken for `pool.wait`.
    Full,
    /// It could not be started.
    Spawn(SpawnError),
    /// The gateway is draining.
    Closed,
}

struct Spare {
    held: Slotted,
    /// Replaces the spare when it ends by itself, and stops it when its time is over.
    watcher: AbortHandle,
}

#[derive(Default)]
struct State {
    spares: VecDeque<Spare>,
    /// Spares that are being started, or will be after a pause.
    starting: usize,
    backoff: Option<Duration>,
    open: bool,
    closed: bool,
    /// Pauses before a spare is started; nothing is lost with one that is cut.
    pauses: JoinSet<()>,
    tasks: JoinSet<()>,
}

/// One server's children.
pub struct Pool {
    spawner: Spawner,
    command: Command,
    config: Arc<Server>,
    metrics: Arc<ServerMetrics>,
    slots: Arc<Semaphore>,
    /// Every taken slot listens, so that its end can be waited for.
    taken: watch::Sender<()>,
    state: Mutex<State>,
    /// A spare became ready while somebody waits for a slot.
    spare_ready: Notify,
}

impl Pool {
    /// A pool without children; [`Pool::open`] starts its spares.
    #[must_use]
    pub fn new(spawner: Spawner, command: Command, config: Arc<Server>, metrics: Arc<ServerMetrics>) -> Arc<Pool> {
        let slots = config.pool.max_size.unwrap_or(Semaphore::MAX_PERMITS).min(Semaphore::MAX_PERMITS);
        Arc::new(Pool {
            spawner,
            command,
            config,
            metrics,
            slots: Arc::new(Semaphore::new(slots)),
            taken: watch::Sender::new(()),
            state: Mutex::default(),
            spare_ready: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many children are kept started: `pool.min_idle`, but none where callers bring values, which can only be given
    /// to a child that starts.
    #[must_use]
    pub fn spares_kept(&self) -> usize {
        if self.config.env_from.is_empty() { self.config.pool.min_idle } else { 0 }
    }

    /// Starts keeping spares.
    pub fn open(self: &Arc<Self>) {
        self.state().open = true;
        self.refill();
    }

    /// Leases a child nobody used before: a spare, or a new one as soon as a slot is free. One that is started when
    /// the future is dropped becomes a spare, where spares are kept.
    ///
    /// # Errors
    /// See [`NoChild`].
    pub async fn lease(self: &Arc<Self>) -> Result<Lease, NoChild> {
        self.lease_with(&OwnVariables::default()).await
    }

    /// As [`Pool::lease`], for a caller who brings variables: of a server whose children are given some no spare is kept,
    /// and none of a child that was started and not used.
    ///
    /// # Errors
    /// See [`NoChild`].
    pub async fn lease_with(self: &Arc<Self>, own: &OwnVariables) -> Result<Lease, NoChild> {
        let lease = match self.take_spare() {
            Some(spare) => Ok(spare),
            None => self.wait_for_child(own).await,
        };
        // A start that failed freed a slot.
        self.refill();
        lease
    }

    /// Whether a lease would have to wait for another to be given back.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.slots.available_permits() == 0 && self.state().spares.is_empty()
    }

    async fn wait_for_child(self: &Arc<Self>, own: &OwnVariables) -> Result<Lease, NoChild> {
        let _waiter = self.metrics.pool_waiting();
        let began = Instant::now();
        let deadline = began + self.config.pool.wait;
        let slot = loop {
            let spare_ready = self.spare_ready.notified();
            if self.state().closed {
                return Err(NoChild::Closed);
            }
            if let Some(spare) = self.take_spare() {
                self.metrics.pool_waited(began.elapsed());
                return Ok(spare);
            }
            let slot = Arc::clone(&self.slots).acquire_owned();
            tokio::select! {
                slot = timeout_at(deadline.into(), slot) => match slot {
                    Ok(Ok(slot)) => break slot,
                    Ok(Err(_closed)) => return Err(NoChild::Closed),
                    Err(_elapsed) => return Err(NoChild::Full),
                },
                () = spare_ready => {}
            }
        };
        self.metrics.pool_waited(began.elapsed());
        self.start_lease(slot, own.clone()).await
    }

    /// Starts a child in a task of its own, so that the start is not in vain if whoever asked for it leaves.
    async fn start_lease(self: &Arc<Self>, permit: OwnedSemaphorePermit, own: OwnVariables) -> Result<Lease, NoChild> {
        let (give, given) = oneshot::channel();
        let pool = Arc::clone(self);
        self.state().tasks.spawn(async move {
            let started = pool.start(permit, &own).await.map(|held| Lease::new(held, Arc::clone(&pool)));
            if let Err(unwanted) = give.send(started) {
                drop(unwanted);
                pool.refill();
            }
        });
        // Without an answer the runtime is ending.
        given.await.unwrap_or(Err(NoChild::Closed))
    }

    async fn start(&self, permit: OwnedSemaphorePermit, own: &OwnVariables) -> Result<Slotted, NoChild> {
        // Before the look, so that a close that comes after it waits for this child.
        let slot = Slot { _permit: permit, _taken: self.taken.subscribe() };
        if self.state().closed {
            return Err(NoChild::Closed);
        }
        let state = StateGauge::new(Arc::clone(&self.metrics), ChildState::Starting);
        let child = self.spawner.spawn(self.command.with_own(own)).await.map_err(NoChild::Spawn)?;
        info!(event = "child_start", server = %self.command.server, child_pid = child.pid());
        let lifespan = Lifespan::begin(&self.config.pool, Instant::now(), rand::random());
        Ok(Slotted { child, state, slot, lifespan })
    }

    /// Leases a child that a test plays.
    #[cfg(test)]
    pub(super) fn lend(self: &Arc<Self>, child: crate::upstream::Child) -> Lease {
        let permit = Arc::clone(&self.slots).try_acquire_owned().expect("as many as there are");
        let slot = Slot { _permit: permit, _taken: self.taken.subscribe() };
        let state = StateGauge::new(Arc::clone(&self.metrics), ChildState::Starting);
        let lifespan = Lifespan::begin(&self.config.pool, Instant::now(), 0.0);
        Lease::new(Slotted { child, state, slot, lifespan }, Arc::clone(self))
    }

    fn take_spare(self: &Arc<Self>) -> Option<Lease> {
        let mut state = self.state();
        loop {
            let Spare { held, watcher } = state.spares.pop_front()?;
            watcher.abort();
            let why = if held.child.exit().borrow().is_some() {
                None
            } else if held.lifespan.takes_session(Instant::now()) {
                state.backoff = None;
                drop(state);
                return Some(Lease::new(held, Arc::clone(self)));
            } else {
                Some(ChildExit::Recycled)
            };
            self.retire_into(&mut state, held, why);
        }
    }

    /// Starts spares up to `min_idle`, as far as slots are free and nobody waits for one.
    fn refill(self: &Arc<Self>) {
        let mut state = self.state();
        while state.tasks.try_join_next().is_some() {}
        while state.pauses.try_join_next().is_some() {}
        while state.open && !state.closed && state.spares.len() + state.starting < self.spares_kept() {
            let Some(pause) = state.backoff else { if self.start_spare(&mut state) { continue } else { return } };
            state.starting += 1;
            let pool = Arc::clone(self);
            // Without a slot: a client that comes meanwhile may have it.
            state.pauses.spawn(async move {
                sleep(pause).await;
                let mut state = pool.state();
                state.starting -= 1;
                pool.start_spare(&mut state);
            });
        }
    }

    /// Starts one spare; false if no slot is free. Whoever frees one refills.
    fn start_spare(self: &Arc<Self>, state: &mut State) -> bool {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else { return false };
        state.starting += 1;
        let pool = Arc::clone(self);
        state.tasks.spawn(async move {
            let started = pool.start(slot, &OwnVariables::default()).await;
            pool.keep(started);
        });
        true
    }

    fn keep(self: &Arc<Self>, started: Result<Slotted, NoChild>) {
        let mut state = self.state();
        state.starting -= 1;
        match started {
            Ok(held) => self.keep_in(state, held),
            Err(NoChild::Closed | NoChild::Full) => {}
            Err(NoChild::Spawn(error)) => {
                warn!(event = "child_start", server = %self.command.server, error = %error);
                self.back_off(&mut state);
                drop(state);
                self.refill();
            }
        }
    }

    /// Takes a leased child that was never written to: it is a spare again, one of more than `min_idle` perhaps. Where
    /// no spares are kept it is stopped.
    pub(super) fn take_back(self: &Arc<Self>, held: Slotted) {
        if self.spares_kept() == 0 {
            return self.retire(held, None);
        }
        // Without a runtime the process is ending; dropping the child kills it.
        if tokio::runtime::Handle::try_current().is_ok() {
            self.keep_in(self.state(), held);
        }
    }

    fn keep_in(self: &Arc<Self>, mut state: MutexGuard<'_, State>, mut held: Slotted) {
        if state.closed {
            self.retire_into(&mut state, held, None);
            return;
        }
        held.state.set(ChildState::Idle);
        let (exit, pid, lifespan) = (held.child.exit(), held.child.pid(), held.lifespan.clone());
        let watcher = state.tasks.spawn(Arc::clone(self).watch(exit, pid, lifespan));
        state.spares.push_back(Spare { held, watcher });
        drop(state);
        self.spare_ready.notify_one();
    }

    /// Waits for the end of a spare, or for its time to be over, whichever comes first.
    async fn watch(self: Arc<Self>, mut exit: watch::Receiver<Option<Exit>>, pid: i32, lifespan: Lifespan) {
        let mut gone = pin!(exit.wait_for(Option::is_some));
        while !self.recycle(pid) {
            let look = lifespan.next_look(Instant::now());
            let look = async { if let Some(look) = look { sleep_until(look.into()).await } else { pending().await } };
            tokio::select! {
                _gone = &mut gone => return self.replace(pid),
                () = look => {}
            }
        }
    }

    /// Stops a spare whose time is over; false if it is not, or if it is a spare no longer.
    fn recycle(self: &Arc<Self>, pid: i32) -> bool {
        let mut state = self.state();
        let can_be_spared = state.spares.len() > self.spares_kept();
        let is_over =
            |spare: &Spare| spare.held.child.pid() == pid && spare.held.lifespan.is_over(Instant::now(), can_be_spared);
        let Some(at) = state.spares.iter().position(is_over) else { return false };
        if let Some(spare) = state.spares.remove(at) {
            // One that is only not needed is stopped as any other.
            let is_spent = !spare.held.lifespan.takes_session(Instant::now());
            self.retire_into(&mut state, spare.held, is_spent.then_some(ChildExit::Recycled));
        }
        drop(state);
        // Where a slot is free the next one starts while this one stops.
        self.refill();
        true
    }

    /// A spare ended by itself.
    fn replace(self: &Arc<Self>, pid: i32) {
        {
            let mut state = self.state();
            let Some(at) = state.spares.iter().position(|spare| spare.held.child.pid() == pid) else { return };
            if let Some(spare) = state.spares.remove(at) {
                self.back_off(&mut state);
                self.retire_into(&mut state, spare.held, None);
            }
        }
    }

    fn back_off(&self, state: &mut State) {
        let next = state.backoff.map_or(FIRST_BACKOFF, |backoff| backoff * 2);
        state.backoff = Some(next.min(self.config.breaker.backoff_max));
    }

    /// Takes a child that is done with: stops it, reaps it, frees its slot.
    pub(super) fn retire(self: &Arc<Self>, held: Slotted, why: Option<ChildExit>) {
        self.retire_into(&mut self.state(), held, why);
    }

    fn retire_into(self: &Arc<Self>, state: &mut State, mut held: Slotted, why: Option<ChildExit>) {
        held.state.set(ChildState::Stopping);
        // Asked here, while its input is still open: the task may come after the end it brings about.
        let ended_before = held.child.exit().borrow().is_some();
        let pool = Arc::clone(self);
        let runtime = tokio::runtime::Handle::try_current();
        // Without a runtime the process is ending; dropping the child kills it.
        let Ok(runtime) = runtime else { return };
        state.tasks.spawn_on(
            async move {
                pool.stop(held, why, ended_before).await;
                pool.refill();
            },
            &runtime,
        );
    }

    async fn stop(&self, held: Slotted, why: Option<ChildExit>, mut ended_before: bool) {
        let Slotted { child, state, slot, lifespan: _ } = held;
        let pid = child.pid();
        let report = child.stop(self.config.timeouts.close, self.config.timeouts.term).await;
        let ending = report.exit.as_ref().map(|exit| exit.ending);
        let by_signal = ending.is_some_and(Ending::is_by_signal);
        // The end of input sends no signal, so that one was not ours.
        ended_before |= by_signal && report.step == StopStep::Eof;
        let reason = match why {
            Some(why) => why,
            // Nothing else says it, and it is never the gateway's doing.
            None if ending == Some(Ending::OutOfMemory) => ChildExit::Oom,
            None if ended_before && by_signal => ChildExit::Signal,
            None if ended_before => ChildExit::Exit,
            None => ChildExit::Stopped,
        };
        self.metrics.child_exited(reason);
        if !ended_before {
            self.metrics.child_killed(report.step);
        }
        let ending = ending.as_ref().map(Ending::to_string).unwrap_or_default();
        let last = report.exit.as_ref().filter(|_| reason != ChildExit::Stopped).map(|exit| exit.stderr.join("\n"));
        info!(
            event = "child_exit", server = %self.command.server, child_pid = pid, reason = reason.as_str(),
            ending = %ending, step = report.step.as_str(), stderr = last.as_deref().unwrap_or_default(),
        );
        drop(state);
        drop(slot);
    }

    /// Starts and gives out no more children, and stops the spares. Who waits is told at once;
    /// leased children run on.
    pub fn refuse(self: &Arc<Self>) {
        let mut state = self.state();
        state.closed = true;
        state.pauses.abort_all();
        while let Some(spare) = state.spares.pop_front() {
            spare.watcher.abort();
            self.retire_into(&mut state, spare.held, None);
        }
        drop(state);
        self.slots.close();
    }

    /// As [`Pool::refuse`]; then waits until no child is left. Leases must have been dropped, or
    /// are waited for too.
    pub async fn close(self: &Arc<Self>) {
        self.refuse();
        self.taken.closed().await;
    }
}
