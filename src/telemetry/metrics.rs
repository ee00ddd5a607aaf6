//! The numbers of the whole gateway, and the scrape.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

use super::access::AccessLog;
use super::child_processes::ChildProcesses;
use super::families::{Families, options};
use super::label::{Accepted, AuthMethod, AuthResult, Eviction, Label, Refresh, Refusal, Route};
use super::process::ProcessCollector;
use super::series::{Unit, empty};
use super::server_metrics::ServerMetrics;
use super::tool_metrics::{ToolBudget, Tools};
use crate::config;
use crate::unix_time;

/// What a build without this variable reports as its revision.
const UNKNOWN_REVISION: &str = "unknown";

/// The statuses the gateway's own routes answer with. Others work too, at the price of a look-up.
const STATUSES: [u16; 20] =
    [200, 202, 204, 304, 400, 401, 403, 404, 405, 406, 408, 413, 415, 421, 429, 431, 500, 502, 503, 504];

/// Every metric of one gateway.
pub struct Metrics {
    registry: Registry,
    families: Families,
    /// Per route, one cell per entry of [`STATUSES`].
    responses: Box<[OnceLock<IntCounter>]>,
    /// Per method, one cell per result.
    auth_checks: Box<[OnceLock<IntCounter>]>,
    /// Taken when a server is built, never on a call.
    servers: Mutex<HashMap<Arc<str>, Arc<ServerMetrics>>>,
    tool_budget: Arc<ToolBudget>,
    child_processes: Arc<ChildProcesses>,
    /// When the keys of each issuer were fetched.
    keys_loaded: Mutex<HashMap<Arc<str>, Instant>>,
    losses: Mutex<Losses>,
}

/// What logs lost, as far as it was counted here.
#[derive(Default)]
struct Losses {
    log: Option<AccessLog>,
    lines: u64,
    entries: u64,
}

