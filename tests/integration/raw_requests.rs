//! Requests no library would send: each has one answer, and nothing of one that is refused reaches a child.

use serde_json::json;

use crate::child::{Record, Server};
use crate::client::{Connection, Request};
use crate::gateway::Gateway;
use crate::session::{Session, call};

/// A gateway whose child is started only by sessions and recorded.
fn start(record: &Record) -> Gateway {
    let server = Server::fake("fake").option("--record", record.path());
    Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml())
}

/// A call that a child must never see.
fn canary() -> String {
    call("canary", "hold", json!({ "gate": "canary" }), None).to_string()
}

/// What the child was sent so far, but for pings. Whatever was on its way is there: it comes before the answer to this.
fn seen(session: &Session, record: &Record) -> Vec<String> {
    assert!(session.call("settled", "echo", json!({}))["result"].is_object());
    record.lines().into_iter().filter(|line| !line.contains("ping") && !line.contains("\"echo\"")).collect()
}

/// The head of a POST of this session with these further lines, each with its end.
fn post(session: &Session, lines: &str) -> String {
    format!(
        "POST /fake/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, \
         text/event-stream\r\nMcp-Session-Id: {}\r\nMcp-Protocol-Version: 2025-11-25\r\n{lines}\r\n",
        session.id
    )
}

/// A body in one chunk, up to the last.
fn chunk(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n", body.len())
}

