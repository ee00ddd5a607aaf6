//! What whole files mean.

mod doors;
mod env_from;
mod files;
mod issuers;
mod problems;
mod run;
mod sandbox;
mod tls;

use std::path::Path;
use std::time::Duration;

use super::{Address, Loaded, Method, Mode, Problems, Required, parse};

/// A hash nobody has the key of.
const HASH: &str = "sha256:0101010101010101010101010101010101010101010101010101010101010101";

fn read(text: &str) -> Result<Loaded, Problems> {
    parse(text, "a.toml", Path::new("/etc/gangway"), &|name| (name == "SIZE").then(|| "2MiB".to_owned()))
}

fn good(text: &str) -> Loaded {
    read(text).unwrap_or_else(|problems| panic!("{problems}\nin\n{text}"))
}

fn bad(text: &str) -> Problems {
    read(text).err().unwrap_or_else(|| panic!("nothing is wrong with\n{text}"))
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
    assert_eq!(config.listen.address[0], Address::Tcp { host: "::1".to_owned(), port: 0 });
    assert_eq!(config.listen.address[1], Address::Unix("/etc/gangway/g.sock".into()));
    assert_eq!(config.listen.allowed_hosts, ["a.example"]);
    assert_eq!((config.limits.memory, config.limits.body_bytes, config.limits.connections), (2 << 20, 65536, None));
    assert_eq!(config.limits.connection_age, Some(Duration::from_secs(7200)));
    assert_eq!((config.sessions.idle, config.sessions.absolute, config.sessions.max), (None, None, Some(7)));
    let server = &config.servers["files"];
    assert_eq!(server.command, "/etc/gangway/./bin/files");
    assert_eq!(server.cwd.as_deref(), Some(Path::new("/etc/gangway/data")));
    assert_eq!((server.timeouts.call_total, server.breaker.failures), (None, u32::MAX));
    assert_eq!((server.required, server.path.as_str()), (Required::Yes, "/files/mcp"));
    assert_eq!(server.auth.methods, [Method::None]);
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
    let pairs: Vec<(&str, &str)> = one.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(pairs, [("A", "default"), ("B", "own"), ("C", "own")]);
    assert_eq!(one.env_pass, ["Z"]);
    assert_eq!((one.pool.max_size, one.pool.min_idle, one.strict_status), (Some(4), 3, false));
    let two = &config.servers["two"];
    assert_eq!((two.env.len(), two.env_pass.len(), two.pool.max_size, two.strict_status), (2, 2, Some(9), true));
    assert_eq!((one.required, two.required), (Required::No, Required::No));
}

#[test]
fn modes_and_the_life_of_processes() {
    let text = r#"
        [server_defaults]
        mode = "shared"
        pool = { idle_timeout = "off", max_lifetime = "6h", max_uses = 100, max_sessions_per_child = 0 }
        [servers.one]
        command = "one"
        mode = "principal"
        pool = { idle_timeout = "90s", max_lifetime = 0, max_calls_per_child = 1 }
        [servers.two]
        command = "two"
    "#;
    let config = good(text).config;
    let (one, two) = (&config.servers["one"], &config.servers["two"]);
    assert_eq!((one.mode, two.mode, Mode::Session.name()), (Mode::Principal, Mode::Shared, "session"));
    assert_eq!((one.pool.idle_timeout, two.pool.idle_timeout), (Some(Duration::from_secs(90)), None));
    assert_eq!((one.pool.max_lifetime, two.pool.max_lifetime), (None, Some(Duration::from_secs(21_600))));
    assert_eq!((one.pool.max_uses, two.pool.max_sessions_per_child), (Some(100), None));
    assert_eq!((one.pool.max_calls_per_child, two.pool.max_calls_per_child), (Some(1), Some(32)));
    let bare = good("[servers.a]\ncommand = \"a\"\n").config.servers["a"].pool.clone();
    assert_eq!((bare.idle_timeout, bare.max_lifetime), (Some(Duration::from_secs(600)), None));
    assert_eq!((bare.max_uses, bare.max_sessions_per_child, bare.max_calls_per_child), (None, Some(64), Some(32)));
}

#[test]
fn an_env_file_lies_below_env() {
    let folder = std::env::temp_dir();
    let name = format!("gangway-server-env-{}", std::process::id());
    std::fs::write(folder.join(&name), "A=file\nB=file\n").expect("the file is written");
    let text = format!("[servers.a]\ncommand = \"a\"\nenv_file = \"{name}\"\nenv.B = \"own\"\n");
    let config = parse(&text, "a.toml", &folder, &|_| None).expect("the configuration is good").config;
    assert_eq!(config.servers["a"].env["A"], "file");
    assert_eq!(config.servers["a"].env["B"], "own");
    std::fs::remove_file(folder.join(&name)).expect("the file is removed");
    assert!(bad("[servers.a]\ncommand = \"a\"\nenv_file = \"gone\"\n").to_string().contains("/etc/gangway/gone"));
}

#[test]
fn debug_output_holds_no_secret() {
    let text = "admin.token = \"s3cret\"\n[servers.a]\ncommand = \"a\"\nargs = [\"s3cret\"]\nenv.A = \"s3cret\"\n";
    let loaded = good(text);
    assert_eq!(loaded.config.admin.token.as_deref(), Some("s3cret"));
    assert!(!format!("{:?}", loaded.config).contains("s3cret"));
}
