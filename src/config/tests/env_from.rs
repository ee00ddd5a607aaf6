//! Variables whose values callers bring.

use super::{bad, good};

/// F:E12
#[test]
fn sources_and_variables_are_read_and_defaults_merge() {
    let loaded = good(
        r#"
        [server_defaults.env_from]
        headers = { "X-GitHub-Token" = "GITHUB_TOKEN" }
        [servers.one]
        command = "one"
        mode = "principal"
        env_from = { headers = { "X-Region" = "REGION" }, claims = { "https://example.com/tenant" = "TENANT" } }
        [servers.two]
        command = "two"
        [servers.three]
        command = "three"
        env_from.headers."X-GitHub-Token" = "GH_TOKEN"
        "#,
    );
    let [one, two] = ["one", "two"].map(|name| &loaded.config.servers[name].env_from);
    assert_eq!(one.headers["x-github-token"], "GITHUB_TOKEN");
    assert_eq!((one.headers.len(), one.claims["https://example.com/tenant"].as_str()), (2, "TENANT"));
    assert!(one.sets("TENANT") && one.sets("REGION") && !one.sets("x-region"));
    assert!(!two.is_empty() && two.claims.is_empty());
    assert_eq!(loaded.config.servers["three"].env_from.headers["x-github-token"], "GH_TOKEN");
    let shown =
        loaded.effective.iter().find(|it| it.key == "servers.one.env_from.headers.X-Region").expect("explained");
    assert_eq!(shown.value, "\"REGION\"");
    assert!(good("[servers.a]\ncommand = \"a\"\n").config.servers["a"].env_from.is_empty());
}

/// F:E12, R:A13
#[test]
fn what_may_not_be_is_refused_at_its_place() {
    let server = "[servers.a]\ncommand = \"a\"\n";
    for (line, expected) in [
        ("env_from.headers.Authorization = \"TOKEN\"", "`servers.a.env_from.headers.Authorization` is never passed on"),
        ("env_from.headers.mcp-session-id = \"ID\"", "is never passed on"),
        ("env_from.headers.Content-Length = \"N\"", "is about the message itself"),
        ("env_from.headers.\"X Y\" = \"A\"", "is no header"),
        ("env_from.headers.X-A = \"LD_PRELOAD\"", "would let callers set LD_PRELOAD"),
        ("env_from.claims.sub = \"https_proxy\"", "would let callers set https_proxy"),
        ("env_from.headers.X-A = \"A=B\"", "names no variable"),
        ("env_from.headers.X-A = 1", "cannot be an integer"),
        ("env_from.claims.\"\" = \"A\"", "names no claim"),
        ("env_from.headers = { X-A = \"A\", x-a = \"B\" }", "stands twice"),
        ("env_from = { headers = { X-A = \"A\" }, claims = { sub = \"A\" } }", "fills the variable `A` twice"),
        ("env_from.headers.X-A = \"A\"\nenv.A = \"1\"", "who decides about `A`"),
        ("env_from.headers.X-A = \"A\"\nenv_pass = [\"A\"]", "who decides about `A`"),
        ("env_from.headers.X-A = \"A\"\nmode = \"shared\"", "to a process of all"),
        ("env_from.cookies = {}", "unknown key `cookies`"),
        ("env_from.headers = \"X-A\"", "cannot be a string"),
    ] {
        let problems = bad(&format!("{server}{line}\n"));
        let all: Vec<_> = problems.iter().collect();
        assert!(all.len() == 1 && all[0].message().contains(expected), "{line}: {problems}");
        assert!(all[0].position().is_some_and(|(at, _)| at >= 3) && !all[0].remedy().is_empty(), "{line}: {problems}");
    }
}

#[test]
fn what_comes_together_from_defaults_is_refused_where_the_server_says_its_part() {
    let defaults = "[server_defaults]\nenv_from.headers.X-A = \"A\"\n[servers.a]\ncommand = \"a\"\n";
    for line in ["mode = \"shared\"", "env.A = \"1\"", "env_pass = [\"A\"]"] {
        let problems = bad(&format!("{defaults}{line}\n"));
        let places: Vec<_> = problems.iter().map(|problem| problem.position().map(|(at, _)| at)).collect();
        assert_eq!(places, [Some(5)], "{line}: {problems}");
    }
    let problems =
        bad("[server_defaults]\nmode = \"shared\"\nenv_from.headers.X-A = \"A\"\n[servers.a]\ncommand = \"a\"\n");
    assert_eq!(problems.iter().count(), 1, "{problems}");
}
