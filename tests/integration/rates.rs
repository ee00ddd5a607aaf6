//! How much may come in a time, of an address and of a caller, and what whoever wants more is told.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::caller_key::Key;
use crate::child::{Record, Server};
use crate::client::{Request, Response};
use crate::gateway::Gateway;
use crate::session::{Answer, Session, call, initialize};

fn server(record: &Record) -> String {
    let server = Server::fake("fake").option("--record", record.path());
    server.key("check_on_start = false").key("pool.min_idle = 0").toml()
}

/// A request that is answered 400 where it is let in: its session is missing.
fn ask() -> Request {
    Request::post("/fake/mcp", r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)
}

/// How many of these are let in.
fn let_in(gateway: &Gateway, requests: impl Iterator<Item = Request>) -> usize {
    let responses: Vec<Response> = requests.map(|request| request.send(gateway.address())).collect();
    for refused in responses.iter().filter(|response| response.status() != 400) {
        assert_too_fast(refused);
    }
    responses.iter().filter(|response| response.status() == 400).count()
}

/// C:B113: 429, when to come back, and an error in JSON.
#[track_caller]
fn assert_too_fast(response: &Response) {
    assert_eq!(response.status(), 429, "{response:?}");
    let seconds: u64 = response.header("retry-after").expect("it is told when").parse().unwrap();
    assert!((1..=3600).contains(&seconds), "{response:?}");
    let error = &response.json()["error"];
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(429), &json!("rate")), "{response:?}");
    assert!(error["data"]["retry_after_ms"].as_u64().unwrap() > 0, "{response:?}");
}

/// C:B119: the same within a session, under the call's id.
#[track_caller]
fn assert_too_fast_in_band(answer: &Answer, id: impl Into<Value>) {
    assert_eq!(answer.head.status, 200, "{answer:?}");
    let (message, id) = (answer.message(), id.into());
    let data = &message["error"]["data"];
    assert_eq!((&message["id"], &message["error"]["code"], &data["reason"]), (&id, &json!(429), &json!("rate")));
    assert_eq!(data["executed"], "no", "{message}");
    assert!(data["retry_after_ms"].as_u64().unwrap() > 0, "{message}");
}

/// C:B113, F:D15: an address cannot be made up by a header; a proxy's clients are told apart by the last hop that is
/// not ours, the proxy itself is not counted, and a network of one holder counts as one.
#[test]
fn an_address_is_counted_and_cannot_be_made_up() {
    let record = Record::new();
    let rate = "limits.rate_per_address = \"20/h\"";
    let open = Gateway::start(&format!("{rate}\n{}", server(&record)));
    let rotating = (0..50).map(|n| ask().header("X-Forwarded-For", &format!("192.0.2.{n}")));
    assert_eq!(let_in(&open, rotating), 20);
    open.await_metric("refusals_total", &[("reason", "rate")], |count| count == 30.0);
    let lines = open.events().into_iter().filter(|event| event["reason"] == "rate").collect::<Vec<_>>();
    assert_eq!(lines.len(), 1, "a flood is one line in a while: {lines:?}");
    assert_eq!(lines[0]["key"], "limits.rate_per_address");

    let behind = Gateway::start(&format!("{rate}\n[listen]\ntrusted_proxies = [\"127.0.0.1\"]\n{}", server(&record)));
    let of = |client: &str| ask().header("X-Forwarded-For", client);
    let spoofed = (0..50).map(|n| of(&format!("198.51.100.{n}, 192.0.2.1")));
    assert_eq!(let_in(&behind, spoofed), 20);
    assert_eq!(let_in(&behind, (0..25).map(|_| of("192.0.2.2"))), 20, "another client of the same proxy");
    assert_eq!(let_in(&behind, (0..25).map(|n| of(&format!("2001:db8::{n:x}")))), 20, "one /64");
    assert_eq!(let_in(&behind, (0..5).map(|n| of(&format!("2001:db8:0:1::{n:x}")))), 5, "another /64");
    assert_eq!(let_in(&behind, (0..50).map(|_| ask())), 50, "the proxy for itself");
    assert!(record.all().is_empty());
}

