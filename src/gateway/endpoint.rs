//! What is served where: for start-up output.

use crate::config::Config;
use crate::gateway::Gateway;
use crate::net::Bound;

/// One server as its clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its name.
    pub name: String,
    /// What clients type.
    pub url: String,
    /// The names of its methods.
    pub auth: String,
    /// `session`, `shared` or `principal`.
    pub mode: &'static str,
    /// Children at most; `None` is no limit.
    pub max: Option<usize>,
}

impl Gateway {
    /// Every endpoint, in name order.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let base = base_url(&self.config, self.addresses());
        let endpoint = |(name, server): (&std::sync::Arc<str>, &std::sync::Arc<crate::config::Server>)| Endpoint {
            name: name.to_string(),
            url: format!("{base}{}", server.path),
            auth: server.auth.names(),
            mode: server.mode.name(),
            max: server.pool.max_size,
        };
        self.config.servers.iter().map(endpoint).collect()
    }
}

/// What clients put before a path: the public URL, else the first bound address.
fn base_url(config: &Config, bound: &[Bound]) -> String {
    if let Some(url) = &config.listen.public_url {
        return url.to_string();
    }
    let scheme = config.listen.scheme();
    match bound.first() {
        Some(Bound::Tcp(address)) if address.ip().is_unspecified() => {
            format!("{scheme}://localhost:{}", address.port())
        }
        Some(address @ Bound::Tcp(_)) => format!("{scheme}://{address}"),
        // With a space before the path, as no URL can say both.
        Some(Bound::Unix(path)) => format!("unix:{} ", path.display()),
        None => String::new(),
    }
}
