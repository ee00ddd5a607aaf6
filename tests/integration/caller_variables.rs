//! `env_from`: what a caller brings reaches its own child and nobody else's, whole or not at all.

use std::fs;

use serde_json::{Value, json};

use crate::caller_key::{Key, only};
use crate::child::{Process, Record, Server};
use crate::client::{Request, Response};
use crate::gateway::{Gateway, await_that};
use crate::session::{Session, initialize};

const TABLE: &str = "env_from.headers = { X-GitHub-Token = \"GITHUB_TOKEN\", X-Region = \"REGION\" }";

fn server() -> Server {
    Server::fake("fake").key(TABLE)
}

#[track_caller]
fn open(gateway: &Gateway, headers: &[(&str, &str)]) -> Session {
    Session::open_with(gateway, "/fake/mcp", "2025-11-25", json!({}), headers)
}

/// The variables of a session's child, and its process id.
#[track_caller]
fn seen(session: &Session) -> (Value, u64) {
    let seen = session.call("dump", "dump", json!({}))["result"]["structuredContent"].clone();
    (seen["env"].clone(), seen["pid"].as_u64().unwrap())
}

/// `initialize` with these fields, some of which may come twice.
#[track_caller]
fn try_open(gateway: &Gateway, headers: &[(&str, &str)]) -> Response {
    let mut request = Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    request.send(gateway.address())
}

/// F:E12: listed headers become variables of the session's own child, in any case of their names; what is not listed
/// does not, and what later requests carry changes nothing.
#[test]
fn a_caller_brings_variables_for_its_own_child() {
    let gateway = Gateway::start(&server().toml());
    let alice = open(&gateway, &[("x-github-token", "ghp-of-alice"), ("X-Other", "no"), ("LD_PRELOAD", "/evil.so")]);
    let bob = open(&gateway, &[("X-GITHUB-TOKEN", "ghp of bob, with spaces"), ("X-Region", "")]);
    let (of_alice, first) = seen(&alice);
    assert_eq!(of_alice["GITHUB_TOKEN"], "ghp-of-alice");
    assert!(of_alice["REGION"].is_null() && of_alice["LD_PRELOAD"].is_null(), "{of_alice}");
    let (of_bob, second) = seen(&bob);
    assert_eq!((&of_bob["GITHUB_TOKEN"], &of_bob["REGION"]), (&json!("ghp of bob, with spaces"), &json!("")));
    assert_ne!(first, second);
    assert!(!of_bob.to_string().contains("ghp-of-alice") && !of_alice.to_string().contains("of bob"));
    let mut later = alice.clone();
    later.headers = vec![("X-GitHub-Token".to_owned(), "another".to_owned())];
    assert_eq!(seen(&later), (of_alice, first), "fixed when the session was opened");
    let (plain, _) = seen(&open(&gateway, &[]));
    assert!(plain["GITHUB_TOKEN"].is_null(), "no header, no variable: {plain}");
}

/// F:E12: injection attempts. Each gets its 400 and starts nothing.
#[test]
fn what_is_no_plain_value_is_refused_whole() {
    let gateway = Gateway::start(&server().key("check_on_start = false").toml());
    let long = "v".repeat(4097);
    for fields in [
        &[("X-GitHub-Token", "one"), ("x-github-token", "two")][..],
        &[("X-GitHub-Token", "same"), ("X-GitHub-Token", "same")],
        &[("X-GitHub-Token", "tab\tLD_PRELOAD=/x")],
        &[("X-GitHub-Token", "next\u{85}line")],
        &[("X-GitHub-Token", &long)],
        &[("X-Region", "eu"), ("X-GitHub-Token", &long)],
        &[("Authorization", "Bearer of-another-kind"), ("X-GitHub-Token", "of-another-kind")],
    ] {
        let refused = try_open(&gateway, fields);
        assert_eq!(refused.status(), 400, "{fields:?}: {refused:?}");
        assert_eq!(refused.json()["error"]["data"]["reason"], "headers");
        assert!(refused.header("mcp-session-id").is_none());
        assert!(!refused.text().contains("vvvv") && !refused.text().contains("another-kind"));
    }
    // HTTP itself has no place for these (RFC 9110 section 5.5).
    for value in ["a\0b", "a\rb", "a\nLD_PRELOAD: /x\n b"] {
        assert_eq!(try_open(&gateway, &[("X-GitHub-Token", value)]).status(), 400, "{value:?}");
    }
    assert_eq!(gateway.metrics().count("child_starts_total", &[]), 0.0);
    assert!(gateway.descendants().is_empty());
    // No shell reads it, and it is no argument: such a value is one like any other.
    let longest = "v".repeat(4096);
    for value in ["-c", "--eval=1", "$(touch /tmp/x); `x` ${HOME}", "LD_PRELOAD=/evil.so", "../../x", longest.as_str()]
    {
        let session =
            open(&gateway, &[("X-GitHub-Token", value), ("Proxy", "http://evil"), ("X-Env", "LD_PRELOAD=/x")]);
        let (environment, _) = seen(&session);
        assert_eq!(environment["GITHUB_TOKEN"], value);
        for name in ["LD_PRELOAD", "HTTP_PROXY", "PROXY", "X_ENV", "HTTP_X_ENV"] {
            assert!(environment[name].is_null(), "{name}: {environment}");
        }
        assert_eq!(session.delete_request().send(session.address).status(), 204);
    }
}

