//! Resuming: what a client gets that comes back to a stream, and what it is told when it cannot.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::child::Server;
use crate::client::Response;
use crate::gateway::Gateway;
use crate::session::Session;
use crate::sse::Event;

fn start(settings: &str) -> Gateway {
    Gateway::start(&format!("{settings}{}", Server::fake("fake").toml()))
}

fn open(gateway: &Gateway, revision: &str) -> Session {
    Session::open(gateway, "/fake/mcp", revision, json!({}))
}

fn resume_response(session: &Session, id: &str) -> Response {
    session.get_request().with("Last-Event-ID", id).send(session.address)
}

fn held(session: &Session, id: u64, gate: &str) -> crate::sse::EventStream {
    session.send_call_with_token(id, "hold", json!({ "gate": gate }), "t").stream()
}

fn release(session: &Session, gate: &str) {
    session.call(900, "release", json!({ "gate": gate }));
}

fn id_of(event: &Event) -> String {
    event.id.clone().expect("an id")
}

/// R:R01, R:R02, R:R03, R:R05, R:R06, R:R11, C:B79, C:B82, C:B84: a call whose stream breaks goes on; the client gets
/// the rest of that stream and no other, ids are unique, and an ended stream can be had again.
#[test]
fn a_broken_stream_is_resumed() {
    let gateway = start("[streams]\nsse_after = \"0s\"\n");
    let session = open(&gateway, "2025-11-25");
    let (mut first, mut second) = (held(&session, 1, "a"), held(&session, 2, "b"));
    let (primed, other) = (first.next_event(), second.next_event());
    assert_eq!((primed.data.as_str(), other.data.as_str()), ("", ""));
    let mut ids: BTreeSet<String> = [id_of(&primed), id_of(&other)].into();
    first.reset();
    second.reset();
    release(&session, "a");
    release(&session, "b");
    for (event, call) in [(&primed, 1), (&other, 2)] {
        for _again in 0..2 {
            let events = session.resume(&id_of(event)).rest();
            let answers: Vec<Value> = events.iter().map(Event::message).collect();
            assert_eq!(answers.len(), 1, "{answers:?}");
            assert_eq!(answers[0]["id"], call);
            ids.insert(id_of(&events[0]));
        }
    }
    assert_eq!(ids.len(), 4, "{ids:?}");
    assert_eq!(gateway.metrics().count("resumes_total", &[("result", "ok")]), 4.0);
}

/// R:R03: sessions before 2025-11-25 are not primed.
#[test]
fn older_streams_are_not_primed() {
    let gateway = start("[streams]\nsse_after = \"0s\"\n");
    let session = open(&gateway, "2025-06-18");
    let events = session.send_call(1, "echo", json!({})).stream().rest();
    assert!(events.iter().all(|event| !event.data.is_empty()), "{events:?}");
}

/// R:R07, R:R14: what is said while a stream is down waits on it, though a GET is open; a plain answer has no stream.
#[test]
fn messages_stay_on_their_stream() {
    let gateway = start("[streams]\nsse_after = \"0s\"\n");
    let session = open(&gateway, "2025-11-25");
    let mut get = session.get();
    get.next_event();
    let mut stream = held(&session, 1, "a");
    let primed = stream.next_event();
    stream.reset();
    release(&session, "a");
    let rest = session.resume(&id_of(&primed)).rest();
    assert_eq!(rest.last().expect("the answer").message()["id"], 1);
    // The first that comes on the open stream is what is said after all that.
    let other = held(&session, 3, "b");
    session.call(4, "notify", json!({ "method": "notifications/tools/list_changed" }));
    assert_eq!(get.next_message()["method"], "notifications/tools/list_changed");
    release(&session, "b");
    drop(other);
}

/// R:R08, C:B82, F:C10: a position that is not there is 400, whatever is wrong with it, and reveals nothing.
#[test]
fn a_dead_position_is_400() {
    let gateway = start("[streams]\nsse_after = \"0s\"\n");
    let (session, stranger) = (open(&gateway, "2025-11-25"), open(&gateway, "2025-11-25"));
    let own = session.send_call(1, "echo", json!({})).stream().rest();
    let foreign = stranger.send_call(1, "echo", json!({ "secret": 1 })).stream().rest();
    let last = id_of(own.last().expect("an answer"));
    let (stream, _) = last.split_once('.').expect("a position");
    let (future, unknown) = (format!("{stream}.99"), format!("{}.0", "0".repeat(16)));
    for id in [
        id_of(&foreign[0]),
        future,
        unknown,
        "x".to_owned(),
        format!("{stream}."),
        format!("{stream}.01"),
        "a".repeat(5000),
    ] {
        let response = resume_response(&session, &id);
        assert_eq!(response.status(), 400, "{id}");
        assert!(!response.text().contains("secret"));
    }
    assert!(session.resume(&last).rest().is_empty(), "its end is a position too");
}

