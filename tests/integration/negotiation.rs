//! What kinds of body are taken and given: methods, paths, `Accept`, `Content-Type`, and the form of each
//! answer.

use std::time::Duration;

use serde_json::json;

use crate::child::{Record, Server};
use crate::client::{Connection, Request};
use crate::gateway::Gateway;
use crate::session::{Exchange, Session, call, initialize};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// A gateway with one scripted child, started only by sessions, that records what it reads.
fn recorded() -> (Gateway, Record) {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    (gateway, record)
}

/// R:H01, R:H15, R:H23: one path serves POST, GET and DELETE; anything else is 405 with `Allow`.
#[test]
fn one_path_serves_three_methods() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    for method in ["PUT", "PATCH", "HEAD", "TRACE", "QUERY", "PROPFIND", "post"] {
        let mut connection = Connection::open(gateway.address());
        connection.request(&Request::new(method, "/fake/mcp").header("Mcp-Session-Id", &session.id));
        let head = connection.head();
        assert_eq!(head.status, 405, "{method}: {head:?}");
        assert_eq!(head.header("allow"), Some("POST, GET, DELETE, OPTIONS"), "{method}: {head:?}");
    }
    let stream = session.get();
    assert_eq!(session.post(PING).head.status, 200);
    drop(stream);
    assert_eq!(session.delete().status(), 204);
}

/// R:H02: messages of two sessions on one connection, and of one session on many: the connection says
/// nothing about the session.
#[test]
fn a_connection_is_not_a_session() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let sessions = [(); 2].map(|()| Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({})));
    let mut connection = Connection::open(gateway.address());
    for round in 0..6 {
        let session = &sessions[round % 2];
        connection.request(&session.post_request(call(1, "state", json!({}), None).to_string()));
        let shared = connection.response().json();
        let alone = session.call(1, "state", json!({}));
        assert_eq!(shared["result"]["structuredContent"]["pid"], alone["result"]["structuredContent"]["pid"]);
    }
    let pids =
        sessions.map(|session| session.call(1, "state", json!({}))["result"]["structuredContent"]["pid"].clone());
    assert_ne!(pids[0], pids[1]);
}

