//! Opaque tokens: what they mean is asked of their issuer.

use serde_json::{Value, json};

use crate::challenge::challenge;
use crate::child::{Record, Server};
use crate::client::{Request, Response};
use crate::gateway::Gateway;
use crate::issuer::{INTROSPECTOR, Issuer, Mood, OPAQUE, SigningKey, now};
use crate::session::initialize;

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
    let outages = gateway.events().into_iter().filter(|event| event["event"] == "introspection_failed").count();
    assert_eq!(outages, 1, "it is said once in a while, not for each request");
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
