//! The child of the play: it reads real lines, answers what the gateway asks for itself, and everything else when told to.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;

use super::guest::{Expected, Made};
use crate::upstream::played::Part;

const GREETING: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"played","version":"1"}}"#;

/// Progress under a token, as it is spelled.
pub(super) fn progress_of(token: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
    )
}

/// A call the child has not answered.
struct Held {
    number: u64,
    call: usize,
}

/// A task.
pub(super) struct Task {
    id: String,
    number: u64,
    call: usize,
    pub(super) guest: usize,
    /// Its owner is there, and learned of it.
    is_owned: bool,
    is_over: bool,
}

impl Task {
    fn report(&self) -> String {
        let status = if self.is_over { "cancelled" } else { "working" };
        format!(r#"{{"taskId":"{}","status":"{status}","ttl":null}}"#, self.id)
    }

    /// What it answers to a question about the task.
    fn answer(&self, method: &str, id: &str) -> String {
        let member = match method {
            "tasks/get" => format!(r#""result":{}"#, self.report()),
            "tasks/cancel" if self.is_over => r#""error":{"code":-32602,"message":"it is over"}"#.to_owned(),
            "tasks/cancel" => format!(r#""result":{}"#, self.report().replace("working", "cancelled")),
            "tasks/result" if self.is_over => r#""result":{"content":[]}"#.to_owned(),
            _ => panic!("{method} of {} is not asked", self.id),
        };
        format!(r#"{{"jsonrpc":"2.0","id":{id},{member}}}"#)
    }
}

/// One process.
pub(super) struct Player {
    stdin: BufReader<pipe::Receiver>,
    part: Part,
    held: Vec<Held>,
    tasks: Vec<Task>,
    subscribed: BTreeSet<String>,
    pings: usize,
    /// Every number it read: none is used twice.
    seen: HashSet<u64>,
    /// Requests about tasks.
    pub(super) queries: usize,
    /// The call it answered last, if somebody waited for that.
    last: Option<usize>,
}

impl Player {
    pub(super) fn new(stdin: pipe::Receiver, part: Part) -> Player {
        Player {
            stdin: BufReader::new(stdin),
            part,
            held: Vec::new(),
            tasks: Vec::new(),
            subscribed: BTreeSet::new(),
            pings: 0,
            seen: HashSet::new(),
            queries: 0,
            last: None,
        }
    }

    pub(super) fn die(self) {
        self.part.die();
    }

    /// Writes a line without letting anybody run.
    pub(super) fn write(&self, line: &str) {
        let line = format!("{line}\n");
        let written = rustix::io::write(&self.part.stdout, line.as_bytes()).expect("the gateway reads");
        assert_eq!(written, line.len(), "the pipe has room");
    }

    /// Reads until everything it wrote before was read. Whether it answered anything meanwhile.
    pub(super) async fn settle(&mut self, calls: &mut [Made]) -> bool {
        self.pings += 1;
        self.write(&format!(r#"{{"jsonrpc":"2.0","id":"p{}","method":"ping"}}"#, self.pings));
        let mut has_answered = false;
        loop {
            let mut line = String::new();
            let read = self.stdin.read_line(&mut line).await.expect("a line");
            assert!(read > 0, "the gateway closed its end");
            let message: Value = line.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
            if message["id"] == format!("p{}", self.pings) {
                return has_answered;
            }
            if let Some(answer) = self.take(&message, calls) {
                self.write(&answer);
                has_answered = true;
            }
        }
    }

    /// Reads a message. Gives the answer to what it answers by itself.
    fn take(&mut self, message: &Value, calls: &mut [Made]) -> Option<String> {
        let (method, params) = (message["method"].as_str().expect("it asks nothing"), &message["params"]);
        let Some(number) = message["id"].as_u64() else {
            match method {
                "notifications/initialized" => {}
                "notifications/cancelled" => self.take_cancellation(params, calls),
                _ => panic!("nobody else's business: {message}"),
            }
            return None;
        };
        assert!(self.seen.insert(number), "a number is used twice: {message}");
        let uri = || params["uri"].as_str().expect("a URI").to_owned();
        let result = match method {
            "initialize" => GREETING.to_owned(),
            "resources/subscribe" => {
                assert!(self.subscribed.insert(uri()), "it is told once: {message}");
                "{}".to_owned()
            }
            "resources/unsubscribe" => {
                assert!(self.subscribed.remove(&uri()), "it is told once: {message}");
                "{}".to_owned()
            }
            "tools/call" => {
                self.take_call(number, params, calls);
                return None;
            }
            _ => return Some(self.take_query(number, method, params)),
        };
        Some(format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{result}}}"#))
    }

    fn take_call(&mut self, number: u64, params: &Value, calls: &mut [Made]) {
        let call = params["arguments"]["nonce"].as_u64().expect("a nonce") as usize;
        let made = &mut calls[call];
        assert!(made.expected.is_none(), "call {call} is over, and is sent");
        assert!(!made.is_with_child, "call {call} is sent twice");
        made.is_with_child = true;
        let token = if made.token.is_some() { json!(number) } else { Value::Null };
        assert_eq!(params["_meta"]["progressToken"], token, "a token of its own");
        assert_eq!(params.get("task").is_some(), made.is_task);
        self.held.push(Held { number, call });
    }

    fn take_cancellation(&mut self, params: &Value, calls: &[Made]) {
        let number = params["requestId"].as_u64().expect("a number");
        assert!(self.seen.contains(&number), "it is told of what it knows");
        if let Some(held) = self.held.iter().find(|held| held.number == number) {
            let made = &calls[held.call];
            assert!(made.expected.is_some(), "call {} is cancelled, and nobody gave it up", held.call);
            assert!(!made.is_task, "a task is cancelled otherwise");
        }
    }

    fn take_query(&mut self, number: u64, method: &str, params: &Value) -> String {
        self.queries += 1;
        let id = params["taskId"].as_str().expect("a task");
        let task = self.tasks.iter_mut().find(|task| task.id == id).expect("one it knows");
        let answer = task.answer(method, &number.to_string());
        task.is_over |= method == "tasks/cancel";
        answer
    }

    /// Calls it has that somebody waits for.
    pub(super) fn busy(&self, calls: &[Made]) -> usize {
        self.held.iter().filter(|held| calls[held.call].expected.is_none()).count()
    }

    pub(super) fn has_calls(&self) -> bool {
        !self.held.is_empty()
    }

    /// Answers one of its calls; one that asks for a task mostly becomes one.
    pub(super) fn answer(&mut self, which: usize, calls: &mut [Made]) -> Option<String> {
        if self.held.is_empty() {
            return None;
        }
        let Held { number, call } = self.held.remove(which % self.held.len());
        let made = &mut calls[call];
        let is_awaited = made.expected.is_none();
        let result = if made.is_task && which % 5 != 4 {
            let id = format!("t{}", self.tasks.len() + 1);
            let task = Task { id, number, call, guest: made.guest, is_owned: is_awaited, is_over: false };
            let result = format!(r#"{{"task":{}}}"#, task.report());
            self.tasks.push(task);
            result
        } else {
            format!(r#"{{"nonce":{call},"n":1.0}}"#)
        };
        if is_awaited {
            made.expected =
                Some(Expected::Answer(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, made.id)));
        }
        self.last = is_awaited.then_some(call);
        Some(format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{result}}}"#))
    }

    /// The answer it wrote last comes too late. Gives the call.
    pub(super) fn take_back_last(&mut self, calls: &mut [Made]) -> Option<usize> {
        let call = self.last.take()?;
        calls[call].expected = None;
        self.disown(|task| task.call == call);
        Some(call)
    }

    /// Progress of a call it has, and that call.
    pub(super) fn progress(&self, which: usize) -> Option<(usize, String)> {
        let held = self.held.get(which % self.held.len().max(1))?;
        Some((held.call, progress_of(&held.number.to_string())))
    }

    /// The owner of these tasks is not there any more.
    pub(super) fn disown(&mut self, which: impl Fn(&Task) -> bool) {
        for task in self.tasks.iter_mut().filter(|task| which(task)) {
            task.is_owned = false;
        }
    }

    /// Tasks that nobody owns and that go on.
    pub(super) fn unwanted(&self) -> Vec<&str> {
        let unwanted = self.tasks.iter().filter(|task| !task.is_owned && !task.is_over);
        unwanted.map(|task| &*task.id).collect()
    }

    /// Whether it may log about anybody else's task, one that it has yet to make included.
    pub(super) fn works_for_other(&self, guest: usize, calls: &[Made]) -> bool {
        let mut held = self.held.iter().map(|held| &calls[held.call]).filter(|made| made.is_task);
        let mut live = self.tasks.iter().filter(|task| task.is_owned && !task.is_over);
        held.any(|made| made.guest != guest) || live.any(|task| task.guest != guest)
    }

    /// What a session asks about a task, and its answer; none if the task is not its.
    pub(super) fn expect_query(&self, guest: usize, id: &str, which: usize) -> (&'static str, Option<String>) {
        let method = ["tasks/get", "tasks/cancel", "tasks/result"][which % 3];
        let owned = self.tasks.iter().find(|task| task.id == id && task.is_owned && task.guest == guest);
        match owned {
            // Its result is waited for.
            Some(task) if method == "tasks/result" && !task.is_over => {
                ("tasks/get", Some(task.answer("tasks/get", "\"ask\"")))
            }
            _ => (method, owned.map(|task| task.answer(method, "\"ask\""))),
        }
    }

    /// Says how a task is, which may be over with that. Gives its owner, and what it says.
    pub(super) fn end_task(&mut self, which: usize) -> Option<(Option<usize>, String)> {
        let at = which % self.tasks.len().max(1);
        let task = self.tasks.get_mut(at)?;
        task.is_over |= which.is_multiple_of(2);
        let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{}}}"#, task.report());
        Some((task.is_owned.then_some(task.guest), text))
    }

    /// A task whose progress is to be told: its number, the call it was, and whether anybody is to hear it.
    pub(super) fn task_progress(&self, which: usize) -> Option<(u64, usize, bool)> {
        let task = self.tasks.get(which % self.tasks.len().max(1))?;
        Some((task.number, task.call, task.is_owned && !task.is_over))
    }

    pub(super) fn subscribed(&self) -> BTreeSet<&str> {
        self.subscribed.iter().map(String::as_str).collect()
    }
}
