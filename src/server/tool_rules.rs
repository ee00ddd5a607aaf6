//! Rules that name tools, against the tools there are: a slip of the pen there hides nothing, and says nothing.

use tracing::warn;

use crate::config::{Glob, Server};
use crate::upstream::scout::Catalogue;

/// Warns of every pattern of a server's table that stands for no tool the server has.
pub(super) fn warn_of_idle_patterns(name: &str, config: &Server, catalogue: &Catalogue) {
    for (key, glob) in idle_patterns(config, catalogue.tools.as_deref().unwrap_or_default()) {
        let warning = format!("{key} has \"{glob}\", which stands for no tool of this server");
        warn!(event = "warning", server = name, warning);
    }
}

/// Every pattern that stands for none of these tools, with its key.
fn idle_patterns<'c>(config: &'c Server, tools: &[String]) -> Vec<(&'static str, &'c Glob)> {
    let allow = config.tools.allow.iter().map(|glob| ("tools.allow", glob));
    let deny = config.tools.deny.iter().map(|glob| ("tools.deny", glob));
    let scoped = config.auth.scope_rules.tools.iter().map(|(glob, _)| ("auth.tools", glob));
    let is_idle = |(_, glob): &(&str, &Glob)| !tools.iter().any(|tool| glob.matches(tool));
    allow.chain(deny).chain(scoped).filter(is_idle).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::idle_patterns;
    use crate::config;

    #[test]
    fn patterns_that_stand_for_nothing_are_found() {
        let text = "auth.methods = [\"api_key\"]\nauth.keys.k.hash = \"sha256:HASH\"\n[servers.s]\ncommand = \"x\"\n\
            tools = { allow = [\"*\"], deny = [\"delete_*\", \"remove\"] }\nauth.tools = { \"wirte\" = [\"w\"] }\n";
        let text = text.replace("HASH", &"0".repeat(64));
        let config = config::parse(&text, "test", Path::new("/"), &|_| None).expect("a configuration").config;
        let tools = ["read", "write", "remove"].map(str::to_owned);
        let idle = idle_patterns(&config.servers["s"], &tools);
        let idle: Vec<String> = idle.iter().map(|(key, glob)| format!("{key} {glob}")).collect();
        assert_eq!(idle, ["tools.deny delete_*", "auth.tools wirte"]);
    }
}
