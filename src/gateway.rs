//! One gateway process: built (bound, nothing served), run, drained. Owns every long-lived task.

mod connections;
mod drain;
mod endpoint;
mod keys_file;
mod machine;
mod node;
mod revocation;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::auth::Keys;
use crate::budget::{Budget, return_large_blocks};
use crate::caller::Arrival;
use crate::config::Config;
use crate::gateway::keys_file::KeysFile;
use crate::gateway::revocation::Revocation;
use crate::http::{AdminDoor, Door, DoorParts};
use crate::net::{BindError, Connection, Listener, Observer, Phase, bind, serve};
use crate::server::{Room, ServersParts, make_process_undumpable, raise_descriptor_limit};
use crate::telemetry::{AccessLog, Metrics};

pub use crate::net::Bound;
pub use crate::server::{Catalogue, Diagnosis, Health, Lacks, ScoutFailure, Server, Servers, Status, adopt_orphans};
pub use endpoint::Endpoint;
pub use machine::MachineLimits;
pub use node::{NodeTag, NotANodeTag};

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
    revocation: Arc<Revocation>,
    keys_file: Option<KeysFile>,
    metrics: Arc<Metrics>,
    descriptors: Option<u64>,
    room: Room,
}

impl Gateway {
    /// Binds every address and lays out every part; nothing is served and no child is started.
    /// Needs a tokio runtime.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build(config: Config, node: NodeTag, log: AccessLog) -> Result<Gateway, BuildError> {
        return_large_blocks();
        let descriptors = raise_descriptor_limit().soft;
        if let Err(error) = make_process_undumpable() {
            warn!(event = "warning", error = %error, warning = "children can read the gateway's environment in /proc");
        }
        let (listener, admin) = listen(&config).map_err(BuildError::Bind)?;
        let node = node.into_inner();
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
        let keys = Arc::new(Keys::new(&config.auth));
        let door = Door::new(DoorParts {
            listen: config.listen.clone(),
            limits: config.limits.clone(),
            streams: config.streams.clone(),
            servers: servers.all().to_vec(),
            keys: Arc::clone(&keys),
            budget,
            readiness: Arc::clone(servers.readiness()),
            metrics: Arc::clone(&metrics),
            log,
            node: Arc::clone(&node),
            cap: config.sessions.max_per_principal,
        });
        let revocation = Arc::new(Revocation { keys, servers: Arc::clone(&servers), door: Arc::clone(&door) });
        let keys_file = KeysFile::new(&config.auth, &revocation);
        Ok(Gateway {
            config,
            node,
            listener,
            admin,
            servers,
            door,
            admin_door,
            revocation,
            keys_file,
            metrics,
            descriptors,
            room: Room::of_this_process(),
        })
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

    /// Serves until `stop` says otherwise, then drains.
    pub async fn run(self, mut stop: watch::Receiver<Stop>) -> Drained {
        let (phase, serving) = watch::channel(Phase::Serving);
        let mut tasks = JoinSet::new();
        let mut starts = JoinSet::new();
        let observer: Arc<dyn Observer> = Arc::new(connections::Connections::new(Arc::clone(&self.metrics)));
        let limits = self.config.limits.clone();
        let trusted = self.config.listen.trusted_proxies.clone();
        let mut listeners = JoinSet::new();
        if let Some(admin) = self.admin {
            let door = Arc::clone(&self.admin_door);
            let service = Arc::new(move |request, connection: Arc<Connection>| {
                Arc::clone(&door).handle(request, arrival(connection))
            });
            let (limits, serving, observer) = (limits.clone(), serving.clone(), Arc::clone(&observer));
            listeners.spawn(async move { serve(admin, &limits, Vec::new(), serving, service, observer).await });
        }
        let door = Arc::clone(&self.door);
        let service = Arc::new(move |request, connection: Arc<Connection>| {
            Arc::clone(&door).handle(request, arrival(connection))
        });
        let patience = Arc::clone(self.door.patience());
        tasks.spawn(async move { patience.run_clock().await });
        let listener = self.listener;
        listeners.spawn(async move { serve(listener, &limits, trusted, serving, service, observer).await });
        let servers = Arc::clone(&self.servers);
        tasks.spawn(async move { servers.sweep().await });
        let servers = Arc::clone(&self.servers);
        tasks.spawn(async move { servers.relieve().await });
        let servers = Arc::clone(&self.servers);
        tasks.spawn(async move { servers.reap_orphans().await });
        tasks.spawn(self.revocation.follow());
        if let Some(keys_file) = self.keys_file {
            tasks.spawn(keys_file.follow());
        }
        for server in self.servers.all() {
            starts.spawn(Arc::clone(server).start());
        }
        wait_for_stop(&mut stop, &mut tasks).await;
        // What is still starting gives its child back here, so that the drain sees to its end.
        starts.shutdown().await;
        let drained = drain::drain(&self.servers, &self.config.drain, &mut stop).await;
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

/// Binds the addresses for clients and, where there is one, for operators.
fn listen(config: &Config) -> Result<(Listener, Option<Listener>), BindError> {
    let listener = bind("main", &config.listen.address, &config.limits)?;
    let admin = config.admin.address.as_ref();
    let admin = admin.map(|address| bind("admin", std::slice::from_ref(address), &config.limits)).transpose()?;
    Ok((listener, admin))
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

fn arrival(connection: Arc<Connection>) -> Arrival {
    Arrival { peer: connection.peer, local_bind: connection.local_bind, fate: connection }
}
