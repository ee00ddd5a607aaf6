//! A child's life: its end in every way it may come, its family, what it leaves behind.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::child::{FAKE_CHILD, Gate, Process, Server};
use crate::client::{Connection, Request, Response};
use crate::gateway::{Gateway, await_that};
use crate::session::{Session, initialize};

/// A server whose children are the sessions' alone, so that each can be counted.
fn lone() -> Server {
    Server::fake("fake").key("check_on_start = false\npool.min_idle = 0")
}

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({}))
}

/// `initialize` as exact bytes; its answer, whatever it is.
fn start(gateway: &Gateway, path: &str) -> Response {
    Request::post(path, initialize("2025-11-25", json!({})).to_string()).send(gateway.address())
}

fn child_pid(session: &Session) -> u32 {
    let state = session.call("pid", "state", json!({}));
    state["result"]["structuredContent"]["pid"].as_u64().unwrap().try_into().unwrap()
}

#[track_caller]
fn assert_ended(session: &Session) {
    let late = session.post(r#"{"jsonrpc":"2.0","id":"late","method":"ping"}"#);
    assert_eq!(late.head.status, 404, "{late:?}");
}

#[track_caller]
fn assert_gone(answer: &Value) {
    assert_eq!(answer["error"]["code"], 502, "{answer}");
    assert_eq!(answer["error"]["data"]["reason"], "child_gone", "{answer}");
    assert_eq!(answer["error"]["data"]["executed"], "maybe", "{answer}");
}

/// F:A03, C:B18, R:D17: every call in flight gets one error, on whatever it is answered; then the
/// session is unknown, so that its client starts again.
#[test]
fn a_killed_child_fails_its_calls_once_and_ends_its_session() {
    let gateway = Gateway::start(&lone().toml());
    let bystander = open(&gateway);
    for end in ["kill", "exit", "signal"] {
        let session = open(&gateway);
        let mut stream = session.send_call_with_token(1, "raw", json!({ "text": progress_line() }), "token").stream();
        assert_eq!(stream.next_message()["method"], "notifications/progress");
        let mut get = session.get();
        let plain: Vec<_> = (2..4).map(|id| session.send_call(id, "hold", json!({ "gate": "never" }))).collect();
        session.call(4, "await_held", json!({ "gate": "never", "count": 2 }));
        let began = Instant::now();
        match end {
            "kill" => Process::of(child_pid(&session)).unwrap().kill(),
            "exit" => assert_gone(&session.call(5, "exit", json!({ "code": 1 }))),
            _ => assert_gone(&session.call(5, "signal", json!({ "signal": "SEGV" }))),
        }
        for call in plain {
            let answer = call.finish();
            assert_eq!(answer.messages().len(), 1, "{answer:?}");
            assert_gone(&answer.message());
        }
        assert_gone(&stream.next_message());
        assert_eq!(stream.next_event_or_end(), None);
        while get.next_event_or_end().is_some() {}
        assert!(began.elapsed() < Duration::from_secs(10));
        assert_ended(&session);
    }
    assert_eq!(bystander.call(1, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    gateway.await_metric("child_exits_total", &[("reason", "signal")], |exits| exits == 2.0);
    gateway.await_metric("child_exits_total", &[("reason", "exit")], |exits| exits == 1.0);
    gateway.await_metric("sessions_closed_total", &[("reason", "child_gone")], |closed| closed == 3.0);
}

/// A progress notification of the call that asked for it, and no answer.
fn progress_line() -> &'static str {
    "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":$TOKEN,\"progress\":1}}\n"
}

/// F:A07, R:D17: a pipe that a child closes is its end, though it lives on; it is then stopped.
#[test]
fn a_closed_pipe_is_the_end_of_its_child() {
    let server = lone().arg("--ignore-eof").key("timeouts.close = \"100ms\"");
    let gateway = Gateway::start(&server.toml());
    let session = open(&gateway);
    let held = session.send_call(1, "hold", json!({ "gate": "never" }));
    session.call(2, "await_held", json!({ "gate": "never" }));
    assert_gone(&session.call(3, "close", json!({ "fd": 1 })));
    assert_gone(&held.finish().message());
    assert_ended(&session);
    gateway.await_descendants(0);

    let session = open(&gateway);
    let held = session.send_call(1, "hold", json!({ "gate": "never" }));
    session.call(2, "await_held", json!({ "gate": "never" }));
    let closing = session.send_call(3, "close", json!({ "fd": 0 }));
    // Its end shows when something is written; until the child has closed it the write succeeds.
    let last = await_that("a write that fails", || {
        let answer = session.send_call(4, "hold", json!({ "gate": "never" }));
        Some(answer).filter(|_| gateway.metrics().count("sessions", &[]) == 0.0)
    });
    drop(last);
    assert_gone(&held.finish().message());
    assert_gone(&closing.finish().message());
    assert_ended(&session);
    gateway.await_descendants(0);
}

/// F:A08, R:D16, C:B26: end of input, then TERM, then KILL; the client waits for none of them.
#[test]
fn a_child_is_stopped_step_by_step() {
    // A step that is to do its work has all the time a busy machine may take.
    let steps: [(&[&str], &str, &str, &str); 3] = [
        (&[], "eof", "1m", "1m"),
        (&["--ignore-eof"], "term", "1s", "1m"),
        (&["--ignore-eof", "--ignore-term"], "kill", "1s", "300ms"),
    ];
    for (options, step, close, term) in steps {
        let server = options.iter().fold(lone(), |server, option| server.arg(option));
        let server = server.key(&format!("timeouts.close = \"{close}\"\ntimeouts.term = \"{term}\""));
        let gateway = Gateway::start(&server.toml());
        let session = open(&gateway);
        let child = Process::of(child_pid(&session)).unwrap();
        let began = Instant::now();
        assert_eq!(session.delete().status(), 204);
        let took = began.elapsed();
        if step != "eof" {
            assert!(child.is_alive(), "the answer waited {took:?} for the stop");
        }
        let exit = gateway.await_event("child_exit", |_| true);
        assert_eq!((exit["step"].as_str(), exit["reason"].as_str()), (Some(step), Some("stopped")), "{exit}");
        gateway.await_descendants(0);
        assert!(began.elapsed() < Duration::from_secs(10));
        gateway.await_metric("child_kills_total", &[("step", step)], |kills| kills == 1.0);
    }
}

/// F:A05, R:D16: a stopped (SIGSTOP) child times out alone; once it goes on its session does too.
#[test]
fn a_frozen_child_holds_up_nobody() {
    let gateway = Gateway::start(&lone().key("timeouts.call_idle = \"500ms\"").toml());
    let bystander = open(&gateway);
    let session = open(&gateway);
    let child = Process::of(child_pid(&session)).unwrap();
    child.signal(Signal::STOP);
    let frozen = session.send_call(1, "echo", json!({ "late": true }));
    assert_eq!(bystander.call(1, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    let answer = frozen.finish().message();
    assert_eq!(
        (&answer["error"]["code"], &answer["error"]["data"]["reason"]),
        (&json!(504), &json!("timeout")),
        "{answer}"
    );
    child.signal(Signal::CONT);
    // The answer that was timed out comes now, and belongs to nobody.
    gateway.await_metric("unmatched_responses_total", &[("from", "child")], |count| count == 1.0);
    assert_eq!(session.call(2, "echo", json!({ "a": 2 }))["result"]["structuredContent"]["a"], 2);
    child.signal(Signal::STOP);
    session.delete();
    let exit = gateway.await_event("child_exit", |_| true);
    assert_eq!(exit["step"], "term", "who is stopped must be woken to be ended: {exit}");
}

/// F:A06, R:D30, R:D09: a child that reads no more fills its own queue; the next call is refused
/// in-band, a queued one can be taken back, and nobody else waits.
#[test]
fn a_child_that_stops_reading_fills_its_own_queue_only() {
    let gateway = Gateway::start(&lone().key("queue.messages = 8").toml());
    let bystander = open(&gateway);
    let session = open(&gateway);
    let mut gate = Gate::new();
    session.call(1, "stop_reading", json!({ "until": gate.path() }));
    let big = "x".repeat(64 * 1024);
    let queued = |count: f64| gateway.await_metric("queue_messages", &[("server", "fake")], |value| value == count);
    // The first may go into the pipe, whole or in part; eight more fill the queue.
    let mut waiting = Vec::new();
    while gateway.metrics().count("queue_messages", &[]) < 8.0 {
        let id = waiting.len() + 10;
        waiting.push((id, session.send_call(id, "echo", json!({ "id": id, "big": big }))));
        gateway.await_metric("requests_in_flight", &[("server", "fake")], |calls| calls == waiting.len() as f64);
        assert!(waiting.len() < 12, "the queue takes more than it should");
    }
    let refused = session.call(2, "echo", json!({ "big": big }));
    let error = &refused["error"];
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(503), &json!("busy")), "{refused}");
    assert_eq!(error["data"]["executed"], "no", "{refused}");
    assert!(error["data"]["retry_after_ms"].as_u64().unwrap() > 0, "{refused}");
    assert_eq!(bystander.call(1, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    // A full queue refuses no notification to the client's face either.
    assert_eq!(session.notify("notifications/roots/list_changed", json!({})).status(), 202);

    let (taken_back, call) = waiting.pop().unwrap();
    assert_eq!(session.notify("notifications/cancelled", json!({ "requestId": taken_back })).status(), 202);
    assert_eq!(call.finish().message()["error"]["data"]["reason"], "cancelled");
    queued(7.0);
    gate.open();
    for (id, call) in waiting {
        assert_eq!(call.finish().message()["result"]["structuredContent"]["id"], id);
    }
    queued(0.0);
    let read = session.call_text(3, "transcript", json!({}));
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(!read.contains(&hex(&format!("\"id\":{taken_back},\"big\""))), "the cancelled call was written");
    assert!(!read.contains(&hex("notifications/cancelled")), "a call never sent needs no cancellation");
}

/// F:A09, C:B20: whatever a child started goes with it, be it wrapped in shells, deaf to TERM, or
/// holding its pipes.
#[test]
fn grandchildren_go_with_their_child() {
    let mark = format!("family-{}", std::process::id());
    let wrapped = format!("sh -c 'python3 -I -S {FAKE_CHILD} --mark {mark} --grandchild term; true'; true");
    let toml = [
        lone().option("--mark", &mark).key("timeouts.close = \"200ms\"\ntimeouts.term = \"200ms\"").toml(),
        Server::of("wrapped", "sh").arg("-c").arg(wrapped).key("check_on_start = false\npool.min_idle = 0").toml(),
    ];
    let gateway = Gateway::start(&toml.concat());
    for _ in 0..5 {
        let session = open(&gateway);
        for kind in ["group", "term", "stdout"] {
            session.call_text(kind, "spawn", json!({ "kind": kind }));
        }
        let wrapped = Session::open(&gateway, "/wrapped/mcp", "2025-11-25", json!({}));
        await_that("both families", || (Process::with_argument(&mark).len() >= 6).then_some(()));
        assert_eq!(session.delete().status(), 204);
        assert_eq!(wrapped.delete().status(), 204);
    }
    await_that("the end of every family", || Process::with_argument(&mark).is_empty().then_some(()));
    gateway.await_descendants(0);
}

/// F:A11: the end of a child is its process's, not its pipe's: a grandchild that holds stdout
/// keeps no session alive.
#[test]
fn a_grandchild_that_holds_stdout_keeps_nothing_alive() {
    let mark = format!("holder-{}", std::process::id());
    let gateway = Gateway::start(&lone().option("--mark", &mark).toml());
    let session = open(&gateway);
    assert_gone(&session.call(1, "spawn", json!({ "kind": "exit" })));
    assert_ended(&session);
    await_that("the grandchild's end", || Process::with_argument(&mark).is_empty().then_some(()));
    gateway.await_descendants(0);
}

/// F:A11: nor does one that left the group and goes on writing to it.
#[test]
fn a_grandchild_that_keeps_writing_keeps_nothing_alive() {
    let mark = format!("chatter-{}", std::process::id());
    let gateway = Gateway::start(&lone().option("--mark", &mark).toml());
    let session = open(&gateway);
    let mut listening = session.get();
    session.call_text(1, "spawn", json!({ "kind": "chatter" }));
    // It writes already, and it is not the child.
    assert_eq!(listening.next_message()["method"], "notifications/message");
    assert_gone(&session.call(2, "exit", json!({ "code": 0 })));
    // The calls have their answers first.
    gateway.await_metric("sessions_closed_total", &[("reason", "child_gone")], |closed| closed == 1.0);
    assert_ended(&session);
    await_that("the grandchild's end", || Process::with_argument(&mark).is_empty().then_some(()));
    gateway.await_descendants(0);
}

/// F:A12: children end with a gateway that is killed, even those that heed neither end of input nor TERM.
#[test]
fn children_end_with_a_killed_gateway() {
    let mark = format!("orphan-{}", std::process::id());
    let stubborn = Server::fake("stubborn").option("--mark", &mark).arg("--ignore-eof").arg("--ignore-term");
    let toml = lone().option("--mark", &mark).toml() + &stubborn.toml();
    let mut gateway = Gateway::start(&toml);
    let sessions: Vec<_> = ["/fake/mcp", "/stubborn/mcp"]
        .iter()
        .cycle()
        .take(8)
        .map(|path| Session::open(&gateway, path, "2025-11-25", json!({})))
        .collect();
    sessions[0].call_text(1, "spawn", json!({ "kind": "group", "seconds": 1 }));
    await_that("all of them", || (Process::with_argument(&mark).len() >= 9).then_some(()));
    gateway.signal(Signal::KILL);
    gateway.await_exit();
    await_that("the end of every child", || Process::with_argument(&mark).is_empty().then_some(()));
    let again = Gateway::start(&toml);
    open(&again).call_text(1, "release", json!({ "gate": "g" }));
}

/// F:A13, C:B22: a hundred sessions leave no zombie, no orphan, no descriptor and no thread.
#[test]
fn a_hundred_sessions_leave_nothing() {
    let server = Server::demo("demo").key("check_on_start = false\npool.min_idle = 0");
    let gateway = Gateway::start(&server.toml());
    let round = |count: usize| {
        let sessions: Vec<_> =
            (0..count).map(|_| Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}))).collect();
        let _streams: Vec<_> = sessions.iter().map(Session::get).collect();
        assert!(sessions.iter().all(|session| session.delete().status() == 204));
    };
    round(10);
    gateway.await_descendants(0);
    gateway.await_metric("connections", &[("listener", "main")], |open| open == 0.0);
    let (descriptors, threads) = (gateway.fd_count(), gateway.threads());
    for _ in 0..10 {
        round(10);
    }
    gateway.await_descendants(0);
    gateway.await_metric("connections", &[("listener", "main")], |open| open == 0.0);
    await_that("descriptors back", || (gateway.fd_count() <= descriptors + 5).then_some(()));
    assert!(gateway.threads() <= threads + 2, "{threads} threads before, {} after", gateway.threads());
    let metrics = gateway.metrics();
    for name in ["sessions", "streams", "children", "requests_in_flight", "memory_used_bytes"] {
        assert_eq!(metrics.count(name, &[]), 0.0, "{name}");
    }
}

/// C:B33: TERM is heeded with streams open and a call running: unready, no new session, the call
/// ends well, the streams end, the children go, exit 0.
#[test]
fn term_lets_calls_finish_and_ends_streams() {
    let toml = format!("[drain]\nprestop = \"0s\"\ncalls = \"20s\"\n{}", lone().toml());
    let mut gateway = Gateway::start(&toml);
    let session = open(&gateway);
    let other = open(&gateway);
    let gate = json!({ "gate": "g" });
    let call = session.send_call(1, "hold", gate.clone());
    session.call(2, "await_held", gate);
    let streams = [session.get(), other.get()];
    let children = gateway.descendants();
    let (child, began) = (child_pid(&session), Instant::now());
    gateway.signal(Signal::TERM);
    gateway.await_event("drain_start", |_| true);
    await_that("unreadiness", || (Request::get("/readyz").send(gateway.admin()).status() == 503).then_some(()));
    let refused =
        await_that("a refusal", || Some(start(&gateway, "/fake/mcp")).filter(|response| response.status() == 503));
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    let declined = session.call(3, "echo", json!({}));
    assert_eq!(declined["error"]["data"]["reason"], "draining", "{declined}");
    // Its gate opens by its own hand only: the gateway takes no more calls.
    Process::of(child).unwrap().signal(Signal::KILL);
    assert_gone(&call.finish().message());
    for mut stream in streams {
        while stream.next_event_or_end().is_some() {}
    }
    assert_eq!(gateway.await_exit().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(15), "it waited for its deadline");
    assert!(children.iter().all(|child| !child.is_alive()));
}

/// C:B33: a second signal waits for nobody.
#[test]
fn a_second_term_ends_at_once() {
    let mark = format!("stubborn-{}", std::process::id());
    let server = lone().option("--mark", &mark).arg("--ignore-eof").arg("--ignore-term");
    let mut gateway = Gateway::start(&server.toml());
    let session = open(&gateway);
    let _call = session.send_call(1, "hold", json!({ "gate": "never" }));
    session.call(2, "await_held", json!({ "gate": "never" }));
    gateway.signal(Signal::TERM);
    gateway.await_event("drain_start", |_| true);
    let began = Instant::now();
    gateway.signal(Signal::TERM);
    gateway.await_exit();
    assert!(began.elapsed() < Duration::from_secs(4), "it took {:?}", began.elapsed());
    await_that("the child's end", || Process::with_argument(&mark).is_empty().then_some(()));
}

/// C:B22: a client that vanished without a word is forgotten after its time, and its child with it.
#[test]
fn vanished_clients_leave_no_child() {
    let gateway = Gateway::start(&format!("[sessions]\nidle = \"500ms\"\n{}", lone().toml()));
    for _ in 0..4 {
        let session = open(&gateway);
        let mut connection = Connection::open(gateway.address());
        connection.request(&session.get_request());
        connection.head();
        connection.reset();
    }
    gateway.await_metric("sessions_closed_total", &[("reason", "idle")], |closed| closed == 4.0);
    gateway.await_descendants(0);
}
