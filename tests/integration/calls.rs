//! A call on its way: which answer is whose, what a lost connection means, and when a call is given up.

use std::time::Duration;

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::client::Connection;
use crate::gateway::Gateway;
use crate::session::{Session, call};

/// What the child knows of itself.
#[track_caller]
fn state(session: &Session) -> Value {
    session.call("state", "state", json!({}))["result"]["structuredContent"].clone()
}

/// R:H28, C:B15, F:C04: an id comes back as it was spelled, whatever its type, however large; answers come in
/// the reverse order, and none is mixed up.
#[test]
fn ids_come_back_as_they_were_spelled() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let long = format!(r#""{}""#, "x".repeat(256));
    let digits = "9".repeat(256);
    let ids = [
        r#""1""#,
        "1",
        "0",
        "-0",
        "-1",
        r#""""#,
        r#""x-é""#,
        r#""\u0078-\u00e9\/""#,
        r#""\ud83d\ude80""#,
        r#""a\"b\\c""#,
        "9007199254740993",
        "9223372036854775808",
        "18446744073709551616",
        "-9223372036854775809",
        r#""null""#,
        long.as_str(),
        digits.as_str(),
    ];
    let calls: Vec<_> = ids
        .iter()
        .enumerate()
        .map(|(number, id)| {
            let (name, arguments) = ("reverse", json!({ "of": ids.len(), "own": number }));
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{name}","arguments":{arguments}}}}}"#
            );
            session.send(body)
        })
        .collect();
    for ((number, id), call) in ids.iter().enumerate().zip(calls) {
        let answer = call.finish();
        assert!(answer.raw().contains(&format!(r#""id":{id},"#)), "{id}: {answer:?}");
        assert_eq!(answer.message()["result"]["structuredContent"]["own"], number, "{id}: {answer:?}");
    }
}

/// R:H29, F:C04, C:B37: hosted clients send one id for everything; each POST gets its own answer.
#[test]
fn one_id_for_everything_is_served() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let calls: Vec<_> =
        (0..8).map(|own| (own, session.send_call(1, "reverse", json!({ "of": 8, "own": own })))).collect();
    for (own, call) in calls {
        let answer = call.finish().response(&json!(1));
        assert_eq!(answer["result"]["structuredContent"]["own"], own, "{answer}");
    }
}

/// R:H29: a cancellation that names an id several calls have cancels them all; others go on.
#[test]
fn a_cancellation_of_an_ambiguous_id_cancels_all() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let calls = [(); 2].map(|()| session.send_call(1, "hold", json!({ "gate": "g" })));
    let other = session.send_call("1", "hold", json!({ "gate": "g" }));
    session.call(2, "await_held", json!({ "gate": "g", "count": 3 }));
    session.notify("notifications/cancelled", json!({ "requestId": 1 }));
    for call in calls {
        let answer = call.finish().message();
        assert_eq!((&answer["id"], &answer["error"]["data"]["reason"]), (&json!(1), &json!("cancelled")), "{answer}");
    }
    session.call(3, "await_cancelled", json!({ "count": 2 }));
    session.call(4, "release", json!({ "gate": "g" }));
    assert!(other.finish().message()["result"].is_object());
}

/// F:C05: equal ids in many sessions, each with its own child, answered in any order: every answer is its
/// caller's.
#[test]
fn equal_ids_of_many_sessions_stay_apart() {
    let gateway = Gateway::start(&Server::demo("demo").toml());
    let sessions: Vec<_> = (0..24).map(|_| Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}))).collect();
    for id in 0..8 {
        let calls: Vec<_> = sessions
            .iter()
            .enumerate()
            .map(|(own, session)| session.send_call(id, "echo", json!({ "text": format!("{own}-{id}") })))
            .collect();
        for (own, call) in calls.into_iter().enumerate().rev() {
            let answer = call.finish().response(&json!(id));
            assert_eq!(answer["result"]["content"][0]["text"], format!("{own}-{id}"), "{answer}");
        }
    }
}

/// R:H13, F:C12: a client that leaves a stream has not cancelled: the call runs on, and its answer waits to be
/// resumed.
#[test]
fn leaving_a_stream_is_not_cancelling() {
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let gateway = Gateway::start(&Server::fake("fake").toml());
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        let arguments = json!({ "count": 3, "pace": 0.05 });
        let mut stream = session.send_call_with_token(1, "progress", arguments, "t").stream();
        let seen = loop {
            let event = stream.next_event();
            if !event.data.is_empty() {
                break event.id.unwrap();
            }
        };
        stream.reset();
        let rest = session.resume(&seen).rest();
        let messages: Vec<Value> = rest.iter().map(|event| event.message()).collect();
        assert_eq!(messages.len(), 3, "{revision}: {messages:?}");
        assert_eq!(messages[2]["id"], 1, "{revision}: {messages:?}");
        assert_eq!(state(&session)["cancelled"], json!([]), "{revision}");
    }
}

