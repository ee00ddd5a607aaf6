//! The configuration is read again on HUP: all of it is taken over, or nothing.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::caller_key::{Key, only};
use crate::child::{Gate, Process, Record, Server};
use crate::client::{Connection, Request, Response};
use crate::gateway::{Directory, Gateway, await_that, with_listeners};
use crate::session::{Exchange, Session, initialize};

const REVISION: &str = "2025-11-25";

fn fake(name: &str) -> Server {
    Server::fake(name).key("check_on_start = false")
}

/// One that starts nothing by itself.
fn bare(name: &str) -> Server {
    fake(name).key("pool.min_idle = 0")
}

fn open(gateway: &Gateway, name: &str) -> Session {
    Session::open(gateway, &format!("/{name}/mcp"), REVISION, json!({}))
}

fn begin(name: &str) -> Request {
    Request::post(&format!("/{name}/mcp"), initialize(REVISION, json!({})).to_string())
}

fn try_open(gateway: &Gateway, name: &str) -> Response {
    begin(name).send(gateway.address())
}

fn ping(session: &Session) -> u16 {
    let ping = json!({ "jsonrpc": "2.0", "id": "look", "method": "ping" }).to_string();
    session.post_request(ping).send(session.address).status()
}

fn pid(session: &Session) -> u32 {
    let state = session.call("s", "state", json!({}));
    state["result"]["structuredContent"]["pid"].as_u64().unwrap_or_else(|| panic!("{state}")).try_into().unwrap()
}

/// The processes it started itself, by what does not change about them.
fn children(gateway: &Gateway) -> Vec<u32> {
    let started = |process: &&Process| process.parent == gateway.pid();
    gateway.descendants().iter().filter(started).map(|child| child.id).collect()
}

fn is_alive(pid: u32) -> bool {
    Process::of(pid).is_some_and(|process| process.is_alive())
}

fn child_state(gateway: &Gateway, server: &str, state: &str, count: f64) {
    gateway.await_metric("children", &[("server", server), ("state", state)], |children| children == count);
}

#[track_caller]
fn assert_taken(told: &Value) {
    assert_eq!(told["event"], "reload", "{told}");
}

#[track_caller]
fn assert_refused(gateway: &Gateway, told: &Value, why: &[&str]) {
    assert_eq!(told["event"], "reload_failed", "{told}");
    let error = told["error"].as_str().unwrap();
    why.iter().for_each(|part| assert!(error.contains(part), "{part:?} in {error}"));
    assert_eq!(gateway.metrics().value("config_last_reload_successful", &[]), Some(0.0));
}

/// F:F07: what is no TOML, or has a key nobody knows, or needs a restart, changes nothing at all; it is told with
/// line and column, or with its key. The next good one is taken over.
#[test]
fn a_bad_file_changes_nothing() {
    let toml = fake("kept").toml();
    let gateway = Gateway::start(&toml);
    let metrics = gateway.metrics();
    assert_eq!(metrics.value("config_last_reload_successful", &[]), Some(1.0));
    let started = metrics.value("config_last_reload_success_timestamp_seconds", &[]).unwrap();
    assert!(started > 1.7e9, "{started}");
    let session = open(&gateway, "kept");
    gateway.await_descendants(2);
    let (child, all) = (pid(&session), children(&gateway));
    let next = format!("{toml}{}", bare("next").toml());
    assert_refused(&gateway, &gateway.reload(&format!("{next}[listen\n")), &["gangway.toml:", ":1"]);
    let typo = next.replacen("check_on_start", "chek_on_start", 1);
    assert_refused(&gateway, &gateway.reload(&typo), &["gangway.toml:4:1", "check_on_start"]);
    let moved = format!("listen.address = \"127.0.0.1:1\"\ntelemetry.log.format = \"json\"\n{next}");
    assert_refused(&gateway, &gateway.reload(&moved), &["listen.address, telemetry.log.format", "restart"]);
    assert_refused(&gateway, &gateway.reload(&format!("auth.keys_file = \"gone\"\n{next}")), &["gone"]);
    assert_eq!(try_open(&gateway, "next").status(), 404);
    assert_eq!(pid(&session), child);
    assert_eq!(children(&gateway), all, "no child came or went");
    let told = gateway.reload(&next);
    assert_taken(&told);
    assert_eq!((&told["added"], &told["changed"], &told["removed"]), (&json!("next"), &Value::Null, &Value::Null));
    assert_eq!(gateway.metrics().value("config_last_reload_successful", &[]), Some(1.0));
    open(&gateway, "next");
    assert_eq!(pid(&session), child);
}

