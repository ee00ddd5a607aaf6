//! Mode `shared`: the death of a child that many sessions use, and how long one is kept.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::caller_key::Key;
use crate::child::{Process, Record, Server};
use crate::client::Request;
use crate::gateway::{Gateway, await_that};
use crate::session::{Session, initialize};
use crate::sharing::{open, read, shared, state};

/// The process behind a session.
pub fn child_of(session: &Session) -> Process {
    Process::of(u32::try_from(state(session)["pid"].as_u64().unwrap()).unwrap()).unwrap()
}

fn starts(gateway: &Gateway) -> usize {
    gateway.events().iter().filter(|event| event["event"] == "child_start").count()
}

/// R:P25, F:A04, C:B18: a child is killed with calls of several sessions in flight and more that wait for their turn: each
/// gets one error, none runs twice, every session lives on and works with the next process, which has the level and the
/// subscriptions. Its lists are the same, so that nobody is told otherwise.
#[test]
fn sessions_outlive_their_child() {
    let record = Record::new();
    let gateway = Gateway::start(&format!("{VERBOSE}{}", shared().option("--record", record.path()).toml()));
    let sessions: Vec<Session> = (0..5).map(|_| open(&gateway)).collect();
    let streams: Vec<_> = sessions.iter().map(Session::get).collect();
    let answer = sessions[0].request(1, "logging/setLevel", json!({ "level": "debug" }));
    assert_eq!(answer["result"], json!({}));
    for session in &sessions[1..3] {
        assert_eq!(session.request(1, "resources/subscribe", json!({ "uri": "fake://b" }))["result"], json!({}));
    }
    let child = child_of(&sessions[0]);
    await_lists(&gateway, 1);
    let calls: Vec<_> = (0..40).map(|n| sessions[n % 5].send_call(n, "hold", json!({ "gate": "g", "n": n }))).collect();
    await_that("what the child may have at once", || (read(&record, "tools/call").len() == 32 + 1).then_some(()));
    gateway.await_metric("requests_in_flight", &[], |count| count == 40.0);
    child.kill();
    let mut executed = Vec::new();
    for (n, call) in calls.into_iter().enumerate() {
        let answer = call.finish().response(&json!(n));
        assert_eq!((&answer["error"]["code"], &answer["error"]["data"]["reason"]), (&json!(502), &json!("child_gone")));
        executed.push(answer["error"]["data"]["executed"].clone());
    }
    assert_eq!(executed.iter().filter(|executed| **executed == "no").count(), 8, "{executed:?}");
    for (n, session) in sessions.iter().enumerate() {
        assert_eq!(session.call(n, "echo", json!({ "n": n }))["result"]["structuredContent"]["n"], n);
    }
    let said = state(&sessions[0]);
    assert_ne!(said["pid"], child.id);
    assert_eq!((&said["level"], &said["subscriptions"]), (&json!("debug"), &json!(["fake://b"])));
    assert_eq!((&said["initializes"], &said["initialized"]), (&json!(1), &json!(1)));
    let held = read(&record, "tools/call").into_iter().filter(|call| call["params"]["name"] == "hold");
    assert_eq!(held.count(), 32, "none is repeated");
    await_lists(&gateway, 2);
    for (session, stream) in sessions.iter().zip(streams) {
        session.delete();
        let rest = stream.rest();
        assert!(rest.iter().all(|event| event.data.is_empty()), "{rest:?}");
    }
    gateway.await_metric("sessions_closed_total", &[("reason", "delete")], |count| count == 5.0);
    assert_eq!(starts(&gateway), 2);
}

/// What shows when the gateway has read a list.
pub const VERBOSE: &str = "[telemetry.log]\nlevel = \"debug\"\n";

/// Waits until the gateway has read the lists of so many processes.
pub fn await_lists(gateway: &Gateway, count: usize) {
    for list in ["tools", "resources", "prompts"] {
        gateway.await_events("child_list", count, |event| event["list"] == list);
    }
}

