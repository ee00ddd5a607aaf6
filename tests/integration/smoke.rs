//! The shortest ways through: both children, one session each.

use serde_json::json;

use crate::child::Server;
use crate::gateway::Gateway;
use crate::session::Session;

#[test]
fn a_session_lists_and_calls() {
    let gateway = Gateway::start(&Server::demo("demo").toml());
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway, "/demo/mcp", revision, json!({}));
        assert_eq!(session.revision, revision);
        assert_eq!(session.initialized["serverInfo"]["name"], "gangway-demo");
        let list = session.request(1, "tools/list", json!({}));
        let tools = list["result"]["tools"].as_array().unwrap();
        assert!(tools.iter().any(|tool| tool["name"] == "echo"), "{list}");
        let sum = session.call("two", "add", json!({ "a": 2, "b": 3 }));
        assert_eq!(sum["result"]["content"][0]["text"], "5");
    }
    gateway.await_metric("sessions", &[("server", "demo")], |sessions| sessions == 3.0);
}

#[test]
fn payloads_pass_byte_exact() {
    let gateway = Gateway::start(&Server::demo("demo").toml());
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let arguments = r#"{"z":1e400,"text":"\u00e9\/é😀","a":{"u":18446744073709551616,"b": [1.0,-0]}}"#;
    let answer = session.post(format!(
        r#"{{"jsonrpc":"2.0","id":"x-é","method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
    ));
    assert_eq!(
        answer.raw(),
        format!(
            r#"{{"jsonrpc":"2.0","id":"x-é","result":{{"content":[{{"type":"text","text":"\u00e9\/é😀"}}],"structuredContent":{arguments}}}}}"#
        )
    );
}

#[test]
fn progress_comes_before_the_answer_on_the_same_stream() {
    let gateway = Gateway::start(&Server::demo("demo").toml());
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let burst = json!({ "count": 3 });
    let answer = session.send_call_with_token(1, "progress_burst", burst, "token").finish();
    assert!(answer.is_stream(), "{answer:?}");
    let messages = answer.messages();
    assert_eq!(messages.len(), 4, "{answer:?}");
    assert!(messages[..3].iter().all(|message| message["params"]["progressToken"] == "token"));
    assert_eq!(messages[3]["id"], 1);
}

#[test]
fn an_unknown_session_is_404_and_a_missing_one_400() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let mut session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    let nameless = session.post_request(&ping).without("Mcp-Session-Id").send(session.address);
    assert_eq!(nameless.status(), 400, "{nameless:?}");
    session.id = "node-00000000000000000000000000000000".to_owned();
    for request in [session.post_request(&ping), session.get_request(), session.delete_request()] {
        let response = request.send(session.address);
        assert_eq!(response.status(), 404, "{response:?}");
    }
}

#[test]
fn delete_ends_the_session_and_its_child() {
    let gateway = Gateway::start(&Server::fake("fake").key("pool.min_idle = 0").toml());
    gateway.await_descendants(0);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    gateway.await_descendants(1);
    let deleted = session.delete();
    assert!((200..300).contains(&deleted.status()), "{deleted:?}");
    let late = session.post_request(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    assert_eq!(late.send(session.address).status(), 404);
    gateway.await_descendants(0);
    gateway.await_event("session_close", |event| event["reason"] == "delete");
}

#[test]
fn term_drains_and_exits_with_zero() {
    let toml = format!("[drain]\nprestop = \"0s\"\n{}", Server::demo("demo").toml());
    let mut gateway = Gateway::start(&toml);
    Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let children = gateway.descendants();
    assert_eq!(gateway.stop(), 0);
    assert!(children.iter().all(|child| !child.is_alive()));
}
