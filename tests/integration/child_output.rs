//! What a child writes: framing, limits, bad lines, bytes that must survive, stderr.

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::gateway::Gateway;
use crate::session::{Answer, Session};

const MIB: u64 = 1024 * 1024;

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({}))
}

/// The error the gateway makes up for a lost call.
#[track_caller]
fn assert_lost(answer: &Value, code: i64, reason: &str) {
    let error = &answer["error"];
    assert_eq!(error["code"], code, "{answer}");
    assert_eq!(error["data"]["gateway"], true, "{answer}");
    assert_eq!(error["data"]["reason"], reason, "{answer}");
    assert_eq!(error["data"]["executed"], "maybe", "{answer}");
}

/// R:D03, C:B01, C:B03, F:B01: what is no message is counted and logged, and nothing else happens.
#[test]
fn noise_on_stdout_harms_nobody() {
    let noise = r#"debug: \x1b]0;y\x07\n[1,2]\n7\nnull\n{"level":30,"msg":"hi"}\n{"jsonrpc":"2.0"}\n"#;
    let server = Server::fake("fake")
        .key("check_on_start = false\npool.min_idle = 0")
        .option("--banner", r"Server v1 ready\n✓ 3 tools\n\n")
        .option("--banner", r"[info] x\n")
        .option("--noise", noise);
    let gateway = Gateway::start(&server.toml());
    let session = open(&gateway);
    for id in 1..=3 {
        assert_eq!(session.call(id, "echo", json!({ "n": id }))["result"]["structuredContent"]["n"], id);
    }
    // Three lines of banner; six of noise before each of four answers.
    gateway.await_metric("child_bad_lines_total", &[("server", "fake")], |lines| lines == 27.0);
    let banner = gateway.await_event("child_bad_line", |event| event["line"] == "Server v1 ready");
    assert_eq!(banner["server"], "fake", "{banner}");
    let raw = gateway.stderr();
    assert!(!raw.contains('\x1b') && !raw.contains('\x07'), "control characters reached the log");
}

/// R:D01, R:D03, C:B04, F:B04: CR LF, blank lines and a byte order mark are tolerated from a child,
/// and never written to one.
#[test]
fn line_ends_are_tolerated_and_never_produced() {
    let record = Record::new();
    let server = Server::fake("fake").arg("--crlf").arg("--bom").option("--record", record.path());
    let gateway = Gateway::start(&server.toml());
    let session = open(&gateway);
    let pretty = "{\r\n  \"jsonrpc\": \"2.0\",\r\n  \"id\": 1,\n  \"method\": \"tools/call\",\r  \"params\": {\n    \
                  \"name\": \"echo\",\r\n    \"arguments\": {\"a\":\r\n1}\n  }\r\n}\r\n";
    let answer = session.post(pretty);
    assert_eq!(answer.message()["result"]["structuredContent"]["a"], 1, "{answer:?}");
    assert_eq!(gateway.metrics().count("child_bad_lines_total", &[]), 0.0);
    for bytes in record.all().values() {
        assert!(!bytes.contains(&b'\r'));
        let text = std::str::from_utf8(bytes).unwrap();
        assert!(text.ends_with('\n') && !text.contains("\n\n"), "{text:?}");
        for line in text.lines() {
            assert!(line.parse::<Value>().is_ok(), "not one message: {line:?}");
        }
    }
}

