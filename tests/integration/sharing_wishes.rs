//! Mode `shared`: log levels, log messages, subscriptions and changes of lists, which a child knows for itself only once
//! and each session for itself.

use serde_json::{Value, json};

use crate::child::Record;
use crate::gateway::{Gateway, await_that};
use crate::session::Session;
use crate::sharing::{open, read, shared, state};
use crate::sse::EventStream;

const LIST_CHANGED: &str = "notifications/tools/list_changed";
const UPDATED: &str = "notifications/resources/updated";

fn set_level(session: &Session, level: &str) {
    let answer = session.request("level", "logging/setLevel", json!({ "level": level }));
    assert_eq!(answer["result"], json!({}), "{answer}");
}

fn subscribe(session: &Session, uri: &str) -> Value {
    session.request("subscribe", "resources/subscribe", json!({ "uri": uri }))
}

fn unsubscribe(session: &Session, uri: &str) -> Value {
    session.request("unsubscribe", "resources/unsubscribe", json!({ "uri": uri }))
}

fn levels(record: &Record) -> Vec<Value> {
    read(record, "logging/setLevel").iter().map(|message| message["params"]["level"].clone()).collect()
}

/// How many log messages come back with a call that makes so many.
fn logged(session: &Session, level: &str, count: usize) -> usize {
    let answer = session.send_call(1, "log", json!({ "level": level, "count": count })).finish();
    let messages = answer.messages();
    let logs = messages.iter().filter(|message| message["method"] == "notifications/message");
    assert!(logs.clone().all(|message| message["params"]["level"] == level), "{answer:?}");
    assert_eq!(messages.last().unwrap()["id"], 1);
    logs.count()
}

/// The methods of everything that came, once the session has ended.
fn rest(session: &Session, stream: EventStream) -> Vec<String> {
    session.delete();
    let events = stream.rest().into_iter().filter(|event| !event.data.is_empty());
    events.map(|event| event.message()["method"].as_str().unwrap().to_owned()).collect()
}

/// R:P08: the child is at the most verbose level that anybody wants, is told of changes only, and is brought back once
/// that session is over; each session hears its own level.
#[test]
fn each_session_has_its_own_level() {
    let record = Record::new();
    let gateway = Gateway::start(&shared().option("--record", record.path()).toml());
    let (a, b, c) = (open(&gateway), open(&gateway), open(&gateway));
    set_level(&a, "error");
    set_level(&b, "debug");
    set_level(&a, "warning");
    assert_eq!(state(&a)["level"], "debug");
    let heard = |session: &Session| {
        let all = ["debug", "info", "warning", "error"];
        all.into_iter().filter(|level| logged(session, level, 1) == 1).collect::<Vec<_>>()
    };
    assert_eq!(heard(&a), ["warning", "error"]);
    assert_eq!(heard(&b), ["debug", "info", "warning", "error"]);
    assert_eq!(heard(&c), ["info", "warning", "error"], "who set none hears what a server says by itself");
    b.delete();
    await_that("the level of the others", || (state(&a)["level"] == "info").then_some(()));
    c.delete();
    await_that("the level of the last", || (state(&a)["level"] == "warning").then_some(()));
    assert_eq!(levels(&record), ["info", "debug", "info", "warning"]);
    gateway.await_metric("notifications_dropped_total", &[("reason", "no_request")], |count| count == 3.0);
}

