//! Reading the configuration again while the gateway runs: all of it is taken over, or nothing.
//!
//! The next state is laid out beside the one in effect, from the new configuration alone, and cannot fail by then;
//! taking it over is one piece of work without a wait in it, so that no drain and no second reload comes between.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet, spawn_blocking};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::{error, info, warn};

use crate::budget::Budget;
use crate::config::{Config, Drain, Loaded, Problems};
use crate::gateway::certificates::{Certificates, tell};
use crate::gateway::changes::{KeyChanges, fixed, renew_sessions, tables};
use crate::gateway::keys_file::KeysFile;
use crate::gateway::revocation::Revocation;
use crate::gateway::watched::LOOK;
use crate::gateway::{admin_terms, rules, settings, terms, worded};
use crate::http::AdminDoor;
use crate::net::{Credentials, Terms};
use crate::server::{Plan, Server};
use crate::telemetry::{AccessLog, Metrics};

/// Where a configuration is read from again, and when.
#[derive(Clone)]
pub struct ConfigSource {
    /// What the log calls it.
    pub file: String,
    /// Reads it; may wait for disks.
    pub load: Arc<dyn Fn() -> Result<Loaded, Problems> + Send + Sync>,
    /// Asks for it. Asking again before it was read is asking once.
    pub asked: Arc<Notify>,
}

/// The configuration in effect, and everything that has to know when another one is.
pub(super) struct Reloader {
    config: Config,
    source: Option<ConfigSource>,
    held: Held,
    keys_file: Option<KeysFile>,
    /// When the keys file and the certificates are looked at.
    looks: Interval,
    starts: Starts,
    /// Servers on their way out.
    departures: JoinSet<()>,
}

/// What is told of another configuration.
pub(super) struct Held {
    /// Keys, servers and the door for clients.
    pub(super) revocation: Arc<Revocation>,
    pub(super) admin_door: Arc<AdminDoor>,
    pub(super) budget: Arc<Budget>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: AccessLog,
    /// What clients' connections are held to.
    pub(super) terms: watch::Sender<Terms>,
    /// The same for operators'.
    pub(super) admin_terms: watch::Sender<Terms>,
    /// How many descriptors there are.
    pub(super) descriptors: Option<u64>,
    /// What TLS connections begin with, where there is TLS.
    pub(super) certificates: Option<Certificates>,
}

impl Reloader {
    pub(super) fn new(config: Config, source: Option<ConfigSource>, held: Held) -> Reloader {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let keys_file = KeysFile::new(&config.auth, &held.revocation);
        let mut starts = Starts::default();
        held.revocation.servers.all().iter().for_each(|server| starts.start(server));
        Reloader { config, source, held, keys_file, looks, starts, departures: JoinSet::new() }
    }

    /// `[drain]` in effect.
    pub(super) fn drain_times(&self) -> Drain {
        self.config.drain.clone()
    }

    /// Takes over other configurations and other keys as they come; ends never.
    pub(super) async fn follow(&mut self) {
        loop {
            tokio::select! {
                () = asked(self.source.as_ref()) => self.reload().await,
                _ = self.looks.tick() => self.look_at_files().await,
                Some(ended) = self.starts.running.join_next() => report(ended),
                Some(ended) = self.departures.join_next() => {
                    report(ended);
                    // The paths of the one that left are free.
                    self.lay_out_routes();
                }
            }
        }
    }

    /// Takes over other keys and certificates only; ends never.
    pub(super) async fn follow_keys(&mut self) {
        loop {
            self.looks.tick().await;
            self.look_at_files().await;
        }
    }

    /// Starts nothing and sees nobody off any more. What is still starting gives its child back.
    pub(super) async fn stop(&mut self) {
        self.starts.running.shutdown().await;
        self.departures.shutdown().await;
    }

    async fn look_at_files(&mut self) {
        if let Some(keys_file) = &mut self.keys_file {
            keys_file.look().await;
        }
        if let Some(certificates) = &mut self.held.certificates {
            certificates.look().await;
        }
    }

    async fn reload(&mut self) {
        let Some(ConfigSource { load, .. }) = self.source.clone() else { return };
        let held = self.held.certificates.as_ref().map(Certificates::held);
        let audit = self.held.log.audit().clone();
        let read = move || {
            // Whoever moves that file away tells so by the same signal, whatever is in the configuration.
            audit.reopen();
            load().map(|loaded| {
                let tls = loaded.config.listen.tls.as_ref();
                (tls.map(|tls| Certificates::next(tls, held.as_ref())).transpose(), loaded)
            })
        };
        match spawn_blocking(read).await {
            Ok(Ok((Ok(certificates), loaded))) => self.take(loaded, certificates),
            Ok(Ok((Err(problems), _))) => {
                tell(&problems);
                self.refuse(&worded(&problems));
            }
            Ok(Err(problems)) => self.refuse(&problems),
            Err(failure) => self.refuse(&failure),
        }
    }

    fn refuse(&self, why: &dyn Display) {
        self.held.metrics.config_refused();
        warn!(
            event = "reload_failed", config = self.file(), error = %why,
            warning = "the configuration read before stays in effect"
        );
    }

    fn file(&self) -> &str {
        self.source.as_ref().map_or("", |source| &source.file)
    }

