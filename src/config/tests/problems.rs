//! Everything that is wrong with a file, each with its place and a remedy.

use super::{bad, good};

#[test]
fn every_problem_is_reported_with_its_place() {
    let text = r#"[listen]
adress = "localhost:8080"
health = "yes"
[mcpServers.a]
command = "a"
[server_defaults]
args = ["x"]
pool = { max_sise = 3, wait = "30" }
[servers.Files]
command = "npx -y files"
[servers.a]
env = { A = 1 }
[servers.b]
command = "b"
path = "/a/mcp/"
args = "-y"
[limits]
body_bytes = "8MB"
memory = "${UNSET}"
"#;
    let problems = bad(text);
    let found: Vec<((usize, usize), &str, &str)> =
        problems.iter().map(|p| (p.position().expect("a place"), p.message(), p.remedy())).collect();
    let expected = [
        ((2, 1), "unknown key `adress` in [listen]", "did you mean `address`?"),
        ((3, 10), "`listen.health` cannot be a string", "write true or false"),
        ((4, 2), "unknown table or key `mcpServers`", "did you mean `servers`?"),
        ((7, 8), "`server_defaults.args` cannot have a default", "write it in each [servers.NAME]"),
        ((8, 10), "unknown key `max_sise` in [server_defaults.pool]", "did you mean `max_size`?"),
        ((8, 31), "`server_defaults.pool.wait` has no unit", "such as \"30s\""),
        ((9, 10), "`Files` is no name for a server", "choose another name"),
        ((10, 11), "`servers.Files.command` is more than one word", "args = [\"-y\", \"files\"]"),
        ((11, 10), "`servers.a.command` is missing", "name the program"),
        ((12, 13), "`servers.a.env.A` cannot be an integer", "write a string in quotes"),
        ((15, 8), "the servers `a` and `b` would both answer at /a/mcp", "a `path` of its own"),
        ((16, 8), "`servers.b.args` cannot be a string", "write an array"),
        ((18, 14), "`limits.body_bytes` has an unknown unit", "KiB, MiB and GiB"),
        ((19, 10), "the environment variable `UNSET` is not set", "set it, or give a default"),
    ];
    for (found, (place, message, remedy)) in found.iter().zip(&expected) {
        assert_eq!(found.0, *place, "{found:?}");
        assert!(found.1.starts_with(message), "{found:?}");
        assert!(found.2.contains(remedy), "{found:?}");
    }
    assert_eq!(found.len(), expected.len(), "{problems}");
    let shown = problems.to_string();
    assert!(shown.contains("a.toml:2:1: unknown key"), "{shown}");
    assert!(shown.contains("2 | adress = \"localhost:8080\"\n    | ^^^^^^\n"), "{shown}");
    assert!(shown.ends_with("14 problems in the configuration"), "{shown}");
}

#[test]
fn a_syntax_error_is_one_problem() {
    let problems = bad("[listen]\naddress = \n[limits]\nwrong = 1\n");
    assert_eq!(problems.iter().filter_map(|p| p.position()).map(|(line, _)| line).collect::<Vec<_>>(), [2]);
}

#[test]
fn json_is_called_by_its_name() {
    let problems = bad("\n{ \"mcpServers\": { \"a\": { \"command\": \"a\" } } }\n");
    assert!(problems.to_string().contains("this is JSON: write TOML"), "{problems}");
}

/// Nothing is wrong only because something else is.
#[test]
fn a_problem_brings_no_other() {
    let server = "[servers.a]\ncommand = \"a\"\n";
    for text in [
        "[auth]\nmethods = [\"api_key\"]\n[auth.keys.k]\nhash = \"${UNSET}\"\n",
        "[auth]\nmethods = [\"api_key\"]\n[auth.keys.k]\nhash = \"abc\"\n",
        "[auth]\nmethods = [\"passwords\"]\n[listen]\naddress = \"0.0.0.0:1\"\n",
        "[auth]\nmethods = \"api_key\"\n[listen]\npublic_url = \"https://a.example\"\n",
        "listen.public_url = \"https://a.example\"\n[auth]\nmethods = [\"oauth\"]\n[auth.issuers.i]\n",
    ] {
        let problems = bad(&format!("{text}{server}"));
        assert_eq!(problems.iter().count(), 1, "{problems}");
    }
}

