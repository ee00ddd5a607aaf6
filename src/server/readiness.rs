//! Whether the whole gateway is ready, in one word.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::budget::{Budget, Step};
use crate::config::Required;
use crate::server::open::Server;
use crate::server::roster::Roster;
use crate::server::status::Health;

/// What readiness depends on. Listeners are bound before anybody can ask.
pub struct Readiness {
    roster: Arc<Roster>,
    budget: Arc<Budget>,
    draining: AtomicBool,
    prerequisite: OnceLock<Box<dyn Prerequisite>>,
}

/// Something outside of the servers without which none of them should be sent requests.
pub trait Prerequisite: Send + Sync {
    /// What is missing, in one word.
    ///
    /// # Errors
    /// The word.
    fn check(&self) -> Result<(), &'static str>;

    /// A line for each thing that is missing.
    fn describe(&self) -> String;
}

impl Readiness {
    /// Looks at these servers and this budget.
    #[must_use]
    pub fn new(roster: Arc<Roster>, budget: Arc<Budget>) -> Arc<Readiness> {
        Arc::new(Readiness { roster, budget, draining: AtomicBool::new(false), prerequisite: OnceLock::new() })
    }

    /// From now on also unready while this is not met; the first one given stays.
    pub fn require(&self, prerequisite: Box<dyn Prerequisite>) {
        let _given = self.prerequisite.set(prerequisite);
    }

    /// From now on unready, so that load balancers look elsewhere.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether it is draining.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether requests should be sent here.
    ///
    /// # Errors
    /// The reason, in one word.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.is_draining() {
            return Err("draining");
        }
        // From here on nothing new is served; while only sessions are refused, those that live need their way here.
        if self.budget.step() >= Step::Calls {
            return Err("memory");
        }
        if let Some(prerequisite) = self.prerequisite.get() {
            prerequisite.check()?;
        }
        let servers = self.roster.current();
        let mut required = servers.iter().filter(|server| server.config().required == Required::Yes);
        required.try_for_each(|server| check_server(server))
    }

    /// The same for one server; `None` if there is no such server.
    #[must_use]
    pub fn check_one(&self, name: &str) -> Option<Result<(), &'static str>> {
        let servers = self.roster.current();
        let server = servers.iter().find(|server| &**server.name() == name)?;
        Some(if self.is_draining() { Err("draining") } else { check_server(server) })
    }

    /// A line per server: name, state, seconds since, reason.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for server in &*self.roster.current() {
            let status = server.status().borrow().clone();
            let (state, reason) = match &status.health {
                _ if server.breaker_is_open() => ("breaker_open", String::new()),
                Health::Starting => ("starting", String::new()),
                Health::Ready => ("ready", String::new()),
                Health::Failed(failure) => ("failed", failure.to_string()),
            };
            let since = status.since.elapsed().as_secs();
            let line = format!("{} {state} {since}s {}", server.name(), reason.escape_default());
            text.push_str(line.trim_end());
            text.push('\n');
        }
        if let Some(prerequisite) = self.prerequisite.get() {
            text.push_str(&prerequisite.describe());
        }
        text
    }
}

fn check_server(server: &Server) -> Result<(), &'static str> {
    if server.breaker_is_open() {
        return Err("breaker");
    }
    match server.status().borrow().health {
        Health::Ready => Ok(()),
        Health::Starting => Err("starting"),
        Health::Failed(_) => Err("failed"),
    }
}
