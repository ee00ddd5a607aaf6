use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::Server;
use crate::cli::demo_server::output::Output;

/// A server whose output is read line by line.
struct Trial {
    server: Server,
    written: Written,
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Trial {
    fn new() -> Self {
        let written = Written::default();
        let output = Arc::new(Output::new(Box::new(written.clone())));
        Self { server: Server::new(output), written }
    }

    fn open(version: &str, capabilities: Value) -> Self {
        let mut trial = Self::new();
        let params = json!({
            "protocolVersion": version, "capabilities": capabilities,
            "clientInfo": { "name": "trial", "version": "1" },
        });
        let answer = trial.one(&request(json!(0), "initialize", params));
        assert_eq!(answer["result"]["protocolVersion"], version);
        let note = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert!(trial.send(&note.to_string()).is_empty());
        trial
    }

    /// Sends one line; returns everything written since.
    fn send(&mut self, line: &str) -> Vec<Value> {
        self.server.receive(line.as_bytes());
        self.server.output.flush().unwrap();
        self.read()
    }

    fn read(&self) -> Vec<Value> {
        let bytes = std::mem::take(&mut *self.written.0.lock().unwrap());
        String::from_utf8(bytes).unwrap().lines().map(|line| line.parse().unwrap()).collect()
    }

    fn one(&mut self, line: &str) -> Value {
        let mut lines = self.send(line);
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Vec<Value> {
        self.send(&call(json!(1), tool, arguments))
    }
}

fn request(id: Value, method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

fn call(id: Value, tool: &str, arguments: Value) -> String {
    request(id, "tools/call", json!({ "name": tool, "arguments": arguments }))
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap()
}

#[test]
fn the_handshake_comes_first_and_once() {
    let mut trial = Trial::new();
    assert_eq!(trial.one(&request(json!(1), "tools/list", json!({})))["error"]["code"], -32600);
    assert_eq!(trial.one(&request(json!(2), "ping", json!({})))["result"], json!({}));
    let params = json!({ "protocolVersion": "2099-01-01", "capabilities": {} });
    let answer = trial.one(&request(json!(3), "initialize", params.clone()));
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(trial.one(&request(json!(4), "initialize", params))["error"]["code"], -32600);
}

#[test]
fn fields_follow_the_revision() {
    let new = Trial::open("2025-11-25", json!({})).one(&request(json!(1), "tools/list", json!({})));
    let old = Trial::open("2024-11-05", json!({})).one(&request(json!(1), "tools/list", json!({})));
    let (new, old) = (&new["result"]["tools"][0], &old["result"]["tools"][0]);
    assert!(["title", "outputSchema", "annotations"].iter().all(|key| !new[key].is_null()));
    assert!(["title", "outputSchema", "annotations"].iter().all(|key| old[key].is_null()));
    let echo = json!({ "text": "a" });
    let new = Trial::open("2025-06-18", json!({})).call("echo", echo.clone());
    let old = Trial::open("2025-03-26", json!({})).call("echo", echo.clone());
    assert_eq!(new[0]["result"]["structuredContent"], echo);
    assert_eq!(old[0]["result"], json!({ "content": [{ "type": "text", "text": "a" }] }));
}

#[test]
fn every_listed_tool_can_be_called_without_a_protocol_error() {
    let mut trial = Trial::open("2025-11-25", json!({}));
    let list = trial.one(&request(json!(1), "tools/list", json!({})));
    for tool in list["result"]["tools"].as_array().unwrap() {
        for answer in trial.call(tool["name"].as_str().unwrap(), json!({})) {
            assert!(answer["error"].is_null(), "{answer}");
        }
    }
    assert_eq!(trial.call("other", json!({}))[0]["error"]["code"], -32602);
}

#[test]
fn wrong_arguments_go_to_the_model_or_to_the_client_by_revision() {
    let wrong = json!({ "a": 1, "b": "x" });
    let new = Trial::open("2025-11-25", json!({})).call("add", wrong.clone());
    let old = Trial::open("2025-06-18", json!({})).call("add", wrong);
    assert_eq!(new[0]["result"]["isError"], true);
    assert_eq!(old[0]["error"]["code"], -32602);
}

#[test]
fn adding_keeps_integers() {
    let mut trial = Trial::open("2025-11-25", json!({}));
    let sum = trial.call("add", json!({ "a": 9_007_199_254_740_993_i64, "b": 1 }));
    assert_eq!(text(&sum[0]), "9007199254740994");
    let sum = trial.call("add", json!({ "a": 0.5, "b": 1 }));
    assert_eq!(sum[0]["result"]["structuredContent"]["sum"], 1.5);
}

#[test]
fn a_payload_has_its_size() {
    let mut trial = Trial::open("2025-11-25", json!({}));
    assert_eq!(text(&trial.call("payload", json!({ "bytes": 300_000 }))[0]).len(), 300_000);
    assert_eq!(trial.call("payload", json!({ "bytes": -1 }))[0]["result"]["isError"], true);
}

#[test]
fn a_question_is_asked_only_of_a_client_that_declared_it() {
    let mut trial = Trial::open("2025-11-25", json!({ "elicitation": {} }));
    for tool in ["ask_sampling", "ask_roots"] {
        assert_eq!(trial.call(tool, json!({}))[0]["result"]["isError"], true, "{tool}");
    }
    let question = trial.call("ask_elicitation", json!({ "message": "Who?" })).remove(0);
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"]["message"], "Who?");
    let result = json!({ "action": "accept", "content": { "name": "Ada" } });
    let reply = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result }).to_string();
    let answer = trial.one(&reply);
    assert_eq!(answer["id"], 1);
    assert_eq!(text(&answer).parse::<Value>().unwrap(), result);
    assert!(trial.send(&reply).is_empty(), "an answer counts once");
}

#[test]
fn an_error_answer_of_the_client_is_reported() {
    let mut trial = Trial::open("2025-11-25", json!({ "sampling": {} }));
    let question = trial.call("ask_sampling", json!({})).remove(0);
    let error = json!({ "code": -1, "message": "no" });
    let reply = json!({ "jsonrpc": "2.0", "id": question["id"], "error": error });
    let answer = trial.one(&reply.to_string());
    assert_eq!(answer["result"]["isError"], true);
    assert!(text(&answer).contains("-1"));
}

#[test]
fn cancelling_a_call_voids_its_question() {
    let mut trial = Trial::open("2025-11-25", json!({}));
    let question = trial.call("ask_ping", json!({})).remove(0);
    let cancel = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 },
    });
    let voided = trial.one(&cancel.to_string());
    assert_eq!(voided["params"]["requestId"], question["id"]);
    let reply = json!({ "jsonrpc": "2.0", "id": question["id"], "result": {} });
    assert!(trial.send(&reply.to_string()).is_empty());
}

