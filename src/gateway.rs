//! One gateway process: built (bound, nothing served), run, drained. Owns every long-lived task.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{error, info};

use crate::auth::Keys;
use crate::budget::Budget;
use crate::config::Config;
use crate::http::{AdminDoor, Door, DoorParts};
use crate::net::{BindError, Bound, End, Listener, Observer, Phase, bind, serve};
use crate::server::{Server, Servers, ServersParts};
use crate::telemetry::label::Accepted;
use crate::telemetry::{AccessLog, ConnectionGauge, Metrics};

/// How often a drain looks whether the last call has ended.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// Longest wait for connections to take their last bytes.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// Why there is no gateway.
#[derive(Debug)]
pub enum BuildError {
    /// An address could not be bound.
    Bind(BindError),
    /// The system lacks something.
    System(io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Bind(error) => error.fmt(f),
            BuildError::System(error) => write!(f, "cannot start: {error}"),
        }
    }
}

impl std::error::Error for BuildError {}

/// What the operator asked for by a signal; each stands for those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Nothing: serve.
    No,
    /// Drain, after the pre-stop pause.
    Drain,
    /// Drain at once.
    DrainNow,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Calls that were cut because they did not end in time.
    pub calls_cut: usize,
}

/// A gateway whose addresses are bound.
pub struct Gateway {
    config: Config,
    node: Arc<str>,
    listener: Listener,
    admin: Option<Listener>,
    servers: Arc<Servers>,
    door: Arc<Door>,
    admin_door: Arc<AdminDoor>,
    metrics: Arc<Metrics>,
}

impl Gateway {
    /// Binds every address and lays out every part; nothing is served and no child is started.
    /// Needs a tokio runtime.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build(config: Config, log: AccessLog) -> Result<Gateway, BuildError> {
        let listener = bind("main", &config.listen.address, &config.limits).map_err(BuildError::Bind)?;
        let admin = match &config.admin.address {
            Some(address) => Some(bind("admin", std::slice::from_ref(address), &config.limits).map_err(BuildError::Bind)?),
            None => None,
        };
        let node = random_tag();
        let metrics = Metrics::new(&config.telemetry.metrics);
        let budget = Budget::new(config.limits.memory);
        let servers = Servers::new(&ServersParts {
            servers: &config.servers,
            sessions: &config.sessions,
            streams: &config.streams,
            replay: &config.replay,
            budget: Arc::clone(&budget),
            metrics: Arc::clone(&metrics),
            log: log.clone(),
            node: Arc::clone(&node),
        })
        .map_err(BuildError::System)?;
        let admin_door = AdminDoor::new(
            &config.admin,
            &config.listen,
            &config.limits,
            Arc::clone(servers.readiness()),
            Arc::clone(&metrics),
            Arc::clone(&budget),
        );
        let door = Door::new(DoorParts {
            listen: config.listen.clone(),
            limits: config.limits.clone(),
            streams: config.streams.clone(),
            servers: servers.all().to_vec(),
            keys: Keys::new(&config.auth),
            budget,
            readiness: Arc::clone(servers.readiness()),
            metrics: Arc::clone(&metrics),
            log,
            node: Arc::clone(&node),
            cap: config.sessions.max_per_principal,
        });
        Ok(Gateway { config, node, listener, admin, servers, door, admin_door, metrics })
    }

    /// Where clients connect, real ports filled in.
    #[must_use]
    pub fn addresses(&self) -> &[Bound] {
        &self.listener.addresses
    }

    /// Where operators connect, if anywhere.
    #[must_use]
    pub fn admin_addresses(&self) -> &[Bound] {
        self.admin.as_ref().map_or(&[], |admin| &admin.addresses)
    }

    /// The node tag of this start.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Every server.
    #[must_use]
    pub fn servers(&self) -> &Arc<Servers> {
        &self.servers
    }

    /// Serves until `stop` says otherwise, then drains. `start` is given each server to start; who
    /// wants to watch the first start does it there.
    pub async fn run<F>(self, mut stop: watch::Receiver<Stop>, start: impl Fn(Arc<Server>) -> F) -> Drained
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (phase, serving) = watch::channel(Phase::Serving);
        let mut tasks = JoinSet::new();
        let observer: Arc<dyn Observer> = Arc::new(Connections::new(Arc::clone(&self.metrics)));
        let limits = self.config.limits.clone();
        let trusted = self.config.listen.trusted_proxies.clone();
        let mut listeners = JoinSet::new();
        if let Some(admin) = self.admin {
            let door = Arc::clone(&self.admin_door);
            let service = Arc::new(move |request, connection| Arc::clone(&door).handle(request, connection));
            let (limits, serving, observer) = (limits.clone(), serving.clone(), Arc::clone(&observer));
            listeners.spawn(async move { serve(admin, &limits, Vec::new(), serving, service, observer).await });
        }
        let door = Arc::clone(&self.door);
        let service = Arc::new(move |request, connection| Arc::clone(&door).handle(request, connection));
        let listener = self.listener;
        listeners.spawn(async move { serve(listener, &limits, trusted, serving, service, observer).await });
        let servers = Arc::clone(&self.servers);
        tasks.spawn(async move { servers.sweep().await });
        let servers = Arc::clone(&self.servers);
        tasks.spawn(async move { servers.relieve().await });
        for server in self.servers.all() {
            tasks.spawn(start(Arc::clone(server)));
        }
        wait_for_stop(&mut stop, &mut tasks).await;
        let drained = drain(&self.servers, &self.config.drain, &mut stop).await;
        // The listeners go last: until here every client got an answer.
        phase.send_replace(Phase::Draining);
        let _slow = timeout(LAST_BYTES, async { while listeners.join_next().await.is_some() {} }).await;
        phase.send_replace(Phase::Closed);
        listeners.shutdown().await;
        tasks.shutdown().await;
        info!(event = "drain_done", calls_cut = drained.calls_cut);
        drained
    }
}