/// R:H03, R:H09, C:B59, F:C07: every way clients are known to spell `Accept` gets an answer in a form it
/// names; only a client that takes neither form is refused.
#[test]
fn accept_is_read_as_http_has_it() {
    let (gateway, record) = recorded();
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let json_or_both: [&[&str]; 12] = [
        &[],
        &["*/*"],
        &["application/*"],
        &["application/json"],
        &["application/json, text/event-stream"],
        &["text/event-stream, application/json"],
        &["text/event-stream,application/json"],
        &["Application/JSON;q=0.9, text/event-stream;q=1"],
        &["application/json", "text/event-stream"],
        &["text/html, */*;q=0.1"],
        &["text/event-stream;q=0, application/json"],
        &[""],
    ];
    let events_only: [&[&str]; 3] = [&["text/event-stream"], &["text/*"], &["TEXT/EVENT-STREAM, application/json;q=0"]];
    let neither: [&[&str]; 5] =
        [&["text/html"], &["application/xml, image/png"], &["*/*;q=0"], &["application/jsonp"], &["json"]];
    let ask = |accept: &[&str]| {
        let mut request = session.post_request(PING).without("Accept");
        for value in accept {
            request = request.header("Accept", value);
        }
        Exchange::send(session.address, &request).finish()
    };
    for accept in json_or_both {
        let answer = ask(accept);
        assert_eq!(answer.head.status, 200, "{accept:?}: {answer:?}");
        assert_eq!(answer.head.header("content-type"), Some("application/json"), "{accept:?}");
        assert_eq!(answer.raw(), r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    }
    for accept in events_only {
        let answer = ask(accept);
        assert!(answer.is_stream(), "{accept:?}: {answer:?}");
        assert_eq!(answer.raw(), r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    }
    let before = record.lines().len();
    for accept in neither {
        let answer = ask(accept);
        assert_eq!(answer.head.status, 406, "{accept:?}: {answer:?}");
        assert_eq!(answer.message()["error"]["code"], 406, "{accept:?}: {answer:?}");
        assert!(answer.message().get("id").is_none(), "the body was not read: {answer:?}");
    }
    session.post(PING);
    assert_eq!(record.lines().len(), before + 1, "what is refused does not reach the child");
}

/// R:H03: a client that takes JSON only gets JSON for a call that sends notifications and takes long;
/// the notifications have no way to it.
#[test]
fn a_client_of_json_only_gets_json() {
    let gateway = Gateway::start(&format!("streams.sse_after = \"100ms\"\n{}", Server::fake("fake").toml()));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let body = call(1, "progress", json!({ "count": 3, "pace": 0.1 }), Some(json!("t"))).to_string();
    let request = session.post_request(body).with("Accept", "application/json");
    let answer = Exchange::send(session.address, &request).finish();
    assert_eq!(answer.head.header("content-type"), Some("application/json"), "{answer:?}");
    assert_eq!(answer.messages().len(), 1);
    assert_eq!(answer.message()["id"], 1);
}

/// R:H04, C:B60, F:C07: JSON in any spelling of its type; all else is 415, before a session is made or a
/// byte is read by the child.
#[test]
fn a_body_must_say_it_is_json() {
    let (gateway, record) = recorded();
    let begin = initialize("2025-11-25", json!({})).to_string();
    let bad: [&[&str]; 11] = [
        &[],
        &[""],
        &["text/plain"],
        &["application/x-www-form-urlencoded"],
        &["multipart/form-data; boundary=x"],
        &["application/json; charset=utf-16"],
        &["application/json; charset=latin1"],
        &["application/jsonrequest"],
        &["text/json"],
        &["application/json, text/plain"],
        &["application/json", "text/plain"],
    ];
    for types in bad {
        let mut request = Request::post("/fake/mcp", &begin).without("Content-Type");
        for value in types {
            request = request.header("Content-Type", value);
        }
        let response = request.send(gateway.address());
        assert_eq!(response.status(), 415, "{types:?}: {response:?}");
        assert_eq!(response.json()["error"]["code"], 415, "{types:?}: {response:?}");
    }
    for coding in ["gzip", "br", "identity", "x"] {
        let request = Request::post("/fake/mcp", &begin).header("Content-Encoding", coding);
        assert_eq!(request.send(gateway.address()).status(), 415, "{coding}");
    }
    assert!(record.all().is_empty(), "a refused body starts no child");
    for good in [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=\"UTF-8\"",
        "application/json ; odata=minimal",
    ] {
        let response = Request::post("/fake/mcp", &begin).with("Content-Type", good).send(gateway.address());
        assert_eq!(response.status(), 200, "{good}: {response:?}");
    }
}

/// R:H06, C:B62: what needs no answer gets 202, no byte and no type.
#[test]
fn notifications_and_responses_get_202_and_nothing() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = Session::initialize(&gateway, "/fake/mcp", revision, json!({}), &[]);
        for body in [
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#,
            r#"{"jsonrpc":"2.0","method":"vendor/note","params":{"x":1}}"#,
            r#"{"jsonrpc":"2.0","id":"nobody","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}"#,
        ] {
            let response = session.post_request(body).send(session.address);
            assert_eq!(response.status(), 202, "{body}: {response:?}");
            assert_eq!(response.header("content-length"), Some("0"), "{body}: {response:?}");
            assert!(response.header("content-type").is_none(), "{body}: {response:?}");
            assert!(response.body.is_empty(), "{body}: {response:?}");
        }
    }
}

/// R:H16, C:B63: a GET gets an event stream or a refusal, never a 200 of another type.
#[test]
fn a_get_is_a_stream_or_a_refusal() {
    let gateway = Gateway::start(&format!("[listen]\npage = false\n{}", Server::fake("fake").toml()));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let get = |accept: &str| session.get_request().with("Accept", accept);
    for accept in ["text/event-stream", "*/*", "text/*", "application/json, text/event-stream"] {
        let stream = Exchange::send(session.address, &get(accept)).stream();
        assert_eq!(stream.head.header("content-type"), Some("text/event-stream"), "{accept}");
    }
    let cases = [
        (get("application/json"), 406),
        (get("text/html"), 406),
        (get("text/event-stream;q=0"), 406),
        (session.get_request().without("Mcp-Session-Id"), 400),
        (session.get_request().with("Mcp-Session-Id", "unknown"), 404),
        (session.get_request().header("Last-Event-ID", "nonsense"), 400),
    ];
    for (request, status) in cases {
        let response = request.send(session.address);
        assert_eq!(response.status(), status, "{request:?}: {response:?}");
        assert_eq!(response.header("content-type"), Some("application/json"), "{request:?}");
    }
}

/// C:B63: a browser gets words on the same path, without a session being touched; and never a 3xx.
#[test]
fn a_browser_gets_a_page() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let request = Request::get("/fake/mcp").header("Accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    let response = request.send(gateway.address());
    assert_eq!(response.status(), 200, "{response:?}");
    assert!(response.header("content-type").unwrap().starts_with("text/html"), "{response:?}");
    let curl = Request::get("/fake/mcp").header("Accept", "*/*").send(gateway.address());
    assert_eq!(curl.status(), 400, "{curl:?}");
}

