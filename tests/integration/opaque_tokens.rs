//! Opaque tokens: what they mean is asked of their issuer.

use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::caller_key::Key;
use crate::challenge::challenge;
use crate::child::{Record, Server};
use crate::client::{Request, Response};
use crate::gateway::Gateway;
use crate::issuer::{INTROSPECTOR, Issuer, Mood, OPAQUE, SigningKey, now};
use crate::session::{Exchange, Session, initialize};

const RESOURCE: &str = "https://mcp.example/one/mcp";

fn start(issuers: &str, record: &Record) -> Gateway {
    let server = Server::fake("one").option("--record", record.path()).key("check_on_start = false").toml();
    let gateway = Gateway::start(&format!(
        "listen.public_url = \"https://mcp.example\"\n[auth]\nmethods = [\"oauth\"]\n{issuers}{server}pool.min_idle = 0\n"
    ));
    gateway.await_event("issuers_ready", |_| true);
    gateway
}

fn begin(gateway: &Gateway, token: &str) -> Response {
    let body = initialize("2025-11-25", json!({})).to_string();
    let request = Request::post("/one/mcp", body).header("Authorization", &format!("Bearer {token}"));
    request.send(gateway.address())
}

fn active(change: Value) -> Value {
    let mut answer = json!({
        "active": true, "sub": "alice", "aud": RESOURCE, "client_id": "editor", "scope": "read", "exp": now() + 3600,
        "token_type": "Bearer",
    });
    for (member, value) in change.as_object().unwrap() {
        match value {
            Value::Null => drop(answer.as_object_mut().unwrap().remove(member)),
            value => answer[member] = value.clone(),
        }
    }
    answer
}

/// R:A20: `active`, `exp`, `aud`, `iss` and a subject decide; the gateway asks as its own client and sends the token in
/// the body; an answer counts for its time.
#[test]
fn what_the_issuer_says_decides() {
    let issuer = Issuer::start(&[]);
    let record = Record::new();
    let gateway = start(&issuer.toml("main", OPAQUE), &record);
    for (number, (change, refused)) in [
        (json!({ "active": false }), Some("The access token is not active")),
        (json!({ "active": null }), Some("unavailable")),
        (json!({ "exp": now() - 61 }), Some("The access token has expired")),
        (json!({ "nbf": now() + 600 }), Some("The access token is not valid yet")),
        (json!({ "aud": null }), Some("The access token was not issued for this resource")),
        (json!({ "aud": ["https://mcp.example/two/mcp"] }), Some("The access token was not issued for this resource")),
        (json!({ "iss": "https://evil.example" }), Some("The issuer of the access token is not accepted")),
        (json!({ "sub": null, "client_id": null }), Some("The access token names no subject")),
        (json!({ "sub": "" }), Some("The access token names no subject")),
        (json!({ "cnf": { "x5t#S256": "x" } }), Some("The access token is bound to another client certificate")),
        (json!({}), None),
        (json!({ "aud": [RESOURCE, "other"] }), None),
        (json!({ "iss": issuer.url() }), None),
        (json!({ "exp": null }), None),
        (json!({ "sub": null }), None),
    ]
    .into_iter()
    .enumerate()
    {
        let token = format!("opaque-{number}");
        issuer.introspects(&token, active(change.clone()));
        let response = begin(&gateway, &token);
        match refused {
            None => assert_eq!(response.status(), 200, "{change}: {response:?}"),
            Some("unavailable") => assert_eq!(response.status(), 503, "{change}: {response:?}"),
            Some(description) => {
                assert_eq!(response.status(), 401, "{change}: {response:?}");
                assert_eq!(challenge(&response)["error_description"], description, "{change}");
            }
        }
    }
    let asked = issuer.asked("/introspect");
    assert!(asked.iter().all(|asked| asked.method == "POST" && asked.authorization.as_deref() == Some(INTROSPECTOR)));
    assert!(asked.iter().all(|asked| asked.body.contains("token_type_hint=access_token")), "{asked:?}");
    let before = asked.len();
    for _ in 0..5 {
        assert_eq!(begin(&gateway, "opaque-10").status(), 200);
        assert_eq!(begin(&gateway, "opaque-0").status(), 401);
    }
    assert_eq!(issuer.asked("/introspect").len(), before, "each answer counts for its time");
    assert!(!gateway.stderr().contains("opaque-10"), "a token stands in the log");
    let ok = gateway.metrics().value("auth_checks_total", &[("method", "introspection"), ("result", "ok")]);
    assert_eq!(ok, Some(10.0));
}

