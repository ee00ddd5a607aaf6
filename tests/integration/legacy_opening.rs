//! HTTP+SSE of 2024-11-05: who may initialize, and what the revision agreed on brings along.

use serde_json::{Value, json};

use crate::child::Record;
use crate::client::Connection;
use crate::gateway::Gateway;
use crate::legacy_sse::{Channel, assert_accepted, ping, server};
use crate::session::{Session, call, initialize};

/// R:L03, R:L07: of two that initialize one stream at once, the later one is refused and the earlier one has its
/// session, whichever is served first.
#[test]
fn a_second_initialize_does_not_harm_the_first() {
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).key("pool.max_size = 2").toml());
    // Both find every process in use, and the processes come free together.
    let others = [(); 2].map(|()| Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({})));
    let mut channel = Channel::open(&gateway, "/fake/sse", &[]);
    let begin = channel.post(initialize("2024-11-05", json!({})));
    let mut first = Connection::open(gateway.address());
    first.request(&begin);
    gateway.await_metric("pool_waiters", &[("server", "fake")], |waiters| waiters == 1.0);
    let mut second = Connection::open(gateway.address());
    second.request(&begin);
    for other in &others {
        assert_eq!(other.delete().status(), 204);
    }
    let refused = second.response();
    let answer = refused.json();
    assert_eq!((refused.status(), &answer["error"]["code"]), (400, &json!(-32600)), "{refused:?}");
    assert_accepted(&first.response());
    let answer = channel.next();
    assert_eq!(answer["result"]["protocolVersion"], "2024-11-05", "{answer}");
    channel.tell(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    channel.call(1, "echo", json!({}));
    let third = channel.post(initialize("2024-11-05", json!({}))).send(gateway.address());
    assert_eq!(third.status(), 400, "{third:?}");
    channel.call(2, "echo", json!({}));
    let opened = gateway.metrics().value("sessions_opened_total", &[("server", "fake")]);
    assert_eq!(opened, Some(3.0), "none was opened in vain");
}

/// R:L03: an `initialize` that gets no process, or whose client does not wait, leaves the stream to the next.
#[test]
fn an_initialize_that_fails_leaves_the_stream_to_the_next() {
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).key("pool.max_size = 1").key("pool.wait = \"2s\"").toml());
    let other = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut channel = Channel::open(&gateway, "/fake/sse", &[]);
    let begin = channel.post(initialize("2024-11-05", json!({})));
    let waiters = |count: f64| gateway.await_metric("pool_waiters", &[("server", "fake")], |waiters| waiters == count);
    let mut impatient = Connection::open(gateway.address());
    impatient.request(&begin);
    waiters(1.0);
    impatient.reset();
    waiters(0.0);
    let refused = begin.send(gateway.address());
    assert_eq!((refused.status(), &refused.json()["error"]["data"]["reason"]), (503, &json!("pool_full")));
    assert_eq!(other.delete().status(), 204);
    channel.initialize("2024-11-05");
    channel.call(1, "echo", json!({}));
}

/// R:B01, R:L08: a session that agreed on 2025-03-26 has its batches here too, each answer an event of its own.
#[test]
fn a_session_of_2025_03_26_has_batches() {
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).toml());
    let mut channel = Channel::initialized(&gateway, "/fake/sse", &[]);
    let batch = json!([ping(1), call("two", "echo", json!({ "a": 1 }), None), 7]);
    let refused = channel.post(batch.clone()).send(gateway.address());
    assert_eq!((refused.status(), &refused.json()["error"]["code"]), (400, &json!(-32600)), "R:B02: {refused:?}");
    channel.call(3, "echo", json!({}));

    let mut channel = Channel::open(&gateway, "/fake/sse", &[]);
    let refused = channel.post(json!([initialize("2025-03-26", json!({}))])).send(gateway.address());
    assert_eq!(refused.status(), 400, "R:B04: {refused:?}");
    channel.initialize("2025-03-26");
    channel.tell(batch);
    let mut answers = [channel.next(), channel.next(), channel.next()];
    answers.sort_by_key(|answer| answer["id"].to_string());
    let [two, one, bad] = &answers;
    assert_eq!((&two["id"], &two["result"]["structuredContent"]["a"]), (&json!("two"), &json!(1)), "{answers:?}");
    assert_eq!((&one["id"], &one["result"]), (&json!(1), &json!({})), "{answers:?}");
    assert_eq!((bad.get("id"), &bad["error"]["code"]), (None, &json!(-32600)), "{answers:?}");
    for bad in [json!([]), Value::from(vec![ping(1); 2]), json!([initialize("2025-03-26", json!({}))])] {
        let refused = channel.post(bad).send(gateway.address());
        assert_eq!(refused.status(), 400, "{refused:?}");
    }
    channel.call(4, "echo", json!({}));
}
