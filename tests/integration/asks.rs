//! What a child sends of its own: its requests and notifications, the way to the client, and the answers back.

use std::time::Duration;

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::gateway::Gateway;
use crate::session::{Session, call};
use crate::sse::{Event, Item};

/// A client that answers everything a child may ask.
fn able() -> Value {
    json!({ "roots": {}, "sampling": {}, "elicitation": {} })
}

/// R:H15, R:H17, R:H19, C:B46: the standalone stream carries what belongs to no call, and never a response; of
/// two readers the later one takes it over, and each message comes once.
#[test]
fn the_standalone_stream_carries_what_belongs_to_no_call() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-06-18", json!({}));
    let mut first = session.get();
    // Two calls in flight: a notification cannot belong to one of them.
    let held = session.send_call(1, "hold", json!({ "gate": "g" }));
    session.call(2, "await_held", json!({ "gate": "g" }));
    session.call(3, "notify", json!({ "method": "notifications/tools/list_changed" }));
    assert_eq!(first.next_message()["method"], "notifications/tools/list_changed");
    let mut second = session.get();
    assert!(first.next_event_or_end().is_none(), "the older reader is closed, not starved");
    session.call(4, "notify", json!({ "method": "notifications/prompts/list_changed" }));
    session.call(5, "notify", json!({ "method": "notifications/resources/list_changed" }));
    session.call(6, "release", json!({ "gate": "g" }));
    assert_eq!(held.finish().message()["id"], 1);
    assert_eq!(second.next_message()["method"], "notifications/prompts/list_changed");
    assert_eq!(second.next_message()["method"], "notifications/resources/list_changed");
    session.delete();
    assert!(second.next_event_or_end().is_none(), "nothing else ever came: {:?}", second.seen);
    gateway.await_metric("stream_cuts_total", &[("reason", "takeover")], |count| count == 1.0);
}

/// R:H18: a request that belongs to no call goes to the standalone stream, and its answer back to the child
/// under the child's own id.
#[test]
fn a_request_outside_a_call_goes_to_the_standalone_stream() {
    let record = Record::new();
    let request = r#"{"jsonrpc":"2.0","id":"r-é","method":"roots/list"}"#;
    let server = Server::fake("fake").option("--record", record.path()).arg("--after-initialized").arg(request);
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway, "/fake/mcp", revision, able());
        let mut stream = session.get();
        let asked = stream.next_message();
        assert_eq!(asked["method"], "roots/list", "{revision}: {asked}");
        let accepted = session.respond(&asked["id"], json!({ "roots": [], "revision": revision }));
        assert_eq!((accepted.status(), accepted.body.len()), (202, 0));
        let answer = record.await_message(|message| message["result"]["revision"] == revision);
        assert_eq!(answer["id"], "r-é");
    }
}

/// R:H35: what a child sends between its InitializeResult and `initialized` is held, not refused: requests
/// come after it; notifications and its pings are served at once.
#[test]
fn what_a_child_sends_early_is_held() {
    let record = Record::new();
    let server = Server::fake("fake")
        .option("--record", record.path())
        .arg("--after-init")
        .arg(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)
        .arg("--after-init")
        .arg(r#"{"jsonrpc":"2.0","id":2,"method":"roots/list"}"#)
        .arg("--after-init")
        .arg(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"early"}}"#);
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    let session = Session::initialize(&gateway, "/fake/mcp", "2025-06-18", able(), &[]);
    let pong = record.await_message(|message| message["id"] == 1 && message["result"] == json!({}));
    assert!(pong.get("method").is_none());
    let mut stream = session.get();
    assert_eq!(stream.next_message()["params"]["data"], "early");
    assert!(!record.lines().iter().any(|line| line.contains("initialized\"")), "nobody confirmed yet");
    assert!(stream.connection().is_quiet_for(Duration::from_millis(50)), "the request waits");
    session.notify("notifications/initialized", json!({}));
    let asked = stream.next_message();
    assert_eq!(asked["method"], "roots/list");
    session.respond(&asked["id"], json!({ "roots": [] }));
    let answer = record.await_message(|message| message["result"]["roots"].is_array());
    assert_eq!(answer["id"], 2);
    let lines = record.lines();
    let place = |needle: &str| lines.iter().position(|line| line.contains(needle)).unwrap();
    assert!(place("notifications/initialized") < place("\"roots\":[]"), "{lines:?}");
}

