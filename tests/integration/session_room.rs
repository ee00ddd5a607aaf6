//! Room for sessions: what is refused when there is none, who goes first to make some, and who never does.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::caller_key::{Key, only};
use crate::child::{Gate, Server};
use crate::client::{Connection, Request, Response};
use crate::gateway::{Gateway, await_that};
use crate::session::{Exchange, Session, initialize};

const REVISION: &str = "2025-11-25";

fn bare(server: Server) -> Server {
    server.key("check_on_start = false").key("pool.min_idle = 0")
}

/// A gateway with these lines under `[sessions]`.
fn start(sessions: &str) -> Gateway {
    Gateway::start(&format!("[sessions]\n{sessions}\n{}", bare(Server::fake("fake")).toml()))
}

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", REVISION, json!({}))
}

fn try_open(gateway: &Gateway, headers: &[(&str, &str)]) -> Response {
    let request = Request::post("/fake/mcp", initialize(REVISION, json!({})).to_string());
    headers.iter().fold(request, |request, (name, value)| request.header(name, value)).send(gateway.address())
}

fn is_found(session: &Session) -> bool {
    let ping = json!({ "jsonrpc": "2.0", "id": "look", "method": "ping" }).to_string();
    let response = session.post_request(ping).send(session.address);
    assert!(matches!(response.status(), 200 | 404), "{response:?}");
    response.status() == 200
}

fn await_close(gateway: &Gateway, reason: &str, count: f64) {
    gateway.await_metric("sessions_closed_total", &[("reason", reason)], |closed| closed == count);
}

/// F:C09, R:S18: a handshake that is not followed up goes soon; one message that shows a living client, be it a
/// ping, ends that limit.
#[test]
fn a_handshake_must_be_followed_up() {
    let gateway = start("uninitialized = \"1s\"");
    let abandoned = Session::initialize(&gateway, "/fake/mcp", REVISION, json!({}), &[]);
    let pinging = Session::initialize(&gateway, "/fake/mcp", REVISION, json!({}), &[]);
    assert!(is_found(&pinging));
    let calling = Session::initialize(&gateway, "/fake/mcp", REVISION, json!({}), &[]);
    calling.request(1, "tools/list", json!({}));
    await_close(&gateway, "uninitialized", 1.0);
    assert!(!is_found(&abandoned));
    let confirmed = open(&gateway);
    let later = Instant::now() + Duration::from_millis(1500);
    await_that("twice the limit", || (Instant::now() > later).then_some(()));
    assert!(is_found(&pinging) && is_found(&calling) && is_found(&confirmed));
    await_close(&gateway, "uninitialized", 1.0);
}

