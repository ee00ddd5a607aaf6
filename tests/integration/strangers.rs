//! Clients nobody knows: they must connect again after a while, and whoever speaks the wrong protocol is told which one
//! is spoken.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use serde_json::json;

use crate::PATIENCE;
use crate::caller_key::{Key, only};
use crate::child::{Record, Server};
use crate::client::{Connection, Request};
use crate::gateway::Gateway;
use crate::http2::start;
use crate::http2_frames::{END_HEADERS, END_STREAM, Ending, Frames, GOAWAY, HEADERS, block, frame, post};
use crate::session::initialize;
use crate::tls_client::{Https, shake_hands};

/// More requests than a stranger has on one connection.
const MANY: u32 = 50;

fn server(record: &Record) -> Server {
    let server = Server::fake("fake").option("--record", record.path());
    server.key("check_on_start = false").key("pool.min_idle = 0")
}

/// F:D08, F:E11: refusing a request costs more than sending it, so whoever shows nothing that counts has to connect again
/// after some; a known caller has as many as it wants.
#[test]
fn who_is_refused_again_and_again_must_connect_again() {
    let (record, key) = (Record::new(), Key::of("friend"));
    let gateway = Gateway::start(&format!("{}{}", only(&[&key]), server(&record).toml()));
    let request = Request::get("/fake/mcp").bytes(gateway.address());
    let mut connection = Connection::open(gateway.address());
    let _closed_early = connection.try_send(request.repeat(MANY as usize));
    let mut answers = 0;
    loop {
        let response = connection.response();
        answers += 1;
        assert_eq!(response.status(), 401);
        if response.header("connection") == Some("close") {
            break;
        }
    }
    connection.await_close();
    assert_eq!(answers, 32);
    let (name, value) = key.header();
    let friend = Request::get("/fake/mcp").header(name, value).bytes(gateway.address());
    let mut connection = Connection::open(gateway.address());
    for _ in 0..MANY {
        connection.send(&friend);
        let response = connection.response();
        assert_eq!((response.status(), response.header("connection")), (400, None));
    }
    assert!(record.all().is_empty(), "a child was started");
}

/// F:D08: the same in HTTP/2, where the connection says GOAWAY; who does not listen is cut.
#[test]
fn http2_strangers_must_connect_again() {
    let (record, key) = (Record::new(), Key::of("friend"));
    let (gateway, authority) = start(&server(&record), &only(&[&key]));
    let config = authority.client(&["h2"], None);
    let head = |at: u32| frame(HEADERS, END_HEADERS | END_STREAM, at * 2 + 1, &block(&post("/fake/mcp", &[])));
    let mut frames = Frames::open(gateway.address(), &config);
    let mut at = 0;
    let goaway = 'asked: loop {
        frames.send(&head(at));
        at += 1;
        assert!(at < MANY, "it is never told to leave");
        loop {
            match frames.next().expect("it is told first") {
                next if next.kind == GOAWAY => break 'asked next,
                next if next.kind == HEADERS => break,
                _ => {}
            }
        }
    };
    assert_eq!(goaway.payload[4..8], [0; 4], "NO_ERROR");
    // The PING of the gateway is not answered: it cannot know whether it was heard.
    let began = Instant::now();
    while !frames.pour(&head(at), 1) {
        at += 1;
        assert!(began.elapsed() < PATIENCE, "it goes on for ever");
    }
    drop(frames);
    gateway.await_metric("connections", &[("listener", "main")], |count| count == 0.0);
    let mut friend = Https::connect(gateway.address(), &config);
    for _ in 0..MANY {
        assert_eq!(friend.post("/fake/mcp", &[key.header()], "{}").status, 400);
    }
    assert!(record.all().is_empty(), "a child was started");
}

/// F:D05: an idle connection hears of its end: by `close_notify` (RFC 8446, 6.1; RFC 9112, 9.8), in HTTP/2 by GOAWAY.
#[test]
fn idle_connections_are_told_of_their_end() {
    let (gateway, authority) =
        start(&server(&Record::new()), "[limits]\nkeep_alive = \"300ms\"\nheader_timeout = \"300ms\"\n");
    let client = authority.client(&["http/1.1"], None);
    for request in ["", "GET /fake/mcp HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let mut stream = shake_hands(gateway.address(), &client, "localhost").unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        // An end without `close_notify` is an error to rustls.
        stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{request:?}: {error}"));
        assert_eq!(answer.starts_with("HTTP/1.1 "), !request.is_empty(), "{answer}");
    }
    let mut frames = Frames::open(gateway.address(), &authority.client(&["h2"], None));
    assert_eq!(frames.await_frame(GOAWAY, 0).payload[4..8], [0; 4], "NO_ERROR");
    // Its PING is not answered, and is not waited for.
    assert_eq!(frames.ending(), Ending::Closed);
    gateway.await_metric("connections", &[("listener", "main")], |count| count == 0.0);
}

/// F:D12: HTTP at a port that speaks TLS is answered in words it understands, and logged with the key that decides; so is
/// TLS at a plain one.
#[test]
fn the_wrong_protocol_is_said_to_be_wrong() {
    let (gateway, authority) = start(&server(&Record::new()), "");
    let mut plain = Connection::open(gateway.address());
    plain.request(&Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string()));
    let response = plain.response();
    assert_eq!((response.status(), response.header("connection")), (400, Some("close")));
    assert!(response.text().contains("TLS"), "{}", response.text());
    plain.await_close();
    let line = gateway.await_event("refused", |event| event["reason"] == "plain_http");
    assert_eq!((line["key"].as_str(), line["client_addr"].as_str()), (Some("listen.tls"), Some("127.0.0.1")));
    gateway.await_metric("connections_total", &[("result", "handshake")], |count| count == 1.0);

    let gateway = Gateway::start(&server(&Record::new()).toml());
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut session =
        rustls::ClientConnection::new(authority.client(&["h2"], None), "localhost".try_into().unwrap()).unwrap();
    let error = loop {
        match session.complete_io(&mut stream) {
            Ok(_) if session.is_handshaking() => {}
            outcome => break outcome.expect_err("there is no TLS"),
        }
    };
    assert_eq!(error.kind(), ErrorKind::InvalidData, "an answer that is no TLS at once: {error}");
    gateway.await_event("refused", |event| event["key"] == "listen.tls");
}
