//! One gateway process: built (bound, nothing served), run, drained. Owns every long-lived task.

mod certificates;
mod changes;
mod connections;
mod drain;
mod endpoint;
mod issuer_keys;
mod keys_file;
mod machine;
mod node;
mod reload;
mod revocation;
mod watched;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::allocator::return_large_blocks;
use crate::auth::{Issuers, Keys};
use crate::budget::Budget;
use crate::caller::Arrival;
use crate::config::{self, Config, Limits, Listen};
use crate::gateway::certificates::Certificates;
use crate::gateway::issuer_keys::IssuerKeys;
use crate::gateway::machine::connections_beside_children;
use crate::gateway::reload::{Held, Reloader};
use crate::gateway::revocation::Revocation;
use crate::http::{AdminDoor, Door, DoorParts, RulesParts};
use crate::net::{BindError, Connection, Credentials, Listener, Observer, Phase, Terms, bind, serve};
use crate::server::{Room, ServersParts, Settings, make_process_undumpable, raise_descriptor_limit};
use crate::telemetry::{AccessLog, Metrics};

pub use crate::net::{Bound, TlsProblem};
pub use crate::server::{Catalogue, Diagnosis, Health, Lacks, ScoutFailure, Server, Servers, Status, adopt_orphans};
pub use endpoint::Endpoint;
pub use machine::MachineLimits;
pub use node::{NodeTag, NotANodeTag};
pub use reload::ConfigSource;

/// Longest wait for connections to take their last bytes.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// Why there is no gateway.
#[derive(Debug)]
pub enum BuildError {
    /// An address could not be bound.
    Bind(BindError),
    /// Files of `listen.tls` cannot be served: what `check` says too.
    Tls(Vec<TlsProblem>),
    /// The system lacks something.
    System(io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Bind(error) => error.fmt(f),
            BuildError::Tls(problems) => write!(f, "{}", worded(problems)),
            BuildError::System(error) => write!(f, "cannot start: {error}"),
        }
    }
}

impl std::error::Error for BuildError {}

/// Reads the files of `listen.tls` and does nothing with them; may wait for disks.
///
/// # Errors
/// Every file that is wrong.
pub fn check_tls(tls: &config::Tls) -> Result<(), Vec<TlsProblem>> {
    Credentials::read(tls).map(drop)
}