#[test]
fn every_number_size_and_time_out_of_range_has_a_remedy() {
    for (line, message, remedy) in [
        ("requests_in_flight = -1", "cannot be negative", "write at least 0"),
        ("memory = \"1KiB\"", "must be at least 1MiB", "write \"1MiB\" or more"),
        ("header_bytes = \"off\"", "cannot be switched off", "write at least \"8KiB\""),
        ("keep_alive = 0", "cannot be switched off", "write a time above zero, such as \"30s\""),
    ] {
        let problems = bad(&format!("[limits]\n{line}\n"));
        let found: Vec<(&str, &str)> = problems.iter().map(|problem| (problem.message(), problem.remedy())).collect();
        assert!(matches!(found[..], [(said, better)] if said.ends_with(message) && better == remedy), "{problems}");
    }
}

#[test]
fn the_life_of_processes_is_checked_all_at_once() {
    let text = "[servers.a]\ncommand = \"a\"\nmode = \"share\"\n[servers.a.pool]\nidle_timeout = \"10\"\n\
                max_lifetime = \"0s\"\nmax_uses = -1\nmax_sessions_per_child = \"64\"\nmax_call_per_child = 1\n";
    let problems = bad(text);
    let found: Vec<_> = problems.iter().map(|p| (p.position().expect("a place").0, p.message(), p.remedy())).collect();
    let expected = [
        (3, "`servers.a.mode` has an unknown value", "did you mean \"shared\"?"),
        (5, "`servers.a.pool.idle_timeout` has no unit", "such as \"30s\""),
        (6, "`servers.a.pool.max_lifetime` leaves no time at all", "write \"off\""),
        (7, "`servers.a.pool.max_uses` cannot be negative", "write at least 0"),
        (8, "`servers.a.pool.max_sessions_per_child` cannot be a string", "without quotes"),
        (9, "unknown key `max_call_per_child`", "did you mean `max_calls_per_child`?"),
    ];
    assert_eq!(found.len(), expected.len(), "{problems}");
    for (found, (line, message, remedy)) in found.iter().zip(&expected) {
        assert_eq!(found.0, *line, "{found:?}");
        assert!(found.1.starts_with(message) && found.2.contains(remedy), "{found:?}");
    }
}

#[test]
fn names_of_other_programs_are_known() {
    for name in ["server", "mcpServers", "mcp_servers", "backends"] {
        let problems = bad(&format!("[{name}.a]\ncommand = \"a\"\n"));
        assert!(problems.to_string().contains("did you mean `servers`?"), "{problems}");
    }
}

#[test]
fn a_wrong_default_is_reported_once_and_a_clash_with_it_at_the_server() {
    let text = "[server_defaults]\nmode = \"pooled\"\n[servers.a]\ncommand = \"a\"\n[servers.b]\ncommand = \"b\"\n";
    assert_eq!(bad(text).iter().filter_map(|p| p.position()).collect::<Vec<_>>(), [(2, 8)]);
    let text = "[server_defaults.pool]\nmin_idle = 4\n[servers.a]\ncommand = \"a\"\npool.max_size = 2\n";
    assert_eq!(bad(text).iter().filter_map(|p| p.position()).collect::<Vec<_>>(), [(5, 17)]);
}

#[test]
fn a_place_is_taken_once() {
    for text in [
        "[servers.a]\ncommand = \"a\"\nlegacy_sse = true\n[servers.b]\ncommand = \"b\"\npath = \"/a/sse\"\n",
        "[servers.a]\ncommand = \"a\"\npath = \"/a/messages\"\nlegacy_sse = true\n",
        "[servers.a]\ncommand = \"a\"\npath = \"/livez\"\n",
        "[listen]\naddress = [\"localhost:1\", \"localhost:1\"]\n",
        "[listen]\naddress = \"localhost:1\"\n[admin]\naddress = \"127.0.0.1:1\"\n",
        "[listen]\naddress = []\n",
    ] {
        assert_eq!(bad(text).iter().count(), 1, "{text}");
    }
    good("[servers.a]\ncommand = \"a\"\nlegacy_sse = true\npath = \"/x/a\"\n[servers.b]\ncommand = \"b\"\n");
}