/// R:X04: one taken back before the client was ready for it is not asked at all.
#[test]
fn an_early_question_that_was_withdrawn_is_not_asked() {
    let ask = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"elicitation/create","params":{{}}}}"#);
    let server = Server::fake("fake")
        .option("--after-init", ask("withdrawn"))
        .option(
            "--after-init",
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"withdrawn"}}"#,
        )
        .option("--after-init", ask("kept"));
    let gateway = Gateway::start(&server.toml());
    let session = Session::initialize(&gateway, "/fake/mcp", "2025-11-25", able(), &[]);
    gateway.await_metric("notifications_total", &[("kind", "cancelled")], |count| count == 1.0);
    assert_eq!(session.notify("notifications/initialized", json!({})).status(), 202);
    let mut get = session.get();
    assert_eq!(get.await_message(|message| message["method"] == "elicitation/create")["id"], "kept");
    session.respond(&json!("kept"), json!({}));
}

/// R:H31: a child's ping is answered by the gateway, under the child's id, without troubling the client.
#[test]
fn a_childs_ping_is_answered_by_the_gateway() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    for id in [json!(7), json!("ping-é"), json!(0)] {
        let answer = session.send_call(1, "ask", json!({ "method": "ping", "id": id })).finish();
        assert!(!answer.is_stream(), "nothing but the answer was sent: {answer:?}");
        assert_eq!(answer.message()["result"]["structuredContent"]["result"], json!({}), "{answer:?}");
        assert_eq!(answer.message()["result"]["structuredContent"]["id"], id, "{answer:?}");
    }
}

/// C:B48: a request of the child's comes on the stream of the call it belongs to, and the answer goes back.
#[test]
fn a_request_within_a_call_comes_on_its_stream() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", able());
    let arguments = json!({ "method": "elicitation/create", "id": "e1", "params": { "message": "m", "zz": 1 } });
    let mut stream = session.send_call(1, "ask", arguments).stream();
    let asked = stream.next_message();
    assert_eq!((&asked["method"], &asked["params"]["zz"]), (&json!("elicitation/create"), &json!(1)), "{asked}");
    session.respond(&asked["id"], json!({ "action": "accept", "content": { "n": 1 } }));
    let answer = stream.next_message();
    let back = &answer["result"]["structuredContent"];
    assert_eq!((&back["id"], &back["result"]["content"]["n"]), (&json!("e1"), &json!(1)), "{answer}");
}

/// R:V16, C:B48: what the client did not say it can do is refused to the child at once.
#[test]
fn what_the_client_cannot_do_is_refused_at_once() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    for method in ["roots/list", "sampling/createMessage", "elicitation/create"] {
        let answer = session.send_call(1, "ask", json!({ "method": method })).finish();
        assert!(!answer.is_stream(), "{method}: {answer:?}");
        let back = answer.message()["result"]["structuredContent"].clone();
        assert_eq!(back["error"]["code"], -32601, "{method}: {back}");
    }
}

/// R:H34, F:C14: an answer nobody asked this session for, or that was given already, is accepted, dropped and
/// counted; it reaches no child, and the one that was asked for still arrives.
#[test]
fn answers_nobody_awaits_are_dropped() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    let [asked, other] = [(); 2].map(|()| Session::open(&gateway, "/fake/mcp", "2025-11-25", able()));
    let arguments = json!({ "method": "sampling/createMessage", "id": "s", "params": {} });
    let mut stream = asked.send_call(1, "ask", arguments).stream();
    let id = stream.next_message()["id"].clone();
    other.request(0, "ping", json!({}));
    let before = record.lines().len();
    let forged = |session: &Session, id: &Value| {
        assert_eq!(session.respond(id, json!({ "forged": true })).status(), 202);
        let body = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -1, "message": "forged" } });
        assert_eq!(session.post_request(body.to_string()).send(session.address).status(), 202);
    };
    // The other session guesses the very id; both guess others, the child's own among them.
    forged(&other, &id);
    for guess in [json!("s"), json!(1), json!(2), json!("1"), json!(0), json!("")] {
        if guess != id {
            forged(&asked, &guess);
            forged(&other, &guess);
        }
    }
    assert_eq!(record.lines().len(), before, "{:?}", record.lines());
    asked.respond(&id, json!({ "model": "m" }));
    assert_eq!(stream.next_message()["result"]["structuredContent"]["result"]["model"], "m");
    let after = record.lines().len();
    forged(&asked, &id);
    assert_eq!(record.lines().len(), after, "a second answer is one too many");
    let dropped = gateway.metrics().count("unmatched_responses_total", &[("from", "client")]);
    assert!(dropped >= 20.0, "{dropped}");
}

