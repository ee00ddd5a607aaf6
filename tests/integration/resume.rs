//! Resuming at its edges: in the middle of a call and of an answer, on streams opened anew, with cursors that are
//! none, and on streams closed for their age.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::child::Server;
use crate::client::Connection;
use crate::gateway::Gateway;
use crate::session::Session;
use crate::sse::{Event, EventStream, Item, Parser};

/// A gateway whose calls are streams at once, with further tables.
fn start(tables: &str) -> Gateway {
    let server = Server::fake("fake").key("check_on_start = false").key("pool.min_idle = 0");
    Gateway::start(&format!("[streams]\nsse_after = \"0s\"\n{tables}\n{}", server.toml()))
}

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({}))
}

fn id_of(event: &Event) -> String {
    event.id.clone().unwrap_or_else(|| panic!("no id: {event:?}"))
}

fn ids(events: &[Event]) -> Vec<String> {
    events.iter().map(id_of).collect()
}

/// What is said in events that say something.
fn messages(events: &[Event]) -> Vec<Value> {
    events.iter().filter(|event| !event.data.is_empty()).map(Event::message).collect()
}

/// Starts a call that holds until `release`, reads its priming event and leaves the stream open.
fn hold(session: &Session, id: &str) -> (EventStream, String) {
    let mut stream = session.send_call(id, "hold", json!({ "gate": id })).stream();
    let primed = id_of(&stream.next_event());
    session.call("wait", "await_held", json!({ "gate": id }));
    (stream, primed)
}

fn release(session: &Session, id: &str) {
    session.call("release", "release", json!({ "gate": id }));
}

/// Breaks a stream and waits until the gateway knows.
fn break_off(gateway: &Gateway, stream: EventStream) {
    let open = gateway.metrics().count("streams", &[]);
    stream.reset();
    gateway.await_metric("streams", &[], |streams| streams < open || streams == 0.0);
}

/// R:R01, R:R02, R:R03, C:B79: every event has an id nobody else's has, of visible ASCII; the first one of a
/// 2025-11-25 stream says nothing but its id, and older clients, which would choke on it, get none.
#[test]
fn every_event_has_an_id_of_its_own() {
    let gateway = start("");
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        let mut get = session.get();
        let primes = revision == "2025-11-25";
        let mut seen: Vec<String> = if primes { vec![id_of(&get.next_event())] } else { vec![] };
        for call in 0..3 {
            let answer = session.send_call_with_token(call, "progress", json!({ "count": 2 }), call).finish();
            let first = &answer.events[0];
            assert_eq!(first.data.is_empty(), primes, "{revision}: {first:?}");
            assert_eq!(messages(&answer.events).len(), 3, "{answer:?}");
            seen.extend(ids(&answer.events));
        }
        assert!(seen.iter().all(|id| id.bytes().all(|byte| byte.is_ascii_graphic())), "{seen:?}");
        assert_eq!(seen.iter().collect::<HashSet<_>>().len(), seen.len(), "{seen:?}");
        let streams: HashSet<&str> = seen.iter().map(|id| id.split_once('.').unwrap().0).collect();
        assert_eq!(streams.len(), if primes { 4 } else { 3 }, "each names its stream: {seen:?}");
    }
}

/// R:R05, R:R06, R:R07, C:B82: a broken call is resumed by GET behind the event that was read last: what
/// followed on that stream, then what comes, then its end, and nothing of it on any other stream.
#[test]
fn a_broken_call_goes_on_where_it_broke() {
    let gateway = start("");
    let session = open(&gateway);
    let mut get = session.get();
    get.next_event();
    let paced = json!({ "count": 4, "pace": 0.15 });
    let mut broken = session.send_call_with_token("a", "progress", paced.clone(), "ta").stream();
    let whole = session.send_call_with_token("b", "progress", paced, "tb");
    broken.next_event();
    let first = broken.next_event();
    assert_eq!(first.message()["params"]["progress"], 1);
    break_off(&gateway, broken);
    let rest = session.resume(&id_of(&first)).rest();
    let progress: Vec<Value> = messages(&rest).iter().map(|message| message["params"]["progress"].clone()).collect();
    assert_eq!(progress, [json!(2), json!(3), json!(4), Value::Null], "{rest:?}");
    assert!(rest[..3].iter().all(|event| event.message()["params"]["progressToken"] == "ta"), "{rest:?}");
    assert_eq!(rest[3].message()["id"], "a");
    let whole = whole.finish();
    assert!(messages(&whole.events)[..4].iter().all(|message| message["params"]["progressToken"] == "tb"));
    assert_eq!(whole.message()["id"], "b");
    for (id, resumed) in [("a", json!(1)), ("b", json!(null))] {
        let line = gateway.await_event("rpc", |event| event["rpc_id"] == id);
        assert_eq!(line["resumed"], resumed, "{line}");
    }
    session.delete();
    assert_eq!(get.rest(), [], "nothing was diverted to the other stream");
    assert_eq!(gateway.metrics().count("resumes_total", &[("result", "ok")]), 1.0);
}

