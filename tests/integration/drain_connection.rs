//! What a drain does to connections that are kept open.

use rustix::process::Signal;
use serde_json::json;

use crate::child::Server;
use crate::client::Connection;
use crate::gateway::Gateway;
use crate::session::{Session, call};

/// A proxy that keeps connections open must be told before they go, or it loses a call on one that
/// is just being closed (RFC 9112 section 9.6).
#[test]
fn answers_of_a_drain_are_the_last_of_their_connection() {
    let gateway = Gateway::start(&format!("[drain]\nprestop = \"1h\"\n{}", Server::demo("demo").toml()));
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let echo = |id: u64| session.post_request(call(id, "echo", json!({ "text": "a" }), None).to_string());
    let mut connection = Connection::open(session.address);
    connection.request(&echo(1));
    let before = connection.response();
    assert_eq!((before.status(), before.header("connection")), (200, None));

    gateway.signal(Signal::TERM);
    gateway.await_event("drain_start", |_| true);
    connection.request(&echo(2));
    let last = connection.response();
    assert_eq!((last.status(), last.header("connection")), (200, Some("close")), "served until the pause is over");
    connection.await_close();
}
