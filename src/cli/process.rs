//! What `run` and `serve` have in common: one process around one gateway.

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::allocator;
use crate::cli::{FAILURE, OK};
use crate::config::{Config, LogLevel};
use crate::gateway::{Bound, BuildError, ConfigSource, Drained, Gateway, Lacks, NodeTag, Servers, Stop, adopt_orphans};
use crate::telemetry::{Logs, Sink};

/// Longest wait for tasks to be dropped when a second signal asks for haste.
const HASTE: Duration = Duration::from_millis(500);

/// Longest wait for the forking thread to kill and reap the groups that were dropped with their tasks.
const LAST_KILLS: Duration = Duration::from_secs(1);

/// How a process reacts to HUP.
#[derive(Clone)]
pub enum Hangup {
    /// The terminal is gone: drain.
    Drain,
    /// Asked to read the configuration again.
    Reload(ConfigSource),
}

/// A process before it serves.
pub struct Process {
    runtime: Runtime,
    /// The log; dropping it writes what is left.
    pub logs: Logs,
}

impl Process {
    /// Prepares this process: limits raised, closed to its neighbours, log and runtime started.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn prepare(config: &Config) -> std::io::Result<Process> {
        let logs = Logs::start(&config.telemetry, Sink::Stderr)?;
        // Here, not where the gateway is built: it concerns whatever else a process has started.
        adopt_orphans()?;
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime =
            runtime.enable_all().thread_name("gangway").on_thread_park(allocator::exchange_kept_blocks).build()?;
        Ok(Process { runtime, logs })
    }

    /// Builds the gateway.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build(&self, config: Config, node: NodeTag) -> Result<Gateway, BuildError> {
        let _inside = self.runtime.enter();
        Gateway::build(config, node, self.logs.access())
    }

    /// Runs until it is told to stop. `supervise` is given the servers and runs beside the
    /// gateway; if it ends with an error, so does the process.
    #[must_use]
    pub fn run<S, F>(self, gateway: Gateway, hangup: Hangup, supervise: S) -> ExitCode
    where
        S: FnOnce(Arc<Servers>) -> F,
        F: Future<Output = Result<(), ()>>,
    {
        let Process { runtime, logs } = self;
        let living = gateway.servers().living();
        let end = runtime.block_on(async {
            let (order, stop) = watch::channel(Stop::No);
            let told = order.subscribe();
            let servers = Arc::clone(gateway.servers());
            let supervised = supervise(Arc::clone(&servers));
            let source = match &hangup {
                Hangup::Drain => None,
                Hangup::Reload(source) => Some(source.clone()),
            };
            let orders = Orders { order, hangup, servers };
            tokio::select! {
                biased;
                () = orders.follow() => End::Hurried,
                end = async {
                    let running = gateway.run(stop, source);
                    tokio::pin!(running);
                    tokio::select! {
                        drained = &mut running => End::Drained(drained),
                        outcome = supervised => match outcome {
                            Ok(()) => End::Drained(running.await),
                            // A drain ends what is starting too; that is no failure.
                            Err(()) if *told.borrow() != Stop::No => End::Drained(running.await),
                            Err(()) => End::Failed,
                        },
                    }
                } => end,
            }
        });
        match end {
            End::Drained(_) => drop(runtime),
            End::Hurried | End::Failed => runtime.shutdown_timeout(HASTE),
        }
        let left = living.wait_for_none(LAST_KILLS);
        if left > 0 {
            warn!(event = "warning", children = left, warning = "the kernel has not ended every child that was killed");
        }
        drop(logs);
        match end {
            End::Drained(Drained { calls_cut: 0 }) => ExitCode::from(OK),
            _ => ExitCode::from(FAILURE),
        }
    }
}

enum End {
    Drained(Drained),
    /// A second signal came.
    Hurried,
    Failed,
}

/// The signals, and what they order.
struct Orders {
    order: watch::Sender<Stop>,
    hangup: Hangup,
    servers: Arc<Servers>,
}

