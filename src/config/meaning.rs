//! The meaning of a configuration: every default filled in, every unit resolved.
//!
//! A part of the program is handed its own section, never the whole [`Config`].
//! Counts that may be unlimited are `Option`: `None` is what the file writes as `0`.
//! Times and sizes that may be switched off are `Option`: `None` is `"off"`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::issuer::Issuer;
use super::scope_rules::ScopeRules;
use super::tools::Tools;

/// One whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[listen]`
    pub listen: Listen,
    /// `[admin]`
    pub admin: Admin,
    /// `[auth]`: the keys every server may admit.
    pub auth: Auth,
    /// `[limits]`
    pub limits: Limits,
    /// `[sessions]`
    pub sessions: Sessions,
    /// `[streams]`
    pub streams: Streams,
    /// `[replay]`
    pub replay: Replay,
    /// `[drain]`
    pub drain: Drain,
    /// `[servers.NAME]`, in name order, `[server_defaults]` merged in.
    pub servers: BTreeMap<Arc<str>, Arc<Server>>,
    /// `[telemetry]`
    pub telemetry: Telemetry,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host name or IP literal and a port; `localhost` means both loopback addresses.
    Tcp {
        /// Host name or IP literal, without brackets.
        host: String,
        /// Port; 0 lets the system choose.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}

/// `[listen]`: the door for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Every address to bind.
    pub address: Vec<Address>,
    /// What clients type, without `/NAME/mcp`; its path is a prefix of every route.
    pub public_url: Option<PublicUrl>,
    /// Host names accepted beside the built-in rules, lower case, without port.
    pub allowed_hosts: Vec<String>,
    /// Origins accepted beside the built-in rules, lower case, `scheme://host[:port]`.
    pub allowed_origins: Vec<String>,
    /// Whether `/livez` and `/readyz` answer on this listener too.
    pub health: bool,
    /// Whether a browser gets the small page.
    pub page: bool,
    /// Peers whose forwarded headers count; exempt from the per-address cap.
    pub trusted_proxies: Vec<Network>,
    /// Whether those peers, and no others, connect, each with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// TLS on TCP addresses; `None` is plain HTTP.
    pub tls: Option<Tls>,
}

impl Listen {
    /// The scheme of URLs at its TCP addresses.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// `tls`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Never empty; the first is for clients that ask for no name, or for one that is in none.
    pub certificates: Vec<CertificatePair>,
    /// PEM file of the authorities that sign clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether clients are asked for one.
    pub client_auth: ClientAuth,
}

/// The files of one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatePair {
    /// PEM: the certificate, then those between it and the authority.
    pub cert: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
}

/// `tls.client_auth`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate is asked for.
    Off,
    /// One that is shown must be good.
    Optional,
    /// There is no connection without one.
    Required,
}

/// A parsed `public_url`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl {
    /// `http` or `https`.
    pub scheme: String,
    /// Host, lower case, without brackets.
    pub host: String,
    /// Port where one was written.
    pub port: Option<u16>,
    /// Path without a trailing slash; empty for the root.
    pub path: String,
}

/// An address range in CIDR form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// First address of the range.
    pub address: IpAddr,
    /// Length of the prefix in bits.
    pub prefix: u8,
}

/// `[admin]`
#[derive(Clone, PartialEq, Eq)]
pub struct Admin {
    /// Where the admin listener binds; `None` is off.
    pub address: Option<Address>,
    /// The token off-loopback callers must show, if any.
    pub token: Option<String>,
}

impl fmt::Debug for Admin {
    /// Everything but the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "(hidden)");
        f.debug_struct("Admin").field("address", &self.address).field("token", &token).finish()
    }
}

/// How a caller may prove who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `Authorization: Bearer gangway_…`
    ApiKey,
    /// `Authorization: Bearer` with an access token of one of [`Auth::issuers`].
    Oauth,
    /// A client certificate, shown in the TLS handshake.
    Mtls,
    /// Nothing is asked.
    None,
}

