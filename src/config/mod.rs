//! What the operator typed, and what it means.
//!
//! A file goes through four steps, and every problem of the last three is collected before anything is refused:
//!
//! 1. `document`: TOML to values with their places; variables are filled in. Only a syntax error ends here.
//! 2. `section`: each table is read key by key, with defaults; a key nobody reads is unknown.
//! 3. `routes` and `doors`: what concerns several tables at once.
//! 4. `meaning`: the types the rest of the program is handed, a section to each part.
//!
//! The flags of `gangway run` enter at step 2, so both ways have the same defaults.

mod address;
mod auth;
mod child;
mod convert;
mod document;
mod doors;
mod env_file;
mod env_from;
mod glob;
mod interpolate;
mod issuer;
mod keys;
mod keys_file;
mod limits;
mod listen;
mod meaning;
mod memory;
mod network;
mod permission;
mod pinned;
mod problem;
mod report;
mod routes;
mod run;
mod sandbox;
mod scope_rules;
mod secret;
mod section;
mod server;
mod suggest;
mod telemetry;
#[cfg(test)]
mod tests;
mod tls;
mod tools;
mod unit;
mod url;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use document::{Table, Value};
use doors::Doors;
use interpolate::Sources;
use permission::{holds_secret, warn_if_readable};
use report::Report;
use section::Section;

pub use glob::Glob;
pub use issuer::{Algorithm, Introspection, Issuer, Provider, Tokens};
pub(crate) use keys::is_key_name;
pub use keys_file::read_keys_file;
pub use meaning::{
    Access, Address, Admin, Audit, Auth, Breaker, CertificatePair, ClientAuth, Config, Drain, EnvFrom, Key, Limits,
    Listen, LogFormat, LogLevel, Method, Metrics, Mode, Network, Pool, PublicUrl, Queue, Rate, Replay, Required,
    Sandbox, Server, ServerAuth, Sessions, Streams, Telemetry, Timeouts, Tls, UserName,
};
pub use problem::{Problem, Problems};
pub use report::{Effective, Origin};
pub use routes::check_server_name;
pub use run::{RUN_KEY, RunOptions};
pub use scope_rules::ScopeRules;
pub use tools::Tools;

/// Names other programs give the table of servers.
const ALIASES: &[(&str, &str)] =
    &[("server", "servers"), ("mcpServers", "servers"), ("mcp_servers", "servers"), ("backends", "servers")];

/// A configuration without problems.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it means.
    pub config: Config,
    /// What works but deserves a line at each start.
    pub warnings: Vec<String>,
    /// Every key with its value in effect, in the order it was read.
    pub effective: Vec<Effective>,
}

impl Loaded {
    /// What turns out to be wrong with a value once it is used, each a key, a sentence and a remedy, at its place.
    /// `None` if there is nothing.
    #[must_use]
    pub fn problems<'a>(&self, found: impl IntoIterator<Item = (&'a str, String, &'a str)>) -> Option<Problems> {
        let place = |key: &str| self.effective.iter().find(|effective| effective.key == key);
        let found = found.into_iter().map(|(key, message, remedy)| Problem::of_value(place(key), message, remedy));
        Problems::from_found(found.collect())
    }
}

/// Loads a configuration file. Relative paths in it are relative to its folder.
///
/// # Errors
/// The file cannot be read, or everything that is wrong with it.
pub fn load(path: &Path, environment: &dyn Fn(&str) -> Option<String>) -> Result<Loaded, Problems> {
    let unreadable = |error: std::io::Error| {
        let message = format!("the configuration file {} cannot be read: {error}", path.display());
        Problem::anywhere(message, "check the path and its permissions")
    };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let whole = std::path::absolute(path).map_err(unreadable)?;
    let base = whole.parent().unwrap_or(&whole);
    let mut loaded = parse(&text, &path.display().to_string(), base, environment)?;
    if holds_secret(&loaded.effective) {
        loaded.warnings.extend(warn_if_readable("the configuration file", path));
    }
    let keys_file = loaded.config.auth.keys_file.as_deref();
    loaded.warnings.extend(keys_file.and_then(|path| warn_if_readable("the keys file", path)));
    loaded.warnings.extend(warn_of_root());
    Ok(loaded)
}