impl Orders {
    /// Follows signals; ends with the second one that asks to stop. TERM drains, INT drains
    /// without the pre-stop pause, HUP has the configuration read again, QUIT writes the state to the log.
    async fn follow(self) {
        let listen = |kind: SignalKind| signal(kind).ok();
        let (mut term, mut interrupt) = (listen(SignalKind::terminate()), listen(SignalKind::interrupt()));
        let (mut hangup, mut quit) = (listen(SignalKind::hangup()), listen(SignalKind::quit()));
        loop {
            let asked = tokio::select! {
                () = next(&mut term) => Stop::Drain,
                () = next(&mut interrupt) => Stop::DrainNow,
                () = next(&mut hangup) => match &self.hangup {
                    Hangup::Drain => Stop::DrainNow,
                    Hangup::Reload(source) => {
                        self.ask_for_reload(source);
                        continue;
                    }
                },
                () = next(&mut quit) => {
                    self.servers.dump();
                    continue;
                }
            };
            if *self.order.borrow() != Stop::No {
                info!(event = "drain_done", hurried = true);
                return;
            }
            self.order.send_replace(asked);
        }
    }
}

impl Orders {
    fn ask_for_reload(&self, source: &ConfigSource) {
        if *self.order.borrow() == Stop::No {
            source.asked.notify_one();
        } else {
            warn!(event = "reload_failed", config = source.file, error = "the gateway is draining");
        }
    }
}

/// Waits for one signal; for ever where it cannot be listened to.
async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// The variable that gives a process its node tag.
const NODE_VARIABLE: &str = "GANGWAY_NODE";

/// The node tag: the one the environment gives, else one of this start.
///
/// # Errors
/// What the environment gives has not the form of a tag; in words for the operator.
pub fn node_tag() -> Result<NodeTag, String> {
    let Some(given) = std::env::var_os(NODE_VARIABLE) else { return Ok(NodeTag::random()) };
    NodeTag::parse(&given.to_string_lossy()).map_err(|error| {
        format!("{NODE_VARIABLE} is no node tag: {error}\n  set another, or unset it for one made at each start")
    })
}

/// The beginning of a URL at this address; a unix socket has a space before the path, as no URL can say both.
pub fn base_url(bound: &Bound) -> String {
    match bound {
        Bound::Tcp(address) => format!("http://{address}"),
        Bound::Unix(path) => format!("unix:{} ", path.display()),
    }
}

/// A line for each thing that works but deserves one at each start.
pub fn log_warnings(warnings: &[impl AsRef<str>]) {
    for warning in warnings {
        warn!(event = "warning", warning = warning.as_ref());
    }
}

/// One line about what keeps children in bounds here, and why not more does.
pub fn log_bounds(gateway: &Gateway) {
    let Lacks { orphans, group, pids, memory } = gateway.servers().lacks();
    let has = |lacks: bool| if lacks { "no" } else { "yes" };
    info!(
        event = "bounds",
        control_groups = has(group.is_some()),
        pids = has(*pids),
        memory = has(*memory),
        orphans = has(orphans.is_some()),
        reason = group.as_ref().or(orphans.as_ref()),
    );
}

/// Says that the gateway serves, with everything a script needs to know. `config_file` is `None` where flags say it all.
pub fn log_ready(logs: &Logs, config_file: Option<&str>, gateway: &Gateway) {
    let texts = |bound: &[Bound]| -> Vec<String> { bound.iter().map(ToString::to_string).collect() };
    let listen = texts(gateway.addresses());
    let servers: serde_json::Map<String, Value> = gateway
        .endpoints()
        .into_iter()
        .map(|endpoint| {
            let value = json!({
                "url": endpoint.url, "auth": endpoint.auth, "mode": endpoint.mode,
                "max": endpoint.max, "state": "starting",
            });
            (endpoint.name, value)
        })
        .collect();
    let limits = gateway.limits();
    logs.line_json(
        LogLevel::Info,
        "ready",
        &[
            ("version", json!(env!("CARGO_PKG_VERSION"))),
            ("config", json!(config_file)),
            ("listen", json!(listen)),
            ("admin", json!(texts(gateway.admin_addresses()).first())),
            ("node", json!(gateway.node())),
            ("servers", Value::Object(servers)),
            (
                "limits",
                json!({
                    "nofile": limits.nofile, "nproc": limits.nproc, "children_max": limits.children_max,
                    "children_full_pipes": limits.children_full_pipes, "sessions_max": limits.sessions_max,
                }),
            ),
        ],
    );
}
