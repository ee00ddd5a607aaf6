//! Request bodies: how long they may be and how slow, and that what is refused is not kept.

use std::time::Duration;

use serde_json::json;

use crate::child::{Record, Server};
use crate::client::{Connection, Request, pour};
use crate::gateway::{Gateway, await_that};
use crate::session::Session;

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
