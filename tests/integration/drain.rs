//! The end of a gateway by signals, in order and in time.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::child::{Process, Server};
use crate::client::Request;
use crate::gateway::{Gateway, await_that};
use crate::session::{Exchange, Session, call, initialize};

fn ready(gateway: &Gateway) -> u16 {
    Request::get("/readyz").send(gateway.admin()).status()
}

/// C:B33, F:F05: unready first and still serving; then no new sessions; the running call ends, streams
/// end, children stop, the status is 0.
#[test]
fn a_drain_goes_in_order() {
    let toml = format!("[drain]\nprestop = \"700ms\"\n{}", Server::demo("demo").toml());
    let mut gateway = Gateway::start(&toml);
    await_that("readiness", || (ready(&gateway) == 200).then_some(()));
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let mut listening = session.get();
    listening.next_event();
    let mut running = session.send_call_with_token(1, "slow", json!({ "seconds": 2, "steps": 4 }), "t").stream();
    running.next_event();
    let children = gateway.descendants();

    gateway.signal(Signal::TERM);
    gateway.await_event("drain_start", |_| true);
    assert_eq!(ready(&gateway), 503);
    assert!(session.call_text(2, "echo", json!({ "text": "still here" })).contains("still here"));

    let refused = await_that("the end of the pause", || {
        let answer =
            Request::post("/demo/mcp", initialize("2025-11-25", json!({})).to_string()).send(gateway.address());
        (answer.status() == 503).then_some(answer)
    });
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.json()["id"], "initialize", "{}", refused.text());
    let declined = session.call(3, "echo", json!({ "text": "a" }));
    let data = json!({ "gateway": true, "reason": "draining", "executed": "no", "retry_after_ms": 1000 });
    assert_eq!(declined["error"]["data"], data, "{declined}");
    assert_eq!(running.await_message(|message| message["id"] == 1)["result"]["isError"], json!(null));
    assert_eq!(gateway.await_exit().code(), Some(0));
    assert!(!children.iter().any(Process::is_alive));
}

/// F:F05: a call that does not end in time is cut, told so, and the status says it.
#[test]
fn a_call_that_outlasts_the_drain_is_cut() {
    let toml = format!("[drain]\nprestop = \"0s\"\ncalls = \"200ms\"\n{}", Server::demo("demo").toml());
    let mut gateway = Gateway::start(&toml);
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let mut running = session.send_call_with_token(1, "slow", json!({ "seconds": 60, "steps": 600 }), "t").stream();
    running.next_event();
    gateway.signal(Signal::TERM);
    let answer = running.await_message(|message| message["id"] == 1);
    let data = json!({ "gateway": true, "reason": "draining", "executed": "maybe" });
    assert_eq!(answer["error"]["data"], data, "the tool was running: {answer}");
    assert_eq!(gateway.await_exit().code(), Some(1));
    gateway.await_event("drain_done", |event| event["calls_cut"] == 1);
}

/// F:F05, F:A08: the servers' children are stopped at the same time, not one server after the other.
#[test]
fn servers_stop_together() {
    let stubborn = |name: &str| {
        let script = "trap '' TERM; while :; do sleep 1000; done";
        Server::of(name, "sh")
            .arg("-c")
            .arg(script)
            .key("check_on_start = false\ntimeouts.close = \"1s\"\ntimeouts.term = \"1s\"")
    };
    let servers: String = ["a", "b", "c", "d", "e", "f", "g"].map(|name| stubborn(name).toml()).concat();
    let mut gateway = Gateway::start(&format!("[drain]\nchildren = \"1m\"\n{servers}"));
    let children = gateway.await_descendants(14);
    let asked = Instant::now();
    gateway.signal(Signal::INT);
    assert_eq!(gateway.await_exit().code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(8), "it took {:?}", asked.elapsed());
    assert!(!children.iter().any(Process::is_alive));
}

/// F:F05: a gateway that ends starts nothing any more, though a spare was due.
#[test]
fn no_child_is_started_at_the_end() {
    let server = Server::of("fails", "false").key("check_on_start = false");
    let mut gateway = Gateway::start(&format!("[drain]\nchildren = \"1m\"\n{}", server.toml()));
    // The next one comes after a pause that doubled twice.
    gateway.await_events("child_start", 3, |_| true);
    gateway.signal(Signal::INT);
    assert_eq!(gateway.await_exit().code(), Some(0));
    let events = gateway.events();
    let after = events.iter().skip_while(|event| event["event"] != "drain_start");
    assert_eq!(after.filter(|event| event["event"] == "child_start").count(), 0);
}

