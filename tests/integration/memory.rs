//! The one memory budget: what is kept for convenience gives way first, then new work is refused, and all is well
//! again once there is room.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::child::{Gate, Server};
use crate::client::{Connection, Request, Response};
use crate::gateway::{Gateway, await_that};
use crate::session::{Exchange, Session, call, initialize};
use crate::sse::{Item, Parser};

const BUDGET: f64 = (16 << 20) as f64;

/// A gateway of 16 MiB whose calls are streams at once, with further lines under `[replay]`.
pub fn start(replay: &str) -> Gateway {
    let server = Server::fake("fake").key("check_on_start = false").key("pool.min_idle = 0");
    let tables = "[limits]\nmemory = \"16MiB\"\nbody_bytes = \"2MiB\"\n[streams]\nsse_after = \"0s\"\n";
    Gateway::start(&format!("{tables}[replay]\n{replay}\n{}", server.toml()))
}

pub fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({}))
}

pub fn try_open(gateway: &Gateway) -> Response {
    Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string()).send(gateway.address())
}

/// Breaks off calls that wait at a gate, one for each length of an answer to come; gives the positions to come
/// back to. `others` streams stay open.
pub fn leave_unread(gateway: &Gateway, session: &Session, gate: &str, lengths: &[usize], others: f64) -> Vec<String> {
    let leave = |(id, length): (usize, &usize)| {
        // The answer holds it twice.
        let arguments = json!({ "gate": gate, "padding": "x".repeat(length / 2) });
        let mut stream = session.send_call(id, "hold", arguments).stream();
        let primed = stream.next_event().id.unwrap();
        session.call("held", "await_held", json!({ "gate": gate, "count": id + 1 }));
        stream.reset();
        primed
    };
    let primed = lengths.iter().enumerate().map(leave).collect();
    gateway.await_metric("streams", &[], |streams| streams == others);
    primed
}

/// F:F10: what is kept for resumes fills no more of the budget than work leaves it; calls go on.
#[test]
fn replay_gives_way_to_work() {
    let gateway = start("total = \"64MiB\"");
    let sessions: Vec<Session> = (0..3).map(|_| open(&gateway)).collect();
    for round in 0..4 {
        for session in &sessions {
            let answer = session.call(round, "bytes", json!({ "size": 2_000_000 }));
            assert!(answer.get("result").is_some(), "round {round}: {}", &answer.to_string()[..200]);
        }
    }
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes < BUDGET);
    assert!(gateway.metrics().count("replay_evictions_total", &[("reason", "total")]) > 0.0);
    assert_eq!(Request::get("/readyz").send(gateway.admin()).status(), 200);
    assert_eq!(try_open(&gateway).status(), 200);
}

