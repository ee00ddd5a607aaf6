//! Who may come in: decides each server's methods from everything that bears on it, refuses what would be open by
//! mistake, and warns of what is open on purpose.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::auth;
use super::document::Place;
use super::issuer::Tokens;
use super::meaning::{Admin, ClientAuth, Listen, Method, Mode, Server};
use super::pinned;
use super::report::Report;
use super::server::Said;
use super::suggest;
use crate::telemetry::label;
use crate::unix_time;

const KEY_REMEDY: &str = "`gangway key new NAME` makes one and prints the table to paste";

/// What decides how open the gateway is.
pub(super) struct Doors<'a> {
    pub(super) report: &'a Report<'a>,
    pub(super) listen: &'a Listen,
    /// Where `listen.address` stands, or would.
    pub(super) listen_place: Option<Place>,
    /// Something unusable stands at `listen.public_url`: that is a problem of its own.
    pub(super) public_url_refused: bool,
    pub(super) admin: &'a Admin,
    pub(super) auth: &'a auth::Said,
}

impl Doors<'_> {
    /// Fills in the methods of every server. A server whose methods cannot be decided keeps none and has a problem.
    pub(super) fn resolve(&self, servers: &mut BTreeMap<Arc<str>, Said>) {
        let inherited = servers.values().any(|said| said.methods.is_none()).then(|| self.inherited()).flatten();
        for (name, said) in servers.iter_mut() {
            let asked_at = said.scope_rules.place.take().or_else(|| self.auth.scopes_place.clone());
            said.server.auth.scope_rules = std::mem::take(&mut said.scope_rules).over(&self.auth.scope_rules);
            if let Some(methods) = said.methods.clone().or_else(|| inherited.clone()) {
                self.judge(name, said, &methods, asked_at.as_ref());
                self.check_issuers(said);
                said.server.auth.methods = methods;
                if said.server.auth.methods.contains(&Method::Oauth) {
                    self.take_issuers(name, said);
                }
            }
        }
        self.check_openings(servers);
        self.warn(servers);
    }

    /// Whether a listener can be reached from other machines.
    fn is_open(&self) -> bool {
        self.listen.address.iter().any(|address| !address.is_loopback())
    }

    /// Whether clients elsewhere are told to come.
    fn is_public(&self) -> bool {
        self.listen.public_url.as_ref().is_some_and(|url| !url.is_loopback())
    }

    fn asks_for_certificates(&self) -> bool {
        self.listen.tls.as_ref().is_some_and(|tls| tls.client_auth != ClientAuth::Off)
    }

    /// Refuses issuers that there are not.
    fn check_issuers(&self, said: &Said) {
        let known = &self.auth.auth.issuers;
        for (place, name) in said.issuers.iter().flatten().filter(|(_, name)| !known.contains_key(name)) {
            let remedy = match suggest::nearest(name, known.keys().map(AsRef::as_ref)) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("write [auth.issuers.{}]", name.escape_debug()),
            };
            let message = format!("there is no issuer `{}`", name.escape_debug());
            self.report.problem(Some(place), message, remedy);
        }
    }

    /// Fills in what tokens must be issued for at a server, and by whom.
    fn take_issuers(&self, name: &str, said: &mut Said) {
        let known = &self.auth.auth.issuers;
        let named = said.issuers.as_ref().map(|named| named.iter().map(|(_, name)| Arc::clone(name)).collect());
        said.server.auth.issuers = named.unwrap_or_else(|| known.keys().cloned().collect());
        self.check_tables(name, said);
        let Some(url) = &self.listen.public_url else { return };
        said.server.auth = said.server.auth_at(url, &said.server);
    }

    /// Refuses a server that takes one issuer by two tables: a token says only whose it is, not by which table.
    fn check_tables(&self, name: &str, said: &Said) {
        let known = &self.auth.auth.issuers;
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        let taken = said.server.auth.issuers.iter().filter_map(|table| known.get_key_value(table));
        for (table, issuer) in taken {
            let Some(other) = seen.insert(&issuer.issuer, table).filter(|other| *other != &**table) else { continue };
            let place = said.issuers.iter().flatten().next().map(|(place, _)| place).or(said.places.auth.as_ref());
            let message =
                format!("the server `{name}` takes the issuers `{other}` and `{table}`, which are one issuer");
            let remedy = format!("name the one of its own: auth.issuers = [\"{table}\"]");
            self.report.problem(place, message, remedy);
        }
    }

    fn has_keys(&self) -> bool {
        self.auth.has_keys
    }

    /// The methods of a server that has none of its own. Saying nothing lets everybody in only where "everybody" is
    /// this machine and no key shows that something else was meant.
    fn inherited(&self) -> Option<Vec<Method>> {
        if self.auth.methods_refused {
            return None;
        }
        if !self.auth.methods.is_empty() {
            return Some(self.auth.methods.clone());
        }
        let reason = if self.is_open() {
            "`listen.address` is open to other machines"
        } else if self.is_public() {
            "`listen.public_url` is for other machines"
        } else if self.has_keys() {
            "keys are configured"
        } else if self.auth.has_issuers {
            "issuers are configured"
        } else {
            return Some(vec![Method::None]);
        };
        let place = self.auth.place.as_ref().or(self.listen_place.as_ref());
        let method = if self.auth.has_issuers { "oauth" } else { "api_key" };
        let mut remedy = format!("write [auth] methods = [\"{method}\"]; [\"none\"] lets everybody in");
        if !self.has_keys() && !self.auth.has_issuers {
            remedy.push_str("; ");
            remedy.push_str(KEY_REMEDY);
        }
        self.report.problem(place, format!("{reason}, but `auth.methods` does not say who may come in"), remedy);
        None
    }

    /// Refuses methods that let nobody in, or everybody where an id in a URL would be all that protects a session.
    ///
    /// `asked_at` is where something asks for scopes.
    fn judge(&self, name: &str, said: &Said, methods: &[Method], asked_at: Option<&Place>) {
        let place = if said.methods.is_some() { said.places.auth.as_ref() } else { self.auth.place.as_ref() };
        if methods.contains(&Method::ApiKey) && !self.has_keys() {
            self.report.problem(place, "`methods` asks for an API key, but no key is configured", KEY_REMEDY);
        }
        if methods.contains(&Method::Mtls) && !self.asks_for_certificates() {
            let remedy = "write listen.tls with client_ca, and client_auth = \"optional\" or \"required\"";
            let message = "`methods` has \"mtls\", but clients are asked for no certificate";
            self.report.problem(place, message, remedy);
        }
        if methods.contains(&Method::Oauth) {
            self.judge_oauth(place);
        }
        if methods.contains(&Method::None) && !said.server.auth.scope_rules.is_empty() {
            let message = format!("the server `{name}` lets everybody in, but asks for scopes, which nobody there has");
            let remedy = "write methods = [\"oauth\"] or [\"api_key\"], or leave out what asks for scopes";
            self.report.problem(asked_at, message, remedy);
        }
        if methods.contains(&Method::None) && said.server.legacy_sse && self.is_open() {
            let message = format!("the server `{name}` would serve HTTP+SSE of 2024-11-05 to everybody");
            let remedy =
                "its session id stands in a URL: ask for an API key, listen on localhost, or switch `legacy_sse` off";
            self.report.problem(said.places.legacy_sse.as_ref(), message, remedy);
        }
    }

    /// Refuses `oauth` where no token could ever count.
    fn judge_oauth(&self, place: Option<&Place>) {
        if !self.auth.has_issuers {
            let remedy = "write [auth.issuers.NAME] with the `issuer` of your authorization server";
            self.report.problem(place, "`methods` asks for access tokens, but no issuer is configured", remedy);
        }
        let remedy = "write what clients type, such as \"https://mcp.example.com\": tokens are issued for it";
        match &self.listen.public_url {
            None if self.public_url_refused => {}
            None => {
                self.report.problem(place, "`methods` asks for access tokens, but `listen.public_url` is empty", remedy)
            }
            Some(url) if url.scheme != "https" && !url.is_loopback() => {
                let message = "`methods` asks for access tokens, but `listen.public_url` is plain HTTP";
                self.report.problem(place, message, "write its https URL: a token on plain HTTP is anybody's");
            }
            Some(_) => {}
        }
    }

    /// Refuses keys that open servers there are not.
    fn check_openings(&self, servers: &BTreeMap<Arc<str>, Said>) {
        for (place, opened) in &self.auth.openings {
            for name in opened.iter().filter(|name| !servers.contains_key(name.as_str())) {
                let near = suggest::nearest(name, servers.keys().map(AsRef::as_ref));
                let known = || servers.keys().map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
                let remedy = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None if servers.is_empty() => "no server is configured".to_owned(),
                    None => format!("the servers here are {}", known()),
                };
                let message = format!("this key opens the server `{}`, which does not exist", name.escape_debug());
                self.report.problem(Some(place), message, remedy);
            }
        }
    }

    fn warn(&self, servers: &BTreeMap<Arc<str>, Said>) {
        if servers.is_empty() {
            self.report.warning("no server is configured: add a [servers.NAME] with its command");
        }
        self.warn_of_openness(servers);
        for (name, said) in servers {
            // Who types a command sees what it starts; a file starts again by itself.
            let typed = matches!(said.places.path, Some(Place::Flag(_)));
            if !typed && let Some(package) = pinned::unpinned(&said.server.command, &said.server.args) {
                self.report.warning(format!(
                    "{name}: the version of {package} is not pinned, so any start may run other code: write {package}@VERSION"
                ));
            }
            if said.server.mode == Mode::Shared {
                self.report.warning(format!(
                    "{name}: mode \"shared\" makes one trust domain of all its callers: each can affect the others through the process"
                ));
            }
        }
        self.warn_of_keys(servers);
        self.warn_of_what_says_nothing(servers);
        let admin_open = self.admin.address.as_ref().is_some_and(|address| !address.is_loopback());
        if admin_open && self.admin.token.is_none() {
            self.report.warning(
                "admin.address is open to other machines without admin.token: they get health and nothing else",
            );
        }
    }

    fn warn_of_openness(&self, servers: &BTreeMap<Arc<str>, Said>) {
        let said_so = |said: &Said| said.methods.is_some() || !self.auth.methods.is_empty();
        let unguarded: Vec<&str> = servers
            .iter()
            .filter(|(_, said)| said.server.auth.methods.contains(&Method::None))
            .filter(|(_, said)| self.is_open() || self.is_public() || said_so(said))
            .map(|(name, _)| name.as_ref())
            .collect();
        if !unguarded.is_empty() {
            let reach = if self.is_open() || self.is_public() {
                "everybody who reaches this gateway"
            } else {
                "everybody on this machine"
            };
            self.report.warning(format!("no authentication: {reach} may use {}", unguarded.join(", ")));
        }
        let asks = servers.values().any(|said| said.server.auth.methods.contains(&Method::ApiKey));
        let encrypted =
            self.listen.tls.is_some() || self.listen.public_url.as_ref().is_some_and(|url| url.scheme == "https");
        if asks && self.is_open() && !encrypted {
            self.report.warning(
                "API keys travel in plain HTTP: set listen.tls, or put a TLS proxy in front and set listen.public_url to its https URL",
            );
        }
    }

    fn warn_of_keys(&self, servers: &BTreeMap<Arc<str>, Said>) {
        let keys = &self.auth.auth.keys;
        let now = unix_time::seconds();
        for (name, _) in keys.iter().filter(|(_, key)| key.expires.is_some_and(|end| end <= now)) {
            self.report.warning(format!("the key {name} has expired"));
        }
        for (name, said) in servers {
            let opens = |opened: &Vec<String>| opened.iter().any(|opened| opened.as_str() == name.as_ref());
            let asks = said.server.auth.methods.contains(&Method::ApiKey);
            let opening = || keys.values().filter(|key| key.servers.as_ref().is_none_or(opens));
            if asks && self.has_keys() && opening().next().is_none() {
                self.report.warning(format!("{name}: no key opens it yet"));
            } else if asks
                && !said.server.auth.scope_rules.scopes.is_empty()
                && opening().all(|key| key.scopes.is_empty())
            {
                self.report.warning(format!(
                    "{name}: it asks for scopes, and no key has any: write `scopes` in the key's table"
                ));
            }
        }
    }

    /// What was typed and can have no effect, because something else is not as that needs it.
    fn warn_of_what_says_nothing(&self, servers: &BTreeMap<Arc<str>, Said>) {
        let takes = |said: &Said, method| said.server.auth.methods.contains(&method);
        for (name, said) in servers {
            let Server { mode, env_from, auth, .. } = &said.server;
            if !env_from.claims.is_empty() && !takes(said, Method::Oauth) {
                self.report.warning(format!(
                    "{name}: env_from.claims fills nothing, since claims stand in access tokens: its methods lack \"oauth\""
                ));
            }
            if *mode == Mode::Principal && takes(said, Method::None) {
                self.report.warning(format!(
                    "{name}: mode \"principal\" shares nothing among callers nobody knows: each session has a process of its own"
                ));
            }
            for method in auth.scope_rules.method_scopes.keys().filter(|method| !is_method(method)) {
                let near = suggest::nearest(method, methods())
                    .map_or_else(String::new, |near| format!("; did you mean {near}?"));
                self.report.warning(format!(
                    "{name}: method_scopes asks for scopes for {}, a method that MCP does not have{near}",
                    method.escape_debug()
                ));
            }
        }
        let used = |issuer: &Arc<str>| servers.values().any(|said| said.server.auth.issuers.contains(issuer));
        for (name, issuer) in &self.auth.auth.issuers {
            if !servers.is_empty() && !used(name) {
                self.report.warning(format!(
                    "the tokens of auth.issuers.{name} count nowhere: no server that asks for \"oauth\" takes them"
                ));
            }
            if issuer.tokens == Tokens::Jwt && !issuer.introspection.client_id.is_empty() {
                self.report
                    .warning(format!("auth.issuers.{name}.introspection is not used: it is for tokens = \"opaque\""));
            }
        }
    }
}

/// The methods of every revision.
fn methods() -> impl Iterator<Item = &'static str> {
    label::Method::ALL.iter().filter(|method| **method != label::Method::Other).map(|method| method.as_str())
}

fn is_method(name: &str) -> bool {
    methods().any(|method| method == name)
}
