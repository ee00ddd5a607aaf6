//! What whole files mean, and everything that is wrong with them.

mod files;
mod run;

use std::path::Path;
use std::time::Duration;

use super::{Address, Loaded, Method, Problems, Required, parse};

/// A hash nobody has the key of.
const HASH: &str = "sha256:0101010101010101010101010101010101010101010101010101010101010101";

fn read(text: &str) -> Result<Loaded, Problems> {
    parse(text, "a.toml", Path::new("/etc/gangway"), &|name| {
        (name == "SIZE").then(|| "2MiB".to_owned())
    })
}

fn good(text: &str) -> Loaded {
    read(text).unwrap_or_else(|problems| panic!("{problems}\nin\n{text}"))
}

fn bad(text: &str) -> Problems {
    read(text)
        .err()
        .unwrap_or_else(|| panic!("nothing is wrong with\n{text}"))
}

#[test]
fn values_get_their_types_and_units() {
    let config = good(
        r#"
        listen = { address = ["[::1]:0", "unix:g.sock"], allowed_hosts = ["A.example"], trusted_proxies = ["10.0.0.0/8"] }
        limits = { memory = "${SIZE}", body_bytes = 65536, connections = 0, connection_age = "2h" }
        sessions = { idle = "off", absolute = 0, max = 7 }
        [servers.files]
        command = "./bin/files"
        cwd = "data"
        timeouts.call_total = "off"
        breaker.failures = 0
        "#,
    )
    .config;
    assert_eq!(
        config.listen.address[0],
        Address::Tcp {
            host: "::1".to_owned(),
            port: 0
        }
    );
    assert_eq!(
        config.listen.address[1],
        Address::Unix("/etc/gangway/g.sock".into())
    );
    assert_eq!(config.listen.allowed_hosts, ["a.example"]);
    assert_eq!(
        (
            config.limits.memory,
            config.limits.body_bytes,
            config.limits.connections
        ),
        (2 << 20, 65536, None)
    );
    assert_eq!(
        config.limits.connection_age,
        Some(Duration::from_secs(7200))
    );
    assert_eq!(
        (
            config.sessions.idle,
            config.sessions.absolute,
            config.sessions.max
        ),
        (None, None, Some(7))
    );
    let server = &config.servers["files"];
    assert_eq!(server.command, "/etc/gangway/./bin/files");
    assert_eq!(server.cwd.as_deref(), Some(Path::new("/etc/gangway/data")));
    assert_eq!(
        (server.timeouts.call_total, server.breaker.failures),
        (None, u32::MAX)
    );
    assert_eq!(
        (server.required, server.path.as_str()),
        (Required::Yes, "/files/mcp")
    );
    assert_eq!(server.auth.methods, [Method::None]);
}

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
    let found: Vec<((usize, usize), &str, &str)> = problems
        .iter()
        .map(|p| (p.position().expect("a place"), p.message(), p.remedy()))
        .collect();
    let expected = [
        (
            (2, 1),
            "unknown key `adress` in [listen]",
            "did you mean `address`?",
        ),
        (
            (3, 10),
            "`listen.health` cannot be a string",
            "write true or false",
        ),
        (
            (4, 2),
            "unknown table or key `mcpServers`",
            "did you mean `servers`?",
        ),
        (
            (7, 8),
            "`server_defaults.args` cannot have a default",
            "write it in each [servers.NAME]",
        ),
        (
            (8, 10),
            "unknown key `max_sise` in [server_defaults.pool]",
            "did you mean `max_size`?",
        ),
        (
            (8, 31),
            "`server_defaults.pool.wait` has no unit",
            "such as \"30s\"",
        ),
        (
            (9, 10),
            "`Files` is no name for a server",
            "choose another name",
        ),
        (
            (10, 11),
            "`servers.Files.command` is more than one word",
            "args = [\"-y\", \"files\"]",
        ),
        (
            (11, 10),
            "`servers.a.command` is missing",
            "name the program",
        ),
        (
            (12, 13),
            "`servers.a.env.A` cannot be an integer",
            "write a string in quotes",
        ),
        (
            (15, 8),
            "the servers `a` and `b` would both answer at /a/mcp",
            "a `path` of its own",
        ),
        (
            (16, 8),
            "`servers.b.args` cannot be a string",
            "write an array",
        ),
        (
            (18, 14),
            "`limits.body_bytes` has an unknown unit",
            "KiB, MiB and GiB",
        ),
        (
            (19, 10),
            "the environment variable `UNSET` is not set",
            "set it, or give a default",
        ),
    ];
    for (found, (place, message, remedy)) in found.iter().zip(&expected) {
        assert_eq!(found.0, *place, "{found:?}");
        assert!(found.1.starts_with(message), "{found:?}");
        assert!(found.2.contains(remedy), "{found:?}");
    }
    assert_eq!(found.len(), expected.len(), "{problems}");
    let shown = problems.to_string();
    assert!(shown.contains("a.toml:2:1: unknown key"), "{shown}");
    assert!(
        shown.contains("2 | adress = \"localhost:8080\"\n    | ^^^^^^\n"),
        "{shown}"
    );
    assert!(
        shown.ends_with("14 problems in the configuration"),
        "{shown}"
    );
}