/// A server that is added is tried, keeps spares, serves, and counts for readiness if it is required.
#[test]
fn an_added_server_serves() {
    let mut gate = Gate::new();
    let gateway = Gateway::start(&fake("kept").toml());
    let ready = || Request::get("/readyz").send(gateway.admin()).status();
    assert_eq!(ready(), 200);
    let slow = Server::fake("slow").option("--wait-for", gate.path()).key("required = true");
    assert_taken(&gateway.reload(&format!("{}{}", fake("kept").toml(), slow.toml())));
    assert_eq!(ready(), 503, "not seen well yet");
    gate.open();
    gateway.await_event("server_ready", |event| event["server"] == "slow");
    await_that("readiness", || (ready() == 200).then_some(()));
    child_state(&gateway, "slow", "idle", 1.0);
    assert!(open(&gateway, "slow").call_text(1, "echo", json!({ "a": 1 })).contains('1'));
}

/// F:F07: a server that is taken out takes no session at once; what is open ends with its last call, or at
/// `drain.calls`; then nothing of it is left, and it may come again.
#[test]
fn a_removed_server_drains_away() {
    let kept = bare("kept").toml();
    let both = format!("{kept}{}", fake("gone").key("legacy_sse = true").toml());
    let gateway = Gateway::start(&both);
    let (idle, busy, other) = (open(&gateway, "gone"), open(&gateway, "gone"), open(&gateway, "kept"));
    let mut legacy =
        Exchange::send(gateway.address(), &Request::get("/gone/sse").header("Accept", "text/event-stream")).stream();
    legacy.next_event();
    let mut listening = idle.get();
    let held = busy.send_call(1, "hold", json!({ "gate": "g" }));
    busy.call(2, "await_held", json!({ "gate": "g" }));
    let told = gateway.reload(&kept);
    assert_eq!((&told["event"], &told["removed"]), (&json!("reload"), &json!("gone")), "{told}");
    assert_eq!(try_open(&gateway, "gone").status(), 404);
    assert_eq!(Request::get("/gone/sse").header("Accept", "text/event-stream").send(gateway.address()).status(), 404);
    while listening.next_event_or_end().is_some() {}
    while legacy.next_event_or_end().is_some() {}
    await_that("the end of the idle session", || (ping(&idle) == 404).then_some(()));
    let declined = busy.call(3, "release", json!({ "gate": "g" }));
    let data = &declined["error"]["data"];
    assert_eq!((&data["reason"], &data["executed"]), (&json!("draining"), &json!("no")), "{declined}");
    assert_eq!(ping(&busy), 200, "it is there as long as its call");
    busy.notify("notifications/cancelled", json!({ "requestId": 1 }));
    drop(held);
    await_that("the end of the busy session", || (ping(&busy) == 404).then_some(()));
    gateway.await_metric("sessions_closed_total", &[("server", "gone"), ("reason", "drain")], |closed| closed == 2.0);
    gateway.await_descendants(1);
    assert_eq!(ping(&other), 200);
    assert_taken(&gateway.reload(&both));
    open(&gateway, "gone");
}

/// F:F05, F:F07: a call that outlasts `drain.calls` of the configuration that takes its server out is cut.
#[test]
fn a_removed_server_waits_for_calls_so_long() {
    let kept = bare("kept").toml();
    let gateway = Gateway::start(&format!("{kept}{}", fake("gone").toml()));
    let session = open(&gateway, "gone");
    let call = session.send_call(1, "hold", json!({ "gate": "never" }));
    session.call(2, "await_held", json!({ "gate": "never" }));
    assert_taken(&gateway.reload(&format!("drain.calls = \"100ms\"\n{kept}")));
    let data = call.finish().message()["error"]["data"].clone();
    assert_eq!((&data["reason"], &data["executed"]), (&json!("draining"), &json!("maybe")), "{data}");
    gateway.await_descendants(0);
}