#[test]
fn progress_comes_only_with_a_token_which_is_spelled_as_given() {
    let mut trial = Trial::open("2025-11-25", json!({}));
    assert_eq!(trial.call("progress_burst", json!({ "count": 3 })).len(), 1);
    trial.server.receive(
        br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"progress_burst","arguments":{"count":2},"_meta":{"progressToken":"\u0041"}}}"#,
    );
    trial.server.output.flush().unwrap();
    let bytes = std::mem::take(&mut *trial.written.0.lock().unwrap());
    let written = String::from_utf8(bytes).unwrap();
    assert_eq!(written.matches(r#""progressToken":"\u0041""#).count(), 2);
    assert_eq!(written.lines().count(), 3);
}

#[test]
fn log_messages_follow_the_level() {
    let mut trial = Trial::open("2025-11-25", json!({}));
    let debug = json!({ "level": "debug", "count": 2 });
    assert_eq!(trial.call("log", debug.clone()).len(), 1);
    let level = |level: &str| request(json!(2), "logging/setLevel", json!({ "level": level }));
    assert_eq!(trial.one(&level("debug"))["result"], json!({}));
    let lines = trial.call("log", debug);
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[1]["params"]["data"]["number"], 2);
    assert_eq!(trial.one(&level("loud"))["error"]["code"], -32602);
}