/// R:H26: a quiet stream carries comments, which use up no event id and reach nobody else.
#[test]
fn quiet_streams_carry_comments() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let server = server.key("check_on_start = false").key("pool.min_idle = 0").toml();
    let gateway = Gateway::start(&format!("[streams]\ncomment_every = \"50ms\"\nsse_after = \"50ms\"\n{server}"));
    let session = Session::open(&gateway, "/fake/mcp", "2025-06-18", json!({}));
    for mut stream in [session.get(), session.send_call(1, "silent", json!({})).stream()] {
        for _ in 0..4 {
            let item = stream.next().unwrap();
            assert!(matches!(item, crate::sse::Item::Comment(_)), "{item:?}");
        }
        assert_eq!(stream.last_event_id(), "");
    }
    // The handshake's two lines, and the call.
    assert_eq!(record.lines().len(), 3, "{:?}", record.lines());
}

/// A gateway that keeps four events, and a session whose child may ask everything and records what it reads.
fn forgetful(record: &Record) -> (Gateway, Session) {
    let server = Server::fake("fake").option("--record", record.path());
    let server = server.key("check_on_start = false").key("pool.min_idle = 0").toml();
    let gateway = Gateway::start(&format!("[replay]\nevents = 4\n{server}"));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", able());
    (gateway, session)
}

/// A call whose client takes JSON only, so that what its child says goes to the standalone stream.
fn call_apart(session: &Session, id: u32, tool: &str, arguments: Value) {
    let request = session.post_request(call(id, tool, arguments, None).to_string()).with("Accept", "application/json");
    assert_eq!(request.send(session.address).status(), 200);
}

/// R:X08: a request that waits for a reader is not pushed out by notifications.
#[test]
fn a_request_waits_for_its_reader() {
    let record = Record::new();
    let (gateway, session) = forgetful(&record);
    let arguments = json!({ "method": "elicitation/create", "id": "kept", "params": {}, "wait": false });
    call_apart(&session, 1, "ask", arguments);
    call_apart(&session, 2, "notify", json!({ "method": "notifications/tools/list_changed", "count": 40 }));
    let mut get = session.get();
    assert_eq!(get.await_message(|message| message["method"] == "elicitation/create")["id"], "kept");
    let next = get.next_message();
    assert_eq!(next["method"], "notifications/tools/list_changed", "what is kept follows");
    session.respond(&json!("kept"), json!({ "action": "accept" }));
    assert_eq!(record.await_message(|message| message["id"] == "kept")["result"]["action"], "accept");
    assert!(gateway.metrics().count("replay_evictions_total", &[("reason", "events")]) >= 30.0);
    // What lies between what was read and what is kept is gone.
    let asked = |item: &Item| matches!(item, Item::Event(event) if event.data.contains("kept"));
    let Some(Item::Event(Event { id: Some(id), .. })) = get.seen.iter().find(|item| asked(item)).cloned() else {
        panic!("no id: {:?}", get.seen)
    };
    get.reset();
    let response = session.get_request().header("Last-Event-ID", &id).send(session.address);
    assert_eq!(response.status(), 400, "{response:?}");
}

/// Where more requests wait than are kept, those that are lost fail at once, not with their clocks.
#[test]
fn a_request_that_is_lost_fails_at_once() {
    let record = Record::new();
    let (_gateway, session) = forgetful(&record);
    for id in 0..6 {
        let arguments = json!({ "method": "elicitation/create", "id": id, "params": {}, "wait": false });
        call_apart(&session, id, "ask", arguments);
    }
    for id in 0..2 {
        let failed = record.await_message(|message| message["id"] == id && message.get("error").is_some());
        assert_eq!(failed["error"]["code"], -32001, "{failed}");
    }
    let mut get = session.get();
    for id in 2..6 {
        assert_eq!(get.await_message(|message| message["method"] == "elicitation/create")["id"], id);
        session.respond(&json!(id), json!({ "action": "decline" }));
        record.await_message(|message| message["id"] == id && message["result"]["action"] == "decline");
    }
}
