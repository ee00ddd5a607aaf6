//! Mode `shared`: what sessions are told when another process takes their child's place and is not like the one before.

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use crate::child::{Record, Server};
use crate::gateway::Gateway;
use crate::session::Session;
use crate::sharing::{open, read, shared};
use crate::sharing_death::{VERBOSE, await_lists, child_of};
use crate::sse::EventStream;

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

/// A server whose tools are what a file says, and that file.
fn with_tools(record: &Record, files: &Record, tools: &str) -> (Server, PathBuf) {
    let list = files.path().join("tools");
    fs::write(&list, tools).unwrap();
    (shared().option("--record", record.path()).option("--list-file", &list), list)
}

/// Has the child replaced, and waits until its lists are read.
fn replace(session: &Session, gateway: &Gateway, after: usize) {
    child_of(session).kill();
    await_lists(gateway, after);
}

/// Fails unless the stream ends without another message.
fn expect_nothing(session: &Session, stream: EventStream) {
    session.delete();
    let rest = stream.rest();
    assert!(rest.iter().all(|event| event.data.is_empty()), "{rest:?}");
}

/// R:P05: sessions are told of a list that the next process has otherwise, and of no other.
#[test]
fn what_differs_is_told() {
    let (record, files) = (Record::new(), Record::new());
    let (server, list) = with_tools(&record, &files, r#"{"tools":[{"name":"echo"}]}"#);
    let gateway = Gateway::start(&format!("{VERBOSE}{}", server.toml()));
    let (a, b) = (open(&gateway), open(&gateway));
    let mut streams = [&a, &b].map(Session::get);
    await_lists(&gateway, 1);
    fs::write(&list, r#"{"tools":[{"name":"echo","title":"E"}]}"#).unwrap();
    replace(&a, &gateway, 2);
    for stream in &mut streams {
        assert_eq!(stream.next_message()["method"], TOOLS_CHANGED);
    }
    replace(&a, &gateway, 3);
    for (session, stream) in [&a, &b].into_iter().zip(streams) {
        expect_nothing(session, stream);
    }
    let listed = read(&record, "tools/list");
    assert_eq!(listed.len(), 3, "once by each process: {listed:?}");
}

/// R:P05: pages are put together, and a list that cannot be read may be another one.
#[test]
fn what_cannot_be_compared_is_told() {
    let (record, files) = (Record::new(), Record::new());
    let (server, list) = with_tools(&record, &files, "error");
    let gateway = Gateway::start(&format!("{VERBOSE}{}", server.arg("--page-size").arg("7").toml()));
    let session = open(&gateway);
    let mut stream = session.get();
    await_lists(&gateway, 1);
    fs::remove_file(&list).unwrap();
    replace(&session, &gateway, 2);
    assert_eq!(stream.next_message()["method"], TOOLS_CHANGED);
    assert!(read(&record, "tools/list").len() > 5, "page by page");
    replace(&session, &gateway, 3);
    fs::write(&list, "error").unwrap();
    replace(&session, &gateway, 4);
    assert_eq!(stream.next_message()["method"], TOOLS_CHANGED);
    expect_nothing(&session, stream);
}

/// R:P05, R:P11: a change that the child told of itself is one that sessions know of.
#[test]
fn a_change_that_was_told_is_not_told_again() {
    let (record, files) = (Record::new(), Record::new());
    let (server, list) = with_tools(&record, &files, r#"{"tools":[{"name":"echo"}]}"#);
    let gateway = Gateway::start(&format!("{VERBOSE}{}", server.toml()));
    let session = open(&gateway);
    let mut stream = session.get();
    await_lists(&gateway, 1);
    fs::write(&list, r#"{"tools":[]}"#).unwrap();
    session.call(1, "notify", json!({ "method": TOOLS_CHANGED, "count": 20 }));
    for _ in 0..20 {
        assert_eq!(stream.next_message()["method"], TOOLS_CHANGED);
    }
    gateway.await_events("child_list", 2, |event| event["list"] == "tools");
    replace(&session, &gateway, 2);
    expect_nothing(&session, stream);
    assert_eq!(read(&record, "tools/list").len(), 3, "not once for each notification");
}

/// R:P10, R:P25: a subscription that the next process refuses is logged, its sessions hear of the resource once more, and
/// who subscribes again asks that process.
#[test]
fn a_lost_subscription_is_told() {
    let (record, files) = (Record::new(), Record::new());
    let uris = files.path().join("uris");
    let gateway = Gateway::start(&shared().option("--record", record.path()).option("--uris-file", &uris).toml());
    fs::write(&uris, "fake://a\nfake://\u{1b}[2J\n").unwrap();
    let (a, b) = (open(&gateway), open(&gateway));
    let mut streams = [&a, &b].map(Session::get);
    let subscribe = |session: &Session, uri: &str| session.request(1, "resources/subscribe", json!({ "uri": uri }));
    assert_eq!(subscribe(&a, "fake://a")["result"], json!({}));
    assert_eq!(subscribe(&b, "fake://\u{1b}[2J")["result"], json!({}));
    fs::write(&uris, "fake://a\n").unwrap();
    child_of(&a).kill();
    let event = gateway.await_event("subscription_lost", |_| true);
    assert_eq!((&event["server"], &event["rpc_code"]), (&json!("fake"), &json!(-32002)), "{event}");
    assert!(!gateway.stderr().contains('\u{1b}') && event["uri"].as_str().unwrap().contains("[2J"), "{event}");
    let updated = streams[1].await_message(|message| message["method"] == "notifications/resources/updated");
    assert_eq!(updated["params"], json!({ "uri": "fake://\u{1b}[2J" }));
    let read_again = b.request(2, "resources/read", updated["params"].clone());
    assert_eq!(read_again["error"]["code"], -32002);
    assert_eq!(subscribe(&b, "fake://\u{1b}[2J")["error"]["code"], -32002, "the process's own answer");
    assert_eq!(subscribe(&b, "fake://a")["result"], json!({}));
    assert_eq!(gateway.events().iter().filter(|event| event["event"] == "subscription_lost").count(), 1);
    assert!(read(&record, "resources/unsubscribe").is_empty());
    a.delete();
    let heard = streams.into_iter().next().unwrap().rest();
    assert!(heard.iter().all(|event| !event.data.contains("updated")), "{heard:?}");
}