/// F:A04: of 200 calls in flight on a child that is killed each is answered once, at once, and the sessions are served
/// again.
#[test]
fn two_hundred_calls_are_answered_at_once() {
    let server = shared().key("pool.max_calls_per_child = 256");
    let gateway = Gateway::start(&format!("[limits]\nconnections_per_address = 512\n{}", server.toml()));
    let sessions: Vec<Session> = (0..10).map(|_| open(&gateway)).collect();
    let child = child_of(&sessions[0]);
    let calls: Vec<_> = (0..200).map(|n| sessions[n % 10].send_call(n, "hold", json!({ "gate": "g" }))).collect();
    sessions[0].call("all", "await_held", json!({ "gate": "g", "count": 200 }));
    let began = Instant::now();
    child.kill();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.finish().response(&json!(n))["error"]["data"]["reason"], "child_gone");
    }
    assert!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
    for (n, session) in sessions.iter().enumerate() {
        assert_eq!(session.call(n, "echo", json!({ "n": n }))["result"]["structuredContent"]["n"], n);
    }
    let failed = gateway.metrics().count("requests_total", &[("outcome", "child_gone")]);
    assert_eq!(failed, 200.0, "one answer each");
}

/// R:P05: changes are told only of the lists the server said it tells changes of.
#[test]
fn changes_are_told_where_they_were_declared() {
    let merge = r#"{"capabilities":{"tools":{"listChanged":true},"resources":{},"prompts":{"listChanged":false}}}"#;
    let gateway = Gateway::start(&shared().arg("--init-merge").arg(merge).toml());
    let session = open(&gateway);
    let mut stream = session.get();
    child_of(&session).kill();
    assert_eq!(stream.next_message()["method"], "notifications/tools/list_changed");
    session.call(1, "echo", json!({}));
    session.delete();
    assert!(stream.rest().iter().all(|event| event.data.is_empty()));
}

/// R:P25, F:A04: a child that exits as soon as it is initialized is started again after pauses, not without end; calls
/// are answered meanwhile and say that the child has not seen them, no further session starts one more, and once it works
/// again all is well.
#[test]
fn a_child_that_keeps_dying_is_started_again_with_pauses() {
    let record = Record::new();
    let flag = record.path().join("works");
    // Exits at the call or, unless it works, right after `initialized`.
    let script = r#"
        while read -r line; do
            case $line in
            *'"initialize"'*)
                id=${line##*'"id":'}; id=${id%%[,\}]*}
                printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}\n' "$id";;
            *'/initialized'*) [ -e "$1" ] || exit 3;;
            *'"id":'*)
                id=${line#*'"id":'}; id=${id%%[,\}]*}
                printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id";;
            esac
        done"#;
    std::fs::write(&flag, "").unwrap();
    let server = Server::of("fake", "sh").arg("-c").arg(script).arg("sh").arg(flag.to_str().unwrap());
    let server = server.key("mode = \"shared\"").key("check_on_start = false").key("pool.min_idle = 0");
    let gateway = Gateway::start(&server.key("breaker.backoff_max = \"1s\"").toml());
    let sessions = [open(&gateway), open(&gateway)];
    assert_eq!(sessions[0].request(1, "vendor/x", json!({}))["result"], json!({}));
    std::fs::remove_file(&flag).unwrap();
    gateway.descendants()[0].kill();
    gateway.await_events("child_start", 3, |_| true);
    let began = Instant::now();
    let before = starts(&gateway);
    let mut refused = 0;
    while began.elapsed() < Duration::from_secs(2) {
        let answer = sessions[refused % 2].request(refused, "vendor/x", json!({}));
        assert_eq!(answer["error"]["data"]["reason"], "child_gone", "{answer}");
        let body = initialize("2025-11-25", json!({})).to_string();
        let response = Request::post("/fake/mcp", body).send(gateway.address());
        if response.status() != 200 {
            assert_eq!(response.status(), 503, "{response:?}");
            assert!(response.header("retry-after").is_some(), "{response:?}");
        }
        refused += 1;
    }
    assert!(refused > 20, "they are answered at once: {refused}");
    let more = starts(&gateway) - before;
    assert!(more <= 12, "{more} starts in two seconds");
    std::fs::write(&flag, "").unwrap();
    await_that("a process that works", || {
        (sessions[0].request("again", "vendor/x", json!({}))["result"] == json!({})).then_some(())
    });
    assert_eq!(sessions[1].request(1, "vendor/x", json!({}))["result"], json!({}));
    open(&gateway);
}

