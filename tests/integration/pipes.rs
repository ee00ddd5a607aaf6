//! A child driven directly over its pipes, without a gateway: to try the children themselves.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;

use serde_json::{Value, json};

use crate::PATIENCE;
use crate::child::Server;
use crate::gateway::await_that;
use crate::session::{call, initialize};

/// A child and both ends of its pipes. Killed when dropped.
pub struct Pipes {
    pub process: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
}

impl Pipes {
    /// Starts a child.
    pub fn start(server: &Server) -> Self {
        let mut process =
            server.command().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            loop {
                let mut line = Vec::new();
                let count = stdout.read_until(b'\n', &mut line).unwrap_or(0);
                if count == 0 || sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { stdin: process.stdin.take(), process, lines }
    }

    /// Starts a child and shakes hands.
    #[track_caller]
    pub fn open(server: &Server) -> Self {
        let mut pipes = Self::start(server);
        let answer = pipes.ask(&initialize("2025-11-25", json!({})));
        assert!(answer["result"]["protocolVersion"].is_string(), "{answer}");
        pipes.send_message(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        pipes
    }

    /// Writes exactly these bytes.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stdin.as_mut().expect("stdin is open").write_all(bytes.as_ref()).unwrap();
    }

    /// Writes a message and its newline.
    #[track_caller]
    pub fn send_message(&mut self, message: &Value) {
        self.send(format!("{message}\n"));
    }

    /// Writes a call and leaves the answer to be read.
    #[track_caller]
    pub fn send_call(&mut self, id: impl Into<Value>, tool: &str, arguments: Value) {
        self.send_message(&call(id, tool, arguments, None));
    }

    /// The next line with its end; `None` when the child closed its stdout.
    #[track_caller]
    pub fn next_line(&mut self) -> Option<Vec<u8>> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line within {PATIENCE:?}"),
        }
    }

    /// Whether somebody still holds the other end of stdout, and everything written was read.
    pub fn stdout_is_open(&self) -> bool {
        matches!(self.lines.try_recv(), Err(TryRecvError::Empty))
    }

    /// The next line as text.
    #[track_caller]
    pub fn next_text(&mut self) -> String {
        String::from_utf8(self.next_line().expect("the child closed its stdout")).unwrap()
    }

    /// The next message.
    #[track_caller]
    pub fn next(&mut self) -> Value {
        let text = self.next_text();
        text.parse().unwrap_or_else(|error| panic!("{error} in {text:?}"))
    }

    /// Writes a message and reads the next one.
    #[track_caller]
    pub fn ask(&mut self, message: &Value) -> Value {
        self.send_message(message);
        self.next()
    }

    /// Calls a tool and reads the next message.
    #[track_caller]
    pub fn call(&mut self, id: impl Into<Value>, tool: &str, arguments: Value) -> Value {
        self.ask(&call(id, tool, arguments, None))
    }

    /// Calls a tool and reads the text of its answer.
    #[track_caller]
    pub fn call_text(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.call("text", tool, arguments);
        let text = answer["result"]["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("no text: {answer}")).to_owned()
    }

    /// Ends the child's stdin.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// Waits for the child's end.
    #[track_caller]
    pub fn await_exit(&mut self) -> ExitStatus {
        await_that("the end of the child", || self.process.try_wait().unwrap())
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
