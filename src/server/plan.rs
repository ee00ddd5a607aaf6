//! From one set of servers to the next: laid out beside the one in effect, then put in its place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::config::{self, ServerAuth};
use crate::server::open::Server;
use crate::server::servers::{Servers, Settings};
use crate::telemetry::label::SessionEnd;

/// How often a server that leaves looks whether the last call of a session has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What the servers will be.
#[derive(Default)]
pub struct Plan {
    /// All of them, in name order. Who did not change is the one that is there.
    pub(super) servers: Vec<Arc<Server>>,
    /// New names.
    pub added: Vec<Arc<Server>>,
    /// What comes in the place of a server whose table changed: old and new.
    pub changed: Vec<(Arc<Server>, Arc<Server>)>,
    /// What comes in the place of a server that only asks other things of callers: old and new, with the same children.
    pub renewed: Vec<(Arc<Server>, Arc<Server>)>,
    /// Names that are gone.
    pub removed: Vec<Arc<Server>>,
}

impl Plan {
    /// The servers that have to be started.
    pub fn fresh(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.added.iter().chain(self.changed.iter().map(|(_, new)| new))
    }

    /// The servers whose callers have to prove who they are in another way than before: what they have open could not be
    /// found again.
    pub fn locked_out(&self) -> impl Iterator<Item = &Arc<Server>> {
        let is_other = |(old, new): &&(Arc<Server>, Arc<Server>)| !old.config().auth.proves_alike(&new.config().auth);
        self.changed.iter().filter(is_other).map(|(_, new)| new)
    }

    /// The servers that take no new session any more.
    pub fn left(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.removed.iter().chain(self.changed.iter().map(|(old, _)| old))
    }
}

impl Servers {
    /// Lays out what the servers will be; nothing is started, stopped or changed. `renew` says that settings which
    /// all sessions share are other ones: servers that did not change themselves keep their children then, and open
    /// new sessions under the new settings.
    #[must_use]
    pub fn plan(&self, settings: &Settings<'_>, renew: bool) -> Plan {
        let mut plan = Plan::default();
        let current = self.all();
        for (name, config) in settings.servers {
            let parts = || self.server_parts(settings, name, config);
            let server = match current.iter().find(|server| server.name() == name) {
                None => {
                    let new = Server::new(parts());
                    plan.added.push(Arc::clone(&new));
                    new
                }
                Some(old) if wants_other_children(old.config(), config) => {
                    let new = old.successor(parts());
                    plan.changed.push((Arc::clone(old), Arc::clone(&new)));
                    new
                }
                Some(old) if renew || old.config() != &**config => {
                    let new = old.renewed(parts());
                    if has_other_rules(old.config(), config) {
                        plan.renewed.push((Arc::clone(old), Arc::clone(&new)));
                    }
                    new
                }
                Some(old) => Arc::clone(old),
            };
            plan.servers.push(server);
        }
        let is_gone = |server: &&Arc<Server>| !settings.servers.contains_key(server.name());
        plan.removed.extend(current.iter().filter(is_gone).cloned());
        plan
    }

    /// Puts a plan into effect for whoever asks from now on which servers there are. Those that leave still have to
    /// be told, by [`Servers::part_with`], once no new request finds them.
    pub fn adopt(&self, plan: &Plan, settings: &Settings<'_>) {
        self.apply(settings);
        self.roster().replace(&plan.servers, plan.left().cloned());
    }

    /// Ends the work of those that leave, as far as it must end now: spares stop, and no new child is started. Of a
    /// server that is gone new calls are refused too; sessions of one whose callers must prove who they are in
    /// another way could not be found again, and end.
    pub fn part_with(&self, plan: &Plan) {
        for (old, new) in &plan.changed {
            old.supersede();
            new.metrics().breaker(0);
        }
        for server in plan.locked_out() {
            self.registry().end_of_server(server.name(), SessionEnd::Admin);
        }
        for server in &plan.removed {
            server.drain();
            server.metrics().breaker(0);
        }
    }

    /// Waits until a server whose table changed has no children left: each goes with its session.
    pub async fn see_off_changed(&self, server: Arc<Server>) {
        server.deserted().await;
        self.roster().forget(&server);
    }

    /// Ends the sessions of a server that is gone, each as soon as none of its calls is in flight, all of them after
    /// `calls`; then waits until it has no children left.
    pub async fn see_off_removed(&self, server: Arc<Server>, calls: Duration) {
        // Those there are: a server of the same name may come again, with sessions of its own.
        let mut sessions = self.registry().of_server(server.name());
        let deadline = Instant::now() + calls;
        loop {
            let is_over = Instant::now() >= deadline;
            sessions.retain(|session| {
                let ends = is_over || session.calls_in_flight() == 0;
                if ends {
                    self.registry().end(session, SessionEnd::Drain);
                }
                !ends
            });
            if sessions.is_empty() {
                break;
            }
            sleep(LOOK).await;
        }
        server.close().await;
        self.roster().forget(&server);
    }
}

/// Whether something else is asked of callers, or they may do something else of what a child offers.
pub(super) fn has_other_rules(old: &config::Server, new: &config::Server) -> bool {
    old.tools != new.tools || old.auth != new.auth
}

/// Whether children of one table cannot serve for the other. Only readiness asks for `required`, and what `auto`
/// means depends on how many servers there are. What callers may do of what a child offers is none of its business.
fn wants_other_children(old: &config::Server, new: &config::Server) -> bool {
    let ServerAuth { scope_rules, issuers, .. } = new.auth.clone();
    let auth = ServerAuth { scope_rules, issuers, ..old.auth.clone() };
    config::Server { required: new.required, tools: new.tools.clone(), auth, ..old.clone() } != *new
}