/// R:P25: a child whose replacements do not even start is tried again behind the breaker, as new sessions are.
#[test]
fn a_child_that_cannot_be_replaced_opens_the_breaker() {
    let record = Record::new();
    let flag = record.path().join("broken");
    let script = format!("[ -e \"$1\" ] && exit 3; exec python3 -I -S {}", crate::child::FAKE_CHILD);
    let server = Server::of("fake", "sh").arg("-c").arg(script).arg("sh").arg(flag.to_str().unwrap());
    let server = server.key("mode = \"shared\"").key("check_on_start = false").key("pool.min_idle = 0");
    let gateway = Gateway::start(&server.key("breaker = { failures = 3, backoff_max = \"400ms\" }").toml());
    let session = open(&gateway);
    let child = child_of(&session);
    std::fs::write(&flag, "").unwrap();
    child.kill();
    gateway.await_event("breaker_open", |_| true);
    let answer = session.call(1, "echo", json!({}));
    assert_eq!(answer["error"]["data"]["reason"], "child_gone", "{answer}");
    let response = Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string()).send(gateway.address());
    assert_eq!(response.status(), 503, "{response:?}");
    std::fs::remove_file(&flag).unwrap();
    gateway.await_event("breaker_close", |_| true);
    await_that("a process that works", || {
        session.call("again", "echo", json!({})).get("result").is_some().then_some(())
    });
}

/// R:P24: a child that no session uses is stopped after `idle_timeout`, not before.
#[test]
fn an_unused_child_is_stopped() {
    let gateway = Gateway::start(&shared().key("pool.idle_timeout = \"1s\"").toml());
    let (a, b) = (open(&gateway), open(&gateway));
    let child = child_of(&a);
    a.delete();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        assert_eq!(state(&b)["pid"], child.id, "one session is left");
    }
    b.delete();
    gateway.await_descendants(0);
    gateway.await_metric("child_exits_total", &[("reason", "stopped")], |count| count == 1.0);
    assert_ne!(child_of(&open(&gateway)).id, child.id);
}

/// A child that has had as many sessions as it may, or is old, takes no further one, keeps those it has, and is stopped
/// after the last.
#[test]
fn a_retired_child_finishes_its_work() {
    for key in ["pool.max_uses = 2", "pool.max_lifetime = \"1s\""] {
        let gateway = Gateway::start(&shared().key(key).toml());
        let (old, child) = await_that("two sessions of one child", || {
            // On a busy machine it may be old before the second comes.
            let pair = [open(&gateway), open(&gateway)];
            let [child, other] = pair.each_ref().map(child_of);
            (child.id == other.id).then_some((pair, child))
        });
        let held = old[1].send_call(1, "hold", json!({ "gate": "g" }));
        old[0].call(2, "await_held", json!({ "gate": "g" }));
        let fresh = await_that("another child", || {
            let session = open(&gateway);
            let is_other = child_of(&session).id != child.id;
            if !is_other {
                session.delete();
            }
            is_other.then_some(session)
        });
        old[0].delete();
        assert_ne!(child_of(&fresh).id, child.id);
        old[1].call(3, "release", json!({ "gate": "g" }));
        assert_eq!(held.finish().response(&json!(1))["result"]["structuredContent"]["gate"], "g", "{key}");
        assert_eq!(child_of(&old[1]).id, child.id);
        old[1].delete();
        await_that("the old child's end", || (!child.is_alive()).then_some(()));
    }
}

/// Mode `principal`, R:P01, R:P27: the sessions of one key share a child, no two keys do, and callers without a key share
/// none.
#[test]
fn keys_do_not_share() {
    let (alice, bob) = (Key::of("alice"), Key::of("bob"));
    let server = shared().key("mode = \"principal\"").toml().replace("mode = \"shared\"\n", "");
    let gateway =
        Gateway::start(&format!("[auth]\nmethods = [\"api_key\"]\n{}{}{server}", alice.toml(""), bob.toml("")));
    let pid = |key: &Key| {
        let headers = [("Authorization", key.authorization.as_str())];
        child_of(&Session::open_with(&gateway, "/fake/mcp", "2025-11-25", json!({}), &headers)).id
    };
    let (of_alice, of_bob) = ([pid(&alice), pid(&alice)], [pid(&bob), pid(&bob)]);
    assert_eq!(of_alice[0], of_alice[1]);
    assert_eq!(of_bob[0], of_bob[1]);
    assert_ne!(of_alice[0], of_bob[0]);
    let gateway = Gateway::start(&server);
    let nobody: Vec<Process> = (0..2).map(|_| child_of(&open(&gateway))).collect();
    assert_ne!(nobody[0].id, nobody[1].id);
}

