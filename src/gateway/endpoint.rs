//! What is served where, and how much this machine allows: for start-up output.

use crate::config::{Config, Method};
use crate::gateway::Gateway;
use crate::net::Bound;

/// One server as its clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its name.
    pub name: String,
    /// What clients type.
    pub url: String,
    /// `api_key` or `none`.
    pub auth: &'static str,
    /// `session`
    pub mode: &'static str,
    /// Children at most; `None` is no limit.
    pub max: Option<usize>,
}

/// What the machine's limits allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineLimits {
    /// Descriptors; `None` is no limit.
    pub nofile: Option<u64>,
    /// Children that can run at once.
    pub children_max: Option<u64>,
    /// Sessions that can be open at once, each with a stream.
    pub sessions_max: Option<u64>,
}

/// Descriptors one child takes: three pipes and its process.
const PER_CHILD: u64 = 4;

/// Descriptors kept for listeners, the runtime and the log.
const RESERVED: u64 = 64;

impl Gateway {
    /// Every endpoint, in name order.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let base = base_url(&self.config, self.addresses());
        let endpoint = |(name, server): (&std::sync::Arc<str>, &std::sync::Arc<crate::config::Server>)| Endpoint {
            name: name.to_string(),
            url: format!("{base}{}", server.path),
            auth: if server.auth.methods.contains(&Method::ApiKey) { "api_key" } else { "none" },
            mode: server.mode.name(),
            max: server.pool.max_size,
        };
        self.config.servers.iter().map(endpoint).collect()
    }

    /// What the descriptor limit allows, by the configured caps.
    #[must_use]
    pub fn limits(&self) -> MachineLimits {
        let nofile = self.descriptors;
        let room = nofile.map(|limit| limit.saturating_sub(RESERVED));
        let configured = self.config.servers.values().map(|server| server.pool.max_size.map(|max| max as u64));
        let wanted: Option<u64> = configured.sum();
        let children_max = least(wanted, room.map(|room| room / PER_CHILD));
        // In session mode each session has a child, and a connection for its stream.
        let sessions = least(self.config.sessions.max.map(|max| max as u64), children_max);
        let sessions_max = least(sessions, room.map(|room| room / (PER_CHILD + 1)));
        MachineLimits { nofile, children_max, sessions_max }
    }

    /// What works but deserves a line at each start.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let wants_scope = self.config.servers.values().any(|server| server.sandbox_scope);
        let no_scope = wants_scope && !self.servers.scope_supported();
        no_scope
            .then_some("this kernel has no Landlock scopes: servers of the same user can read each other's environment in /proc")
            .into_iter()
    }
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// What clients put before a path: the public URL, else the first bound address.
fn base_url(config: &Config, bound: &[Bound]) -> String {
    if let Some(url) = &config.listen.public_url {
        return url.to_string();
    }
    match bound.first() {
        Some(Bound::Tcp(address)) if address.ip().is_unspecified() => format!("http://localhost:{}", address.port()),
        Some(address @ Bound::Tcp(_)) => format!("http://{address}"),
        // With a space before the path, as no URL can say both.
        Some(Bound::Unix(path)) => format!("unix:{} ", path.display()),
        None => String::new(),
    }
}
