//! Mode `shared`: how a child's time is shared out, and what a session that asks for too much or reads too slowly costs
//! the others: nothing.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::client::Connection;
use crate::gateway::{Gateway, await_that};
use crate::session::{Exchange, Session, call};
use crate::sharing::{open, read, shared, state};
use crate::sse::{Item, Parser};

/// `max_sessions_per_child`: the next session gets another child, and a place that comes free is taken again.
#[test]
fn a_full_child_is_followed_by_another() {
    let gateway = Gateway::start(&shared().key("pool.max_sessions_per_child = 2").toml());
    let sessions: Vec<Session> = (0..5).map(|_| open(&gateway)).collect();
    let pids: Vec<Value> = sessions.iter().map(|session| state(session)["pid"].clone()).collect();
    assert_eq!((&pids[0], &pids[2]), (&pids[1], &pids[3]), "{pids:?}");
    assert!(pids[0] != pids[2] && pids[4] != pids[0] && pids[4] != pids[2], "{pids:?}");
    sessions[1].delete();
    let sixth = open(&gateway);
    let seventh = open(&gateway);
    let mut shared = [state(&sixth)["pid"].clone(), state(&seventh)["pid"].clone()];
    shared.sort_by_key(Value::as_u64);
    let mut free = [pids[0].clone(), pids[4].clone()];
    free.sort_by_key(Value::as_u64);
    assert_eq!(shared, free);
    assert_eq!(gateway.descendants().len(), 3);
}

/// R:P23, C:B36: a flood of one session's calls lets another's through after a few, loses none, and the child never has
/// more than it may.
#[test]
fn sessions_take_turns() {
    let record = Record::new();
    let server = shared().option("--record", record.path()).key("pool.max_calls_per_child = 2");
    let server = server.key("queue.messages = 1200").toml();
    let gateway = Gateway::start(&format!("limits.connections_per_address = 0\n{server}"));
    let (a, b) = (open(&gateway), open(&gateway));
    let held = [0, 1].map(|id| a.send_call(id, "hold", json!({ "gate": "g" })));
    await_that("both of them", || (read(&record, "tools/call").len() == 2).then_some(()));
    let flood: Vec<Exchange> = (2..300).map(|n| a.send_call(n, "echo", json!({ "n": n }))).collect();
    gateway.await_metric("requests_in_flight", &[], |count| count == 300.0);
    let quick = b.send_call(1, "echo", json!({ "quick": true }));
    gateway.await_metric("requests_in_flight", &[], |count| count == 301.0);
    assert_eq!(read(&record, "tools/call").len(), 2, "as many as it may have");
    for (id, held) in held.into_iter().enumerate() {
        a.notify("notifications/cancelled", json!({ "requestId": id }));
        assert_eq!(held.finish().message()["error"]["data"]["reason"], "cancelled");
    }
    assert_eq!(quick.finish().response(&json!(1))["result"]["structuredContent"]["quick"], true);
    for (n, call) in flood.into_iter().enumerate() {
        let answer = call.finish().response(&json!(n + 2));
        assert_eq!(answer["result"]["structuredContent"]["n"], n + 2, "{answer}");
    }
    let calls = read(&record, "tools/call");
    assert_eq!(calls.len(), 301);
    let turn = calls.iter().position(|call| call["params"]["arguments"]["quick"] == true).unwrap();
    assert!(turn <= 4, "{turn} calls went before it");
    let own = calls.iter().filter_map(|call| call["params"]["arguments"]["n"].as_u64());
    assert_eq!(own.count(), 298);
}

