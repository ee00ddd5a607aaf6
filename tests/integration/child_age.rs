//! When children nobody uses end: by age, by idleness, and never in the middle of a call.

use serde_json::json;

use crate::child::Server;
use crate::client::Request;
use crate::gateway::{Gateway, await_that};
use crate::session::{Exchange, Session, initialize};

const RECYCLED: &[(&str, &str)] = &[("reason", "recycled")];

fn children(gateway: &Gateway, state: &str, count: usize) {
    gateway.await_metric("children", &[("state", state)], |children| children == count as f64);
}

/// R:P24, R:P27: spares too old for a session are replaced, again and again; the child that somebody uses is as old and
/// lives on until its session ends. Processes and descriptors are then as many as before.
#[test]
fn age_ends_spares_and_cuts_no_call() {
    let server = Server::fake("fake").key("check_on_start = false\npool.max_lifetime = \"400ms\"");
    let gateway = Gateway::start(&server.toml());
    children(&gateway, "idle", 1);
    let descriptors = gateway.fd_count();
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let pid = session.call("state", "state", json!({}))["result"]["structuredContent"]["pid"].clone();
    let held = session.send_call(1, "hold", json!({ "gate": "g" }));
    gateway.await_metric("child_exits_total", RECYCLED, |exits| exits >= 3.0);
    session.call(2, "release", json!({ "gate": "g" }));
    let answer = held.finish();
    assert!(answer.message()["result"].is_object(), "{answer:?}");
    assert_eq!(session.call(3, "state", json!({}))["result"]["structuredContent"]["pid"], pid);
    let ended: Vec<_> = gateway.events().into_iter().filter(|event| event["event"] == "child_exit").collect();
    assert!(ended.iter().all(|exit| exit["reason"] == "recycled" && exit["child_pid"] != pid), "{ended:?}");
    session.delete();
    gateway.await_event("child_exit", |exit| exit["child_pid"] == pid && exit["reason"] == "stopped");
    await_that("one spare and no more descriptors than before", || {
        (gateway.descendants().len() == 1 && gateway.fd_count() <= descriptors).then_some(())
    });
}

/// R:P24, F:A13, C:B22: clients that leave while their child starts leave nothing behind: not a process but
/// the spare, not a descriptor, not a session.
#[test]
fn who_leaves_at_once_leaves_nothing() {
    let server = Server::fake("fake").key("check_on_start = false\npool = { min_idle = 1, idle_timeout = \"300ms\" }");
    let gateway = Gateway::start(&("[sessions]\nuninitialized = \"300ms\"\n".to_owned() + &server.toml()));
    children(&gateway, "idle", 1);
    let descriptors = gateway.fd_count();
    let request = Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string());
    // A reset may overtake what was sent, so this goes on until enough have come through.
    await_that("twenty starts", || {
        let leaving: Vec<_> = (0..8).map(|_| Exchange::send(gateway.address(), &request)).collect();
        leaving.into_iter().for_each(Exchange::reset);
        let starts = gateway.events().iter().filter(|event| event["event"] == "child_start").count();
        (starts >= 20).then_some(())
    });
    await_that("nothing but the spare", || {
        let sessions = gateway.metrics().count("sessions", &[]);
        let nothing = gateway.descendants().len() == 1 && sessions == 0.0 && gateway.fd_count() <= descriptors;
        nothing.then_some(())
    });
}
