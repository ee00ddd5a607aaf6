//! What one configuration says about requests: replaced as a whole, so that a request is judged by one of them
//! from its beginning to its end.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use crate::auth::{Requirements, Resource, ResourceParts, WELL_KNOWN};
use crate::budget::Budget;
use crate::caller::Peer;
use crate::config;
use crate::http::access::Access;
use crate::http::forwarded::Proxies;
use crate::http::guard::Guard;
use crate::http::quota::{Over, Quotas};
use crate::http::read::Bounds;
use crate::server::Server;
use crate::telemetry::label::Route;

/// What rules are made of.
pub struct RulesParts<'a> {
    /// `[listen]`
    pub listen: &'a config::Listen,
    /// `[limits]`
    pub limits: &'a config::Limits,
    /// `[streams]`
    pub streams: &'a config::Streams,
    /// Every server.
    pub servers: &'a [Arc<Server>],
    /// Servers of configurations before, which still have sessions.
    pub leaving: &'a [Arc<Server>],
    /// Sessions of one verified caller, unless its key says otherwise.
    pub cap: Option<usize>,
    /// Every issuer of access tokens.
    pub issuers: &'a BTreeMap<Arc<str>, Arc<config::Issuer>>,
}

/// What is served at one path.
pub(super) struct Endpoint {
    pub(super) server: Arc<Server>,
    pub(super) route: Route,
    /// The path without the public prefix, for the page.
    pub(super) path: Arc<str>,
    /// It is there only for sessions that are open.
    pub(super) leaving: bool,
    /// Who may come in.
    pub(super) policy: Arc<config::ServerAuth>,
    pub(super) access: Access,
}

/// The rules.
pub(super) struct Rules {
    pub(super) guard: Guard,
    pub(super) prefix: String,
    pub(super) listen: config::Listen,
    pub(super) proxies: Proxies,
    pub(super) cap: Option<usize>,
    pub(super) bounds: Bounds,
    pub(super) quotas: Quotas,
    pub(super) streams: config::Streams,
    endpoints: HashMap<String, Endpoint>,
    /// Protected resource metadata, by path.
    metadata: HashMap<String, Bytes>,
    servers: Vec<Arc<Server>>,
}

impl Rules {
    /// Lays out every route. Rates go on from those of `before`.
    pub(super) fn new(parts: &RulesParts<'_>, budget: Arc<Budget>, before: Option<&Rules>) -> Arc<Rules> {
        let RulesParts { listen, limits, streams, servers, leaving, cap, issuers } = parts;
        let mut rules = Rules {
            guard: Guard::new(listen, limits.header_fields),
            prefix: listen.public_url.as_ref().map(|url| url.path.clone()).unwrap_or_default(),
            proxies: Proxies::new(listen.trusted_proxies.clone()),
            listen: (*listen).clone(),
            cap: *cap,
            bounds: Bounds { bytes: limits.body_bytes, idle: limits.body_idle, budget },
            quotas: Quotas::new(limits, before.map(|before| &before.quotas)),
            streams: (*streams).clone(),
            endpoints: HashMap::new(),
            metadata: HashMap::new(),
            servers: servers.to_vec(),
        };
        servers.iter().for_each(|server| rules.lay_out(server.config(), server, issuers, false));
        rules.lay_out_root();
        for left in *leaving {
            // Its open sessions are found by its name, so that whoever has the name now answers for them too.
            let server = rules.server(left.name()).unwrap_or(left).clone();
            rules.lay_out(left.config(), &server, issuers, true);
        }
        Arc::new(rules)
    }

    /// Serves the paths of `config` by `server`, as far as they are free.
    fn lay_out(
        &mut self,
        config: &config::Server,
        server: &Arc<Server>,
        issuers: &BTreeMap<Arc<str>, Arc<config::Issuer>>,
        leaving: bool,
    ) {
        // By the table of the server that answers, but for tokens of the paths that clients know.
        let public_url = self.listen.public_url.as_ref();
        let policy =
            public_url.map_or_else(|| server.config().auth.clone(), |url| server.config().auth_at(url, config));
        let policy = Arc::new(policy);
        let requirements = Arc::new(Requirements::new(&policy.scope_rules));
        let tools = Arc::new(server.config().tools.clone());
        let mut serve = |path: &str, route, resource: &str| {
            let parts = ResourceParts { name: server.name(), resource, auth: &policy, issuers };
            let resource = Resource::new(&parts);
            if let Some(metadata) = resource.metadata() {
                self.metadata.entry(metadata.path.clone()).or_insert_with(|| metadata.document.clone());
            }
            let access = Access::new(resource, &requirements, &tools);
            let (server, policy) = (Arc::clone(server), Arc::clone(&policy));
            let endpoint = || Endpoint { server, route, path: path.into(), leaving, policy, access };
            self.endpoints.entry(format!("{}{path}", self.prefix)).or_insert_with(endpoint);
        };
        serve(&config.path, Route::Mcp, &policy.resource);
        if config.legacy_sse {
            // Clients of HTTP+SSE know the URL of the stream, and are told where to post.
            serve(&config.sse_path(), Route::Sse, &policy.sse_resource);
            serve(&config.messages_path(), Route::Messages, &policy.sse_resource);
        }
    }

    /// Serves the metadata of the only resource there is at the well-known path itself too, where clients look that found
    /// none for the path they know. With several it would be true of one of them at most.
    fn lay_out_root(&mut self) {
        let main = self.endpoints.values().filter(|endpoint| endpoint.route == Route::Mcp);
        let mut documents = main.filter_map(|endpoint| endpoint.access.metadata());
        if let (Some(metadata), None) = (documents.next(), documents.next()) {
            self.metadata.insert(WELL_KNOWN.to_owned(), metadata.document.clone());
        }
    }

    /// The protected resource metadata that is served at this path.
    pub(super) fn metadata(&self, path: &str) -> Option<&Bytes> {
        if !path.starts_with(WELL_KNOWN) {
            return None;
        }
        self.metadata.get(path).or_else(|| self.metadata.get(path.strip_suffix('/')?))
    }

    /// `/x` and `/x/` are the same; nothing else is folded, and nothing is redirected, since a
    /// redirect loses the body or the credentials.
    pub(super) fn find(&self, path: &str) -> Option<&Endpoint> {
        self.endpoints.get(path).or_else(|| self.endpoints.get(path.strip_suffix('/')?))
    }

    /// The server of this name.
    pub(super) fn server(&self, name: &str) -> Option<&Arc<Server>> {
        self.servers.iter().find(|server| &**server.name() == name)
    }

    /// Counts a request of this client. Our own proxies are not clients: what they say counts for whom they name.
    pub(super) fn count_address(&self, client: Peer) -> Result<(), Over> {
        let is_exempt = !self.quotas.has_address() || self.proxies.is_ours(client);
        if is_exempt { Ok(()) } else { self.quotas.count_address(client) }
    }

    /// Counts a credential that was none.
    pub(super) fn count_guess(&self, client: Peer) {
        if !self.proxies.is_ours(client) {
            self.quotas.count_guess(client);
        }
    }

    /// A path without the public prefix.
    pub(super) fn own<'p>(&self, path: &'p str) -> &'p str {
        path.strip_prefix(&self.prefix).unwrap_or(path)
    }

    /// The route of a path no server answers at.
    pub(super) fn health_route(&self, path: &str) -> Route {
        if self.listen.health && matches!(self.own(path), "/livez" | "/readyz") { Route::Health } else { Route::Other }
    }
}
