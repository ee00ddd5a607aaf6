//! What is done as the memory budget fills up, step by step, and that it is left off again.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::child::{Gate, Server};
use crate::client::{Connection, Request};
use crate::gateway::{Gateway, await_that};
use crate::memory::{leave_unread, open, start, try_open};
use crate::session::{Session, call};

fn await_step(gateway: &Gateway, step: f64) {
    gateway.await_metric("overload_state", &[], |now| now == step);
}

fn readiness(gateway: &Gateway) -> (u16, String) {
    let ready = Request::get("/readyz").send(gateway.admin());
    (ready.status(), ready.text().trim().to_owned())
}

fn release(session: &Session, gate: &str) {
    let released = session.call(format!("release {gate}"), "release", json!({ "gate": gate }));
    assert!(released["result"].is_object(), "{released}");
}

/// F:F10: each step comes at its line and does what it says and nothing more; what is under
/// way goes on on every step: a call's answer, and a client's long answer to its server. All is well again afterwards.
#[test]
fn every_step_comes_and_goes() {
    let gateway = start("");
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({ "roots": {} }));
    let other = open(&gateway);
    let mut gate = Gate::new();
    let under_way = other.send_call("under way", "wait", json!({ "path": gate.path() }));
    let mut asking = session.send_call("asking", "ask", json!({ "method": "roots/list", "id": "long" })).stream();
    asking.await_message(|message| message["method"] == "roots/list");
    let asked = asking.last_event_id().to_owned();
    asking.reset();
    gateway.await_metric("streams", &[], |streams| streams == 1.0);
    let megabytes = |count: f64| (count * 1e6) as usize;
    // 82 % of 16 MiB together, then 91 %, then 96 %.
    let mut unread = Vec::new();
    for (gate, lengths) in [("a", vec![2.76; 5]), ("b", vec![1.5]), ("c", vec![0.8])] {
        let lengths: Vec<usize> = lengths.into_iter().map(megabytes).collect();
        unread.extend(leave_unread(&gateway, &session, gate, &lengths, 1.0));
    }
    await_step(&gateway, 0.0);

    release(&session, "a");
    await_step(&gateway, 1.0);
    assert_eq!(try_open(&gateway).status(), 200);

    release(&session, "b");
    await_step(&gateway, 2.0);
    let refused = try_open(&gateway);
    assert_eq!(refused.status(), 503, "{refused:?}");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(refused.json()["error"]["data"]["reason"], "memory", "{refused:?}");
    assert!(other.call(1, "echo", json!({}))["result"].is_object(), "sessions that live go on");
    assert_eq!(readiness(&gateway).0, 200, "and must find their way here");

    release(&session, "c");
    await_step(&gateway, 3.0);
    let refused = other.call(2, "echo", json!({}));
    let data = &refused["error"]["data"];
    assert_eq!((&data["reason"], &data["executed"]), (&json!("memory"), &json!("no")), "{refused}");
    assert_eq!(readiness(&gateway), (503, "memory".to_owned()));
    gate.open();
    assert!(under_way.finish().message()["result"].is_object());
    // More than there is room for, and it comes through.
    let accepted = session.respond(&json!("long"), json!({ "roots": [], "padding": "x".repeat(800_000) }));
    assert_eq!(accepted.status(), 202, "{accepted:?}");
    await_step(&gateway, 4.0);
    assert_eq!(gateway.metrics().count("stream_cuts_total", &[]), 0.0, "nobody reads");

    unread.push(asked);
    let answers: Vec<Value> =
        unread.iter().map(|primed| session.resume(primed).rest().pop().unwrap().message()).collect();
    assert!(answers.iter().all(|answer| answer["result"].is_object()));
    let padding = &answers.last().unwrap()["result"]["structuredContent"]["result"]["padding"];
    assert_eq!(padding.as_str().map(str::len), Some(800_000));
    await_step(&gateway, 0.0);
    assert_eq!((readiness(&gateway).0, try_open(&gateway).status()), (200, 200));
    gateway.await_event("overload", |event| event["to"] == 0);
    let told: Vec<Value> = gateway.events().into_iter().filter(|event| event["event"] == "overload").collect();
    for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        let line = told.iter().find(|line| line["from"] == from && line["to"] == to);
        let line = line.unwrap_or_else(|| panic!("no step from {from} to {to}: {told:#?}"));
        assert!(line["used"].is_u64() && line["budget"] == 16 << 20 && line["level"] == "warn", "{line}");
    }
    let chained = told.windows(2).all(|lines| lines[0]["to"] == lines[1]["from"]);
    assert!(chained && told.last().unwrap()["to"] == 0, "{told:#?}");
}

/// F:D03, F:F10: where readers that stopped have used up the budget, the one that stopped first is cut long before its
/// time, and no more than need be; others are answered all the while, and memory is bounded.
#[test]
fn the_reader_that_stopped_first_is_cut() {
    let server = Server::fake("fake").key("check_on_start = false").key("pool.min_idle = 0");
    let limits = "[limits]\nmemory = \"16MiB\"\nwrite_stall = \"1h\"\n";
    let gateway = Gateway::start(&format!("{limits}{}", server.toml()));
    let other = open(&gateway);
    let before = gateway.rss();
    let mut stopped = Vec::new();
    for count in 1..=4 {
        let session = open(&gateway);
        let mut connection = Connection::open_small(gateway.address(), 4096);
        let flood = call(1, "log", json!({ "count": 200, "bytes": 100_000 }), None);
        connection.request(&session.post_request(flood.to_string()));
        assert_eq!(connection.head().header("content-type"), Some("text/event-stream"));
        // A full window each.
        let least = f64::from(count * (4 << 20)).min(0.95 * f64::from(16 << 20));
        let is_cut = || gateway.metrics().count("stream_cuts_total", &[]) > 0.0;
        await_that("a full window", || {
            (gateway.metrics().count("memory_used_bytes", &[]) >= least || (count == 4 && is_cut())).then_some(())
        });
        stopped.push((session, connection));
    }
    let mut slowest = Duration::ZERO;
    await_that("the cut", || {
        let asked = Instant::now();
        let _answered_or_refused = other.request(1, "ping", json!({}));
        slowest = asked.elapsed().max(slowest);
        (gateway.metrics().count("stream_cuts_total", &[("reason", "stall")]) == 1.0).then_some(())
    });
    await_that("relief", || (gateway.metrics().count("overload_state", &[]) < 2.0).then_some(()));
    gateway.await_event("stream_cut", |event| event["reason"] == "stall");
    let metrics = gateway.metrics();
    assert_eq!((metrics.count("stream_cuts_total", &[]), metrics.count("streams", &[])), (1.0, 3.0));
    let (first, mut connection) = stopped.remove(0);
    while matches!(connection.try_read_body(), Ok(Some(_))) {}
    connection.await_close();
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    assert!(gateway.rss() - before < 64 << 20, "{} MiB more", (gateway.rss() - before) >> 20);
    assert_eq!(other.request(2, "ping", json!({}))["result"], json!({}));
    assert!(first.call(2, "echo", json!({}))["result"].is_object(), "its session and child are unharmed");

    for (session, connection) in stopped {
        connection.reset();
        session.delete();
    }
    first.delete();
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
    await_step(&gateway, 0.0);
}