/// F:F07: a server whose command changed: old sessions stay with their old children, new ones get new children, the
/// old spares go at once, and the old generation with its last session.
#[test]
fn a_changed_server_serves_old_and_new() {
    let gateway = Gateway::start(&fake("fake").arg("--mark").arg("old").toml());
    let before = open(&gateway, "fake");
    let old = pid(&before);
    child_state(&gateway, "fake", "idle", 1.0);
    let spare = gateway.descendants().into_iter().find(|child| child.id != old).unwrap();
    let changed = Server::fake("fake").arg("--mark").arg("new");
    let told = gateway.reload(&changed.toml());
    assert_eq!((&told["event"], &told["changed"]), (&json!("reload"), &json!("fake")), "{told}");
    assert_eq!(Request::get("/readyz").send(gateway.admin()).status(), 200, "it was seen well");
    await_that("the end of the old spare", || (!spare.is_alive()).then_some(()));
    // Tried again, as `check_on_start` has it now.
    gateway.await_event("server_ready", |_| true);
    let after = open(&gateway, "fake");
    let argv =
        |session: &Session| session.call("d", "dump", json!({}))["result"]["structuredContent"]["argv"].to_string();
    assert!(argv(&after).contains("\"new\""), "{}", argv(&after));
    assert!(argv(&before).contains("\"old\""), "{}", argv(&before));
    assert_eq!(pid(&before), old);
    gateway.await_metric("sessions", &[("server", "fake")], |sessions| sessions == 2.0);
    before.delete();
    await_that("the end of the old child", || (!is_alive(old)).then_some(()));
    assert_eq!(ping(&after), 200);
}

/// As above for a child that several share: it takes no session more, serves those it has, goes with the last, and takes
/// its sessions along if it goes first.
#[test]
fn a_changed_shared_server_serves_old_and_new() {
    let shared = |mark: &str| {
        let server = bare("fake").arg("--mark").arg(mark);
        server.key("mode = \"shared\"").key("pool.idle_timeout = \"off\"").toml()
    };
    let gateway = Gateway::start(&shared("a"));
    let first = [open(&gateway, "fake"), open(&gateway, "fake")];
    let [a, also_a] = first.each_ref().map(pid);
    assert_eq!(a, also_a);
    assert_taken(&gateway.reload(&shared("b")));
    let second = open(&gateway, "fake");
    let b = pid(&second);
    assert_ne!(a, b);
    assert_eq!(first.each_ref().map(pid), [a, a]);
    first.iter().for_each(|session| drop(session.delete()));
    await_that("the end of the first child", || (!is_alive(a)).then_some(()));
    assert_taken(&gateway.reload(&shared("c")));
    assert_eq!(pid(&second), b);
    Process::of(b).unwrap().kill();
    await_that("the end of its session", || {
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        (second.post_request(ping).send(gateway.address()).status() == 404).then_some(())
    });
    assert_ne!(pid(&open(&gateway, "fake")), b);
    gateway.await_descendants(1);
}

/// A server that moves: open sessions keep the path they know, new ones are there no more.
#[test]
fn a_moved_server_keeps_the_path_of_its_sessions() {
    let gateway = Gateway::start(&bare("fake").toml());
    let before = open(&gateway, "fake");
    assert_taken(&gateway.reload(&bare("fake").key("path = \"/elsewhere\"").toml()));
    assert_eq!(try_open(&gateway, "fake").status(), 404);
    assert_eq!(Request::get("/fake/mcp").header("Accept", "text/html").send(gateway.address()).status(), 404);
    let after = Session::open(&gateway, "/elsewhere", REVISION, json!({}));
    assert!(before.call_text(1, "echo", json!({ "a": "old" })).contains("old"));
    assert!(after.call_text(1, "echo", json!({ "a": "new" })).contains("new"));
    before.delete();
    await_that("the end of the path", || {
        before.get_request().send(gateway.address()).text().contains("Nothing is served").then_some(())
    });
}

