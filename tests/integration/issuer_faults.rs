//! Issuers that are down, slow, lying, or change their keys.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::challenge::challenge;
use crate::child::{Record, Server};
use crate::client::{Request, Response};
use crate::gateway::Gateway;
use crate::issuer::{Issuer, Mood, OPAQUE, SigningKey};
use crate::session::initialize;

const RESOURCE: &str = "https://mcp.example/one/mcp";
const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
const METADATA: &str = "/.well-known/openid-configuration";

/// A configuration with these tables of issuers.
fn toml(issuers: &str, record: &Record) -> String {
    let server = Server::fake("one").option("--record", record.path()).key("check_on_start = false");
    let server = server.key("pool.min_idle = 0").toml();
    format!("listen.public_url = \"https://mcp.example\"\n[auth]\nmethods = [\"oauth\"]\n{issuers}{server}")
}

fn token(issuer: &Issuer, key: &SigningKey) -> String {
    key.token(&key.header(), &issuer.claims(RESOURCE))
}

fn begin(gateway: &Gateway, token: &str) -> Response {
    let body = initialize("2025-11-25", json!({})).to_string();
    let request = Request::post("/one/mcp", body).header("Authorization", &format!("Bearer {token}"));
    request.send(gateway.address())
}

#[track_caller]
fn assert_let_in(gateway: &Gateway, token: &str) {
    let response = begin(gateway, token);
    assert_eq!(response.status(), 200, "{response:?}");
}

#[track_caller]
fn assert_unknown_key(gateway: &Gateway, token: &str) {
    let response = begin(gateway, token);
    assert_eq!(response.status(), 401, "{response:?}");
    assert_eq!(challenge(&response)["error_description"], "The access token is signed with an unknown key");
}

#[track_caller]
fn readiness(gateway: &Gateway) -> (u16, String) {
    let response = Request::get("/readyz").send(gateway.admin());
    (response.status(), response.text().trim().to_owned())
}

