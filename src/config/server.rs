//! `[servers.NAME]` and `[server_defaults]`.

use std::sync::Arc;

use super::auth;
use super::child;
use super::convert::{Refused, mismatch, pick, text};
use super::document::{Place, Value};
use super::env_from;
use super::meaning::{Breaker, Method, Mode, Pool, PublicUrl, Queue, Required, Server, ServerAuth, Timeouts};
use super::sandbox;
use super::scope_rules;
use super::section::Section;
use super::tools;
use super::url::is_path;

/// What one server's table says.
pub(super) struct Said {
    /// Its `auth.methods` are still empty.
    pub(super) server: Server,
    /// Its own `auth.methods`, if it has any.
    pub(super) methods: Option<Vec<Method>>,
    /// The issuers it names, if it names any.
    pub(super) issuers: Option<Vec<(Place, Arc<str>)>>,
    /// What it says of scopes.
    pub(super) scope_rules: scope_rules::Said,
    /// Where things are reported that concern it.
    pub(super) places: Places,
}

/// Where the values stand that are judged together with others; the header where they do not stand.
pub(super) struct Places {
    pub(super) path: Option<Place>,
    pub(super) auth: Option<Place>,
    pub(super) legacy_sse: Option<Place>,
}

/// Reads a server's table, `[server_defaults]` merged in; `single` says that there is no other server.
pub(super) fn read(name: &str, mut section: Section<'_>, single: bool) -> Said {
    let places =
        Places { path: section.place("path"), auth: section.place("auth"), legacy_sse: section.place("legacy_sse") };
    let (command, args) = child::program(&mut section);
    let path = section.value("path", &Value::plain(format!("/{name}/mcp")), |value| {
        let path = text(value)?;
        let path = path.strip_suffix('/').unwrap_or(path);
        if is_path(path) {
            return Ok(path.to_owned());
        }
        let remedy = format!("write a path of plain parts, such as \"/{name}/mcp\"");
        Err(Refused::new("is no path", remedy))
    });
    let (server, auth::ServerSaid { methods, issuers, scope_rules }) = read_shared(&mut section, single);
    Said { server: Server { command, args, path, ..server }, methods, issuers, scope_rules, places }
}

/// Reads `[server_defaults]` on its own, so that what is wrong in it is reported once and even without servers.
pub(super) fn check_defaults(mut section: Section<'_>) {
    for key in ["command", "args", "path"] {
        if section.take(key).is_some() {
            let refused = Refused::new("cannot have a default", "write it in each [servers.NAME]");
            section.refuse(key, section.place(key).as_ref(), refused);
        }
    }
    read_shared(&mut section, true);
}

/// Reads what a server and `[server_defaults]` have in common; command, arguments and path stay empty.
fn read_shared(section: &mut Section<'_>, single: bool) -> (Server, auth::ServerSaid) {
    let required = required(section);
    let server = Server {
        command: String::new(),
        args: Vec::new(),
        cwd: child::working_directory(section),
        env: child::environment(section),
        env_pass: section.list("env_pass", child::variable_name),
        env_from: env_from::read(section.table("env_from")),
        env_inherit: false,
        path: String::new(),
        required: if required.unwrap_or(single) { Required::Yes } else { Required::No },
        check_on_start: section.boolean("check_on_start", true),
        mode: section.choice("mode", "session", &Mode::NAMED),
        legacy_sse: section.boolean("legacy_sse", false),
        strict_status: section.boolean("strict_status", false),
        pool: pool(section.table("pool")),
        timeouts: timeouts(section.table("timeouts")),
        line_bytes: section.size("line_bytes", "32MiB", 1 << 10),
        queue: queue(section.table("queue")),
        breaker: breaker(section.table("breaker")),
        tools: tools::read(section.table("tools")),
        auth: ServerAuth::default(),
        sandbox: sandbox::read(section.table("sandbox")),
    };
    env_from::check(section, &server);
    (server, auth::read_server(section.table("auth")))
}

