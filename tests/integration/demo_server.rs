//! `gangway demo-server` as a process: the real binary over pipes.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::gateway::{BINARY, await_that};
use crate::session::{call, initialize};

struct Pipes {
    process: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Pipes {
    fn open() -> Self {
        let mut process = Command::new(BINARY)
            .arg("demo-server")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut pipes = Self {
            stdin: process.stdin.take(),
            process,
            lines,
        };
        let answer = pipes.ask(&initialize("2025-11-25", json!({})));
        assert_eq!(answer["result"]["serverInfo"]["name"], "gangway-demo");
        pipes
    }

    fn send(&mut self, text: &str) {
        self.stdin
            .as_mut()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    fn next(&mut self) -> Value {
        self.lines.next().unwrap().unwrap().parse().unwrap()
    }

    fn ask(&mut self, message: &Value) -> Value {
        self.send(&format!("{message}\n"));
        self.next()
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn it_answers_over_pipes_and_ends_with_stdin() {
    let mut pipes = Pipes::open();
    let slow = call(1, "slow", json!({ "seconds": 3600 }), Some(json!("t")));
    let backlog: String = (2..200)
        .map(|id| format!("{}\n", call(id, "echo", json!({ "text": "é" }), None)))
        .collect();
    pipes.send(&format!("{slow}\n{backlog}"));
    for id in 2..200 {
        let answer = pipes.next();
        assert_eq!(answer["id"], id);
        assert_eq!(
            answer["result"]["structuredContent"],
            json!({ "text": "é" })
        );
    }
    let payload = pipes.ask(&call(200, "payload", json!({ "bytes": 3_000_000 }), None));
    assert_eq!(
        payload["result"]["content"][0]["text"]
            .as_str()
            .unwrap()
            .len(),
        3_000_000
    );
    // The slow call still runs; the end of stdin ends the process all the same.
    drop(pipes.stdin.take());
    let status = await_that("the end of the demo server", || {
        pipes.process.try_wait().unwrap()
    });
    assert_eq!(status.code(), Some(0));
    assert!(
        pipes.lines.next().is_none(),
        "nothing after the last answer"
    );
}

#[test]
fn it_ends_quietly_when_nobody_reads() {
    let mut process = Command::new(BINARY)
        .arg("demo-server")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(process.stdout.take());
    let mut stdin = process.stdin.take().unwrap();
    stdin
        .write_all(format!("{}\n", initialize("2025-11-25", json!({}))).as_bytes())
        .unwrap();
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
