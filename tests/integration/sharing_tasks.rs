//! Mode `shared`: tasks of 2025-11-25, of which a child knows ids and no owners.

use serde_json::{Value, json};

use crate::child::{Process, Record, Server};
use crate::gateway::{Gateway, await_that};
use crate::session::{Answer, Exchange, Session, call};
use crate::sharing::{open, read, shared, state};

const STATUS: &str = "notifications/tasks/status";

fn with_tasks() -> Server {
    shared().arg("--tasks")
}

/// A call that asks to become a task.
fn augmented(id: impl Into<Value>, tool: &str, arguments: Value, ttl: Value, token: Option<Value>) -> String {
    let mut message = call(id, tool, arguments, token);
    message["params"]["task"] = json!({ "ttl": ttl });
    message.to_string()
}

/// Starts a task; its id.
fn begin(session: &Session, tool: &str, arguments: Value) -> String {
    begin_for(session, tool, arguments, json!(60_000))
}

fn begin_for(session: &Session, tool: &str, arguments: Value, ttl: Value) -> String {
    let answer = session.post(augmented("new", tool, arguments, ttl, None)).response(&json!("new"));
    answer["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {answer}")).to_owned()
}

fn query(session: &Session, query: &str, task: &str) -> Value {
    session.request(query, &format!("tasks/{query}"), json!({ "taskId": task }))
}

fn send_query(session: &Session, query: &str, task: &str) -> Exchange {
    let params = json!({ "taskId": task });
    session.send(
        json!({ "jsonrpc": "2.0", "id": query, "method": format!("tasks/{query}"), "params": params }).to_string(),
    )
}

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"))
}

/// The tasks that children were told to cancel.
fn cancelled(record: &Record) -> Vec<Value> {
    read(record, "tasks/cancel").iter().map(|message| message["params"]["taskId"].clone()).collect()
}

fn methods(answer: &Answer) -> Vec<Value> {
    answer.messages().iter().map(|message| message["method"].clone()).collect()
}

/// R:P16: tasks are offered, but for their list, and a call that asks for one is passed on as it is; what its task came to
/// is what the call would have been answered with.
#[test]
fn tasks_are_offered_but_for_their_list() {
    let record = Record::new();
    let gateway = Gateway::start(&with_tasks().option("--record", record.path()).toml());
    let session = open(&gateway);
    let offered = &session.initialized["capabilities"]["tasks"];
    assert_eq!(*offered, json!({ "cancel": {}, "requests": { "tools": { "call": {} } } }));
    let task = begin(&session, "echo", json!({ "a": 1 }));
    assert_eq!(read(&record, "tools/call")[0]["params"]["task"], json!({ "ttl": 60_000 }));
    assert_eq!(query(&session, "get", &task)["result"]["status"], "completed");
    assert_eq!(query(&session, "result", &task)["result"]["structuredContent"], json!({ "a": 1 }));
    assert_eq!(code(&query(&session, "cancel", &task)), -32602, "it is over: the child's own answer");
    assert_eq!(cancelled(&record), [task]);
    for method in ["tasks/list", "tasks/other"] {
        assert_eq!(code(&session.request(1, method, json!({}))), -32601, "{method}");
        assert!(read(&record, method).is_empty());
    }
}

/// R:P16: a server without tasks has none, also for a gateway.
#[test]
fn a_server_without_tasks_has_none() {
    let record = Record::new();
    let gateway = Gateway::start(&shared().option("--record", record.path()).toml());
    let session = open(&gateway);
    assert_eq!(session.initialized["capabilities"].get("tasks"), None);
    for query in ["get", "result", "cancel", "list"] {
        let answer = session.request(1, &format!("tasks/{query}"), json!({ "taskId": "task-1" }));
        assert_eq!(code(&answer), -32601, "{answer}");
        assert!(read(&record, &format!("tasks/{query}")).is_empty());
    }
    let answer = session.post(augmented(1, "echo", json!({ "a": 1 }), json!(1), None)).response(&json!(1));
    assert_eq!(answer["result"]["structuredContent"], json!({ "a": 1 }), "a call like any other");
    assert_eq!(session.call(2, "echo", json!({ "a": 2 }))["result"]["structuredContent"], json!({ "a": 2 }));
}

