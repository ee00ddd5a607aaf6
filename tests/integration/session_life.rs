//! How sessions end when nobody ends them, and what keeps them alive.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::child::Server;
use crate::client::Connection;
use crate::gateway::Gateway;
use crate::session::Session;
use crate::sse::Item;

fn tools_list(session: &Session) -> u16 {
    session.send(json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/list" }).to_string()).finish().head.status
}

/// R:S12, C:B53: an idle session ends; one with a call in flight or an open stream is not idle.
#[test]
fn only_idle_sessions_end_by_themselves() {
    let server = Server::fake("fake").key("timeouts.call_idle = \"off\"");
    let gateway = Gateway::start(&format!("[sessions]\nidle = \"400ms\"\n{}", server.toml()));
    let open = || Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let (calling, listening, idle) = (open(), open(), open());
    let call = calling.send_call(1, "hold", json!({ "gate": "g" }));
    let _stream = listening.get();
    gateway.await_event("session_close", |event| event["reason"] == "idle");
    gateway.await_metric("sessions", &[], |count| count == 2.0);
    assert_eq!(tools_list(&idle), 404);
    assert_eq!(tools_list(&listening), 200);
    calling.call(2, "release", json!({ "gate": "g" }));
    assert!(call.finish().message()["result"].is_object());
    assert_eq!(gateway.metrics().count("sessions_closed_total", &[("reason", "idle")]), 1.0);
}

/// C:B52: sessions nobody deletes leave nothing behind.
#[test]
fn abandoned_sessions_are_swept() {
    let server = Server::demo("demo").key("pool.min_idle = 0").key("pool.max_size = 0").key("check_on_start = false");
    let gateway = Gateway::start(&format!("[sessions]\nidle = \"1s\"\n{}", server.toml()));
    let before = gateway.fd_count();
    for _ in 0..40 {
        Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    }
    gateway.await_metric("sessions_closed_total", &[("reason", "idle")], |count| count == 40.0);
    gateway.await_metric("sessions", &[], |count| count == 0.0);
    gateway.await_descendants(0);
    crate::gateway::await_that("descriptors as before", || (gateway.fd_count() <= before + 5).then_some(()));
}

/// R:S12: the age limit ends a session whatever it does.
#[test]
fn an_old_session_ends() {
    let gateway = Gateway::start(&format!("[sessions]\nabsolute = \"300ms\"\n{}", Server::demo("demo").toml()));
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let stream = session.get();
    gateway.await_event("session_close", |event| event["reason"] == "absolute");
    stream.rest();
    assert_eq!(tools_list(&session), 404);
}

/// C:B70, C:B72: the head of a quiet stream and its first byte come at once.
#[test]
fn a_quiet_stream_begins_at_once() {
    let gateway = Gateway::start(&Server::demo("demo").toml());
    for revision in ["2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway, "/demo/mcp", revision, json!({}));
        let mut connection = Connection::open(gateway.address());
        let asked = Instant::now();
        connection.request(&session.get_request());
        assert_eq!(connection.head().status, 200);
        let first = connection.read_body().expect("a first byte");
        assert!(first.starts_with(if revision == "2025-11-25" { b"id: " } else { b":\n\n" }), "{first:?}");
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    }
}

/// C:B73: a long call is a stream whose comments outlive the patience of proxies.
#[test]
fn a_long_call_is_kept_alive() {
    let toml = format!("[streams]\nsse_after = \"50ms\"\ncomment_every = \"50ms\"\n{}", Server::fake("fake").toml());
    let gateway = Gateway::start(&toml);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut stream = session.send_call(1, "hold", json!({ "gate": "g" })).stream();
    let mut comments = 0;
    while comments < 5 {
        comments += u32::from(matches!(stream.next().expect("an item"), Item::Comment(_)));
    }
    session.call(2, "release", json!({ "gate": "g" }));
    assert!(stream.await_message(|message| message["id"] == 1)["result"].is_object());
}

/// C:B77: a new stream takes over from one whose connection died unseen, and nothing is sent twice.
#[test]
fn a_second_get_takes_over() {
    let gateway = Gateway::start(&Server::demo("demo").toml());
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let mut first = session.get();
    first.next_event();
    let mut second = session.get();
    first.rest();
    session.request(1, "resources/subscribe", json!({ "uri": "demo://counter" }));
    session.call(2, "update_resource", json!({}));
    gateway.await_metric("stream_cuts_total", &[("reason", "takeover")], |count| count == 1.0);
    second.next_event();
    // The child of the session and a spare, which may still be starting.
    gateway.await_descendants(2);
}
