//! What passes through the gateway arrives as it was written, on one line.

use serde_json::json;

use crate::child::{Record, Server};
use crate::gateway::Gateway;
use crate::session::Session;

/// Texts other parsers are known to change when they decode and encode them again.
const TEXTS: [&str; 12] = [
    r#"{"id":9223372036854775807,"u":18446744073709551615,"f":1.0,"g":1E+5,"h":-0,"i":0.10,"j":1e-400,"k":1e400}"#,
    r#"{"z":1,"a":2,"Z":3,"":4}"#,
    r#"{"a":"\u00e9\/\b\f\n\r\t\"\\","b":"é/"}"#,
    r#"{"surrogates":"\ud83d\ude80🚀"}"#,
    "{\"separators\":\"\u{2028}\u{2029}\u{85}\u{a0}\u{feff}\"}",
    r#"{"controls":"\u0000\u001f\u007f"}"#,
    "{\"delete\":\"\u{7f}\u{80}\u{ffff}\u{10ffff}\"}",
    r#"{ "space" : [ 1 , 2 ] , "t":	true }"#,
    r#"{"a":1,"a":2}"#,
    r#"{"empty":{},"list":[],"null":null,"nested":[[[[{}]]]]}"#,
    r#"{"jsonrpc":"1.0","method":"x","id":null,"result":1,"error":2,"params":{"_meta":{"progressToken":1}}}"#,
    r#"{"script":"</script><!-- data: x\n\nevent: y\nid: 1","key with \"quotes\"":1}"#,
];

/// C:B13, C:B16, R:H33: arguments reach the child as they were written, and its result the client.
#[test]
fn arguments_and_results_pass_byte_exact() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        for text in TEXTS {
            let call = |name: &str, arguments: &str| {
                let params = format!(r#"{{"name":"{name}","arguments":{arguments}}}"#);
                (
                    params.clone(),
                    session.post(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#)),
                )
            };
            let (params, answer) = call("echo", text);
            assert!(answer.raw().ends_with(&format!(r#""structuredContent":{text}}}}}"#)), "{revision}: {answer:?}");
            assert!(record.lines().iter().any(|line| line.contains(&params)), "{revision}: {params}");
            for (tool, member) in [("result", "result"), ("error", "error")] {
                let (_, answer) = call(tool, &format!(r#"{{"{member}":{text}}}"#));
                assert_eq!(answer.raw(), format!(r#"{{"jsonrpc":"2.0","id":1,"{member}":{text}}}"#), "{revision}");
            }
        }
    }
}

/// The same on an event stream, where a line is a field.
#[test]
fn results_pass_byte_exact_on_a_stream() {
    let gateway = Gateway::start(&format!("streams.sse_after = \"0s\"\n{}", Server::fake("fake").toml()));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    for text in TEXTS {
        let params = format!(r#"{{"name":"result","arguments":{{"result":{text}}}}}"#);
        let answer = session.post(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#));
        assert!(answer.is_stream());
        assert_eq!(answer.raw(), format!(r#"{{"jsonrpc":"2.0","id":1,"result":{text}}}"#));
    }
}

/// C:B04: a body that was written prettily, with any line ends, reaches the child on one line.
#[test]
fn a_pretty_body_reaches_the_child_on_one_line() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    for (end, id) in [("\n", 1), ("\r\n", 2), ("\r", 3), ("\n\n\n", 4)] {
        let pretty = format!(
            "{end}{{{end}  \"jsonrpc\": \"2.0\",{end}  \"id\": {id},{end}  \"method\": \"vendor/pretty\",{end}  \"params\": {{{end}    \"n\": {id}{end}  }}{end}}}{end}"
        );
        let answer = session.post(pretty).message();
        assert_eq!((&answer["id"], &answer["result"]["n"]), (&json!(id), &json!(id)), "{answer}");
        let note = format!("{{{end}\"jsonrpc\":\"2.0\",\"method\":\"vendor/note\",\"params\":[{end}{id}{end}]}}");
        assert_eq!(session.post(note).head.status, 202);
    }
    session.request(9, "vendor/last", json!({}));
    let read: Vec<u8> = record.all().into_values().next().unwrap();
    assert!(!read.contains(&b'\r'));
    let lines = record.lines();
    assert_eq!(lines.len(), 2 + 4 * 2 + 1, "{lines:?}");
    assert!(lines.iter().all(|line| line.parse::<serde_json::Value>().is_ok()), "{lines:?}");
}

/// C:B44, R:H33: pages and their cursors pass as they are.
#[test]
fn cursors_pass_as_they_are() {
    let gateway = Gateway::start(&Server::fake("fake").arg("--page-size").arg("9").toml());
    let sessions = [(); 2].map(|()| Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({})));
    let mut pages = Vec::new();
    for session in &sessions {
        let mut names = Vec::new();
        let mut params = json!({});
        loop {
            let page = session.request(1, "tools/list", params.clone());
            let tools = page["result"]["tools"].as_array().unwrap();
            assert!(tools.len() <= 9);
            names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
            let Some(cursor) = page["result"].get("nextCursor") else { break };
            params = json!({ "cursor": cursor });
        }
        assert!(names.len() > 18 && names.is_sorted(), "{names:?}");
        pages.push(names);
    }
    assert_eq!(pages[0], pages[1]);
    let refused = sessions[0].request(1, "tools/list", json!({ "cursor": "foreign" }));
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
}
