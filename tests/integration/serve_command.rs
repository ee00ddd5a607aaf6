//! `gangway serve`, `check` and `key`: what an operator types and reads.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::json;

use crate::child::Server;
use crate::client::Request;
use crate::gateway::{BINARY, Directory, Gateway, await_that, pid};
use crate::session::{Session, initialize};
use crate::terminal::OnTerminal;

fn gangway(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).output().unwrap()
}

/// A new key and the line of a keys file that admits it.
fn new_key(name: &str) -> (String, String) {
    let output = String::from_utf8(gangway(&["key", "new", name]).stdout).unwrap();
    let key = output.lines().next().unwrap().to_owned();
    let hash = output.lines().find_map(|line| line.strip_prefix("hash = ")).unwrap();
    (key, format!("{name} {}\n", hash.trim_matches('"')))
}

fn status(gateway: &Gateway, key: &str) -> u16 {
    let body = initialize("2025-11-25", json!({})).to_string();
    let request = Request::post("/demo/mcp", body).header("Authorization", &format!("Bearer {key}"));
    request.send(gateway.address()).status()
}

#[test]
fn every_problem_is_told_at_once_with_its_place_and_ends_with_78() {
    let toml = "[listen]\naddress = \"8080\"\n[servers.a]\ncomand = \"x\"\nargs = \"y\"\n[server.b]\n";
    let failed = Gateway::try_start(toml, |_| {}).map(|_| ()).expect_err("it is wrong");
    assert_eq!(failed.status.code(), Some(78), "{}", failed.stderr);
    for part in [
        ":2:11: `listen.address` has no port",
        "did you mean `command`?",
        "args` cannot be a string",
        "did you mean `servers`?",
    ] {
        assert!(failed.stderr.contains(part), "{part} is not in\n{}", failed.stderr);
    }
    let missing = gangway(&["serve", "-c", "/no/such/file.toml"]);
    assert_eq!(missing.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/such/file.toml cannot be read"));
}

#[test]
fn an_open_address_needs_a_word_about_who_may_come_in() {
    let toml = format!("[listen]\naddress = \"0.0.0.0:0\"\n{}", Server::demo("demo").toml());
    let failed = Gateway::try_start(&toml, |_| {}).map(|_| ()).expect_err("it would be open");
    assert_eq!(failed.status.code(), Some(78));
    assert!(failed.stderr.contains("gangway key new NAME"), "{}", failed.stderr);
    let gateway = Gateway::start(&format!("[auth]\nmethods = [\"none\"]\n{toml}"));
    gateway.await_event("warning", |event| event["warning"].as_str().unwrap().starts_with("no authentication"));
}

/// F:A01, C:B17, C:B29
#[test]
fn a_server_that_fails_is_told_of_with_a_hint_and_the_others_serve() {
    let broken = Server::fake("hub").arg("--stderr").arg("HUB_TOKEN must be set").arg("--exit").arg("2");
    let toml = format!("{}{}", broken.toml(), Server::demo("demo").toml());
    let mut gateway = Gateway::start_with(&toml, |command| {
        command.env("HUB_TOKEN", "s3cret");
    });
    let failed = gateway.await_event("server_failed", |event| event["server"] == "hub");
    let hint = failed["hint"].as_str().unwrap();
    assert!(hint.contains("add env_pass = [\"HUB_TOKEN\"] to [servers.hub]"), "{hint}");
    assert_eq!(failed["stderr"], "HUB_TOKEN must be set");
    assert!(failed["error"].as_str().unwrap().contains("exit status 2"), "{failed}");
    assert!(!gateway.stderr().contains("s3cret"));
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    assert_eq!(session.call_text(1, "add", json!({ "a": 2, "b": 3 })), "5");
    gateway.signal(Signal::INT);
    assert_eq!(gateway.await_exit().code(), Some(0));
}

#[test]
fn the_node_tag_comes_from_the_environment() {
    let toml = Server::demo("demo").toml();
    let gateway = Gateway::start_with(&toml, |command| {
        command.env("GANGWAY_NODE", "rack7");
    });
    assert_eq!(gateway.ready["node"], "rack7");
    assert!(Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({})).id.starts_with("rack7-"));
    let failed = Gateway::try_start(&toml, |command| {
        command.env("GANGWAY_NODE", "");
    });
    assert_eq!(failed.map(|_| ()).expect_err("an empty tag is none").status.code(), Some(78));
}

/// A gateway that follows a keys file with this line, the file, and the directory it goes with.
fn start_with_keys_file(line: &str) -> (Directory, PathBuf, Gateway) {
    let directory = Directory::new();
    let file = directory.path().join("keys");
    fs::write(&file, line).unwrap();
    let auth = format!("[auth]\nmethods = [\"api_key\"]\nkeys_file = \"{}\"\n", file.display());
    let gateway = Gateway::start(&format!("{auth}{}", Server::demo("demo").toml()));
    (directory, file, gateway)
}