/// C:B113: the slowest rate lets a client open a session; beyond it the session lives, and its calls are refused
/// within it, where a 429 would end some clients' connection. Without a session, or with one made up, it is a 429.
#[test]
fn a_session_outlives_the_rate_of_its_address() {
    let record = Record::new();
    let gateway = Gateway::start(&format!("limits.rate_per_address = \"1/h\"\n{}", server(&record)));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    for id in 0..6 {
        assert_eq!(session.call(id, "echo", json!({ "a": id }))["result"]["structuredContent"]["a"], id);
    }
    assert!(let_in(&gateway, (0..20).map(|_| ask())) < 16, "it is used up");
    let before = record.lines().len();
    assert_too_fast_in_band(&session.post(call("late", "echo", json!({}), None).to_string()), "late");
    let strange = session.notify("notifications/vendor", json!({}));
    assert_eq!(strange.status(), 202, "{strange:?}");
    let made_up = Session { id: format!("{}0", session.id), ..session.clone() };
    for request in [made_up.post_request("{"), made_up.get_request(), made_up.delete_request(), session.get_request()] {
        assert_too_fast(&request.send(gateway.address()));
    }
    let begin = initialize("2025-11-25", json!({})).to_string();
    for request in [Request::post("/fake/mcp", begin), Request::get("/nothing"), Request::new("OPTIONS", "/fake/mcp")] {
        assert_too_fast(&request.send(gateway.address()));
    }
    session.notify("notifications/cancelled", json!({ "requestId": "none" }));
    assert_eq!(record.lines().len(), before, "nothing of it reached the child: {:?}", record.lines());
    assert_eq!(session.delete().status(), 204, "to end a session is always welcome");
}

/// C:B113: whoever asks on and on beyond the rate of an address waits for its own answers, on one connection or on many,
/// and by any way that costs the gateway something.
#[test]
fn a_flood_is_held_up_by_its_answers() {
    const ANSWERS: u32 = 20;
    let record = Record::new();
    let gateway = Gateway::start(&format!("limits.rate_per_address = \"1/h\"\n{}", server(&record)));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    assert!(let_in(&gateway, (0..20).map(|_| ask())) < 16, "it is used up");
    let time_of = |what: &str, once: &dyn Fn()| {
        let began = Instant::now();
        (0..ANSWERS).for_each(|_| once());
        assert!(began.elapsed() >= ANSWERS * Duration::from_millis(15), "{what}: {:?}", began.elapsed());
    };
    time_of("a request without a session", &|| assert_too_fast(&ask().send(gateway.address())));
    time_of("a call", &|| {
        assert_too_fast_in_band(&session.post(call(1, "echo", json!({}), None).to_string()), 1);
    });
}

/// C:B113: two callers at one address have a rate each; a body of one may be large, and then the next must wait.
#[test]
fn a_caller_is_counted_wherever_it_comes_from() {
    let record = Record::new();
    let (one, two) = (Key::of("one"), Key::of("two"));
    let limits =
        "[limits]\nrate_per_principal = \"20/h\"\nrate_bytes_per_principal = \"64KiB/h\"\nbody_bytes = \"64KiB\"";
    let keys = format!("[auth]\nmethods = [\"api_key\"]\n{}{}", one.toml(""), two.toml(""));
    let gateway = Gateway::start(&format!("{limits}\n{keys}{}", server(&record)));
    let open = |key: &Key| {
        let shown = [("Authorization", key.authorization.as_str())];
        Session::open_with(&gateway, "/fake/mcp", "2025-11-25", json!({}), &shown)
    };
    let (first, second) = (open(&one), open(&two));
    let echo = |session: &Session, id: u32| session.post(call(id, "echo", json!({}), None).to_string());
    let served = (0..25).filter(|id| echo(&first, *id).message()["result"].is_object()).count();
    assert_eq!(served, 18, "twenty with the two that opened it");
    assert_too_fast_in_band(&echo(&first, 77), 77);
    assert_eq!(echo(&second, 1).message()["id"], 1);
    assert!(echo(&second, 2).message()["result"].is_object(), "nobody pays for another");
    let begin = Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string());
    assert_too_fast(&begin.header("Authorization", &one.authorization).send(gateway.address()));

    let large = |id: &str| call(id, "echo", json!({ "x": "x".repeat(30 << 10) }), None).to_string();
    assert!(second.post(large("large")).message()["result"].is_object());
    assert_too_fast_in_band(&second.post(large("larger")), "larger");
    let error = gateway.await_event("rpc", |event| event["rpc_id"] == "larger");
    assert_eq!(error["outcome"], "refused", "{error}");
    gateway.await_metric("refusals_total", &[("server", "fake"), ("reason", "rate")], |count| count >= 3.0);
}