/// One session may have a quarter of what may wait; beyond that it is told to come back, and others are not refused.
#[test]
fn a_full_queue_is_busy_for_those_who_filled_it() {
    let server = shared().key("pool.max_calls_per_child = 1").key("queue.messages = 8");
    let gateway = Gateway::start(&server.toml());
    let sessions: Vec<Session> = (0..4).map(|_| open(&gateway)).collect();
    let holding = sessions[0].send_call("first", "hold", json!({ "gate": "g" }));
    gateway.await_metric("requests_in_flight", &[], |count| count == 1.0);
    let waiting: Vec<_> = (0..4)
        .flat_map(|own| [0, 1].map(|id| (own, id)))
        .enumerate()
        .map(|(before, (own, id))| {
            let arguments = json!({ "own": own });
            let call = sessions[own].send_call(id, "echo", arguments);
            gateway.await_metric("requests_in_flight", &[], |count| count == (before + 2) as f64);
            if id == 1 {
                let answer = sessions[own].call("third", "echo", json!({}));
                let data = &answer["error"]["data"];
                assert_eq!((&data["reason"], &data["executed"]), (&json!("busy"), &json!("no")), "{answer}");
                assert!(data["retry_after_ms"].as_u64().unwrap() > 0, "{answer}");
            }
            (own, id, call)
        })
        .collect();
    // What waits can be taken back, and makes room.
    sessions[3].notify("notifications/cancelled", json!({ "requestId": 1 }));
    sessions[0].notify("notifications/cancelled", json!({ "requestId": "first" }));
    assert_eq!(holding.finish().message()["error"]["data"]["executed"], "maybe");
    for (own, id, call) in waiting {
        let answer = call.finish().response(&json!(id));
        if (own, id) == (3, 1) {
            assert_eq!(answer["error"]["data"]["executed"], "no", "{answer}");
        } else {
            assert_eq!(answer["result"]["structuredContent"]["own"], own, "{answer}");
        }
    }
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
}

/// What waits for its turn is bounded in bytes too, and counts against the budget.
#[test]
fn calls_that_wait_are_counted() {
    let server = shared().key("pool.max_calls_per_child = 1").key("queue.bytes = \"8MiB\"");
    let gateway = Gateway::start(&server.toml());
    let (a, b) = (open(&gateway), open(&gateway));
    let first = a.send_call(0, "hold", json!({ "gate": "g" }));
    gateway.await_metric("requests_in_flight", &[], |count| count == 1.0);
    let large = json!({ "large": "x".repeat(900_000) });
    let waiting: Vec<_> = (1..3).map(|id| a.send_call(id, "echo", large.clone())).collect();
    gateway.await_metric("requests_in_flight", &[], |count| count == 3.0);
    gateway.await_metric("memory_used_bytes", &[], |bytes| (1.8e6..2.0e6).contains(&bytes));
    assert_eq!(a.call(4, "echo", large.clone())["error"]["data"]["reason"], "busy", "2 MiB is its part");
    a.notify("notifications/cancelled", json!({ "requestId": 0 }));
    first.finish();
    for (id, call) in waiting.into_iter().enumerate() {
        assert!(call.finish().response(&json!(id + 1)).get("result").is_some());
    }
    assert!(b.call(1, "echo", large).get("result").is_some());
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
}

/// Reads a stream's head and its first event, and then no more.
fn stall(session: &Session, body: &Value) -> (Connection, Parser) {
    let mut connection = Connection::open_small(session.address, 4096);
    connection.request(&session.post_request(body.to_string()));
    assert_eq!(connection.head().header("content-type"), Some("text/event-stream"));
    let mut parser = Parser::default();
    while !parser.push(&connection.read_body().unwrap()).iter().any(|item| matches!(item, Item::Event(_))) {}
    (connection, parser)
}

/// Every message of the rest of a stream.
fn drink((mut connection, mut parser): (Connection, Parser)) -> Vec<Value> {
    let mut messages = Vec::new();
    while let Some(bytes) = connection.read_body() {
        for item in parser.push(&bytes) {
            if let Item::Event(event) = item
                && !event.data.is_empty()
            {
                messages.push(event.message());
            }
        }
    }
    messages
}

