//! `scopes`, `implies`, `method_scopes` and the `tools` of a server's `auth`: what callers must be granted for what.

use std::collections::BTreeMap;

use super::convert::{Refused, mismatch};
use super::document::{Place, Value};
use super::glob::Glob;
use super::report::shown;
use super::section::Section;

/// Longest scope, in bytes.
const LONGEST: usize = 256;

/// The keys that ask for scopes.
const KEYS: [&str; 3] = ["scopes", "method_scopes", "tools"];

/// What callers of one server must be granted (RFC 6749 section 3.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeRules {
    /// For everything.
    pub scopes: Vec<String>,
    /// What a scope stands for beside itself, each in turn.
    pub implies: BTreeMap<String, Vec<String>>,
    /// For messages with this method.
    pub method_scopes: BTreeMap<String, Vec<String>>,
    /// For calls of tools with such a name.
    pub tools: Vec<(Glob, Vec<String>)>,
}

impl ScopeRules {
    /// Whether nothing has to be granted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.scopes.is_empty() && self.method_scopes.is_empty() && self.tools.is_empty()
    }
}

/// What one `auth` table says; `None` where it says nothing.
#[derive(Default)]
pub(super) struct Said {
    pub(super) scopes: Option<Vec<String>>,
    pub(super) method_scopes: Option<BTreeMap<String, Vec<String>>>,
    pub(super) tools: Vec<(Glob, Vec<String>)>,
    /// Where it asks for something.
    pub(super) place: Option<Place>,
}

impl Said {
    /// What is in effect for a server that says this, while `[auth]` says the other.
    pub(super) fn over(self, inherited: &ScopeRules) -> ScopeRules {
        ScopeRules {
            scopes: self.scopes.unwrap_or_else(|| inherited.scopes.clone()),
            implies: inherited.implies.clone(),
            method_scopes: self.method_scopes.unwrap_or_else(|| inherited.method_scopes.clone()),
            tools: self.tools,
        }
    }
}

/// Reads what `[auth]` says for every server.
pub(super) fn read(section: &mut Section<'_>) -> ScopeRules {
    ScopeRules {
        scopes: section.list("scopes", parse_scope),
        implies: lists(section, "implies", parse_scope).into_iter().collect(),
        method_scopes: lists(section, "method_scopes", parse_method).into_iter().collect(),
        tools: Vec::new(),
    }
}

/// Reads what the `auth` of a server says.
pub(super) fn read_server(section: &mut Section<'_>) -> Said {
    let mut said = Said { place: place(section), ..Said::default() };
    if section.has("scopes") {
        said.scopes = Some(section.list("scopes", parse_scope));
    }
    if section.has("method_scopes") {
        said.method_scopes = Some(lists(section, "method_scopes", parse_method).into_iter().collect());
    }
    if section.has("tools") {
        said.tools = lists(section, "tools", Glob::parse);
    }
    KEYS.into_iter().for_each(|key| section.declare(key));
    said
}

/// Where a table asks for scopes first.
pub(super) fn place(section: &Section<'_>) -> Option<Place> {
    let key = KEYS.into_iter().find(|key| section.has(key))?;
    section.place(key)
}

/// Reads a table whose values are lists of scopes, by names that `parse_name` reads.
fn lists<N>(
    section: &mut Section<'_>,
    key: &'static str,
    parse_name: impl Fn(&str) -> Result<N, Refused>,
) -> Vec<(N, Vec<String>)> {
    let node = section.take(key);
    section.record(key, node, node.map_or_else(|| "{}".to_owned(), |node| shown(&node.value)));
    let mut read = Vec::new();
    for (name, entry) in section.table_of(key, node).into_iter().flatten() {
        let whole = format!("{key}.{}", super::report::quoted(name));
        let refuse = |place: &Place, refused| section.refuse(&whole, Some(place), refused);
        let scopes = match &entry.node.value {
            Value::Array(items) => section.items(&whole, items, parse_scope),
            Value::Unfilled => continue,
            other => {
                refuse(&entry.node.place, mismatch(other, "write an array of scopes: [\"…\", \"…\"]"));
                continue;
            }
        };
        match parse_name(name) {
            Ok(name) => read.push((name, scopes)),
            Err(refused) => refuse(&entry.key, refused),
        }
    }
    read
}

/// Reads one scope: printable ASCII without space, quote and backslash (RFC 6749, appendix A.4).
pub(super) fn parse_scope(text: &str) -> Result<String, Refused> {
    let legal = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5B | 0x5D..=0x7E);
    if text.is_empty() || text.len() > LONGEST || !text.bytes().all(legal) {
        return Err(Refused::new(
            "has an entry that is no scope",
            "write one word for each scope: [\"read\", \"write\"]",
        ));
    }
    if text == "offline_access" {
        let remedy = "leave it out: it is between a client and its authorization server, and stands in no access token";
        return Err(Refused::new("asks for offline_access", remedy));
    }
    Ok(text.to_owned())
}

fn parse_method(text: &str) -> Result<String, Refused> {
    if text.is_empty() || text.contains(char::is_whitespace) || text.contains('*') {
        return Err(Refused::new("is no method", "write one method, such as \"tools/call\""));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::parse_scope;

    #[test]
    fn scopes_are_what_a_challenge_can_carry() {
        for good in ["read", "files:write", "https://example.com/scope.read", "a!#[]~"] {
            assert!(parse_scope(good).is_ok(), "{good}");
        }
        for wrong in ["", "a b", "a\"b", "a\\b", "é", "a\n", "offline_access", &"a".repeat(257)] {
            assert!(parse_scope(wrong).is_err(), "{wrong}");
        }
    }
}
