//! A child's start: what fails it, what a client is told, what it leaves behind.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::child::{FAKE_CHILD, Gate, Server};
use crate::client::{Request, Response};
use crate::gateway::{BINARY, Gateway, await_that};
use crate::session::{Exchange, Session, initialize};

/// A server whose children are the sessions' alone, so that each can be counted.
fn lone() -> Server {
    Server::fake("fake").key("check_on_start = false\npool.min_idle = 0")
}

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({}))
}

/// `initialize` as exact bytes; its answer, whatever it is.
fn start(gateway: &Gateway, path: &str) -> Response {
    Request::post(path, initialize("2025-11-25", json!({})).to_string()).send(gateway.address())
}

/// A start that failed: 503 with Retry-After, no session, nothing of the child's.
#[track_caller]
fn assert_not_started(response: &Response, secrets: &[&str]) {
    assert_eq!(response.status(), 503, "{response:?}");
    assert!(response.header("retry-after").is_some(), "{response:?}");
    assert_eq!(response.header("mcp-session-id"), None, "{response:?}");
    let body = response.json();
    assert_eq!(body["id"], "initialize", "{body}");
    assert!(body["error"]["code"].is_i64(), "{body}");
    for secret in secrets {
        assert!(!response.text().contains(secret), "{secret} in {body}");
    }
}

/// F:A01: a command that cannot run is 503 without internals, and spoils its own readiness only.
#[test]
fn a_command_that_cannot_run_is_503() {
    let toml = [
        Server::of("missing", "/nonexistent/nope").toml(),
        Server::of("plain", FAKE_CHILD.strip_suffix("fake_child.py").unwrap()).toml(),
        Server::demo("good").toml(),
    ];
    let gateway = Gateway::start(&toml.concat());
    for name in ["missing", "plain"] {
        let response = start(&gateway, &format!("/{name}/mcp"));
        assert_not_started(&response, &["/nonexistent", "integration", "os error"]);
        gateway.await_event("server_failed", |event| event["server"] == name);
        let ready = Request::get(&format!("/servers/{name}/readyz")).send(gateway.admin());
        assert_eq!(ready.status(), 503, "{ready:?}");
    }
    gateway.await_event("server_ready", |event| event["server"] == "good");
    assert_eq!(Request::get("/servers/good/readyz").send(gateway.admin()).status(), 200);
    assert_eq!(Request::get("/readyz").send(gateway.admin()).status(), 200);
    let failed = gateway.metrics().count("child_starts_total", &[("server", "missing"), ("result", "spawn_error")]);
    assert!(failed >= 1.0, "{failed}");
}

/// C:B17, R:D17: a child that ends before it answered is told at once; what it said is the log's.
#[test]
fn a_child_that_ends_before_it_answers_is_503() {
    for (option, value, ending) in [
        ("--exit-init", "3", "exit status 3"),
        ("--exit", "4", "exit status 4"),
        ("--kill-init", "KILL", "signal SIGKILL"),
    ] {
        let server = lone().option("--stderr", "boom").option(option, value);
        let gateway = Gateway::start(&server.toml());
        let began = Instant::now();
        assert_not_started(&start(&gateway, "/fake/mcp"), &["boom"]);
        assert!(began.elapsed() < Duration::from_secs(10));
        let exit = gateway.await_event("child_exit", |event| event["ending"] == ending);
        assert_eq!(exit["stderr"], "boom", "{exit}");
        gateway.await_descendants(0);
        gateway.await_metric("sessions_opened_total", &[], |opened| opened == 0.0);
    }
}

/// C:B21, C:B31: starts that never end, and clients that leave in the middle of one, leak nothing.
#[test]
fn starts_that_lead_nowhere_leak_nothing() {
    let gateway =
        Gateway::start(&lone().arg("--init-silent").key("timeouts.start = \"300ms\"\nbreaker.failures = 1000").toml());
    let attempt = |count: usize| {
        let body = initialize("2025-11-25", json!({})).to_string();
        let request = Request::post("/fake/mcp", body);
        let calls: Vec<_> = (0..count).map(|_| Exchange::send(gateway.address(), &request)).collect();
        for (at, call) in calls.into_iter().enumerate() {
            if at % 3 == 0 {
                call.reset();
                continue;
            }
            let answer = call.finish();
            assert_eq!(answer.head.status, 503, "{answer:?}");
            assert_eq!(answer.message()["error"]["data"]["reason"], "timeout", "{answer:?}");
            assert_eq!(answer.head.header("mcp-session-id"), None);
        }
        gateway.await_descendants(0);
    };
    attempt(3);
    let descriptors = gateway.fd_count();
    attempt(12);
    attempt(12);
    await_that("descriptors back", || (gateway.fd_count() <= descriptors + 5).then_some(()));
    gateway.await_metric("children", &[], |children| children == 0.0);
}

