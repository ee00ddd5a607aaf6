//! The scripted child itself: that each fault is really made. A trial that passes because the child
//! misbehaves less than it should would prove nothing.

use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::child::{Gate, Process, Record, Server};
use crate::gateway::await_that;
use crate::pipes::Pipes;
use crate::session::{call, initialize};

fn fake() -> Server {
    Server::fake("fake")
}

fn open() -> Pipes {
    Pipes::open(&fake())
}

fn first_answer(server: &Server) -> Value {
    Pipes::start(server).ask(&initialize("2025-11-25", json!({})))
}

#[test]
fn noise_and_line_ends_are_as_ordered() {
    let server = fake().arg("--banner").arg(r"hi\n\xff\xfe\n").arg("--noise").arg(r"[1]\n").arg("--crlf");
    let mut pipes = Pipes::start(&server);
    assert_eq!(pipes.next_line().unwrap(), b"hi\n");
    assert_eq!(pipes.next_line().unwrap(), b"\xff\xfe\n");
    pipes.send_message(&initialize("2025-11-25", json!({})));
    assert_eq!(pipes.next_text(), "[1]\n");
    assert!(pipes.next_text().ends_with("}\r\n"));
    assert_eq!(pipes.next_text(), "\r\n");
    let mut pipes = Pipes::start(&fake().arg("--bom").arg("--trickle").arg("0"));
    pipes.send_message(&initialize("2025-11-25", json!({})));
    assert!(pipes.next_text().starts_with("\u{feff}{"));
}

