//! HTTP/2 over TLS: calls and streams as in HTTP/1.1, readers that stop, the end of connections.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::child::{Gate, Record, Server};
use crate::gateway::{Gateway, await_that};
use crate::http2_frames::{
    DATA, END_HEADERS, END_STREAM, Ending, Frames, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, block,
    frame, post,
};
use crate::session::{call, initialize};
use crate::tls_client::{Authority, Https};

fn quiet() -> Server {
    Server::fake("fake").key("check_on_start = false").key("pool.min_idle = 0")
}

/// A gateway that speaks TLS, with further lines.
pub fn start(server: &Server, lines: &str) -> (Gateway, Authority) {
    let authority = Authority::new();
    let issued = authority.issue(&["localhost"]);
    let gateway = Gateway::start(&format!("{}{}", authority.toml(&[("server", &issued)], lines), server.toml()));
    (gateway, authority)
}

fn connect(gateway: &Gateway, authority: &Authority) -> Https {
    let client = Https::connect(gateway.address(), &authority.client(&["h2", "http/1.1"], None));
    assert!(client.is_http2());
    client
}

/// Opens a session.
#[track_caller]
fn open(client: &mut Https) -> String {
    let id = begin(client);
    confirm(client, &id);
    id
}

/// `initialize`; the id of the session.
#[track_caller]
fn begin(client: &mut Https) -> String {
    let opened = client.post("/fake/mcp", &[], &initialize("2025-11-25", json!({})).to_string());
    assert_eq!(opened.status, 200);
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    opened.text();
    id
}

/// `notifications/initialized`
#[track_caller]
fn confirm(client: &mut Https, id: &str) {
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
    assert_eq!(client.post("/fake/mcp", &[("mcp-session-id", id)], &initialized).status, 202);
}

/// R:H06, C:B70: answers, event streams, the standalone stream and DELETE share one connection; a stream's head comes
/// at once.
#[test]
fn one_connection_carries_a_whole_session() {
    let (gateway, authority) = start(&quiet(), "[streams]\nsse_after = \"50ms\"\n");
    let mut client = connect(&gateway, &authority);
    let id = open(&mut client);
    let headers = [("mcp-session-id", id.as_str()), ("mcp-protocol-version", "2025-11-25")];
    let began = Instant::now();
    let mut standing =
        client.send("GET", "/fake/mcp", &[&headers[..], &[("accept", "text/event-stream")]].concat(), "");
    assert_eq!(standing.status, 200);
    assert_eq!(standing.header("content-type"), Some("text/event-stream"));
    assert!(standing.next().is_some(), "a first byte at once");
    assert!(began.elapsed() < Duration::from_secs(10));
    let mut held = client.post("/fake/mcp", &headers, &call(1, "hold", json!({ "gate": "g" }), None).to_string());
    assert_eq!(held.header("content-type"), Some("text/event-stream"));
    let echo = call(2, "echo", json!({ "text": "beside" }), None).to_string();
    assert!(client.post("/fake/mcp", &headers, &echo).text().contains("beside"));
    let release = call(3, "release", json!({ "gate": "g" }), None).to_string();
    client.post("/fake/mcp", &headers, &release).text();
    held.read_until("\"id\":1");
    let progress = call(4, "progress", json!({ "count": 2 }), Some(json!("t"))).to_string();
    let streamed = client.post("/fake/mcp", &headers, &progress).text();
    assert_eq!(streamed.matches("notifications/progress").count(), 2, "{streamed}");
    let touched = call(5, "notify", json!({ "method": "notifications/tools/list_changed" }), None).to_string();
    client.post("/fake/mcp", &headers, &touched).text();
    let deleted = client.send("DELETE", "/fake/mcp", &headers, "");
    assert_eq!(deleted.status, 204, "{:?}", deleted.headers);
    assert!(deleted.headers.get("connection").is_none() && deleted.headers.get("transfer-encoding").is_none());
    gateway.await_metric("connections_total", &[("result", "ok"), ("listener", "main")], |count| count == 1.0);
}

/// C:B70: a large body either way, beyond the first windows.
#[test]
fn large_bodies_pass_both_ways() {
    let (gateway, authority) = start(&quiet(), "");
    let mut client = connect(&gateway, &authority);
    let id = open(&mut client);
    let text = "0123456789abcdef".repeat(100_000);
    for number in 0..2 {
        let echo = call(number, "echo", json!({ "text": text }), None).to_string();
        let answer = client.post("/fake/mcp", &[("mcp-session-id", &id)], &echo).text();
        let answer: Value = answer.parse().unwrap();
        assert!(answer.to_string().contains(&text), "{} bytes", answer.to_string().len());
    }
}

