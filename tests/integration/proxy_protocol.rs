//! The PROXY protocol: whose word counts, and what a wrong one costs.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::json;

use crate::child::{Record, Server};
use crate::client::{Connection, Request};
use crate::gateway::Gateway;
use crate::session::initialize;

/// A gateway that takes the header, from these peers.
fn start(lines: &str, proxies: &str, record: &Record) -> Gateway {
    let server = Server::fake("fake").option("--record", record.path());
    let server = server.key("check_on_start = false").key("pool.min_idle = 0").toml();
    Gateway::start(&format!("{lines}\n[listen]\nproxy_protocol = true\ntrusted_proxies = [{proxies}]\n{server}"))
}

/// A header of version 2.
fn binary(command: u8, family: u8, part: &[u8]) -> Vec<u8> {
    let length = u16::try_from(part.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &length, part].concat()
}

/// The header of a connection from this address.
fn from(address: Ipv4Addr) -> Vec<u8> {
    binary(0x21, 0x11, &[&address.octets()[..], &[127, 0, 0, 1, 0, 1, 0, 2]].concat())
}

/// F:D15: the client is whom the proxy names, in both versions; one that names nobody speaks for itself.
#[test]
fn the_client_is_whom_the_proxy_names() {
    let record = Record::new();
    let gateway = start("", "\"127.0.0.1\"", &record);
    let v6 = [&[0x20, 0x01, 0x0d, 0xb8][..], &[0; 32]].concat();
    for (id, header, address) in [
        ("one", b"PROXY TCP4 192.0.2.7 127.0.0.1 56324 8080\r\n".to_vec(), "192.0.2.7"),
        ("two", from(Ipv4Addr::new(192, 0, 2, 8)), "192.0.2.8"),
        ("six", binary(0x21, 0x21, &v6), "2001:db8::"),
        ("unknown", b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        ("local", binary(0x20, 0, &[]), "127.0.0.1"),
    ] {
        let mut begin = initialize("2025-11-25", json!({}));
        begin["id"] = json!(id);
        // Its client cannot name another: it is no proxy of ours.
        let request = Request::post("/fake/mcp", begin.to_string()).header("X-Forwarded-For", "6.6.6.6");
        let request = if address == "127.0.0.1" { request.without("X-Forwarded-For") } else { request };
        let bytes = [header, request.bytes(gateway.address())].concat();
        for at in [13, 30] {
            let mut connection = Connection::open(gateway.address());
            connection.send(&bytes[..at]);
            connection.send(&bytes[at..]);
            assert_eq!(connection.response().status(), 200, "{id}");
        }
        let event = gateway.await_event("rpc", |event| event["rpc_id"] == id);
        assert_eq!(event["client_addr"], address, "{event}");
    }
}

/// F:D15: what is no header ends the connection without an answer; nothing of it is read as a request.
#[test]
fn what_is_no_header_is_closed() {
    let record = Record::new();
    let gateway = start("limits.header_timeout = \"300ms\"", "\"127.0.0.1\"", &record);
    let request = Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string()).bytes(gateway.address());
    let cases = [
        ("no header", vec![]),
        ("a family there is not", b"PROXY TCP5 192.0.2.7 127.0.0.1 1 2\r\n".to_vec()),
        ("an address that is none", b"PROXY TCP4 192.0.2.777 127.0.0.1 1 2\r\n".to_vec()),
        ("a port too few", b"PROXY TCP4 192.0.2.7 127.0.0.1 1\r\n".to_vec()),
        ("a line without end", [b"PROXY TCP4 192.0.2.7 127.0.0.1 1 2".to_vec(), vec![b'9'; 100]].concat()),
        ("a bare LF", b"PROXY TCP4 192.0.2.7 127.0.0.1 1 2\n".to_vec()),
        ("version 3", binary(0x31, 0x11, &[0; 12])),
        ("a command there is not", binary(0x2f, 0x11, &[0; 12])),
        ("datagrams", binary(0x21, 0x12, &[0; 12])),
        ("a part that is too short", binary(0x21, 0x11, &[0; 4])),
        ("a part that is too long", binary(0x21, 0x11, &[0; 5000])),
        ("half a signature", b"\r\n\r\n\0\r\nQUIT\r\r\r\r\r".to_vec()),
    ];
    for (what, header) in &cases {
        let mut connection = Connection::open(gateway.address());
        let _closed_early = connection.try_send([&header[..], &request].concat());
        assert!(connection.read_to_close().is_empty(), "{what}");
    }
    // Nor is a header waited for without end.
    let mut slow = Connection::open(gateway.address());
    slow.send("PROXY TCP4 ");
    assert!(slow.read_to_close().is_empty());
    gateway.await_event("refused", |event| event["key"] == "listen.proxy_protocol");
    gateway.await_metric("connections", &[("listener", "main")], |open| open == 0.0);
    assert!(record.all().is_empty());
}

