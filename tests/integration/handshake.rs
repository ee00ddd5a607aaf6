//! `initialize`: once for each session, bounded in number and time, and nothing left of what fails.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::client::Request;
use crate::gateway::Gateway;
use crate::session::{Exchange, Session, initialize};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

fn begin() -> Request {
    Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string())
}

/// The scripted child, started only by sessions.
fn server() -> Server {
    Server::fake("fake").key("check_on_start = false").key("pool.min_idle = 0")
}

/// R:S16, F:C09, C:B57: above the number of sessions `initialize` is a 503 that says when to come back; nothing is
/// started for it, and the sessions there are go on.
#[test]
fn sessions_have_a_number() {
    let record = Record::new();
    let gateway = Gateway::start(&format!("sessions.max = 2\n{}", server().option("--record", record.path()).toml()));
    let sessions = [(); 2].map(|()| Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({})));
    for _ in 0..3 {
        let response = begin().send(gateway.address());
        assert_eq!(response.status(), 503, "{response:?}");
        assert!(response.header("retry-after").unwrap().parse::<u32>().unwrap() > 0, "{response:?}");
        assert!(response.header("mcp-session-id").is_none(), "{response:?}");
        let answer = response.json();
        assert_eq!((&answer["id"], &answer["error"]["data"]["reason"]), (&json!("initialize"), &json!("sessions")));
    }
    assert_eq!(record.all().len(), 2);
    for session in &sessions {
        assert_eq!(session.post(PING).head.status, 200);
    }
    assert_eq!(sessions[0].delete().status(), 204);
    Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
}

/// F:C09: before it refuses, the gateway ends the session that is idle longest; one with a call or a stream is
/// not idle.
#[test]
fn the_idlest_session_makes_room() {
    let gateway = Gateway::start(&format!("[sessions]\nmax = 3\nevict_after = \"100ms\"\n{}", server().toml()));
    let open = || Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let streaming = open();
    let _stream = streaming.get();
    let calling = open();
    let held = calling.send_call(1, "hold", json!({ "gate": "g" }));
    let idle = open();
    thread::sleep(Duration::from_millis(150));
    let late = open();
    assert_eq!(idle.post_request(PING).send(idle.address).status(), 404);
    for session in [&streaming, &calling, &late] {
        assert_eq!(session.post(PING).head.status, 200);
    }
    calling.call(2, "release", json!({ "gate": "g" }));
    assert_eq!(held.finish().message()["id"], 1);
    gateway.await_event("session_close", |event| event["reason"] == "pressure");
}

/// F:C09: a session whose client never goes on ends soon, its child with it.
#[test]
fn a_session_nobody_confirms_ends() {
    let gateway = Gateway::start(&format!("sessions.uninitialized = \"200ms\"\n{}", server().toml()));
    let silent = Session::initialize(&gateway, "/fake/mcp", "2025-11-25", json!({}), &[]);
    let confirmed = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let asking = Session::initialize(&gateway, "/fake/mcp", "2025-11-25", json!({}), &[]);
    asking.request(1, "tools/list", json!({}));
    gateway.await_event("session_close", |event| event["reason"] == "uninitialized");
    gateway.await_descendants(2);
    assert_eq!(silent.post_request(PING).send(silent.address).status(), 404);
    for session in [confirmed, asking] {
        assert_eq!(session.post(PING).head.status, 200, "a request confirms as well as `initialized`");
    }
}

/// R:H28, R:S01: the InitializeResult comes under the client's own id, however spelled, and as the child wrote it.
#[test]
fn the_result_passes_as_it_is() {
    let result = r#"{"protocolVersion":"2025-11-25","capabilities":{"experimental":{"x":{}},"zz":1.0},"serverInfo":{"name":"n","version":"1","icons":[{"src":"data:,"}]},"instructions":"a\u00e9b","_meta":{"n":1e400}}"#;
    let gateway = Gateway::start(&server().arg("--init-raw").arg(result).toml());
    for id in ["0", r#""\u0041""#, "18446744073709551616"] {
        let body =
            initialize("2025-11-25", json!({})).to_string().replace(r#""id":"initialize""#, &format!(r#""id":{id}"#));
        let answer = Exchange::send(gateway.address(), &Request::post("/fake/mcp", body)).finish();
        assert_eq!(answer.raw(), format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
    }
}

/// R:V03: what is odd in a client's `initialize` is the child's to judge; what the gateway cannot speak is not.
#[test]
fn odd_handshakes_have_one_answer() {
    let record = Record::new();
    let gateway = Gateway::start(&server().option("--record", record.path()).toml());
    for params in ["", r#","params":{}"#, r#","params":{"protocolVersion":7}"#, r#","params":[]"#] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":"x","method":"initialize"{params}}}"#);
        let answer = Exchange::send(gateway.address(), &Request::post("/fake/mcp", body)).finish();
        assert!(matches!(answer.head.status, 200 | 502 | 503), "{params}: {answer:?}");
        assert_eq!(answer.message()["id"], "x", "{params}: {answer:?}");
        let opened = answer.head.header("mcp-session-id").is_some();
        assert_eq!(opened, answer.message()["result"] != Value::Null, "{params}: {answer:?}");
    }
    let without_session = gateway.metrics().count("sessions", &[]);
    gateway.await_descendants(without_session as usize);
}