#[test]
fn a_syntax_error_is_one_problem() {
    let problems = bad("[listen]\naddress = \n[limits]\nwrong = 1\n");
    assert_eq!(
        problems
            .iter()
            .filter_map(|p| p.position())
            .map(|(line, _)| line)
            .collect::<Vec<_>>(),
        [2]
    );
}

#[test]
fn names_of_other_programs_are_known() {
    for name in ["server", "mcpServers", "mcp_servers", "backends"] {
        let problems = bad(&format!("[{name}.a]\ncommand = \"a\"\n"));
        assert!(
            problems.to_string().contains("did you mean `servers`?"),
            "{problems}"
        );
    }
}

#[test]
fn defaults_merge_key_by_key_and_arrays_replace() {
    let config = good(
        r#"
        [server_defaults]
        env = { A = "default", B = "default" }
        env_pass = ["X", "Y"]
        pool = { max_size = 9, min_idle = 3 }
        strict_status = true
        [servers.one]
        command = "one"
        env = { B = "own", C = "own" }
        env_pass = ["Z"]
        pool.max_size = 4
        strict_status = false
        [servers.two]
        command = "two"
        "#,
    )
    .config;
    let one = &config.servers["one"];
    let pairs: Vec<(&str, &str)> = one
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(pairs, [("A", "default"), ("B", "own"), ("C", "own")]);
    assert_eq!(one.env_pass, ["Z"]);
    assert_eq!(
        (one.pool.max_size, one.pool.min_idle, one.strict_status),
        (Some(4), 3, false)
    );
    let two = &config.servers["two"];
    assert_eq!(
        (
            two.env.len(),
            two.env_pass.len(),
            two.pool.max_size,
            two.strict_status
        ),
        (2, 2, Some(9), true)
    );
    assert_eq!((one.required, two.required), (Required::No, Required::No));
}

#[test]
fn a_wrong_default_is_reported_once_and_a_clash_with_it_at_the_server() {
    let text = "[server_defaults]\nmode = \"shared\"\n[servers.a]\ncommand = \"a\"\n[servers.b]\ncommand = \"b\"\n";
    assert_eq!(
        bad(text)
            .iter()
            .filter_map(|p| p.position())
            .collect::<Vec<_>>(),
        [(2, 8)]
    );
    let text =
        "[server_defaults.pool]\nmin_idle = 4\n[servers.a]\ncommand = \"a\"\npool.max_size = 2\n";
    assert_eq!(
        bad(text)
            .iter()
            .filter_map(|p| p.position())
            .collect::<Vec<_>>(),
        [(5, 17)]
    );
}