/// R:P16: a task is its session's; for everybody else there is none, and the child is not asked.
#[test]
fn a_task_is_its_sessions() {
    let record = Record::new();
    let gateway = Gateway::start(&with_tasks().option("--record", record.path()).toml());
    let (alice, bob) = (open(&gateway), open(&gateway));
    let mut streams = [&alice, &bob].map(Session::get);
    let task = begin(&alice, "hold", json!({ "gate": "g" }));
    for which in ["get", "result", "cancel"] {
        let (of_other, of_none) = (query(&bob, which, &task), query(&bob, which, "task-9"));
        assert_eq!((code(&of_other), code(&of_none)), (-32602, -32602), "{which}");
        assert_eq!(of_other, of_none, "whether there is one is not told");
        let nameless = bob.request(which, &format!("tasks/{which}"), json!({ "taskId": 1 }));
        assert_eq!(nameless, of_none);
        assert!(read(&record, &format!("tasks/{which}")).is_empty(), "{which}");
    }
    assert_eq!(query(&alice, "get", &task)["result"]["status"], "working");
    let waiting = send_query(&alice, "result", &task);
    await_that("the question", || read(&record, "tasks/result").first().cloned());
    let second = begin(&alice, "hold", json!({ "gate": "h" }));
    bob.call(2, "release", json!({ "gate": "g" }));
    let answer = waiting.finish();
    assert_eq!(answer.response(&json!("result"))["result"]["structuredContent"], json!({ "gate": "g" }));
    assert_eq!(methods(&answer), [json!(STATUS), Value::Null], "who waits for a task hears of it");
    bob.call(2, "release", json!({ "gate": "h" }));
    let status = streams[0].next_message();
    assert_eq!((&status["method"], &status["params"]["taskId"]), (&json!(STATUS), &json!(second)));
    for (session, stream) in [&alice, &bob].into_iter().zip(streams) {
        session.delete();
        assert!(stream.rest().iter().all(|event| event.data.is_empty()), "nobody else does");
    }
}

/// R:P07: the progress token of a call that became a task lives until that is over; its progress goes to its owner, to
/// the request that waits for its result if there is one.
#[test]
fn progress_goes_on_until_a_task_is_over() {
    let gateway = Gateway::start(&with_tasks().toml());
    let (alice, bob) = (open(&gateway), open(&gateway));
    let mut streams = [&alice, &bob].map(Session::get);
    let begin = |session: &Session, gate: &str| {
        let arguments = json!({ "count": 2, "gate": gate, "late": 2 });
        let answer =
            session.post(augmented(7, "progress", arguments, Value::Null, Some(json!("t")))).response(&json!(7));
        answer["result"]["task"]["taskId"].as_str().unwrap().to_owned()
    };
    let tasks = [begin(&alice, "a"), begin(&bob, "b")];
    for stream in &mut streams {
        for step in [1, 2] {
            let message = stream.next_message();
            assert_eq!(message["params"], json!({ "progressToken": "t", "progress": step, "total": 2 }), "{message}");
        }
    }
    bob.call(1, "release", json!({ "gate": "a" }));
    let status = streams[0].next_message();
    assert_eq!((&status["method"], &status["params"]["taskId"]), (&json!(STATUS), &json!(tasks[0])));
    gateway.await_metric("notifications_dropped_total", &[("reason", "no_request")], |count| count == 2.0);

    let arguments = json!({ "values": [5, 6], "pace": 0.3, "gate": "a" });
    let answer = alice.post(augmented(8, "progress", arguments, Value::Null, Some(json!(8)))).response(&json!(8));
    let waiting = send_query(&alice, "result", answer["result"]["task"]["taskId"].as_str().unwrap()).finish();
    let heard = waiting.messages();
    assert_eq!(methods(&waiting)[2..], [json!(STATUS), Value::Null]);
    assert_eq!((&heard[0]["params"]["progressToken"], &heard[1]["params"]["progress"]), (&json!(8), &json!(6)));
    alice.delete();
    bob.delete();
    let [of_alice, of_bob] = streams.map(|stream| stream.rest());
    assert!(of_alice.iter().all(|event| event.data.is_empty()), "{of_alice:?}");
    assert!(of_bob.iter().all(|event| event.data.is_empty()), "{of_bob:?}");
}

