//! Every configured server, and what they share: the sessions, the memory, the one forking thread.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::allocator;
use crate::budget::Budget;
use crate::caller::Principal;
use crate::config;
use crate::exchange::ledger::Ledger;
use crate::exchange::registry::Registry;
use crate::exchange::stream::StreamTerms;
use crate::mcp::stream_log::Bounds;
use crate::server::diagnosis::Diagnosis;
use crate::server::open::{Server, ServerParts};
use crate::server::readiness::Readiness;
use crate::server::roster::Roster;
use crate::telemetry::label::SessionEnd;
use crate::telemetry::{AccessLog, Metrics};
use crate::upstream::{Command, Lacks, Living, Spawner};

/// Bytes a live reader may be behind before its child must wait.
const SEND_WINDOW: usize = 4 * 1024 * 1024;

/// Pauses between looks at clocks.
const SHORTEST_TICK: Duration = Duration::from_millis(10);
const LONGEST_TICK: Duration = Duration::from_secs(1);

/// By so much a look must be late to mean that the process stood still.
const STANDSTILL: Duration = Duration::from_secs(1);

/// Shortest pause between two returns of free memory.
const RETURN_EVERY: Duration = Duration::from_secs(5);

/// How often it is returned after sessions have ended.
const RETURNS: u32 = 3;

/// Pauses between the scout's tries.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// What a configuration says about servers and their sessions.
pub struct Settings<'a> {
    /// `[servers.*]`
    pub servers: &'a BTreeMap<Arc<str>, Arc<config::Server>>,
    /// `[sessions]`
    pub sessions: &'a config::Sessions,
    /// `[streams]`
    pub streams: &'a config::Streams,
    /// `[replay]`
    pub replay: &'a config::Replay,
}

/// What the servers are built with and keep.
pub struct ServersParts {
    /// The memory budget.
    pub budget: Arc<Budget>,
    /// The numbers.
    pub metrics: Arc<Metrics>,
    /// The access log.
    pub log: AccessLog,
    /// The node tag.
    pub node: Arc<str>,
}

/// Every server of this process.
pub struct Servers {
    roster: Arc<Roster>,
    registry: Arc<Registry>,
    readiness: Arc<Readiness>,
    tick: Mutex<Duration>,
    spawner: Spawner,
    parts: ServersParts,
    lacks: Lacks,
}