/// What cannot be the head of a request, whatever follows.
fn bad_heads(session: &Session) -> Vec<(&'static str, Vec<u8>, u16)> {
    let body = canary();
    let length = body.len();
    let sized = |lines: &str| format!("{}{body}", post(session, &format!("{lines}Content-Length: {length}\r\n")));
    let chunked = |lines: &str| format!("{}{}0\r\n\r\n", post(session, lines), chunk(&body));
    let of = |first: &str| sized("").replacen("POST /fake/mcp HTTP/1.1", first, 1);
    let host = |hosts: &str| sized("").replacen("Host: localhost\r\n", hosts, 1);
    let cases = [
        (
            "a length beside chunks",
            chunked(&format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n")),
            400,
        ),
        (
            "chunks beside a length",
            chunked(&format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n")),
            400,
        ),
        (
            "a length beside chunks, spelled otherwise",
            chunked("Content-Length: 4\r\ntransfer-encoding:\tCHUNKED\r\n"),
            400,
        ),
        ("two equal lengths", sized(&format!("Content-Length: {length}\r\n")), 400),
        ("two lengths", sized("Content-Length: 0\r\n"), 400),
        (
            "a list of lengths",
            format!("{}{body}", post(session, &format!("Content-Length: {length}, {length}\r\n"))),
            400,
        ),
        ("a length with a sign", format!("{}{body}", post(session, &format!("Content-Length: +{length}\r\n"))), 400),
        (
            "a length in hexadecimal",
            format!("{}{body}", post(session, &format!("Content-Length: 0x{length:x}\r\n"))),
            400,
        ),
        ("a length with a space in it", format!("{}{body}", post(session, "Content-Length: 1 0\r\n")), 400),
        ("no length in the field", format!("{}{body}", post(session, "Content-Length:\r\n")), 400),
        ("chunks twice", chunked("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400),
        ("chunks twice in one field", chunked("Transfer-Encoding: chunked, chunked\r\n"), 400),
        ("another coding", chunked("Transfer-Encoding: gzip, chunked\r\n"), 400),
        ("no coding", chunked("Transfer-Encoding: identity\r\n"), 400),
        ("a coding with a parameter", chunked("Transfer-Encoding: chunked;a=b\r\n"), 400),
        ("a coding of another name", chunked("Transfer-Encoding: xchunked\r\n"), 400),
        ("a coding with a control byte", chunked("Transfer-Encoding: \x0bchunked\r\n"), 400),
        ("a field name with a space", chunked("Transfer-Encoding : chunked\r\n"), 400),
        ("a field that goes on", chunked("Transfer-Encoding:\r\n chunked\r\n"), 400),
        ("a field that goes on after a tab", sized("X: 1\r\n\tTransfer-Encoding: chunked\r\n"), 400),
        ("a field without a colon", sized("X\r\n"), 400),
        ("a field without a name", sized(": 1\r\n"), 400),
        ("a field name beyond ASCII", sized("X\u{e9}: 1\r\n"), 400),
        ("a field name with a control byte", sized("X\x01: 1\r\n"), 400),
        ("an underscore in a field name", sized("X_Forwarded_For: 192.0.2.1\r\n"), 400),
        ("a length with an underscore", sized("Content_Length: 0\r\n"), 400),
        ("NUL in a value", sized("X: a\0b\r\n"), 400),
        ("a bare CR in a value", sized("X: a\rTransfer-Encoding: chunked\r\n"), 400),
        ("a bare LF after a field", sized("X: a\n"), 400),
        ("a bare LF after all fields", sized("").replacen("\r\n\r\n", "\r\n\n", 1), 400),
        ("bare LF throughout", sized("").replace("\r\n", "\n"), 400),
        ("a bare LF after the request line", sized("").replacen("\r\n", "\n", 1), 400),
        ("no host", host(""), 400),
        ("two equal hosts", host("Host: localhost\r\nHost: localhost\r\n"), 400),
        ("two hosts", host("Host: localhost\r\nhost: evil.example\r\n"), 400),
        ("a target with another host", of("POST http://evil.example/fake/mcp HTTP/1.1"), 400),
        ("a target with another port", of("POST http://localhost:81/fake/mcp HTTP/1.1"), 400),
        ("a target with a user", of("POST http://x@localhost/fake/mcp HTTP/1.1"), 400),
        ("a target with another scheme", of("POST ftp://localhost/fake/mcp HTTP/1.1"), 400),
        ("a target without a slash", of("POST fake/mcp HTTP/1.1"), 400),
        ("a target with a space", of("POST /fake/mcp /x HTTP/1.1"), 400),
        ("a target with a fragment", of("POST /fake/mcp#x HTTP/1.1"), 400),
        ("a target with NUL", of("POST /fake/mcp\0 HTTP/1.1"), 400),
        ("a target beyond ASCII", of("POST /fake/mcp\u{e9} HTTP/1.1"), 400),
        ("an asterisk", of("POST * HTTP/1.1"), 400),
        ("two spaces", of("POST  /fake/mcp HTTP/1.1"), 400),
        ("a tab", of("POST\t/fake/mcp HTTP/1.1"), 400),
        ("a space at the end", of("POST /fake/mcp HTTP/1.1 "), 400),
        ("a method that is none", of("PO(ST /fake/mcp HTTP/1.1"), 400),
        ("a tunnel", of("CONNECT localhost:80 HTTP/1.1"), 400),
        ("no version", of("POST /fake/mcp"), 400),
        ("a version in small letters", of("POST /fake/mcp http/1.1"), 400),
        ("a version of three digits", of("POST /fake/mcp HTTP/1.11"), 400),
        ("another version", of("POST /fake/mcp HTTP/1.2"), 505),
        ("HTTP/2 without a word", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 400),
        ("a body in HTTP/1.0", of("POST /fake/mcp HTTP/1.0"), 400),
        ("chunks in HTTP/1.0", chunked("Transfer-Encoding: chunked\r\n").replacen("HTTP/1.1", "HTTP/1.0", 1), 400),
        ("two empty lines before it", format!("\r\n\r\n{}", sized("")), 400),
        ("a space before it", format!(" {}", sized("")), 400),
        ("TLS", "\x16\x03\x01\x02".to_owned(), 400),
        ("a target that does not end", format!("POST /{} HTTP/1.1\r\n", "x".repeat(40 << 10)), 414),
        ("a head that does not end", sized(&format!("X: {}\r\n", "x".repeat(40 << 10))), 431),
        ("more fields than are allowed", sized(&"X: 1\r\n".repeat(65)), 431),
    ];
    cases.into_iter().map(|(what, text, status)| (what, text.into_bytes(), status)).collect()
}

/// F:D07, R:H21: what could be read in two ways is refused, and its connection ends, whatever stands behind it; nothing
/// of it reaches a child.
#[test]
fn an_unclear_head_is_refused_and_ends_its_connection() {
    let record = Record::new();
    let gateway = start(&record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let before = seen(&session, &record);
    let cases = bad_heads(&session);
    assert!(cases.len() > 60);
    let smuggled = session.post_request(canary()).bytes(session.address);
    let good = session.post_request(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).bytes(session.address);
    for (what, bytes, status) in &cases {
        // Alone and followed by another; after a good one; and in pieces.
        for first in [&b""[..], &good] {
            let mut connection = Connection::open(gateway.address());
            let _closed_early = connection.try_send([first, bytes, &smuggled].concat());
            if !first.is_empty() {
                assert_eq!(connection.response().status(), 200, "before {what}");
            }
            let response = connection.response();
            assert_eq!(response.status(), *status, "{what}: {response:?}");
            assert_eq!(response.header("connection"), Some("close"), "{what}: {response:?}");
            assert!(response.json()["error"]["message"].is_string(), "{what}: {response:?}");
            connection.await_close();
        }
        let mut connection = Connection::open(gateway.address());
        for piece in bytes.chunks(bytes.len().div_ceil(7)) {
            if connection.try_send(piece).is_err() {
                break;
            }
        }
        assert_eq!(connection.response().status(), *status, "{what}, in pieces");
        connection.await_close();
    }
    assert_eq!(seen(&session, &record), before, "a child saw something of it");
    let refused: f64 =
        ["headers", "host"].map(|reason| gateway.metrics().count("refusals_total", &[("reason", reason)])).iter().sum();
    assert_eq!(refused, 3.0 * cases.len() as f64);
    gateway.await_metric("connections", &[("listener", "main")], |open| open == 0.0);
}

/// F:D07: what is unclear within a body is refused too, and ends the connection.
#[test]
fn an_unclear_body_is_refused_and_ends_its_connection() {
    let record = Record::new();
    let gateway = start(&record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let before = seen(&session, &record);
    let body = canary();
    let good = chunk(&body);
    let length = body.len();
    let cases = [
        ("no size", format!("\r\n{body}\r\n0\r\n\r\n")),
        ("a size with a sign", format!("+{good}0\r\n\r\n")),
        ("a size with a prefix", format!("0x{good}0\r\n\r\n")),
        ("a size with a space before it", format!(" {good}0\r\n\r\n")),
        ("a size with a space behind it", format!("{length:x} \r\n{body}\r\n0\r\n\r\n")),
        ("a size of too many digits", format!("0000000000000000{good}0\r\n\r\n")),
        ("a size that ends with LF", format!("{length:x}\n{body}\r\n0\r\n\r\n")),
        ("a size that ends with CR", format!("{length:x}\r{body}\r\n0\r\n\r\n")),
        ("an extension with NUL", format!("{length:x};a\0\r\n{body}\r\n0\r\n\r\n")),
        ("an extension that ends with LF", format!("{length:x};a\n{body}\r\n0\r\n\r\n")),
        ("an extension without end", format!("{length:x};{}\r\n{body}\r\n0\r\n\r\n", "a".repeat(300))),
        ("a chunk that is longer", format!("{:x}\r\n{body}\r\n0\r\n\r\n", length - 1)),
        ("a chunk that is shorter", format!("{:x}\r\n{body}\r\n0\r\n\r\n", length + 1)),
        ("a chunk that ends with LF", format!("{length:x}\r\n{body}\n0\r\n\r\n")),
        ("a trailer with a length", format!("{good}0\r\nContent-Length: 0\r\n\r\n")),
        ("a trailer with a host", format!("{good}0\r\nHost: localhost\r\n\r\n")),
        ("a trailer that goes on", format!("{good}0\r\nX: 1\r\n 2\r\n\r\n")),
        ("a trailer that ends with LF", format!("{good}0\r\nX: 1\n\r\n")),
        ("a trailer without end", format!("{good}0\r\nX: {}\r\n\r\n", "a".repeat(5000))),
    ];
    let head = post(&session, "Transfer-Encoding: chunked\r\n");
    let smuggled = session.post_request(canary()).bytes(session.address);
    for (what, content) in &cases {
        let whole = [head.as_bytes(), content.as_bytes(), &smuggled].concat();
        let split = head.len() + content.len() / 2;
        for pieces in [vec![&whole[..]], vec![&whole[..split], &whole[split..]]] {
            let mut connection = Connection::open(gateway.address());
            for piece in pieces {
                let _closed_early = connection.try_send(piece);
            }
            let response = connection.response();
            assert_eq!(response.status(), 400, "{what}: {response:?}");
            connection.await_close();
        }
    }
    assert_eq!(seen(&session, &record), before, "a child saw something of it");
}

/// F:D07: what is odd but clear is served.
#[test]
fn a_clear_request_is_served_however_it_is_written() {
    let record = Record::new();
    let gateway = start(&record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let body = call(1, "echo", json!({ "a": 1 }), None).to_string();
    let length = body.len();
    let sized = format!("{}{body}", post(&session, &format!("content-length: \t{length} \r\n")));
    let cases = [
        ("spaces around a value", sized.clone()),
        ("an empty line before it", format!("\r\n{sized}")),
        ("an absolute target", sized.replacen("/fake/mcp", "http://LOCALHOST:80/fake/mcp", 1)),
        ("bytes beyond ASCII in a value", sized.replacen("\r\nAccept", "\r\nX: \u{e9}\r\nAccept", 1)),
        ("chunks", format!("{}{}0\r\n\r\n", post(&session, "transfer-encoding:Chunked\r\n"), chunk(&body))),
        (
            "an upgrade nobody heeds",
            sized.replacen("\r\nAccept", "\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nAccept", 1),
        ),
    ];
    let mut connection = Connection::open(gateway.address());
    for (what, text) in cases {
        connection.send(&text);
        let response = connection.response();
        assert_eq!(response.status(), 200, "{what}: {response:?}");
        assert_eq!(response.json()["result"]["structuredContent"]["a"], 1, "{what}");
        // Byte by byte, which no reader may mind.
        for byte in text.as_bytes() {
            connection.send([*byte]);
        }
        assert_eq!(connection.response().status(), 200, "{what}, byte by byte");
    }
    // Two at once are answered in their order.
    connection.send([sized.as_bytes(), sized.replacen(r#""id":1"#, r#""id":2"#, 1).as_bytes()].concat());
    assert_eq!(
        (connection.response().json()["id"].clone(), connection.response().json()["id"].clone()),
        (json!(1), json!(2))
    );
}

/// F:D07: a request with a body that has no meaning is refused; one that asks for another protocol must be the last
/// until it is answered.
#[test]
fn nothing_hides_behind_a_request() {
    let record = Record::new();
    let gateway = start(&record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let before = seen(&session, &record);
    let smuggled = session.post_request(canary()).bytes(session.address);
    for method in ["GET", "HEAD", "DELETE", "TRACE"] {
        let head = format!("{method} /fake/mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {}\r\n", session.id);
        let hidden = [format!("{head}Content-Length: {}\r\n\r\n", smuggled.len()).as_bytes(), &smuggled].concat();
        let mut connection = Connection::open(gateway.address());
        connection.send(hidden);
        let head = connection.head();
        assert_eq!((head.status, head.header("connection")), (400, Some("close")), "{method}: {head:?}");
        if method != "HEAD" {
            connection.body();
        }
        connection.await_close();
    }
    let upgrade = session.post_request(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).header("Upgrade", "websocket");
    let mut connection = Connection::open(gateway.address());
    connection.send([upgrade.header("Connection", "Upgrade").bytes(session.address), smuggled].concat());
    assert_eq!(connection.response().status(), 200);
    assert_eq!(connection.response().status(), 400);
    connection.await_close();
    assert_eq!(seen(&session, &record), before, "a child saw something of it");
    assert_eq!(Request::get("/fake/mcp").send(gateway.address()).status(), 400, "a session is missing, no more");
}
