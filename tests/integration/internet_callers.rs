//! The shipped example for the public internet: what callers show, and what must not come of it.

use std::fs;

use serde_json::{Value, json};

use crate::challenge::challenge;
use crate::client::{Connection, Request, Response};
use crate::internet::{METADATA, PATH, PUBLIC, RESOURCE, Scene, begin, every_kind};
use crate::issuer::{Mood, SigningKey, base64url, now};
use crate::session::{Session, call};

/// An answer without the id of its request.
fn nameless(response: &Response) -> Value {
    let mut answer = response.json();
    answer.as_object_mut().unwrap().remove("id");
    answer
}

/// F:E01, F:E02, F:E05: tokens that must not pass; each is told so, and none reaches a child.
#[test]
fn bad_tokens_let_nobody_in() {
    let scene = Scene::start();
    let (key, claims) = (&scene.key, scene.claims("alice", json!({})));
    let header = |changes: Value| {
        let mut header = key.header();
        changes.as_object().unwrap().iter().for_each(|(name, value)| header[name] = value.clone());
        key.token(&header, &claims)
    };
    let good = header(json!({}));
    let parts: Vec<&str> = good.split('.').collect();
    let stray = SigningKey::es256("a");
    let claimed = |changes: Value| scene.token("alice", changes);
    let bad = [
        ("no signature wanted", format!("{}.{}.", base64url(r#"{"alg":"none"}"#), parts[1])),
        ("a shared secret", header(json!({ "alg": "HS256" }))),
        ("an algorithm of another key", header(json!({ "alg": "RS256" }))),
        ("crit", header(json!({ "crit": ["exp"] }))),
        ("its own key", stray.token(&json!({ "alg": "ES256", "kid": "a", "jwk": stray.jwk() }), &claims)),
        ("encrypted", format!("{good}.{}.{}", parts[1], parts[2])),
        ("kid a path", header(json!({ "kid": "../../etc/passwd" }))),
        ("kid a query", header(json!({ "kid": "' OR '1'='1" }))),
        ("no kid, of two keys", key.token(&json!({ "alg": "ES256" }), &claims)),
        ("aud missing", claimed(json!({ "aud": null }))),
        ("aud another server", claimed(json!({ "aud": "https://mcp.example.com/other/mcp" }))),
        ("aud with a slash", claimed(json!({ "aud": format!("{RESOURCE}/") }))),
        ("iss missing", claimed(json!({ "iss": null }))),
        ("iss another", claimed(json!({ "iss": "https://evil.test" }))),
        ("exp missing", claimed(json!({ "exp": null }))),
        ("exp a text", claimed(json!({ "exp": "4102444800" }))),
        ("exp a minute ago", claimed(json!({ "exp": now() - 61 }))),
        ("nbf to come", claimed(json!({ "nbf": now() + 120 }))),
        ("sub missing", claimed(json!({ "sub": null }))),
        ("an ID token", header(json!({ "typ": "id_token" }))),
    ];
    let before = scene.record.lines().len();
    for (place, (what, token)) in bad.iter().enumerate() {
        // Each from a client of its own: a bad token counts as ten requests of its address.
        let response = scene.send(&begin(token, &format!("203.0.113.{place}")));
        assert_eq!(response.status(), 401, "{what}: {response:?}");
        assert_eq!(challenge(&response)["error"], "invalid_token", "{what}");
    }
    let mut connection = Connection::open(scene.gateway.address());
    let _cut_short = connection.try_send(begin(&"e".repeat(1 << 20), "203.0.113.99").bytes(scene.gateway.address()));
    let answer = String::from_utf8_lossy(&connection.read_to_close()).into_owned();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(scene.gateway.metrics().count("sessions_opened_total", &[]), 0.0);
    assert_eq!(scene.record.lines().len(), before, "no child was told anything");
    assert_eq!(scene.send(&begin(&good, "203.0.113.100")).status(), 200);
}

/// F:E04: without the issuer's keys nothing is accepted, nothing is asked of where it is redirected to, and nothing falls
/// over; they are had as soon as it answers.
#[test]
fn an_issuer_that_cannot_be_asked_lets_nobody_in() {
    let away = vec![("Location", "http://169.254.169.254/latest/meta-data/".to_owned())];
    for mood in [Mood::Down, Mood::Status(302, away), Mood::Huge(2 << 20), Mood::Says(b"<html>".to_vec())] {
        let scene = Scene::starting(mood.clone());
        scene.gateway.await_event("issuer_keys_failed", |event| event["issuer"] == "company");
        let token = scene.token("alice", json!({}));
        let response = scene.send(&begin(&token, "203.0.113.7"));
        assert_eq!(response.status(), 503, "{mood:?}: {response:?}");
        assert!(response.header("retry-after").is_some(), "{response:?}");
        let ready = Request::get("/readyz").send(scene.gateway.admin());
        assert_eq!((ready.status(), ready.text().trim()), (503, "issuers"), "{mood:?}");
        scene.issuer.mood("*", Mood::Well);
        scene.gateway.await_event("issuers_ready", |_| true);
        assert_eq!(scene.send(&begin(&token, "203.0.113.7")).status(), 200, "{mood:?}");
    }
}

/// F:E06, F:E12, F:E13: nothing of what a caller shows, and no header it makes up, is in its child's environment,
/// arguments, descriptors or input; and no secret is in the log, the numbers, an answer or a command line.
#[test]
fn what_a_caller_shows_stays_at_the_door() {
    let scene = Scene::start();
    let made_up = [
        ("Proxy", "http://evil-canary.test"),
        ("X-Env", "LD_PRELOAD=/tmp/evil-canary.so"),
        ("X-Ld-Preload", "/tmp/evil-canary.so"),
        ("X-Github-Token", "evil-canary"),
    ];
    let session = scene.open_with("alice", &made_up);
    let token = session.headers[0].1.strip_prefix("Bearer ").unwrap().to_owned();
    let argument = "canary-of-an-argument";
    session.call(1, "echo", json!({ "secret": argument }));
    let dump = session.call(2, "dump", json!({})).to_string();
    let stray = Request::get(&format!("{PATH}?access_token={token}")).send(session.address);
    let broken = scene.send(&begin(&format!("{token}x"), "203.0.113.8"));
    assert_eq!((stray.status(), broken.status()), (401, 401));
    let command_lines: String = std::iter::once(scene.gateway.pid())
        .chain(scene.gateway.descendants().iter().map(|process| process.id))
        .map(|pid| String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned())
        .collect();
    assert_eq!(session.delete().status(), 204);
    scene.gateway.await_event("session_close", |_| true);
    let log = scene.gateway.stderr();
    let (input, numbers) = (scene.record.lines().concat(), scene.gateway.metrics().to_string());
    let answers = format!("{stray:?}{}{broken:?}{}", stray.text(), broken.text());
    assert!(
        dump.contains("PATH") && input.contains(argument) && log.contains("\"echo\""),
        "there is something to look at"
    );
    let everywhere = [("the child", &dump), ("its input", &input), ("the log", &log), ("the numbers", &numbers)];
    for (place, text) in everywhere.into_iter().chain([("an answer", &answers), ("a command line", &command_lines)]) {
        for secret in [&token, token.split('.').next_back().unwrap(), &session.id, "evil-canary"] {
            assert!(!text.contains(secret), "{secret} is in {place}: {text}");
        }
    }
    assert!(!log.contains(argument) && !numbers.contains(argument));
    for injected in ["X-Env: a\nLD_PRELOAD: b", "X-Env: a\rb", "X-Env: a\0b"] {
        let mut connection = Connection::open(session.address);
        let head = String::from_utf8(begin(&token, "203.0.113.9").bytes(session.address)).unwrap();
        connection.send(head.replacen("\r\n\r\n", &format!("\r\n{injected}\r\n\r\n"), 1));
        assert_eq!(connection.response().status(), 400, "{injected:?}");
    }
}

/// F:E07, C:B94: what a client is told about where to log in comes from the file, whatever the request says.
#[test]
fn a_challenge_cannot_be_made_up() {
    let scene = Scene::start();
    let lies = [
        ("X-Forwarded-Host", "a\", error=\"x"),
        ("X-Forwarded-Host", "evil.test"),
        ("X-Forwarded-Proto", "http"),
        ("Forwarded", "host=evil.test;proto=http"),
        ("X-Original-Url", "/evil"),
        ("Host", "10.0.0.1"),
    ];
    for (name, value) in lies {
        let response = scene
            .send(&Request::post(&format!("{PATH}/"), "{}").header("X-Forwarded-For", "203.0.113.7").with(name, value));
        assert_eq!(response.status(), 401, "{name}: {response:?}");
        let challenge = challenge(&response);
        assert_eq!(challenge["resource_metadata"], format!("{PUBLIC}{METADATA}"), "{name}");
        assert_eq!((challenge["scope"].as_str(), challenge.len()), ("mcp:use", 2), "{challenge:?}");
        let document = scene.send(&Request::get(METADATA).with(name, value)).json();
        assert_eq!(document["resource"], RESOURCE, "{name}");
        assert_eq!(document["authorization_servers"], json!([scene.issuer.url()]), "{name}");
        assert!(!document.to_string().contains("evil"), "{document}");
    }
}

/// F:E08, F:E09: a session is its caller's: another user finds nothing, in the words of an id that never was; an id cannot
/// be brought along, nor used without a token.
#[test]
fn a_session_is_its_callers() {
    let scene = Scene::start();
    let alice = scene.open("alice");
    let mut stream = alice.get();
    let bob = Session { id: alice.id.clone(), ..scene.open("bob") };
    let unknown =
        Session { id: format!("{}-{}", alice.id.split('-').next().unwrap(), "0".repeat(32)), ..alice.clone() };
    for (theirs, never) in every_kind(&bob).iter().zip(every_kind(&unknown)) {
        let (theirs, never) = (scene.send(theirs), scene.send(&never));
        assert_eq!((theirs.status(), never.status()), (404, 404), "{theirs:?}");
        assert_eq!(nameless(&theirs), nameless(&never));
    }
    scene.gateway.await_event("session_principal_mismatch", |_| true);
    let fixed = begin(&scene.token("bob", json!({})), "203.0.113.7").header("Mcp-Session-Id", "chosen-by-bob");
    let fixed = scene.send(&fixed);
    assert!(fixed.status() >= 400 && fixed.header("mcp-session-id").is_none(), "{fixed:?}");
    for request in every_kind(&alice) {
        let dropped = scene.send(&request.without("Authorization"));
        assert_eq!(dropped.status(), 401, "{dropped:?}");
        assert!(!challenge(&dropped).contains_key("error"));
    }
    let change = call(1, "notify", json!({ "method": "notifications/tools/list_changed" }), None).to_string();
    let response = alice.post_request(change).with("Accept", "application/json").send(alice.address);
    assert_eq!(response.status(), 200, "{response:?}");
    stream.await_message(|message| message["method"] == "notifications/tools/list_changed");
}