/// Waits for the order to stop. A task of ours that panics is reported; the sessions it did not
/// concern go on.
async fn wait_for_stop(stop: &mut watch::Receiver<Stop>, tasks: &mut JoinSet<()>) {
    loop {
        tokio::select! {
            // A dropped sender is an order too: nobody could give another.
            _ = stop.wait_for(|stop| *stop != Stop::No) => return,
            Some(ended) = tasks.join_next() => {
                if let Err(failure) = ended {
                    error!(event = "task_failed", error = %failure);
                }
            }
        }
    }
}

/// Unready first, so that load balancers look elsewhere; then no new work; then the end of what
/// is running, by itself or cut.
async fn drain(servers: &Arc<Servers>, config: &crate::config::Drain, stop: &mut watch::Receiver<Stop>) -> Drained {
    servers.readiness().drain();
    let prestop = if *stop.borrow() == Stop::DrainNow { Duration::ZERO } else { config.prestop };
    info!(event = "drain_start", sessions = servers.sessions(), calls = servers.calls_in_flight(), prestop_ms = prestop.as_millis());
    tokio::select! {
        () = sleep(prestop) => {}
        _ = stop.wait_for(|stop| *stop == Stop::DrainNow) => {}
    }
    servers.drain();
    let deadline = Instant::now() + config.calls;
    while servers.calls_in_flight() > 0 && Instant::now() < deadline {
        sleep(DRAIN_LOOK).await;
    }
    let calls_cut = servers.calls_in_flight();
    servers.end_sessions();
    // Children that outlive this are killed with their groups when the pools are dropped.
    let _killed = timeout(config.children, servers.close()).await;
    Drained { calls_cut }
}

/// Six characters that tell this start of this process from any other.
fn random_tag() -> Arc<str> {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let bits: [u8; 6] = rand::random();
    bits.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect::<String>().into()
}

/// Counts connections.
struct Connections {
    metrics: Arc<Metrics>,
    open: std::sync::Mutex<std::collections::HashMap<&'static str, Vec<ConnectionGauge>>>,
}

impl Connections {
    fn new(metrics: Arc<Metrics>) -> Connections {
        Connections { metrics, open: std::sync::Mutex::default() }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<&'static str, Vec<ConnectionGauge>>> {
        self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Observer for Connections {
    fn accepted(&self, listener: &'static str) {
        self.metrics.accepted(listener, Accepted::Ok);
        self.open().entry(listener).or_default().push(self.metrics.connection_opened(listener));
    }

    fn closed(&self, listener: &'static str, _end: End) {
        if let Some(gauges) = self.open().get_mut(listener) {
            gauges.pop();
        }
    }

    fn refused(&self, listener: &'static str, why: Accepted) {
        self.metrics.accepted(listener, why);
    }

    fn accept_error(&self, _listener: &'static str, errno: &'static str) {
        self.metrics.accept_error(errno);
    }
}
