//! What goes where between one session and its child: requests, answers, notifications, both ways.

use std::time::Duration;

use serde_json::{Value, json};

use crate::child::{Gate, Record, Server};
use crate::gateway::Gateway;
use crate::session::{Answer, Session, initialize};
use crate::sse::EventStream;

fn lone() -> Server {
    Server::fake("fake").key("check_on_start = false\npool.min_idle = 0")
}

fn capable() -> Value {
    json!({ "sampling": {}, "elicitation": {}, "roots": { "listChanged": true } })
}

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", capable())
}

/// A question of the child's, asked by the tool `ask`.
fn question(id: &str, wait: bool) -> Value {
    json!({ "method": "elicitation/create", "id": id, "params": { "message": "m" }, "wait": wait })
}

fn is_question(message: &Value) -> bool {
    message["method"] == "elicitation/create"
}

/// Fails if anything but a comment comes on this stream before the next event named.
#[track_caller]
fn assert_next_is(stream: &mut EventStream, method: &str) {
    let message = stream.next_message();
    assert_eq!(message["method"], method, "{message}");
}

/// The state of a session's child.
#[track_caller]
fn state(session: &Session) -> Value {
    session.call("state", "state", json!({}))["result"]["structuredContent"].clone()
}

/// C:B48, R:X02, R:D08: a question goes to the one call's stream, under the child's id; the answer
/// goes back to that child, once.
#[test]
fn a_question_goes_to_the_one_calls_stream() {
    let record = Record::new();
    let gateway = Gateway::start(&lone().option("--record", record.path()).toml());
    let session = open(&gateway);
    let mut get = session.get();
    for (number, id) in [json!("e1"), json!(5), json!("5"), json!(-3), json!("é\"\\")].into_iter().enumerate() {
        let mut stream =
            session.send_call(number, "ask", json!({ "method": "sampling/createMessage", "id": id })).stream();
        let asked = stream.next_message();
        assert_eq!((&asked["id"], &asked["method"]), (&id, &json!("sampling/createMessage")));
        let reply = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"n":1e400,"z":[],"a":"\u00e9"}}}}"#);
        assert_eq!(session.post(&reply).head.status, 202);
        // A second answer to the same question belongs to nobody.
        assert_eq!(session.post(&reply).head.status, 202);
        let answer = stream.next_event();
        assert!(answer.data.contains(r#""result":{"n":1e400,"z":[],"a":"\u00e9"}"#), "{answer:?}");
        assert_eq!(stream.next_event_or_end(), None);
    }
    gateway.await_metric("unmatched_responses_total", &[("from", "client")], |count| count == 5.0);
    assert_eq!(state(&session)["stray"], json!([]));
    assert!(get.connection().is_quiet_for(Duration::from_millis(50)), "something came on a second stream");
}

/// C:B48, R:D08, R:D15: what the client did not declare is refused to the child at once and once,
/// even before the client is initialized; nothing reaches the client.
#[test]
fn an_undeclared_question_is_refused_at_once() {
    let record = Record::new();
    let early = r#"{"jsonrpc":"2.0","id":"early","method":"roots/list"}"#;
    let gateway = Gateway::start(&lone().option("--after-init", early).option("--record", record.path()).toml());
    let session = Session::initialize(&gateway, "/fake/mcp", "2025-11-25", json!({}), &[]);
    let refusal = record.await_message(|message| message["id"] == "early");
    assert_eq!(refusal["error"]["code"], -32601, "{refusal}");
    assert_eq!(session.notify("notifications/initialized", json!({})).status(), 202);
    for method in ["sampling/createMessage", "elicitation/create", "roots/list"] {
        let answer = session.send_call(1, "ask", json!({ "method": method, "id": "q" })).finish();
        assert_eq!(answer.messages().len(), 1, "{answer:?}");
        let reply = &answer.message()["result"]["structuredContent"];
        assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!("q"), &json!(-32601)), "{answer:?}");
    }
    assert_eq!(record.lines().iter().filter(|line| line.contains("-32601")).count(), 4);
}