/// Reads `required`; `None` is `auto`.
fn required(section: &mut Section<'_>) -> Option<bool> {
    section.value("required", &Value::plain("auto"), |value| match value {
        Value::Boolean(boolean) => Ok(Some(*boolean)),
        Value::Text(text) => pick(&text.meaning, &[("auto", None), ("true", Some(true)), ("false", Some(false))]),
        other => Err(mismatch(other, "write \"auto\", true or false")),
    })
}

fn pool(mut section: Section<'_>) -> Pool {
    let pool = Pool {
        min_idle: section.count("min_idle", 1, 0) as usize,
        max_size: section.limit("max_size", 64),
        wait: section.time("wait", "30s"),
        idle_timeout: section.time_or_off("idle_timeout", "10m"),
        max_lifetime: section.time_or_off("max_lifetime", "off"),
        max_uses: section.limit("max_uses", 0),
        max_sessions_per_child: section.limit("max_sessions_per_child", 64),
        max_calls_per_child: section.limit("max_calls_per_child", 32),
    };
    if pool.max_size.is_some_and(|most| most < pool.min_idle) {
        // Where one of the two comes from [server_defaults], the server's own is the one that is wrong.
        let own = |key: &&str| section.has(key) && !matches!(section.place(key), Some(Place::Defaults(_)));
        let key = ["min_idle", "max_size"].into_iter().find(own).unwrap_or("min_idle");
        let refused = Refused::new(
            "asks for more spares than children (`min_idle` above `max_size`)",
            "lower `min_idle`, or raise `max_size`",
        );
        section.refuse(key, section.place(key).as_ref(), refused);
    }
    pool
}

fn timeouts(mut section: Section<'_>) -> Timeouts {
    Timeouts {
        start: section.time_above_zero("start", "3m"),
        call_idle: section.time_or_off("call_idle", "5m"),
        call_total: section.time_or_off("call_total", "1h"),
        ask: section.time_or_off("ask", "10m"),
        close: section.time("close", "2s"),
        term: section.time("term", "3s"),
    }
}

fn queue(mut section: Section<'_>) -> Queue {
    Queue {
        messages: section.limit("messages", 256).unwrap_or(usize::MAX),
        bytes: section.size("bytes", "32MiB", 1 << 10),
    }
}

fn breaker(mut section: Section<'_>) -> Breaker {
    let failures = match section.count("failures", 5, 0) {
        0 => u32::MAX,
        failures => failures,
    };
    Breaker { failures, backoff_max: section.time_above_zero("backoff_max", "30s") }
}

impl Server {
    /// The path of the standalone event stream of HTTP+SSE (2024-11-05): `path` with its last part replaced by `sse`.
    /// It exists where `legacy_sse` is on.
    #[must_use]
    pub fn sse_path(&self) -> String {
        self.beside("sse")
    }

    /// The path that takes messages of HTTP+SSE (2024-11-05): `path` with its last part replaced by `messages`.
    /// It exists where `legacy_sse` is on.
    #[must_use]
    pub fn messages_path(&self) -> String {
        self.beside("messages")
    }

    fn beside(&self, last: &str) -> String {
        let folder = self.path.rfind('/').map_or("", |at| &self.path[..at]);
        format!("{folder}/{last}")
    }

    /// What it asks of callers who come to the endpoints of `paths`, which may be another table's of the same server:
    /// tokens count there that were issued for what clients know those endpoints by (RFC 8707 section 2).
    #[must_use]
    pub fn auth_at(&self, public_url: &PublicUrl, paths: &Server) -> ServerAuth {
        let takes_tokens = self.auth.methods.contains(&Method::Oauth);
        let resource = |path: &str| if takes_tokens { format!("{public_url}{path}").into() } else { Arc::default() };
        let sse_resource = if paths.legacy_sse { resource(&paths.sse_path()) } else { Arc::default() };
        ServerAuth { resource: resource(&paths.path), sse_resource, ..self.auth.clone() }
    }

    /// Every path the server answers at, without the public prefix.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        let mut paths = vec![self.path.clone()];
        if self.legacy_sse {
            paths.extend([self.sse_path(), self.messages_path()]);
        }
        paths
    }
}
