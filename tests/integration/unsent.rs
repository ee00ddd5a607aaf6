//! Calls that end while they still wait for their child to read: nobody may have acted on them.

use serde_json::{Value, json};

use crate::child::{Process, Server};
use crate::gateway::Gateway;
use crate::session::{Exchange, Session};

/// More than a pipe takes.
const LONG: usize = 300_000;

fn lone() -> Server {
    Server::fake("fake").key("check_on_start = false\npool.min_idle = 0")
}

/// A session whose child reads no more: one call is partly in its pipe, the other waits behind it.
fn stuck(gateway: &Gateway) -> (Session, Exchange, Exchange) {
    let session = Session::open(gateway, "/fake/mcp", "2025-11-25", json!({}));
    session.call(0, "stop_reading", json!({}));
    let begun = session.send_call("begun", "echo", json!({ "text": "x".repeat(LONG) }));
    gateway.await_metric("queue_messages", &[], |count| count == 1.0);
    let queued = session.send_call("queued", "echo", json!({}));
    gateway.await_metric("queue_messages", &[], |count| count == 2.0);
    (session, begun, queued)
}

#[track_caller]
fn assert_ended(call: Exchange, reason: &str, executed: &str) {
    let answer: Value = call.finish().message();
    let data = &answer["error"]["data"];
    assert_eq!((&data["reason"], &data["executed"]), (&json!(reason), &json!(executed)), "{answer}");
}

/// R:H32: a call of which the child saw no byte can be made again, and its error says so.
#[test]
fn a_queued_call_that_times_out_was_not_executed() {
    let gateway = Gateway::start(&lone().key("timeouts.call_idle = \"1s\"").toml());
    let (_session, begun, queued) = stuck(&gateway);
    assert_ended(queued, "timeout", "no");
    assert_ended(begun, "timeout", "maybe");
}

/// R:D09: the same for one the client takes back.
#[test]
fn a_queued_call_that_is_cancelled_was_not_executed() {
    let gateway = Gateway::start(&lone().toml());
    let (session, begun, queued) = stuck(&gateway);
    session.notify("notifications/cancelled", json!({ "requestId": "queued" }));
    assert_ended(queued, "cancelled", "no");
    session.notify("notifications/cancelled", json!({ "requestId": "begun" }));
    assert_ended(begun, "cancelled", "maybe");
}

/// R:X02: and for one whose session ends.
#[test]
fn a_queued_call_whose_session_ends_was_not_executed() {
    let gateway = Gateway::start(&lone().toml());
    let (session, begun, queued) = stuck(&gateway);
    session.delete();
    assert_ended(queued, "child_gone", "no");
    assert_ended(begun, "child_gone", "maybe");
}

/// A drain cuts what did not end in time, and the child may have acted on that.
#[test]
fn a_drain_says_what_was_not_executed() {
    let drain = "[drain]\nprestop = \"0s\"\ncalls = \"200ms\"\n";
    let gateway = Gateway::start(&format!("{drain}{}", lone().toml()));
    let (_session, begun, queued) = stuck(&gateway);
    gateway.signal(rustix::process::Signal::TERM);
    assert_ended(queued, "draining", "no");
    assert_ended(begun, "draining", "maybe");
}

/// R:H32: and for one that a child left unread when it died.
#[test]
fn a_queued_call_of_a_dead_child_was_not_executed() {
    let gateway = Gateway::start(&lone().toml());
    let (_session, begun, queued) = stuck(&gateway);
    gateway.descendants().iter().for_each(Process::kill);
    assert_ended(queued, "child_gone", "no");
    assert_ended(begun, "child_gone", "maybe");
}