/// A line for each file.
fn worded(problems: &[TlsProblem]) -> String {
    let line = |problem: &TlsProblem| format!("listen.tls: {problem}");
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}

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
    /// What a reload tells.
    held: Held,
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
        log.secrets().set(config.secrets());
        let descriptors = raise_descriptor_limit().soft;
        if let Err(error) = make_process_undumpable() {
            warn!(event = "warning", error = %error, warning = "children can read the gateway's environment in /proc");
        }
        let metrics = Metrics::new(&config.telemetry.metrics);
        metrics.count_losses_of(&log);
        let certificates = config.listen.tls.as_ref().map(|tls| Certificates::read(tls, &metrics));
        let certificates = certificates.transpose().map_err(BuildError::Tls)?;
        let (mut listener, admin) = listen(&config).map_err(BuildError::Bind)?;
        listener.tls = certificates.as_ref().map(|certificates| Arc::clone(certificates.tls()));
        let node = node.into_inner();
        log.audit().begin(&node).map_err(BuildError::System)?;
        let budget = Budget::new(config.limits.memory);
        let servers = Servers::new(
            &settings(&config),
            ServersParts {
                budget: Arc::clone(&budget),
                metrics: Arc::clone(&metrics),
                log: log.clone(),
                node: Arc::clone(&node),
            },
        )
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
        let issuers = Issuers::new(&config.auth, Arc::clone(&metrics));
        servers.readiness().require(Box::new(IssuerKeys(Arc::clone(&issuers))));
        let parts = DoorParts {
            keys: Arc::clone(&keys),
            issuers: Arc::clone(&issuers),
            budget: Arc::clone(&budget),
            readiness: Arc::clone(servers.readiness()),
            metrics: Arc::clone(&metrics),
            log: log.clone(),
            node: Arc::clone(&node),
        };
        let door = Door::new(parts, &rules(&config, &servers.all(), &[]));
        let revocation = Arc::new(Revocation { keys, issuers, servers: Arc::clone(&servers), door: Arc::clone(&door) });
        metrics.config_loaded();
        let (terms, admin_terms) =
            (watch::Sender::new(terms(&config, descriptors)), watch::Sender::new(admin_terms(&config)));
        let held = Held { revocation, admin_door, budget, metrics, log, terms, admin_terms, descriptors, certificates };
        let room = Room::of_this_process();
        Ok(Gateway { config, node, listener, admin, servers, door, held, descriptors, room })
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

    /// Serves until `stop` says otherwise, then drains. Where there is a `source`, the configuration is read again
    /// whenever that asks for it.
    pub async fn run(self, mut stop: watch::Receiver<Stop>, source: Option<ConfigSource>) -> Drained {
        let Gateway { config, listener, admin, servers, door, held, .. } = self;
        let (phase, serving) = watch::channel(Phase::Serving);
        let observer: Arc<dyn Observer> = Arc::new(connections::Connections::new(Arc::clone(&held.metrics)));
        let mut listeners = JoinSet::new();
        if let Some(admin) = admin {
            let door = Arc::clone(&held.admin_door);
            let service = Arc::new(move |request, connection: Arc<Connection>| {
                Arc::clone(&door).handle(request, arrival(connection))
            });
            let (serving, observer) = (serving.clone(), Arc::clone(&observer));
            listeners.spawn(serve(admin, held.admin_terms.subscribe(), serving, service, observer));
        }
        let (patience, metered) = (Arc::clone(door.patience()), Arc::clone(&door));
        let service = Arc::new(move |request, connection: Arc<Connection>| {
            Arc::clone(&door).handle(request, arrival(connection))
        });
        listeners.spawn(serve(listener, held.terms.subscribe(), serving, service, observer));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { patience.run_clock().await });
        tasks.spawn(async move { metered.sweep_quotas().await });
        let sweeping = Arc::clone(&servers);
        tasks.spawn(async move { sweeping.sweep().await });
        let relieving = Arc::clone(&servers);
        tasks.spawn(async move { relieving.relieve().await });
        let reaping = Arc::clone(&servers);
        tasks.spawn(async move { reaping.reap_orphans().await });
        tasks.spawn(Arc::clone(&held.revocation).follow());
        tasks.spawn(Arc::clone(&held.revocation.issuers).follow());
        tasks.spawn(Arc::clone(&held.revocation.issuers).renew());
        let mut reloader = Reloader::new(config, source, held);
        tokio::select! {
            () = wait_for_stop(&mut stop, &mut tasks) => {}
            () = reloader.follow() => {}
        }
        // What is still starting gives its child back here, so that the drain sees to its end.
        reloader.stop().await;
        let times = reloader.drain_times();
        let drained = tokio::select! {
            drained = drain::drain(&servers, &times, &mut stop) => drained,
            () = reloader.follow_keys() => Drained { calls_cut: 0 },
        };
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

/// What a configuration says about servers and their sessions.
fn settings(config: &Config) -> Settings<'_> {
    let Config { servers, sessions, streams, replay, .. } = config;
    Settings { servers, sessions, streams, replay }
}

/// What a configuration says about requests.
fn rules<'a>(config: &'a Config, servers: &'a [Arc<Server>], leaving: &'a [Arc<Server>]) -> RulesParts<'a> {
    let Config { listen, limits, streams, sessions, auth, .. } = config;
    RulesParts { listen, limits, streams, servers, leaving, cap: sessions.max_per_principal, issuers: &auth.issuers }
}

/// What a configuration says about connections of clients, as far as there are descriptors.
fn terms(config: &Config, descriptors: Option<u64>) -> Terms {
    let Listen { trusted_proxies, proxy_protocol, .. } = &config.listen;
    let beside = descriptors.map(|nofile| connections_beside_children(nofile, config));
    let beside = beside.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    let connections = config.limits.connections.into_iter().chain(beside).min();
    let limits = Limits { connections, ..config.limits.clone() };
    Terms { limits, trusted: trusted_proxies.clone(), proxy_protocol: *proxy_protocol }
}

/// The same for those of operators, who come without a proxy.
fn admin_terms(config: &Config) -> Terms {
    Terms { proxy_protocol: false, ..terms(config, None) }
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
    Arrival {
        peer: connection.peer,
        local_bind: connection.local_bind,
        certificate: connection.certificate(),
        fate: connection,
    }
}