impl Method {
    /// Every method, under the name an operator writes.
    pub(super) const NAMED: [(&'static str, Method); 4] =
        [("api_key", Method::ApiKey), ("oauth", Method::Oauth), ("mtls", Method::Mtls), ("none", Method::None)];

    /// The name an operator writes.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, method)| *method == self).map_or("", |(name, _)| *name)
    }
}

/// `[auth]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auth {
    /// Every key of `[auth.keys]` and of `keys_file`, by name.
    pub keys: BTreeMap<Arc<str>, Key>,
    /// `keys_file`, so that its keys can be read again while the gateway runs.
    pub keys_file: Option<PathBuf>,
    /// Names of the keys that came from the keys file.
    pub filed: BTreeSet<Arc<str>>,
    /// Every `[auth.issuers.NAME]`.
    pub issuers: BTreeMap<Arc<str>, Arc<Issuer>>,
}

/// One API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// SHA-256 of the whole key.
    pub hash: [u8; 32],
    /// First instant (seconds since the Unix epoch) at which the key no longer works.
    pub expires: Option<u64>,
    /// Servers it opens; `None` is all.
    pub servers: Option<Vec<String>>,
    /// Session cap instead of `sessions.max_per_principal`; `usize::MAX` is no limit.
    pub sessions: Option<usize>,
    /// What it grants, as the scopes of a token do.
    pub scopes: Vec<String>,
}

impl Key {
    /// Whether it works no longer at `now_unix`, in seconds since the Unix epoch.
    #[must_use]
    pub fn has_expired(&self, now_unix: u64) -> bool {
        self.expires.is_some_and(|end| now_unix >= end)
    }
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes for bodies, queues, windows and replay together.
    pub memory: u64,
    /// Open connections in all.
    pub connections: Option<usize>,
    /// Open connections of one address.
    pub connections_per_address: Option<usize>,
    /// Requests waiting for an answer in all.
    pub requests_in_flight: Option<usize>,
    /// Requests waiting for an answer of one principal.
    pub requests_in_flight_per_principal: Option<usize>,
    /// Requests of one address, before it is known who asks.
    pub rate_per_address: Option<Rate>,
    /// Requests of one principal.
    pub rate_per_principal: Option<Rate>,
    /// Bytes of bodies of one principal.
    pub rate_bytes_per_principal: Option<Rate>,
    /// Bytes of a request head.
    pub header_bytes: usize,
    /// Fields of a request head.
    pub header_fields: usize,
    /// Longest time a head may take.
    pub header_timeout: Duration,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Longest pause within a body.
    pub body_idle: Duration,
    /// Longest time a write may make no progress.
    pub write_stall: Duration,
    /// Longest time a connection may be idle between requests.
    pub keep_alive: Duration,
    /// Longest life of a connection; `None` is off.
    pub connection_age: Option<Duration>,
    /// Longest time a TLS handshake may take.
    pub tls_handshake: Duration,
}

/// How much of something may come in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// So many, or so many bytes; at least one.
    pub count: u32,
    /// In each such time.
    pub time: Duration,
}

/// `[sessions]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// Sessions in all.
    pub max: Option<usize>,
    /// Sessions of one verified principal.
    pub max_per_principal: Option<usize>,
    /// Idle time after which a session ends.
    pub idle: Option<Duration>,
    /// Age at which a session ends; `None` is off.
    pub absolute: Option<Duration>,
    /// Time to send `initialized` or any request.
    pub uninitialized: Duration,
    /// Idle time after which a session may be ended to make room.
    pub evict_after: Duration,
}

/// `[streams]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streams {
    /// How long a POST waits for its first message before it becomes SSE.
    pub sse_after: Duration,
    /// Pause between comments on an idle stream.
    pub comment_every: Duration,
    /// `retry:` told to clients.
    pub retry: Duration,
    /// Age at which a connection is closed for the client to resume; `None` is off.
    pub max_age: Option<Duration>,
}

/// `[replay]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Events kept per stream.
    pub events: usize,
    /// Bytes kept per stream.
    pub bytes: usize,
    /// How long an ended stream is kept.
    pub age: Duration,
    /// Bytes kept in all.
    pub total: usize,
}

/// `[drain]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Time between unreadiness and refusing work.
    pub prestop: Duration,
    /// Time for calls in flight.
    pub calls: Duration,
    /// Time for children to stop.
    pub children: Duration,
}

