//! What children take from the machine, as the metrics show it.

use std::fs;

use serde_json::json;

use crate::child::Server;
use crate::gateway::{Gateway, await_that};
use crate::session::Session;

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({}))
}

fn consume(session: &Session, kind: &str, amount: f64) {
    let amount = if amount.fract() == 0.0 { json!(amount as u64) } else { json!(amount) };
    let answer = session.call(kind, "consume", json!({ "kind": kind, "amount": amount }));
    assert_eq!(answer["result"]["content"][0]["text"], "taken", "{answer}");
}

fn value(gateway: &Gateway, name: &str, server: &str) -> Option<f64> {
    gateway.metrics().value(name, &[("server", server)])
}

/// Memory, processor time and descriptors of a child and of what it started, until they end; the
/// time stays, that of children between two measurements included. The gateway can read all of it though it is not
/// dumpable and the child is in a domain of its own.
#[test]
fn what_children_take_is_shown() {
    let keys = "check_on_start = false\npool.min_idle = 0";
    let other = Server::fake("other").key("check_on_start = false\npool.min_idle = 0");
    let gateway = Gateway::start(&(Server::fake("fake").key(keys).toml() + &other.toml()));
    let session = open(&gateway);
    consume(&session, "memory", f64::from(64 << 20));
    consume(&session, "files", 20.0);
    consume(&session, "cpu", 0.3);
    consume(&session, "processes", 2.0);
    let processes = gateway.await_descendants(3);
    // Three each, and the files; those that were just forked have all of them until they run their program.
    let held =
        || processes.iter().map(|it| fs::read_dir(format!("/proc/{}/fd", it.id)).unwrap().count()).sum::<usize>();
    await_that("the programs to run", || (held() == 29).then_some(()));
    // What was looked at a moment ago may have been in the middle of a start.
    gateway.await_metric("child_open_fds", &[("server", "fake")], |open| open == 29.0);
    let resident = value(&gateway, "child_resident_bytes", "fake").unwrap();
    assert!((f64::from(64 << 20)..f64::from(1 << 30)).contains(&resident), "{resident}");
    let used = value(&gateway, "child_cpu_seconds_total", "fake").unwrap();
    assert!((0.2..60.0).contains(&used), "{used}");
    assert_eq!(value(&gateway, "child_cpu_seconds_total", "other"), None, "it has no child");
    session.delete();
    gateway.await_descendants(0);
    gateway.await_metric("children", &[], |children| children == 0.0);
    for gauge in ["child_open_fds", "child_resident_bytes"] {
        assert_eq!(value(&gateway, gauge, "fake"), Some(0.0), "{gauge}");
    }
    let short = open(&gateway);
    consume(&short, "cpu", 0.3);
    short.delete();
    gateway.await_metric("children", &[], |children| children == 0.0);
    let used_now = value(&gateway, "child_cpu_seconds_total", "fake").unwrap();
    assert!((used + 0.2..60.0).contains(&used_now), "{used} then {used_now}");
}