/// A server whose children are given values keeps no spare, and gives no child to a second caller.
#[test]
fn such_a_server_has_no_spares() {
    let gateway = Gateway::start(&server().key("pool.min_idle = 3").toml());
    gateway.await_event("server_ready", |_| true);
    gateway.await_descendants(0);
    let (alice, bob) = (open(&gateway, &[("X-Region", "a")]), open(&gateway, &[("X-Region", "a")]));
    assert_ne!(seen(&alice).1, seen(&bob).1, "one each, even with the same value");
    gateway.await_descendants(2);
    assert_eq!(gateway.metrics().count("children", &[("state", "idle")]), 0.0);
    assert_eq!(alice.delete_request().send(alice.address).status(), 204);
    gateway.await_descendants(1);
    assert_eq!(open(&gateway, &[]).call("e", "echo", json!({}))["id"], "e");
}

/// In `principal` mode the same caller with another value has another child; another caller with the
/// same value too. One child is enough for each, however many spares another server would keep. What replaces a child that died has the same values.
#[test]
fn a_shared_child_is_of_one_caller_and_one_set_of_values() {
    let (alice, bob) = (Key::of("alice"), Key::of("bob"));
    let toml =
        format!("{}{}", only(&[&alice, &bob]), server().key("mode = \"principal\"").key("pool.min_idle = 3").toml());
    let gateway = Gateway::start(&toml);
    let open = |key: &Key, token: Option<&str>| {
        let bearer = key.authorization.clone();
        let headers = [Some(("Authorization", bearer.as_str())), token.map(|token| ("X-GitHub-Token", token))];
        open(&gateway, &headers.into_iter().flatten().collect::<Vec<_>>())
    };
    let sessions = [
        open(&alice, Some("one")),
        open(&alice, Some("one")),
        open(&alice, Some("two")),
        open(&alice, None),
        open(&bob, Some("one")),
    ];
    let children: Vec<(Value, u64)> = sessions.iter().map(seen).collect();
    let pids: Vec<u64> = children.iter().map(|(_, pid)| *pid).collect();
    assert_eq!(pids[0], pids[1]);
    let distinct: std::collections::BTreeSet<_> = pids.iter().collect();
    assert_eq!(distinct.len(), 4, "{pids:?}");
    for ((environment, _), token) in
        children.iter().zip([json!("one"), json!("one"), json!("two"), Value::Null, json!("one")])
    {
        assert_eq!(environment["GITHUB_TOKEN"], token);
    }
    Process::of(pids[2].try_into().unwrap()).unwrap().kill();
    let (environment, pid) = await_that("the next process", || {
        let answer = sessions[2].call("dump", "dump", json!({}));
        let seen = &answer["result"]["structuredContent"];
        seen["pid"].as_u64().filter(|pid| *pid != pids[2]).map(|pid| (seen["env"].clone(), pid))
    });
    assert_eq!(environment["GITHUB_TOKEN"], "two");
    assert!(!pids.contains(&pid));
}

/// HTTP+SSE of 2024-11-05: the values are those of the POST that initializes.
#[test]
fn an_old_client_brings_them_too() {
    let gateway = Gateway::start(&server().key("legacy_sse = true").toml());
    let get = Request::get("/fake/sse").header("Accept", "text/event-stream");
    let mut stream = crate::session::Exchange::send(gateway.address(), &get).stream();
    let endpoint = stream.next_event().data;
    let post = |body: Value, token: &str| {
        let request = Request::post(&endpoint, body.to_string()).header("X-GitHub-Token", token);
        request.send(gateway.address()).status()
    };
    assert_eq!(post(initialize("2024-11-05", json!({})), "tab\there"), 400);
    assert_eq!(post(initialize("2024-11-05", json!({})), "of-old"), 202);
    stream.next_message();
    assert_eq!(post(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }), "x"), 202);
    assert_eq!(post(crate::session::call(2, "dump", json!({}), None), "x"), 202);
    let seen = stream.next_message()["result"]["structuredContent"]["env"].clone();
    assert_eq!(seen["GITHUB_TOKEN"], "of-old");
}

/// F:E06, R:A13: a child sees no token, API key or session id of its caller, wherever it looks; what it is given stands
/// in its environment and nowhere else.
#[test]
fn a_child_sees_nothing_of_what_its_caller_proves_itself_with() {
    let key = Key::of("me");
    let record = Record::new();
    let toml = format!("{}{}", only(&[&key]), server().option("--record", record.path()).toml());
    let gateway = Gateway::start(&toml);
    let bearer = key.authorization.clone();
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Cookie", "sid=canary-cookie"),
        ("Proxy-Authorization", "Basic canary-proxy"),
        ("X-GitHub-Token", "canary-brought"),
    ];
    let session = open(&gateway, &headers);
    session.call(1, "echo", json!({ "a": 1 }));
    let seen = session.call("dump", "dump", json!({}))["result"]["structuredContent"].clone();
    let read: Vec<u8> = record.all().into_values().flatten().collect();
    let read = String::from_utf8_lossy(&read);
    let pid = seen["pid"].as_u64().unwrap();
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let secret = bearer.strip_prefix("Bearer ").unwrap();
    for canary in [secret, session.id.as_str(), "canary-cookie", "canary-proxy"] {
        assert!(!seen.to_string().contains(canary), "{canary}: {seen}");
        assert!(!read.contains(canary), "{canary} in the child's input");
    }
    assert_eq!(seen["env"]["GITHUB_TOKEN"], "canary-brought");
    assert!(!read.contains("canary-brought") && !String::from_utf8_lossy(&command_line).contains("canary"));
    assert!(!seen["argv"].to_string().contains("canary") && !seen["proc"]["fd"].to_string().contains("canary"));
}
