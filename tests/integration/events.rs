//! The log as the story of a session: which events tell it, in which order, and under which name.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::child::Server;
use crate::client::Request;
use crate::gateway::{Gateway, await_that};
use crate::session::{Session, initialize};

fn bare(server: Server) -> Server {
    server.key("check_on_start = false").key("pool.min_idle = 0")
}

fn position(events: &[Value], name: &str) -> usize {
    let at = events.iter().position(|event| event["event"] == name);
    at.unwrap_or_else(|| panic!("no {name} in {events:#?}"))
}

/// R:S17: a session's life is told in order, each event by its one name, and by the same eight
/// digits for the session wherever it is named.
#[test]
fn a_sessions_life_is_told_in_order() {
    let gateway = Gateway::start(&bare(Server::fake("fake")).toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let pid = gateway.await_descendants(1)[0].id;
    session.request(1, "ping", json!({}));
    session.delete();
    let exit = gateway.await_event("child_exit", |_| true);
    let events = gateway.events();
    let order = ["ready", "child_start", "child_ready", "session_open", "session_close", "child_exit"];
    let places: Vec<usize> = order.iter().map(|name| position(&events, name)).collect();
    assert!(places.is_sorted(), "{order:?} at {places:?}: {events:#?}");

    let opened = &events[position(&events, "session_open")];
    assert_eq!((&opened["protocol"], &opened["child_pid"]), (&json!("2025-11-25"), &json!(pid)), "{opened}");
    assert_eq!(opened["client"], "integration", "{opened}");
    let digest = opened["session"].as_str().unwrap();
    assert!(digest.len() == 8 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digest}");
    let told = events
        .iter()
        .filter(|event| ["child_ready", "session_close", "rpc"].contains(&event["event"].as_str().unwrap_or_default()));
    assert!(told.clone().all(|event| event["session"] == digest), "{events:#?}");
    assert!(told.count() >= 5);
    assert_eq!(events[position(&events, "session_close")]["reason"], "delete");
    assert_eq!((&exit["reason"], &exit["child_pid"]), (&json!("stopped"), &json!(pid)), "{exit}");
    assert!(!gateway.stderr().contains(&session.id));
}

/// A child that fails is told of with how it ended and its last words, cut and made harmless.
#[test]
fn a_childs_end_is_told_with_its_last_words() {
    let server = bare(Server::fake("fake")).arg("--stderr").arg("last \u{1b}[31mwords");
    let gateway = Gateway::start(&server.toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    session.send_call(1, "signal", json!({ "signal": "ABRT" })).finish();
    let exit = gateway.await_event("child_exit", |_| true);
    assert_eq!(exit["reason"], "signal", "{exit}");
    assert!(exit["ending"].as_str().unwrap().contains("ABRT"), "{exit}");
    assert!(exit["stderr"].as_str().unwrap().contains("last"), "{exit}");
    assert!(!gateway.stderr().contains('\u{1b}'));
    gateway.await_event("session_close", |event| event["reason"] == "child_gone");
}

/// Every request a child makes gets its line, also one the client never sees and one that nobody
/// answers before the session ends.
#[test]
fn every_request_of_a_child_is_accounted_for() {
    let gateway = Gateway::start(&bare(Server::fake("fake")).toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({ "roots": {} }));
    session.call(1, "ask", json!({ "method": "sampling/createMessage", "id": "undeclared" }));
    gateway.await_event("rpc", |event| event["rpc_id"] == "undeclared" && event["outcome"] == "refused");
    let mut stream = session.send_call(2, "ask", json!({ "method": "roots/list", "id": "open" })).stream();
    stream.await_message(|message| message["method"] == "roots/list");
    session.delete();
    let line = gateway.await_event("rpc", |event| event["rpc_id"] == "open");
    assert_eq!((&line["method"], &line["outcome"]), (&json!("roots/list"), &json!("cancelled")), "{line}");
    assert_eq!(line["server"], "fake", "{line}");
    assert!(line["session"].is_string() && line["child_pid"].is_u64() && line["ms"].is_number(), "{line}");

    let dying = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({ "roots": {} }));
    let mut stream = dying.send_call(3, "ask", json!({ "method": "roots/list", "id": "orphan" })).stream();
    stream.await_message(|message| message["method"] == "roots/list");
    gateway.await_descendants(1)[0].kill();
    gateway.await_event("rpc", |event| event["rpc_id"] == "orphan" && event["outcome"] == "child_gone");
}

/// What is refused before its message is read is told with the reason and the key that decides it.
#[test]
fn a_refusal_names_the_key_that_decides_it() {
    let toml = format!("[sessions]\nmax = 1\n[limits]\nbody_bytes = \"2KiB\"\n{}", bare(Server::fake("fake")).toml());
    let gateway = Gateway::start(&toml);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let post = |body: &str| Request::post("/fake/mcp", body);
    let start = initialize("2025-11-25", json!({})).to_string();
    let cases = [
        (post(&start).with("Host", "evil.example"), 403, "host", "listen.allowed_hosts"),
        (post(&start).with("Origin", "https://evil.example"), 403, "origin", "listen.allowed_origins"),
        (post(&"x".repeat(4096)), 413, "too_large", "limits.body_bytes"),
        (post(&start), 503, "sessions", "sessions.max"),
    ];
    for (request, status, reason, key) in cases {
        assert_eq!(request.send(gateway.address()).status(), status, "{reason}");
        let line = gateway.await_event("refused", |event| event["reason"] == reason);
        assert_eq!((&line["status"], &line["key"]), (&json!(status), &json!(key)), "{line}");
        assert!(line["client_addr"].as_str().unwrap().starts_with("127.0.0.1"), "{line}");
    }
    assert_eq!(session.request(1, "ping", json!({}))["result"], json!({}));
}

/// F:F05: a drain is told from its start to its end, with the streams it cuts.
#[test]
fn a_drain_is_told() {
    let toml = format!("[drain]\nprestop = \"0s\"\n{}", Server::demo("demo").toml());
    let mut gateway = Gateway::start(&toml);
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let mut stream = session.get();
    stream.next_event();
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.await_exit().code(), Some(0));
    gateway.await_event("drain_done", |event| event["calls_cut"] == 0);
    let events = gateway.events();
    let order = ["drain_start", "stream_cut", "session_close", "drain_done"];
    let places: Vec<usize> = order.iter().map(|name| position(&events, name)).collect();
    assert!(places.is_sorted(), "{order:?} at {places:?}: {events:#?}");
    assert_eq!(events[places[0]]["sessions"], 1);
    assert_eq!(events[places[1]]["reason"], "drain");
    assert_eq!(events[places[2]]["reason"], "drain");
}

