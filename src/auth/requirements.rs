//! What callers of one server must be granted, made ready to be asked for each message.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::scopes::Scopes;
use crate::config::{Glob, ScopeRules};

/// One scope that is needed.
#[derive(Debug)]
struct Need {
    scope: Arc<str>,
    /// Scopes that stand for it too.
    broader: Box<[Arc<str>]>,
}

impl Need {
    fn is_met(&self, granted: &Scopes) -> bool {
        granted.contains(&self.scope) || self.broader.iter().any(|scope| granted.contains(scope))
    }
}

/// What is to be done, as far as scopes are asked for it.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// The method; empty for an answer.
    pub method: &'a str,
    /// The tool that is called.
    pub tool: Option<&'a str>,
}

/// Scope rules, made ready.
#[derive(Debug)]
pub struct Requirements {
    everything: Box<[Need]>,
    methods: HashMap<Box<str>, Box<[Need]>>,
    tools: Box<[(Glob, Box<[Need]>)]>,
    /// Every scope the rules name: of what a caller has been granted, what matters here.
    known: BTreeSet<Box<str>>,
}

impl Requirements {
    /// Makes rules ready.
    #[must_use]
    pub fn new(rules: &ScopeRules) -> Requirements {
        let needs = |scopes: &Vec<String>| -> Box<[Need]> {
            scopes.iter().map(|scope| Need { scope: scope.as_str().into(), broader: broader(scope, rules) }).collect()
        };
        let lists = rules.method_scopes.values().chain(rules.tools.iter().map(|(_, scopes)| scopes));
        let implied = rules.implies.iter().flat_map(|(scope, others)| others.iter().chain([scope]));
        let known = rules.scopes.iter().chain(lists.flatten()).chain(implied);
        Requirements {
            everything: needs(&rules.scopes),
            methods: rules.method_scopes.iter().map(|(name, list)| (name.as_str().into(), needs(list))).collect(),
            tools: rules.tools.iter().map(|(glob, scopes)| (glob.clone(), needs(scopes))).collect(),
            known: known.map(|scope| scope.as_str().into()).collect(),
        }
    }

    /// Whether some message needs more than another.
    #[must_use]
    pub fn tells_messages_apart(&self) -> bool {
        !self.methods.is_empty() || !self.tools.is_empty()
    }

    /// Whether some tool needs more than another.
    #[must_use]
    pub fn tells_tools_apart(&self) -> bool {
        !self.tools.is_empty()
    }

    /// The scopes that everything needs.
    pub fn everything(&self) -> impl Iterator<Item = &str> {
        self.everything.iter().map(|need| &*need.scope)
    }

    /// Asks whether what was granted suffices for all of these operations together.
    ///
    /// # Errors
    /// What a client has to ask for: all that they need, and what it was granted of what matters here. A client of
    /// 2025-11-25 asks for that and nothing beside, and would lose what is not named (authorization, Scope Challenge
    /// Handling).
    pub fn check<'o>(
        &self,
        granted: &Scopes,
        operations: impl IntoIterator<Item = Operation<'o>>,
    ) -> Result<(), BTreeSet<&str>>
    where
        Self: 'o,
    {
        let mut needs: Vec<&Need> = Vec::new();
        needs.extend(&self.everything);
        operations.into_iter().for_each(|operation| self.collect(operation, &mut needs));
        if needs.iter().all(|need| need.is_met(granted)) {
            return Ok(());
        }
        let kept = self.known.iter().map(AsRef::as_ref).filter(|scope| granted.contains(scope));
        Err(needs.iter().map(|need| &*need.scope).chain(kept).collect())
    }

    fn collect<'s>(&'s self, operation: Operation<'_>, needs: &mut Vec<&'s Need>) {
        needs.extend(self.methods.get(operation.method).into_iter().flatten());
        if let Some(tool) = operation.tool {
            let matching = self.tools.iter().filter(|(glob, _)| glob.matches(tool));
            needs.extend(matching.flat_map(|(_, scopes)| scopes));
        }
    }
}