/// R:D13, C:B48: the gateway answers a child's ping itself, while a call runs, and the client sees nothing.
#[test]
fn a_childs_ping_is_answered_by_the_gateway() {
    let gateway = Gateway::start(&lone().toml());
    let session = open(&gateway);
    for id in [json!("p"), json!(0), json!("1")] {
        let answer = session.send_call(1, "ask", json!({ "method": "ping", "id": id })).finish();
        assert!(!answer.is_stream(), "{answer:?}");
        let reply = &answer.message()["result"]["structuredContent"];
        assert_eq!(*reply, json!({ "jsonrpc": "2.0", "id": id, "result": {} }));
    }
}

/// R:X08, F:B08: with several calls in flight a question goes to the open GET; without one to the
/// newest POST that can be a stream; never to two.
#[test]
fn a_question_among_several_calls_goes_to_one_stream() {
    let gateway = Gateway::start(&lone().toml());
    let session = open(&gateway);
    let mut get = session.get();
    let held = session.send_call(1, "hold", json!({ "gate": "g" }));
    session.call(2, "await_held", json!({ "gate": "g" }));
    let asking = session.send_call(3, "ask", question("with-get", true));
    assert_eq!(get.await_message(is_question)["id"], "with-get");
    session.respond(&json!("with-get"), json!({ "action": "decline" }));
    let answer: Answer = asking.finish();
    assert_eq!(answer.messages().len(), 1, "{answer:?}");

    get.reset();
    gateway.await_metric("streams", &[("kind", "get")], |open| open == 0.0);
    let mut newest = session.send_call(4, "ask", question("without-get", true)).stream();
    assert_eq!(newest.await_message(is_question)["id"], "without-get");
    session.respond(&json!("without-get"), json!({ "action": "decline" }));
    assert_eq!(newest.next_message()["id"], 4);
    session.call(5, "release", json!({ "gate": "g" }));
    assert_eq!(held.finish().messages().len(), 1);
}

/// R:X08: a call that takes JSON only, or whose client has left, is no stream: the question waits in
/// the log of the GET that is to come.
#[test]
fn a_question_without_a_stream_waits_for_the_get() {
    let gateway = Gateway::start(&lone().toml());
    let session = open(&gateway);
    let body = crate::session::call(1, "ask", question("json-only", true), None).to_string();
    let mut connection = crate::client::Connection::open(session.address);
    connection.request(&session.post_request(body).with("Accept", "application/json"));
    gateway.await_metric("requests_in_flight", &[], |calls| calls == 1.0);
    let mut get = session.get();
    assert_eq!(get.await_message(is_question)["id"], "json-only");
    session.respond(&json!("json-only"), json!({ "action": "accept" }));
    let answer = connection.response().json();
    assert_eq!(answer["result"]["structuredContent"]["result"]["action"], "accept", "{answer}");

    get.reset();
    drop(connection);
    let mut gate = Gate::new();
    session.call(2, "stop_reading", json!({ "until": gate.path() }));
    let call = session.send_call(3, "ask", question("left", false));
    gateway.await_metric("requests_in_flight", &[], |calls| calls == 1.0);
    call.reset();
    gateway.await_metric("connections", &[("listener", "main")], |open| open == 0.0);
    gate.open();
    assert_eq!(session.get().await_message(is_question)["id"], "left");
    session.respond(&json!("left"), json!({}));
}

/// R:X08: what a child asks between calls waits for the GET; what it asked before the client was
/// initialized too.
#[test]
fn a_question_outside_calls_waits_for_the_get() {
    let ask = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"elicitation/create","params":{{}}}}"#);
    let server = lone().option("--after-init", ask("early")).option("--after-initialized", ask("idle"));
    let gateway = Gateway::start(&server.toml());
    let session = open(&gateway);
    let mut get = session.get();
    let ids = [get.next_message()["id"].clone(), get.next_message()["id"].clone()];
    assert!(ids.contains(&json!("early")) && ids.contains(&json!("idle")), "{ids:?}");
    for id in ids {
        assert_eq!(session.respond(&id, json!({ "action": "accept" })).status(), 202);
    }
    assert_eq!(state(&session)["stray"].as_array().unwrap().len(), 2);
}