/// A server that did not change is not touched: its sessions, its spare and their processes stay, whatever else
/// changes, `required = "auto"` included, which means another thing beside another server.
#[test]
fn an_unchanged_server_is_not_touched() {
    let gateway = Gateway::start(&fake("kept").toml());
    let session = open(&gateway, "kept");
    let call = session.send_call(1, "hold", json!({ "gate": "g" }));
    session.call(2, "await_held", json!({ "gate": "g" }));
    let mut stream = session.get();
    stream.next_event();
    child_state(&gateway, "kept", "idle", 1.0);
    gateway.await_descendants(2);
    let before = children(&gateway);
    let settings =
        "sessions.max = 7\nstreams.sse_after = \"10ms\"\nreplay.age = \"1m\"\nlimits.body_bytes = \"1MiB\"\n";
    let told = gateway.reload(&format!("{settings}{}{}", fake("kept").toml(), bare("other").toml()));
    assert_eq!((&told["added"], &told["changed"]), (&json!("other"), &Value::Null), "{told}");
    assert_eq!(told["tables"], "limits, sessions, streams, replay", "{told}");
    assert_taken(&gateway.reload(&fake("kept").toml()));
    assert_eq!(children(&gateway), before);
    // Two calls in flight on their own: the notification belongs to no stream of a call.
    session.call(4, "notify", json!({ "method": "notifications/tools/list_changed" }));
    assert_eq!(stream.next_message()["method"], "notifications/tools/list_changed");
    session.call(5, "release", json!({ "gate": "g" }));
    assert_eq!(call.finish().message()["id"], 1);
    assert!(gateway.events().iter().all(|event| event["event"] != "child_exit"));
}

/// An `initialize` that waits for a child of a server that changes meanwhile gets one of the new ones.
#[test]
fn a_start_under_way_is_not_lost() {
    let full = |size: u32| bare("fake").key(&format!("pool.max_size = {size}"));
    let gateway = Gateway::start(&full(1).toml());
    let first = open(&gateway, "fake");
    let waiting = Exchange::send(gateway.address(), &begin("fake"));
    gateway.await_metric("pool_waiters", &[], |waiters| waiters == 1.0);
    assert_taken(&gateway.reload(&full(2).toml()));
    let answer = waiting.finish();
    assert_eq!(answer.head.status, 200, "{answer:?}");
    assert_eq!(ping(&first), 200);
    gateway.await_metric("pool_waiters", &[], |waiters| waiters == 0.0);
}

/// A breaker that is open belongs to the table that did not work.
#[test]
fn a_repaired_server_starts_afresh() {
    let broken = Server::of("fake", "false").key("check_on_start = false\npool.min_idle = 0\nbreaker.failures = 1");
    let gateway = Gateway::start(&broken.toml());
    assert_eq!(try_open(&gateway, "fake").status(), 503);
    gateway.await_metric("breaker_state", &[], |state| state > 0.0);
    assert_taken(&gateway.reload(&bare("fake").toml()));
    assert_eq!(gateway.metrics().count("breaker_state", &[]), 0.0);
    open(&gateway, "fake");
}

/// Keys that come, go, or open less; a server that begins to ask for one ends what was open without.
#[test]
fn keys_come_and_go() {
    let (gone, stays, narrowed) = (Key::of("gone"), Key::of("stays"), Key::of("narrow"));
    let servers = format!("{}{}", bare("one").toml(), bare("two").toml());
    let gateway = Gateway::start(&format!("{}{servers}", only(&[&gone, &narrowed])));
    let open = |key: &Key| Session::open_with(&gateway, "/one/mcp", REVISION, json!({}), &[key.header()]);
    let status = |key: &Key, name: &str| {
        begin(name).header("Authorization", &key.authorization).send(gateway.address()).status()
    };
    let mut streams = [open(&gone).get(), open(&narrowed).get()];
    assert_eq!(status(&stays, "one"), 401);
    let auth = format!("{}{}", only(&[&stays]), narrowed.toml("servers = [\"two\"]"));
    let told = gateway.reload(&format!("{auth}{servers}"));
    assert_eq!(
        (&told["keys_added"], &told["keys_changed"], &told["keys_removed"], &told["changed"]),
        (&json!("stays"), &json!("narrow"), &json!("gone"), &Value::Null),
        "{told}"
    );
    for stream in &mut streams {
        while stream.next_event_or_end().is_some() {}
    }
    assert_eq!((status(&gone, "one"), status(&stays, "one")), (401, 200));
    assert_eq!((status(&narrowed, "one"), status(&narrowed, "two")), (401, 200));
}

