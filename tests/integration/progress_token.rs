//! What a client may give as its progress token.

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::client::Request;
use crate::gateway::Gateway;
use crate::session::{Session, call, initialize};

fn lone(record: &Record) -> Server {
    Server::fake("fake").option("--record", record.path()).key("check_on_start = false\npool.min_idle = 0")
}

/// Neither strings nor integers, or longer than any id may be.
fn bad_tokens() -> [Value; 6] {
    [json!({ "a": 1 }), json!([1]), json!(1.5), json!(true), json!(1e2), json!("t".repeat(257))]
}

#[track_caller]
fn assert_refused(error: &Value) {
    assert_eq!(error["code"], -32602, "{error}");
    assert_eq!(error["data"], json!({ "gateway": true, "reason": "parse", "executed": "no" }), "{error}");
}

/// R:P07, R:D12: a token is a string or an integer. With any other the request is refused, before
/// its child sees it; the session goes on.
#[test]
fn a_token_that_is_none_is_refused() {
    let record = Record::new();
    let gateway = Gateway::start(&lone(&record).toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-03-26", json!({}));
    // It is on its way when the client has its 202.
    record.await_message(|message| message["method"] == "notifications/initialized");
    let before = record.lines().len();
    for token in bad_tokens() {
        let answer = session.send_call_with_token(1, "echo", json!({}), token.clone()).finish();
        assert_eq!((answer.head.status, &answer.message()["id"]), (200, &json!(1)), "{token}: {answer:?}");
        assert_refused(&answer.message()["error"]);
    }
    assert_eq!(record.lines().len(), before, "{:?}", record.lines());
    let batch = json!([call(1, "echo", json!({}), Some(json!(1.5))), call(2, "echo", json!({}), Some(json!("t")))]);
    let answers = session.post(batch.to_string()).messages();
    let answer = |id: u64| answers.iter().find(|answer| answer["id"] == id).expect("an answer");
    assert_refused(&answer(1)["error"]);
    assert!(answer(2)["result"].is_object(), "{answers:?}");
    gateway.await_metric("requests_total", &[("outcome", "refused")], |count| count == 7.0);
}

/// R:P07: none is asked for by `null`, and integers have as many digits as they need.
#[test]
fn tokens_that_are_some_pass() {
    let record = Record::new();
    let gateway = Gateway::start(&lone(&record).toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let answer = session.send_call_with_token(1, "progress", json!({}), Value::Null).finish();
    assert_eq!(answer.messages().len(), 1, "nothing goes by no token: {answer:?}");
    for token in ["\"\"", "0", "-1", "184467440737095516160", "\"\\u0061\""] {
        let body = call(1, "progress", json!({ "count": 1 }), Some(json!("TOKEN"))).to_string();
        let answer = session.post(body.replace("\"TOKEN\"", token));
        assert!(answer.texts[0].contains(&format!("\"progressToken\":{token}")), "{token}: {answer:?}");
    }
}

/// R:P07: the same goes for `initialize`, which has no session yet to answer in.
#[test]
fn initialize_with_a_bad_token_is_refused() {
    let record = Record::new();
    let gateway = Gateway::start(&lone(&record).toml());
    for token in bad_tokens() {
        let mut body = initialize("2025-11-25", json!({}));
        body["params"]["_meta"] = json!({ "progressToken": token });
        let answer = Request::post("/fake/mcp", body.to_string()).send(gateway.address());
        assert_eq!((answer.status(), &answer.json()["error"]["code"]), (400, &json!(-32602)), "{token}: {answer:?}");
        assert_eq!(answer.json()["id"], "initialize");
    }
    assert!(record.all().is_empty(), "no child was started");
}