/// R:A20: an issuer that does not answer is a 503, never a way in; what was known goes on to its time.
#[test]
fn an_outage_lets_nobody_in() {
    let issuer = Issuer::start(&[]);
    let record = Record::new();
    let gateway = start(&issuer.toml("main", OPAQUE), &record);
    issuer.introspects("known", active(json!({})));
    assert_eq!(begin(&gateway, "known").status(), 200);
    let started = record.all().len();
    for mood in [
        Mood::Down,
        Mood::Status(500, vec![]),
        Mood::Status(401, vec![]),
        Mood::Status(302, vec![("Location", "http://169.254.169.254/".to_owned())]),
        Mood::Huge(2 << 20),
        Mood::Says(b"<html>".to_vec()),
        Mood::Says(b"{}".to_vec()),
        Mood::Says(br#"{"active":"true"}"#.to_vec()),
        Mood::Compressed,
    ] {
        issuer.mood("/introspect", mood.clone());
        issuer.introspects("fresh", active(json!({})));
        let response = begin(&gateway, "fresh");
        assert_eq!(response.status(), 503, "{mood:?}: {response:?}");
        assert!(response.header("retry-after").is_some(), "{mood:?}: {response:?}");
        assert_eq!(begin(&gateway, "known").status(), 200, "{mood:?}");
    }
    let events = gateway.events();
    let outages: Vec<_> = events.iter().filter(|event| event["event"] == "introspection_failed").collect();
    assert_eq!(outages.len(), 1, "it is said once in a while, not for each request");
    assert!(outages[0]["error"].as_str().unwrap().contains(&format!("({}/introspect)", issuer.url())), "{outages:?}");
    issuer.mood("/introspect", Mood::Well);
    assert_eq!(begin(&gateway, "fresh").status(), 200);
    assert!(record.all().len() > started, "a child for each session");
}

/// What no issuer could have issued is not asked about, and JWTs are not introspected blindly.
#[test]
fn only_what_may_be_opaque_is_asked_about() {
    let key = SigningKey::es256("a");
    let (opaque, jwt) = (Issuer::start(&[]), Issuer::start(&[&key]));
    let record = Record::new();
    let gateway = start(&format!("{}{}", opaque.toml("opaque", OPAQUE), jwt.toml("jwt", "")), &record);
    assert_eq!(begin(&gateway, &key.token(&key.header(), &jwt.claims(RESOURCE))).status(), 200);
    let strange = key.token(&key.header(), &json!({ "iss": "https://evil.example" }));
    for (token, description) in [
        (strange.as_str(), "The issuer of the access token is not accepted"),
        ("two words", "The access token is malformed"),
        ("\"quoted\"", "The access token is malformed"),
        // One of ours, which is nobody else's business.
        (Key::of("me").authorization.strip_prefix("Bearer ").unwrap(), "The access token is malformed"),
        (&"x".repeat(4_097), "The access token is malformed"),
    ] {
        let response = begin(&gateway, token);
        assert_eq!(response.status(), 401, "{token}: {response:?}");
        assert_eq!(challenge(&response)["error_description"], description, "{token}");
    }
    assert!(opaque.asked("/introspect").is_empty());
    // An issuer of opaque tokens may give them the form of JWTs.
    let own = key.token(&key.header(), &opaque.claims(RESOURCE));
    opaque.introspects(&own, active(json!({})));
    assert_eq!(begin(&gateway, &own).status(), 200);
    assert_eq!(opaque.asked("/introspect").len(), 1);
}

/// F:E10, R:A22: what is open by a token that was taken back ends soon, also while nobody sends anything; by one that is
/// good it stays, past the time of an answer.
#[test]
fn streams_end_with_a_token_that_is_taken_back() {
    let issuer = Issuer::start(&[]);
    let brief = OPAQUE.replace("}", ", cache = \"6s\" }");
    let server = Server::fake("one").key("legacy_sse = true").key("check_on_start = false").toml();
    let gateway = Gateway::start(&format!(
        "listen.public_url = \"https://mcp.example\"\n[auth]\nmethods = [\"oauth\"]\n{}{server}",
        issuer.toml("main", &brief)
    ));
    gateway.await_event("issuers_ready", |_| true);
    let audiences = json!([RESOURCE, "https://mcp.example/one/sse"]);
    let good = |subject: &str| active(json!({ "sub": subject, "aud": audiences, "exp": null }));
    issuer.introspects("taken-back", good("alice"));
    issuer.introspects("kept", good("bob"));
    let open = |token: &str| {
        let bearer = format!("Bearer {token}");
        Session::open_with(&gateway, "/one/mcp", "2025-11-25", json!({}), &[("Authorization", &bearer)])
    };
    let (alice, bob) = (open("taken-back"), open("kept"));
    let (mut cut, mut kept) = (alice.get(), bob.get());
    let position = cut.next_event().id.unwrap();
    kept.next_event();
    let request = Request::get("/one/sse").header("Accept", "text/event-stream");
    let mut bare = Exchange::send(gateway.address(), &request.header("Authorization", "Bearer taken-back")).stream();
    bare.next_event();
    let before = now();
    issuer.introspects("taken-back", json!({ "active": false }));
    while cut.next_event_or_end().is_some() {}
    while bare.next_event_or_end().is_some() {}
    assert!(now() - before < 20, "soon");
    gateway.await_metric("stream_cuts_total", &[("reason", "token_expired")], |count| count == 2.0);
    let refused = alice.get_request().header("Last-Event-ID", &position).send(gateway.address());
    assert_eq!(challenge(&refused)["error_description"], "The access token is not active");
    // That of the other was asked about meanwhile, once at a time, and stays.
    let asked = || issuer.asked("/introspect").iter().filter(|asked| asked.body.contains("token=kept")).count();
    assert!((2..=4).contains(&asked()), "{}", asked());
    let notify = crate::session::call(9, "notify", json!({ "method": "notifications/tools/list_changed" }), None);
    let response = bob.post_request(notify.to_string()).with("Accept", "application/json").send(gateway.address());
    assert_eq!(response.status(), 200, "{response:?}");
    assert_eq!(kept.next_event().message()["method"], "notifications/tools/list_changed");
    assert!(!gateway.stderr().contains("taken-back"), "a token stands in the log");
}

/// R:A22: what is opened in the last moment of an answer is not cut before its issuer was asked again.
#[test]
fn a_stream_that_is_opened_as_an_answer_ends_is_asked_about() {
    let issuer = Issuer::start(&[]);
    let record = Record::new();
    let gateway = start(&issuer.toml("main", &OPAQUE.replace("}", ", cache = \"5s\" }")), &record);
    issuer.introspects("late", active(json!({ "exp": null })));
    let before = SystemTime::now();
    let bearer = [("Authorization", "Bearer late")];
    let session = Session::open_with(&gateway, "/one/mcp", "2025-11-25", json!({}), &bearer);
    // The gateway counts in whole seconds, so its answer is good for longer than four of ours.
    let last = before + Duration::from_millis(3_950);
    thread::sleep(last.duration_since(SystemTime::now()).unwrap_or_default());
    let mut stream = session.get();
    stream.next_event();
    issuer.await_asked("/introspect", 2);
    let notify = crate::session::call(9, "notify", json!({ "method": "notifications/tools/list_changed" }), None);
    let response = session.post_request(notify.to_string()).with("Accept", "application/json").send(gateway.address());
    assert_eq!(response.status(), 200, "{response:?}");
    assert_eq!(stream.next_event().message()["method"], "notifications/tools/list_changed");
    assert_eq!(gateway.metrics().value("stream_cuts_total", &[("reason", "token_expired")]).unwrap_or_default(), 0.0);
}

/// R:A20: requests with one token that come at the same time ask once.
#[test]
fn many_requests_at_once_ask_once() {
    let issuer = Issuer::start(&[]);
    let record = Record::new();
    let gateway = start(&issuer.toml("main", OPAQUE), &record);
    issuer.introspects("busy", active(json!({})));
    thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                let request = Request::post("/one/mcp", r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
                let response = request.header("Authorization", "Bearer busy").send(gateway.address());
                assert_eq!(response.status(), 400, "{response:?}");
            });
        }
    });
    assert_eq!(issuer.asked("/introspect").len(), 1);
}