/// F:F07
#[test]
fn the_keys_file_is_followed() {
    let ((alice, alice_line), (bob, bob_line)) = (new_key("alice"), new_key("bob"));
    let (directory, file, gateway) = start_with_keys_file(&alice_line);
    assert_eq!((status(&gateway, &alice), status(&gateway, &bob)), (200, 401));
    fs::write(&file, format!("{alice_line}{bob_line}")).unwrap();
    gateway.await_event("reload", |event| event["keys"] == 2);
    assert_eq!((status(&gateway, &alice), status(&gateway, &bob)), (200, 200));
    // What is wrong changes nothing and is told once.
    fs::write(&file, format!("{alice_line}bob sha256:half")).unwrap();
    let failed = gateway.await_event("reload_failed", |_| true);
    assert!(failed["error"].as_str().unwrap().contains(":2:1"), "{failed}");
    assert_eq!((status(&gateway, &alice), status(&gateway, &bob)), (200, 200));
    // Another file in its place, as careful writers do it.
    let fresh = directory.path().join("fresh");
    fs::write(&fresh, &bob_line).unwrap();
    fs::rename(&fresh, &file).unwrap();
    gateway.await_event("reload", |event| event["keys"] == 1);
    assert_eq!((status(&gateway, &alice), status(&gateway, &bob)), (401, 200));
    let told = gateway.events().iter().filter(|event| event["event"] == "reload_failed").count();
    assert_eq!(told, 1);
}

/// F:F07: a keys file that could not be read when it changed, for want of descriptors here, is read as soon as it can
/// be, and complained about once.
#[test]
fn a_keys_file_that_could_not_be_read_is_read_later() {
    let ((alice, alice_line), (bob, bob_line)) = (new_key("alice"), new_key("bob"));
    let (_directory, file, gateway) = start_with_keys_file(&alice_line);
    assert_eq!((status(&gateway, &alice), status(&gateway, &bob)), (200, 401));
    let process = Some(pid(gateway.pid()));
    let few = Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) };
    let before = prlimit(process, Resource::Nofile, few).unwrap();
    fs::write(&file, format!("{alice_line}{bob_line}")).unwrap();
    let failed = gateway.await_event("reload_failed", |_| true);
    assert!(failed["error"].as_str().unwrap().contains("cannot be read"), "{failed}");
    prlimit(process, Resource::Nofile, before).unwrap();
    gateway.await_event("reload", |event| event["keys"] == 2);
    assert_eq!((status(&gateway, &alice), status(&gateway, &bob)), (200, 200));
    let told = gateway.events().iter().filter(|event| event["event"] == "reload_failed").count();
    assert_eq!(told, 1);
}

/// F:F06
#[test]
fn quit_tells_the_state() {
    let mut gateway = Gateway::start(&format!("[drain]\nprestop = \"0s\"\n{}", Server::demo("demo").toml()));
    gateway.signal(Signal::QUIT);
    let state = gateway.await_event("state", |_| true);
    assert!(state["servers"].as_str().unwrap().starts_with("demo "), "{state}");
    assert_eq!(status(&gateway, "none is needed"), 200);
    assert_eq!(gateway.stop(), 0);
}

/// F:F06, C:B33
#[test]
fn a_second_signal_ends_what_would_wait() {
    let toml = format!("[drain]\nprestop = \"1h\"\n{}", Server::demo("demo").toml());
    let mut gateway = Gateway::start(&toml);
    Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let children = gateway.descendants();
    let began = Instant::now();
    gateway.signal(Signal::TERM);
    gateway.await_event("drain_start", |_| true);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.await_exit().code(), Some(1));
    assert!(began.elapsed() < Duration::from_secs(10), "it did not wait for an hour: {:?}", began.elapsed());
    await_that("the end of the children", || (!children.iter().any(|child| child.is_alive())).then_some(()));
}

#[test]
fn on_a_terminal_each_url_has_a_line() {
    let directory = Directory::new();
    let file = directory.path().join("gangway.toml");
    let (_, line) = new_key("me");
    fs::write(directory.path().join("keys"), line).unwrap();
    let servers =
        format!("{}{}", Server::demo("one").toml(), Server::demo("two").key("auth.methods = [\"none\"]").toml());
    let head = "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"off\"\n\
                [auth]\nkeys_file = \"keys\"\nmethods = [\"api_key\"]\n";
    fs::write(&file, format!("{head}{servers}")).unwrap();
    let mut serve = OnTerminal::start(120, &["serve", "-c", file.to_str().unwrap()], |_| {});
    let text = serve.await_text("server_ready");
    let line =
        |name: &str| text.lines().find(|line| line.starts_with(&format!("  {name}  http://127.0.0.1:"))).unwrap();
    assert!(line("one").ends_with("/one/mcp  API key required"), "{text}");
    assert!(line("two").ends_with("/two/mcp  no authentication"), "{text}");
    serve.signal(Signal::INT);
    assert_eq!(serve.await_exit().code(), Some(0));
}

#[test]
fn check_prints_every_url_and_explains_without_secrets() {
    let directory = Directory::new();
    let file = directory.path().join("gangway.toml");
    let toml = "[servers.files]\ncommand = \"files\"\nlegacy_sse = true\nenv.TOKEN = \"s3cret\"\n";
    fs::write(&file, toml).unwrap();
    let output = gangway(&["check", file.to_str().unwrap(), "--explain"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    for part in
        ["http://localhost:8080/files/mcp", "http://localhost:8080/files/sse", "servers.files.env.TOKEN = (hidden)"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("s3cret"));
    let output = gangway(&["check", file.to_str().unwrap(), "--online"]);
    assert_eq!(output.status.code(), Some(78), "there is no such program");
    assert!(String::from_utf8_lossy(&output.stderr).contains("files"), "{output:?}");
}

#[test]
fn a_key_is_printed_once_and_wrong_names_are_refused() {
    let output = gangway(&["key", "new", "laptop"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let key = text.lines().next().unwrap();
    assert!(key.starts_with("gangway_") && text.matches(key).count() == 1, "{text}");
    assert!(text.contains("[auth.keys.laptop]"), "{text}");
    assert_eq!(gangway(&["key", "new", "a b"]).status.code(), Some(2));
}