impl Servers {
    /// Builds every server; nothing is started but the forking thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn new(settings: &Settings<'_>, parts: ServersParts) -> io::Result<Arc<Servers>> {
        let (spawner, lacks) = Spawner::start_with_reaper()?;
        let ledger = Ledger::new(Arc::clone(&parts.budget), Arc::clone(&parts.metrics), settings.replay.total);
        let registry = Registry::new(Arc::clone(&parts.node), settings.sessions.clone(), ledger);
        let roster: Arc<Roster> = Arc::default();
        let readiness = Readiness::new(Arc::clone(&roster), Arc::clone(&parts.budget));
        let tick = Mutex::new(tick_of(settings));
        let servers = Arc::new(Servers { roster, registry, readiness, tick, spawner, parts, lacks });
        servers.adopt(&servers.plan(settings, false), settings);
        Ok(servers)
    }

    /// The servers, in name order.
    #[must_use]
    pub fn all(&self) -> Arc<[Arc<Server>]> {
        self.roster.current()
    }

    /// Those there are, and those that leave.
    #[must_use]
    pub fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Takes over what concerns all sessions together.
    pub(super) fn apply(&self, settings: &Settings<'_>) {
        self.registry.set_limits(settings.sessions.clone());
        self.registry.ledger().set_total(settings.replay.total);
        *self.tick() = tick_of(settings);
    }

    /// Whether the gateway is ready.
    #[must_use]
    pub fn readiness(&self) -> &Arc<Readiness> {
        &self.readiness
    }

    /// Whether the kernel keeps children out of each other's `/proc`.
    #[must_use]
    pub fn scope_supported(&self) -> bool {
        self.spawner.scope_supported()
    }

    pub(super) fn server_parts(
        &self,
        settings: &Settings<'_>,
        name: &Arc<str>,
        config: &Arc<config::Server>,
    ) -> ServerParts {
        let ServersParts { budget, metrics, log, node } = &self.parts;
        let metrics = metrics.server(name);
        let mut command = Command::new(Arc::clone(name), config, std::env::vars_os());
        let lines = Arc::clone(&metrics);
        command.stderr_count = Some(Arc::new(move |count| (0..count).for_each(|_| lines.stderr_line())));
        command.metrics = Some(Arc::clone(&metrics));
        let Settings { sessions, streams, replay, .. } = settings;
        let streams = StreamTerms {
            server: Arc::clone(name),
            bounds: Bounds { events: replay.events, bytes: replay.bytes, window: SEND_WINDOW },
            age: replay.age,
            retry: streams.retry,
            ledger: Arc::clone(self.registry.ledger()),
            metrics: Arc::clone(&metrics),
        };
        ServerParts {
            name: Arc::clone(name),
            config: Arc::clone(config),
            sessions: (*sessions).clone(),
            spawner: self.spawner.clone(),
            command,
            registry: Arc::clone(&self.registry),
            budget: Arc::clone(budget),
            streams,
            log: log.clone(),
            node: Arc::clone(node),
            metrics,
        }
    }

    /// What the system does not have to keep children in bounds.
    #[must_use]
    pub fn lacks(&self) -> &Lacks {
        &self.lacks
    }

    /// Reaps what servers' processes left behind, whenever some process ends.
    pub async fn reap_orphans(&self) {
        self.spawner.reap_orphans().await;
    }

    /// The processes of all servers that are not reaped yet.
    #[must_use]
    pub fn living(&self) -> Living {
        self.spawner.living().clone()
    }

    /// Looks at every session's clocks, again and again.
    pub async fn sweep(&self) {
        let mut last = Instant::now();
        let (mut ended, mut owed, mut returned) = (0, 0, Instant::now());
        loop {
            let tick = *self.tick();
            tokio::time::sleep(tick).await;
            let now = Instant::now();
            // After a standstill (a stopped process, a suspended machine) what clients sent meanwhile
            // still waits in the kernel; one tick lets it be heard first.
            let stood_still = now.duration_since(last) >= tick + STANDSTILL;
            last = now;
            if stood_still {
                continue;
            }
            self.registry.sweep(now);
            let ended_by_now = self.registry.ended();
            if ended_by_now > ended {
                // The second time finds what children and connections held a little longer, and what threads kept.
                (ended, owed) = (ended_by_now, RETURNS);
            }
            if owed > 0 && now.duration_since(returned) >= RETURN_EVERY {
                (owed, returned) = (owed - 1, now);
                allocator::return_free_memory();
                allocator::ask_threads();
                wake_threads();
            }
        }
    }

    /// Makes room in the logs of streams whenever they hold too much together.
    pub async fn relieve(&self) {
        self.registry.relieve().await;
    }

    /// Sessions open or opening.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.registry.len()
    }

    /// Calls that wait for their child.
    #[must_use]
    pub fn calls_in_flight(&self) -> usize {
        self.registry.calls_in_flight()
    }

    /// Writes what stands where to the log.
    pub fn dump(&self) {
        info!(event = "state", sessions = self.sessions(), calls = self.calls_in_flight(), servers = %self.readiness.describe());
    }

    /// Refuses new sessions and calls from now on.
    pub fn drain(&self) {
        for server in self.whoever_is_left() {
            server.drain();
        }
    }

    /// Pause between two looks at clocks.
    fn tick(&self) -> MutexGuard<'_, Duration> {
        self.tick.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn whoever_is_left(&self) -> impl Iterator<Item = Arc<Server>> {
        self.all().to_vec().into_iter().chain(self.roster.leaving())
    }

    /// As [`Servers::revoke`], at the server with this name only.
    pub fn revoke_at(&self, server: &str, is_over: impl Fn(&Principal) -> bool) {
        self.registry.revoke_at(server, is_over);
    }

    /// Ends the sessions of callers who may have none any more.
    pub fn revoke(&self, is_over: impl Fn(&Principal) -> bool) {
        self.registry.revoke(is_over);
    }

    /// Ends every session.
    pub fn end_sessions(&self) {
        self.registry.end_all(SessionEnd::Drain);
    }

    /// Stops every child, those of all servers at the same time, and waits until none is left.
    pub async fn close(&self) {
        let mut closing: JoinSet<()> =
            self.whoever_is_left().map(|server| async move { server.close().await }).collect();
        while closing.join_next().await.is_some() {}
    }
}

impl Server {
    /// Starts working: the scout first, if there is one, so that a first start that downloads does
    /// not run several times at once; then the spares. The scout comes back until it succeeds.
    pub async fn start(self: Arc<Self>) {
        if !self.config().check_on_start {
            self.trust();
            self.open_pool();
            return;
        }
        let mut pause = FIRST_RETRY;
        loop {
            match self.scout().await {
                Ok(catalogue) => {
                    info!(
                        event = "server_ready", server = %self.name(), name = %catalogue.name, version = %catalogue.version,
                        protocol = catalogue.revision, ms = catalogue.took.as_millis(),
                    );
                    self.open_pool();
                    return;
                }
                Err(failure) => {
                    let Diagnosis { what, stderr, hint } = Diagnosis::of(&failure, self.name(), self.config());
                    warn!(event = "server_failed", server = %self.name(), error = what, hint, stderr = stderr.join("\n"));
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_RETRY);
        }
    }
}

/// Often enough that the shortest clock is at most an eighth late.
fn tick_of(settings: &Settings<'_>) -> Duration {
    let sessions = settings.sessions;
    let own = [Some(sessions.uninitialized), sessions.idle, sessions.absolute, Some(settings.replay.age)];
    let servers = settings.servers.values().flat_map(|server| {
        let timeouts = &server.timeouts;
        [Some(timeouts.start), timeouts.call_idle, timeouts.call_total, timeouts.ask]
    });
    let shortest = own.into_iter().chain(servers).flatten().min().unwrap_or(LONGEST_TICK);
    (shortest / 8).clamp(SHORTEST_TICK, LONGEST_TICK)
}

/// Has the threads of the runtime that sleep wake up and go to sleep again, as far as tasks can.
fn wake_threads() {
    for _ in 0..Handle::current().metrics().num_workers() {
        tokio::spawn(tokio::task::yield_now());
    }
}