fn warn_of_root() -> Option<String> {
    let root = rustix::process::geteuid().is_root();
    root.then(|| "running as root: so does every child; give the gateway a user of its own".to_owned())
}

/// Reads the text of a configuration. `file` names it in problems; relative paths are relative to `base`.
///
/// # Errors
/// The first syntax error, or everything else that is wrong.
pub fn parse(
    text: &str,
    file: &str,
    base: &Path,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Loaded, Problems> {
    let mut problems = Vec::new();
    let table = document::parse(file, text, Sources { environment, base }, &mut problems)?;
    assemble(&table, file, text, base, problems)
}

/// Turns a document into its meaning.
fn assemble(document: &Table, file: &str, text: &str, base: &Path, found: Vec<Problem>) -> Result<Loaded, Problems> {
    let report = Report::new(file, text, base, found);
    let config = read(&report, document);
    let findings = report.finish();
    match Problems::from_found(findings.problems) {
        Some(problems) => Err(problems),
        None => Ok(Loaded { config, warnings: findings.warnings, effective: findings.effective }),
    }
}

fn read(report: &Report<'_>, document: &Table) -> Config {
    let mut root = Section::new(report, "", Some(document), None).with_aliases(ALIASES);
    let listen_section = root.table("listen");
    let listen_place = listen_section.place("address");
    let says_url = listen_section.has("public_url") && !listen_section.is_text("public_url", "");
    let listen = listen::read(listen_section);
    let public_url_refused = says_url && listen.public_url.is_none();
    let admin = listen::read_admin(root.table("admin"), &listen.address);
    let auth = auth::read(root.table("auth"));
    let limits = limits::read(root.table("limits"));
    let sessions = limits::read_sessions(root.table("sessions"));
    let streams = limits::read_streams(root.table("streams"));
    let replay = limits::read_replay(root.table("replay"));
    let drain = limits::read_drain(root.table("drain"));
    let mut servers = read_servers(report, &mut root);
    let telemetry = telemetry::read(root.table("telemetry"));
    routes::check(report, &servers);
    Doors { report, listen: &listen, listen_place, public_url_refused, admin: &admin, auth: &auth }
        .resolve(&mut servers);
    let servers = servers.into_iter().map(|(name, said)| (name, Arc::new(said.server))).collect();
    Config { listen, admin, auth: auth.auth, limits, sessions, streams, replay, drain, servers, telemetry }
}

/// Reads `[server_defaults]` and every `[servers.NAME]`.
fn read_servers(report: &Report<'_>, root: &mut Section<'_>) -> BTreeMap<Arc<str>, server::Said> {
    let empty = Table::new();
    let node = root.take("server_defaults");
    let place = root.place("server_defaults");
    let defaults = root.table_of("server_defaults", node).unwrap_or(&empty);
    server::check_defaults(Section::new(report, "server_defaults", Some(defaults), place));
    let node = root.take("servers");
    let Some(tables) = root.table_of("servers", node) else {
        return BTreeMap::new();
    };
    let mut servers = BTreeMap::new();
    for (name, entry) in tables {
        if let Err(reason) = check_server_name(name) {
            let message = format!("`{}` {reason}", name.escape_debug());
            report.problem(Some(&entry.key), message, "choose another name");
        }
        let Value::Table(own) = &entry.node.value else {
            let message = format!("`servers.{}` is no table", name.escape_debug());
            report.problem(Some(&entry.key), message, "write [servers.NAME] and the keys below it");
            continue;
        };
        let merged = document::merge(defaults, own);
        let path = format!("servers.{name}");
        let section = Section::new(report, &path, Some(&merged), Some(entry.key.clone()));
        let said = server::read(name, section, tables.len() == 1);
        servers.insert(Arc::from(name.as_str()), said);
    }
    servers
}
