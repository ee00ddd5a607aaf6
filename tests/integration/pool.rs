//! Which children are started and when: spares, slots, the breaker, the scout, readiness.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::child::{FAKE_CHILD, Gate, Process, Record, Server};
use crate::client::{Request, Response};
use crate::gateway::{Directory, Gateway, await_that};
use crate::session::{Exchange, Session, initialize};

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({}))
}

fn initialize_request() -> Request {
    Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string())
}

fn start(gateway: &Gateway) -> Response {
    initialize_request().send(gateway.address())
}

/// Why a start was refused: the child's own failure has a reason, of the gateway's only the breaker
/// comes here.
#[track_caller]
fn refusal(response: &Response) -> String {
    assert_eq!(response.status(), 503, "{response:?}");
    let reason = response.json()["error"]["data"]["reason"].as_str().map(str::to_owned);
    reason.unwrap_or_else(|| "breaker".to_owned())
}

fn children(gateway: &Gateway, state: &str, count: usize) {
    gateway.await_metric("children", &[("state", state)], |children| children == count as f64);
}

/// A scripted child that exits with 7 unless this file exists.
fn only_if(flag: &Path) -> Server {
    let flag = flag.to_str().unwrap();
    Server::of("fake", "sh").arg("-c").arg(format!("test -e {flag} || exit 7; exec python3 -I -S {FAKE_CHILD}"))
}

#[track_caller]
fn readyz(gateway: &Gateway, path: &str) -> (u16, String) {
    let response = Request::get(path).send(gateway.admin());
    (response.status(), response.text().trim().to_owned())
}

/// R:D14: spares are started and never written to; each serves one session, then a new one comes.
#[test]
fn spares_are_started_and_never_written_to() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false\npool.min_idle = 2").toml());
    children(&gateway, "idle", 2);
    let spares = gateway.await_descendants(2);
    assert!(record.all().is_empty(), "a spare was written to");
    let session = open(&gateway);
    children(&gateway, "idle", 2);
    children(&gateway, "leased", 1);
    let used: Vec<u32> = record.all().into_keys().collect();
    assert_eq!(used.len(), 1);
    assert!(spares.iter().any(|spare| spare.id == used[0]), "a new child was started although a spare was there");
    session.delete();
    children(&gateway, "leased", 0);
    // A child serves one session only.
    let next = open(&gateway);
    assert!(!next.call("s", "state", json!({}))["result"]["structuredContent"]["pid"].is_null());
    let used_now: Vec<u32> = record.all().into_keys().collect();
    assert_eq!(used_now.len(), 2, "{used_now:?}");
}

/// F:A13: a spare that ends by itself is replaced, and does not count against its server.
#[test]
fn a_dead_spare_is_replaced() {
    let gateway = Gateway::start(&Server::fake("fake").key("check_on_start = false\nbreaker.failures = 2").toml());
    children(&gateway, "idle", 1);
    for _ in 0..3 {
        let spare = gateway.await_descendants(1).remove(0);
        spare.kill();
        await_that("another spare", || {
            let now = gateway.descendants();
            (now.len() == 1 && now[0] != spare && now[0].state != 'Z').then_some(())
        });
        children(&gateway, "idle", 1);
    }
    assert!(gateway.events().iter().all(|event| event["event"] != "breaker_open"));
    open(&gateway);
}