/// R:H13, F:C12: a client that leaves before the head of its answer: the call runs on, its answer is dropped
/// and counted, and goes to nobody else.
#[test]
fn leaving_before_the_head_is_not_cancelling() {
    let gateway = Gateway::start(&format!("streams.sse_after = \"1h\"\n{}", Server::fake("fake").toml()));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let standalone = session.get();
    let lost = session.send_call(1, "hold", json!({ "gate": "g" }));
    session.call(2, "await_held", json!({ "gate": "g" }));
    lost.reset();
    let kept = session.send_call(1, "hold", json!({ "gate": "h" }));
    session.call(2, "await_held", json!({ "gate": "h" }));
    session.call(3, "release", json!({ "gate": "g" }));
    gateway.await_metric("requests_total", &[("outcome", "client_gone")], |count| count == 1.0);
    assert_eq!(state(&session)["cancelled"], json!([]));
    session.call(3, "release", json!({ "gate": "h" }));
    let answer = kept.finish().response(&json!(1));
    assert_eq!(answer["result"]["structuredContent"]["gate"], "h");
    session.delete();
    let strayed: Vec<_> = standalone.rest().into_iter().filter(|event| !event.data.is_empty()).collect();
    assert!(strayed.is_empty(), "no answer strays to the standalone stream: {strayed:?}");
}

/// R:H14: what belongs to a call comes on its stream only, before its answer.
#[test]
fn progress_comes_on_its_own_stream() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-06-18", json!({}));
    let tokens = [json!(1), json!("1"), json!("t")];
    let calls = tokens.clone().map(|token| {
        let arguments = json!({ "count": 4, "pace": 0.01, "late": 1 });
        (token.clone(), session.send_call_with_token(token.clone(), "progress", arguments, token))
    });
    for (token, call) in calls {
        let answer = call.finish();
        let messages = answer.messages();
        assert_eq!(messages.len(), 5, "{token}: {answer:?}");
        assert!(messages[..4].iter().all(|message| message["params"]["progressToken"] == token), "{token}: {answer:?}");
        assert_eq!(messages[4]["id"], token);
    }
    // What comes after the answer has no stream any more.
    gateway.await_metric("notifications_dropped_total", &[("reason", "no_request")], |count| count == 3.0);
}

/// R:H12: before 2025-11-25 a stream lasts until its answer; from then on it may be closed early, once an
/// event with an id was sent, after `retry`.
#[test]
fn a_stream_is_closed_early_only_where_it_may_be() {
    let gateway = Gateway::start(&format!("streams.max_age = \"200ms\"\n{}", Server::fake("fake").toml()));
    let old = Session::open(&gateway, "/fake/mcp", "2025-06-18", json!({}));
    let answer = old.send_call_with_token(1, "progress", json!({ "count": 6, "pace": 0.1 }), "t").finish();
    assert_eq!(answer.messages().len(), 7, "{answer:?}");

    let new = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut stream = new.send_call_with_token(1, "progress", json!({ "count": 6, "pace": 0.1 }), "t").stream();
    let mut messages = Vec::new();
    loop {
        while let Some(event) = stream.next_event_or_end() {
            messages.extend((!event.data.is_empty()).then(|| event.message()));
        }
        if messages.last().is_some_and(|message| message["id"] == 1) {
            break;
        }
        assert!(stream.seen.iter().any(|item| matches!(item, crate::sse::Item::Retry(_))), "{:?}", stream.seen);
        let last = stream.last_event_id().to_owned();
        assert!(!last.is_empty());
        stream = new.resume(&last);
    }
    assert_eq!(messages.len(), 7, "nothing is lost or doubled: {messages:?}");
    gateway.await_metric("stream_cuts_total", &[("reason", "age")], |count| count >= 1.0);
}

/// R:H27, C:B16: a child's error is its answer, byte for byte, with 200.
#[test]
fn errors_of_the_child_are_payload() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    for error in [
        r#"{"code":-32602,"message":"é\u00e9"}"#,
        r#"{"code":-32700,"message":""}"#,
        r#"{"code":-32002,"message":"m","data":{"uri":"x","n":1.0}}"#,
        r#"{"code":-32042,"message":"m","data":{"elicitations":[]},"other":[ 1 ]}"#,
        r#"{"code":-1,"message":"m"}"#,
        r#"{"code":503,"message":"m","data":{"gateway":false}}"#,
        r#"{"code":1e3,"message":7}"#,
    ] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"error","arguments":{{"error":{error}}}}}}}"#
        );
        let answer = session.post(body);
        assert_eq!(answer.head.status, 200, "{error}");
        assert_eq!(answer.raw(), format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#));
    }
}

