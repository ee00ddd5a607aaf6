//! `[auth]`, and the `auth` of a server.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::convert::{Refused, mismatch, pick};
use super::document::{Place, Value};
use super::issuer;
use super::keys;
use super::keys_file;
use super::meaning::{Auth, Key, Method};
use super::report::{Report, shown};
use super::scope_rules::{self, ScopeRules};
use super::section::Section;

/// What `[auth]` says.
pub(super) struct Said {
    /// `methods`; empty where nothing is said.
    pub(super) methods: Vec<Method>,
    /// Something unusable stands there: that is a problem of its own, and says nothing about doors.
    pub(super) methods_refused: bool,
    /// Where `methods` stands, or would.
    pub(super) place: Option<Place>,
    pub(super) auth: Auth,
    /// Some key is configured, be it one that cannot be used.
    pub(super) has_keys: bool,
    /// Some issuer is configured, be it one that cannot be used.
    pub(super) has_issuers: bool,
    /// Where the servers stand that a key of the file names.
    pub(super) openings: Vec<(Place, Vec<String>)>,
    /// What every server asks to be granted that says nothing else.
    pub(super) scope_rules: ScopeRules,
    /// Where it says so.
    pub(super) scopes_place: Option<Place>,
}

/// Reads `[auth]`.
pub(super) fn read(mut section: Section<'_>) -> Said {
    let place = section.place("methods");
    let was_said = section.has("methods");
    let methods = methods(&mut section);
    let methods_refused = was_said && methods.is_none();
    let base = section.report.base;
    let keys_file = section.parsed("keys_file", "", |path| Ok(base.join(path)));
    let scope_rules = scope_rules::read(&mut section);
    let scopes_place = scope_rules::place(&section);
    let (said, is_any) = keys::read(&mut section);
    let has_keys = is_any || keys_file.is_some();
    let has_issuers = section.has("issuers");
    let issuers = issuer::read(&mut section);
    let openings = said
        .values()
        .filter_map(|said| said.key.servers.clone().map(|servers| (said.servers_place.clone(), servers)))
        .collect();
    let filed = keys_file.as_deref().map(|path| read_keys_file(section.report, path)).unwrap_or_default();
    let names = filed.keys().cloned().collect();
    let keys = keys::join(section.report, said, filed);
    let auth = Auth { keys, keys_file, filed: names, issuers };
    Said {
        methods: methods.unwrap_or_default(),
        methods_refused,
        place,
        auth,
        has_keys,
        has_issuers,
        openings,
        scope_rules,
        scopes_place,
    }
}

fn read_keys_file(report: &Report<'_>, path: &Path) -> BTreeMap<Arc<str>, Key> {
    keys_file::read_keys_file(path).unwrap_or_else(|problems| {
        problems.iter().cloned().for_each(|problem| report.add(problem));
        BTreeMap::new()
    })
}

/// What the `auth` of a server says.
pub(super) struct ServerSaid {
    /// Its methods, if it has its own.
    pub(super) methods: Option<Vec<Method>>,
    /// The issuers it names, with their places, if it names any.
    pub(super) issuers: Option<Vec<(Place, Arc<str>)>>,
    /// What it says of scopes.
    pub(super) scope_rules: scope_rules::Said,
}

/// Reads the `auth` of a server.
pub(super) fn read_server(mut section: Section<'_>) -> ServerSaid {
    ServerSaid {
        methods: server_methods(&mut section),
        issuers: server_issuers(&mut section),
        scope_rules: scope_rules::read_server(&mut section),
    }
}

fn server_issuers(section: &mut Section<'_>) -> Option<Vec<(Place, Arc<str>)>> {
    const KEY: &str = "issuers";
    if !section.has(KEY) {
        section.declare(KEY);
        return None;
    }
    let place = section.place(KEY)?;
    let names = section.list(KEY, |name| Ok(Arc::from(name)));
    if names.is_empty() && section.is_empty_list(KEY) {
        let refused = Refused::new("takes no issuer", "name some of [auth.issuers], or leave it out for all");
        section.refuse(KEY, Some(&place), refused);
    }
    Some(names.into_iter().map(|name| (place.clone(), name)).collect())
}

fn server_methods(section: &mut Section<'_>) -> Option<Vec<Method>> {
    if !section.has("methods") {
        section.declare("methods");
        return None;
    }
    let place = section.place("methods");
    let methods = methods(section);
    if methods.as_ref().is_some_and(Vec::is_empty) {
        let refused = Refused::new(
            "is empty",
            "leave it out to take what [auth] says, or write [\"api_key\"], [\"oauth\"] or [\"none\"]",
        );
        section.refuse("methods", place.as_ref(), refused);
        return None;
    }
    methods
}

/// Reads `methods`; `None` where nothing is said, or nothing that can be used.
fn methods(section: &mut Section<'_>) -> Option<Vec<Method>> {
    const KEY: &str = "methods";
    let node = section.take(KEY);
    section.record(KEY, node, node.map_or_else(|| "[]".to_owned(), |node| shown(&node.value)));
    let node = node?;
    let Value::Array(items) = &node.value else {
        section.refuse(KEY, Some(&node.place), mismatch(&node.value, "write an array: [\"api_key\"]"));
        return None;
    };
    let methods = section.items(KEY, items, |word| pick(word, &Method::NAMED));
    if methods.len() < items.len() {
        return None;
    }
    if methods.contains(&Method::None) && methods.len() > 1 {
        let refused =
            Refused::new("has \"none\" beside another", "\"none\" lets everybody in: leave it out, or the others");
        section.refuse(KEY, Some(&node.place), refused);
        return None;
    }
    Some(methods)
}