/// F:D15: what is for everybody counts for the address too, and is answered as late beyond its rate.
#[test]
fn metadata_is_counted_with_the_rest() {
    let issuer = "[auth]\nmethods = [\"oauth\"]\n[auth.issuers.a]\nissuer = \"http://127.0.0.1:1\"\n";
    let listen = "listen.public_url = \"http://127.0.0.1:8080\"\nlimits.rate_per_address = \"20/h\"";
    let gateway = Gateway::start(&format!("{listen}\n{issuer}{}", server(&Record::new())));
    let ask = || Request::get("/.well-known/oauth-protected-resource/fake/mcp").send(gateway.address());
    assert_eq!((0..20).filter(|_| ask().status() == 200).count(), 20);
    let began = Instant::now();
    (0..5).for_each(|_| assert_too_fast(&ask()));
    assert!(began.elapsed() >= 5 * Duration::from_millis(15), "answered at once: {:?}", began.elapsed());
}

/// F:E11: a key that is none counts for ten, so that guessing is slow; nobody at another address pays for it.
#[test]
fn guessing_keys_is_slow() {
    let record = Record::new();
    let key = Key::of("good");
    let keys = format!("[auth]\nmethods = [\"api_key\"]\n{}", key.toml(""));
    let listen = "[listen]\ntrusted_proxies = [\"127.0.0.1\"]";
    let gateway = Gateway::start(&format!("limits.rate_per_address = \"50/h\"\n{listen}\n{keys}{}", server(&record)));
    let ask = |client: &str, shown: &str| {
        let request = ask().header("Authorization", shown).header("X-Forwarded-For", client);
        request.send(gateway.address()).status()
    };
    let guesses = |client: &str, count: usize| -> Vec<u16> {
        (0..count).map(|n| ask(client, &format!("Bearer gangway_{n:043}"))).collect()
    };
    assert_eq!(guesses("192.0.2.1", 7), [401, 401, 401, 401, 401, 429, 429]);
    assert_eq!(ask("192.0.2.1", &key.authorization), 429, "the address has to wait");
    assert_eq!(ask("192.0.2.2", &key.authorization), 400);
    assert!(record.all().is_empty());
}

/// A rate changes with the configuration, at once; one that stays goes on counting.
#[test]
fn rates_are_read_again() {
    let record = Record::new();
    let toml = |rate: &str, more: &str| format!("limits.rate_per_address = \"{rate}\"\n{more}\n{}", server(&record));
    let gateway = Gateway::start(&toml("20/h", ""));
    assert_eq!(let_in(&gateway, (0..25).map(|_| ask())), 20);
    assert_eq!(gateway.reload(&toml("20/h", "streams.retry = \"2s\""))["event"], "reload");
    assert_eq!(let_in(&gateway, (0..5).map(|_| ask())), 0);
    assert_eq!(gateway.reload(&toml("30/h", ""))["event"], "reload");
    assert_eq!(let_in(&gateway, (0..35).map(|_| ask())), 30);
    assert_eq!(gateway.reload(&toml("off", ""))["event"], "reload");
    assert_eq!(let_in(&gateway, (0..50).map(|_| ask())), 50);
    let failed = gateway.reload(&toml("20 per hour", ""));
    assert_eq!(failed["event"], "reload_failed");
    assert!(failed["error"].as_str().unwrap().contains("`limits.rate_per_address` is not a rate"), "{failed}");
}
