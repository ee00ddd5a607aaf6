//! Limits of heads, times and counts: each is held, said so, and costs nobody else anything.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use crate::child::{Record, Server};
use crate::client::{Connection, Request, pour};
use crate::gateway::{Gateway, await_that, pid};
use crate::session::{Session, call};
use crate::sse::Item;

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// A gateway with these lines before its server, whose child is started only by sessions and recorded.
fn start(lines: &str, record: &Record) -> Gateway {
    let server = Server::fake("fake").option("--record", record.path());
    let server = server.key("check_on_start = false").key("pool.min_idle = 0").toml();
    Gateway::start(&format!("{lines}\n{server}"))
}

/// F:D01: a head that does not end in time is cut, however busily it drips; silence from the beginning too.
/// Meanwhile others are served.
#[test]
fn a_slow_head_is_cut() {
    let record = Record::new();
    let gateway = start("limits.header_timeout = \"300ms\"", &record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut slow: Vec<Connection> = (0..50).map(|_| Connection::open(gateway.address())).collect();
    for connection in &mut slow[10..] {
        connection.send("POST /fake/mcp HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
    }
    let began = Instant::now();
    let mut rounds = 0;
    while slow[10..].iter_mut().any(|connection| connection.try_send("x").is_ok()) {
        assert_eq!(session.post(PING).head.status, 200);
        rounds += 1;
        std::thread::sleep(Duration::from_millis(20));
        assert!(began.elapsed() < Duration::from_secs(20), "dripping heads still live");
    }
    assert!(rounds > 3, "the good client was served on the side: {rounds}");
    for connection in &mut slow {
        let rest = String::from_utf8_lossy(&connection.read_to_close()).into_owned();
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408 "), "{rest:?}");
    }
    gateway.await_metric("connections", &[("listener", "main")], |count| count == 0.0);
}

/// F:D03: a client that stops reading an answer is cut; its stream stays, and nobody waits for it.
#[test]
fn a_reader_that_stops_is_cut_and_may_come_back() {
    let record = Record::new();
    let gateway = start("limits.write_stall = \"400ms\"", &record);
    let other = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut stalled = Connection::open_small(gateway.address(), 4096);
    let flood = json!({ "count": 40, "bytes": 65_536 });
    stalled.request(&session.post_request(call(1, "log", flood, None).to_string()));
    let head = stalled.head();
    assert_eq!(head.header("content-type"), Some("text/event-stream"), "{head:?}");
    let mut parser = crate::sse::Parser::default();
    while parser.last_event_id().is_empty() {
        parser.push(&stalled.read_body().unwrap());
    }
    let began = Instant::now();
    while gateway.metrics().count("stream_cuts_total", &[("reason", "stall")]) == 0.0 {
        assert_eq!(other.post(PING).head.status, 200);
        assert!(began.elapsed() < Duration::from_secs(20), "never cut");
    }
    let rest = session.resume(parser.last_event_id()).rest();
    let last = rest.last().unwrap().message();
    assert_eq!(last["id"], 1, "the answer came after all: {last}");
    let logs = rest.iter().filter(|event| event.data.contains("notifications/message")).count();
    assert!(logs >= 39, "{logs} of 40: only what was read before may be missing");
}

/// F:D03, C:B87: readers that stop under a flood cost a bounded amount each, and their children are read on.
#[test]
fn readers_that_stop_cost_little() {
    let record = Record::new();
    let gateway = start("[limits]\nwrite_stall = \"400ms\"\n[replay]\nbytes = \"1MiB\"", &record);
    let other = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let before = gateway.rss();
    let sessions: Vec<_> = (0..4).map(|_| Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}))).collect();
    let stalled: Vec<Connection> = sessions
        .iter()
        .map(|session| {
            let mut connection = Connection::open_small(gateway.address(), 4096);
            let flood = json!({ "count": 320, "bytes": 65_536 });
            connection.request(&session.post_request(call(1, "log", flood, None).to_string()));
            connection
        })
        .collect();
    let mut highest = 0;
    await_that("every reader's cut", || {
        highest = gateway.rss().max(highest);
        assert_eq!(other.post(PING).head.status, 200);
        (gateway.metrics().count("stream_cuts_total", &[("reason", "stall")]) >= 4.0).then_some(())
    });
    for session in &sessions {
        assert_eq!(session.post(PING).head.status, 200, "its child is read again");
    }
    highest = gateway.rss().max(highest);
    // Four floods of 20 MiB; a window of 4 MiB and a little each may be held.
    assert!(highest.saturating_sub(before) < 60 << 20, "{} MiB more", (highest - before) >> 20);
    drop(stalled);
}