/// A token that one issuer does not know may be another one's: what one server was told of it says nothing about a server
/// that takes both.
#[test]
fn each_server_asks_its_own_issuers() {
    let (first, second) = (Issuer::start(&[]), Issuer::start(&[]));
    let server = |name: &str, issuers: &str| {
        let server = Server::fake(name).key("check_on_start = false").key("pool.min_idle = 0");
        server.key(&format!("auth.issuers = [{issuers}]")).toml()
    };
    let audiences = format!("audiences = [\"all\"]\n{OPAQUE}");
    let gateway = Gateway::start(&format!(
        "listen.public_url = \"https://mcp.example\"\n[auth]\nmethods = [\"oauth\"]\n{}{}{}{}",
        first.toml("first", &audiences),
        second.toml("second", &audiences),
        server("narrow", "\"first\""),
        server("wide", "\"first\", \"second\""),
    ));
    gateway.await_event("issuers_ready", |_| true);
    second.introspects("handle", active(json!({ "aud": "all" })));
    let begin = |server: &str| {
        let body = initialize("2025-11-25", json!({})).to_string();
        let request = Request::post(&format!("/{server}/mcp"), body).header("Authorization", "Bearer handle");
        request.send(gateway.address()).status()
    };
    for _ in 0..2 {
        assert_eq!((begin("narrow"), begin("wide")), (401, 200));
    }
    assert!(second.asked("/introspect").len() == 1, "the narrow one never asked it");
}