/// A connection counted in `connections` until this is dropped.
#[must_use = "dropping this at once closes the connection"]
pub struct ConnectionGauge(#[allow(dead_code, reason = "held for its drop")] Unit);

impl Metrics {
    /// Registers every family and the process collector. Nothing is global: two of these are two
    /// separate sets of numbers.
    #[must_use]
    pub fn new(config: &config::Metrics) -> Arc<Self> {
        let registry = Registry::new();
        let families = Families::register(&registry);
        register_build_info(&registry);
        registry.register(Box::new(ProcessCollector::new())).expect("no other collector uses the prefix process_");
        let names = if config.tools { config.max_tools } else { 0 };
        let child_processes = ChildProcesses::new(&families);
        Arc::new(Metrics {
            registry,
            families,
            responses: empty(Route::COUNT * STATUSES.len()),
            auth_checks: empty(AuthMethod::COUNT * AuthResult::COUNT),
            servers: Mutex::default(),
            tool_budget: Arc::new(ToolBudget::new(names)),
            child_processes,
            keys_loaded: Mutex::default(),
            losses: Mutex::default(),
        })
    }

    /// The numbers of the server with this name; the same for every call with the same name.
    #[must_use]
    pub fn server(&self, name: &str) -> Arc<ServerMetrics> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = servers.get(name) {
            return Arc::clone(server);
        }
        let name: Arc<str> = name.into();
        let tools = Tools::register(&self.registry, &name, Arc::clone(&self.tool_budget));
        let server = Arc::new(ServerMetrics::new(&self.families, &name, tools, Arc::clone(&self.child_processes)));
        servers.insert(name, Arc::clone(&server));
        server
    }

    /// A response left with this status.
    pub fn http_response(&self, route: Route, status: u16) {
        let vector: &IntCounterVec = &self.families.http_responses_total;
        let count = |status: u16| vector.with_label_values(&[route.as_str(), &status.to_string()]);
        match STATUSES.iter().position(|known| *known == status) {
            Some(place) => {
                self.responses[route.index() * STATUSES.len() + place].get_or_init(|| count(status)).inc();
            }
            None => count(status).inc(),
        }
    }

    /// A request was refused before it reached a server.
    pub fn refused_unrouted(&self, reason: Refusal) {
        self.families.refusals_total.with_label_values(&["", reason.as_str()]).inc();
    }

    /// A connection opened on the listener with this name.
    pub fn connection_opened(&self, listener: &str) -> ConnectionGauge {
        ConnectionGauge(Unit::on(&self.families.connections.with_label_values(&[listener])))
    }

    /// A connection arrived and was let in or turned away.
    pub fn accepted(&self, listener: &str, result: Accepted) {
        self.families.connections_total.with_label_values(&[listener, result.as_str()]).inc();
    }

    /// `accept` failed with the error of this name, such as `EMFILE`.
    pub fn accept_error(&self, errno: &str) {
        self.families.accept_errors_total.with_label_values(&[errno]).inc();
    }

    /// What is kept for resuming streams grew by so much (or, below zero, shrank).
    pub fn replay(&self, bytes_delta: i64, events_delta: i64) {
        self.families.replay_bytes.add(bytes_delta);
        self.families.replay_events.add(events_delta);
    }

    /// So many events are no longer kept.
    pub fn replay_evicted(&self, reason: Eviction, events: u64) {
        self.families.replay_evictions_total.with_label_values(&[reason.as_str()]).inc_by(events);
    }

    /// These are the certificates in effect, each with its end in seconds since the Unix epoch. Of several with one
    /// name the first end counts.
    pub fn certificates<'a>(&self, ends: impl IntoIterator<Item = (&'a str, u64)>) {
        let mut first: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, end) in ends {
            first.entry(name).and_modify(|known| *known = end.min(*known)).or_insert(end);
        }
        let gauges = &self.families.tls_certificate_expiry_timestamp_seconds;
        gauges.reset();
        for (name, end) in first {
            gauges.with_label_values(&[name]).set(i64::try_from(end).unwrap_or(i64::MAX));
        }
    }

    /// Bytes taken from the memory budget.
    pub fn memory_used(&self, bytes: u64) {
        set_bytes(&self.families.memory_used_bytes, bytes);
    }

    /// Bytes of the memory budget.
    pub fn memory_budget(&self, bytes: u64) {
        set_bytes(&self.families.memory_budget_bytes, bytes);
    }

    /// What is done about the memory budget: 0 nothing to 4.
    pub fn overload_state(&self, step: u8) {
        self.families.overload_state.set(step.into());
    }

    /// The configuration was read and is in effect, now.
    pub fn config_loaded(&self) {
        let now = unix_time::seconds();
        self.families.config_last_reload_successful.set(1);
        self.families.config_last_reload_success_timestamp_seconds.set(i64::try_from(now).unwrap_or(i64::MAX));
    }

    /// A configuration was read and refused; what was in effect still is.
    pub fn config_refused(&self) {
        self.families.config_last_reload_successful.set(0);
    }

    /// Credentials were checked in this way.
    pub fn auth_check(&self, method: AuthMethod, result: AuthResult) {
        let count = || self.families.auth_checks_total.with_label_values(&[method.as_str(), result.as_str()]);
        self.auth_checks[method.index() * AuthResult::COUNT + result.index()].get_or_init(count).inc();
    }

    /// An attempt to fetch the keys of the issuer with this name has ended.
    pub fn keys_refreshed(&self, issuer: &str, result: Refresh) {
        self.families.jwks_refreshes_total.with_label_values(&[issuer, result.as_str()]).inc();
    }

    /// The keys of the issuer with this name were fetched, now.
    pub fn keys_loaded(&self, issuer: &Arc<str>) {
        let mut loaded = self.keys_loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.insert(Arc::clone(issuer), Instant::now());
    }

    /// There is no issuer with this name any more.
    pub fn issuer_gone(&self, issuer: &str) {
        self.keys_loaded.lock().unwrap_or_else(PoisonError::into_inner).remove(issuer);
        // It has no series if its keys were never shown.
        let _ = self.families.jwks_age_seconds.remove_label_values(&[issuer]);
    }

    fn show_ages_of_keys(&self) {
        for (issuer, loaded) in &*self.keys_loaded.lock().unwrap_or_else(PoisonError::into_inner) {
            let age = i64::try_from(loaded.elapsed().as_secs()).unwrap_or(i64::MAX);
            self.families.jwks_age_seconds.with_label_values(&[&**issuer]).set(age);
        }
    }

    /// Measures the processes of children, unless that was done less than 5 s before `now`. Reads files of every
    /// process of the machine, so it is not for a thread that serves others.
    pub fn measure_children(&self, now: Instant) {
        self.child_processes.measure(now);
    }

    /// Counts what this log, and the audit log beside it, lose.
    pub fn count_losses_of(&self, log: &AccessLog) {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).log = Some(log.clone());
    }

    fn count_losses(&self) {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((lines, entries)) = losses.log.as_ref().map(|log| (log.dropped(), log.audit().dropped())) else {
            return;
        };
        let Families { log_dropped_total, audit_dropped_total, .. } = &self.families;
        log_dropped_total.with_label_values::<&str>(&[]).inc_by(lines - losses.lines);
        audit_dropped_total.with_label_values::<&str>(&[]).inc_by(entries - losses.entries);
        (losses.lines, losses.entries) = (lines, entries);
    }

    /// Every series in the Prometheus text format, version 0.0.4.
    #[must_use]
    pub fn gather(&self) -> String {
        self.child_processes.show();
        self.show_ages_of_keys();
        self.count_losses();
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .expect("only counters, gauges and histograms with names and series are gathered")
    }
}

fn set_bytes(gauge: &IntGauge, bytes: u64) {
    gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
}

fn register_build_info(registry: &Registry) {
    let options: Opts = options("build_info", "Always 1; the labels say what runs.")
        .const_label("version", env!("CARGO_PKG_VERSION"))
        .const_label("revision", option_env!("GANGWAY_REVISION").unwrap_or(UNKNOWN_REVISION));
    let info = IntGauge::with_opts(options).expect("name and labels are literals, each well-formed");
    info.set(1);
    registry.register(Box::new(info)).expect("no family is called build_info");
}

#[cfg(test)]
#[path = "metrics_test.rs"]
mod tests;
