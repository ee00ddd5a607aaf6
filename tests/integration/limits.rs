//! Limits of heads, bodies, times and counts: each is held, said so, and costs nobody else anything.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use crate::child::{Record, Server};
use crate::client::{Connection, Request};
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

/// A request, cut where its text stands.
const AROUND: [&str; 2] = [r#"{"jsonrpc":"2.0","id":1,"method":"vendor/x","params":{"x":""#, r#""}}"#];

/// A request that is this many bytes long.
fn body_of(bytes: usize) -> String {
    AROUND.join(&"x".repeat(bytes - AROUND.concat().len()))
}

/// Cuts a body into chunks (RFC 9112 section 7.1).
fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for chunk in body.chunks(size) {
        bytes.extend(format!("{:x};x=\"y\"\r\n", chunk.len()).into_bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// Sends until the peer closes or is done with us; whether it stopped us.
fn pour(connection: &mut Connection, piece: &[u8], times: usize) -> bool {
    for _ in 0..times {
        match connection.try_send(piece) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return true,
            Err(error) => panic!("{error}"),
        }
    }
    false
}

/// C:B66, F:C01: bodies up to the very limit pass, whole or in chunks.
#[test]
fn bodies_up_to_the_limit_pass() {
    let record = Record::new();
    let gateway = start("", &record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    for size in [99_000, 150_000, 1 << 20, 8 << 20] {
        let body = body_of(size);
        assert_eq!(session.post(&body).head.status, 200, "{size} bytes");
        let request = session.post_request("").header("Transfer-Encoding", "chunked");
        let mut connection = Connection::open(session.address);
        connection.send(request.bytes(session.address));
        connection.send(chunked(body.as_bytes(), 65_537));
        connection.send("0\r\nX-Trailer: 1\r\n\r\n");
        let response = connection.response();
        assert_eq!(response.status(), 200, "{size} bytes in chunks");
        assert_eq!(response.json()["result"]["x"].as_str().unwrap().len(), size - AROUND.concat().len());
    }
}

/// F:C01, C:B66: a body above the limit is a 413 as soon as it is known, and the end of the connection; it is
/// not kept, reaches no child, and the session lives on.
#[test]
fn bodies_above_the_limit_are_413() {
    let record = Record::new();
    let gateway = start("", &record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let limit: u64 = 8 << 20;
    let before = gateway.rss();
    // The announced length is enough: none of these sends a byte of its body.
    let lengths = [limit + 1, 1 << 40, (1 << 62) + 1];
    let waiting: Vec<Connection> = lengths
        .iter()
        .cycle()
        .take(60)
        .map(|length| {
            let mut connection = Connection::open(session.address);
            connection.request(&session.post_request("").with("Content-Length", &length.to_string()));
            connection
        })
        .collect();
    for mut connection in waiting {
        let response = connection.response();
        assert_eq!(response.status(), 413, "{response:?}");
        assert_eq!(response.header("connection"), Some("close"), "{response:?}");
        assert_eq!(response.json()["error"]["code"], 413, "{response:?}");
        assert!(response.json().get("id").is_none(), "{response:?}");
        connection.await_close();
    }
    // In chunks it shows only on the way.
    for _ in 0..4 {
        let mut connection = Connection::open(session.address);
        connection.request(&session.post_request("").header("Transfer-Encoding", "chunked"));
        let piece = chunked(&vec![b' '; 1 << 20], 1 << 20);
        pour(&mut connection, &piece, 9);
        assert_eq!(connection.response().status(), 413);
        connection.await_close();
    }
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    assert_eq!(session.post(PING).head.status, 200);
    assert_eq!(record.lines().len(), 3, "{:?}", record.lines());
    assert_eq!(gateway.metrics().count("refusals_total", &[("reason", "too_large")]), 64.0);
}

/// F:C01: a length that is no number is no request.
#[test]
fn lengths_must_be_numbers() {
    let record = Record::new();
    let gateway = start("", &record);
    for length in ["-1", "+1", "1e3", "0x10", "", "99999999999999999999999999", "1, 2"] {
        let mut connection = Connection::open(gateway.address());
        connection.request(&Request::post("/fake/mcp", "").with("Content-Length", length));
        assert_eq!(connection.response().status(), 400, "{length:?}");
        connection.await_close();
    }
    for size in ["xyz", "-1", "10000000000000000000"] {
        let mut connection = Connection::open(gateway.address());
        connection.request(&Request::post("/fake/mcp", "").header("Transfer-Encoding", "chunked"));
        connection.send(format!("{size}\r\n"));
        let status = connection.try_head().map(|head| head.status);
        assert!(matches!(status, None | Some(400)), "{size:?}: {status:?}");
    }
    assert!(record.all().is_empty());
}

/// RFC 9110 section 10.1.1: a client that asks first is told to go on, or refused before it sends its body.
#[test]
fn a_client_that_asks_first_is_told() {
    let record = Record::new();
    let gateway = start("", &record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let ask = |length: usize| {
        let mut connection = Connection::open(session.address);
        let request = session.post_request("").with("Content-Length", &length.to_string());
        connection.request(&request.header("Expect", "100-continue"));
        connection
    };
    let mut good = ask(PING.len());
    // Not a word before it was told: the interim answer must come by itself.
    let mut begin = [0; 21];
    std::io::Read::read_exact(&mut good.stream, &mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 100 Continue");
    std::io::Read::read_exact(&mut good.stream, &mut [0; 4]).unwrap();
    good.send(PING);
    assert_eq!(good.response().status(), 200);
    assert_eq!(ask(1 << 30).response().status(), 413);
}

/// F:D02: a body that stops, or drips, is a 408 and the end of the connection; what came of it is dropped.
#[test]
fn a_slow_body_is_given_up() {
    let record = Record::new();
    let gateway = start("limits.body_idle = \"300ms\"", &record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let begin = || {
        let mut connection = Connection::open(session.address);
        connection.request(&session.post_request("").with("Content-Length", "1000"));
        connection.send(r#"{"jsonrpc":"2.0","id":1,"#);
        connection
    };
    let mut silent = begin();
    let mut dripping = begin();
    let stopped = await_that("a dripping body's end", || {
        (dripping.try_send(" ").is_err() || !dripping.is_quiet_for(Duration::from_millis(50))).then(|| dripping.peek())
    });
    assert!(stopped.starts_with("HTTP/1.1 408 "), "{stopped:?}");
    let response = silent.response();
    assert_eq!(response.status(), 408, "{response:?}");
    assert_eq!(response.header("connection"), Some("close"), "{response:?}");
    silent.await_close();
    // A body that takes longer than any pause, but goes on, is read.
    let mut steady = Connection::open(session.address);
    let body = body_of(6000);
    steady.request(&session.post_request("").with("Content-Length", &body.len().to_string()));
    for piece in body.as_bytes().chunks(1000) {
        std::thread::sleep(Duration::from_millis(100));
        steady.send(piece);
    }
    assert_eq!(steady.response().status(), 200);
    assert_eq!(record.lines().len(), 3, "{:?}", record.lines());
}

/// F:D02: a client that leaves in the middle of its body left nothing behind.
#[test]
fn a_body_that_ends_early_is_dropped() {
    let record = Record::new();
    let gateway = start("", &record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    for reset in [true, false] {
        let mut connection = Connection::open(session.address);
        connection.request(&session.post_request("").with("Content-Length", "1000"));
        connection.send(PING);
        if reset {
            connection.reset();
        } else {
            connection.shutdown_write();
            let answer = String::from_utf8_lossy(&connection.read_to_close()).into_owned();
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer:?}");
        }
    }
    session.post(PING);
    assert_eq!(record.lines().len(), 3, "{:?}", record.lines());
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
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
