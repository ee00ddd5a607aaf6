//! The configuration of `gangway run`: one server, said by flags, with the defaults of every file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::Loaded;
use super::document::{Entry, Node, Place, Table, Value};
use super::meaning::{Address, Config};
use super::problem::Problems;

/// The name of the key `run` makes or is given.
pub const RUN_KEY: &str = "run";

/// What the flags of `gangway run` say.
#[derive(Clone, Default)]
pub struct RunOptions {
    /// Name of the server.
    pub name: String,
    /// Program to start.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// `--listen`; `None` is the default address.
    pub listen: Option<String>,
    /// `--env`, in order; the last of a name wins.
    pub env: Vec<(String, String)>,
    /// `--admin`; `None` is off.
    pub admin: Option<String>,
    /// `--no-auth`
    pub no_auth: bool,
    /// SHA-256 of the key to ask for; without one, and without `no_auth`, only this machine may be listened to.
    pub key_hash: Option<[u8; 32]>,
}

impl RunOptions {
    /// Whether only this machine can reach the address `--listen` names. One that is wrong counts as such:
    /// [`Config::for_run`] refuses it.
    #[must_use]
    pub fn stays_on_this_machine(&self, base: &Path) -> bool {
        let address = self.listen.as_deref().map(|text| Address::parse(text, base));
        !matches!(address, Some(Ok(address)) if !address.is_loopback())
    }
}

impl fmt::Debug for RunOptions {
    /// Everything but arguments and variables, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("listen", &self.listen)
            .field("admin", &self.admin)
            .field("no_auth", &self.no_auth)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Builds the configuration of `gangway run`. It differs from a file that says the same in three things: the
    /// endpoint is `/mcp`, the admin listener is off unless given, and the child gets the gateway's own environment.
    ///
    /// `base` is the current folder.
    ///
    /// # Errors
    /// Every flag that is wrong.
    pub fn for_run(options: &RunOptions, base: &Path) -> Result<Loaded, Problems> {
        let mut loaded = super::assemble(&document(options), "", "", base, Vec::new())?;
        loaded.warnings.extend(super::warn_of_root());
        for server in loaded.config.servers.values_mut() {
            let mut own = server.as_ref().clone();
            own.env_inherit = true;
            *server = own.into();
        }
        Ok(loaded)
    }
}

/// The document a file that says the same would parse to.
fn document(options: &RunOptions) -> Table {
    let text = |flag, text: &str| Entry::flag(flag, Value::plain(text));
    let mut server = Table::new();
    server.insert("command".to_owned(), text("CMD", &options.command));
    server.insert("args".to_owned(), Entry::flag("ARG", array("ARG", options.args.iter().map(String::as_str))));
    server.insert("path".to_owned(), text("CMD", "/mcp"));
    let variables: BTreeMap<_, _> =
        options.env.iter().map(|(name, value)| (name.clone(), text("--env", value))).collect();
    server.insert("env".to_owned(), Entry::flag("--env", Value::Table(variables)));
    let mut document = Table::new();
    document.insert("servers".to_owned(), within("--name", &options.name, Value::Table(server)));
    if let Some(address) = &options.listen {
        document.insert("listen".to_owned(), within("--listen", "address", Value::plain(address)));
    }
    let admin = options.admin.as_deref().unwrap_or("off");
    document.insert("admin".to_owned(), within("--admin", "address", Value::plain(admin)));
    if let Some(auth) = auth(options) {
        document.insert("auth".to_owned(), Entry::flag("--no-auth", Value::Table(auth)));
    }
    document
}

fn auth(options: &RunOptions) -> Option<Table> {
    let methods = |method| Entry::flag("--no-auth", array("--no-auth", [method]));
    let mut auth = Table::new();
    if options.no_auth {
        auth.insert("methods".to_owned(), methods("none"));
    } else if let Some(hash) = &options.key_hash {
        let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut key = Table::new();
        key.insert("hash".to_owned(), Entry::flag("--listen", Value::plain(format!("sha256:{digits}"))));
        // The sessions of the one who started `run` are not capped per caller.
        key.insert("sessions".to_owned(), Entry::flag("--listen", Value::Integer(0)));
        auth.insert("methods".to_owned(), methods("api_key"));
        auth.insert("keys".to_owned(), within("--listen", RUN_KEY, Value::Table(key)));
    } else {
        return None;
    }
    Some(auth)
}

/// A table with one entry.
fn within(flag: &'static str, key: &str, value: Value) -> Entry {
    Entry::flag(flag, Value::Table(Table::from([(key.to_owned(), Entry::flag(flag, value))])))
}

fn array<'a>(flag: &'static str, items: impl IntoIterator<Item = &'a str>) -> Value {
    let node = |item| Node { value: Value::plain(item), place: Place::Flag(flag) };
    Value::Array(items.into_iter().map(node).collect())
}