/// R:R11, C:B84: an answer that came while its client was away waits for it, an error as well as a result, and is
/// there again for a client that was cut off once more.
#[test]
fn an_answer_waits_for_its_client() {
    let gateway = start("");
    let session = open(&gateway);
    let (stream, primed) = hold(&session, "held");
    break_off(&gateway, stream);
    release(&session, "held");
    for _ in 0..2 {
        let rest = session.resume(&primed).rest();
        assert_eq!(messages(&rest).len(), 1, "{rest:?}");
        assert_eq!(rest[0].message()["result"]["structuredContent"]["gate"], "held");
    }
    let mut failing = session.send_call("error", "error", json!({ "error": { "code": -5, "message": "no" } })).stream();
    let primed = id_of(&failing.next_event());
    break_off(&gateway, failing);
    let rest = session.resume(&primed).rest();
    assert_eq!(messages(&rest), [json!({ "jsonrpc": "2.0", "id": "error", "error": { "code": -5, "message": "no" } })]);
}

/// R:R06, R:R10, C:B77: a standalone stream opened anew goes on behind what was sent before it, and the position
/// its first event names is just that: coming back to it repeats nothing.
#[test]
fn a_new_standalone_stream_stands_where_the_old_one_ended() {
    let gateway = start("[replay]\nevents = 2");
    let session = open(&gateway);
    // A second call in flight keeps what belongs to no call away from the calls' streams.
    let (held, _) = hold(&session, "held");
    let notify = |n: u32| {
        let params = json!({ "method": "notifications/message", "params": { "level": "info", "data": n } });
        session.call(n, "notify", params);
    };
    let mut get = session.get();
    get.next_event();
    for n in 1..=4 {
        notify(n);
        assert_eq!(get.next_message()["params"]["data"], n);
    }
    break_off(&gateway, get);
    let mut again = session.get();
    let primed = again.next_event();
    assert_eq!(primed.data, "", "{primed:?}");
    break_off(&gateway, again);
    notify(5);
    let mut resumed = session.resume(&id_of(&primed));
    assert_eq!(resumed.next_message()["params"]["data"], 5, "nothing is repeated");
    drop(held);
}

/// R:R13: what belongs to no call and finds no stream waits for the next one, as much as is kept for resumes.
#[test]
fn what_finds_no_stream_waits_for_the_next() {
    let gateway = start("[replay]\nevents = 3");
    for revision in ["2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        let held = session.send_call("held", "hold", json!({ "gate": "held" })).stream();
        session.call("wait", "await_held", json!({ "gate": "held" }));
        session.call(1, "notify", json!({ "method": "notifications/tools/list_changed" }));
        let mut get = session.get();
        assert_eq!(get.next_message()["method"], "notifications/tools/list_changed");
        break_off(&gateway, get);
        session.call(2, "log", json!({ "count": 10 }));
        session.delete();
        drop(held);
    }
    let session = open(&gateway);
    let (_held, _) = hold(&session, "held");
    for n in 0..10 {
        session.call(n, "notify", json!({ "method": "notifications/message", "params": { "data": n } }));
    }
    let mut get = session.get();
    let kept: Vec<Value> = (0..3).map(|_| get.next_message()["params"]["data"].clone()).collect();
    assert_eq!(kept, [7, 8, 9], "bounded, the newest stay");
}