/// R:P08: a level that is none, and a server that does not log.
#[test]
fn a_level_is_one_of_eight() {
    let gateway = Gateway::start(&shared().toml());
    let session = open(&gateway);
    for level in [json!("loud"), json!(1), Value::Null] {
        let answer = session.request(1, "logging/setLevel", json!({ "level": level }));
        assert_eq!(answer["error"]["code"], -32602, "{level}: {answer}");
    }
    let silent = Gateway::start(&shared().arg("--init-merge").arg(r#"{"capabilities":{}}"#).toml());
    let answer = open(&silent).request(1, "logging/setLevel", json!({ "level": "info" }));
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
}

/// R:P09, F:B08: a log message reaches a client only while its call is the only one, and none that was given up may still
/// run; else nobody.
#[test]
fn log_messages_reach_the_only_caller() {
    let gateway = Gateway::start(&shared().toml());
    let (a, b) = (open(&gateway), open(&gateway));
    let streams = [&a, &b].map(Session::get);
    let held = a.send_call(1, "hold", json!({ "gate": "g" }));
    a.call(2, "await_held", json!({ "gate": "g" }));
    assert_eq!(logged(&b, "info", 5), 0);
    a.call(2, "release", json!({ "gate": "g" }));
    assert_eq!(held.finish().texts.len(), 1);
    gateway.await_metric("notifications_dropped_total", &[("reason", "no_request")], |count| count == 5.0);
    assert_eq!(logged(&b, "notice", 2), 2);
    let late = a.send_call(4, "hold", json!({ "gate": "h" }));
    b.call(5, "await_held", json!({ "gate": "h" }));
    a.notify("notifications/cancelled", json!({ "requestId": 4 }));
    late.finish();
    assert_eq!(logged(&b, "info", 2), 0);
    assert_eq!(logged(&a, "info", 3), 3, "its own call it was that was given up");
    for (session, stream) in [&a, &b].into_iter().zip(streams) {
        assert!(rest(session, stream).is_empty());
    }
}

/// R:P10, F:B08: the child is told of the first subscription and of the end of the last; updates, of parts too, reach the
/// subscribers and nobody else; the end of a session is the end of what it subscribed to.
#[test]
fn subscriptions_are_counted() {
    let record = Record::new();
    let gateway = Gateway::start(&shared().option("--record", record.path()).toml());
    let sessions = [(); 3].map(|()| open(&gateway));
    let [a, b, c] = &sessions;
    let mut streams = sessions.each_ref().map(Session::get);
    for session in [a, b, a] {
        assert_eq!(subscribe(session, "fake://a")["result"], json!({}));
    }
    assert_eq!(subscribe(b, "fake://none")["error"]["code"], -32002, "the child's own answer");
    assert_eq!(unsubscribe(c, "fake://a")["result"], json!({}), "it never was subscribed");
    let update = |uri: &str| {
        c.call("update", "notify", json!({ "method": UPDATED, "params": { "uri": uri } }));
    };
    update("fake://a");
    update("fake://a/part");
    update("fake://ab");
    update("fake://b");
    assert_eq!(unsubscribe(a, "fake://a")["result"], json!({}));
    update("fake://a#1");
    assert_eq!(read(&record, "resources/unsubscribe").len(), 0, "one is left");
    // What was not read yet is lost with a session.
    for (stream, uris) in streams.iter_mut().zip([&["", "/part"][..], &["", "/part", "#1"], &[]]) {
        for part in uris {
            assert_eq!(stream.next_message()["params"]["uri"], format!("fake://a{part}"));
        }
    }
    b.delete();
    record.await_message(|message| message["method"] == "resources/unsubscribe");
    assert_eq!(state(c)["subscriptions"], json!([]));
    update("fake://a");
    a.delete();
    c.delete();
    for stream in streams {
        assert!(stream.rest().iter().all(|event| event.data.is_empty()));
    }
    let subscribed = read(&record, "resources/subscribe");
    assert_eq!(subscribed.len(), 2, "one for each resource: {subscribed:?}");
    assert_eq!(read(&record, "resources/unsubscribe").len(), 1);
}

/// R:P10: whoever subscribes and unsubscribes in whatever order and at the same time, the child ends up with what is left.
#[test]
fn subscriptions_of_many_at_once_end_right() {
    let gateway = Gateway::start(&shared().toml());
    let sessions: Vec<Session> = (0..6).map(|_| open(&gateway)).collect();
    std::thread::scope(|scope| {
        for (number, session) in sessions.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..20 {
                    subscribe(session, "fake://a");
                    set_level(session, if (round + number) % 2 == 0 { "debug" } else { "error" });
                    unsubscribe(session, "fake://a");
                }
                set_level(session, "critical");
                if number == 5 {
                    subscribe(session, "fake://b");
                }
            });
        }
    });
    let said = await_that("what is left", || Some(state(&sessions[0])).filter(|said| said["level"] == "critical"));
    assert_eq!(said["subscriptions"], json!(["fake://b"]));
}

/// R:P11, R:H19: each session hears once that a list changed.
#[test]
fn every_session_hears_of_a_change_once() {
    let gateway = Gateway::start(&shared().toml());
    let sessions = [(); 3].map(|()| open(&gateway));
    let streams = sessions.each_ref().map(Session::get);
    sessions[0].call(1, "notify", json!({ "method": LIST_CHANGED }));
    sessions[1].call(2, "notify", json!({ "method": "notifications/vendor/x" }));
    sessions[1].call(
        2,
        "notify",
        json!({ "method": "notifications/progress", "params": { "progressToken": 1, "progress": 1 } }),
    );
    for (session, stream) in sessions.iter().zip(streams) {
        assert_eq!(rest(session, stream), [LIST_CHANGED]);
    }
}