/// R:P16: the tasks of a session that ends are cancelled at the child, and no other session's.
#[test]
fn a_sessions_tasks_end_with_it() {
    let record = Record::new();
    let gateway = Gateway::start(&with_tasks().option("--record", record.path()).toml());
    let (alice, bob) = (open(&gateway), open(&gateway));
    let own: Vec<String> = (0..3).map(|_| begin(&alice, "silent", json!({}))).collect();
    begin(&alice, "echo", json!({}));
    let others = begin(&bob, "hold", json!({ "gate": "g" }));
    alice.delete();
    let mut told = await_that("the cancellations", || Some(cancelled(&record)).filter(|told| told.len() == 3));
    told.sort_by_key(Value::to_string);
    assert_eq!(told, own.iter().map(|task| json!(task)).collect::<Vec<_>>(), "what is over is not cancelled");
    assert_eq!(query(&bob, "get", &others)["result"]["status"], "working");
    bob.call(1, "release", json!({ "gate": "g" }));
    assert_eq!(query(&bob, "result", &others)["result"]["structuredContent"]["gate"], "g");
}

/// R:P16, R:D09: a call that was given up before the child had made a task of it: the task is cancelled once it is there,
/// which a notification would not do.
#[test]
fn a_task_nobody_waits_for_is_cancelled() {
    let record = Record::new();
    let mut gate = crate::child::Gate::new();
    let gateway = Gateway::start(&with_tasks().option("--record", record.path()).toml());
    let (alice, bob) = (open(&gateway), open(&gateway));
    bob.call(1, "stop_reading", json!({ "until": gate.path() }));
    let in_flight = |calls: f64| gateway.await_metric("requests_in_flight", &[], |count| count == calls);
    in_flight(0.0);
    // A call that is in flight may not be written yet, and then the child never hears of it.
    let to_child = &[("direction", "to_child")];
    let send = |id| {
        let call = augmented(id, "silent", json!({}), Value::Null, None);
        let before = gateway.metrics().count("pipe_bytes_total", to_child);
        let sent = alice.send(call);
        gateway.await_metric("pipe_bytes_total", to_child, |bytes| bytes >= before + 90.0);
        sent
    };
    let given_up = send(1);
    alice.notify("notifications/cancelled", json!({ "requestId": 1 }));
    assert_eq!(given_up.finish().message()["error"]["data"]["reason"], "cancelled");
    in_flight(0.0);
    let left = send(2);
    alice.delete();
    assert_eq!(code(&left.finish().message()), 502);
    gate.open();
    let told = await_that("the cancellations", || Some(cancelled(&record)).filter(|told| told.len() == 2));
    assert_eq!(told, ["task-1", "task-2"]);
    assert!(read(&record, "notifications/cancelled").is_empty());
    assert_eq!(code(&query(&bob, "get", "task-1")), -32602);
}

/// R:P16, R:P25: tasks end with their process: who waits for a result is told that the child is gone, and an id that the
/// next process gives to somebody else's task is nobody else's.
#[test]
fn tasks_end_with_their_process() {
    let gateway = Gateway::start(&with_tasks().toml());
    let (alice, bob) = (open(&gateway), open(&gateway));
    let task = begin(&alice, "hold", json!({ "gate": "g" }));
    let waiting = send_query(&alice, "result", &task);
    gateway.await_metric("requests_in_flight", &[], |count| count == 1.0);
    let child = state(&bob)["pid"].as_u64().unwrap();
    Process::of(u32::try_from(child).unwrap()).unwrap().kill();
    let answer = waiting.finish().response(&json!("result"));
    assert_eq!((code(&answer), &answer["error"]["data"]["reason"]), (502, &json!("child_gone")));
    assert_ne!(state(&bob)["pid"], child);
    let other = begin(&bob, "hold", json!({ "gate": "g" }));
    assert_eq!(task, other);
    for which in ["get", "result", "cancel"] {
        assert_eq!(code(&query(&alice, which, &task)), -32602);
    }
    assert_eq!(query(&bob, "get", &other)["result"]["status"], "working");
}