/// R:R08, F:C10: a position that is malformed, foreign or never was is a 400, neither a lost session nor a stream
/// that silently starts elsewhere, and tells nothing.
#[test]
fn a_cursor_that_is_none_is_400() {
    let gateway = start("");
    let (session, other) = (open(&gateway), open(&gateway));
    let answer = session.send_call_with_token(1, "progress", json!({ "count": 2 }), "t").finish();
    let good = id_of(&answer.events[1]);
    let (nonce, position) = good.split_once('.').unwrap();
    assert_eq!(position, "1", "{good}");
    let foreign = id_of(&other.send_call_with_token(1, "progress", json!({}), "t").finish().events[1]);
    let malformed = [
        "",
        "x",
        "0",
        nonce,
        "é",
        "-1",
        &format!("{nonce}."),
        &format!(".{position}"),
        &format!("{nonce}.01"),
        &format!("{nonce}.-1"),
        &format!("{nonce}.1 "),
        &format!("{nonce}.1.1"),
        &format!("{nonce}.0x1"),
        &format!("{nonce}.18446744073709551616"),
        &good.to_uppercase().replace(position, "A"),
        &"9".repeat(4096),
    ]
    .map(str::to_owned);
    let strangers =
        [foreign, format!("{nonce}.4"), format!("{nonce}.18446744073709551615"), format!("{}.1", "0".repeat(16))];
    for cursor in malformed.iter().chain(&strangers) {
        let response = session.get_request().header("Last-Event-ID", cursor).send(session.address);
        if cursor.trim() == format!("{nonce}.1") {
            assert_eq!(response.status(), 200, "white space around a value is no part of it (RFC 9110, 5.5)");
            continue;
        }
        assert_eq!(response.status(), 400, "{cursor:?}: {response:?}");
        assert!(response.json()["error"]["code"].is_i64(), "{response:?}");
        assert!(cursor.len() < 3 || !response.text().contains(cursor.as_str()), "{response:?}");
    }
    let twice = session.get_request().header("Last-Event-ID", &good).header("Last-Event-ID", &good);
    assert_eq!(twice.send(session.address).status(), 400);
    let huge = session.get_request().header("Last-Event-ID", &"9".repeat(1 << 20));
    let mut connection = Connection::open(session.address);
    // The gateway may close before it has read so much.
    let _ = connection.try_send(huge.bytes(session.address));
    let answered = String::from_utf8_lossy(&connection.read_to_close()).into_owned();
    assert!(answered.is_empty() || answered.starts_with("HTTP/1.1 431"), "{answered}");
    assert_eq!(messages(&session.resume(&good).rest()).len(), 2, "the session and its stream are unharmed");
    let metrics = gateway.metrics();
    assert_eq!(metrics.count("resumes_total", &[("result", "foreign")]), 4.0, "{metrics}");
    assert!(metrics.count("resumes_total", &[("result", "malformed")]) >= 13.0, "{metrics}");
}

/// R:R04: a stream of a client that can come back is closed at a certain age, politely:
/// with the pause to make, behind an id; older clients keep theirs.
#[test]
fn an_old_stream_is_closed_and_goes_on() {
    let gateway = Gateway::start(&format!(
        "[streams]\nsse_after = \"0s\"\nmax_age = \"300ms\"\nretry = \"1500ms\"\n{}",
        Server::fake("fake").toml()
    ));
    let older = Session::open(&gateway, "/fake/mcp", "2025-06-18", json!({}));
    let mut lasting = older.get();
    let session = open(&gateway);
    let mut get = session.get();
    assert_eq!(get.next_event_or_end().map(|event| event.data), Some(String::new()));
    let (mut stream, primed) = hold(&session, "held");
    for _ in 0..2 {
        assert_eq!(stream.next_event_or_end(), None, "closed without a word of content");
        assert!(matches!(stream.seen.last(), Some(Item::Retry(1500))), "{:?}", stream.seen);
        stream = session.resume(&primed);
    }
    release(&session, "held");
    assert_eq!(messages(&stream.rest()).len(), 1, "the call ran on");
    assert_eq!(get.next_event_or_end(), None);
    assert!(matches!(get.seen.last(), Some(Item::Retry(1500))), "{:?}", get.seen);
    assert_eq!(gateway.metrics().count("stream_cuts_total", &[("reason", "age")]), 3.0);
    let _held = older.send_call("held", "hold", json!({ "gate": "g" }));
    older.call(1, "await_held", json!({ "gate": "g" }));
    older.call(2, "notify", json!({ "method": "notifications/tools/list_changed" }));
    assert_eq!(lasting.next_message()["method"], "notifications/tools/list_changed");
}

/// R:R11, F:D03: a long answer that broke off in the middle is still there whole, though it is larger than what
/// is kept of a stream.
#[test]
fn an_answer_that_broke_off_in_the_middle_is_kept() {
    const SIZE: usize = 6_000_000;
    let gateway = start("[replay]\nbytes = \"1MiB\"");
    let session = open(&gateway);
    let mut connection = Connection::open_small(session.address, 4096);
    let call = crate::session::call(1, "bytes", json!({ "size": SIZE }), None);
    connection.request(&session.post_request(call.to_string()));
    connection.head();
    let mut parser = Parser::default();
    let mut whole = Vec::new();
    let mut read = 0;
    while read < 100_000 {
        let piece = connection.read_body().unwrap();
        read += piece.len();
        whole.extend(parser.push(&piece));
    }
    connection.reset();
    let [Item::Retry(_), Item::Event(primed)] = &whole[..] else { panic!("{whole:?}") };
    gateway.await_metric("streams", &[], |streams| streams == 0.0);
    let rest = session.resume(&id_of(primed)).rest();
    assert_eq!(messages(&rest).len(), 1);
    assert_eq!(rest[0].message()["result"]["content"][0]["text"].as_str().unwrap().len(), SIZE);
}

/// R:R17: what can be answered at once is plain JSON, `tasks/get` no less than anything else.
#[test]
fn a_quick_answer_is_plain_json() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = open(&gateway);
    for method in ["tasks/get", "vendor/quick"] {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "taskId": "t" } });
        let answer = session.post(request.to_string());
        assert!(!answer.is_stream(), "{answer:?}");
        assert_eq!(answer.message()["id"], 1);
    }
}
