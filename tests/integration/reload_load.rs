//! Reloads one after the other while clients are at work.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use serde_json::json;

use crate::child::Server;
use crate::gateway::{Gateway, await_that};
use crate::session::Session;

/// Reloads of the test.
const RELOADS: usize = 20;

/// F:F06, F:F07: twenty reloads in a row, each of which changes one server, adds or removes another and leaves a third
/// alone, lose no call and no start, and leave no process, descriptor or thread behind.
#[test]
fn reloads_under_load_lose_and_leak_nothing() {
    let demo = |name: &str| Server::demo(name).key("check_on_start = false");
    let toml = |round: usize| {
        let changed = demo("changed").key(&format!("env = {{ ROUND = \"{round}\" }}")).toml();
        let coming = if round.is_multiple_of(2) { String::new() } else { demo("coming").toml() };
        format!("sessions.max = {}\n{}{changed}{coming}", 100 + round, demo("kept").toml())
    };
    let gateway = Gateway::start(&toml(0));
    let kept = Session::open(&gateway, "/kept/mcp", "2025-11-25", json!({}));
    let idle = || gateway.await_descendants(3).len();
    idle();
    let (descriptors, threads) = (gateway.fd_count(), gateway.threads());
    let (done, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let at_work = |path: &'static str| {
            let (gateway, done, calls) = (&gateway, &done, &calls);
            move || {
                while !done.load(Ordering::Relaxed) {
                    let session = Session::open(gateway, path, "2025-11-25", json!({}));
                    for id in 0..5 {
                        let answer = session.call(id, "echo", json!({ "text": "here" }));
                        assert!(answer["result"].to_string().contains("here"), "{answer}");
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                    assert_eq!(session.delete().status(), 204);
                }
            }
        };
        let workers = ["/kept/mcp", "/changed/mcp", "/changed/mcp"].map(|path| scope.spawn(at_work(path)));
        for round in 1..=RELOADS {
            let before = calls.load(Ordering::Relaxed);
            let told = gateway.reload(&toml(round));
            assert_eq!((&told["event"], &told["changed"]), (&json!("reload"), &json!("changed")), "{told}");
            // Whatever a failed worker says comes out when it is joined.
            let is_over = || workers.iter().any(thread::ScopedJoinHandle::is_finished);
            await_that("calls in this round", || {
                (calls.load(Ordering::Relaxed) > before + 3 || is_over()).then_some(())
            });
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(kept.call_text("k", "echo", json!({ "text": "kept" })).contains("kept"));
    idle();
    await_that("the descriptors", || (gateway.fd_count() <= descriptors).then_some(()));
    await_that("the threads", || (gateway.threads() <= threads + 1).then_some(()));
    for (name, value) in [("sessions", 1.0), ("requests_in_flight", 0.0), ("pool_waiters", 0.0)] {
        gateway.await_metric(name, &[], |now| now == value);
    }
    let lost: f64 = ["refused", "child_gone", "timeout", "rpc_error"]
        .iter()
        .map(|outcome| gateway.metrics().count("requests_total", &[("outcome", outcome)]))
        .sum();
    assert_eq!(lost, 0.0);
}