/// R:P16: two sessions with one task's id: the child broke its word, and neither sees what may be the other's. It is
/// cancelled, as is one whose id is longer than is kept, and who is given it learns that it has none.
#[test]
fn an_id_that_cannot_be_anybodys_is_cancelled() {
    let begin = |session: &Session| {
        session.post(augmented(1, "hold", json!({ "gate": "g" }), Value::Null, None)).response(&json!(1))
    };
    for (id, kept) in [("same".to_owned(), true), ("x".repeat(1_025), false)] {
        let record = Record::new();
        let server = with_tasks().arg("--task-id").arg(&id).option("--record", record.path());
        let gateway = Gateway::start(&server.toml());
        let sessions = [open(&gateway), open(&gateway)];
        let [first, second] = sessions.each_ref().map(begin);
        assert_eq!(first["result"]["task"]["taskId"] == *id, kept, "{first}");
        assert_eq!((code(&second), &second["error"]["data"]["executed"]), (502, &json!("maybe")), "{second}");
        let told = if kept { 1 } else { 2 };
        await_that("the cancellations", || (cancelled(&record) == vec![json!(id); told]).then_some(()));
        for session in &sessions {
            assert_eq!(code(&query(session, "get", &id)), -32602);
        }
        gateway.await_event("warning", |event| event["warning"].as_str().unwrap().starts_with("the id of a task"));
    }
}

/// R:P16: what is over is forgotten after its time, and a session has so many tasks at once.
#[test]
fn tasks_are_bounded() {
    let record = Record::new();
    let gateway = Gateway::start(&with_tasks().option("--record", record.path()).toml());
    let (alice, bob) = (open(&gateway), open(&gateway));
    let brief = begin_for(&alice, "echo", json!({}), json!(300));
    assert_eq!(query(&alice, "get", &brief)["result"]["status"], "completed");
    await_that("its time to be over", || (code_of(&query(&alice, "get", &brief)) == Some(-32602)).then_some(()));
    for _ in 0..64 {
        begin(&alice, "silent", json!({}));
    }
    let before = read(&record, "tools/call").len();
    let answer = alice.post(augmented(1, "silent", json!({}), Value::Null, None)).response(&json!(1));
    assert_eq!((code(&answer), &answer["error"]["data"]["executed"]), (503, &json!("no")), "{answer}");
    assert_eq!(read(&record, "tools/call").len(), before);
    let task = begin(&bob, "echo", json!({}));
    assert_eq!(query(&bob, "get", &task)["result"]["status"], "completed");
    assert_eq!(query(&alice, "cancel", "task-9")["result"]["status"], "cancelled");
    begin(&alice, "silent", json!({}));
}

fn code_of(answer: &Value) -> Option<i64> {
    answer["error"]["code"].as_i64()
}

/// R:P09: while tasks run, a log message that names none may be about any of them; one that names its task is its owner's.
#[test]
fn log_messages_of_tasks_reach_their_owner() {
    let gateway = Gateway::start(&with_tasks().toml());
    let (alice, bob) = (open(&gateway), open(&gateway));
    let mut stream = alice.get();
    let task = begin(&alice, "hold", json!({ "gate": "g" }));
    let logs = |session: &Session, params: Value| {
        let arguments = json!({ "method": "notifications/message", "params": params });
        let heard = methods(&session.send_call(1, "notify", arguments).finish());
        heard.iter().filter(|method| **method == "notifications/message").count()
    };
    let plain = json!({ "level": "error", "data": "x" });
    let mut related = plain.clone();
    related["_meta"] = json!({ "io.modelcontextprotocol/related-task": { "taskId": task } });
    assert_eq!(logs(&bob, plain.clone()), 0, "it may be about the task");
    assert_eq!(logs(&bob, related), 0);
    assert_eq!(logs(&alice, plain.clone()), 1);
    bob.call(2, "release", json!({ "gate": "g" }));
    assert_eq!(stream.next_message()["method"], "notifications/message");
    // Before anybody waits for the result, whose stream it would come on.
    assert_eq!(stream.next_message()["method"], STATUS);
    assert_eq!(query(&alice, "result", &task)["result"]["structuredContent"]["gate"], "g");
    assert_eq!(logs(&bob, plain), 1);
    alice.delete();
    assert!(stream.rest().iter().all(|event| event.data.is_empty()));
}