/// F:F12: scrapes and looks at health side by side are answered whole, and nobody who calls waits for them.
#[test]
fn scrapes_side_by_side_disturb_nobody() {
    let gateway = Gateway::start(&Server::demo("demo").toml());
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let address = gateway.admin();
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(move || {
                let response = Request::get("/metrics").send(address);
                assert_eq!(response.status(), 200);
                assert!(response.text().contains("gangway_build_info{") && response.text().ends_with('\n'));
                assert_eq!(Request::get("/livez").send(address).status(), 200);
            });
        }
        for id in 0..20 {
            assert_eq!(session.request(id, "ping", json!({}))["result"], json!({}));
        }
    });
    await_that("every scraper's connection to end", || {
        (gateway.metrics().count("connections", &[("listener", "admin")]) <= 1.0).then_some(())
    });
}

/// Off loopback without a token the numbers are for nobody, health is for everybody.
#[test]
fn without_a_token_the_numbers_stay_inside() {
    let gateway = Gateway::start(&format!("[admin]\naddress = \"0.0.0.0:0\"\n{}", Server::demo("demo").toml()));
    let address = ([127, 0, 0, 1], gateway.admin().port()).into();
    await_that("readiness", || (Request::get("/readyz").send(address).status() == 200).then_some(()));
    for target in ["/livez", "/servers/demo/readyz"] {
        assert_eq!(Request::get(target).send(address).status(), 200, "{target}");
    }
    for target in ["/metrics", "/readyz?verbose"] {
        for shown in ["Bearer ", "Bearer x", "Bearer null", ""] {
            let response = Request::get(target).header("Authorization", shown).send(address);
            assert_eq!(response.status(), 401, "{target} {shown:?}");
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
            assert!(response.text().contains("operator's token"), "{response:?}");
        }
    }
    for method in ["POST", "PUT", "DELETE"] {
        let response = Request::new(method, "/livez").header("Content-Length", "0").send(address);
        assert_eq!(response.status(), 405, "nothing here changes anything: {method}");
    }
}
