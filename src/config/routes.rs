//! Names of servers and the paths they answer at: each means one thing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::report::Report;
use super::server::Said;

/// Names that are words of the routes.
const RESERVED: [&str; 6] = ["mcp", "sse", "messages", "livez", "readyz", "metrics"];

/// Paths the gateway answers itself.
const OWN_PATHS: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Why a server cannot have this name: the end of a sentence that starts with it.
///
/// # Errors
/// The name is reserved, or does not match `[a-z0-9][a-z0-9-]{0,31}`.
pub fn check_server_name(name: &str) -> Result<(), &'static str> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if RESERVED.contains(&name) {
        return Err("is a word of Gangway's own routes");
    }
    if name.is_empty() || name.len() > 32 || !name.starts_with(plain) || !name.chars().all(|c| plain(c) || c == '-') {
        return Err("is no name for a server: 1 to 32 of a-z, 0-9 and -, and no - at its beginning");
    }
    Ok(())
}

/// Reports every path that two servers, or a server and the gateway, would answer at.
pub(super) fn check(report: &Report<'_>, servers: &BTreeMap<Arc<str>, Said>) {
    let mut taken: BTreeMap<String, Arc<str>> = BTreeMap::new();
    for (name, said) in servers {
        for path in said.server.paths() {
            if OWN_PATHS.contains(&path.as_str()) {
                let message = format!("the server `{name}` would answer at {path}, which is Gangway's own");
                report.problem(said.places.path.as_ref(), message, "give it another `path`");
            } else if let Some(other) = taken.insert(path.clone(), name.clone()) {
                let message = match other == *name {
                    true => format!("the server `{name}` would answer at {path} in two ways"),
                    false => {
                        format!("the servers `{other}` and `{name}` would both answer at {path}")
                    }
                };
                let remedy =
                    "give each a `path` of its own; `legacy_sse` adds the same path ending in sse and in messages";
                report.problem(said.places.path.as_ref(), message, remedy);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check_server_name;

    #[test]
    fn names_follow_the_pattern() {
        for name in ["a", "0", "files", "my-server-2", "a--b-", &"a".repeat(32)] {
            assert_eq!(check_server_name(name), Ok(()), "{name}");
        }
        for name in
            ["", "-a", "A", "a_b", "a.b", "é", "mcp", "sse", "messages", "livez", "readyz", "metrics", &"a".repeat(33)]
        {
            assert!(check_server_name(name).is_err(), "{name}");
        }
    }
}