/// How sessions use children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One child per session.
    Session,
    /// Many sessions, of whomever, on few children.
    Shared,
    /// Many sessions on few children, those of each verified principal on its own; one child per session for
    /// anonymous callers.
    Principal,
}

impl Mode {
    /// Every mode, under the name an operator writes.
    pub(super) const NAMED: [(&'static str, Mode); 3] =
        [("session", Mode::Session), ("shared", Mode::Shared), ("principal", Mode::Principal)];

    /// The name an operator writes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Session => "session",
            Mode::Shared => "shared",
            Mode::Principal => "principal",
        }
    }
}

/// Whether readiness needs a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    /// It does.
    Yes,
    /// It does not.
    No,
}

/// `[servers.NAME]`
#[derive(Clone, PartialEq, Eq)]
pub struct Server {
    /// Program to start.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Working directory.
    pub cwd: Option<PathBuf>,
    /// Variables set for the child (`env_file` merged below `env`).
    pub env: BTreeMap<String, String>,
    /// Names passed on from the gateway's own environment, beside the built-in list.
    pub env_pass: Vec<String>,
    /// Variables whose values each caller brings, for a child of its own.
    pub env_from: EnvFrom,
    /// Whether everything of the gateway's environment but `GANGWAY_*` is passed on (`run`).
    pub env_inherit: bool,
    /// Path of the endpoint, without the public prefix.
    pub path: String,
    /// `required`, with `auto` resolved.
    pub required: Required,
    /// Whether the scout runs at start.
    pub check_on_start: bool,
    /// `mode`
    pub mode: Mode,
    /// Whether HTTP+SSE of 2024-11-05 is served beside `path`.
    pub legacy_sse: bool,
    /// Whether in-session refusals become HTTP statuses.
    pub strict_status: bool,
    /// `pool`
    pub pool: Pool,
    /// `timeouts`
    pub timeouts: Timeouts,
    /// Bytes of one line of the child.
    pub line_bytes: usize,
    /// `queue`
    pub queue: Queue,
    /// `breaker`
    pub breaker: Breaker,
    /// `tools`
    pub tools: Tools,
    /// Who may enter, resolved (never empty).
    pub auth: ServerAuth,
    /// `sandbox`
    pub sandbox: Sandbox,
}

impl fmt::Debug for Server {
    /// What tells servers apart. Arguments and variables may be secrets and are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("command", &self.command)
            .field("path", &self.path)
            .field("mode", &self.mode)
            .field("auth", &self.auth)
            .finish_non_exhaustive()
    }
}

/// `env_from`: where the values of variables come from that a caller brings for a child of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvFrom {
    /// Variables by header name, which is in lower case.
    pub headers: BTreeMap<String, String>,
    /// Variables by claim of the caller's token.
    pub claims: BTreeMap<String, String>,
}

impl EnvFrom {
    /// Whether no value comes from callers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.claims.is_empty()
    }

    /// Whether a caller decides about the variable with this name.
    #[must_use]
    pub fn sets(&self, variable: &str) -> bool {
        self.headers.values().chain(self.claims.values()).any(|name| name == variable)
    }
}

/// Who may enter one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerAuth {
    /// Accepted methods; never empty.
    pub methods: Vec<Method>,
    /// Names of the issuers whose tokens count here, in order; empty where `methods` has no [`Method::Oauth`].
    pub issuers: Vec<Arc<str>>,
    /// What tokens must be issued for and clients are told to ask for (RFC 8707): the server's public URL, without a
    /// slash at its end; empty where `methods` has no [`Method::Oauth`].
    pub resource: Arc<str>,
    /// The same for HTTP+SSE of 2024-11-05, whose clients know another URL; empty where that is not served.
    pub sse_resource: Arc<str>,
    /// What callers must be granted.
    pub scope_rules: ScopeRules,
}

impl ServerAuth {
    /// Whether callers who proved who they are by this can do so by `next` too: it takes the same methods, and no issuer
    /// less.
    #[must_use]
    pub fn proves_alike(&self, next: &ServerAuth) -> bool {
        let ServerAuth { methods, issuers, resource: _, sse_resource: _, scope_rules: _ } = self;
        // What tokens must be issued for stays as it was at the paths that open sessions know.
        *methods == next.methods && issuers.iter().all(|issuer| next.issuers.contains(issuer))
    }
}

