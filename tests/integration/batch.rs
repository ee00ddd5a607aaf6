//! Several messages in one body: only in sessions of 2025-03-26.

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::gateway::Gateway;
use crate::session::{Answer, Exchange, Session, call, initialize};

/// A session of 2025-03-26 whose child records what it reads.
fn open() -> (Gateway, Session, Record) {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-03-26", json!({}));
    (gateway, session, record)
}

fn ping(id: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "ping" })
}

/// The ids of the responses, in order.
fn ids(answer: &Answer) -> Vec<Value> {
    let responses = answer.messages().into_iter().flat_map(|message| match message {
        Value::Array(all) => all,
        one => vec![one],
    });
    responses.filter(|message| message.get("method").is_none()).map(|message| message["id"].clone()).collect()
}

/// R:B01, R:B06, R:B07, C:B65: each request of a batch is answered by an event of its own, then the stream
/// ends; the child reads one message a line.
#[test]
fn each_request_of_a_batch_is_answered_by_an_event() {
    let (_gateway, session, record) = open();
    let note = json!({ "jsonrpc": "2.0", "method": "vendor/note" });
    let batch = json!([ping(json!(1)), note, call("two", "echo", json!({ "a": 1 }), None), ping(json!("1"))]);
    let answer = session.post(batch.to_string());
    assert!(answer.is_stream(), "{answer:?}");
    assert!(answer.texts.iter().all(|text| text.starts_with('{')), "one response an event: {answer:?}");
    let mut answered = ids(&answer);
    answered.sort_by_key(Value::to_string);
    assert_eq!(answered, [json!("1"), json!("two"), json!(1)]);
    let lines = record.lines();
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with('{')), "{lines:?}");
}

/// R:B06: a client of JSON only gets one array, also for a batch of one request.
#[test]
fn a_client_of_json_only_gets_an_array() {
    let (_gateway, session, _record) = open();
    for batch in [json!([ping(json!(1))]), json!([ping(json!(1)), ping(json!("2"))])] {
        let request = session.post_request(batch.to_string()).with("Accept", "application/json");
        let answer = Exchange::send(session.address, &request).finish();
        assert_eq!(answer.head.header("content-type"), Some("application/json"), "{answer:?}");
        let responses = answer.message();
        let responses = responses.as_array().unwrap_or_else(|| panic!("no array: {answer:?}"));
        assert_eq!(responses.len(), batch.as_array().unwrap().len(), "{answer:?}");
    }
}

/// R:B05: what needs no answer gets none.
#[test]
fn a_batch_without_requests_is_accepted() {
    let (_gateway, session, _record) = open();
    let note = json!({ "jsonrpc": "2.0", "method": "vendor/note" });
    let responses = json!([{ "jsonrpc": "2.0", "id": 1, "result": {} }, { "jsonrpc": "2.0", "id": 2, "error": { "code": 1, "message": "" } }]);
    for batch in [json!([note, note]), responses] {
        let response = session.post_request(batch.to_string()).send(session.address);
        assert_eq!(response.status(), 202, "{batch}: {response:?}");
        assert!(response.body.is_empty() && response.header("content-type").is_none(), "{response:?}");
    }
}

/// R:B03, R:B04, R:B08, R:B09: a batch that may not be is refused whole, before any of it reaches the child.
#[test]
fn batches_of_wrong_form_are_refused_whole() {
    let (gateway, session, record) = open();
    let response = json!({ "jsonrpc": "2.0", "id": 9, "result": {} });
    let note = json!({ "jsonrpc": "2.0", "method": "vendor/note" });
    let many: Vec<Value> = (0..101).map(|id| ping(json!(id))).collect();
    let notes = vec![note.clone(); 101];
    let cases = [
        ("empty", json!([])),
        ("a request and a response", json!([ping(json!(1)), response])),
        ("a notification and a response", json!([note, response])),
        ("a response and no message", json!([response, 7])),
        ("initialize", json!([initialize("2025-03-26", json!({}))])),
        ("initialize among others", json!([ping(json!(1)), initialize("2025-03-26", json!({}))])),
        ("one id twice", json!([ping(json!(1)), ping(json!(2)), ping(json!(1))])),
        ("one id twice, spelled in two ways", json!(["spelled"])),
        ("101 requests", Value::from(many)),
        ("101 notifications", Value::from(notes)),
    ];
    for (what, batch) in cases {
        let body = match batch.get(0) {
            Some(Value::String(_)) => {
                r#"[{"jsonrpc":"2.0","id":"a","method":"ping"},{"jsonrpc":"2.0","id":"\u0061","method":"ping"}]"#
                    .to_owned()
            }
            _ => batch.to_string(),
        };
        let response = session.post_request(body).send(session.address);
        assert_eq!(response.status(), 400, "{what}: {response:?}");
        let answer = response.json();
        assert_eq!(answer["error"]["code"], -32600, "{what}: {answer}");
        assert!(answer.get("id").is_none(), "{what}: {answer}");
    }
    let nameless = session.post_request(json!([ping(json!(1))]).to_string()).without("Mcp-Session-Id");
    assert_eq!(nameless.send(gateway.address()).status(), 400);
    let stranger = session.post_request(json!([ping(json!(1))]).to_string()).with("Mcp-Session-Id", "x");
    assert_eq!(stranger.send(gateway.address()).status(), 404);
    session.request(1, "vendor/last", json!({}));
    assert_eq!(record.lines().len(), 3, "{:?}", record.lines());
}