    /// Takes a configuration over, if it can be without a restart.
    fn take(&mut self, loaded: Loaded, credentials: Option<Credentials>) {
        let next = loaded.config;
        let fixed = fixed(&self.config, &next);
        if !fixed.is_empty() {
            let verb = if fixed.len() == 1 { "needs" } else { "need" };
            self.refuse(&format_args!("another {} {verb} a restart", join(&fixed).unwrap_or_default()));
            return;
        }
        let servers = &self.held.revocation.servers;
        let plan = servers.plan(&settings(&next), renew_sessions(&self.config, &next));
        self.put(&plan, &next);
        if let (Some(certificates), Some(tls), Some(credentials)) =
            (&mut self.held.certificates, &next.listen.tls, credentials)
        {
            certificates.replace(tls, credentials);
        }
        self.start_and_see_off(&plan, &next.drain);
        self.held.metrics.config_loaded();
        self.tell(&plan, &next);
        for warning in &loaded.warnings {
            warn!(event = "warning", warning);
        }
        self.config = next;
    }

    /// Puts the next state in the place of the one in effect. Who leaves is told last: by then no new request finds it.
    fn put(&mut self, plan: &Plan, next: &Config) {
        let Held { revocation, admin_door, budget, log, terms: net, admin_terms: admin_net, .. } = &self.held;
        let Revocation { keys, issuers, servers, door } = &**revocation;
        log.loudness().set(&next.telemetry);
        log.secrets().set(next.secrets());
        budget.set_limit(next.limits.memory);
        let replaced = keys.replace(&next.auth);
        issuers.replace(&next.auth);
        servers.adopt(plan, &settings(next));
        door.set_rules(&rules(next, &servers.all(), &servers.roster().leaving()));
        admin_door.set_rules(&next.admin, &next.listen, &next.limits);
        net.send_replace(terms(next, self.held.descriptors));
        admin_net.send_replace(admin_terms(next));
        revocation.end(&replaced);
        plan.renewed.iter().for_each(|(_, server)| revocation.end_untaken(server, &next.auth));
        servers.part_with(plan);
        plan.removed.iter().for_each(|server| door.leave(server.name()));
        plan.locked_out().for_each(|server| door.leave(server.name()));
        self.keys_file = KeysFile::new(&next.auth, revocation);
    }

    fn start_and_see_off(&mut self, plan: &Plan, drain: &Drain) {
        let servers = &self.held.revocation.servers;
        for (old, _) in &plan.changed {
            self.starts.abandon(old);
            let (servers, old) = (Arc::clone(servers), Arc::clone(old));
            self.departures.spawn(async move { servers.see_off_changed(old).await });
        }
        for server in &plan.removed {
            self.starts.abandon(server);
            let (servers, server, calls) = (Arc::clone(servers), Arc::clone(server), drain.calls);
            self.departures.spawn(async move { servers.see_off_removed(server, calls).await });
        }
        plan.fresh().for_each(|server| self.starts.start(server));
    }

    fn tell(&self, plan: &Plan, next: &Config) {
        let names = |servers: &[Arc<Server>]| join(&servers.iter().map(|server| &**server.name()).collect::<Vec<_>>());
        let pairs = |pairs: &[(Arc<Server>, Arc<Server>)]| {
            join(&pairs.iter().map(|(_, new)| &**new.name()).collect::<Vec<_>>())
        };
        let keys = KeyChanges::between(&self.config.auth.keys, &next.auth.keys);
        info!(
            event = "reload",
            config = self.file(),
            added = names(&plan.added),
            changed = pairs(&plan.changed),
            renewed = pairs(&plan.renewed),
            removed = names(&plan.removed),
            tables = join(&tables(&self.config, next)),
            keys_added = join(&keys.added),
            keys_changed = join(&keys.changed),
            keys_removed = join(&keys.removed),
        );
    }

    fn lay_out_routes(&self) {
        let Revocation { servers, door, .. } = &*self.held.revocation;
        door.set_rules(&rules(&self.config, &servers.all(), &servers.roster().leaving()));
    }
}

/// Starts that are under way or done, by server.
#[derive(Default)]
struct Starts {
    running: JoinSet<()>,
    by_server: HashMap<Arc<str>, AbortHandle>,
}

impl Starts {
    fn start(&mut self, server: &Arc<Server>) {
        let start = self.running.spawn(Arc::clone(server).start());
        self.by_server.insert(Arc::clone(server.name()), start);
    }

    fn abandon(&mut self, server: &Server) {
        if let Some(start) = self.by_server.remove(server.name()) {
            start.abort();
        }
    }
}

/// Names in one text; none is no text.
fn join(names: &[&str]) -> Option<String> {
    (!names.is_empty()).then(|| names.join(", "))
}

/// Waits until the configuration is to be read again.
async fn asked(source: Option<&ConfigSource>) {
    match source {
        Some(source) => source.asked.notified().await,
        None => std::future::pending().await,
    }
}

/// A task that panics is reported; what it did not concern goes on. One that was abandoned is no failure.
fn report(ended: Result<(), JoinError>) {
    if let Err(failure) = ended
        && !failure.is_cancelled()
    {
        error!(event = "task_failed", error = %failure);
    }
}