/// Who came in without a key is out once a key is asked for, listening included.
#[test]
fn a_server_that_closes_its_door_ends_what_was_open() {
    let gateway = Gateway::start(&bare("fake").toml());
    let mut stream = open(&gateway, "fake").get();
    let key = Key::of("key");
    assert_taken(&gateway.reload(&format!("{}{}", only(&[&key]), bare("fake").toml())));
    while stream.next_event_or_end().is_some() {}
    gateway.await_metric("sessions_closed_total", &[("reason", "admin")], |closed| closed == 1.0);
    assert_eq!(try_open(&gateway, "fake").status(), 401);
}

/// A keys file that the new configuration names is read with it and followed from then on; the old one no more.
#[test]
fn another_keys_file_is_followed() {
    let directory = Directory::new();
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    let (alice, bob, carol) = (Key::of("alice"), Key::of("bob"), Key::of("carol"));
    fs::write(&first, alice.line()).unwrap();
    fs::write(&second, bob.line()).unwrap();
    let toml = |file: &std::path::Path| {
        format!("[auth]\nmethods = [\"api_key\"]\nkeys_file = \"{}\"\n{}", file.display(), bare("fake").toml())
    };
    let gateway = Gateway::start(&toml(&first));
    let status = |key: &Key| begin("fake").header("Authorization", &key.authorization).send(gateway.address()).status();
    assert_eq!((status(&alice), status(&bob)), (200, 401));
    assert_taken(&gateway.reload(&toml(&second)));
    assert_eq!((status(&alice), status(&bob)), (401, 200));
    fs::write(&first, carol.line()).unwrap();
    fs::write(&second, format!("{}{}", bob.line(), alice.line())).unwrap();
    gateway.await_event("reload", |event| event["keys"] == 2);
    assert_eq!((status(&alice), status(&bob), status(&carol)), (200, 200, 401));
}

/// Limits, hosts, times, the log and the admin token hold for what comes from then on.
#[test]
fn settings_apply_to_what_comes() {
    let record = Record::new();
    let server = bare("fake").option("--record", record.path()).toml();
    let gateway = Gateway::start(&server);
    let host = |name: &str| begin("fake").with("Host", name).send(gateway.address()).status();
    assert_eq!(host("new.example"), 403);
    let settings = "listen.allowed_hosts = [\"new.example\"]\nlimits.body_bytes = \"1KiB\"\nsessions.max = 1\n\
        limits.connections_per_address = 3\ntelemetry.log.access = \"off\"\nstreams.sse_after = \"0s\"\n\
        sessions.evict_after = \"1h\"\n";
    assert_taken(&gateway.reload(&format!("{settings}{server}")));
    assert_eq!(host("new.example"), 200);
    assert_eq!(try_open(&gateway, "fake").status(), 503, "one session is all");
    let long = Request::post("/fake/mcp", " ".repeat(2000)).send(gateway.address());
    assert_eq!(long.status(), 413);
    let connections =
        |wanted: f64| gateway.await_metric("connections", &[("listener", "main")], |count| count == wanted);
    connections(0.0);
    let held: Vec<_> = (0..3).map(|_| Connection::open(gateway.address())).collect();
    connections(3.0);
    Connection::open(gateway.address()).await_close();
    assert_eq!(gateway.metrics().count("connections_total", &[("result", "address_limit")]), 1.0);
    drop(held);
    let lines = || gateway.events().iter().filter(|event| event["event"] == "rpc").count();
    let before = lines();
    // None of what follows is loud enough, that it was taken over included.
    fs::write(gateway.config_file(), with_listeners(&format!("telemetry.log.level = \"error\"\n{server}"))).unwrap();
    gateway.signal(Signal::HUP);
    let session = await_that("room for another session", || {
        (try_open(&gateway, "fake").status() == 200).then(|| open(&gateway, "fake"))
    });
    session.call(1, "echo", json!({}));
    gateway.await_metric("requests_total", &[("method", "tools/call")], |calls| calls == 1.0);
    assert_eq!(lines(), before);
    assert_eq!(gateway.events().iter().filter(|event| event["event"] == "session_open").count(), 1);
}