/// F:F05: a session that waits for its process when the drain begins is refused there and then, though a
/// process comes free later.
#[test]
fn a_session_that_waits_for_a_process_is_refused() {
    let server = Server::fake("fake").key("check_on_start = false\npool = { max_size = 1, wait = \"1m\" }");
    let mut gateway = Gateway::start(&format!("[drain]\ncalls = \"1m\"\n{}", server.toml()));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let gate = json!({ "gate": "g" });
    let held = session.send_call(1, "hold", gate.clone());
    session.call(2, "await_held", gate);
    let late = Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string());
    let late = Exchange::send(gateway.address(), &late);
    gateway.await_metric("pool_waiters", &[], |waiters| waiters == 1.0);
    gateway.signal(Signal::INT);
    let refused = late.finish();
    assert_eq!(refused.head.status, 503, "{refused:?}");
    assert!(refused.head.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(gateway.descendants().len(), 1, "the call goes on");
    gateway.await_descendants(1)[0].kill();
    assert_eq!(held.finish().message()["error"]["data"]["reason"], "child_gone");
    assert_eq!(gateway.await_exit().code(), Some(0));
}

/// F:F05, F:A08: what outlasts `drain.children` is dead when the gateway is, the whole group.
#[test]
fn nothing_outlives_the_gateway() {
    let script = "trap '' TERM; sh -c \"trap '' TERM; while :; do sleep 1000; done\" & while :; do sleep 1000; done";
    let stubborn = |name: &str| {
        Server::of(name, "sh")
            .arg("-c")
            .arg(script)
            .key("check_on_start = false\ntimeouts.close = \"1h\"\npool.min_idle = 3")
    };
    let servers: String = ["a", "b", "c", "d"].map(|name| stubborn(name).toml()).concat();
    let mut gateway = Gateway::start(&format!("[drain]\nchildren = \"200ms\"\n{servers}"));
    let family = gateway.await_descendants(48);
    assert_eq!(family.iter().filter(|process| process.group == process.id).count(), 12);
    gateway.signal(Signal::INT);
    assert_eq!(gateway.await_exit().code(), Some(0));
    let leader = |process: &&Process| process.group == process.id;
    assert!(!family.iter().filter(leader).any(Process::is_alive), "{family:#?}");
    await_that("the end of every family", || (!family.iter().any(Process::is_alive)).then_some(()));
}

/// C:B33: with `strict_status` the status says it too, and `Retry-After` what the body says of coming back: a call
/// that did not run may be repeated, one that was cut may not.
#[test]
fn a_strict_status_says_when_to_come_back_only_where_one_may() {
    let server = Server::fake("fake").key("strict_status = true").key("pool.min_idle = 0").toml();
    let toml = format!("[drain]\nprestop = \"0s\"\ncalls = \"500ms\"\n[limits]\nrequests_in_flight = 1\n{server}");
    let gateway = Gateway::start(&toml);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let json_only = |body: serde_json::Value| session.post_request(body.to_string()).with("Accept", "application/json");
    let cut = Exchange::send(session.address, &json_only(call(1, "hold", json!({ "gate": "g" }), None)));
    gateway.await_metric("requests_in_flight", &[], |count| count == 1.0);
    let busy = json_only(call(2, "echo", json!({}), None)).send(session.address);
    assert_eq!((busy.status(), busy.header("retry-after")), (503, Some("1")), "{busy:?}");
    assert_eq!(busy.json()["error"]["data"]["retry_after_ms"], 1000);
    gateway.signal(Signal::TERM);
    let cut = cut.finish();
    assert_eq!((cut.head.status, cut.head.header("retry-after")), (503, None), "{cut:?}");
    assert_eq!(cut.message()["error"]["data"]["executed"], "maybe");
}

/// C:B33, F:F06, F:A08: a second signal ends everything within two seconds, also what ignores signals.
#[test]
fn a_second_signal_does_not_wait() {
    let stubborn = r#"command = "sh"
args = ["-c", "trap '' TERM INT; while :; do sleep 1000; done"]
check_on_start = false"#;
    let mut gateway = Gateway::start(&format!("[drain]\nprestop = \"1h\"\n[servers.stubborn]\n{stubborn}\n"));
    let children = gateway.await_descendants(2);
    gateway.signal(Signal::TERM);
    gateway.await_event("drain_start", |_| true);
    let asked = Instant::now();
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.await_exit().code(), Some(1));
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    await_that("the end of the children", || (!children.iter().any(Process::is_alive)).then_some(()));
}

/// F:F06: QUIT tells the state; the gateway goes on.
#[test]
fn quit_changes_nothing() {
    let gateway = Gateway::start(&Server::demo("demo").toml());
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    gateway.signal(Signal::QUIT);
    gateway.await_event("state", |event| event["sessions"] == 1);
    assert!(session.call_text(1, "echo", json!({ "text": "on" })).contains("on"));
}