/// F:D03: a reader that takes nothing does not stop the others on its child, and costs a
/// bounded amount; log messages that it is too late for are lost to it and counted, its answer never is.
#[test]
fn a_slow_reader_stops_nobody() {
    let gateway = Gateway::start(&shared().toml());
    let (slow, other) = (open(&gateway), open(&gateway));
    let before = gateway.rss();
    let flood = call(1, "log", json!({ "count": 100, "bytes": 1_000_000 }), None);
    let stalled = stall(&slow, &flood);
    let began = Instant::now();
    gateway.await_metric("requests_total", &[("method", "tools/call"), ("outcome", "ok")], |count| count == 1.0);
    for n in 0..20 {
        assert_eq!(other.call(n, "echo", json!({ "n": n }))["result"]["structuredContent"]["n"], n);
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let more = gateway.rss() - before;
    assert!(more < 48 << 20, "{} MiB more", more >> 20);
    let messages = drink(stalled);
    assert!(messages.len() < 20, "{} messages", messages.len());
    assert_eq!(messages.last().unwrap()["id"], 1, "the answer comes all the same");
    let lost = gateway.metrics().count("notifications_dropped_total", &[("reason", "slow_reader")]);
    // The first was read by the test itself.
    assert!(lost >= 90.0 && lost + messages.len() as f64 >= 100.0, "{lost} lost, {} read", messages.len());
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes < 8e6);
}

/// The same with progress: the latest comes, and before the answer; and a reader that is slow for a while gets the latest
/// once it has caught up.
#[test]
fn a_slow_reader_gets_the_latest_progress() {
    let gateway = Gateway::start(&shared().toml());
    let (slow, other) = (open(&gateway), open(&gateway));
    let progress = |id: u64, gate: Value| {
        let arguments = json!({ "count": 150, "bytes": 100_000, "gate": gate });
        stall(&slow, &call(id, "progress", arguments, Some(json!("t"))))
    };
    let written = |count: f64| {
        gateway.await_metric("notifications_total", &[("kind", "progress")], |all| all == count);
        assert!(other.call(1, "echo", json!({})).get("result").is_some());
    };
    let stalled = progress(1, Value::Null);
    written(150.0);
    let messages = drink(stalled);
    let steps: Vec<u64> = messages.iter().filter_map(|message| message["params"]["progress"].as_u64()).collect();
    assert!(steps.is_sorted() && steps.len() < 100, "{steps:?}");
    assert_eq!(steps.last(), Some(&150), "the latest");
    assert!(messages.iter().all(|message| message["id"] == 1 || message["params"]["progressToken"] == "t"));
    assert_eq!(messages.last().unwrap()["id"], 1);
    let lost = gateway.metrics().count("notifications_dropped_total", &[("reason", "slow_reader")]);
    assert!(lost > 50.0, "{lost}");

    let (mut connection, mut parser) = progress(2, json!("g"));
    written(300.0);
    let mut last = 0;
    while last < 150 {
        for item in parser.push(&connection.read_body().expect("the call goes on")) {
            if let Item::Event(event) = item
                && !event.data.is_empty()
            {
                last = event.message()["params"]["progress"].as_u64().unwrap();
            }
        }
    }
    other.call(2, "release", json!({ "gate": "g" }));
    assert_eq!(drink((connection, parser)).pop().unwrap()["id"], 2);
}

/// What a start says of a server that is shared.
#[test]
fn a_start_warns_of_one_trust_domain() {
    let gateway = Gateway::start(&format!("{}{}", shared().toml(), Server::demo("own").toml()));
    let warning = gateway.await_event("warning", |event| event["warning"].as_str().unwrap().contains("trust"));
    assert!(warning["warning"].as_str().unwrap().starts_with("fake: mode"), "{warning}");
    let count = gateway.events().iter().filter(|event| event.to_string().contains("trust domain")).count();
    assert_eq!(count, 1);
}