#[test]
fn an_env_file_lies_below_env() {
    let folder = std::env::temp_dir();
    let name = format!("gangway-server-env-{}", std::process::id());
    std::fs::write(folder.join(&name), "A=file\nB=file\n").expect("the file is written");
    let text = format!("[servers.a]\ncommand = \"a\"\nenv_file = \"{name}\"\nenv.B = \"own\"\n");
    let config = parse(&text, "a.toml", &folder, &|_| None)
        .expect("the configuration is good")
        .config;
    assert_eq!(config.servers["a"].env["A"], "file");
    assert_eq!(config.servers["a"].env["B"], "own");
    std::fs::remove_file(folder.join(&name)).expect("the file is removed");
    assert!(
        bad("[servers.a]\ncommand = \"a\"\nenv_file = \"gone\"\n")
            .to_string()
            .contains("/etc/gangway/gone")
    );
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
    good(
        "[servers.a]\ncommand = \"a\"\nlegacy_sse = true\npath = \"/x/a\"\n[servers.b]\ncommand = \"b\"\n",
    );
}

#[test]
fn saying_nothing_is_open_only_to_this_machine() {
    let server = "[servers.a]\ncommand = \"a\"\n";
    let key = format!("[auth.keys.k]\nhash = \"{HASH}\"\n");
    for (text, expected) in [
        (String::new(), Ok(Method::None)),
        (
            "listen.public_url = \"http://localhost:1\"\n".to_owned(),
            Ok(Method::None),
        ),
        (
            "listen.address = \"unix:/run/g\"\n".to_owned(),
            Ok(Method::None),
        ),
        (
            format!("auth.methods = [\"api_key\"]\n{key}"),
            Ok(Method::ApiKey),
        ),
        (
            "listen.address = \"0.0.0.0:1\"\nauth.methods = [\"none\"]\n".to_owned(),
            Ok(Method::None),
        ),
        (
            "listen.address = \"0.0.0.0:1\"\n".to_owned(),
            Err("`listen.address` is open to other machines"),
        ),
        (
            "listen.address = [\"localhost:1\", \"[::]:1\"]\n".to_owned(),
            Err("`listen.address` is open"),
        ),
        (
            "listen.public_url = \"https://a.example\"\n".to_owned(),
            Err("`listen.public_url` is for other machines"),
        ),
        (key.clone(), Err("keys are configured, but")),
        (
            "auth.methods = [\"api_key\"]\n".to_owned(),
            Err("no key is configured"),
        ),
        (
            format!("auth.methods = [\"none\", \"api_key\"]\n{key}"),
            Err("`auth.methods` has \"none\" beside another"),
        ),
        (
            "auth.methods = [\"mtls\"]\n".to_owned(),
            Err("`auth.methods` has an unknown value"),
        ),
    ] {
        match (read(&format!("{text}{server}")), expected) {
            (Ok(loaded), Ok(method)) => {
                assert_eq!(loaded.config.servers["a"].auth.methods, [method], "{text}")
            }
            (Err(problems), Err(message)) => {
                assert!(problems.to_string().contains(message), "{text}\n{problems}");
            }
            (outcome, _) => panic!("{text}\n{outcome:?}"),
        }
    }
}

#[test]
fn a_server_may_have_methods_of_its_own() {
    let text = format!(
        "auth.methods = [\"api_key\"]\nauth.keys.k.hash = \"{HASH}\"\n[servers.a]\ncommand = \"a\"\n\
         auth.methods = [\"none\"]\n[servers.b]\ncommand = \"b\"\n"
    );
    let config = good(&text).config;
    assert_eq!(config.servers["a"].auth.methods, [Method::None]);
    assert_eq!(config.servers["b"].auth.methods, [Method::ApiKey]);
    let empty = "[servers.a]\ncommand = \"a\"\nauth.methods = []\n";
    assert!(
        bad(empty)
            .to_string()
            .contains("`servers.a.auth.methods` is empty")
    );
}