/// R:H30, C:B45: once a message was accepted, nothing sent after it reaches the child before it.
#[test]
fn messages_reach_the_child_in_their_order() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    for number in 0..100 {
        if number % 3 == 0 {
            session.request(number, "vendor/x", json!({ "n": number }));
        } else {
            assert_eq!(session.notify("vendor/x", json!({ "n": number })).status(), 202);
        }
    }
    session.request(100, "vendor/last", json!({}));
    let numbers: Vec<Value> = record
        .lines()
        .iter()
        .map(|line| line.parse::<Value>().unwrap()["params"]["n"].clone())
        .filter(Value::is_number)
        .collect();
    assert_eq!(numbers, (0..100).map(Value::from).collect::<Vec<_>>());
}

/// R:H31: a client's ping is answered by its child, on the same session, before and after `initialized`, and
/// while another call is held.
#[test]
fn a_ping_is_answered_at_once() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path()).arg("--strict");
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    let session = Session::initialize(&gateway, "/fake/mcp", "2025-11-25", json!({}), &[]);
    assert_eq!(session.request(1, "ping", json!({}))["result"], json!({}));
    assert!(!record.lines().iter().any(|line| line.contains("initialized")), "a ping confirms nothing");
    session.notify("notifications/initialized", json!({}));
    let held = session.send_call(1, "hold", json!({ "gate": "g" }));
    assert_eq!(session.request(2, "ping", json!({}))["result"], json!({}));
    session.call(3, "release", json!({ "gate": "g" }));
    held.finish();
}

/// R:H33: methods, members and values nobody knows pass both ways as they are, in every revision.
#[test]
fn what_is_unknown_passes_unchanged() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        let params = r#"{"_meta":{"vendor/x":{"a":[1.0,1e400]},"progressToken":"t"},"zz":{"b":"\u00e9"},"a":null}"#;
        let answer = session.post(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"vendor/foo","params":{params}}}"#));
        let echoed = params.replace(r#""t""#, "TOKEN");
        let result =
            answer.raw().strip_prefix(r#"{"jsonrpc":"2.0","id":1,"result":"#).unwrap().strip_suffix('}').unwrap();
        let token = result.split(r#""progressToken":"#).nth(1).unwrap().split(['}', ',']).next().unwrap();
        assert_eq!(result, echoed.replace("TOKEN", token), "only the token is the gateway's own");
        let note = r#"{"jsonrpc":"2.0","method":"notifications/vendor\/x","params":[1,{"k":1.50}]}"#;
        assert_eq!(session.post(note).head.status, 202);
        let listed = session.post(r#"{"jsonrpc":"2.0","id":2,"method":"vendor/bare"}"#);
        assert_eq!(listed.raw(), r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
        let back = session.send_call(3, "raw", json!({
            "text": "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/vendor\",\"params\":{\"x\":1.50,\"_meta\":{\"y\":null}},\"zz\":1}\n",
            "answer": true,
        }));
        let back = back.finish();
        assert_eq!(
            back.texts[0],
            r#"{"jsonrpc":"2.0","method":"notifications/vendor","params":{"x":1.50,"_meta":{"y":null}},"zz":1}"#
        );
    }
    let notes = record.lines().iter().filter(|line| line.contains(r#""params":[1,{"k":1.50}]"#)).count();
    assert_eq!(notes, 4);
}

/// C:B85: clients that reset in the middle of calls, before and after the head, hurt nobody and leave nothing.
#[test]
fn many_resets_hurt_nobody() {
    let gateway = Gateway::start(&format!("replay.age = \"200ms\"\n{}", Server::fake("fake").toml()));
    let healthy = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let before = gateway.metrics().count("connections", &[("listener", "main")]);
    for round in 0..20 {
        if round % 2 == 0 {
            session.send_call(round, "sleep", json!({ "seconds": 0.02 })).reset();
        } else {
            session.send_call_with_token(round, "progress", json!({ "count": 3, "pace": 0.01 }), "t").stream().reset();
        }
        assert_eq!(
            healthy.call(round, "echo", json!({ "round": round }))["result"]["structuredContent"]["round"],
            round
        );
    }
    session.call("last", "echo", json!({}));
    gateway.await_metric("requests_in_flight", &[], |count| count == 0.0);
    gateway.await_metric("replay_bytes", &[], |bytes| bytes == 0.0);
    gateway.await_metric("connections", &[("listener", "main")], |count| count <= before);
}

/// R:H02: a second request on a connection whose first is still held waits for it, and both are answered.
#[test]
fn pipelined_requests_are_answered_in_order() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut connection = Connection::open(gateway.address());
    let mut both =
        session.post_request(call(1, "hold", json!({ "gate": "g" }), None).to_string()).bytes(session.address);
    both.extend(session.post_request(call(2, "echo", json!({}), None).to_string()).bytes(session.address));
    connection.send(both);
    session.call(3, "await_held", json!({ "gate": "g" }));
    assert!(connection.is_quiet_for(Duration::from_millis(50)));
    session.call(4, "release", json!({ "gate": "g" }));
    assert_eq!(connection.response().json()["id"], 1);
    assert_eq!(connection.response().json()["id"], 2);
}