/// F:D13: `:authority` is the host; one that is not known is refused, as is one that `Host` contradicts.
#[test]
fn the_authority_is_the_host() {
    let (gateway, authority) = start(&quiet(), "");
    let config = authority.client(&["h2"], None);
    for (host, wanted) in [
        (vec![(":authority", "evil.test")], 403),
        (vec![(":authority", "localhost.evil.test")], 403),
        (vec![(":authority", "localhost"), ("host", "evil.test")], 400),
        (vec![(":authority", "evil.test"), ("host", "localhost")], 400),
        (vec![("host", "evil.test")], 403),
        (vec![("host", "localhost"), ("host", "localhost")], 400),
        (vec![], 400),
        (vec![(":authority", "localhost")], 405),
        (vec![("host", "localhost")], 405),
    ] {
        let mut fields = vec![(":method", "PUT"), (":scheme", "https"), (":path", "/fake/mcp")];
        fields.extend(host.iter().filter(|(name, _)| name.starts_with(':')));
        fields.extend(host.iter().filter(|(name, _)| !name.starts_with(':')));
        let mut frames = Frames::open(gateway.address(), &config);
        frames.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&fields)));
        assert_eq!(frames.status(1), wanted, "{host:?}");
    }
}

/// F:D03: a stream whose window is never opened again is cut after the stall, alone: the connection and its other
/// streams go on.
#[test]
fn a_spent_window_cuts_its_stream_alone() {
    let (gateway, authority) = start(&quiet(), "[limits]\nwrite_stall = \"700ms\"\n");
    let mut client = connect(&gateway, &authority);
    let id = open(&mut client);
    let mut frames = Frames::open(gateway.address(), &authority.client(&["h2"], None));
    // The connection's window is wide, those of streams are 1,000 bytes.
    frames.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 3, 0xe8]));
    frames.send(&frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 24).to_be_bytes()));
    let headers = [("mcp-session-id", id.as_str())];
    let bytes = call(1, "bytes", json!({ "size": 200_000 }), None).to_string();
    frames.send(&frame(HEADERS, END_HEADERS, 1, &block(&post("/fake/mcp", &headers))));
    frames.send(&frame(DATA, END_STREAM, 1, bytes.as_bytes()));
    assert_eq!(frames.status(1), 200);
    let began = Instant::now();
    let reset = frames.await_frame(RST_STREAM, 1);
    assert_eq!(reset.payload, 8_u32.to_be_bytes(), "CANCEL");
    assert!(began.elapsed() >= Duration::from_millis(500), "{:?}", began.elapsed());
    let ping = json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" }).to_string();
    frames.send(&frame(HEADERS, END_HEADERS, 3, &block(&post("/fake/mcp", &headers))));
    frames.send(&frame(DATA, END_STREAM, 3, ping.as_bytes()));
    assert_eq!(frames.status(3), 200);
}

/// F:D03: the same of an event stream: it is cut as stalled, and can be resumed.
#[test]
fn a_stalled_event_stream_is_cut_and_resumable() {
    let (gateway, authority) = start(&quiet(), "[limits]\nwrite_stall = \"700ms\"\n[streams]\nsse_after = \"0s\"\n");
    let mut client = connect(&gateway, &authority);
    let id = open(&mut client);
    let mut frames = Frames::open(gateway.address(), &authority.client(&["h2"], None));
    frames.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 3, 0xe8]));
    let headers = [("mcp-session-id", id.as_str()), ("mcp-protocol-version", "2025-11-25")];
    let bytes = call(1, "bytes", json!({ "size": 100_000 }), None).to_string();
    frames.send(&frame(HEADERS, END_HEADERS, 1, &block(&post("/fake/mcp", &headers))));
    frames.send(&frame(DATA, END_STREAM, 1, bytes.as_bytes()));
    assert_eq!(frames.status(1), 200);
    let mut text = String::new();
    let reset = loop {
        let next = frames.next().unwrap();
        match next.kind {
            DATA => text.push_str(&String::from_utf8_lossy(&next.payload)),
            RST_STREAM => break next,
            _ => {}
        }
    };
    assert_eq!(reset.stream, 1);
    gateway.await_metric("stream_cuts_total", &[("reason", "stall")], |count| count == 1.0);
    let event = text.lines().find_map(|line| line.strip_prefix("id: ").or_else(|| line.strip_prefix("id:"))).unwrap();
    let resumed = [&headers[..], &[("accept", "text/event-stream"), ("last-event-id", event.trim())]].concat();
    let mut resumed = client.send("GET", "/fake/mcp", &resumed, "");
    let mut text = resumed.read_until("\"id\":1");
    while text.len() < 100_000 {
        text.push_str(&String::from_utf8_lossy(&resumed.next().expect("the rest comes")));
    }
}

