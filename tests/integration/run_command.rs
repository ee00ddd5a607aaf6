//! `gangway run`: what is shown, what is asked for, and how it ends.

use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::json;

use crate::child::{FAKE_CHILD, Gate, Process};
use crate::client::Request;
use crate::gateway::{BINARY, Directory, Gateway, await_that};
use crate::session::{Session, initialize};
use crate::terminal::OnTerminal;

/// The scripted child as arguments of `run`.
const FAKE: [&str; 4] = ["python3", "-I", "-S", FAKE_CHILD];

/// `gangway ARGS…` to its end.
fn gangway(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(args).env_remove("GANGWAY_API_KEY").env_remove("GANGWAY_NODE").envs(variables.iter().copied());
    command.output().unwrap()
}

/// Exit status and standard error of a `run` off a terminal that must end by itself.
fn run(args: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let line: Vec<&str> = ["run", "--listen", "127.0.0.1:0"].iter().chain(args).copied().collect();
    let output = gangway(&line, variables);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn fake(args: &[&'static str]) -> Vec<&'static str> {
    FAKE.iter().chain(args).copied().collect()
}

/// The address in the first URL of a start.
fn address(text: &str) -> SocketAddr {
    let (_, rest) = text.split_once("  http://").unwrap();
    rest.split('/').next().unwrap().parse().unwrap()
}

fn status(address: SocketAddr, authorization: Option<&str>) -> u16 {
    let mut request = Request::post("/mcp", initialize("2025-11-25", json!({})).to_string());
    if let Some(value) = authorization {
        request = request.header("Authorization", value);
    }
    request.send(address).status()
}

/// C:B28
#[test]
fn on_a_terminal_a_start_is_one_rewritten_line_and_then_what_to_paste() {
    let mut gate = Gate::new();
    let path = gate.path().display().to_string();
    let args = [&["run", "--listen", "localhost:0", "--name", "slow"], &FAKE[..], &["--wait-for", &path]].concat();
    let mut run = OnTerminal::start(200, &args, |_| {});
    let waiting = run.await_text("starting python3 … 1 s");
    assert!(waiting.starts_with("gangway 0.1.0\n\r\x1b[K  slow         starting python3 …\r"), "{waiting:?}");
    gate.open();
    let text = run.await_text("Ctrl-C stops.\n");
    let (_, shown) = text.rsplit_once("\x1b[K").unwrap();
    let address = address(shown);
    for line in [
        &format!(
            "  URL          http://{address}/mcp     one child per session, at most 64     no authentication, this machine only"
        ),
        &format!("  Claude Code  claude mcp add --transport http slow http://{address}/mcp"),
        &format!(
            "  VS Code      code --add-mcp '{{\"name\":\"slow\",\"type\":\"http\",\"url\":\"http://{address}/mcp\"}}'"
        ),
        &format!(
            "  any client   {{\"mcpServers\":{{\"slow\":{{\"type\":\"http\",\"url\":\"http://{address}/mcp\"}}}}}}"
        ),
        &format!(
            "  For other machines: gangway run --listen 0.0.0.0:{} … (makes an API key). Ctrl-C stops.",
            address.port()
        ),
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
    }
    assert!(shown.starts_with("  slow         ready in "), "{shown}");
    assert!(!text.contains("child_start") && !text.contains("{\"ts\""), "the log kept out of it: {text}");
    assert_eq!(status(address, None), 200);
    run.await_text("rpc");
    run.signal(Signal::INT);
    assert_eq!(run.await_exit().code(), Some(0));
    assert!(!run.text().contains("{\"ts\""), "the log is for people here");
}

#[test]
fn a_narrow_terminal_is_not_wrapped_and_a_dumb_one_not_rewritten() {
    let args = [&["run", "--listen", "127.0.0.1:0", "--name", "a-name-of-some-length"], &FAKE[..], &["--init-silent"]];
    let narrow = OnTerminal::start(30, &args.concat(), |_| {});
    narrow.await_text("\r\x1b[K  a-name-of-some-length  star\r");
    let mut dumb = OnTerminal::start(30, &args.concat(), |command| {
        command.env("TERM", "dumb");
    });
    dumb.await_text("starting python3 …\n");
    dumb.signal(Signal::INT);
    assert_eq!(dumb.await_exit().code(), Some(0));
    assert!(!dumb.text().contains('\x1b'), "{:?}", dumb.text());
}

#[test]
fn off_a_terminal_the_same_stands_in_plain_lines_beside_the_log() {
    let gateway = Gateway::run(&[]);
    assert_eq!(gateway.ready["servers"]["demo"]["url"], format!("http://{}/mcp", gateway.address()));
    let text = await_that("the plain lines", || Some(gateway.stderr()).filter(|text| text.contains("Ctrl-C stops")));
    let admin = format!("  Admin        http://{}/metrics, /readyz", gateway.admin());
    let url = format!("  URL          http://{}/mcp ", gateway.address());
    for part in ["  demo         starting the built-in demo server …", "  demo         ready in ", &admin, &url] {
        assert!(text.lines().any(|line| line.starts_with(part)), "{part} is not in\n{text}");
    }
    assert!(!text.contains('\x1b') && !text.contains('\r'));
    let session = Session::open(&gateway, "/mcp", "2025-11-25", json!({}));
    assert_eq!(session.call_text(1, "add", json!({ "a": 2, "b": 3 })), "5");
}

/// F:A01, C:B17
#[test]
fn a_server_that_does_not_start_ends_the_run_and_says_why() {
    let directory = Directory::new();
    let plain = directory.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    let script = directory.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let (plain, script) = (plain.display().to_string(), script.display().to_string());
    let npm = fake(&["--stderr", "npm error code E404", "--exit", "1"]);
    let node =
        fake(&["--stderr", "ReferenceError: fetch is not defined", "--stderr", "Node.js v16.20.2", "--exit", "1"]);
    let http = fake(&["--banner", "Listening on http://localhost:3000\\n", "--exit-init", "0"]);
    let variable = fake(&["--stderr", "Error: HUB_TOKEN is required", "--exit", "3"]);
    let cases: [(&[&str], &[&str]); 9] = [
        (&["no-such-program"], &["cannot start no-such-program", "Hint", "not in PATH=/usr/bin:/bin; install it"]),
        (&[&plain], &["Permission denied", "may not be executed by this user; try chmod +x"]),
        (&[&script], &["is run by /no/such/interpreter, which does not exist"]),
        (&npm, &["exit status 1", "| npm error code E404", "npm knows no package of that name"]),
        (&node, &["Hint         Node.js 16.20.2 is too old"]),
        (&http, &["exit status 0", "\"Listening on http://localhost:3000\"", "it seems to serve HTTP by itself"]),
        (&variable, &["exit status 3", "say --env HUB_TOKEN=… or export it first"]),
        (&fake(&["--kill-init", "KILL"]), &["signal SIGKILL", "out of memory"]),
        (&fake(&["--init-error", "-32603"]), &["it answered initialize with error -32603"]),
    ];
    let python = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(python.stdout).unwrap();
    for (args, parts) in cases {
        // A short PATH keeps the message predictable; the real interpreter is named whole.
        let args: Vec<&str> = args.iter().map(|arg| if *arg == "python3" { python.trim() } else { arg }).collect();
        let (status, text) = run(&args, &[("PATH", "/usr/bin:/bin")]);
        assert_eq!(status, 1, "{text}");
        for part in parts {
            assert!(text.lines().any(|line| !line.starts_with('{') && line.contains(part)), "{part} is not in\n{text}");
        }
        let failed = text.lines().find(|line| line.contains("\"event\":\"server_failed\""));
        assert!(failed.is_some_and(|line| line.starts_with('{')), "{text}");
    }
}

/// F:B11
#[test]
fn the_last_lines_of_stderr_are_shown_without_secrets_and_harmless() {
    let mut args = fake(&["--stderr", "first", "--stderr", "\u{1b}[31mred", "--stderr", "password=hunter2"]);
    args.extend(["--stderr", "more"].repeat(18));
    args.extend(["--exit", "1"]);
    let mut run = OnTerminal::start(120, &[&["run", "--listen", "127.0.0.1:0"], &args[..]].concat(), |_| {});
    assert_eq!(run.await_exit().code(), Some(1));
    let text = run.await_text("password");
    assert!(text.contains("  | \\u001b[31mred\n  | password=***\n  | more\n"), "{text}");
    assert!(!text.contains("first") && !text.contains("hunter2"), "20 lines, masked: {text}");
    assert!(!text.contains("server_failed"), "what is shown is not logged again: {text}");
}

#[test]
fn other_machines_get_a_key_that_is_shown_only_here() {
    let run = OnTerminal::start(200, &["run", "--listen", "0.0.0.0:0"], |_| {});
    let text = run.await_text("Ctrl-C stops.\n");
    let key = text.split("Bearer ").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    assert!(key.starts_with("gangway_") && key.len() == 51, "{text}");
    let port = text.lines().find_map(|line| line.strip_prefix("  URL          http://")).unwrap();
    let port: u16 = port.split([':', '/']).nth(1).unwrap().parse().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(status(address, None), 401);
    assert_eq!(status(address, Some(&format!("Bearer {key}x"))), 401);
    assert_eq!(status(address, Some(&format!("Bearer {key}"))), 200);
    let text = run.await_text("rpc");
    assert_eq!(text.matches(key).count(), 3, "once for each client, never in the log: {text}");
}

#[test]
fn a_key_comes_from_the_environment_where_nobody_sees_one() {
    let key = gangway(&["key", "new", "me"], &[]).stdout;
    let key = String::from_utf8(key).unwrap().lines().next().unwrap().to_owned();
    let gateway = Gateway::run_with(&[], |command| {
        command.env("GANGWAY_API_KEY", &key);
    });
    assert_eq!(status(gateway.address(), None), 401);
    assert_eq!(status(gateway.address(), Some(&format!("Bearer {key}"))), 200);
    await_that("the plain lines", || gateway.stderr().contains("Bearer YOUR_API_KEY").then_some(()));
    assert!(!gateway.stderr().contains(&key), "who set it has it");
    for (args, variables, part) in [
        (&["run", "--listen", "0.0.0.0:0"][..], &[][..], "GANGWAY_API_KEY"),
        (&["run", "--listen", "localhost:0"], &[("GANGWAY_API_KEY", "hunter2")], "GANGWAY_API_KEY is no API key"),
        (&["run"], &[("GANGWAY_NODE", "EU-1")], "GANGWAY_NODE is no node tag"),
    ] {
        let output = gangway(args, variables);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{text}");
        assert!(text.contains(part) && !text.contains("hunter2"), "{text}");
    }
}

#[test]
fn no_authentication_is_warned_of_at_each_start() {
    let gateway = Gateway::run(&["--no-auth"]);
    gateway.await_event("warning", |event| event["warning"].as_str().unwrap().starts_with("no authentication"));
    await_that("the plain warning", || gateway.stderr().contains("  Warning      no authentication: ").then_some(()));
    assert_eq!(status(gateway.address(), None), 200);
}

#[test]
fn a_port_that_is_taken_has_a_holder_and_another_to_type() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = gangway(&["run", "--listen", &address], &[]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let holder = format!("(pid {})", std::process::id());
    for part in [&format!("{address} is taken by "), &holder, "type: --listen 127.0.0.1:"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

/// R:D16, C:B33
#[test]
fn hang_up_and_interrupt_drain() {
    for signal in [Signal::HUP, Signal::INT] {
        let mut gateway = Gateway::run(&[]);
        let session = Session::open(&gateway, "/mcp", "2025-11-25", json!({}));
        let call = session.send_call_with_token(1, "slow", json!({ "seconds": 0.3 }), "token");
        let mut stream = call.stream();
        stream.next_event();
        gateway.signal(signal);
        gateway.await_event("drain_start", |event| event["prestop_ms"] == 0);
        assert_eq!(gateway.await_exit().code(), Some(0));
    }
}

/// R:D16, C:B31
#[test]
fn an_interrupted_start_leaves_nothing_behind() {
    let mut gateway = Gateway::run(&["--", "sh", "-c", "sleep 3600 & exec sleep 3600"]);
    let children = gateway.await_descendants(2);
    gateway.signal(Signal::INT);
    assert_eq!(gateway.await_exit().code(), Some(0));
    await_that("the end of the group", || (!children.iter().any(Process::is_alive)).then_some(()));
}

/// R:D06, F:E06
#[test]
fn the_server_gets_your_environment_but_for_the_gateways_own() {
    let args = fake(&[]);
    let gateway = Gateway::run_with(&[&["--env", "ADDED=one=1", "--"], &args[..]].concat(), |command| {
        command.env("GANGWAY_NODE", "eu1").env("SOME_TOKEN", "inherited");
    });
    assert_eq!(gateway.ready["node"], "eu1");
    let session = Session::open(&gateway, "/mcp", "2025-11-25", json!({}));
    assert!(session.id.starts_with("eu1-"), "{}", session.id);
    let dump = session.call_text(1, "dump", json!({}));
    for part in ["one=1", "inherited", "SOME_TOKEN"] {
        assert!(dump.contains(part), "{part} is not in {dump}");
    }
    assert!(!dump.contains("GANGWAY_NODE"), "{dump}");
    assert!(gateway.ready["servers"]["fake-child"].is_object(), "named after its script: {}", gateway.ready);
}

#[test]
fn what_is_typed_wrong_is_named_with_its_remedy() {
    for (args, parts) in [
        (&["run", "--listen", "8080", "cat"][..], &["--listen has no port", "localhost:8080"][..]),
        (&["run", "--lisen", "x", "cat"], &["--lisen", "a similar argument exists: '--listen'"]),
        (&["run", "--env", "hunter2", "cat"], &["write NAME=value"]),
        (&["run", "--name", "A b", "cat"], &["`A b` is no name for a server"]),
        (&["run", "npx -y server"], &["leave out the quotes"]),
        (&["sever"], &["a similar subcommand exists: 'serve'"]),
    ] {
        let output = gangway(args, &[]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.starts_with("error: "), "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} are not in {text}");
        assert!(args.contains(&"npx -y server") || !text.contains("hunter2\n"), "{text}");
    }
    let (status, text) = run(&["cat", "--listen", "0.0.0.0:1"], &[]);
    assert_eq!(status, 1);
    assert!(text.contains("--listen stands behind CMD"), "{text}");
}

#[test]
fn a_bare_command_shows_examples_and_help_names_the_environment() {
    let bare = gangway(&[], &[]);
    assert_eq!(bare.status.code(), Some(0));
    let text = String::from_utf8(bare.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("  gangway ")).count(), 3, "{text}");
    for (command, parts) in [
        ("run", &["GANGWAY_API_KEY", "GANGWAY_NODE", "Usage: gangway run [OPTIONS] [--] [CMD [ARG]...]"][..]),
        ("serve", &["GANGWAY_NODE", "TERM"]),
    ] {
        let help = String::from_utf8(gangway(&[command, "--help"], &[]).stdout).unwrap();
        assert!(parts.iter().all(|part| help.contains(part)), "{help}");
    }
}
