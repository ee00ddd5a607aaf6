//! Keys that are taken back while something is open for them.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::caller_key::Key;
use crate::child::Server;
use crate::client::Request;
use crate::gateway::{Directory, Gateway};
use crate::session::{Exchange, Session};

fn start(file: &Path, server: &Server) -> Gateway {
    let auth = format!("[auth]\nmethods = [\"api_key\"]\nkeys_file = \"{}\"\n", file.display());
    Gateway::start(&format!("{auth}{}", server.toml()))
}

fn open(gateway: &Gateway, key: &Key) -> Session {
    Session::open_with(gateway, "/fake/mcp", "2025-11-25", json!({}), &[key.header()])
}

/// F:F07: what is open for a key ends with it, at once and for whoever reads; other keys notice nothing.
#[test]
fn what_is_open_for_a_key_ends_with_it() {
    let directory = Directory::new();
    let file = directory.path().join("keys");
    let (gone, stays) = (Key::of("gone"), Key::of("stays"));
    fs::write(&file, format!("{}{}", gone.line(), stays.line())).unwrap();
    let gateway = start(&file, &Server::fake("fake"));
    let (theirs, ours) = (open(&gateway, &gone), open(&gateway, &stays));
    let mut get = theirs.get();
    let call = theirs.send_call_with_token(1, "hold", json!({ "gate": "never" }), 1);
    theirs.call(2, "await_held", json!({ "gate": "never" }));
    let held = ours.send_call(1, "hold", json!({ "gate": "g" }));
    fs::write(&file, stays.line()).unwrap();
    while get.next_event_or_end().is_some() {}
    let answer = call.finish().message();
    assert_eq!(answer["error"]["data"]["executed"], "maybe", "{answer}");
    gateway.await_metric("sessions_closed_total", &[("reason", "admin")], |count| count == 1.0);
    gateway.await_metric("stream_cuts_total", &[("reason", "token_expired")], |count| count >= 1.0);
    ours.call(2, "release", json!({ "gate": "g" }));
    assert_eq!(held.finish().message()["id"], 1);
}

/// F:F07: a key that is replaced under its name is gone too: whoever has the old one may not listen on.
#[test]
fn what_is_open_for_a_replaced_key_ends() {
    let directory = Directory::new();
    let file = directory.path().join("keys");
    let (leaked, fresh) = (Key::of("name"), Key::of("fresh"));
    fs::write(&file, leaked.line()).unwrap();
    let gateway = start(&file, &Server::fake("fake"));
    let mut get = open(&gateway, &leaked).get();
    fs::write(&file, fresh.line().replace("fresh ", "name ")).unwrap();
    while get.next_event_or_end().is_some() {}
    let again = open(&gateway, &fresh);
    assert_eq!(again.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).head.status, 200);
}

/// F:F07: the one stream of HTTP+SSE ends as well, whether its session has begun or not.
#[test]
fn a_stream_without_a_session_ends_with_its_key() {
    let directory = Directory::new();
    let file = directory.path().join("keys");
    let key = Key::of("gone");
    fs::write(&file, key.line()).unwrap();
    let gateway = start(&file, &Server::fake("fake").key("legacy_sse = true"));
    let (name, value) = key.header();
    let request = Request::get("/fake/sse").header("Accept", "text/event-stream").header(name, value);
    let mut stream = Exchange::send(gateway.address(), &request).stream();
    assert!(stream.next_event().data.contains("session="));
    fs::write(&file, "# nobody\n").unwrap();
    while stream.next_event_or_end().is_some() {}
}