/// C:B57: a full pool makes a start wait, within bounds; then 503 with Retry-After.
/// A slot that comes free meanwhile is taken.
#[test]
fn a_full_pool_waits_then_refuses() {
    let gateway = Gateway::start(&Server::fake("fake").key("pool = { max_size = 1, wait = \"300ms\" }").toml());
    gateway.await_event("server_ready", |_| true);
    let first = open(&gateway);
    let refused = start(&gateway);
    assert_eq!(refused.status(), 503, "{refused:?}");
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    assert_eq!(refused.header("mcp-session-id"), None);
    assert_eq!(refused.json()["id"], "initialize");
    gateway.await_metric("refusals_total", &[("reason", "pool_full")], |count| count == 1.0);
    gateway.await_metric("pool_waiters", &[], |waiters| waiters == 0.0);
    assert_eq!(readyz(&gateway, "/readyz").0, 200, "a full pool is not unready");
    assert_eq!(first.call(1, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    assert_eq!(gateway.descendants().len(), 1);
}

/// Who waits for a slot gets it as soon as its child has gone.
#[test]
fn a_freed_slot_goes_to_who_waits() {
    let gateway = Gateway::start(&Server::fake("fake").key("pool = { max_size = 2, min_idle = 0 }").toml());
    gateway.await_event("server_ready", |_| true);
    let sessions = [open(&gateway), open(&gateway)];
    let waiting: Vec<_> = (0..2).map(|_| Exchange::send(gateway.address(), &initialize_request())).collect();
    gateway.await_metric("pool_waiters", &[("server", "fake")], |waiters| waiters == 2.0);
    // One ends by its client's will, the other because its child is gone.
    sessions[0].delete();
    let child = sessions[1].call("s", "state", json!({}))["result"]["structuredContent"]["pid"].as_u64().unwrap();
    Process::of(child.try_into().unwrap()).unwrap().kill();
    for exchange in waiting {
        let answer = exchange.finish();
        assert_eq!(answer.head.status, 200, "{answer:?}");
    }
    gateway.await_metric("pool_waiters", &[("server", "fake")], |waiters| waiters == 0.0);
    gateway.await_descendants(2);
}

/// The pause before a spare is tried again takes no slot from a client.
#[test]
fn a_spare_that_pauses_takes_no_slot() {
    let directory = Directory::new();
    let flag = directory.path().join("works");
    let server = only_if(&flag).key("check_on_start = false\npool = { max_size = 1, min_idle = 1, wait = \"100ms\" }");
    let gateway = Gateway::start(&server.toml());
    // From here on the pause is longer than the client waits.
    gateway.await_events("child_exit", 3, |exit| exit["reason"] == "exit");
    fs::write(&flag, "").unwrap();
    assert_eq!(open(&gateway).call(1, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
}

/// F:A02: five starts that end before the handshake open the breaker; then the answer comes at once
/// and nothing is forked; it tries again by itself, and closes with the first that works.
#[test]
fn the_breaker_opens_tries_again_and_closes() {
    let directory = Directory::new();
    let flag = directory.path().join("works");
    let server = only_if(&flag).key("check_on_start = false\npool.min_idle = 0\nbreaker.backoff_max = \"1s\"");
    let gateway = Gateway::start(&server.toml());
    let forks = || gateway.events().iter().filter(|event| event["event"] == "child_start").count();
    for _ in 0..5 {
        assert_eq!(refusal(&start(&gateway)), "child_gone");
    }
    gateway.await_event("breaker_open", |event| event["server"] == "fake");
    // The pause may be over before we come, and doubles each time, so it is met soon.
    let refused = await_that("a refusal by the breaker", || {
        let before = forks();
        let response = start(&gateway);
        (refusal(&response) == "breaker").then(|| {
            assert_eq!(forks(), before, "a child was started");
            response
        })
    });
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    gateway.await_metric("refusals_total", &[("reason", "breaker")], |count| count >= 1.0);
    assert_ne!(gateway.metrics().count("breaker_state", &[("server", "fake")]), 0.0);
    assert_eq!(readyz(&gateway, "/readyz"), (503, "breaker".to_owned()));
    fs::write(&flag, "").unwrap();
    let session = await_that("a start that works", || {
        let response = start(&gateway);
        (response.status() == 200).then(|| response.header("mcp-session-id").unwrap().to_owned())
    });
    assert!(!session.is_empty());
    gateway.await_event("breaker_close", |event| event["server"] == "fake");
    gateway.await_metric("breaker_state", &[("server", "fake")], |state| state == 0.0);
    assert_eq!(readyz(&gateway, "/readyz").0, 200);
}

/// F:A02: a child that is gone before anything could be written to it counts as well.
#[test]
fn a_child_that_is_gone_at_once_counts_for_the_breaker() {
    let server = Server::of("fake", "false").key("check_on_start = false\npool.min_idle = 0");
    let gateway = Gateway::start(&server.toml());
    for _ in 0..5 {
        let response = start(&gateway);
        assert_eq!(refusal(&response), "child_gone", "{response:?}");
        assert_eq!(response.header("mcp-session-id"), None);
    }
    gateway.await_event("breaker_open", |_| true);
    gateway.await_metric("child_starts_total", &[("result", "exited")], |starts| starts == 5.0);
    gateway.await_descendants(0);
}

/// F:A02, R:X07: a child that answers with an error works: the error is the client's, and the
/// breaker stays closed.
#[test]
fn error_answers_do_not_count_for_the_breaker() {
    let server = Server::fake("fake").option("--init-error", "-32602").key("check_on_start = false\npool.min_idle = 0");
    let gateway = Gateway::start(&server.toml());
    for _ in 0..6 {
        let response = start(&gateway);
        assert_eq!(response.status(), 200, "{response:?}");
        assert_eq!(response.header("mcp-session-id"), None);
        assert_eq!(response.json()["error"], json!({ "code": -32602, "message": "no" }));
    }
    gateway.await_descendants(0);
    assert!(gateway.events().iter().all(|event| event["event"] != "breaker_open"));
    assert_eq!(gateway.metrics().count("breaker_state", &[]), 0.0);
}

/// The scout reads everything declared, page by page, and stops.
#[test]
fn the_scout_reads_every_page_and_stops() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path()).option("--page-size", "5");
    let gateway = Gateway::start(&server.key("pool.min_idle = 0").toml());
    let ready = gateway.await_event("server_ready", |_| true);
    assert_eq!((&ready["name"], &ready["protocol"]), (&json!("fake-child"), &json!("2025-11-25")), "{ready}");
    gateway.await_descendants(0);
    assert_eq!(record.all().len(), 1, "one child");
    let lines: Vec<Value> = record.lines().iter().map(|line| line.parse().unwrap()).collect();
    let methods: Vec<_> = lines.iter().map(|line| line["method"].as_str().unwrap()).collect();
    assert_eq!(methods[..3], ["initialize", "notifications/initialized", "tools/list"], "{methods:?}");
    assert_eq!(lines[0]["params"]["clientInfo"]["name"], "gangway");
    let pages = methods.iter().filter(|method| **method == "tools/list").count();
    assert!(pages >= 4, "{pages} pages");
    assert_eq!(lines[3]["params"]["cursor"], "page-5");
    for list in ["resources/list", "prompts/list"] {
        assert_eq!(methods.iter().filter(|method| **method == list).count(), 1, "{list}");
    }
    // What the last page named is known to the metrics.
    let session = open(&gateway);
    session.call(1, "wait", json!({ "path": "/dev/null" }));
    gateway.await_metric("tool_calls_total", &[("tool", "wait")], |calls| calls == 1.0);
}

/// A required server that fails makes the gateway unready; it serves
/// nonetheless, and is ready once the server was seen well.
#[test]
fn a_failing_server_is_unready_and_recovers() {
    let directory = Directory::new();
    let flag = directory.path().join("works");
    let gateway = Gateway::start(&only_if(&flag).key("pool.min_idle = 0").toml());
    let failed = gateway.await_event("server_failed", |_| true);
    assert!(failed["error"].as_str().unwrap().contains("exit status 7"), "{failed}");
    assert_eq!(readyz(&gateway, "/readyz"), (503, "failed".to_owned()));
    assert_eq!(readyz(&gateway, "/livez").0, 200);
    assert_eq!(refusal(&start(&gateway)), "child_gone");
    fs::write(&flag, "").unwrap();
    await_that("readiness", || (readyz(&gateway, "/readyz").0 == 200).then_some(()));
    gateway.await_event("server_ready", |_| true);
    open(&gateway);
}

/// A session that works is as good as the scout's word.
#[test]
fn a_session_that_works_makes_its_server_ready() {
    let directory = Directory::new();
    let flag = directory.path().join("works");
    let gateway = Gateway::start(&only_if(&flag).toml());
    gateway.await_event("server_failed", |_| true);
    fs::write(&flag, "").unwrap();
    open(&gateway);
    assert_eq!(readyz(&gateway, "/readyz").0, 200);
}

/// Only required servers count; each can be asked for alone.
#[test]
fn only_required_servers_count_for_readiness() {
    let mut gate = Gate::new();
    let slow = Server::fake("slow").option("--wait-for", gate.path()).key("required = true");
    let toml = Server::fake("fake").toml() + &slow.toml() + &Server::of("broken", "false").toml();
    let gateway = Gateway::start(&toml);
    gateway.await_event("server_ready", |event| event["server"] == "fake");
    gateway.await_event("server_failed", |event| event["server"] == "broken");
    assert_eq!(readyz(&gateway, "/readyz"), (503, "starting".to_owned()));
    assert_eq!(readyz(&gateway, "/servers/fake/readyz").0, 200);
    assert_eq!(readyz(&gateway, "/servers/slow/readyz"), (503, "starting".to_owned()));
    assert_eq!(readyz(&gateway, "/servers/broken/readyz"), (503, "failed".to_owned()));
    assert_eq!(readyz(&gateway, "/servers/none/readyz").0, 404);
    let (_, all) = readyz(&gateway, "/readyz?verbose");
    assert!(all.contains("fake ready") && all.contains("slow starting") && all.contains("broken failed"), "{all}");
    gate.open();
    await_that("readiness", || (readyz(&gateway, "/readyz").0 == 200).then_some(()));
}

/// `check_on_start`: without the scout a server counts as well, and nothing is started.
#[test]
fn without_a_check_nothing_is_started() {
    let server = Server::of("fake", "/nonexistent/nope").key("check_on_start = false\npool.min_idle = 0");
    let gateway = Gateway::start(&server.toml());
    await_that("readiness", || (readyz(&gateway, "/readyz").0 == 200).then_some(()));
    assert!(gateway.descendants().is_empty());
    assert!(gateway.events().iter().all(|event| event["event"] != "server_failed"));
    assert!(gateway.metrics().count("child_starts_total", &[]) < 1.0);
}

/// A scout that gets no answer gives up at `timeouts.start`.
#[test]
fn a_silent_server_fails_its_check() {
    let server = Server::fake("fake").arg("--init-silent").key("timeouts.start = \"300ms\"");
    let gateway = Gateway::start(&server.toml());
    let failed = gateway.await_event("server_failed", |_| true);
    assert!(failed["error"].as_str().unwrap().contains("timeouts.start"), "{failed}");
    assert_eq!(readyz(&gateway, "/readyz").0, 503);
    await_that("the scout's end", || gateway.descendants().is_empty().then_some(()));
}

/// A server that was seen well once stays ready, though the scout comes back with less.
#[test]
fn a_later_failure_of_the_scout_changes_nothing() {
    // It declares tools and then answers every request but initialize with an error.
    let script = r#"
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "n", "version": "1"}}
    error = {"code": -32603, "message": "not today"}
    rest = {"result": result} if request["method"] == "initialize" else {"error": error}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **rest}), flush=True)
"#;
    let gateway = Gateway::start(&Server::of("fake", "python3").arg("-c").arg(script).toml());
    gateway.await_event("server_failed", |_| true);
    let ready = || crate::client::Request::get("/readyz").send(gateway.admin()).status();
    assert_eq!(ready(), 503);
    let _session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    assert_eq!(ready(), 200);
    gateway.await_events("server_failed", 2, |_| true);
    assert_eq!(ready(), 200);
}