/// F:D03: a connection the client stops reading altogether is cut whole.
#[test]
fn a_connection_nobody_reads_is_cut() {
    let (gateway, authority) = start(&quiet(), "[limits]\nwrite_stall = \"700ms\"\n");
    let mut client = connect(&gateway, &authority);
    let id = open(&mut client);
    let mut frames = Frames::open(gateway.address(), &authority.client(&["h2"], None));
    frames.send(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]));
    frames.send(&frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()));
    let headers = [("mcp-session-id", id.as_str())];
    let bytes = call(1, "bytes", json!({ "size": 25_000_000 }), None).to_string();
    frames.send(&frame(HEADERS, END_HEADERS, 1, &block(&post("/fake/mcp", &headers))));
    frames.send(&frame(DATA, END_STREAM, 1, bytes.as_bytes()));
    gateway.await_metric("connections_total", &[("listener", "main"), ("result", "ok")], |count| count == 2.0);
    gateway.await_metric("connections", &[("listener", "main")], |count| count == 1.0);
    drop(frames);
}

/// F:D05: an idle connection ends, PINGs or not; one with an open stream does not.
#[test]
fn idle_connections_end_and_busy_ones_stay() {
    let (gateway, authority) = start(&quiet(), "[limits]\nkeep_alive = \"1s\"\n");
    let config = authority.client(&["h2"], None);
    let mut client = Https::connect(gateway.address(), &config);
    let id = open(&mut client);
    let headers = [("mcp-session-id", id.as_str()), ("accept", "text/event-stream")];
    let mut standing = client.send("GET", "/fake/mcp", &headers, "");
    assert!(standing.next().is_some());
    let began = Instant::now();
    let mut frames = Frames::open(gateway.address(), &config);
    await_that("the end of the idle one", || {
        frames.pour(&frame(PING, 0, 0, &[0; 8]), 1);
        (gateway.metrics().count("connections", &[("listener", "main")]) == 1.0).then_some(())
    });
    assert!(began.elapsed() >= Duration::from_millis(500), "{:?}", began.elapsed());
    let ping = json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" }).to_string();
    assert_eq!(client.post("/fake/mcp", &[("mcp-session-id", &id)], &ping).status, 200, "a stream keeps it");
}

/// F:D01: a header block that never ends is cut at the head's time, however many streams are open.
#[test]
fn a_block_that_never_ends_is_cut() {
    let (gateway, authority) = start(&quiet(), "[limits]\nheader_timeout = \"1s\"\n");
    let config = authority.client(&["h2"], None);
    for rest in
        [&frame(HEADERS, 0, 1, &block(&post("/fake/mcp", &[])))[..], &[0, 0, 8, 6], &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1]]
    {
        let mut frames = Frames::open(gateway.address(), &config);
        frames.send(rest);
        let began = Instant::now();
        assert_eq!(frames.ending(), Ending::Closed);
        assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
    }
    let silent = Frames::connect(gateway.address(), &config);
    assert_eq!(silent.ending(), Ending::Closed);
}

