//! `gangway demo-server` as a process: the real binary over pipes.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::child::Server;
use crate::pipes::Pipes;
use crate::session::{call, initialize};

#[test]
fn it_answers_over_pipes_and_ends_with_stdin() {
    let mut pipes = Pipes::open(&Server::demo("demo"));
    let slow = call(1, "slow", json!({ "seconds": 3600 }), Some(json!("t")));
    let echo = |id| call(id, "echo", json!({ "text": "é" }), None);
    let backlog: String = (2..200).map(|id| format!("{}\n", echo(id))).collect();
    pipes.send(format!("{slow}\n{backlog}"));
    for id in 2..200 {
        let answer = pipes.next();
        assert_eq!(answer["id"], id);
        assert_eq!(answer["result"]["structuredContent"], json!({ "text": "é" }));
    }
    let payload = pipes.call_text("payload", json!({ "bytes": 3_000_000 }));
    assert_eq!(payload.len(), 3_000_000);
    // The slow call still runs; the end of stdin ends the process all the same.
    pipes.close();
    assert_eq!(pipes.await_exit().code(), Some(0));
    assert_eq!(pipes.next_line(), None);
}

#[test]
fn it_ends_quietly_when_nobody_reads() {
    let mut command = Server::demo("demo").command();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    drop(process.stdout.take());
    let mut stdin = process.stdin.take().unwrap();
    let line: Value = initialize("2025-11-25", json!({}));
    std::io::Write::write_all(&mut stdin, format!("{line}\n").as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