/// R:X04: a child that takes its question back is passed on, under the id the client saw; an answer
/// that comes all the same is dropped.
#[test]
fn a_withdrawn_question_is_withdrawn_at_the_client() {
    let gateway = Gateway::start(&lone().toml());
    let session = open(&gateway);
    let arguments = json!({ "method": "elicitation/create", "id": "e9", "cancel": true });
    let mut stream = session.send_call(1, "ask", arguments).stream();
    assert_eq!(stream.next_message()["id"], "e9");
    let withdrawn = stream.next_message();
    assert_eq!(withdrawn["method"], "notifications/cancelled", "{withdrawn}");
    assert_eq!(withdrawn["params"], json!({ "requestId": "e9", "reason": "changed my mind" }));
    assert_eq!(stream.next_message()["id"], 1);
    assert_eq!(session.respond(&json!("e9"), json!({})).status(), 202);
    gateway.await_metric("unmatched_responses_total", &[("from", "client")], |count| count == 1.0);
    assert_eq!(state(&session)["stray"], json!([]));
}

/// R:X03: a client's notifications reach its child as they were, progress on the child's own
/// request and change of roots alike.
#[test]
fn a_clients_notifications_reach_its_child() {
    let record = Record::new();
    let gateway = Gateway::start(&lone().option("--record", record.path()).toml());
    let session = open(&gateway);
    let arguments =
        json!({ "method": "sampling/createMessage", "id": "s1", "params": { "_meta": { "progressToken": "tok" } } });
    let mut stream = session.send_call(1, "ask", arguments).stream();
    assert_eq!(stream.next_message()["params"]["_meta"]["progressToken"], "tok");
    let progress = r#"{"progressToken":"tok","progress":0.10,"total":1e0}"#;
    let notifications = [
        ("notifications/progress", progress),
        ("notifications/roots/list_changed", "{}"),
        ("notifications/vendor", r#"{"n":1.50}"#),
    ];
    for (method, params) in notifications {
        let body = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        assert_eq!(session.post(body).head.status, 202);
    }
    session.respond(&json!("s1"), json!({}));
    assert_eq!(stream.next_message()["id"], 1);
    let lines = record.lines();
    for (method, params) in notifications {
        let wanted = format!(r#""method":"{method}","params":{params}}}"#);
        assert_eq!(lines.iter().filter(|line| line.contains(&wanted)).count(), 1, "{method}: {lines:?}");
    }
}

/// C:B46, R:X08: an answer is on its POST alone; a notification of the one call's is on its stream alone.
#[test]
fn nothing_is_sent_twice() {
    let gateway = Gateway::start(&lone().toml());
    let session = open(&gateway);
    let mut get = session.get();
    let alone = session.send_call(1, "notify", json!({ "method": "notifications/tools/list_changed" })).finish();
    assert_eq!(alone.messages().len(), 2, "{alone:?}");
    let held = session.send_call(2, "hold", json!({ "gate": "g" }));
    session.call(3, "await_held", json!({ "gate": "g" }));
    let beside = session.send_call(4, "notify", json!({ "method": "notifications/prompts/list_changed" })).finish();
    assert_eq!(beside.messages().len(), 1, "{beside:?}");
    session.call(5, "release", json!({ "gate": "g" }));
    held.finish();
    assert_next_is(&mut get, "notifications/prompts/list_changed");
    assert!(get.connection().is_quiet_for(Duration::from_millis(50)), "a message came twice");
}

/// F:B08: list changes, resource updates and log messages reach the client with the GET open, and
/// without it as soon as it is opened.
#[test]
fn notifications_wait_for_the_get() {
    let gateway = Gateway::start(&lone().toml());
    let session = open(&gateway);
    session.request(1, "resources/subscribe", json!({ "uri": "fake://a" }));
    let held = session.send_call(2, "hold", json!({ "gate": "g" }));
    session.call(3, "await_held", json!({ "gate": "g" }));
    let told = |session: &Session| {
        session.call_text(4, "notify", json!({ "method": "notifications/resources/list_changed" }));
        session.call_text(4, "touch", json!({ "uri": "fake://a" }));
        session.call_text(5, "touch", json!({ "uri": "fake://b" }));
        session.call_text(6, "log", json!({ "level": "warning" }));
    };
    told(&session);
    let mut get = session.get();
    for _ in 0..2 {
        for method in
            ["notifications/resources/list_changed", "notifications/resources/updated", "notifications/message"]
        {
            assert_next_is(&mut get, method);
        }
        told(&session);
    }
    session.call(7, "release", json!({ "gate": "g" }));
    held.finish();
}

/// C:B47: progress arrives when it is made, before there is an answer.
#[test]
fn progress_arrives_as_it_happens() {
    let gateway = Gateway::start(&lone().toml());
    let session = open(&gateway);
    let line = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":$TOKEN,"progress":1}}"#;
    let text = format!("{line}\n");
    let mut stream = session.send_call_with_token(1, "raw", json!({ "text": text }), "t").stream();
    // The child never answers this call, so nothing but the progress itself can bring it here.
    assert_eq!(stream.next_message()["params"]["progressToken"], "t");
}

/// C:B40, R:D29: tokens come back as the client spelled them; equal ones of several calls stay apart;
/// what comes after the answer, or under no token of ours, is dropped.
#[test]
fn progress_keeps_to_its_call_and_token() {
    let gateway = Gateway::start(&lone().toml());
    let (session, other) = (open(&gateway), open(&gateway));
    let calls = [
        session.send_call_with_token(1, "progress", json!({ "count": 3, "late": 1, "pace": 0.01 }), 1),
        session.send_call_with_token(2, "progress", json!({ "count": 3, "late": 1, "pace": 0.01 }), "1"),
        other.send_call_with_token(1, "progress", json!({ "count": 3, "late": 1, "pace": 0.01 }), 1),
    ];
    let tokens = [json!(1), json!("1"), json!(1)];
    for (call, token) in calls.into_iter().zip(tokens) {
        let answer = call.finish();
        let messages = answer.messages();
        assert_eq!(messages.len(), 4, "{answer:?}");
        for (number, message) in messages[..3].iter().enumerate() {
            assert_eq!(message["params"]["progressToken"], token, "{answer:?}");
            assert_eq!(message["params"]["progress"], number + 1, "{answer:?}");
        }
    }
    let foreign = session.send_call_with_token(3, "progress", json!({ "count": 2, "token": 999_999 }), 1).finish();
    assert_eq!(foreign.messages().len(), 1, "{foreign:?}");
    gateway.await_metric("notifications_dropped_total", &[("reason", "no_request")], |count| count == 5.0);
}

/// C:B37, C:B36: equal ids in flight at once, in one session and in several, are served apart.
#[test]
fn equal_ids_in_flight_are_served_apart() {
    let gateway = Gateway::start(&lone().toml());
    let (session, other) = (open(&gateway), open(&gateway));
    let theirs = other.send_call(1, "hold", json!({ "gate": "a", "me": "theirs" }));
    let a = session.send_call(1, "hold", json!({ "gate": "a", "me": "a" }));
    session.call(1, "await_held", json!({ "gate": "a" }));
    let b = session.send_call(1, "echo", json!({ "me": "b" }));
    assert_eq!(b.finish().message()["result"]["structuredContent"]["me"], "b");
    session.call(1, "release", json!({ "gate": "a" }));
    assert_eq!(a.finish().message()["result"]["structuredContent"]["me"], "a");
    other.call(1, "release", json!({ "gate": "a" }));
    assert_eq!(theirs.finish().message()["result"]["structuredContent"]["me"], "theirs");
    // A cancellation that names an ambiguous id means each of them.
    let calls = [(); 2].map(|()| session.send_call(9, "hold", json!({ "gate": "never" })));
    session.call(1, "await_held", json!({ "gate": "never", "count": 2 }));
    session.notify("notifications/cancelled", json!({ "requestId": 9 }));
    for call in calls {
        assert_eq!(call.finish().message()["error"]["data"]["reason"], "cancelled");
    }
}

/// R:D14, C:B38: a child is initialized once, first and alone; a second `initialize` is refused to
/// the client and never reaches it.
#[test]
fn a_child_is_initialized_once() {
    let record = Record::new();
    let gateway = Gateway::start(&lone().option("--record", record.path()).toml());
    let session = open(&gateway);
    assert_eq!(session.notify("notifications/initialized", json!({})).status(), 202);
    let again = session.post(initialize("2025-11-25", json!({})).to_string());
    assert_eq!(again.head.status, 400, "{again:?}");
    session.call(1, "echo", json!({}));
    let lines: Vec<Value> = record.lines().iter().map(|line| line.parse().unwrap()).collect();
    let methods: Vec<_> = lines.iter().map(|line| line["method"].as_str().unwrap()).collect();
    assert_eq!(methods, ["initialize", "notifications/initialized", "tools/call"]);
    let initial = state(&session);
    assert_eq!((&initial["initializes"], &initial["initialized"]), (&json!(1), &json!(1)));
    // A client that tries `initialize` anew gets a session and a child of its own.
    let second = open(&gateway);
    assert_ne!(second.id, session.id);
    assert_ne!(state(&second)["pid"], state(&session)["pid"]);
}

/// C:B45, R:D14: a request that overtakes `initialized` is held, never refused, never reordered; if it
/// never comes, the gateway says it in the client's place, once.
#[test]
fn a_request_that_overtakes_initialized_is_held() {
    let record = Record::new();
    let gateway = Gateway::start(&lone().arg("--strict").option("--record", record.path()).toml());
    for round in 0..10 {
        let session = Session::initialize(&gateway, "/fake/mcp", "2025-11-25", capable(), &[]);
        let list = session.send(json!({ "jsonrpc": "2.0", "id": round, "method": "tools/list" }).to_string());
        assert_eq!(session.notify("notifications/initialized", json!({})).status(), 202);
        assert!(list.finish().message()["result"]["tools"].is_array());
        session.delete();
    }
    let session = Session::initialize(&gateway, "/fake/mcp", "2025-11-25", capable(), &[]);
    assert!(session.request(1, "tools/list", json!({}))["result"]["tools"].is_array());
    assert_eq!(session.notify("notifications/initialized", json!({})).status(), 202);
    assert_eq!(state(&session)["initialized"], 1);
}

/// R:X01, C:B16: what `initialize` says passes both ways byte for byte, known or not.
#[test]
fn the_handshake_passes_unchanged() {
    let record = Record::new();
    let raw = r#"{"zz":[1e400,-0], "protocolVersion":"2025-11-25","capabilities":{"experimental":{"x":{}},"tools":{}},"instructions":"\u00e9é","serverInfo":{"version":"1","name":"s","icons":[{"src":"data:,"}],"title":"T"}}"#;
    let gateway = Gateway::start(&lone().option("--init-raw", raw).option("--record", record.path()).toml());
    let params = r#"{"zz":18446744073709551616,"clientInfo":{"version":"1","name":"c","icons":[]},"capabilities":{"experimental":{"y":{}},"roots":{}},"protocolVersion":"2025-11-25","_meta":{"a":1.0}}"#;
    let body = format!(r#"{{"jsonrpc":"2.0","id":"i","method":"initialize","params":{params}}}"#);
    let response = crate::client::Request::post("/fake/mcp", body).send(gateway.address());
    assert_eq!(response.text(), format!(r#"{{"jsonrpc":"2.0","id":"i","result":{raw}}}"#));
    let read = record.lines().remove(0);
    assert!(read.contains(&format!(r#""method":"initialize","params":{params}"#)), "{read}");
}

/// C:B16, R:D29, R:X06: results pass byte for byte in every revision, whatever they hold.
#[test]
fn results_pass_unchanged_in_every_revision() {
    let gateway = Gateway::start(&lone().toml());
    let result = r#"{"content":[{"type":"audio","data":"AA==","mimeType":"audio/wav","zzFuture":{"b":1,"a":2}},{"type":"resource_link","uri":"x:y","name":"n","icons":[]},{"type":"unknown"}],"structuredContent":{"n":1.0},"_meta":{"vendor/x":[]}}"#;
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"result","arguments":{{"result":{result}}}}}}}"#
        );
        assert_eq!(session.post(body).raw(), format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#), "{revision}");
    }
}

/// R:X07: a child's own errors are the client's, whatever their code.
#[test]
fn errors_pass_unchanged() {
    let gateway = Gateway::start(&lone().toml());
    let session = open(&gateway);
    for code in ["-32002", "-32042", "-1", "-32601", "77", "503", "-32000"] {
        let error =
            format!(r#"{{"code":{code},"message":"m\u00e9","data":{{"elicitations":[1.0],"gateway":false}},"x":1}}"#);
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"error","arguments":{{"error":{error}}}}}}}"#
        );
        let answer = session.post(body);
        assert_eq!(answer.head.status, 200, "{answer:?}");
        assert_eq!(answer.raw(), format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#));
    }
    let missing = session.request(2, "resources/read", json!({ "uri": "fake://none" }));
    assert_eq!(missing["error"]["code"], -32002, "{missing}");
    let vendor = session.request(3, "vendor/anything", json!({ "a": [1] }));
    assert_eq!(vendor["result"], json!({ "a": [1] }));
}

