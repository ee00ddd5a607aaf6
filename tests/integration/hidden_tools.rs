//! `tools.allow` and `tools.deny`: what is hidden stands in no list, cannot be called, and never reaches a child.

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::gateway::Gateway;
use crate::session::Session;

const LIST: &str = r#"{"jsonrpc":"2.0","id":"list","method":"tools/list","params":{}}"#;

fn names(list: &Value) -> Vec<&str> {
    list["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

/// How often a child was asked to do something, whoever wants to know what it offers.
fn asked(record: &Record) -> usize {
    record.lines().iter().filter(|line| line.contains("/call\"") || line.contains("read\"")).count()
}

/// R:A24: lists and calls agree, whatever revision and mode; the child sees no call of a hidden tool.
#[test]
fn what_is_hidden_is_in_no_list_and_cannot_be_called() {
    for mode in ["session", "shared"] {
        let record = Record::new();
        let server = Server::fake("fake").option("--record", record.path()).key(&format!("mode = \"{mode}\""));
        let server = server.key("tools = { allow = [\"e*\", \"hold\"], deny = [\"err?r\"] }");
        let gateway = Gateway::start(&server.toml());
        for revision in ["2025-03-26", "2025-11-25"] {
            let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
            assert_eq!(names(&session.post(LIST).message()), ["echo", "exit", "hold"], "{mode} {revision}");
            assert_eq!(session.call_text(1, "echo", json!({ "a": 1 })), r#"{"a":1}"#);
            let before = asked(&record);
            for tool in ["error", "late", "state", "ECHO", "hold ", ""] {
                let answer = session.send_call(2, tool, json!({})).finish();
                assert_eq!(answer.head.status, 200);
                let answer = answer.message();
                assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(2), &json!(-32602)), "{tool}: {answer}");
                assert_eq!(answer["error"]["message"], "Unknown tool");
                assert_eq!(answer["error"]["data"]["executed"], "no");
            }
            session.call_text(3, "echo", json!({}));
            assert_eq!(asked(&record), before + 1, "{mode} {revision}: the child was asked");
        }
        gateway.await_metric("tool_calls_total", &[("outcome", "refused")], |count| count >= 4.0);
    }
}

/// A name may be spelled with escapes, stand twice, or be meant for a parser that does not look at its case; a call may
/// ask for no answer. None of it gets past.
#[test]
fn no_spelling_gets_past() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path()).key("tools.deny = [\"state\"]");
    let gateway = Gateway::start(&server.toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let before = asked(&record);
    for params in [
        r#"{"name":"st\u0061te"}"#,
        r#"{"n\u0061me":"state"}"#,
        r#"{"name":"echo","Name":"state"}"#,
        r#"{"NAME":"state"}"#,
        r#"{"n\u0041me":"state","name":"echo"}"#,
    ] {
        for method in ["tools/call", r"tools\/call", r"\u0074ools/call"] {
            let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
            assert_eq!(session.post(&call).message()["error"]["code"], -32602, "{call}");
            let untold = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
            assert_eq!(session.post(&untold).head.status, 202, "{untold}");
        }
    }
    let twice = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"state"}}"#;
    assert_eq!(session.post(twice).head.status, 400);
    // The child reads in order, so that by now it has read whatever came before this.
    assert_eq!(session.call_text(2, "echo", json!({})), "{}");
    assert_eq!(asked(&record), before + 1, "the child was asked: {:?}", record.lines());
}

/// What is left of a list is what the server wrote, to the byte; a page that comes out empty has its cursor.
#[test]
fn a_list_keeps_every_other_byte() {
    let gateway = Gateway::start(
        &Server::fake("fake").arg("--page-size").arg("1").key("tools.allow = [\"echo\", \"e*t\", \"raw\"]").toml(),
    );
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let (mut cursor, mut found, mut pages) = (None, Vec::new(), 0);
    loop {
        let params = cursor.map_or_else(|| json!({}), |cursor: Value| json!({ "cursor": cursor }));
        let page = session.request(1, "tools/list", params);
        found.extend(names(&page).into_iter().map(str::to_owned));
        pages += 1;
        cursor = page["result"].get("nextCursor").cloned();
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, ["echo", "exit", "raw"]);
    assert!(pages > 20, "every page is there: {pages}");
    let odd = concat!(
        r#" { "tools" :[ {"title":1.0e5,"name":"a"} , {"name":"hide\u005fme"},{"b":[1,"]"],"name":"b"}],"_meta":{"tools":[{"name":"hide_me"}]},"#,
        r#""nextCursor": "n" }"#
    );
    let left = odd.replace(r#" , {"name":"hide\u005fme"}"#, "");
    let server = Server::fake("fake").arg("--tools-raw").arg(odd).key("tools.deny = [\"hide_me\"]");
    let gateway = Gateway::start(&server.toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let answer = session.post(LIST);
    assert_eq!(answer.raw(), format!(r#"{{"jsonrpc":"2.0","id":"list","result":{left}}}"#));
}

/// In a batch each call is judged by itself.
#[test]
fn a_batch_has_no_hidden_calls() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path()).key("tools.deny = [\"state\"]");
    let gateway = Gateway::start(&server.toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-03-26", json!({}));
    let batch = format!(
        r#"[{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"state"}}}},
        {{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"echo","arguments":{{}}}}}},{LIST}]"#
    );
    let messages = session.post(batch).messages();
    let of = |id: Value| messages.iter().find(|message| message["id"] == id).unwrap();
    assert_eq!(of(json!(1))["error"]["code"], -32602);
    assert_eq!(of(json!(2))["result"]["content"][0]["text"], "{}");
    assert!(!names(of(json!("list"))).contains(&"state") && names(of(json!("list"))).contains(&"echo"));
    assert!(!record.lines().iter().any(|line| line.contains("\"state\"")));
}

/// Another list in the file and HUP: it counts from the next request on, for sessions that are open too, and their
/// processes stay.
#[test]
fn a_reload_hides_from_open_sessions() {
    let toml = |deny: &str| Server::fake("fake").key(&format!("tools.deny = [{deny}]")).toml();
    let gateway = Gateway::start(&toml("\"hold\""));
    gateway.await_event("server_ready", |_| true);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let pid = session.call(1, "state", json!({}))["result"]["structuredContent"]["pid"].clone();
    let reloaded = gateway.reload(&toml("\"state\", \"stat\""));
    assert_eq!((&reloaded["renewed"], &reloaded["changed"]), (&json!("fake"), &Value::Null), "{reloaded}");
    gateway.await_event("warning", |event| event["warning"].as_str().is_some_and(|text| text.contains("\"stat\"")));
    assert_eq!(session.call(2, "state", json!({}))["error"]["code"], -32602);
    let list = session.post(LIST).message();
    assert!(names(&list).contains(&"hold") && !names(&list).contains(&"state"));
    gateway.reload(&toml(""));
    assert_eq!(session.call(3, "state", json!({}))["result"]["structuredContent"]["pid"], pid);
}