/// F:E04, R:A20: with an issuer that never gave keys the gateway starts, is unready, says so, and answers tokens 503
/// with `Retry-After`; none is accepted. Once the issuer answers, all is well without a restart.
#[test]
fn a_start_without_the_issuer_is_unready_and_recovers() {
    let cases = [
        ("*", Mood::Down, "unreachable"),
        (METADATA, Mood::Status(302, vec![("Location", "http://169.254.169.254/latest/".to_owned())]), "refused"),
        ("/keys", Mood::Status(302, vec![("Location", "http://169.254.169.254/latest/".to_owned())]), "refused"),
        ("/keys", Mood::Status(500, vec![]), "refused"),
        ("/keys", Mood::Huge(50 << 20), "too_large"),
        (METADATA, Mood::Huge(2 << 20), "too_large"),
        ("/keys", Mood::Says(b"<html>Sign in</html>".to_vec()), "malformed"),
        ("/keys", Mood::Says(br#"{"keys":[]}"#.to_vec()), "malformed"),
        (
            METADATA,
            Mood::Says(br#"{"issuer":"https://evil.example","jwks_uri":"https://evil.example/"}"#.to_vec()),
            "other_issuer",
        ),
        ("/keys", Mood::Compressed, "refused"),
    ];
    thread::scope(|scope| {
        for (path, mood, reason) in cases {
            scope.spawn(move || assert_recovers(path, &mood, reason));
        }
    });
}

/// A gateway whose issuer is in this mood from the start, until it is well.
fn assert_recovers(path: &str, mood: &Mood, reason: &str) {
    let key = SigningKey::es256("a");
    let issuer = Issuer::start(&[&key]);
    issuer.mood(path, mood.clone());
    let record = Record::new();
    let gateway = Gateway::start(&toml(&issuer.toml("main", ""), &record));
    let failed = gateway.await_event("issuer_keys_failed", |event| event["issuer"] == "main");
    let (error, asked) = (failed["error"].as_str().unwrap(), issuer.url());
    let asked = if path == "/keys" { format!("({asked}/keys)") } else { format!("({asked}/.well-known/") };
    assert!(error.contains(&asked), "what failed is named: {failed}");
    gateway.await_metric("jwks_refreshes_total", &[("issuer", "main"), ("result", reason)], |count| count > 0.0);
    assert_eq!(readiness(&gateway), (503, "issuers".to_owned()), "{mood:?}");
    let response = begin(&gateway, &token(&issuer, &key));
    assert_eq!(response.status(), 503, "{mood:?}: {response:?}");
    assert!(response.header("retry-after").is_some(), "{mood:?}: {response:?}");
    assert!(response.header("www-authenticate").is_none(), "{mood:?}: {response:?}");
    assert!(record.all().is_empty(), "{mood:?}: a child was started");
    issuer.mood(path, Mood::Well);
    gateway.await_event("issuers_ready", |_| true);
    assert_let_in(&gateway, &token(&issuer, &key));
    assert_eq!(readiness(&gateway).0, 200);
}

/// F:E04: an answer that says it is compressed is not unpacked, however small it comes.
#[test]
fn a_bomb_is_not_unpacked() {
    let key = SigningKey::es256("a");
    let issuer = Issuer::start(&[&key]);
    let record = Record::new();
    let gateway = Gateway::start(&toml(&issuer.toml("main", ""), &record));
    gateway.await_event("issuers_ready", |_| true);
    let pack = "import gzip, sys; sys.stdout.buffer.write(gzip.compress(bytes(128 << 20), 1))";
    let packed = Command::new("python3").args(["-c", pack]).output().unwrap().stdout;
    assert!((100_000..1 << 20).contains(&packed.len()), "{} bytes", packed.len());
    issuer.mood("/keys", Mood::Bomb(packed));
    let before = gateway.rss();
    assert_unknown_key(&gateway, &token(&issuer, &SigningKey::es256("other")));
    gateway.await_metric("jwks_refreshes_total", &[("result", "refused")], |count| count > 0.0);
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes");
    assert_let_in(&gateway, &token(&issuer, &key));
}

/// F:E04: the first token may come while the keys are being fetched: it waits for them.
#[test]
fn the_first_token_waits_for_the_first_keys() {
    let key = SigningKey::es256("a");
    let (jwt, opaque) = (Issuer::start(&[&key]), Issuer::start(&[]));
    opaque.introspects("handle", json!({ "active": true, "sub": "bob", "aud": RESOURCE }));
    for issuer in [&jwt, &opaque] {
        issuer.mood(METADATA, Mood::Late(Duration::from_millis(500)));
    }
    let tables = format!("{}{}", jwt.toml("jwt", ""), opaque.toml("opaque", OPAQUE));
    let record = Record::new();
    let gateway = Gateway::start(&toml(&tables, &record));
    for token in [token(&jwt, &key), "handle".to_owned()] {
        assert_let_in(&gateway, &token);
    }
}

/// F:E04: an issuer that takes the connection and says nothing costs 5 s of its own task and no request anything.
#[test]
fn a_silent_issuer_holds_nobody_up() {
    let key = SigningKey::es256("a");
    let issuer = Issuer::start(&[&key]);
    issuer.mood("*", Mood::Silent);
    let record = Record::new();
    let gateway = Gateway::start(&toml(&issuer.toml("main", ""), &record));
    issuer.await_asked("/.well-known/oauth-authorization-server", 1);
    let began = Instant::now();
    assert_eq!(begin(&gateway, &token(&issuer, &key)).status(), 503);
    assert!(began.elapsed() < Duration::from_secs(4), "a request waited for it");
    gateway.await_metric("jwks_refreshes_total", &[("result", "timeout")], |count| count > 0.0);
}

/// F:E03, F:E04, C:B103: a new key works with the first token that names it, old tokens go with the old key, and a flood
/// of made-up keys is one fetch.
#[test]
fn keys_rotate_and_floods_fetch_once() {
    let (old, new) = (SigningKey::es256("old"), SigningKey::es256("new"));
    let issuer = Issuer::start(&[&old]);
    let record = Record::new();
    let gateway = Gateway::start(&toml(&issuer.toml("main", ""), &record));
    gateway.await_event("issuers_ready", |_| true);
    let of_old = token(&issuer, &old);
    assert_let_in(&gateway, &of_old);
    assert_let_in(&gateway, &of_old);
    assert_eq!(issuer.asked("/keys").len(), 1);
    issuer.publish(&[&new]);
    assert_let_in(&gateway, &of_old);
    assert_let_in(&gateway, &token(&issuer, &new));
    assert_eq!(issuer.asked("/keys").len(), 2);
    // It was verified before, by a key that is gone.
    assert_unknown_key(&gateway, &of_old);
    let claims = issuer.claims(RESOURCE);
    for number in 0..300 {
        let header = json!({ "alg": "ES256", "kid": format!("made up {number}") });
        assert_unknown_key(&gateway, &new.token(&header, &claims));
    }
    assert_eq!(issuer.asked("/keys").len(), 2, "within 30 s");
    assert_let_in(&gateway, &token(&issuer, &new));
}

/// F:E03: also where the issuer's set is empty or holds nothing that can be used: what was there stays.
#[test]
fn a_set_that_became_useless_takes_nothing_away() {
    let key = SigningKey::es256("a");
    let issuer = Issuer::start(&[&key]);
    let record = Record::new();
    let gateway = Gateway::start(&toml(&issuer.toml("main", ""), &record));
    gateway.await_event("issuers_ready", |_| true);
    issuer.publish(&[]);
    let header = json!({ "alg": "ES256", "kid": "other" });
    assert_unknown_key(&gateway, &key.token(&header, &issuer.claims(RESOURCE)));
    gateway.await_metric("jwks_refreshes_total", &[("result", "malformed")], |count| count > 0.0);
    let failed = gateway.await_event("issuer_keys_failed", |_| true);
    assert_eq!(failed["warning"], "the keys loaded before stay in use", "{failed}");
    issuer.mood("*", Mood::Down);
    assert_let_in(&gateway, &token(&issuer, &key));
    assert_eq!(readiness(&gateway).0, 200);
    assert!(gateway.metrics().value("jwks_age_seconds", &[("issuer", "main")]).is_some());
}

/// R:A18: metadata is found in each of its three places, and not needed where the configuration says where keys are.
#[test]
fn metadata_is_found_wherever_it_stands() {
    let key = SigningKey::es256("a");
    let says = |issuer: &Issuer| {
        let keys = issuer.url().replace("/realms/a", "/keys");
        json!({ "issuer": issuer.url(), "jwks_uri": keys }).to_string().into_bytes()
    };
    for place in [
        "/.well-known/oauth-authorization-server/realms/a",
        "/.well-known/openid-configuration/realms/a",
        "/realms/a/.well-known/openid-configuration",
    ] {
        let issuer = Issuer::start_at("/realms/a", &[&key]);
        issuer.mood("/realms/a/.well-known/openid-configuration", Mood::Status(404, vec![]));
        issuer.mood(place, Mood::Says(says(&issuer)));
        let record = Record::new();
        let gateway = Gateway::start(&toml(&issuer.toml("main", ""), &record));
        gateway.await_event("issuers_ready", |_| true);
        assert_let_in(&gateway, &token(&issuer, &key));
    }
    let issuer = Issuer::start(&[&key]);
    issuer.mood(METADATA, Mood::Status(404, vec![]));
    let uri = format!("jwks_uri = \"{}/keys\"", issuer.url());
    let record = Record::new();
    let gateway = Gateway::start(&toml(&issuer.toml("main", &uri), &record));
    gateway.await_event("issuers_ready", |_| true);
    assert_let_in(&gateway, &token(&issuer, &key));
    assert!(issuer.asked(METADATA).is_empty(), "it needed no metadata");
}

/// R:A19: a reload takes issuers over and lets go of them: their tokens count no more, and what was open ends
/// where one can no longer prove who one is.
#[test]
fn issuers_come_and_go_with_the_configuration() {
    let (first, second) = (SigningKey::es256("a"), SigningKey::rs256("a"));
    let (one, two) = (Issuer::start(&[&first]), Issuer::start(&[&second]));
    let record = Record::new();
    let only_one = toml(&one.toml("one", ""), &record);
    let gateway = Gateway::start(&only_one);
    gateway.await_event("issuers_ready", |_| true);
    let of_two = token(&two, &second);
    let refused = begin(&gateway, &of_two);
    assert_eq!(challenge(&refused)["error_description"], "The issuer of the access token is not accepted");
    let opened = begin(&gateway, &token(&one, &first));
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let ping = |token: &str| {
        let request = Request::post("/one/mcp", PING).header("Authorization", &format!("Bearer {token}"));
        request.header("Mcp-Session-Id", &session).send(gateway.address()).status()
    };
    assert_eq!(ping(&token(&one, &first)), 200);
    let both = toml(&format!("{}{}", one.toml("one", ""), two.toml("two", "")), &record);
    let told = gateway.reload(&both);
    assert!(told["tables"].as_str().is_some_and(|tables| tables.contains("auth.issuers")), "{told}");
    gateway.await_event("issuer_keys", |event| event["issuer"] == "two");
    assert_let_in(&gateway, &of_two);
    assert_eq!(ping(&token(&one, &first)), 200, "what did not change goes on");
    gateway.reload(&toml(&two.toml("two", ""), &record));
    let ended = gateway.await_event("session_close", |_| true);
    assert!(ended["principal"].as_str().is_some_and(|who| who.contains(one.url())), "only that issuer's end: {ended}");
    let open = gateway.metrics().value("sessions", &[("server", "one")]);
    assert_eq!(open, Some(1.0), "that of the other issuer goes on");
    assert_eq!(begin(&gateway, &token(&one, &first)).status(), 401);
    assert_let_in(&gateway, &of_two);
    assert!(gateway.metrics().value("jwks_age_seconds", &[("issuer", "one")]).is_none());
}

/// R:A12, C:B102: the quirks of real issuers, by their presets.
#[test]
fn presets_know_the_quirks_of_their_issuers() {
    let key = SigningKey::rs256("a");
    for (preset, change, refused) in [
        (
            "provider = \"entra\"\naudiences = [\"app-guid\"]",
            json!({ "aud": "app-guid", "scope": null, "scp": "read write", "azp": "x" }),
            None,
        ),
        ("provider = \"entra\"\naudiences = [\"app-guid\"]", json!({ "aud": "other-guid" }), Some("aud")),
        ("provider = \"keycloak\"", json!({ "typ": "Bearer", "azp": "x", "client_id": null }), None),
        (
            "provider = \"auth0\"",
            json!({ "aud": [RESOURCE, "https://a.example/userinfo"], "scope": null, "permissions": ["read"] }),
            None,
        ),
        (
            "provider = \"okta\"\naudiences = [\"api://default\"]",
            json!({ "aud": "api://default", "scope": null, "scp": ["read"], "cid": "x" }),
            None,
        ),
        (
            "provider = \"cognito\"\naudiences = [\"client\"]",
            json!({ "aud": null, "client_id": "client", "token_use": "access" }),
            None,
        ),
        (
            "provider = \"cognito\"\naudiences = [\"client\"]",
            json!({ "aud": null, "client_id": "other", "token_use": "access" }),
            Some("client_id"),
        ),
        ("subject_claim = \"oid\"", json!({ "sub": null, "oid": "object" }), None),
    ] {
        let issuer = Issuer::start(&[&key]);
        let record = Record::new();
        let gateway = Gateway::start(&toml(&issuer.toml("main", preset), &record));
        gateway.await_event("issuers_ready", |_| true);
        let mut claims = issuer.claims(RESOURCE);
        for (claim, value) in change.as_object().unwrap() {
            match value {
                Value::Null => drop(claims.as_object_mut().unwrap().remove(claim)),
                value => claims[claim] = value.clone(),
            }
        }
        let response = begin(&gateway, &key.token(&json!({ "alg": "RS256", "typ": "JWT", "kid": "a" }), &claims));
        match refused {
            None => assert_eq!(response.status(), 200, "{preset} {change}: {response:?}"),
            Some(check) => {
                assert_eq!(response.status(), 401, "{preset} {change}: {response:?}");
                // The operator reads what the client is not told.
                let told = gateway.await_event("auth_refused", |event| event["check"] == check);
                assert!(told["expected"].is_string() && told["got"].is_string(), "{told}");
            }
        }
    }
}

/// R:A12, C:B102: one issuer by two tables, as an Entra tenant with an application for each server: each server takes the
/// tokens of its own, in whatever order they are shown, and asks for scopes as its own names them.
#[test]
fn one_issuer_may_have_a_table_for_each_server() {
    let key = SigningKey::rs256("a");
    let issuer = Issuer::start(&[&key]);
    let table = |name: &str| {
        let lines = format!("provider = \"entra\"\naudiences = [\"app-{name}\"]\nscope_prefix = \"api://{name}/\"");
        issuer.toml(name, &lines)
    };
    let server = |name: &str| {
        let server = Server::fake(name).key("check_on_start = false").key("pool.min_idle = 0");
        server.key(&format!("auth = {{ issuers = [\"{name}\"], scopes = [\"use\"] }}")).toml()
    };
    let gateway = Gateway::start(&format!(
        "listen.public_url = \"https://mcp.example\"\n[auth]\nmethods = [\"oauth\"]\n{}{}{}{}",
        table("one"),
        table("two"),
        server("one"),
        server("two")
    ));
    gateway.await_event("issuers_ready", |_| true);
    let begin = |server: &str, token: &str| {
        let body = initialize("2025-11-25", json!({})).to_string();
        let request = Request::post(&format!("/{server}/mcp"), body);
        request.header("Authorization", &format!("Bearer {token}")).send(gateway.address())
    };
    let token = |audience: &str, scope: &str| {
        let mut claims = issuer.claims(audience);
        claims["scp"] = scope.into();
        key.token(&key.header(), &claims)
    };
    for _ in 0..2 {
        for (own, other) in [("one", "two"), ("two", "one")] {
            let good = token(&format!("app-{own}"), "use");
            assert_eq!(begin(own, &good).status(), 200);
            let refused = begin(other, &good);
            assert_eq!(challenge(&refused)["error_description"], "The access token was not issued for this resource");
            assert_eq!(begin(own, &good).status(), 200);
            let lacking = begin(own, &token(&format!("app-{own}"), "other"));
            assert_eq!((lacking.status(), challenge(&lacking)["scope"].as_str()), (403, &*format!("api://{own}/use")));
        }
    }
}