#[test]
fn legacy_sse_is_never_open_to_other_machines() {
    let text = |address: &str| {
        format!(
            "listen.address = \"{address}\"\nauth.methods = [\"none\"]\n[servers.a]\ncommand = \"a\"\nlegacy_sse = true\n"
        )
    };
    good(&text("localhost:1"));
    assert_eq!(
        bad(&text("0.0.0.0:1"))
            .iter()
            .filter_map(|p| p.position())
            .collect::<Vec<_>>(),
        [(5, 14)]
    );
}

#[test]
fn keys_are_judged_together() {
    let other = HASH.replace('1', "2");
    let keys = format!(
        "auth.methods = [\"api_key\"]\n[auth.keys.a]\nhash = \"{HASH}\"\nservers = [\"fils\"]\n\
         [auth.keys.b]\nhash = \"{HASH}\"\nexpires = \"2026-01-01\"\n[auth.keys.c]\nhash = \"gangway_abc\"\n\
         [auth.keys.d]\nhash = \"{other}\"\nservers = []\n[auth.keys.e]\n[servers.files]\ncommand = \"f\"\n"
    );
    let problems = bad(&keys).to_string();
    for message in [
        "opens the server `fils`, which does not exist",
        "did you mean `files`?",
        "are one key",
        "`auth.keys.b.expires` cannot be a string",
        "`auth.keys.c.hash` holds the key itself",
        "`auth.keys.d.servers` opens no server",
        "`auth.keys.e.hash` is missing",
    ] {
        assert!(
            problems.contains(message),
            "{message} is not in\n{problems}"
        );
    }
    assert!(!problems.contains("gangway_abc"), "{problems}");
}

#[test]
fn what_works_but_deserves_a_line_is_a_warning() {
    let key = format!("auth.methods = [\"api_key\"]\nauth.keys.k = {{ hash = \"{HASH}\" }}\n");
    let server = "[servers.a]\ncommand = \"a\"\n";
    for (text, expected) in [
        (String::new(), "no server is configured"),
        (
            format!("auth.methods = [\"none\"]\n{server}"),
            "no authentication: everybody on this machine may use a",
        ),
        (
            format!("auth.methods = [\"none\"]\nlisten.address = \"0.0.0.0:1\"\n{server}"),
            "no authentication: everybody who reaches this gateway may use a",
        ),
        (
            format!("listen.address = \"0.0.0.0:1\"\n{key}{server}"),
            "API keys travel in plain HTTP",
        ),
        (
            "[servers.a]\ncommand = \"npx\"\nargs = [\"x\"]\n".to_owned(),
            "a: the version of x is not pinned",
        ),
        (
            format!("admin.address = \"0.0.0.0:1\"\n{server}"),
            "admin.address is open to other machines",
        ),
        (
            format!("{}{server}", key.replace(" }", ", expires = 2020-01-01 }")),
            "the key k has expired",
        ),
        (
            format!(
                "{}{server}[servers.b]\ncommand = \"b\"\n",
                key.replace(" }", ", servers = [\"b\"] }")
            ),
            "a: no key opens it yet",
        ),
    ] {
        let warnings = good(&text).warnings;
        assert!(
            warnings.iter().any(|warning| warning.contains(expected)),
            "{text}\n{warnings:?}"
        );
    }
    let quiet = good(&format!(
        "listen.address = \"0.0.0.0:1\"\nlisten.public_url = \"https://a.example\"\n{key}{server}"
    ));
    assert_eq!(quiet.warnings, Vec::<String>::new());
    assert_eq!(good(server).warnings, Vec::<String>::new());
}

#[test]
fn debug_output_holds_no_secret() {
    let text = "admin.token = \"s3cret\"\n[servers.a]\ncommand = \"a\"\nargs = [\"s3cret\"]\nenv.A = \"s3cret\"\n";
    let loaded = good(text);
    assert_eq!(loaded.config.admin.token.as_deref(), Some("s3cret"));
    assert!(!format!("{:?}", loaded.config).contains("s3cret"));
}