/// `streams.sse_after` of a call under way becomes no longer than the new one.
#[test]
fn a_call_under_way_waits_no_longer_than_it_is_told() {
    let gateway = Gateway::start(&format!("streams.sse_after = \"1h\"\n{}", bare("fake").toml()));
    let session = open(&gateway, "fake");
    let call = session.send_call(1, "hold", json!({ "gate": "g" }));
    session.call(2, "await_held", json!({ "gate": "g" }));
    assert_taken(&gateway.reload(&format!("streams.sse_after = \"10ms\"\n{}", bare("fake").toml())));
    let mut stream = call.stream();
    session.call(3, "release", json!({ "gate": "g" }));
    assert_eq!(stream.await_message(|message| message["id"] == 1)["id"], 1);
}

/// The files a configuration names are read again with it: an env file that changed is a server that changed.
#[test]
fn an_env_file_is_read_again() {
    let directory = Directory::new();
    let file = directory.path().join("env");
    fs::write(&file, "MARK=before\n").unwrap();
    let toml = bare("fake").key(&format!("env_file = \"{}\"", file.display())).toml();
    let gateway = Gateway::start(&toml);
    assert_eq!(gateway.reload(&toml)["changed"], Value::Null);
    fs::write(&file, "MARK=after\n").unwrap();
    assert_eq!(gateway.reload(&toml)["changed"], "fake");
    let dump = open(&gateway, "fake").call("d", "dump", json!({}));
    assert_eq!(dump["result"]["structuredContent"]["env"]["MARK"], "after");
}

/// F:F06: a hundred HUPs at once are a few reloads, and the last word counts.
#[test]
fn a_flood_of_hups_is_a_few_reloads() {
    let gateway = Gateway::start(&bare("fake").toml());
    let session = open(&gateway, "fake");
    for _ in 0..100 {
        gateway.signal(Signal::HUP);
    }
    gateway.await_event("reload", |_| true);
    fs::write(gateway.config_file(), with_listeners(&format!("{}{}", bare("fake").toml(), bare("last").toml())))
        .unwrap();
    gateway.signal(Signal::HUP);
    gateway.await_event("reload", |event| event["added"] == "last");
    assert_eq!(ping(&session), 200);
    assert_eq!(gateway.metrics().value("config_last_reload_successful", &[]), Some(1.0));
}

/// F:F06: a HUP in a drain is refused, and changes nothing about its end.
#[test]
fn a_drain_is_not_disturbed() {
    let server = bare("fake").toml();
    let mut gateway = Gateway::start(&format!("drain.prestop = \"1h\"\n{server}"));
    gateway.signal(Signal::TERM);
    gateway.await_event("drain_start", |_| true);
    let told = gateway.reload(&format!("{server}{}", bare("other").toml()));
    assert_eq!((&told["event"], told["error"].as_str()), (&json!("reload_failed"), Some("the gateway is draining")));
    assert_eq!(try_open(&gateway, "other").status(), 404);
    let asked = Instant::now();
    gateway.signal(Signal::TERM);
    gateway.await_exit();
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
}

/// F:F05: a drain ends the sessions and children of the tables before, too.
#[test]
fn a_drain_ends_what_is_left_of_former_tables() {
    let toml = |mark: &str| {
        format!("drain.prestop = \"0s\"\n{}", bare("fake").arg("--ignore-eof").arg("--mark").arg(mark).toml())
    };
    let mut gateway = Gateway::start(&toml("a"));
    let sessions = ["b", "c"].map(|mark| {
        let session = open(&gateway, "fake");
        assert_taken(&gateway.reload(&toml(mark)));
        session
    });
    let children = sessions.each_ref().map(pid);
    assert_eq!(gateway.stop(), 0);
    assert!(!children.iter().any(|child| is_alive(*child)));
    gateway.await_event("drain_done", |_| true);
    assert_eq!(gateway.events().iter().filter(|event| event["event"] == "child_exit").count(), 2);
}