/// F:F10, C:B87: when only answers that nobody has read are left, new work is refused, in-band and at the door, the
/// gateway says so and is not ready; nothing that was promised is lost, and reading it makes room again.
#[test]
fn unread_answers_are_kept_and_new_work_refused() {
    let gateway = start("");
    let session = open(&gateway);
    let primed = leave_unread(&gateway, &session, "g", &[3_000_000; 6], 0.0);
    session.call("go", "release", json!({ "gate": "g" }));
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes >= BUDGET);
    let refused = session.call(1, "echo", json!({}));
    assert_eq!((&refused["error"]["code"], &refused["error"]["data"]["reason"]), (&json!(503), &json!("memory")));
    assert_eq!(refused["error"]["data"]["executed"], "no", "{refused}");
    let response = try_open(&gateway);
    assert_eq!(response.status(), 503, "{response:?}");
    assert!(response.header("retry-after").is_some(), "{response:?}");
    let ready = Request::get("/readyz").send(gateway.admin());
    assert_eq!((ready.status(), ready.text()), (503, "memory\n"));
    gateway.await_event("overload", |event| event["reason"] == "memory" && event["to"] == 4);
    assert!(gateway.metrics().count("refusals_total", &[("reason", "memory")]) >= 2.0);
    assert!(gateway.rss() < 200 << 20, "{} MiB", gateway.rss() >> 20);

    for (id, primed) in primed.iter().enumerate() {
        let answer = session.resume(primed).rest().pop().unwrap().message();
        assert_eq!((&answer["id"], &answer["result"]["structuredContent"]["gate"]), (&json!(id), &json!("g")));
    }
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes < BUDGET);
    assert_eq!(session.call(2, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    session.delete();
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
    assert_eq!(Request::get("/readyz").send(gateway.admin()).status(), 200);
    assert_eq!(try_open(&gateway).status(), 200);
}

/// What a call brought takes up memory until its child has it, however long the child works on it;
/// so for a batch and for `initialize`.
#[test]
fn a_body_that_was_passed_on_is_let_go() {
    let mut gate = Gate::new();
    let server = Server::fake("fake").key("check_on_start = false").key("pool.min_idle = 0");
    let server = server.option("--wait-init", gate.path());
    // No answer has its head before the child's.
    let gateway = Gateway::start(&format!("streams.sse_after = \"1h\"\n{}", server.toml()));
    let large = "x".repeat(1_000_000);
    let is_free = || gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
    let read = |bytes: f64| {
        let labels = [("server", "fake"), ("direction", "to_child")];
        gateway.await_metric("pipe_bytes_total", &labels, |written| written >= bytes);
    };

    let begin = initialize("2025-03-26", json!({ "experimental": { "large": large } })).to_string();
    let mut opening = Connection::open(gateway.address());
    opening.request(&Request::post("/fake/mcp", begin));
    read(1e6);
    is_free();
    gate.open();
    assert_eq!(opening.response().status(), 200);

    let session = Session::open(&gateway, "/fake/mcp", "2025-03-26", json!({}));
    let hold = |id: u32| call(id, "hold", json!({ "gate": "g", "large": large }), None);
    let single = session.send(hold(1).to_string());
    read(2e6);
    is_free();
    let batch = session.post_request(json!([hold(2), hold(3)]).to_string()).with("Accept", "application/json");
    let batch = Exchange::send(session.address, &batch);
    read(4e6);
    is_free();
    session.call(4, "release", json!({ "gate": "g" }));
    assert!(single.finish().message()["result"].is_object());
    assert_eq!(batch.finish().message().as_array().map(Vec::len), Some(2));
}

/// F:D03, F:F10, C:B87, R:R12: 100 MB for a reader that stopped cost a bounded amount, and nobody else waits. What was
/// dropped after the cut is a 400 for whoever comes back for it, never a gap.
#[test]
fn a_flood_for_a_stalled_reader_is_bounded() {
    let server = Server::fake("fake").key("check_on_start = false").key("pool.min_idle = 0");
    let gateway = Gateway::start(&format!("[limits]\nwrite_stall = \"500ms\"\n{}", server.toml()));
    let (stalled, other) = (open(&gateway), open(&gateway));
    let before = gateway.rss();
    let mut connection = Connection::open_small(gateway.address(), 4096);
    let flood = call(1, "log", json!({ "count": 100, "bytes": 1_000_000 }), None);
    connection.request(&stalled.post_request(flood.to_string()));
    assert_eq!(connection.head().header("content-type"), Some("text/event-stream"));
    let mut parser = Parser::default();
    let primed = loop {
        let items = parser.push(&connection.read_body().unwrap());
        if let Some(Item::Event(event)) = items.into_iter().find(|item| matches!(item, Item::Event(_))) {
            break event.id.unwrap();
        }
    };
    let (mut highest, mut slowest) = (before, Duration::ZERO);
    await_that("the end of the flood", || {
        highest = gateway.rss().max(highest);
        let asked = Instant::now();
        assert_eq!(other.request(1, "ping", json!({}))["result"], json!({}));
        slowest = asked.elapsed().max(slowest);
        (gateway.metrics().count("requests_in_flight", &[]) == 0.0).then_some(())
    });
    assert_eq!(gateway.metrics().count("stream_cuts_total", &[("reason", "stall")]), 1.0);
    // The window of 4 MiB and a message, what is kept, what is being read, and the allocator's slack.
    assert!(highest - before < 48 << 20, "{} MiB more", (highest - before) >> 20);
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    let late = stalled.get_request().header("Last-Event-ID", &primed).send(stalled.address);
    assert_eq!(late.status(), 400, "{late:?}");
    assert!(stalled.call(2, "echo", json!({})).get("result").is_some(), "its session and child are unharmed");
    drop(connection);
}

/// Sends this body on a connection with little room, and never reads the answer.
fn never_read(session: &Session, body: &Value, accept: &str) -> Connection {
    let mut connection = Connection::open_small(session.address, 4096);
    connection.request(&session.post_request(body.to_string()).with("Accept", accept));
    connection
}

/// F:D03: answers in JSON that nobody reads count against the budget until they are written or their
/// clients leave, alone and in a batch; meanwhile new work is refused.
#[test]
fn unread_json_answers_are_counted() {
    let gateway = start("");
    let json_only = "application/json";
    let megabyte = |id| call(id, "bytes", json!({ "size": 1 << 20 }), None);
    let single = open(&gateway);
    let batching = Session::open(&gateway, "/fake/mcp", "2025-03-26", json!({}));
    for batched in [false, true] {
        let session = if batched { &batching } else { &single };
        let unread: Vec<Connection> = if batched {
            let batch: Vec<Value> = (0..24).map(megabyte).collect();
            vec![never_read(session, &Value::from(batch), json_only)]
        } else {
            (0..24).map(|id| never_read(session, &megabyte(id), json_only)).collect()
        };
        gateway.await_metric("overload_state", &[], |step| step >= 3.0);
        let request = session.post_request(call(99, "echo", json!({}), None).to_string()).with("Accept", json_only);
        let refused = Exchange::send(session.address, &request).finish().message();
        assert_eq!(refused["error"]["data"]["reason"], "memory", "batched: {batched}: {refused}");
        unread.into_iter().for_each(Connection::reset);
        gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
        assert_eq!(session.call(100, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
        gateway.await_metric("memory_used_bytes", &[], |bytes| bytes < BUDGET / 2.0);
        session.delete();
        gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
    }
}

/// F:D03: whoever does not read large answers keeps the places of their requests.
#[test]
fn unread_answers_keep_their_places() {
    let server = Server::fake("fake").key("check_on_start = false").key("pool.min_idle = 0");
    let gateway = Gateway::start(&format!("[limits]\nrequests_in_flight = 3\n{}", server.toml()));
    let session = open(&gateway);
    let large = call(1, "bytes", json!({ "size": 2 << 20 }), None);
    let unread: Vec<Connection> = (0..3).map(|_| never_read(&session, &large, "application/json")).collect();
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes >= 3.0 * f64::from(2 << 20));
    let refused = session.call(2, "echo", json!({}));
    assert_eq!(refused["error"]["data"]["reason"], "busy", "{refused}");
    unread.into_iter().for_each(Connection::reset);
    await_that("the places", || session.call(3, "echo", json!({})).get("result").map(drop));
    for id in 0..8 {
        let answer = session.call(id, "bytes", json!({ "size": 1 << 20 }));
        assert!(answer.get("result").is_some(), "an answer that was read keeps none");
    }
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
}

/// F:D02: bodies that were announced and do not come take up nothing, so that a few idle
/// connections refuse nobody.
#[test]
fn announced_bodies_take_up_nothing() {
    let gateway = start("");
    let session = open(&gateway);
    let head = "POST /fake/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2000000\r\n\r\n{";
    let idle: Vec<Connection> = (0..24)
        .map(|_| {
            let mut connection = Connection::open(gateway.address());
            connection.send(head);
            connection
        })
        .collect();
    for id in 0..20 {
        let answer = session.call(id, "echo", json!({}));
        assert!(answer["result"].is_object(), "{answer}");
    }
    assert!(gateway.metrics().count("memory_used_bytes", &[]) < BUDGET / 4.0);
    drop(idle);
}