/// R:B08: an element that is no message is answered by itself; the others go on. Exactly 100 are allowed,
/// and ids that differ in type are two.
#[test]
fn a_bad_element_fails_alone() {
    let (_gateway, session, record) = open();
    let batch = r#"[7, {"jsonrpc":"2.0","id":1,"method":"ping"}, {"jsonrpc":"1.0","id":"bad","method":"ping"},
        [], {"jsonrpc":"2.0","id":"1","method":"ping"}, {"jsonrpc":"2.0","id":null,"method":"ping"},
        {"jsonrpc":"2.0","id":3,"method":"ping","method":"ping"}]"#;
    let answer = session.post(batch);
    let messages = answer.messages();
    assert_eq!(messages.len(), 7, "{answer:?}");
    let good = messages.iter().filter(|message| message["result"] == json!({}));
    assert_eq!(good.count(), 2, "{answer:?}");
    let bad: Vec<&Value> = messages.iter().filter(|message| message["error"]["code"] == -32600).collect();
    assert_eq!(bad.len(), 5, "{answer:?}");
    assert_eq!(bad.iter().filter(|message| message["id"] == "bad" || message["id"] == 3).count(), 2, "{answer:?}");
    assert_eq!(record.lines().len(), 4, "{:?}", record.lines());

    let full: Vec<Value> = (0..100).map(|id| ping(json!(id))).collect();
    assert_eq!(ids(&session.post(Value::from(full).to_string())).len(), 100);
}

/// R:B06, R:H14: progress of a batch's request comes on the batch's stream, before its answer.
#[test]
fn a_batch_carries_its_progress() {
    let (_gateway, session, _record) = open();
    let batch = json!([call(1, "progress", json!({ "count": 2 }), Some(json!("t"))), call(2, "echo", json!({}), None)]);
    let answer = session.post(batch.to_string());
    let messages = answer.messages();
    let progress = messages.iter().filter(|message| message["params"]["progressToken"] == "t");
    assert_eq!(progress.count(), 2, "{answer:?}");
    assert_eq!(ids(&answer).len(), 2, "{answer:?}");
}

/// Of a batch whose client leaves before all of it was passed on, nothing stays.
#[test]
fn a_batch_that_is_given_up_leaves_nothing() {
    let server = Server::fake("fake").toml();
    let gateway = Gateway::start(&format!("[replay]\nage = \"200ms\"\n{server}"));
    let session = Session::initialize(&gateway, "/fake/mcp", "2025-03-26", json!({}), &[]);
    // The ping is answered at once; the call waits for the client's `initialized`, 500 ms at most.
    let given_up = session.send(json!([ping(json!(1)), call(2, "echo", json!({}), None)]).to_string());
    gateway.await_metric("replay_events", &[], |events| events >= 1.0);
    given_up.reset();
    gateway.await_metric("replay_events", &[], |events| events == 0.0);
    assert_eq!(session.call(3, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
}

/// R:B01, R:H30: a batch that holds `initialized` and a request is served in its own order.
#[test]
fn a_batch_may_confirm_the_session() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path()).arg("--strict");
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    let session = Session::initialize(&gateway, "/fake/mcp", "2025-03-26", json!({}), &[]);
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let answer = session.post(json!([initialized, list]).to_string());
    assert!(answer.message()["result"]["tools"].is_array(), "{answer:?}");
    let lines = record.lines();
    let confirmed = lines.iter().filter(|line| line.contains("notifications/initialized")).count();
    assert_eq!(confirmed, 1, "{lines:?}");
}