/// R:X05: a session of 2025-06-18 sees nothing that revision does not know: no priming event, and no
/// end of a stream before its answer.
#[test]
fn older_sessions_are_not_primed() {
    let gateway = Gateway::start(&format!("[streams]\nsse_after = \"0s\"\nmax_age = \"1s\"\n{}", lone().toml()));
    for (revision, primed) in [("2025-03-26", false), ("2025-06-18", false), ("2025-11-25", true)] {
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        let answer = session.send_call(1, "sleep", json!({ "seconds": if primed { 0.0 } else { 1.5 } })).finish();
        assert!(answer.is_stream(), "{answer:?}");
        let empty = answer.events.iter().filter(|event| event.data.is_empty()).count();
        assert_eq!(empty, usize::from(primed), "{revision}: {answer:?}");
        assert_eq!(answer.message()["result"]["content"][0]["text"], "slept", "{revision}: {answer:?}");
    }
}

/// C:B44: pages and their cursors pass as they are.
#[test]
fn cursors_pass_unchanged() {
    let gateway = Gateway::start(&lone().option("--page-size", "7").toml());
    let session = open(&gateway);
    let (mut names, mut params) = (Vec::new(), json!({}));
    loop {
        let page = session.request(1, "tools/list", params)["result"].clone();
        names.extend(page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].to_string()));
        let Some(cursor) = page.get("nextCursor") else { break };
        params = json!({ "cursor": cursor });
    }
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), all > 14), (all, true));
    let wrong = session.request(2, "tools/list", json!({ "cursor": "page-nope" }));
    assert_eq!(wrong["error"]["code"], -32602, "{wrong}");
}

/// R:D30: a client that does not read its stream holds up its own child, and nobody else; what it
/// missed it gets when it reads on.
#[test]
fn a_slow_reader_costs_only_itself() {
    let gateway = Gateway::start(&lone().toml());
    let (slow, other) = (open(&gateway), open(&gateway));
    let before = gateway.rss();
    let mut connection = crate::client::Connection::open_small(slow.address, 4096);
    connection.request(&slow.get_request());
    let head = connection.head();
    let held = slow.send_call(1, "hold", json!({ "gate": "g" }));
    slow.call(2, "await_held", json!({ "gate": "g" }));
    let flood = slow.send_call(3, "log", json!({ "count": 40, "bytes": 1_000_000 }));
    for id in 0..10 {
        assert_eq!(other.call(id, "echo", json!({ "a": id }))["result"]["structuredContent"]["a"], id);
    }
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown < 32 * 1024 * 1024, "{grown} bytes");
    let mut stream = EventStream::new(connection, head);
    for _ in 0..40 {
        assert_next_is(&mut stream, "notifications/message");
    }
    assert_eq!(flood.finish().message()["result"]["content"][0]["text"], "logged");
    slow.call(4, "release", json!({ "gate": "g" }));
    held.finish();
}