#[test]
fn updates_reach_subscribers_only() {
    let mut trial = Trial::open("2025-11-25", json!({}));
    assert_eq!(trial.call("update_resource", json!({})).len(), 1);
    let counter = json!({ "uri": "demo://counter" });
    trial.one(&request(json!(2), "resources/subscribe", counter.clone()));
    let lines = trial.call("update_resource", json!({ "list_changed": true }));
    let methods: Vec<_> = lines.iter().filter_map(|line| line["method"].as_str()).collect();
    assert_eq!(methods, ["notifications/resources/updated", "notifications/resources/list_changed"]);
    trial.one(&request(json!(3), "resources/unsubscribe", counter.clone()));
    assert_eq!(trial.call("update_resource", json!({})).len(), 1);
    let read = trial.one(&request(json!(4), "resources/read", counter));
    assert_eq!(read["result"]["contents"][0]["text"], "3");
    let nowhere = json!({ "uri": "demo://nowhere" });
    let missing = trial.one(&request(json!(5), "resources/subscribe", nowhere.clone()));
    assert_eq!(missing["error"]["code"], -32002);
    assert_eq!(missing["error"]["data"], nowhere);
}

#[test]
fn completion_knows_prompts_and_templates() {
    let mut trial = Trial::open("2025-11-25", json!({}));
    let mut complete = |reference: Value, name: &str, value: &str| {
        let argument = json!({ "name": name, "value": value });
        let params = json!({ "ref": reference, "argument": argument });
        trial.one(&request(json!(1), "completion/complete", params))
    };
    let style = complete(json!({ "type": "ref/prompt", "name": "greeting" }), "style", "fo");
    assert_eq!(style["result"]["completion"]["values"], json!(["formal"]));
    let square = json!({ "type": "ref/resource", "uri": "demo://square/{number}" });
    assert_eq!(complete(square, "number", "7")["result"]["completion"]["total"], 11);
    let other = complete(json!({ "type": "ref/prompt", "name": "other" }), "style", "");
    assert_eq!(other["error"]["code"], -32602);
}

#[test]
fn wrong_messages_are_refused_and_the_server_goes_on() {
    let mut trial = Trial::open("2025-11-25", json!({}));
    for (line, code) in [("{", -32700), ("7", -32600), ("[]", -32600), (r#"[{"jsonrpc":"2.0"}]"#, -32600)] {
        let refusal = trial.one(line);
        assert_eq!(refusal["error"]["code"], code, "{line}");
        assert!(refusal.get("id").is_none(), "{line}");
    }
    assert_eq!(trial.one(&request(json!("x"), "nothing", json!({})))["error"]["code"], -32601);
    let cursor = json!({ "cursor": "8" });
    assert_eq!(trial.one(&request(json!("x"), "tools/list", cursor))["error"]["code"], -32602);
    assert!(trial.send(r#"{"jsonrpc":"2.0","method":"notifications/unknown"}"#).is_empty());
    assert_eq!(trial.one(&request(json!("x"), "ping", json!({})))["id"], "x");
}

#[test]
fn a_batch_is_answered_as_one_array_where_the_revision_has_batches() {
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/unknown" }).to_string();
    let calls = ["a", "b"].map(|id| call(json!(id), "echo", json!({ "text": id })));
    let batch = format!("[{},{note},{}]", calls[0], calls[1]);
    let mut trial = Trial::open("2025-03-26", json!({}));
    let answer = trial.one(&batch);
    assert_eq!(answer[0]["id"], "a");
    assert_eq!(text(&answer[1]), "b");
    assert!(trial.send(&format!("[{note}]")).is_empty());
    let refused = Trial::open("2025-06-18", json!({})).one(&batch);
    assert_eq!(refused["error"]["code"], -32600);
}
