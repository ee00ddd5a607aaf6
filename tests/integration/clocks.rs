//! The clocks of calls and of what a child asks; what is cancelled, how, and what comes too late.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::child::{Gate, Record, Server};
use crate::gateway::Gateway;
use crate::session::Session;

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({ "elicitation": {} }))
}

fn lone() -> Server {
    Server::fake("fake").key("check_on_start = false\npool.min_idle = 0")
}

#[track_caller]
fn assert_timed_out(answer: &Value) {
    let error = &answer["error"];
    assert_eq!(error["code"], 504, "{answer}");
    assert_eq!(error["data"], json!({ "gateway": true, "reason": "timeout", "executed": "maybe" }), "{answer}");
}

fn cancellation_of(id: u64) -> impl Fn(&Value) -> bool {
    move |message| message["method"] == "notifications/cancelled" && message["params"]["requestId"] == id
}

/// The child-side id of the call with this argument.
fn child_id(record: &Record, me: &Value) -> u64 {
    let call = record.await_message(|message| message["params"]["arguments"]["me"] == *me);
    call["id"].as_u64().unwrap()
}

/// C:B19, R:D09, R:D17: a call that is never answered ends at `call_idle`; its child is told, under
/// the id it knows; others go on; what comes later is dropped.
#[test]
fn a_call_without_an_answer_times_out() {
    let record = Record::new();
    let server = lone().option("--record", record.path()).key("timeouts.call_idle = \"400ms\"");
    let gateway = Gateway::start(&server.toml());
    let session = open(&gateway);
    let silent = session.send_call(1, "silent", json!({ "me": "silent" }));
    let late = session.send_call("late", "late", json!({ "me": "late" }));
    assert_eq!(session.call(2, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    assert_timed_out(&silent.finish().message());
    assert_timed_out(&late.finish().message());
    for me in ["silent", "late"] {
        record.await_message(cancellation_of(child_id(&record, &json!(me))));
    }
    gateway.await_metric("unmatched_responses_total", &[("from", "child")], |count| count == 1.0);
    assert_eq!(session.call(1, "echo", json!({ "a": 2 }))["result"]["structuredContent"]["a"], 2);
    gateway.await_metric("requests_total", &[("outcome", "timeout")], |count| count == 2.0);
}

/// After a time-out the child is asked whether it lives; one that is stays.
#[test]
fn a_child_is_asked_after_a_time_out() {
    let record = Record::new();
    let server = lone().option("--record", record.path()).key("timeouts.call_idle = \"200ms\"");
    let gateway = Gateway::start(&server.toml());
    let session = open(&gateway);
    assert_timed_out(&session.call(1, "silent", json!({})));
    record.await_message(|message| message["method"] == "ping");
    assert_eq!(session.call(2, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    // Its answer is the gateway's own, and matched.
    assert_eq!(gateway.metrics().count("unmatched_responses_total", &[]), 0.0);
}

/// R:H32: progress winds `call_idle` up again.
#[test]
fn progress_keeps_a_call_alive() {
    let gateway = Gateway::start(&lone().key("timeouts.call_idle = \"1s\"").toml());
    let session = open(&gateway);
    let arguments = json!({ "count": 8, "pace": 0.25 });
    let answer = session.send_call_with_token(1, "progress", arguments, 7).finish();
    assert_eq!(answer.messages().len(), 9, "{answer:?}");
    assert_eq!(answer.message()["result"]["content"][0]["text"], "progressed");
}

/// R:H32: nothing winds `call_total` up.
#[test]
fn progress_does_not_keep_a_call_alive_for_ever() {
    let gateway = Gateway::start(&lone().key("timeouts.call_total = \"600ms\"").toml());
    let session = open(&gateway);
    let arguments = json!({ "count": 1000, "pace": 0.05 });
    let answer = session.send_call_with_token(1, "progress", arguments, 7).finish();
    assert!(answer.messages().len() >= 2, "{answer:?}");
    assert_timed_out(&answer.message());
}

/// `timeouts`: a call's clock stands still while its child waits for the client.
#[test]
fn the_clock_stops_while_the_child_waits_for_the_client() {
    let gateway = Gateway::start(&lone().key("timeouts.call_idle = \"500ms\"\ntimeouts.call_total = \"700ms\"").toml());
    let session = open(&gateway);
    let mut stream = session.send_call(1, "ask", json!({ "method": "elicitation/create", "id": "e1" })).stream();
    assert_eq!(stream.await_message(|message| message["method"] == "elicitation/create")["id"], "e1");
    assert!(stream.connection().is_quiet_for(Duration::from_millis(1500)), "the clock went on");
    assert_eq!(session.respond(&json!("e1"), json!({ "action": "accept" })).status(), 202);
    let answer = stream.next_message();
    assert_eq!(answer["result"]["structuredContent"]["result"]["action"], "accept", "{answer}");
    // It goes on afterwards.
    assert_timed_out(&session.call(2, "silent", json!({})));
}

/// `timeouts`: only the call that asks waits for the client; another one's clock goes on.
#[test]
fn a_question_stops_only_the_clock_of_its_call() {
    let gateway = Gateway::start(&lone().key("timeouts.call_idle = \"500ms\"").toml());
    let session = open(&gateway);
    let mut asking = session.send_call(1, "ask", json!({ "method": "elicitation/create", "id": "e" })).stream();
    asking.await_message(|message| message["id"] == "e");
    let answer = session.call(2, "silent", json!({}));
    assert_eq!(answer["error"]["data"]["reason"], "timeout", "{answer}");
    session.respond(&json!("e"), json!({ "action": "accept" }));
    let answer = asking.next_message();
    assert_eq!(answer["result"]["structuredContent"]["result"]["action"], "accept", "{answer}");
}

/// R:H32: a child that asks again and again keeps a call alive for `call_total` and
/// `ask` together, no longer.
#[test]
fn questions_do_not_keep_a_call_alive_for_ever() {
    let server = lone().key("timeouts.call_total = \"400ms\"\ntimeouts.ask = \"600ms\"").toml();
    let gateway = Gateway::start(&format!("streams.sse_after = \"1m\"\n{server}"));
    let session = open(&gateway);
    let mut get = session.get();
    let began = Instant::now();
    let mut silent = session.send_call("silent", "silent", json!({}));
    // One is always open, and with two calls in flight each belongs to nobody in particular.
    let mut number = 0;
    while silent.connection.is_quiet_for(Duration::from_millis(100)) {
        assert!(number < 100, "the call never ends");
        number += 1;
        session.call(number, "ask", json!({ "method": "elicitation/create", "id": number, "wait": false }));
        if !silent.connection.is_quiet_for(Duration::from_millis(50)) {
            // It ended before this question, which then belonged to the call that asked it.
            break;
        }
        get.await_message(|message| message["id"] == number);
    }
    let answer: Value = silent.finish().message();
    assert_eq!(answer["error"]["data"]["reason"], "timeout", "{answer}");
    assert!(began.elapsed() >= Duration::from_millis(800), "the clock stood still for some of it");
}

/// `timeouts.ask`: a client that does not answer costs the child an error, once; the
/// client is told to forget the request, and its late answer is dropped.
#[test]
fn an_unanswered_question_ends_at_its_limit() {
    let record = Record::new();
    let gateway = Gateway::start(&lone().option("--record", record.path()).key("timeouts.ask = \"400ms\"").toml());
    let session = open(&gateway);
    let mut stream = session.send_call(1, "ask", json!({ "method": "elicitation/create", "id": 17 })).stream();
    stream.await_message(|message| message["id"] == 17);
    let rest = [stream.next_message(), stream.next_message()];
    let withdrawn = rest.iter().find(|message| message["method"] == "notifications/cancelled");
    assert_eq!(withdrawn.expect("a cancellation")["params"]["requestId"], 17, "{rest:?}");
    let answer = rest.iter().find(|message| message["id"] == 1).expect("the call's answer");
    let reply = &answer["result"]["structuredContent"];
    assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!(17), &json!(-32001)), "{answer}");
    assert_eq!(session.respond(&json!(17), json!({ "action": "accept" })).status(), 202);
    gateway.await_metric("unmatched_responses_total", &[("from", "client")], |count| count == 1.0);
    session.call(2, "echo", json!({}));
    let answers = record.lines().iter().filter(|line| line.starts_with(r#"{"jsonrpc":"2.0","id":17,"#)).count();
    assert_eq!(answers, 1, "one answer: the gateway's error");
}

/// R:D09, C:B41, R:X03: a cancellation names the child's id, the call of the same number elsewhere
/// completes, and the client's own words reach the child.
#[test]
fn a_cancellation_is_translated() {
    let record = Record::new();
    let gateway = Gateway::start(&lone().option("--record", record.path()).toml());
    let (session, other) = (open(&gateway), open(&gateway));
    let theirs = other.send_call(7, "hold", json!({ "gate": "g", "me": "theirs" }));
    let text = session.send_call("7", "hold", json!({ "gate": "g", "me": "text" }));
    let number = session.send_call(7, "late", json!({ "me": "number" }));
    let id = child_id(&record, &json!("number"));
    child_id(&record, &json!("text"));
    let params = json!({ "requestId": 7, "reason": "changed my mind", "vendor": [1] });
    assert_eq!(session.notify("notifications/cancelled", params).status(), 202);
    let answer = number.finish().message();
    assert_eq!(answer["id"], 7, "{answer}");
    assert_eq!(answer["error"]["data"]["reason"], "cancelled", "{answer}");
    let seen = record.await_message(cancellation_of(id));
    assert_eq!(seen["params"], json!({ "requestId": id, "reason": "changed my mind", "vendor": [1] }));
    gateway.await_metric("unmatched_responses_total", &[("from", "child")], |count| count == 1.0);
    session.call(8, "release", json!({ "gate": "g" }));
    assert_eq!(text.finish().message()["result"]["structuredContent"]["me"], "text");
    other.call(8, "release", json!({ "gate": "g" }));
    assert_eq!(theirs.finish().message()["result"]["structuredContent"]["me"], "theirs");
    let cancellations = record.lines().iter().filter(|line| line.contains("notifications/cancelled")).count();
    assert_eq!(cancellations, 1);
}

/// R:D09: what is not in flight, or not the session's, cancels nothing; the answer is 202 all the same.
#[test]
fn a_cancellation_of_nothing_reaches_no_child() {
    let record = Record::new();
    let gateway = Gateway::start(&lone().option("--record", record.path()).toml());
    let session = open(&gateway);
    session.call(1, "echo", json!({}));
    for params in [json!({ "requestId": 1 }), json!({ "requestId": "no" }), json!({}), json!({ "requestId": null })] {
        assert_eq!(session.notify("notifications/cancelled", params.clone()).status(), 202, "{params}");
    }
    session.call(2, "echo", json!({}));
    assert!(record.lines().iter().all(|line| !line.contains("notifications/cancelled")));
}

/// R:D09: `initialize` is never cancelled, not even by a client that learned its session id early.
#[test]
fn initialize_is_never_cancelled() {
    let mut gate = Gate::new();
    let record = Record::new();
    let server = lone().option("--wait-init", gate.path()).option("--record", record.path());
    let gateway = Gateway::start(&format!("[streams]\nsse_after = \"50ms\"\n{}", server.toml()));
    let body = crate::session::initialize("2025-11-25", json!({})).to_string();
    let request = crate::client::Request::post("/fake/mcp", body);
    let mut stream = crate::session::Exchange::send(gateway.address(), &request).stream();
    let id = stream.head.header("mcp-session-id").unwrap().to_owned();
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"initialize"}}"#;
    let early = crate::client::Request::post("/fake/mcp", cancel).header("Mcp-Session-Id", &id);
    let early = early.send(gateway.address()).status();
    assert!(early == 404 || early == 202, "{early}");
    gate.open();
    let answer = stream.next_message();
    assert!(answer["result"].is_object(), "{answer}");
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let ping = crate::client::Request::post("/fake/mcp", ping).header("Mcp-Session-Id", &id);
    assert_eq!(ping.send(gateway.address()).status(), 200);
    assert!(record.lines().iter().all(|line| !line.contains("notifications/cancelled")));
}

/// R:D09, R:X02: ending a session cancels what it has in flight, as one call's answer each.
#[test]
fn the_end_of_a_session_answers_its_calls() {
    let gateway = Gateway::start(&lone().toml());
    let session = open(&gateway);
    let plain = session.send_call(1, "hold", json!({ "gate": "never" }));
    session.call(2, "await_held", json!({ "gate": "never" }));
    let mut get = session.get();
    assert_eq!(session.delete().status(), 204);
    let answer = plain.finish();
    assert_eq!(answer.messages().len(), 1, "{answer:?}");
    assert_eq!(answer.message()["error"]["data"]["reason"], "child_gone", "{answer:?}");
    while get.next_event_or_end().is_some() {}
    gateway.await_descendants(0);
}

/// R:D29: a client that left before the head costs nothing but its answer: the call runs on.
#[test]
fn a_call_whose_client_left_runs_on() {
    let record = Record::new();
    let gateway = Gateway::start(&lone().option("--record", record.path()).toml());
    let session = open(&gateway);
    let call = session.send_call(1, "hold", json!({ "gate": "g", "me": 1 }));
    child_id(&record, &json!(1));
    call.reset();
    gateway.await_metric("connections", &[("listener", "main")], |open| open == 0.0);
    session.call(2, "release", json!({ "gate": "g" }));
    gateway.await_metric("requests_total", &[("outcome", "client_gone")], |count| count == 1.0);
    assert!(
        record.lines().iter().all(|line| !line.contains("notifications/cancelled")),
        "a lost client cancels nothing"
    );
}
