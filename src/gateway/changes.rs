//! What one configuration says otherwise than another.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::config::{Config, Key};

/// The keys that changed and are read only at start.
pub(super) fn fixed(old: &Config, new: &Config) -> Vec<&'static str> {
    let (log, metrics) = (&old.telemetry, &old.telemetry.metrics);
    [
        ("listen.address", old.listen.address != new.listen.address),
        ("listen.public_url", old.listen.public_url != new.listen.public_url),
        ("listen.tls", old.listen.tls.is_some() != new.listen.tls.is_some()),
        ("admin.address", old.admin.address != new.admin.address),
        ("telemetry.log.format", log.format != new.telemetry.format),
        ("telemetry.log.audit", audit(old) != audit(new)),
        ("telemetry.log.audit_required", is_required(old) != is_required(new)),
        ("telemetry.metrics.tools", metrics.tools != new.telemetry.metrics.tools),
        ("telemetry.metrics.max_tools", metrics.max_tools != new.telemetry.metrics.max_tools),
    ]
    .into_iter()
    .filter_map(|(key, changed)| changed.then_some(key))
    .collect()
}

fn audit(config: &Config) -> Option<&Path> {
    config.telemetry.audit.as_ref().map(|audit| audit.path.as_path())
}

fn is_required(config: &Config) -> bool {
    config.telemetry.audit.as_ref().is_some_and(|audit| audit.required)
}

/// The tables that say something else now; servers and keys are told by name.
pub(super) fn tables(old: &Config, new: &Config) -> Vec<&'static str> {
    [
        ("listen", old.listen != new.listen),
        ("admin", old.admin != new.admin),
        ("limits", old.limits != new.limits),
        ("sessions", old.sessions != new.sessions),
        ("streams", old.streams != new.streams),
        ("replay", old.replay != new.replay),
        ("drain", old.drain != new.drain),
        ("auth.issuers", old.auth.issuers != new.auth.issuers),
        ("telemetry", old.telemetry != new.telemetry),
    ]
    .into_iter()
    .filter_map(|(table, changed)| changed.then_some(table))
    .collect()
}

/// Whether sessions to come have other terms, whatever their server.
pub(super) fn renew_sessions(old: &Config, new: &Config) -> bool {
    old.sessions != new.sessions || old.streams != new.streams || old.replay != new.replay
}

/// The names of keys, those of the keys file included.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeyChanges<'a> {
    pub(super) added: Vec<&'a str>,
    pub(super) changed: Vec<&'a str>,
    pub(super) removed: Vec<&'a str>,
}

impl<'a> KeyChanges<'a> {
    pub(super) fn between(old: &'a BTreeMap<Arc<str>, Key>, new: &'a BTreeMap<Arc<str>, Key>) -> KeyChanges<'a> {
        let mut changes = KeyChanges::default();
        for (name, key) in new {
            match old.get(name) {
                None => changes.added.push(name),
                Some(before) if before != key => changes.changed.push(name),
                Some(_) => {}
            }
        }
        changes.removed.extend(old.keys().filter(|name| !new.contains_key(*name)).map(|name| &**name));
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{KeyChanges, fixed, renew_sessions, tables};
    use crate::config::{self, Config};

    fn config(text: &str) -> Config {
        let text = format!("{text}\n[servers.a]\ncommand = \"true\"\n");
        config::parse(&text, "test", Path::new("/"), &|_| None).expect("a configuration").config
    }

    #[test]
    fn what_is_read_only_at_start_is_named() {
        let old = config("");
        assert!(fixed(&old, &config("")).is_empty());
        for (text, key) in [
            ("listen.address = \"127.0.0.1:1\"", "listen.address"),
            ("listen.public_url = \"http://localhost/x\"", "listen.public_url"),
            ("admin.address = \"off\"", "admin.address"),
            ("telemetry.log.format = \"text\"", "telemetry.log.format"),
            ("telemetry.log.audit = \"audit.log\"", "telemetry.log.audit"),
            ("telemetry.metrics.tools = false", "telemetry.metrics.tools"),
            ("telemetry.metrics.max_tools = 3", "telemetry.metrics.max_tools"),
        ] {
            assert_eq!(fixed(&old, &config(text)), [key]);
        }
    }

    #[test]
    fn tables_that_differ_are_named() {
        let old = config("");
        assert!(tables(&old, &config("")).is_empty());
        for (text, table) in [
            ("listen.allowed_hosts = [\"a.example\"]", "listen"),
            ("admin.token = \"t\"", "admin"),
            ("limits.body_bytes = \"1MiB\"", "limits"),
            ("sessions.idle = \"1m\"", "sessions"),
            ("streams.retry = \"2s\"", "streams"),
            ("replay.age = \"1m\"", "replay"),
            ("drain.calls = \"1s\"", "drain"),
            ("telemetry.log.level = \"warn\"", "telemetry"),
        ] {
            let new = config(text);
            assert_eq!(tables(&old, &new), [table]);
            assert!(fixed(&old, &new).is_empty(), "{text} applies at once");
            assert_eq!(renew_sessions(&old, &new), ["sessions", "streams", "replay"].contains(&table), "{text}");
        }
    }

    #[test]
    fn keys_are_told_by_name() {
        let key = |name: &str, digit: &str| format!("[auth.keys.{name}]\nhash = \"sha256:{}\"\n", digit.repeat(64));
        let config = |keys: &[String]| config(&format!("auth.methods = [\"api_key\"]\n{}", keys.concat()));
        let old = config(&[key("kept", "1"), key("other", "2"), key("gone", "3")]);
        let new = config(&[key("kept", "1"), key("other", "4"), key("new", "5")]);
        let changes = KeyChanges::between(&old.auth.keys, &new.auth.keys);
        assert_eq!(changes, KeyChanges { added: vec!["new"], changed: vec!["other"], removed: vec!["gone"] });
    }
}