/// F:D05, C:B74: an idle connection is closed after its pause; a stream is not idle, and no limit of heads and
/// bodies ends it.
#[test]
fn idle_connections_end_and_streams_do_not() {
    let record = Record::new();
    let short = "header_timeout = \"200ms\"\nbody_idle = \"200ms\"\nkeep_alive = \"200ms\"\nwrite_stall = \"200ms\"";
    let gateway = start(&format!("[limits]\n{short}\n[streams]\ncomment_every = \"100ms\""), &record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut idle = Connection::open(gateway.address());
    idle.request(&session.post_request(PING));
    assert_eq!(idle.response().status(), 200);
    let mut stream = session.get();
    let held = session.send_call(1, "hold", json!({ "gate": "g" }));
    idle.await_close();
    let comments = std::iter::from_fn(|| stream.next()).filter(|item| matches!(item, Item::Comment(_)));
    assert_eq!(comments.take(8).count(), 8, "eight pauses, each half as long as every limit");
    session.call(2, "release", json!({ "gate": "g" }));
    assert_eq!(held.finish().message()["id"], 1);
}

/// F:D04: a peer that fell silent without a word is asked whether it lives; the kernel's clock for that runs from
/// the first moment. (That the question is lost needs a network that loses it.)
#[test]
fn a_silent_peer_is_asked_whether_it_lives() {
    let record = Record::new();
    let gateway = start("", &record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut stream = session.get();
    stream.next();
    let (server, client) = (gateway.address().port(), stream.connection().stream.local_addr().unwrap().port());
    let ticks = rustix::param::clock_ticks_per_second();
    let timer = await_that("the connection's keep-alive timer", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let own = lines.find(|fields| {
            fields[1].ends_with(&format!(":{server:04X}")) && fields[2].ends_with(&format!(":{client:04X}"))
        });
        // Kind 2 is keep-alive; 1 is a byte that was not acknowledged yet.
        own?[5].strip_prefix("02:").map(|when| u64::from_str_radix(when, 16).unwrap())
    });
    assert!(timer <= 15 * ticks, "{timer} ticks of {ticks} a second");
}

/// F:D05: a connection of a certain age is closed in peace: its answer says so, and it is whole.
#[test]
fn old_connections_are_closed_in_peace() {
    let record = Record::new();
    let gateway = start("limits.connection_age = \"300ms\"", &record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut connection = Connection::open(gateway.address());
    let began = Instant::now();
    loop {
        if connection.try_send(session.post_request(PING).bytes(session.address)).is_err() {
            break;
        }
        let Some(head) = connection.try_head() else { break };
        assert_eq!(head.status, 200);
        assert!(!connection.body().is_empty());
        if head.header("connection") == Some("close") {
            connection.await_close();
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "never closed");
    }
    assert!(began.elapsed() > Duration::from_millis(200), "{:?}", began.elapsed());
    assert_eq!(session.post(PING).head.status, 200);
}

/// F:D06: heads above a limit of fields, bytes or target are refused and the connection ends; what stood in
/// them is not logged.
#[test]
fn heads_are_bounded() {
    let record = Record::new();
    let gateway = start("", &record);
    let head = |target: &str, fields: &str| format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    let fields = |count: usize| (0..count).map(|n| format!("X-Canary-{n}: canary\r\n")).collect::<String>();
    let long = |bytes: usize| format!("X-Canary: {}\r\n", "c".repeat(bytes));
    let cases = [
        ("63 fields beside the host", head("/fake/mcp", &fields(63)), 400, false),
        ("64 fields beside the host", head("/fake/mcp", &fields(64)), 431, true),
        ("99 fields", head("/fake/mcp", &fields(99)), 431, true),
        ("1000 fields", head("/fake/mcp", &fields(1000)), 431, true),
        ("a field of 30 KiB", head("/fake/mcp", &long(30 << 10)), 400, false),
        ("a field of 33 KiB", head("/fake/mcp", &long(33 << 10)), 431, true),
        ("a field of 300 KiB", head("/fake/mcp", &long(300 << 10)), 431, true),
        ("a target of 30 KiB", head(&format!("/fake/mcp?{}", "canary".repeat(5 << 10)), ""), 400, false),
    ];
    for (what, bytes, status, closes) in cases {
        let mut connection = Connection::open(gateway.address());
        pour(&mut connection, bytes.as_bytes(), 1);
        assert_eq!(connection.response().status(), status, "{what}");
        if closes {
            connection.await_close();
        }
    }
    let mut connection = Connection::open(gateway.address());
    pour(&mut connection, head(&format!("/{}", "canary".repeat(12 << 10)), "").as_bytes(), 1);
    let status = connection.response().status();
    assert!(matches!(status, 414 | 431), "a target of 72 KiB: {status}");
    connection.await_close();
    let log = gateway.stderr();
    assert!(!log.contains("canary") && !log.contains("cccc"), "{log}");
}

/// F:D11: connections have a number, in all and of one address; one more is closed at once, and a place that
/// comes free is given again.
#[test]
fn connections_have_a_number() {
    for (key, result) in [("connections", "limit"), ("connections_per_address", "address_limit")] {
        let record = Record::new();
        let gateway = start(&format!("limits.{key} = 4"), &record);
        let page = || Request::get("/fake/mcp").header("Accept", "text/html");
        let mut held: Vec<Connection> = (0..4)
            .map(|_| {
                let mut connection = Connection::open(gateway.address());
                connection.request(&page());
                assert_eq!(connection.response().status(), 200);
                connection
            })
            .collect();
        let mut fifth = Connection::open(gateway.address());
        let _ = fifth.try_send(page().bytes(gateway.address()));
        fifth.await_close();
        gateway.await_metric("connections_total", &[("result", result)], |count| count == 1.0);
        held[0].request(&page());
        assert_eq!(held[0].response().status(), 200, "who is in stays in");
        held.pop();
        gateway.await_metric("connections", &[("listener", "main")], |count| count == 3.0);
        assert_eq!(page().send(gateway.address()).status(), 200);
    }
}

/// F:D11: out of descriptors the gateway waits, serves whom it has, and goes on when there are some again.
#[test]
fn running_out_of_descriptors_is_survived() {
    let record = Record::new();
    let gateway = start("", &record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut held = Connection::open(gateway.address());
    held.request(&session.post_request(PING));
    assert_eq!(held.response().status(), 200);
    let limit = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(gateway.fd_count() as u64 + 4), maximum: limit.maximum };
    let process = Some(pid(gateway.pid()));
    let before = prlimit(process, Resource::Nofile, few).unwrap();
    let flood: Vec<Connection> = (0..40).map(|_| Connection::open(gateway.address())).collect();
    for _ in 0..20 {
        held.request(&session.post_request(PING));
        assert_eq!(held.response().status(), 200);
    }
    prlimit(process, Resource::Nofile, before).unwrap();
    drop(flood);
    gateway.await_metric("accept_errors_total", &[("errno", "EMFILE")], |count| count >= 1.0);
    assert_eq!(session.post(PING).head.status, 200);
    gateway.await_metric("connections", &[("listener", "main")], |count| count == 1.0);
}

/// `limits.requests_in_flight`: one request more is refused within its session and costs nothing; an
/// `initialize` more is a 503.
#[test]
fn requests_in_flight_have_a_number() {
    let record = Record::new();
    let gateway = start("limits.requests_in_flight = 3", &record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let mut calls: Vec<_> = (0..3).map(|id| session.send_call(id, "hold", json!({ "gate": "g" }))).collect();
    gateway.await_metric("requests_in_flight", &[("server", "fake")], |count| count == 3.0);
    let refused = session.post(call("more", "echo", json!({}), None).to_string());
    assert_eq!(refused.head.status, 200, "{refused:?}");
    let error = &refused.message()["error"];
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(503), &json!("busy")), "{error}");
    assert_eq!(error["data"]["executed"], "no");
    assert!(error["data"]["retry_after_ms"].is_number(), "{error}");
    let begin = crate::session::initialize("2025-11-25", json!({})).to_string();
    let response = Request::post("/fake/mcp", begin).send(gateway.address());
    assert_eq!(response.status(), 503, "{response:?}");
    assert!(response.header("retry-after").is_some(), "{response:?}");
    // A notification is no request, and makes room.
    session.notify("notifications/cancelled", json!({ "requestId": 2 }));
    assert_eq!(calls.pop().unwrap().finish().message()["error"]["data"]["reason"], "cancelled");
    session.call(5, "release", json!({ "gate": "g" }));
    for call in calls {
        assert!(call.finish().message()["result"].is_object());
    }
}