/// R:R12: what was evicted is 400 and counted, never a gap.
#[test]
fn evicted_events_are_said_to_be_gone() {
    let gateway = start("[streams]\nsse_after = \"0s\"\n[replay]\nevents = 4\n");
    let session = open(&gateway, "2025-11-25");
    let call = session.send_call_with_token(1, "progress", json!({ "count": 40 }), "t");
    let events = call.stream().rest();
    assert!(events.len() > 20, "{}", events.len());
    assert_eq!(resume_response(&session, &id_of(&events[0])).status(), 400);
    let near = session.resume(&id_of(&events[events.len() - 2])).rest();
    assert_eq!(near.len(), 1);
    let metrics = gateway.metrics();
    assert_eq!(metrics.count("resumes_total", &[("result", "evicted")]), 1.0);
    assert!(metrics.count("replay_evictions_total", &[("reason", "events")]) >= 30.0);
    assert_eq!(metrics.count("replay_evictions_total", &[("reason", "bytes")]), 0.0);
}

/// R:R11: what the bound on bytes removes is said to be that.
#[test]
fn the_bound_on_bytes_is_said_to_be_one() {
    let gateway = start("[streams]\nsse_after = \"0s\"\n[replay]\nbytes = \"4KiB\"\n");
    let session = open(&gateway, "2025-11-25");
    let events = session.send_call(1, "log", json!({ "count": 20, "bytes": 1000 })).stream().rest();
    assert_eq!(resume_response(&session, &id_of(&events[0])).status(), 400);
    let metrics = gateway.metrics();
    assert!(metrics.count("replay_evictions_total", &[("reason", "bytes")]) >= 10.0);
    assert_eq!(metrics.count("replay_evictions_total", &[("reason", "events")]), 0.0);
}

/// R:R11, F:F10: a session keeps so many streams that ended and were read; the oldest go first, and what was not read
/// stays.
#[test]
fn ended_streams_are_few() {
    let gateway = start("[streams]\nsse_after = \"0s\"\n");
    let session = open(&gateway, "2025-11-25");
    let mut unread = held(&session, 1, "a");
    let position = id_of(&unread.next_event());
    unread.reset();
    gateway.await_metric("streams", &[], |streams| streams == 0.0);
    release(&session, "a");
    let first = session.send_call(2, "echo", json!({})).stream().rest();
    let mut last = Vec::new();
    for id in 0..400 {
        last = session.send_call(id, "echo", json!({})).stream().rest();
    }
    assert_eq!(resume_response(&session, &id_of(&first[0])).status(), 400, "the oldest is gone");
    assert_eq!(session.resume(&id_of(&last[0])).rest().len(), 1, "the newest is kept");
    assert_eq!(session.resume(&position).rest().last().unwrap().message()["id"], 1, "nobody had read it");
    let metrics = gateway.metrics();
    let gone = metrics.count("replay_evictions_total", &[("reason", "streams")]);
    assert!(gone >= 100.0 && metrics.count("replay_events", &[]) + gone >= 402.0, "{gone}");
}

/// R:R11: an ended stream is kept for its time only.
#[test]
fn an_old_stream_is_gone() {
    let gateway = start("[streams]\nsse_after = \"0s\"\n[replay]\nage = \"200ms\"\n");
    let session = open(&gateway, "2025-11-25");
    let events = session.send_call(1, "echo", json!({})).stream().rest();
    crate::gateway::await_that("the end of its time", || {
        (resume_response(&session, &id_of(&events[0])).status() == 400).then_some(())
    });
    assert!(gateway.metrics().count("replay_evictions_total", &[("reason", "age")]) >= 1.0);
    gateway.await_metric("replay_events", &[], |events| events == 0.0);
}

/// R:R10: who resumes takes over from whoever still reads.
#[test]
fn a_resume_takes_over() {
    let gateway = start("[streams]\nsse_after = \"0s\"\n");
    let session = open(&gateway, "2025-11-25");
    let mut first = held(&session, 1, "a");
    let primed = first.next_event();
    let mut second = session.resume(&id_of(&primed));
    assert!(first.rest().is_empty());
    release(&session, "a");
    assert_eq!(second.await_message(|message| message["id"] == 1)["id"], 1);
}

/// R:R13, R:R15: comments use no position up, and what is said while nobody reads the standalone stream waits there.
#[test]
fn the_standalone_stream_waits_for_its_reader() {
    let gateway = start("[streams]\ncomment_every = \"20ms\"\n");
    let session = open(&gateway, "2025-11-25");
    let mut get = session.get();
    let primed = get.next_event();
    for _ in 0..3 {
        get.next();
    }
    assert_eq!(get.last_event_id(), id_of(&primed));
    get.reset();
    let held = held(&session, 1, "a");
    session.call(2, "notify", json!({ "method": "notifications/tools/list_changed" }));
    let mut resumed = session.resume(&id_of(&primed));
    assert_eq!(resumed.next_message()["method"], "notifications/tools/list_changed");
    release(&session, "a");
    drop(held);
}

/// R:R04, R:R17: a connection that is closed before its answer says when to come back; the answer is had by resuming.
#[test]
fn a_stream_is_closed_politely() {
    let gateway = start("[streams]\nsse_after = \"0s\"\nmax_age = \"100ms\"\nretry = \"700ms\"\n");
    let session = open(&gateway, "2025-11-25");
    let stream = held(&session, 1, "a");
    let events = stream.rest();
    assert_eq!(events.len(), 1, "closed after its priming event");
    release(&session, "a");
    let rest = session.resume(&id_of(&events[0])).rest();
    assert_eq!(rest.last().expect("the answer").message()["id"], 1);
    assert!(gateway.metrics().count("stream_cuts_total", &[("reason", "age")]) >= 1.0);
}
