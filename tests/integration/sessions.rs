//! Sessions: how one begins, who finds it, how it ends, and that its streams do not decide that.

use std::collections::HashSet;
use std::thread;

use serde_json::{Value, json};

use crate::caller_key::{Key, only};
use crate::child::Server;
use crate::client::{Request, Response};
use crate::gateway::Gateway;
use crate::session::{Exchange, Session, initialize};

const REVISION: &str = "2025-11-25";

/// A server whose every child is one that a session asked for.
fn bare(server: Server) -> Server {
    server.key("check_on_start = false").key("pool.min_idle = 0")
}

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", REVISION, json!({}))
}

fn ping() -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string()
}

/// A POST, a GET and a DELETE under the session's id.
fn every_use(session: &Session) -> [Response; 3] {
    [session.post_request(ping()), session.get_request(), session.delete_request()]
        .map(|request| request.send(session.address))
}

/// R:S01, R:S02: every handshake gets an id of its own, of visible ASCII, in the head of the InitializeResult,
/// whichever form that takes, and only there.
#[test]
fn every_handshake_gets_an_id_of_its_own() {
    let gateway = Gateway::start(&bare(Server::demo("demo")).key("pool.max_size = 0").toml());
    let mut ids = HashSet::new();
    for round in 0..30 {
        let revision = ["2025-03-26", "2025-06-18", REVISION][round % 3];
        let accept = ["application/json", "text/event-stream", "*/*"][round / 3 % 3];
        let request = Request::post("/demo/mcp", initialize(revision, json!({})).to_string()).with("Accept", accept);
        let answer = Exchange::send(gateway.address(), &request).finish();
        assert_eq!(answer.message()["result"]["protocolVersion"], revision, "{answer:?}");
        assert_eq!(answer.is_stream(), accept == "text/event-stream", "{answer:?}");
        let id = answer.head.header("mcp-session-id").unwrap().to_owned();
        let (node, random) = id.split_once('-').unwrap();
        assert!((1..=16).contains(&node.len()) && node.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert!(random.len() == 32 && random.bytes().all(|byte| byte.is_ascii_hexdigit()), "128 bits: {id}");
        assert!(ids.insert(id), "the same id twice");
    }
    let session = Session::open(&gateway, "/demo/mcp", REVISION, json!({}));
    let later = session.post_request(ping()).send(session.address);
    assert_eq!(later.status(), 200, "{later:?}");
    assert_eq!(later.header("mcp-session-id"), None, "only the handshake names it: {later:?}");
}

/// R:S03, C:B17: no session comes of a handshake that fails, and no child is left of it.
#[test]
fn no_session_survives_a_failed_handshake() {
    let failures = [
        ("error", Server::fake("error").arg("--init-error").arg("-32602")),
        ("exit", Server::fake("exit").arg("--exit-init").arg("3")),
        ("gone", Server::of("gone", "/nonexistent/command")),
    ];
    let toml: String = failures.iter().map(|(_, server)| bare(server.clone()).toml()).collect();
    let gateway = Gateway::start(&toml);
    for (name, _) in &failures {
        let request = Request::post(&format!("/{name}/mcp"), initialize(REVISION, json!({})).to_string());
        let response = request.send(gateway.address());
        assert_eq!(response.header("mcp-session-id"), None, "{name}: {response:?}");
        let body = response.json();
        assert_eq!(body["id"], "initialize", "{name}: {body}");
        assert!(body["error"]["code"].is_i64(), "{name}: {body}");
        gateway.await_metric("sessions", &[("server", name)], |sessions| sessions == 0.0);
    }
    gateway.await_descendants(0);
    assert_eq!(gateway.metrics().count("sessions_opened_total", &[]), 0.0);
}

/// R:S04, C:B50: what needs a session and names none is 400, told apart from a session that is not there.
#[test]
fn a_missing_id_is_400_and_an_unknown_one_404() {
    let gateway = Gateway::start(&bare(Server::fake("fake")).toml());
    let mut session = open(&gateway);
    for request in [session.post_request(ping()), session.get_request(), session.delete_request()] {
        let response = request.clone().without("Mcp-Session-Id").send(session.address);
        assert_eq!(response.status(), 400, "{response:?}");
        assert_eq!(response.json()["error"]["code"], -32600, "{response:?}");
        let twice = request.header("Mcp-Session-Id", &session.id).send(session.address);
        assert_eq!(twice.status(), 400, "two ids: {twice:?}");
    }
    let real = session.id.clone();
    let (node, _) = real.split_once('-').unwrap();
    let unknown = [
        format!("{node}-{}", "0".repeat(32)),
        format!("{real}0"),
        real[..real.len() - 1].to_owned(),
        real.to_uppercase(),
        "../../etc/passwd".to_owned(),
        "x".repeat(10_000),
        String::new(),
    ];
    let mut bodies = HashSet::new();
    for id in unknown {
        session.id = id;
        for response in every_use(&session) {
            assert_eq!(response.status(), 404, "{:?}: {response:?}", session.id);
            let mut body = response.json();
            body["id"] = Value::Null;
            bodies.insert(body.to_string());
        }
    }
    assert_eq!(bodies.len(), 1, "one answer for all: {bodies:?}");
    session.id = real;
    assert_eq!(session.request(1, "ping", json!({}))["result"], json!({}), "the real one is unharmed");
}

/// R:S05, R:S06, R:S07, C:B55, F:C11: DELETE ends the session once and for all: the call in flight gets an
/// error, streams end, the child goes; a second DELETE finds nothing.
#[test]
fn delete_ends_everything_of_a_session() {
    let gateway = Gateway::start(&bare(Server::fake("fake")).toml());
    let session = open(&gateway);
    let held = session.send_call("held", "hold", json!({ "gate": "g" }));
    session.call(2, "await_held", json!({ "gate": "g" }));
    let mut stream = session.get();
    stream.next_event();
    assert_eq!(session.delete().status(), 204);
    let answer = held.finish().message();
    assert_eq!(answer["id"], "held");
    assert_eq!(answer["error"]["data"]["gateway"], true, "{answer}");
    assert_eq!(stream.rest(), [], "the stream ends");
    for response in every_use(&session) {
        assert_eq!(response.status(), 404, "{response:?}");
    }
    gateway.await_descendants(0);
    gateway.await_metric("replay_bytes", &[], |bytes| bytes == 0.0);
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
    assert_eq!(gateway.metrics().count("sessions_closed_total", &[("reason", "delete")]), 1.0);
}

/// C:B55, F:C11: of many DELETEs at once each gets a clean answer, and one clean-up happens.
#[test]
fn concurrent_deletes_and_posts_end_a_session_once() {
    let gateway = Gateway::start(&bare(Server::fake("fake")).toml());
    for _ in 0..5 {
        let session = open(&gateway);
        let statuses: Vec<(bool, u16)> = thread::scope(|scope| {
            let send = |delete: bool| {
                let request = if delete { session.delete_request() } else { session.post_request(ping()) };
                (delete, request.send(session.address).status())
            };
            let senders: Vec<_> = (0..12).map(|at| scope.spawn(move || send(at % 2 == 0))).collect();
            senders.into_iter().map(|sender| sender.join().unwrap()).collect()
        });
        assert!(statuses.contains(&(true, 204)), "{statuses:?}");
        for (delete, status) in statuses {
            assert!(matches!((delete, status), (true, 204) | (false, 200) | (_, 404)), "{delete}: {status}");
        }
        assert_eq!(session.post_request(ping()).send(session.address).status(), 404);
    }
    gateway.await_descendants(0);
    gateway.await_metric("sessions_closed_total", &[("reason", "delete")], |closed| closed == 5.0);
    gateway.await_metric("child_exits_total", &[], |exits| exits == 5.0);
}

/// R:S08, R:S09, R:R09, F:E08, C:B107: an id opens nothing without its caller's key, and to another
/// caller it is as unknown as one that never was.
#[test]
fn an_id_is_worth_nothing_to_anybody_else() {
    let (alice, bob) = (Key::of("alice"), Key::of("bob"));
    let servers = [bare(Server::fake("fake")), bare(Server::fake("other"))].map(|server| server.toml()).concat();
    let gateway = Gateway::start(&format!("{}{servers}", only(&[&alice, &bob])));
    let session = Session::open_with(&gateway, "/fake/mcp", REVISION, json!({}), &[alice.header()]);
    let answer = session.send_call_with_token(1, "progress", json!({ "count": 1 }), "t").finish();
    let event = answer.events[0].id.clone().unwrap();

    let unknown = Session { id: format!("{}x", session.id), ..session.clone() };
    let uses = |session: &Session| {
        let resume = session.get_request().header("Last-Event-ID", &event).send(session.address);
        let [post, get, delete] = every_use(session);
        [post, get, delete, resume].map(|response| (response.status(), response.text().to_owned()))
    };
    let nobody = Session { headers: vec![], ..session.clone() };
    assert!(uses(&nobody).iter().all(|(status, _)| *status == 401), "{:?}", uses(&nobody));

    let bobs = Session { headers: vec![("Authorization".into(), bob.authorization.clone())], ..session.clone() };
    let elsewhere = Session { path: "/other/mcp".into(), ..session.clone() };
    assert_eq!(uses(&bobs), uses(&unknown), "another caller");
    assert_eq!(uses(&elsewhere), uses(&unknown), "another server");
    assert!(uses(&bobs).iter().all(|(status, _)| *status == 404), "{:?}", uses(&bobs));

    assert!(session.call_text(2, "echo", json!({ "text": "a" })).contains('a'));
    assert_eq!(session.delete().status(), 204, "only its owner could end it");
}

/// R:S10: a session is initialized once; an unknown id is not given life by initializing under it.
#[test]
fn a_session_is_initialized_once() {
    let gateway = Gateway::start(&bare(Server::fake("fake")).toml());
    let mut session = open(&gateway);
    let again = session.post_request(initialize(REVISION, json!({})).to_string());
    let refused = again.send(session.address);
    assert_eq!((refused.status(), &refused.json()["error"]["code"]), (400, &json!(-32600)), "{refused:?}");
    assert_eq!(refused.header("mcp-session-id"), None);
    assert_eq!(session.call(1, "state", json!({}))["result"]["structuredContent"]["initializes"], 1);
    session.id.push('0');
    let unknown = session.post_request(initialize(REVISION, json!({})).to_string()).send(session.address);
    assert_eq!(unknown.status(), 404, "{unknown:?}");
    gateway.await_descendants(1);
}

/// R:S11, F:C12, C:B85: a client whose connections all break keeps its session, and its call runs on.
#[test]
fn a_session_outlives_its_connections() {
    let gateway = Gateway::start(&bare(Server::fake("fake")).toml());
    let session = open(&gateway);
    let mut get = session.get();
    get.next_event();
    let held = session.send_call(1, "hold", json!({ "gate": "g" }));
    session.call(2, "await_held", json!({ "gate": "g" }));
    // Not before: a reset takes with it what the gateway has not read yet.
    held.reset();
    get.reset();
    gateway.await_metric("streams", &[("kind", "get")], |streams| streams == 0.0);
    let state = session.call(3, "state", json!({}));
    assert_eq!(state["result"]["structuredContent"]["cancelled"], json!([]), "leaving is no cancelling");
    session.call(4, "release", json!({ "gate": "g" }));
    gateway.await_event("rpc", |event| event["tool"] == "hold" && event["outcome"] == "client_gone");
}

/// R:S13, C:B18: a session whose child is gone is over; its client is told to start again and can.
#[test]
fn a_session_ends_with_its_child() {
    let gateway = Gateway::start(&bare(Server::fake("fake")).toml());
    let session = open(&gateway);
    let mut stream = session.get();
    stream.next_event();
    let held = session.send_call("held", "hold", json!({ "gate": "g" }));
    session.call(2, "await_held", json!({ "gate": "g" }));
    gateway.await_descendants(1)[0].kill();
    let answer = held.finish().message();
    assert_eq!(answer["error"]["data"]["reason"], "child_gone", "{answer}");
    assert_eq!(answer["error"]["data"]["executed"], "maybe", "{answer}");
    assert_eq!(stream.rest(), []);
    for response in every_use(&session) {
        assert_eq!(response.status(), 404, "never another child under the old id: {response:?}");
    }
    gateway.await_event("session_close", |event| event["reason"] == "child_gone");
    let again = open(&gateway);
    assert_ne!(again.id, session.id);
    assert_eq!(again.call(1, "state", json!({}))["result"]["structuredContent"]["initializes"], 1);
}

/// C:B50: ids of an earlier run are unknown to the next one, not malformed.
#[test]
fn ids_do_not_outlive_the_gateway() {
    let toml = bare(Server::fake("fake")).toml();
    let first = Gateway::start(&toml);
    let old = open(&first);
    drop(first);
    let second = Gateway::start(&toml);
    let old = Session { address: second.address(), ..old };
    for response in every_use(&old) {
        assert_eq!(response.status(), 404, "{response:?}");
    }
}

/// R:S18, C:B45: a request that overtakes `initialized` is held for it, and served even if it never comes;
/// the child sees `initialized` once, and first.
#[test]
fn requests_that_overtake_initialized_are_served() {
    let gateway = Gateway::start(&bare(Server::fake("fake").arg("--strict")).key("pool.max_size = 0").toml());
    let never = Session::initialize(&gateway, "/fake/mcp", REVISION, json!({}), &[]);
    let answers: Vec<Value> = thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|id| {
                scope.spawn({
                    let never = &never;
                    move || never.call(id, "echo", json!({}))
                })
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|answer| answer.get("result").is_some()), "{answers:?}");
    assert_eq!(never.notify("notifications/initialized", json!({})).status(), 202, "late is not wrong");
    assert_eq!(never.call(9, "state", json!({}))["result"]["structuredContent"]["initialized"], 1);

    for _ in 0..10 {
        let session = Session::initialize(&gateway, "/fake/mcp", REVISION, json!({}), &[]);
        let early = session.send_call(1, "echo", json!({}));
        assert_eq!(session.notify("notifications/initialized", json!({})).status(), 202);
        assert!(early.finish().message().get("result").is_some());
        assert_eq!(session.call(2, "state", json!({}))["result"]["structuredContent"]["initialized"], 1);
    }
}

/// F:C11, C:B85: many clients that leave in the middle harm nobody, and nothing of theirs is left.
#[test]
fn clients_that_leave_in_the_middle_leave_nothing() {
    let gateway = Gateway::start(&bare(Server::fake("fake")).toml());
    let session = open(&gateway);
    let calls: Vec<_> = (0..50).map(|id| session.send_call(id, "hold", json!({ "gate": "g" }))).collect();
    session.call("all", "await_held", json!({ "gate": "g", "count": 50 }));
    let mut kept = Vec::new();
    for (at, call) in calls.into_iter().enumerate() {
        if at % 2 == 0 { call.reset() } else { kept.push((at, call)) }
    }
    assert_eq!(session.request("healthy", "ping", json!({}))["result"], json!({}));
    session.call("go", "release", json!({ "gate": "g" }));
    for (at, call) in kept {
        assert_eq!(call.finish().response(&json!(at))["result"]["structuredContent"]["gate"], "g");
    }
    gateway.await_metric("requests_in_flight", &[], |calls| calls == 0.0);
    session.delete();
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
    gateway.await_metric("connections", &[("listener", "main")], |open| open == 0.0);
}