/// R:D02: what is no message never reaches a child.
#[test]
fn what_is_no_message_never_reaches_a_child() {
    let record = Record::new();
    let gateway = Gateway::start(&Server::fake("fake").option("--record", record.path()).toml());
    let session = open(&gateway);
    for garbage in [
        "garbage",
        "7",
        "null",
        "{}",
        "[]",
        r#"{"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"1.0","id":66,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":66,"method":"ping""#,
        r#"{"jsonrpc":"2.0","id":66,"method":"ping"} trailing"#,
    ] {
        let answer = session.post(garbage);
        assert_eq!(answer.head.status, 400, "{garbage}: {answer:?}");
    }
    let broken = session.post(b"{\"jsonrpc\":\"2.0\",\"id\":66,\"method\":\"ping\",\"params\":{\"a\":\"\xff\"}}");
    assert_eq!(broken.head.status, 400, "{broken:?}");
    session.call(1, "echo", json!({}));
    for line in record.lines() {
        let message: Value = line.parse().unwrap();
        assert!(message["method"].is_string() && message["id"] != 66, "{line}");
    }
}

/// C:B07, F:B04: pipe reads that cut a character or an escape in two change nothing.
#[test]
fn bytes_that_come_one_by_one_arrive_as_they_were() {
    let gateway = Gateway::start(&Server::fake("fake").option("--trickle", "0").toml());
    let session = open(&gateway);
    let text = "é世🚀\u{2028}".repeat(200);
    let answer = session.call(1, "echo", json!({ "text": text }));
    assert_eq!(answer["result"]["structuredContent"]["text"], text);
}

/// C:B07: cuts at the borders of pages and pipes.
#[test]
fn characters_across_buffer_borders_arrive_as_they_were() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    for size in [4096, 8192, 65536] {
        // Every alignment of a four-byte character.
        for shift in 0..4 {
            let text = format!("{}{}", "x".repeat(shift), "🚀".repeat(size / 4 + 1));
            let answer = session.call(1, "echo", json!({ "text": text }));
            assert_eq!(answer["result"]["structuredContent"]["text"], text, "{size} + {shift}");
        }
    }
}

/// C:B08, F:B04, R:D04: a line that is not UTF-8 is no message; it ends the call it names, no other.
#[test]
fn a_line_that_is_not_utf8_fails_its_own_call_only() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    let other = session.send_call(4, "hold", json!({ "gate": "g" }));
    let text = "\u{ff}\u{fe}\n{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"text\":\"caf\u{e9}\"}}\n";
    let answer = session.call(5, "raw", json!({ "text": text, "encoding": "latin-1" }));
    assert_lost(&answer, 502, "bad_child_line");
    assert_eq!(session.call(6, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    session.call(7, "release", json!({ "gate": "g" }));
    assert_eq!(other.finish().message()["result"]["structuredContent"]["gate"], "g");
    gateway.await_metric("child_bad_lines_total", &[("reason", "not_utf8")], |lines| lines == 2.0);
}

/// C:B10, R:D04: lines far above a pipe's or a page's size are just lines, and memory goes back.
#[test]
fn long_lines_are_delivered_and_not_kept() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    session.call_text(0, "bytes", json!({ "size": 12_000_000 }));
    let before = gateway.rss();
    for size in [70_000, 1_100_000, 12_000_000, 12_000_000, 10] {
        let text = session.call_text(size, "bytes", json!({ "size": size }));
        assert_eq!(text.len(), size);
    }
    let after = gateway.rss();
    assert!(after < before + 8 * MIB, "{before} bytes before, {after} after");
}

/// F:B03, R:D04: a legal result above the limit costs its own call only; the child lives.
#[test]
fn a_result_above_the_limit_is_413_in_band() {
    let gateway = Gateway::start(&Server::fake("fake").key("line_bytes = \"1MiB\"").toml());
    let session = open(&gateway);
    let pid = session.call(1, "state", json!({}))["result"]["structuredContent"]["pid"].clone();
    let other = session.send_call(2, "hold", json!({ "gate": "g" }));
    assert_lost(&session.call(3, "bytes", json!({ "size": 3 * MIB })), 413, "too_large");
    assert_lost(&session.call(4, "bytes", json!({ "size": MIB })), 413, "too_large");
    session.call(5, "release", json!({ "gate": "g" }));
    assert_eq!(other.finish().message()["result"]["structuredContent"]["gate"], "g");
    assert_eq!(session.call(6, "state", json!({}))["result"]["structuredContent"]["pid"], pid);
    gateway.await_metric("child_bad_lines_total", &[("reason", "too_long")], |lines| lines == 2.0);
}