/// C:B28: a slow start has its own clock; meanwhile its client hears comments, and the id it got
/// with the head is good once the child has answered.
#[test]
fn a_slow_start_streams_until_the_child_answers() {
    let mut gate = Gate::new();
    let server = lone().option("--wait-init", gate.path()).key("timeouts.call_idle = \"300ms\"");
    let toml = format!("[streams]\nsse_after = \"100ms\"\ncomment_every = \"100ms\"\n{}", server.toml());
    let gateway = Gateway::start(&toml);
    let body = initialize("2025-11-25", json!({})).to_string();
    let mut stream = Exchange::send(gateway.address(), &Request::post("/fake/mcp", body)).stream();
    let id = stream.head.header("mcp-session-id").expect("the head carries the minted id").to_owned();
    for _ in 0..5 {
        assert!(matches!(stream.next(), Some(crate::sse::Item::Comment(_))), "{:?}", stream.seen);
    }
    gate.open();
    let answer = stream.next_message();
    assert_eq!(answer["id"], "initialize", "{answer}");
    assert!(answer["result"]["protocolVersion"].is_string(), "{answer}");
    let ping = Request::post("/fake/mcp", r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).header("Mcp-Session-Id", &id);
    assert_eq!(ping.send(gateway.address()).status(), 200);
}

/// C:B28: a start whose client left runs on to its result, and only then ends.
#[test]
fn a_start_whose_client_left_runs_on() {
    let mut gate = Gate::new();
    let gateway = Gateway::start(&lone().option("--wait-init", gate.path()).toml());
    let body = initialize("2025-11-25", json!({})).to_string();
    let call = Exchange::send(gateway.address(), &Request::post("/fake/mcp", body));
    let child = gateway.await_descendants(1).remove(0);
    gateway.await_event("child_ready", |_| true);
    call.reset();
    gateway.await_metric("connections", &[("listener", "main")], |open| open == 0.0);
    assert!(child.is_alive(), "the start was cut");
    gate.open();
    let exit = gateway.await_event("child_exit", |_| true);
    assert_eq!(exit["reason"], "stopped", "{exit}");
    gateway.await_metric("handshake_seconds_count", &[("server", "fake")], |count| count == 1.0);
    gateway.await_descendants(0);
}

/// C:B28: a start that fails after its head was sent says so as the last event, and its id is unknown.
#[test]
fn a_start_that_fails_after_its_head_ends_the_stream() {
    let server = lone().arg("--init-silent").key("timeouts.start = \"500ms\"");
    let gateway = Gateway::start(&format!("[streams]\nsse_after = \"50ms\"\n{}", server.toml()));
    let body = initialize("2025-11-25", json!({})).to_string();
    let mut stream = Exchange::send(gateway.address(), &Request::post("/fake/mcp", body)).stream();
    let id = stream.head.header("mcp-session-id").expect("an id").to_owned();
    let answer = stream.next_message();
    assert_eq!(answer["error"]["data"]["reason"], "timeout", "{answer}");
    assert_eq!(stream.next_event_or_end(), None);
    let ping = Request::post("/fake/mcp", r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).header("Mcp-Session-Id", &id);
    assert_eq!(ping.send(gateway.address()).status(), 404);
}

/// F:F09: without descriptors a start fails as any failed start does, sessions live on, and the
/// next start succeeds as soon as there are some.
#[test]
fn scarce_descriptors_fail_single_starts() {
    let toml = Server::demo("demo").key("check_on_start = false\npool.min_idle = 0\nbreaker.failures = 1000").toml();
    let gateway = Gateway::start_with(&toml, |command| {
        let mut limited = Command::new("prlimit");
        limited.arg("--nofile=64:64").arg(BINARY).args(command.get_args());
        *command = limited;
    });
    assert_eq!(gateway.ready["limits"]["nofile"], 64, "{}", gateway.ready);
    let mut sessions = Vec::new();
    let refused = loop {
        let response = start(&gateway, "/demo/mcp");
        if response.status() != 200 {
            break response;
        }
        let id = response.header("mcp-session-id").unwrap().to_owned();
        sessions.push(id);
        assert!(sessions.len() < 16, "64 descriptors cannot be enough");
    };
    assert!(sessions.len() >= 3, "only {} sessions", sessions.len());
    assert_not_started(&refused, &["os error", "descriptor"]);
    let request = |method: &str, id: &str| {
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let request =
            if method == "POST" { Request::post("/demo/mcp", body) } else { Request::new(method, "/demo/mcp") };
        request.header("Mcp-Session-Id", id).send(gateway.address()).status()
    };
    assert!(sessions.iter().all(|id| request("POST", id) == 200));
    for id in sessions.drain(..2) {
        assert_eq!(request("DELETE", &id), 204);
    }
    gateway.await_descendants(sessions.len());
    assert_eq!(start(&gateway, "/demo/mcp").status(), 200);
}

/// R:D15: a child that answers with a revision that has no sessions is stopped, its client told.
#[test]
fn an_unknown_revision_ends_the_child() {
    for version in ["2030-01-01", "2026-07-28", ""] {
        let gateway = Gateway::start(&lone().arg("--version").arg(version).toml());
        let response = start(&gateway, "/fake/mcp");
        assert_not_started(&response, &["2030"]);
        assert_eq!(response.json()["error"]["data"]["reason"], "bad_child_line");
        gateway.await_descendants(0);
    }
    for version in ["2024-11-05", "2025-03-26", "2025-06-18"] {
        let gateway = Gateway::start(&lone().option("--version", version).toml());
        assert_eq!(open(&gateway).revision, version);
    }
}