/// Every other scope that stands for this one, whether it says so itself or by what it implies.
fn broader(scope: &str, rules: &ScopeRules) -> Box<[Arc<str>]> {
    let mut found: BTreeSet<&str> = BTreeSet::from([scope]);
    let mut open = vec![scope];
    let by_implied: BTreeMap<&str, Vec<&str>> =
        rules.implies.iter().fold(BTreeMap::new(), |mut map, (broad, narrow)| {
            narrow.iter().for_each(|narrow| map.entry(narrow.as_str()).or_default().push(broad));
            map
        });
    while let Some(narrow) = open.pop() {
        let unseen = by_implied.get(narrow).into_iter().flatten().filter(|broad| found.insert(broad));
        open.extend(unseen.copied().collect::<Vec<_>>());
    }
    found.into_iter().filter(|other| *other != scope).map(Arc::from).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Operation, Requirements, Scopes};
    use crate::config;

    fn requirements() -> Requirements {
        let text = "auth.methods = [\"api_key\"]\n[auth.keys.k]\nhash = \"sha256:HASH\"\n[auth]\nscopes = [\"use\"]\n\
            implies = { admin = [\"write\"], write = [\"read\", \"use\"], loop = [\"pool\"], pool = [\"loop\"] }\n\
            method_scopes = { \"tools/call\" = [\"read\"], \"resources/read\" = [\"pool\"] }\n\
            [servers.s]\ncommand = \"x\"\nauth.tools = { \"delete_*\" = [\"write\"], \"*_all\" = [\"every\"] }\n";
        let text = text.replace("HASH", &"0".repeat(64));
        // A table may be opened once.
        let text = text.replacen("auth.methods = [\"api_key\"]\n", "", 1).replacen(
            "[auth]\n",
            "[auth]\nmethods = [\"api_key\"]\n",
            1,
        );
        let loaded = config::parse(&text, "test", Path::new("/"), &|_| None).expect("a configuration");
        Requirements::new(&loaded.config.servers["s"].auth.scope_rules)
    }

    fn check(granted: &str, method: &str, tool: Option<&str>) -> Result<(), String> {
        let requirements = requirements();
        let operation = Operation { method, tool };
        let checked = requirements.check(&Scopes::listed(granted), [operation]);
        checked.map_err(|lacking| lacking.into_iter().collect::<Vec<_>>().join(" "))
    }

    /// R:A08
    #[test]
    fn a_broader_scope_stands_for_a_narrower_one() {
        for (granted, method, tool) in [
            ("use", "ping", None),
            ("write", "ping", None),
            ("admin", "", None),
            ("use read", "tools/call", Some("echo")),
            ("admin", "tools/call", Some("delete_file")),
            ("admin every", "tools/call", Some("delete_all")),
            ("use loop", "resources/read", None),
        ] {
            assert_eq!(check(granted, method, tool), Ok(()), "{granted}: {method} {tool:?}");
        }
    }

    /// R:A06, R:A07
    #[test]
    fn what_is_lacking_is_named_all_at_once_with_what_was_granted() {
        for (granted, method, tool, asked) in [
            ("", "ping", None, "use"),
            ("read openid offline_access", "ping", None, "read use"),
            ("", "tools/call", Some("delete_all"), "every read use write"),
            ("use read", "tools/call", Some("delete_file"), "read use write"),
            ("write", "tools/call", Some("purge_all"), "every read use write"),
            ("us use2 USE", "ping", None, "use"),
        ] {
            assert_eq!(check(granted, method, tool), Err(asked.to_owned()), "{granted}: {method} {tool:?}");
        }
    }

    #[test]
    fn the_messages_of_a_batch_need_what_all_of_them_need() {
        let requirements = requirements();
        let operations = [("resources/read", None), ("tools/call", Some("delete_x"))];
        let operations = operations.map(|(method, tool)| Operation { method, tool });
        let lacking = requirements.check(&Scopes::listed("use"), operations).expect_err("it lacks some");
        assert_eq!(lacking.into_iter().collect::<Vec<_>>(), ["pool", "read", "use", "write"]);
        assert!(requirements.check(&Scopes::listed("admin pool"), operations).is_ok());
    }
}