#[test]
fn the_handshake_fails_as_ordered() {
    let version = first_answer(&fake().arg("--version").arg("2030-01-01"));
    assert_eq!(version["result"]["protocolVersion"], "2030-01-01");
    let error = first_answer(&fake().arg("--init-error").arg("-32603"));
    assert_eq!(error["error"]["code"], -32603);
    let merged = first_answer(&fake().arg("--init-merge").arg(r#"{"instructions":"i","zz":1}"#));
    assert_eq!((&merged["result"]["instructions"], &merged["result"]["zz"]), (&json!("i"), &json!(1)));
    assert_eq!(first_answer(&fake().arg("--init-raw").arg(r#"{"a": 1}"#))["result"], json!({ "a": 1 }));

    let mut exits = Pipes::start(&fake().arg("--exit").arg("3"));
    assert_eq!(exits.await_exit().code(), Some(3));
    for (fault, code, signal) in [("--exit-init 4", Some(4), None), ("--kill-init SEGV", None, Some(11))] {
        let (option, value) = fault.split_once(' ').unwrap();
        let mut pipes = Pipes::start(&fake().arg(option).arg(value));
        pipes.send_message(&initialize("2025-11-25", json!({})));
        let status = pipes.await_exit();
        assert_eq!((status.code(), status.signal()), (code, signal), "{fault}");
    }

    let mut silent = Pipes::start(&fake().arg("--init-silent"));
    silent.send_message(&initialize("2025-11-25", json!({})));
    assert_eq!(silent.ask(&json!({ "jsonrpc": "2.0", "id": "p", "method": "ping" }))["id"], "p");
}

#[test]
fn a_strict_child_wants_initialized_and_one_initialize() {
    let mut pipes = Pipes::start(&fake().arg("--strict"));
    assert_eq!(pipes.ask(&initialize("2025-11-25", json!({})))["result"]["serverInfo"]["name"], "fake-child");
    assert_eq!(pipes.call(1, "echo", json!({}))["error"]["code"], -32602);
    pipes.send_message(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    assert_eq!(pipes.call(1, "echo", json!({}))["id"], 1);
    assert_eq!(pipes.ask(&initialize("2025-11-25", json!({})))["error"]["code"], -32600);
}

#[test]
fn a_slow_start_waits_for_its_gate() {
    for option in ["--wait-for", "--wait-init"] {
        let mut gate = Gate::new();
        let record = Record::new();
        let server = fake().option(option, gate.path()).option("--record", record.path());
        let mut pipes = Pipes::start(&server);
        pipes.send_message(&initialize("2025-11-25", json!({})));
        if option == "--wait-init" {
            record.await_message(|message| message["method"] == "initialize");
        }
        gate.open();
        assert_eq!(pipes.next()["id"], "initialize");
        assert_eq!(record.all().keys().copied().collect::<Vec<_>>(), [pipes.process.id()]);
    }
}

#[test]
fn bytes_come_back_as_spelled() {
    let mut pipes = open();
    let arguments = r#"{"u":1e400,"id":18446744073709551616,"a": [1,{"b":"}\""}],"t":"\u00e9é"}"#;
    pipes.send(format!(
        r#"{{"params":{{"arguments":{arguments},"name":"echo"}},"method":"tools/call","id":"\u0041","jsonrpc":"2.0"}}"#
    ) + "\n");
    let line = pipes.next_text();
    assert!(line.contains(r#""id":"\u0041","#) && line.contains(arguments), "{line}");
    pipes.send(
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"error","arguments":{"error":{"code": -32042,"x":1.0}}}}"#
            .to_owned()
            + "\n",
    );
    assert_eq!(pipes.next_text(), "{\"jsonrpc\":\"2.0\",\"id\":2,\"error\":{\"code\": -32042,\"x\":1.0}}\n");
    let hex = pipes.call_text("transcript", json!({}));
    assert!(hex.contains(&"1e400".bytes().map(|byte| format!("{byte:02x}")).collect::<String>()));
    let vendor = json!({ "jsonrpc": "2.0", "id": 3, "method": "vendor/x", "params": { "p": 1 } });
    assert_eq!(pipes.ask(&vendor)["result"], json!({ "p": 1 }));
}

#[test]
fn raw_output_and_bombs_are_what_they_say() {
    let mut pipes = open();
    pipes.send_call(7, "raw", json!({ "text": "caf\u{e9} $ID\n", "encoding": "latin-1" }));
    assert_eq!(pipes.next_line().unwrap(), b"caf\xe9 7\n");
    for (kind, part) in [
        ("depth", "[[[]]]"),
        ("keys", r#""k2":0"#),
        ("number", "1e400"),
        ("duplicate-id", r#""id":999999"#),
        ("duplicate-result", r#","result":{"content":[]}"#),
        ("both", r#""error":"#),
        ("neither", r#""other":0"#),
        ("batch", "[{"),
    ] {
        pipes.send_call(8, "bomb", json!({ "kind": kind, "size": 3 }));
        let line = pipes.next_text();
        assert!(line.contains(part) && line.contains(r#""id":8"#), "{kind}: {line}");
    }
    pipes.send_call(9, "line", json!({ "size": 3_000_000, "good": true }));
    assert_eq!(pipes.next()["id"], 9);
    assert_eq!(pipes.next_line().unwrap().len(), 3_000_001);
    assert_eq!(pipes.call_text("bytes", json!({ "size": 100_000 })).len(), 100_000);
    pipes.send_call(10, "torn", json!({}));
    assert!(!pipes.next_line().unwrap().ends_with(b"\n"));
    assert_eq!(pipes.await_exit().code(), Some(0));
}

#[test]
fn answers_come_when_they_are_let() {
    let mut pipes = open();
    pipes.send_call(1, "hold", json!({ "gate": "g", "n": 1 }));
    pipes.send_call(2, "hold", json!({ "gate": "g", "n": 2 }));
    assert_eq!(pipes.call(3, "await_held", json!({ "gate": "g", "count": 2 }))["id"], 3);
    assert_eq!(pipes.call(4, "release", json!({ "gate": "g" }))["id"], 4);
    let mut held = [pipes.next(), pipes.next()];
    held.sort_by_key(|answer| answer["id"].as_i64());
    assert_eq!(held[1]["result"]["structuredContent"]["n"], 2);

    for id in 5..8 {
        pipes.send_call(id, "reverse", json!({ "of": 3 }));
    }
    assert_eq!([pipes.next(), pipes.next(), pipes.next()].map(|answer| answer["id"].clone()), [7, 6, 5]);

    let mut gate = Gate::new();
    pipes.send_call(8, "wait", json!({ "path": gate.path() }));
    assert_eq!(pipes.call(9, "sleep", json!({ "seconds": 0.01 }))["id"], 9);
    gate.open();
    assert_eq!(pipes.next()["id"], 8);
}

#[test]
fn cancellations_are_seen_and_may_be_too_late() {
    let mut pipes = open();
    pipes.send_call(1, "late", json!({}));
    pipes.send_call(2, "silent", json!({}));
    pipes.send_call(3, "await_cancelled", json!({ "count": 1 }));
    let params = json!({ "requestId": 1 });
    pipes.send_message(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }));
    let mut ids = [pipes.next()["id"].clone(), pipes.next()["id"].clone()];
    ids.sort_by_key(Value::as_i64);
    assert_eq!(ids, [1, 3]);
    let state = pipes.call(4, "state", json!({}));
    assert_eq!(state["result"]["structuredContent"]["cancelled"], json!([1]));
}

#[test]
fn answers_come_too_often_or_under_foreign_ids() {
    let mut pipes = open();
    pipes.send_call(1, "twice", json!({ "times": 2 }));
    assert_eq!([pipes.next()["id"].clone(), pipes.next()["id"].clone()], [1, 1]);
    pipes.send_call(2, "answer_as", json!({ "id": "999" }));
    assert_eq!([pipes.next()["id"].clone(), pipes.next()["id"].clone()], [json!("999"), json!(2)]);
}

#[test]
fn notifications_are_as_ordered() {
    let mut pipes = open();
    let token = Some(json!("t"));
    pipes.send_message(&call(1, "progress", json!({ "count": 2, "late": 1 }), token.clone()));
    let messages = [pipes.next(), pipes.next(), pipes.next(), pipes.next()];
    assert_eq!(messages[1]["params"]["progressToken"], "t");
    assert_eq!(messages[2]["id"], 1);
    assert_eq!(messages[3]["params"]["progress"], 3);
    pipes.send_message(&call(2, "progress", json!({ "values": [5], "token": 9 }), token.clone()));
    assert_eq!(pipes.next()["params"]["progressToken"], 9);
    pipes.next();
    pipes.send_call(3, "log", json!({ "level": "error", "count": 2, "bytes": 10 }));
    assert_eq!(pipes.next()["params"]["data"].as_str().unwrap().len(), 10);
    assert_eq!(pipes.next()["params"]["level"], "error");
    pipes.next();
    pipes.send_call(4, "notify", json!({ "method": "notifications/tools/list_changed" }));
    assert_eq!(pipes.next()["method"], "notifications/tools/list_changed");
    pipes.next();
    assert_eq!(pipes.call_text("touch", json!({ "uri": "fake://a" })), "subscribed: False");
    let subscribe =
        |uri| json!({ "jsonrpc": "2.0", "id": 5, "method": "resources/subscribe", "params": { "uri": uri } });
    assert_eq!(pipes.ask(&subscribe("fake://nowhere"))["error"]["code"], -32002);
    pipes.ask(&subscribe("fake://a"));
    pipes.send_call(6, "touch", json!({ "uri": "fake://a" }));
    assert_eq!(pipes.next()["params"]["uri"], "fake://a");
    pipes.next();
    pipes.send_message(&call(7, "batch", json!({}), token));
    assert_eq!(pipes.next()[2]["id"], 7);
}

#[test]
fn its_own_requests_carry_the_id_and_the_reply_comes_back() {
    let mut pipes = open();
    pipes.send_call(1, "ask", json!({ "method": "roots/list", "id": "e1", "params": { "x": 1 } }));
    let question = pipes.next();
    assert_eq!((&question["id"], &question["params"]["x"]), (&json!("e1"), &json!(1)));
    let reply = json!({ "jsonrpc": "2.0", "id": "e1", "error": { "code": -32601, "message": "no" } });
    assert_eq!(pipes.ask(&reply)["result"]["structuredContent"], reply);
    pipes.send_message(&reply);
    assert_eq!(pipes.call(2, "state", json!({}))["result"]["structuredContent"]["stray"], json!([reply]));
    pipes.send_call(3, "ask", json!({ "id": 4, "cancel": true }));
    assert_eq!(pipes.next()["id"], 4);
    assert_eq!(pipes.next()["params"]["requestId"], 4);
    assert_eq!(pipes.next()["id"], 3);
}

#[test]
fn lists_have_pages() {
    let mut pipes = Pipes::open(&fake().arg("--page-size").arg("20"));
    let list = |params| json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params });
    let first = pipes.ask(&list(json!({})));
    let cursor = &first["result"]["nextCursor"];
    assert_eq!(first["result"]["tools"].as_array().unwrap().len(), 20);
    let second = pipes.ask(&list(json!({ "cursor": cursor })));
    assert_ne!(second["result"]["tools"][0], first["result"]["tools"][0]);
    assert_eq!(pipes.ask(&list(json!({ "cursor": "page-999" })))["error"]["code"], -32602);
}

#[test]
fn it_dies_and_refuses_to_die_as_ordered() {
    let mut exits = open();
    exits.send_call(1, "exit", json!({ "code": 5 }));
    assert_eq!(exits.await_exit().code(), Some(5));
    let mut killed = open();
    killed.send_call(1, "signal", json!({ "signal": "ABRT" }));
    assert_eq!(killed.await_exit().signal(), Some(6));
    let mut closed = open();
    closed.send_call(1, "close", json!({ "fd": 1 }));
    assert_eq!(closed.next_line(), None);
    assert!(closed.process.try_wait().unwrap().is_none());
    closed.close();
    assert_eq!(closed.await_exit().code(), Some(0));

    let mut stubborn = Pipes::open(&fake().arg("--ignore-eof").arg("--ignore-term"));
    stubborn.send_call(1, "hold", json!({ "gate": "g" }));
    stubborn.send_call(2, "sleep", json!({ "seconds": 0.2 }));
    let process = Process::of(stubborn.process.id()).unwrap();
    stubborn.close();
    process.signal(Signal::TERM);
    assert_eq!(stubborn.next()["id"], 2, "it lives on without stdin");
    assert!(process.is_alive());
    process.kill();
    assert_eq!(stubborn.await_exit().signal(), Some(9));
}

#[test]
fn it_stops_reading_until_its_gate_opens() {
    let mut pipes = open();
    let mut gate = Gate::new();
    assert_eq!(pipes.call(1, "stop_reading", json!({ "until": gate.path() }))["id"], 1);
    // More than a pipe holds would block this test, so only a line: it must still be in the pipe.
    pipes.send_call(2, "echo", json!({}));
    gate.open();
    assert_eq!(pipes.next()["id"], 2);
}

#[test]
fn grandchildren_are_where_they_should_be() {
    for kind in ["group", "stdout", "setsid", "term", "exit"] {
        let mark = format!("mark-{kind}-{}", std::process::id());
        let mut pipes = Pipes::open(&fake().arg("--mark").arg(&mark));
        let child = Process::of(pipes.process.id()).unwrap();
        pipes.send_call(1, "spawn", json!({ "kind": kind, "seconds": 60 }));
        let marked = await_that("the grandchild", || {
            let mut marked = Process::with_argument(&mark);
            // Between its fork and its setsid it is still in the group.
            marked.retain(|process| process.id != child.id && (process.group == child.group) == (kind != "setsid"));
            marked.pop()
        });
        assert_eq!(marked.group == child.group, kind != "setsid", "{kind}");
        if kind == "exit" {
            assert_eq!(pipes.await_exit().code(), Some(0));
        } else {
            pipes.next();
            pipes.close();
            pipes.await_exit();
        }
        if matches!(kind, "stdout" | "exit") {
            assert!(pipes.stdout_is_open(), "{kind}");
        } else {
            assert_eq!(pipes.next_line(), None, "{kind}");
        }
        assert!(marked.is_alive(), "{kind}");
        marked.kill();
    }
}

#[test]
fn it_tells_what_it_sees() {
    let mut pipes = open();
    let seen = pipes.call(1, "dump", json!({}))["result"]["structuredContent"].clone();
    assert_eq!(seen["pid"], pipes.process.id());
    assert!(seen["env"]["PATH"].is_string() && seen["proc"]["fd"]["0"].is_string(), "{seen}");
    let own = pipes.call(2, "dump", json!({ "pid": std::process::id() }));
    assert!(own["result"]["structuredContent"]["proc"]["cmdline"].as_str().unwrap().contains("integration"));
    for (kind, amount) in [("memory", 1000), ("files", 10), ("cpu", 0)] {
        assert_eq!(pipes.call_text("consume", json!({ "kind": kind, "amount": amount })), "taken");
    }
    assert_eq!(pipes.call_text("stderr", json!({ "bytes": 3_000_000, "text": "a" })), "written");
}

#[test]
fn the_table_names_every_tool() {
    let source = include_str!("fake_child.py");
    let (_, table) = source.split_once("\nTool  ").unwrap();
    let (table, _) = table.split_once("\"\"\"").unwrap();
    let named = |tool: &str| {
        let words = |line: &str| line.split([',', ' ']).any(|word| word == tool);
        table.lines().filter_map(|line| line.get(..21)).any(words)
    };
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} });
    let listed = open().ask(&list)["result"]["tools"].clone();
    for tool in listed.as_array().unwrap() {
        let name = tool["name"].as_str().unwrap();
        assert!(named(name), "{name}");
    }
}