/// C:B68: a path is served with and without a slash at its end, and never by a redirect; no other
/// spelling is folded into it.
#[test]
fn paths_are_taken_literally() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let begin = initialize("2025-11-25", json!({})).to_string();
    for path in ["/fake/mcp", "/fake/mcp/", "/fake/mcp?x=1", "/fake/mcp/?x=/../y"] {
        let response = Request::post(path, &begin).send(gateway.address());
        assert_eq!(response.status(), 200, "{path}: {response:?}");
    }
    for path in [
        "/",
        "/mcp",
        "/fake",
        "/fake/",
        "/fake/mcp//",
        "//fake/mcp",
        "/fake//mcp",
        "/FAKE/mcp",
        "/fake/MCP",
        "/x/../fake/mcp",
        "/fake/./mcp",
        "/fake/mcp/x",
        "/fake/mcp%2f",
        "/%66ake/mcp",
        "/fake/sse",
        "/fake/messages",
        "/.well-known/oauth-protected-resource",
        "/livez",
        "/metrics",
    ] {
        let response = Request::post(path, &begin).send(gateway.address());
        assert_eq!(response.status(), 404, "{path}: {response:?}");
        assert_eq!(response.header("content-type"), Some("application/json"), "{path}: {response:?}");
    }
}

/// R:H09, R:H10, R:H11: nothing is sent before the child's first message; an answer that comes first is
/// plain JSON, a notification that comes first opens a stream that ends with the answer.
#[test]
fn the_first_message_decides_the_form() {
    let gateway = Gateway::start(&format!("streams.sse_after = \"1h\"\n{}", Server::fake("fake").toml()));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut held = session.send_call(1, "hold", json!({ "gate": "g" }));
    session.call(2, "await_held", json!({ "gate": "g" }));
    assert!(held.connection.is_quiet_for(Duration::from_millis(150)), "{}", held.connection.peek());
    session.call(3, "release", json!({ "gate": "g" }));
    let answer = held.finish();
    assert!(!answer.is_stream(), "{answer:?}");
    assert_eq!(answer.message()["id"], 1);

    let mut stream = session.send_call_with_token(4, "progress", json!({ "count": 2 }), "t").stream();
    assert!(stream.head.header("content-length").is_none(), "{:?}", stream.head);
    for _ in 0..2 {
        assert_eq!(stream.next_message()["method"], "notifications/progress");
    }
    assert_eq!(stream.next_message()["id"], 4);
    assert!(stream.next_event_or_end().is_none(), "the answer is the last event");

    let failed = session.post(call(5, "no such tool", json!({}), None).to_string());
    assert!(!failed.is_stream(), "{failed:?}");
    assert_eq!((failed.head.status, failed.message()["error"]["code"].clone()), (200, json!(-32602)));
}

/// R:H10: a call that takes long becomes a stream after `sse_after`.
#[test]
fn a_long_call_becomes_a_stream() {
    let gateway = Gateway::start(&format!("streams.sse_after = \"100ms\"\n{}", Server::fake("fake").toml()));
    let session = Session::open(&gateway, "/fake/mcp", "2025-06-18", json!({}));
    let mut stream = session.send_call(1, "hold", json!({ "gate": "g" })).stream();
    session.call(2, "release", json!({ "gate": "g" }));
    assert_eq!(stream.next_message()["id"], 1);
    assert!(stream.next_event_or_end().is_none());
}

/// R:H25, C:B75: what stands in the head of every stream, and that a message is one line whatever it holds.
#[test]
fn streams_are_framed_and_marked() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let params = r#"{ "level" : "info" , "data" : "a\nb\r\u2028\u2029 é 🚀 data: x\n\nid: 7" }"#;
    let line = format!("{{\"jsonrpc\":\"2.0\",\r\"method\":\"notifications/message\",\t\"params\":{params}}}\n");
    // Two characters that end lines in JavaScript, raw.
    let line = line.replace(r"\u2028", "\u{2028}").replace(r"\u2029", "\u{2029}");
    let answer = session.send_call(1, "raw", json!({ "text": line, "answer": true })).finish();
    let resumed = session.resume(answer.events[0].id.as_deref().unwrap());
    for head in [&answer.head, &resumed.head, &session.get().head] {
        assert_eq!(head.header("content-type"), Some("text/event-stream"), "{head:?}");
        assert_eq!(head.header("cache-control"), Some("no-cache, no-transform"), "{head:?}");
        assert_eq!(head.header("x-accel-buffering"), Some("no"), "{head:?}");
        assert!(head.header("content-length").is_none() && head.header("content-encoding").is_none(), "{head:?}");
    }
    assert_eq!(answer.texts.len(), 2, "{answer:?}");
    let wanted = line.trim_end().replace('\r', " ");
    assert_eq!(answer.texts[0], wanted, "a raw CR between tokens would end the field");
    assert!(answer.events.iter().all(|event| matches!(event.event.as_str(), "" | "message")), "{answer:?}");
}
