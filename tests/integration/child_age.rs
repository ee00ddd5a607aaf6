//! When children nobody uses end: by age, by idleness, and never in the middle of a call.

use serde_json::{Value, json};

use crate::child::Server;
use crate::client::Request;
use crate::gateway::{Gateway, await_that};
use crate::session::{Exchange, Session, initialize};

const RECYCLED: &[(&str, &str)] = &[("reason", "recycled")];

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({}))
}

/// The process behind a session.
fn process(session: &Session) -> Value {
    session.call("state", "state", json!({}))["result"]["structuredContent"]["pid"].clone()
}

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
    let session = open(&gateway);
    let pid = process(&session);
    let held = session.send_call(1, "hold", json!({ "gate": "g" }));
    gateway.await_metric("child_exits_total", RECYCLED, |exits| exits >= 3.0);
    session.call(2, "release", json!({ "gate": "g" }));
    let answer = held.finish();
    assert!(answer.message()["result"].is_object(), "{answer:?}");
    assert_eq!(process(&session), pid);
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

/// R:P24: a shared child too old for new sessions goes on for those it has, in the middle of a call as well, and ends
/// when the last of them does; who comes meanwhile gets another one.
#[test]
fn an_old_shared_child_takes_no_session_and_cuts_no_call() {
    let keys = "check_on_start = false\nmode = \"shared\"\npool = { min_idle = 0, max_lifetime = \"1s\" }";
    let gateway = Gateway::start(&Server::fake("fake").key(keys).toml());
    let old = [open(&gateway), open(&gateway)];
    let pid = process(&old[0]);
    assert_eq!(process(&old[1]), pid);
    let held = old[0].send_call(1, "hold", json!({ "gate": "g" }));
    let another = |known: &[&Value]| {
        await_that("another child", || {
            let session = open(&gateway);
            let pid = process(&session);
            session.delete();
            (!known.contains(&&pid)).then_some(pid)
        })
    };
    let young = another(&[&pid]);
    old[1].call(2, "release", json!({ "gate": "g" }));
    assert!(held.finish().message()["result"].is_object());
    old[0].delete();
    // Long enough to have been looked at.
    another(&[&pid, &young]);
    assert_eq!(process(&old[1]), pid, "one session is left");
    assert!(gateway.events().iter().all(|event| event["event"] != "child_exit" || event["child_pid"] != pid));
    old[1].delete();
    gateway.await_event("child_exit", |exit| exit["child_pid"] == pid && exit["reason"] == "recycled");
    assert_ne!(process(&open(&gateway)), pid);
}

/// R:P24: a child that has served its number of sessions takes no other, and ends with the last of them.
#[test]
fn uses_of_a_shared_child_are_counted() {
    let keys = "check_on_start = false\nmode = \"shared\"\npool = { min_idle = 0, max_uses = 2 }";
    let gateway = Gateway::start(&Server::fake("fake").key(keys).toml());
    let first = open(&gateway);
    let pid = process(&first);
    first.delete();
    let second = open(&gateway);
    assert_eq!(process(&second), pid, "the end of a session is not that of its child");
    let third = open(&gateway);
    let other = process(&third);
    assert_ne!(other, pid);
    second.delete();
    gateway.await_event("child_exit", |exit| exit["child_pid"] == pid && exit["reason"] == "recycled");
    assert_eq!(process(&third), other);
    gateway.await_descendants(1);
}

/// R:P24: a shared child without sessions ends after `pool.idle_timeout`, and leaves nothing.
#[test]
fn an_idle_shared_child_ends() {
    let keys = "check_on_start = false\nmode = \"shared\"\npool = { min_idle = 0, idle_timeout = \"300ms\" }";
    let gateway = Gateway::start(&Server::fake("fake").key(keys).toml());
    let descriptors = gateway.fd_count();
    let session = open(&gateway);
    let pid = process(&session);
    session.delete();
    gateway.await_event("child_exit", |exit| exit["child_pid"] == pid && exit["reason"] == "stopped");
    await_that("nothing left", || {
        (gateway.descendants().is_empty() && gateway.fd_count() <= descriptors).then_some(())
    });
    let next = open(&gateway);
    assert_ne!(process(&next), pid);
}