impl ServerAuth {
    /// The names of the methods, for people.
    #[must_use]
    pub fn names(&self) -> String {
        self.methods.iter().map(|method| method.name()).collect::<Vec<_>>().join(", ")
    }
}

/// `sandbox`: what a child may do and take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Whether a scope-only Landlock domain is asked for (`scope`: auto).
    pub scope: bool,
    /// Whom it runs as; `None` is the gateway's own user.
    pub user: Option<UserName>,
    /// Permissions that new files of it do not get.
    pub umask: u32,
    /// Descriptors each process of it may have open.
    pub nofile: Option<u64>,
    /// Processes and threads it may have.
    pub nproc: Option<u64>,
    /// Bytes of memory it may use.
    pub memory: Option<u64>,
    /// What it may read; where this and `write` are empty, files are not restricted.
    pub read: Vec<PathBuf>,
    /// What it may read and change.
    pub write: Vec<PathBuf>,
}

impl Sandbox {
    /// Whether files that are not named are out of reach.
    #[must_use]
    pub fn restricts_files(&self) -> bool {
        !self.read.is_empty() || !self.write.is_empty()
    }
}

/// A user as typed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UserName {
    /// By name.
    Name(String),
    /// By number, perhaps with the number of a group.
    Number {
        /// The user's.
        uid: u32,
        /// The group's; `None` is the user's own.
        gid: Option<u32>,
    },
}

/// `pool`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Spares kept started.
    pub min_idle: usize,
    /// Children at most.
    pub max_size: Option<usize>,
    /// Longest wait for a free slot.
    pub wait: Duration,
    /// Time without use after which a child above `min_idle` is stopped; `None` is off.
    pub idle_timeout: Option<Duration>,
    /// Age from which a child takes no new session; `None` is off.
    pub max_lifetime: Option<Duration>,
    /// Sessions a child may serve in its life.
    pub max_uses: Option<usize>,
    /// Sessions a child may serve at the same time.
    pub max_sessions_per_child: Option<usize>,
    /// Calls that may wait for one child at the same time.
    pub max_calls_per_child: Option<usize>,
}

/// `timeouts`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Child start up to the handshake's answer.
    pub start: Duration,
    /// A call without progress.
    pub call_idle: Option<Duration>,
    /// A call in all.
    pub call_total: Option<Duration>,
    /// A child waiting for its client's answer.
    pub ask: Option<Duration>,
    /// Between closing stdin and TERM.
    pub close: Duration,
    /// Between TERM and KILL.
    pub term: Duration,
}

/// `queue`: what may wait on one child's stdin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Messages.
    pub messages: usize,
    /// Bytes.
    pub bytes: usize,
}

/// `breaker`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Failed starts in a row that open it; `u32::MAX` is never.
    pub failures: u32,
    /// Longest pause between tries.
    pub backoff_max: Duration,
}

/// `[telemetry]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telemetry {
    /// `log.level`
    pub level: LogLevel,
    /// `log.format`
    pub format: LogFormat,
    /// `log.access`
    pub access: Access,
    /// `log.audit`, where there is one.
    pub audit: Option<Audit>,
    /// `metrics`
    pub metrics: Metrics,
}

/// `log.audit` and `log.audit_required`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// The file.
    pub path: PathBuf,
    /// Whether a request is only served if its entry can be written.
    pub required: bool,
}

/// `log.level`
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Failures only.
    Error,
    /// And warnings.
    Warn,
    /// And events.
    Info,
    /// And detail.
    Debug,
    /// Everything.
    Trace,
}

/// `log.format`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// Aligned text.
    Text,
    /// One JSON object a line.
    Json,
}

/// `log.access`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// One line per message.
    All,
    /// Only what failed.
    Errors,
    /// None.
    Off,
}

/// `metrics`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Whether tool names become labels.
    pub tools: bool,
    /// How many tool names in all.
    pub max_tools: usize,
}