/// Where every slot is taken, a child that nobody uses makes room for another caller's.
#[test]
fn an_unused_child_makes_room() {
    let gateway = Gateway::start(&shared().key("pool.max_size = 1").key("pool.wait = \"20s\"").toml());
    let old = open(&gateway);
    let child = child_of(&old);
    old.delete();
    let began = Instant::now();
    let other = Session::open(&gateway, "/fake/mcp", "2025-06-18", json!({}));
    assert_ne!(child_of(&other).id, child.id);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

/// C:B33: a drain lets calls end, refuses new ones, and leaves no process; also while a child is on its way.
#[test]
fn a_drain_leaves_no_child() {
    let drain = "[drain]\nprestop = \"0s\"\ncalls = \"20s\"\nchildren = \"5s\"\n";
    let mut gateway = Gateway::start(&format!("{drain}{}", shared().toml()));
    let sessions = [open(&gateway), Session::open(&gateway, "/fake/mcp", "2025-06-18", json!({}))];
    let call = sessions[0].send_call(1, "sleep", json!({ "seconds": 0.5 }));
    sessions[1].call(1, "echo", json!({}));
    let children = gateway.descendants();
    assert_eq!(children.len(), 2);
    gateway.signal(rustix::process::Signal::TERM);
    gateway.await_event("drain_start", |_| true);
    assert_eq!(call.finish().response(&json!(1))["result"]["content"][0]["text"], "slept");
    assert_eq!(gateway.await_exit().code(), Some(0));
    assert!(children.iter().all(|child| !child.is_alive()));

    let mut gateway = Gateway::start(&format!("{drain}{}", shared().arg("--init-silent").toml()));
    let mut connection = crate::client::Connection::open(gateway.address());
    connection.request(&Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string()));
    let children = gateway.await_descendants(1);
    assert_eq!(gateway.stop(), 0);
    assert!(children.iter().all(|child| !child.is_alive()));
    drop(connection);
}

/// R:L06 and the mode: sessions of HTTP+SSE share a child too, and hear what is theirs.
#[test]
fn sessions_of_2024_share_too() {
    let gateway = Gateway::start(&shared().key("legacy_sse = true").toml());
    let mut streams: Vec<_> = (0..2).map(|_| Legacy::open(&gateway)).collect();
    let pids: Vec<Value> = streams
        .iter_mut()
        .map(|stream| stream.call(&gateway, 1, "state", &json!({}))["result"]["structuredContent"]["pid"].clone())
        .collect();
    assert_eq!(pids[0], pids[1]);
    for (own, stream) in streams.iter_mut().enumerate() {
        let answer = stream.call(&gateway, 1, "echo", &json!({ "own": own }));
        assert_eq!(answer["result"]["structuredContent"]["own"], own);
    }
}

/// A session of HTTP+SSE.
struct Legacy {
    stream: crate::sse::EventStream,
    endpoint: String,
}

impl Legacy {
    fn open(gateway: &Gateway) -> Legacy {
        let request = Request::get("/fake/sse").header("Accept", "text/event-stream");
        let mut stream = crate::session::Exchange::send(gateway.address(), &request).stream();
        let endpoint = stream.next_event().data;
        let mut legacy = Legacy { stream, endpoint };
        legacy.post(gateway, &initialize("2024-11-05", json!({})));
        legacy.stream.await_message(|message| message["id"] == "initialize");
        legacy.post(gateway, &json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        legacy
    }

    fn post(&self, gateway: &Gateway, message: &Value) {
        let response = Request::post(&self.endpoint, message.to_string()).send(gateway.address());
        assert_eq!(response.status(), 202, "{response:?}");
    }

    fn call(&mut self, gateway: &Gateway, id: u64, tool: &str, arguments: &Value) -> Value {
        self.post(gateway, &crate::session::call(id, tool, arguments.clone(), None));
        self.stream.await_message(|message| message["id"] == id)
    }
}