/// C:B11, F:B02, R:D04: a line without end: what came before it counts, memory stays bounded, its
/// child ends, and nobody else notices.
#[test]
fn a_line_without_end_ends_its_child_only() {
    let gateway = Gateway::start(&Server::fake("fake").key("line_bytes = \"1MiB\"").toml());
    let bystander = open(&gateway);
    let session = open(&gateway);
    let before = gateway.rss();
    let pending = session.send_call(1, "hold", json!({ "gate": "never" }));
    session.call(2, "await_held", json!({ "gate": "never" }));
    let good = session.call(3, "line", json!({ "size": 64 * MIB, "newline": false, "good": true }));
    assert_eq!(good["result"]["content"][0]["text"], "good");
    assert_lost(&pending.finish().message(), 413, "too_large");
    gateway.await_event("child_exit", |event| event["reason"] == "protocol");
    gateway.await_event("session_close", |event| event["reason"] == "child_gone");
    assert_eq!(session.post(r#"{"jsonrpc":"2.0","id":4,"method":"ping"}"#).head.status, 404);
    assert_eq!(bystander.call(1, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    let after = gateway.rss();
    assert!(after < before + 12 * MIB, "{before} bytes before, {after} after");
}

/// F:B02: shorter than that, the next newline is where the child is understood again.
#[test]
fn a_long_line_that_ends_is_skipped() {
    let gateway = Gateway::start(&Server::fake("fake").key("line_bytes = \"1MiB\"").toml());
    let session = open(&gateway);
    let lost = session.call(1, "line", json!({ "size": 2 * MIB }));
    assert_lost(&lost, 413, "too_large");
    assert_eq!(session.call(2, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
}

/// C:B13, R:D29, F:B10: numbers of any size keep their spelling both ways.
#[test]
fn numbers_keep_their_spelling() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    let arguments = r#"{"id":9223372036854775807,"u":18446744073709551615,"e":1e400,"z":-0,"f":1.10}"#;
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
    );
    let answer = session.post(body);
    assert!(answer.raw().contains(&format!(r#""structuredContent":{arguments}"#)), "{answer:?}");
}

/// C:B15, R:X02: ids come back as they were sent, type and spelling, whatever order answers have.
#[test]
fn ids_come_back_as_they_were() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    let ids = [r#""1""#, "1", "0", r#""""#, r#""x-é""#, r#""\u0078-\/""#, "-7", "12345678901234567890123"];
    let calls: Vec<_> = ids
        .iter()
        .map(|id| {
            session.send(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"reverse","arguments":{{"of":{},"me":{id}}}}}}}"#,
                ids.len()
            ))
        })
        .collect();
    for (call, id) in calls.into_iter().zip(ids) {
        let answer = call.finish();
        assert!(answer.raw().starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"#)), "{id}: {answer:?}");
        assert!(answer.raw().contains(&format!(r#""me":{id}}}"#)), "{id}: {answer:?}");
    }
}

/// R:D28: a child of 2025-03-26 may write batches; each message goes its own way, in order.
#[test]
fn a_batch_of_a_2025_03_26_child_is_split() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-03-26", json!({}));
    let answer = session.send_call_with_token(1, "batch", json!({ "count": 2 }), "t").finish();
    let messages = answer.messages();
    assert_eq!(messages.len(), 3, "{answer:?}");
    assert_eq!(messages[0]["params"]["progress"], 1);
    assert_eq!(messages[1]["params"]["progress"], 2);
    assert!(messages[..2].iter().all(|message| message["params"]["progressToken"] == "t"), "{answer:?}");
    assert_eq!(messages[2]["result"]["content"][0]["text"], "batched");
}

/// R:D03, F:B10: in any other revision an array is no message; the call it answers is told so.
#[test]
fn a_batch_in_another_revision_is_a_bad_line() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    assert_lost(&session.call(1, "bomb", json!({ "kind": "batch" })), 502, "bad_child_line");
    assert_eq!(session.call(2, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    gateway.await_metric("child_bad_lines_total", &[("reason", "not_message")], |lines| lines == 1.0);
}

/// F:B10: answers made to break a parser end their own call, or pass where they are legal.
#[test]
fn bombs_end_their_own_call_only() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    for kind in ["duplicate-result", "both", "neither"] {
        assert_lost(&session.call(kind, "bomb", json!({ "kind": kind })), 502, "bad_child_line");
    }
    assert_lost(&session.call(1, "bomb", json!({ "kind": "depth", "size": 1_000_000 })), 502, "bad_child_line");
    let keys = session.call(2, "bomb", json!({ "kind": "keys", "size": 200_000 }));
    assert_eq!(keys["result"].as_object().unwrap().len(), 200_000);
    let number = session.send_call(3, "bomb", json!({ "kind": "number", "size": 400 })).finish();
    assert!(number.raw().contains(&format!(r#""n":[1e400,-0,1E5,{}]"#, "9".repeat(400))), "{number:?}");
    // Which of two ids is meant cannot be told, so neither call is answered by it.
    let other = session.send_call(4, "bomb", json!({ "kind": "duplicate-id" }));
    assert_eq!(session.call(5, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    gateway.await_metric("child_bad_lines_total", &[("reason", "duplicate")], |lines| lines == 2.0);
    other.reset();
}

/// F:B04: line ends between tokens become spaces, in JSON and in an event, so that no SSE field
/// can be forged.
#[test]
fn raw_line_ends_never_reach_an_event() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    let text = "{\"jsonrpc\":\"2.0\",\r\"id\":$ID,\r\"result\":{\r\"content\":[]\r}}\r\n";
    let json = session.post_request(crate::session::call(1, "raw", json!({ "text": text }), None).to_string());
    let json = json.with("Accept", "application/json").send(session.address);
    assert_eq!(json.json()["result"]["content"], json!([]));
    assert!(!json.body.contains(&b'\r') && !json.body.contains(&b'\n'), "{json:?}");
    let forged = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"x\",\rid: forged\r\"params\":{{}}}}\n{text}");
    let body = crate::session::call(2, "raw", json!({ "text": forged.replace("id: forged", "") }), None).to_string();
    let answer = session.send(body).finish();
    assert_eq!(answer.messages().len(), 2, "{answer:?}");
    assert!(!answer.body.contains(&b'\r'), "{answer:?}");
}

/// F:B05: half a last line is dropped; the call it began to answer is lost, not answered.
#[test]
fn a_torn_last_line_is_dropped() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    assert_lost(&session.call(1, "torn", json!({})), 502, "child_gone");
    gateway.await_metric("child_bad_lines_total", &[("reason", "torn")], |lines| lines == 1.0);
    let next = open(&gateway);
    assert_eq!(next.call(1, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
}

/// F:B06: answers nobody awaits are dropped and counted, and reach no later call.
#[test]
fn answers_nobody_awaits_are_dropped() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    let unmatched = |count: f64| {
        gateway.await_metric("unmatched_responses_total", &[("from", "child")], |value| value == count);
    };
    let twice = session.call(1, "twice", json!({ "times": 3 }));
    assert!(twice["result"].is_object(), "{twice}");
    unmatched(2.0);
    for (count, id) in [(3.0, json!(999_999)), (4.0, json!("999")), (5.0, Value::Null), (6.0, json!(-1))] {
        let own = session.call(2, "answer_as", json!({ "id": id }));
        assert_eq!(own["result"]["content"][0]["text"], "own", "{own}");
        if id.is_null() {
            // No id of ours; the line is not even a message.
            gateway.await_metric("child_bad_lines_total", &[], |lines| lines == 1.0);
        } else {
            unmatched(if count > 5.0 { count - 1.0 } else { count });
        }
    }
    // The number the child will see next.
    let next = session.call(3, "echo", json!({ "a": 1 }));
    assert_eq!(next["result"]["structuredContent"]["a"], 1);
}

/// C:B24, F:B11, R:D05: stderr is drained whatever it holds, and the log gets its beginning, escaped.
#[test]
fn stderr_never_blocks_a_child() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    session.call_text(1, "stderr", json!({ "bytes": 262_144 }));
    session.call_text(2, "stderr", json!({ "bytes": 2 * MIB, "newline": false }));
    session.call_text(3, "stderr", json!({ "bytes": 64 * MIB }));
    let secret = "Authorization: Bearer eyJhbGciOiJSUzI1NiJ9.payload.signature";
    session.call_text(4, "stderr", json!({ "text": format!("\u{1b}]0;title\u{7} {secret}") }));
    let line =
        gateway.await_event("child_stderr", |event| event["line"].as_str().is_some_and(|line| line.contains("title")));
    assert_eq!(line["server"], "fake", "{line}");
    let raw = gateway.stderr();
    assert!(!raw.contains('\x1b') && !raw.contains('\x07'), "control characters reached the log");
    assert!(!raw.contains("eyJhbGciOiJSUzI1NiJ9"), "a token reached the log: {line}");
    assert!(raw.len() < 1_000_000, "{} bytes of log", raw.len());
    gateway.await_metric("child_stderr_lines_total", &[("server", "fake")], |lines| lines >= 3.0);
}

/// F:B09, R:D30: a flood of notifications costs neither the call that made it nor other sessions,
/// and is not kept.
#[test]
fn a_flood_of_notifications_is_bounded() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let flooder = open(&gateway);
    let bystander = open(&gateway);
    let before = gateway.rss();
    // Two calls in flight and no GET: the messages go to the log of a stream nobody reads.
    let held = flooder.send_call(1, "hold", json!({ "gate": "g" }));
    let flood = flooder.send_call(2, "log", json!({ "count": 200_000, "bytes": 10 }));
    for id in 0..20 {
        assert_eq!(bystander.call(id, "echo", json!({ "a": id }))["result"]["structuredContent"]["a"], id);
    }
    let answer: Answer = flood.finish();
    assert_eq!(answer.message()["result"]["content"][0]["text"], "logged", "{answer:?}");
    flooder.call(3, "release", json!({ "gate": "g" }));
    held.finish();
    let after = gateway.rss();
    assert!(after < before + 24 * MIB, "{before} bytes before, {after} after");
    let metrics = gateway.metrics();
    assert!(metrics.count("replay_bytes", &[]) <= 4.0 * MIB as f64 + 65_536.0, "{metrics}");
}

/// F:B10: a bad line that is a request of the child's is refused, and costs the client's call that
/// has the same number nothing.
#[test]
fn a_bad_request_fails_nobodys_call() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({ "roots": {} }));
    let line = "{\"jsonrpc\":\"2.0\",\"id\":$ID,\"method\":\"roots/list\",\"params\":null}\n";
    let answer = session.call(1, "raw", json!({ "text": line, "answer": true }));
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(gateway.metrics().count("child_bad_lines_total", &[("reason", "not_message")]), 1.0);
}

/// F:B03: a notification that is too long is no answer, so no call is failed for it.
#[test]
fn a_notification_that_is_too_long_fails_no_call() {
    let gateway = Gateway::start(&Server::fake("fake").key("line_bytes = \"64KiB\"").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let data = "x".repeat(100_000);
    let line = format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{{\"level\":\"info\",\"data\":\"{data}\"}}}}\n"
    );
    let answer = session.call(1, "raw", json!({ "text": line, "answer": true }));
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(gateway.metrics().count("child_bad_lines_total", &[("reason", "too_long")]), 1.0);
}