/// F:D15: nobody but a trusted proxy connects, whatever it says; the log names the key.
#[test]
fn nobody_else_connects() {
    let record = Record::new();
    let gateway = start("", "\"192.0.2.1\"", &record);
    let request = Request::get("/fake/mcp").bytes(gateway.address());
    for bytes in [request.clone(), [&from(Ipv4Addr::new(192, 0, 2, 1))[..], &request].concat()] {
        let mut connection = Connection::open(gateway.address());
        let _closed_early = connection.try_send(bytes);
        assert!(connection.read_to_close().is_empty());
    }
    let event = gateway.await_event("refused", |event| event["reason"] == "untrusted");
    assert!(event["key"].as_str().unwrap().starts_with("listen.trusted_proxies"), "{event}");
    gateway.await_metric("connections_total", &[("result", "untrusted")], |count| count == 2.0);
    // Operators need no proxy: the numbers above came without one.
    let told = gateway.reload(&Server::fake("fake").key("check_on_start = false").toml());
    assert_eq!(told["event"], "reload", "{told}");
    assert_eq!(
        Request::get("/fake/mcp").send(gateway.address()).status(),
        400,
        "without the key it is read as it comes"
    );
}

/// F:D11: clients behind a proxy have their own number of connections, the proxy has none.
#[test]
fn clients_behind_a_proxy_are_counted_apart() {
    let record = Record::new();
    let gateway = start("limits.connections_per_address = 2", "\"127.0.0.1\"", &record);
    let get = |client: u8| {
        let mut connection = Connection::open(gateway.address());
        let bytes =
            [from(Ipv4Addr::new(192, 0, 2, client)), Request::get("/fake/mcp").bytes(gateway.address())].concat();
        let _closed_early = connection.try_send(bytes);
        connection
    };
    let mut held: Vec<Connection> = [1, 1, 2, 2].map(get).into();
    for connection in &mut held {
        assert_eq!(connection.response().status(), 400);
    }
    assert!(get(1).read_to_close().is_empty(), "a third of one client");
    gateway.await_metric("connections_total", &[("result", "address_limit")], |count| count == 1.0);
    held.remove(0);
    gateway.await_metric("connections", &[("listener", "main")], |open| open == 3.0);
    let mut again = get(1);
    assert_eq!(again.response().status(), 400);
    assert!(held[0].is_quiet_for(Duration::from_millis(50)), "who is in stays in");
}

/// The key without a proxy would shut everybody out.
#[test]
fn it_needs_a_proxy_to_trust() {
    let toml = format!("[listen]\nproxy_protocol = true\n{}", Server::fake("fake").toml());
    let failed = Gateway::try_start(&toml, |_| {}).err().expect("no start");
    assert_eq!(failed.status.code(), Some(78), "{failed:?}");
    assert!(failed.stderr.contains("listen.trusted_proxies"), "{failed:?}");
}
