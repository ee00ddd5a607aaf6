//! How much a child may ask of its client.

use serde_json::json;

use crate::child::{Record, Server};
use crate::gateway::Gateway;
use crate::session::Session;

/// Requests of a child's that may await an answer at once, as docs/behaviour.md says.
const MOST_OPEN: usize = 256;

fn lone() -> Server {
    Server::fake("fake").key("check_on_start = false\npool.min_idle = 0")
}

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({ "elicitation": {} }))
}

fn question(id: usize) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"elicitation/create\",\"params\":{{}}}}\n")
}

/// A child that asks without end is refused from the bound on, at once and counted; what the
/// client was asked it can still answer, and that makes room.
#[test]
fn a_child_asks_only_so_much_at_once() {
    let record = Record::new();
    let gateway = Gateway::start(&lone().option("--record", record.path()).toml());
    let session = open(&gateway);
    let questions: String = (0..MOST_OPEN + 44).map(question).collect();
    let mut stream = session.send_call(1, "raw", json!({ "text": questions, "answer": true })).stream();
    for id in 0..MOST_OPEN {
        assert_eq!(stream.next_message()["id"], id);
    }
    assert_eq!(stream.next_message()["result"]["content"][0]["text"], "written");
    gateway.await_metric("refusals_total", &[("reason", "overload")], |count| count == 44.0);
    let last = record.await_message(|message| message["id"] == MOST_OPEN + 43);
    assert_eq!(last["error"]["code"], -32603, "{last}");
    let refused = record.lines().iter().filter(|line| line.contains("\"error\":")).count();
    assert_eq!(refused, 44);
    // An answer makes room for one.
    session.respond(&json!(7), json!({ "action": "accept" }));
    assert_eq!(record.await_message(|message| message["id"] == 7)["result"]["action"], "accept");
    let mut stream = session.send_call(2, "raw", json!({ "text": question(7), "answer": true })).stream();
    assert_eq!(stream.next_message()["id"], 7);
}

/// What a child asks before the client is ready is held out of the memory budget, and given back.
#[test]
fn what_is_held_early_counts_as_memory() {
    let long = "x".repeat(100_000);
    let early = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{{"message":"{long}"}}}}"#);
    let gateway = Gateway::start(&lone().option("--after-init", early).toml());
    let session = Session::initialize(&gateway, "/fake/mcp", "2025-11-25", json!({ "elicitation": {} }), &[]);
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes >= 100_000.0);
    session.delete();
    gateway.await_metric("memory_used_bytes", &[], |bytes| bytes == 0.0);
}