/// F:D05: at its age a connection says GOAWAY, finishes what runs, and closes.
#[test]
fn an_old_connection_says_goaway() {
    let mut gate = Gate::new();
    let (gateway, authority) = start(&quiet(), "[limits]\nconnection_age = \"600ms\"\n");
    // Each on a connection of its own, which may be old by the end of its answer.
    let id = begin(&mut connect(&gateway, &authority));
    confirm(&mut connect(&gateway, &authority), &id);
    let mut frames = Frames::open(gateway.address(), &authority.client(&["h2"], None));
    let wait = call(1, "wait", json!({ "path": gate.path() }), None).to_string();
    frames.send(&frame(HEADERS, END_HEADERS, 1, &block(&post("/fake/mcp", &[("mcp-session-id", &id)]))));
    frames.send(&frame(DATA, END_STREAM, 1, wait.as_bytes()));
    let goaway = frames.await_frame(GOAWAY, 0);
    assert_eq!(goaway.payload[4..8], [0; 4], "NO_ERROR");
    gate.open();
    assert_eq!(frames.status(1), 200);
    // The last GOAWAY follows the acknowledgement of a PING; a client that closes is as good.
    drop(frames);
    gateway.await_metric("connections", &[("listener", "main")], |count| count == 0.0);
}

/// R:H17, F:D05: a drain says GOAWAY on the answer's connection at once, and what runs is answered.
#[test]
fn a_drain_says_goaway() {
    let mut gate = Gate::new();
    let lines = "[drain]\nprestop = \"20s\"\n";
    let (mut gateway, authority) = start(&quiet(), lines);
    let mut client = connect(&gateway, &authority);
    let id = open(&mut client);
    let mut frames = Frames::open(gateway.address(), &authority.client(&["h2"], None));
    let send = |frames: &mut Frames, stream, body: &str| {
        frames.send(&frame(HEADERS, END_HEADERS, stream, &block(&post("/fake/mcp", &[("mcp-session-id", &id)]))));
        frames.send(&frame(DATA, END_STREAM, stream, body.as_bytes()));
    };
    send(&mut frames, 1, &call(1, "wait", json!({ "path": gate.path() }), None).to_string());
    await_that("the call", || {
        (gateway.metrics().count("requests_in_flight", &[("server", "fake")]) == 1.0).then_some(())
    });
    gateway.signal(Signal::TERM);
    gateway.await_event("drain_start", |_| true);
    send(&mut frames, 3, &json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" }).to_string());
    let mut seen = Vec::new();
    while !(seen.contains(&(HEADERS, 3)) && seen.contains(&(GOAWAY, 0))) {
        let next = frames.next().unwrap();
        seen.push((next.kind, next.stream));
    }
    gate.open();
    assert_eq!(frames.status(1), 200);
    drop((frames, client));
    gateway.signal(Signal::TERM);
    gateway.await_exit();
}

/// F:D08: a request whose stream is reset is cancelled: the call is not waited for by anybody, and counts as the
/// client's leaving. The rest of the connection goes on.
#[test]
fn a_reset_stream_is_a_client_that_left() {
    let record = Record::new();
    let (gateway, authority) = start(&quiet().option("--record", record.path()), "");
    let mut client = connect(&gateway, &authority);
    let id = open(&mut client);
    let mut frames = Frames::open(gateway.address(), &authority.client(&["h2"], None));
    let headers = post("/fake/mcp", &[("mcp-session-id", &id)]);
    let mut ask = |stream: u32, name: &str, arguments: Value| {
        frames.send(&frame(HEADERS, END_HEADERS, stream, &block(&headers)));
        frames.send(&frame(DATA, END_STREAM, stream, call(stream, name, arguments, None).to_string().as_bytes()));
        if name == "wait" {
            record.await_message(|message| {
                message["params"]["name"] == "wait" && message["params"]["arguments"]["stream"] == stream
            });
            frames.send(&frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        } else {
            assert_eq!(frames.status(stream), 200);
        }
    };
    // The answer may overtake the reset within the gateway, which nothing outside can see: then once more.
    let seen = (0..20).any(|at| {
        let mut gate = Gate::new();
        ask(at * 4 + 1, "wait", json!({ "path": gate.path(), "stream": at * 4 + 1 }));
        ask(at * 4 + 3, "echo", json!({}));
        gate.open();
        let rpc_id = (at * 4 + 1).to_string();
        let line = gateway.await_event("rpc", |event| event["tool"] == "wait" && event["rpc_id"] == rpc_id.as_str());
        line["outcome"] == "client_gone"
    });
    assert!(seen, "no reset was ever seen");
}

/// HTTP/2 is spoken over TLS by ALPN only: its preface on a plain listener is a bad request.
#[test]
fn a_plain_listener_speaks_no_http2() {
    let gateway = Gateway::start(&quiet().toml());
    let mut connection = crate::client::Connection::open(gateway.address());
    connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    let answer = String::from_utf8_lossy(&connection.read_to_close()).into_owned();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
}