/// R:S16, C:B57, F:C09: one caller reaches its cap with 429 and the whole gateway with 503, both with a time to
/// come back; nothing is started for the refused, and a seat that is freed is free.
#[test]
fn caps_refuse_before_anything_is_started() {
    let (alice, bob, carol) = (Key::of("alice"), Key::of("bob"), Key::of("carol"));
    let toml = format!(
        "[sessions]\nmax = 4\nmax_per_principal = 2\n{}{}{}",
        only(&[&alice, &bob]),
        carol.toml("sessions = 1"),
        bare(Server::fake("fake")).toml()
    );
    let gateway = Gateway::start(&toml);
    let open = |key: &Key| Session::open_with(&gateway, "/fake/mcp", REVISION, json!({}), &[key.header()]);
    let refused = |key: &Key, status: u16| {
        let response = try_open(&gateway, &[key.header()]);
        assert_eq!(response.status(), status, "{response:?}");
        assert!(response.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
        assert_eq!(response.header("mcp-session-id"), None);
        let body = response.json();
        assert_eq!(body["id"], "initialize", "{body}");
        assert!(body["error"]["data"].to_string().matches(char::is_numeric).count() <= 5, "no counts leak: {body}");
    };
    let hers = [open(&alice), open(&alice)];
    refused(&alice, 429);
    let carols = open(&carol);
    refused(&carol, 429);
    open(&bob);
    refused(&bob, 503);
    gateway.await_descendants(4);
    assert_eq!(gateway.metrics().count("refusals_total", &[("reason", "sessions")]), 3.0);
    assert!(hers.iter().all(is_found) && is_found(&carols));
    hers[0].delete();
    open(&bob);
}

/// R:S16: callers without a key cannot be told apart, so only the total holds for them.
#[test]
fn anonymous_callers_share_only_the_total() {
    let gateway = start("max = 3\nmax_per_principal = 1");
    let sessions = [open(&gateway), open(&gateway), open(&gateway)];
    assert_eq!(try_open(&gateway, &[]).status(), 503);
    assert!(sessions.iter().all(is_found));
}

/// C:B53, F:C09: to make room the session idle longest goes, never one that is busy, has an open stream, or has
/// something to say that nobody has read.
#[test]
fn room_is_made_by_the_longest_idle() {
    let gateway = start("max = 4\nevict_after = \"0s\"");
    let (busy, listening, undelivered, idle) = (open(&gateway), open(&gateway), open(&gateway), open(&gateway));
    let held = busy.send_call(1, "hold", json!({ "gate": "g" }));
    busy.call(2, "await_held", json!({ "gate": "g" }));
    let mut stream = listening.get();
    stream.next_event();
    // Two calls in flight on their own: the notification of the second belongs to no stream.
    let parked = undelivered.send_call(1, "hold", json!({ "gate": "g" }));
    undelivered.call(2, "await_held", json!({ "gate": "g" }));
    undelivered.call(3, "notify", json!({ "method": "notifications/tools/list_changed" }));
    undelivered.call(4, "release", json!({ "gate": "g" }));
    parked.finish();

    let newcomer = open(&gateway);
    await_close(&gateway, "pressure", 1.0);
    assert!(!is_found(&idle), "the idle one went");
    assert!(is_found(&busy) && is_found(&listening) && is_found(&undelivered));
    let next = open(&gateway);
    assert!(!is_found(&newcomer), "the newcomer is the only idle one now");
    let mut get = next.get();
    get.next_event();
    assert_eq!(try_open(&gateway, &[]).status(), 503, "nobody may be ended");
    assert_eq!(undelivered.get().next_message()["method"], "notifications/tools/list_changed");
    busy.call(3, "release", json!({ "gate": "g" }));
    assert_eq!(held.finish().message()["id"], 1);
}

/// R:S16: who reaches the cap of their own loses their own session first, and nobody loses one that was just used.
#[test]
fn room_is_made_among_ones_own_first() {
    let (alice, bob) = (Key::of("alice"), Key::of("bob"));
    let start = |evict_after: &str| {
        let sessions = format!("[sessions]\nmax = 3\nmax_per_principal = 2\nevict_after = \"{evict_after}\"\n");
        Gateway::start(&format!("{sessions}{}{}", only(&[&alice, &bob]), bare(Server::fake("fake")).toml()))
    };
    let open =
        |gateway: &Gateway, key: &Key| Session::open_with(gateway, "/fake/mcp", REVISION, json!({}), &[key.header()]);
    let gateway = start("0s");
    let bobs = open(&gateway, &bob);
    let hers = [open(&gateway, &alice), open(&gateway, &alice)];
    let third = open(&gateway, &alice);
    assert!(!is_found(&hers[0]) && is_found(&hers[1]), "the older of her own");
    assert!(is_found(&third) && is_found(&bobs), "his is older, but his");
    let stranger = open(&gateway, &bob);
    assert!(!is_found(&bobs) && is_found(&stranger), "with the total reached too: his own first");

    let gateway = start("2m");
    let fresh = [open(&gateway, &alice), open(&gateway, &alice)];
    assert_eq!(try_open(&gateway, &[alice.header()]).status(), 429);
    assert!(fresh.iter().all(is_found));
}

/// F:C09, C:B57: when every child is taken, an idle session gives its own up rather than a caller being refused.
#[test]
fn a_full_pool_takes_the_child_of_an_idle_session() {
    let server = bare(Server::fake("fake")).key("pool.max_size = 2").key("pool.wait = \"20s\"");
    let toml = |evict_after: &str| format!("[sessions]\nevict_after = \"{evict_after}\"\n{}", server.toml());
    let gateway = Gateway::start(&toml("0s"));
    let (idle, busy) = (open(&gateway), open(&gateway));
    let mut stream = busy.get();
    stream.next_event();
    let began = Instant::now();
    let newcomer = open(&gateway);
    assert!(began.elapsed() < Duration::from_secs(15), "it does not wait for `pool.wait`");
    assert!(!is_found(&idle) && is_found(&busy) && is_found(&newcomer));
    await_close(&gateway, "pressure", 1.0);

    let short = server.toml().replace("\"20s\"", "\"200ms\"");
    let gateway = Gateway::start(&format!("[sessions]\nevict_after = \"2m\"\n{short}"));
    let sessions = [open(&gateway), open(&gateway)];
    let refused = try_open(&gateway, &[]);
    assert_eq!(refused.status(), 503, "{refused:?}");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(gateway.metrics().count("refusals_total", &[("reason", "pool_full")]), 1.0);
    assert!(sessions.iter().all(is_found));
}

/// F:F11: a gateway that stood still (suspended, stopped) does not end the sessions whose clients were waiting for
/// it: what they had sent is heard first.
#[test]
fn standing_still_is_not_the_clients_fault() {
    let gateway = start("idle = \"3s\"");
    let sessions: Vec<Session> = (0..4).map(|_| open(&gateway)).collect();
    gateway.signal(Signal::STOP);
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    let waiting: Vec<Exchange> = sessions.iter().map(|session| session.send(&ping)).collect();
    // This is the fault itself: the gateway stands still for longer than a session may be idle.
    thread::sleep(Duration::from_millis(4500));
    gateway.signal(Signal::CONT);
    for call in waiting {
        let answer = call.finish();
        assert_eq!(answer.head.status, 200, "{answer:?}");
    }
    await_close(&gateway, "idle", 4.0);
}

/// C:B28, C:B22: a start runs on though its client left, since it may be a download; then it goes, and so does a
/// session whose client never learned of it.
#[test]
fn a_start_runs_on_though_its_client_left() {
    let mut gate = Gate::new();
    let gateway = Gateway::start(&bare(Server::fake("fake")).option("--wait-for", gate.path()).toml());
    let mut connection = Connection::open(gateway.address());
    connection.request(&Request::post("/fake/mcp", initialize(REVISION, json!({})).to_string()));
    gateway.await_metric("children", &[("state", "leased")], |children| children == 1.0);
    connection.reset();
    gateway.await_metric("connections", &[("listener", "main")], |open| open == 0.0);
    assert!(!gateway.descendants().is_empty(), "the start runs on");
    gate.open();
    gateway.await_descendants(0);
    gateway.await_metric("sessions", &[], |sessions| sessions == 0.0);
}
