//! Access tokens that must not let anybody in: each has its one answer, and none reaches a child.

use serde_json::{Value, json};

use crate::challenge::challenge;
use crate::child::{Record, Server};
use crate::client::{Request, Response};
use crate::gateway::Gateway;
use crate::issuer::{Issuer, SigningKey, base64url, now};
use crate::session::initialize;

const RESOURCE: &str = "https://mcp.example/one/mcp";

const MALFORMED: &str = "The access token is malformed";
const ALGORITHM: &str = "The access token is signed with an algorithm that is not accepted";
const HEADER: &str = "The access token has header members that are not understood";
const KIND: &str = "This is not an access token";
const KEY: &str = "The access token is signed with an unknown key";
const SIGNATURE: &str = "The signature of the access token is not valid";
const ISSUER: &str = "The issuer of the access token is not accepted";
const AUDIENCE: &str = "The access token was not issued for this resource";
const NO_EXPIRY: &str = "The access token has no valid expiry";
const EXPIRED: &str = "The access token has expired";
const NOT_YET: &str = "The access token is not valid yet";
const SUBJECT: &str = "The access token names no subject";
const BINDING: &str = "The access token is bound to another client certificate";

fn begin(path: &str, token: &str) -> Request {
    let body = initialize("2025-11-25", json!({})).to_string();
    Request::post(path, body).header("Authorization", &format!("Bearer {token}"))
}

/// The value with some members replaced; null removes one.
fn with(value: &Value, changes: Value) -> Value {
    let mut value = value.clone();
    for (member, change) in changes.as_object().unwrap() {
        match change {
            Value::Null => drop(value.as_object_mut().unwrap().remove(member)),
            change => value[member] = change.clone(),
        }
    }
    value
}

/// The issuers and keys of the cases.
struct Scene {
    issuer: Issuer,
    other: Issuer,
    /// Published by `issuer`.
    ec: SigningKey,
    rsa: SigningKey,
    /// Published by `other`.
    foreign: SigningKey,
    /// Published by nobody.
    stray: SigningKey,
}

impl Scene {
    fn new() -> Self {
        let (ec, rsa) = (SigningKey::es256("ec"), SigningKey::rs256("rsa"));
        let foreign = SigningKey::es256("ec");
        let (issuer, other) = (Issuer::start_at("/realms/a", &[&ec, &rsa]), Issuer::start(&[&foreign]));
        Self { issuer, other, ec, rsa, foreign, stray: SigningKey::es256("ec") }
    }

    /// Two servers; only the first takes tokens of `issuer`, and only the second those of `other`.
    fn gateway(&self, record: &Record) -> Gateway {
        let server = |name: &str, issuer: &str| {
            let server = Server::fake(name).option("--record", record.path()).key("check_on_start = false");
            server.key("pool.min_idle = 0").key(&format!("auth.issuers = [\"{issuer}\"]")).toml()
        };
        let gateway = Gateway::start(&format!(
            "listen.public_url = \"https://mcp.example\"\n[auth]\nmethods = [\"oauth\"]\n{}{}{}{}",
            self.issuer.toml("main", ""),
            self.other.toml("other", ""),
            server("one", "main"),
            server("two", "other"),
        ));
        gateway.await_event("issuers_ready", |_| true);
        gateway
    }

    fn claims(&self) -> Value {
        self.issuer.claims(RESOURCE)
    }

    /// A good header and good claims but for these.
    fn token(&self, header: Value, claims: Value) -> String {
        self.ec.token(&with(&self.ec.header(), header), &with(&self.claims(), claims))
    }

    /// Wrong headers, algorithms and keys (F:E01, F:E02).
    fn headers(&self) -> Vec<(&'static str, String, &'static str)> {
        let header = |changes| self.token(changes, json!({}));
        let signed_by = |key: &SigningKey, header: Value| key.token(&header, &self.claims());
        let none = |alg: &str| {
            let head = json!({ "alg": alg, "typ": "at+jwt", "kid": "ec" }).to_string();
            format!("{}.{}.", base64url(head), base64url(self.claims().to_string()))
        };
        vec![
            ("alg none", none("none"), ALGORITHM),
            ("alg None", none("None"), ALGORITHM),
            ("alg empty", none(""), ALGORITHM),
            ("no alg", header(json!({ "alg": null })), ALGORITHM),
            ("alg a number", header(json!({ "alg": 7 })), ALGORITHM),
            ("HMAC with the public key", self.hmac("HS256"), ALGORITHM),
            ("HMAC of another length", self.hmac("HS512"), ALGORITHM),
            ("an algorithm that is not listed", header(json!({ "alg": "RS512" })), ALGORITHM),
            ("a listed algorithm that is not the key's", header(json!({ "alg": "RS256" })), ALGORITHM),
            (
                "the other kind of RSA",
                signed_by(&self.rsa, with(&self.rsa.header(), json!({ "alg": "PS256" }))),
                ALGORITHM,
            ),
            ("an RSA key's name on an EC token", header(json!({ "kid": "rsa" })), ALGORITHM),
            ("crit", header(json!({ "crit": ["exp"] })), HEADER),
            ("crit empty", header(json!({ "crit": [] })), HEADER),
            ("unencoded payload", header(json!({ "b64": false, "crit": ["b64"] })), HEADER),
            ("compressed", header(json!({ "zip": "DEF" })), HEADER),
            ("encrypted within", header(json!({ "enc": "A256GCM" })), HEADER),
            ("nested", header(json!({ "cty": "JWT" })), HEADER),
            (
                "its own key",
                signed_by(&self.stray, with(&self.ec.header(), json!({ "jwk": self.stray.jwk() }))),
                SIGNATURE,
            ),
            (
                "its own key set",
                signed_by(&self.stray, with(&self.ec.header(), json!({ "jku": "http://127.0.0.1:1/" }))),
                SIGNATURE,
            ),
            (
                "its own certificate",
                signed_by(
                    &self.stray,
                    with(&self.ec.header(), json!({ "x5u": "http://127.0.0.1:1/", "x5c": ["MA=="] })),
                ),
                SIGNATURE,
            ),
            ("the key of another issuer, of one name", signed_by(&self.foreign, self.ec.header()), SIGNATURE),
            ("no kid, of two keys", header(json!({ "kid": null })), KEY),
            ("kid a path", header(json!({ "kid": "../../../../etc/passwd" })), KEY),
            ("kid a query", header(json!({ "kid": "ec' OR '1'='1" })), KEY),
            ("kid in other letters", header(json!({ "kid": "EC" })), KEY),
            ("kid with a null", header(json!({ "kid": "ec\u{0}" })), KEY),
            ("kid too long", header(json!({ "kid": "k".repeat(129) })), KEY),
            ("kid very long", header(json!({ "kid": "k".repeat(8_000) })), KEY),
            ("kid a number", header(json!({ "kid": 7 })), KEY),
            ("kid a list", header(json!({ "kid": ["ec"] })), KEY),
            ("typ of an ID token", header(json!({ "typ": "id_token" })), KIND),
            ("typ of a logout token", header(json!({ "typ": "logout+jwt" })), KIND),
            ("typ of a DPoP proof", header(json!({ "typ": "dpop+jwt" })), KIND),
            ("typ a number", header(json!({ "typ": 7 })), KIND),
        ]
    }

    /// Signed with the public key as if that were a shared secret.
    fn hmac(&self, algorithm: &str) -> String {
        let head = json!({ "alg": algorithm, "typ": "at+jwt", "kid": "rsa" }).to_string();
        let message = format!("{}.{}", base64url(head), base64url(self.claims().to_string()));
        let secret = self.rsa.jwk()["n"].as_str().unwrap().to_owned();
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret.as_bytes());
        format!("{message}.{}", base64url(aws_lc_rs::hmac::sign(&key, message.as_bytes())))
    }

    /// Bytes that are no token (F:E01).
    fn forms(&self) -> Vec<(&'static str, String, &'static str)> {
        let good = self.token(json!({}), json!({}));
        let parts: Vec<&str> = good.split('.').collect();
        let changed = with(&self.claims(), json!({ "sub": "root" })).to_string();
        let header = self.ec.header().to_string();
        vec![
            ("junk", "junk".to_owned(), MALFORMED),
            ("two parts", format!("{}.{}", parts[0], parts[1]), MALFORMED),
            ("four parts", format!("{good}.{}", parts[2]), MALFORMED),
            ("five parts, as if encrypted", format!("{good}.{}.{}", parts[1], parts[2]), MALFORMED),
            ("dots", "..".to_owned(), MALFORMED),
            ("padding", format!("{}=.{}.{}", parts[0], parts[1], parts[2]), MALFORMED),
            ("two tokens", format!("{good}, Bearer {good}"), MALFORMED),
            ("a header that is a list", self.ec.token_of("[]", self.claims().to_string()), MALFORMED),
            ("claims that are a list", self.ec.token_of(&header, "[]"), MALFORMED),
            ("claims that are no JSON", self.ec.token_of(&header, "{"), MALFORMED),
            ("claims that are no UTF-8", self.ec.token_of(&header, b"{\"iss\":\"\xff\"}"), MALFORMED),
            ("deep claims", self.ec.token_of(&header, "[".repeat(5_000)), MALFORMED),
            ("no signature", format!("{}.{}.", parts[0], parts[1]), SIGNATURE),
            ("half a signature", format!("{}.{}.{}", parts[0], parts[1], &parts[2][..40]), SIGNATURE),
            ("a signature of zeros", format!("{}.{}.{}", parts[0], parts[1], base64url([0; 64])), SIGNATURE),
            ("a signature that is no base64url", format!("{}.{}.{}", parts[0], parts[1], "*".repeat(86)), SIGNATURE),
            ("changed claims", format!("{}.{}.{}", parts[0], base64url(changed), parts[2]), SIGNATURE),
        ]
    }

    /// Claims that are wrong (F:E05).
    fn claims_cases(&self) -> Vec<(&'static str, String, &'static str)> {
        let claims = |changes| self.token(json!({}), changes);
        let own = self.issuer.url();
        vec![
            ("no iss", claims(json!({ "iss": null })), MALFORMED),
            ("iss a list", claims(json!({ "iss": [own] })), MALFORMED),
            ("iss with a slash", claims(json!({ "iss": format!("{own}/") })), ISSUER),
            ("iss in other letters", claims(json!({ "iss": own.to_uppercase() })), ISSUER),
            ("iss empty", claims(json!({ "iss": "" })), ISSUER),
            ("an issuer nobody knows", claims(json!({ "iss": "https://evil.example" })), ISSUER),
            (
                "an issuer of another server",
                self.foreign.token(&self.foreign.header(), &self.other.claims(RESOURCE)),
                ISSUER,
            ),
            ("no aud", claims(json!({ "aud": null })), AUDIENCE),
            ("aud of the other server", claims(json!({ "aud": "https://mcp.example/two/mcp" })), AUDIENCE),
            ("aud with a slash", claims(json!({ "aud": format!("{RESOURCE}/") })), AUDIENCE),
            ("aud the origin", claims(json!({ "aud": "https://mcp.example" })), AUDIENCE),
            ("aud longer", claims(json!({ "aud": format!("{RESOURCE}2") })), AUDIENCE),
            ("aud in other letters", claims(json!({ "aud": "https://MCP.example/one/mcp" })), AUDIENCE),
            ("aud on plain HTTP", claims(json!({ "aud": RESOURCE.replace("https", "http") })), AUDIENCE),
            ("aud empty", claims(json!({ "aud": "" })), AUDIENCE),
            ("aud an empty list", claims(json!({ "aud": [] })), AUDIENCE),
            ("aud a list of others", claims(json!({ "aud": ["a", "b"] })), AUDIENCE),
            ("aud a list with a number", claims(json!({ "aud": [RESOURCE, 7] })), AUDIENCE),
            ("aud a list in a list", claims(json!({ "aud": [[RESOURCE]] })), AUDIENCE),
            ("aud a number", claims(json!({ "aud": 7 })), AUDIENCE),
            ("aud Keycloak's default", claims(json!({ "aud": "account" })), AUDIENCE),
            ("aud an object", claims(json!({ "aud": { RESOURCE: true } })), AUDIENCE),
            ("no exp", claims(json!({ "exp": null })), NO_EXPIRY),
            ("exp a text", claims(json!({ "exp": (now() + 3600).to_string() })), NO_EXPIRY),
            ("exp beyond all time", claims(json!({ "exp": 1e300 })), NO_EXPIRY),
            ("exp below zero", claims(json!({ "exp": -1 })), NO_EXPIRY),
            ("exp a list", claims(json!({ "exp": [now() + 3600] })), NO_EXPIRY),
            ("exp a minute ago", claims(json!({ "exp": now() - 61 })), EXPIRED),
            ("exp zero", claims(json!({ "exp": 0 })), EXPIRED),
            ("nbf in two minutes", claims(json!({ "nbf": now() + 120 })), NOT_YET),
            ("nbf a text", claims(json!({ "nbf": "0" })), NOT_YET),
            ("no sub", claims(json!({ "sub": null })), SUBJECT),
            ("sub empty", claims(json!({ "sub": "" })), SUBJECT),
            ("sub a number", claims(json!({ "sub": 7 })), SUBJECT),
            ("sub a list", claims(json!({ "sub": ["alice"] })), SUBJECT),
            ("sub too long", claims(json!({ "sub": "a".repeat(1_025) })), SUBJECT),
            ("an ID token with a nonce", claims(json!({ "nonce": "n" })), KIND),
            ("an ID token with at_hash", claims(json!({ "at_hash": "h" })), KIND),
            ("Cognito's ID token", claims(json!({ "token_use": "id" })), KIND),
            ("Keycloak's ID token", claims(json!({ "typ": "ID" })), KIND),
            ("Keycloak's refresh token", claims(json!({ "typ": "Refresh" })), KIND),
            ("a logout token", claims(json!({ "events": {} })), KIND),
            ("bound to a certificate", claims(json!({ "cnf": { "x5t#S256": base64url([7; 32]) } })), BINDING),
            ("bound to a DPoP key", claims(json!({ "cnf": { "jkt": "k" } })), BINDING),
            ("bound in an unknown way", claims(json!({ "cnf": "x" })), BINDING),
        ]
    }
}

#[track_caller]
fn assert_refused(response: &Response, description: &str, what: &str) {
    assert_eq!(response.status(), 401, "{what}: {response:?}");
    let challenge = challenge(response);
    let told = (challenge.get("error").map(String::as_str), challenge.get("error_description").map(String::as_str));
    assert_eq!(told, (Some("invalid_token"), Some(description)), "{what}: {response:?}");
}

/// F:E01, F:E02, F:E05, R:A02, R:A12, R:A19, C:B101, C:B106, C:B112: some ninety tokens that must not pass, each with its one answer, and no byte of any
/// reaches a child; then the good one passes.
#[test]
fn every_bad_token_has_its_answer_and_reaches_nobody() {
    let record = Record::new();
    let scene = Scene::new();
    let gateway = scene.gateway(&record);
    let cases: Vec<_> = [scene.forms(), scene.headers(), scene.claims_cases()].concat();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    for (what, token, description) in &cases {
        let began = std::time::Instant::now();
        assert_refused(&begin("/one/mcp", token).send(gateway.address()), description, what);
        assert!(began.elapsed() < crate::PATIENCE, "{what}");
    }
    assert!(record.all().is_empty(), "a child was started");
    assert_eq!(gateway.metrics().count("sessions_opened_total", &[]), 0.0);
    let good = scene.token(json!({}), json!({}));
    // Each twice: what is known of a token must not lift what was said of it.
    for _ in 0..2 {
        let response = begin("/one/mcp", &good).send(gateway.address());
        assert_eq!(response.status(), 200, "{response:?}");
        assert_refused(&begin("/two/mcp", &good).send(gateway.address()), ISSUER, "the other server");
        let expired = scene.token(json!({}), json!({ "exp": now() - 61 }));
        assert_refused(&begin("/one/mcp", &expired).send(gateway.address()), EXPIRED, "once more");
    }
    let stderr = gateway.stderr();
    for (what, token, _) in cases.iter().filter(|(_, token, _)| token.len() > 20) {
        assert!(!stderr.contains(token.as_str()), "{what} stands in the log");
    }
}

/// F:E05, R:A19, C:B101, C:B102, C:B105: what real issuers send passes: every algorithm, `typ` and form of claims that is meant to.
#[test]
fn every_good_token_passes() {
    let keys = [
        SigningKey::es256("a"),
        SigningKey::es384("b"),
        SigningKey::ed25519("c"),
        SigningKey::rs256("d"),
        SigningKey::ps256("e"),
    ];
    let issuer = Issuer::start(&keys.each_ref());
    let record = Record::new();
    let server = Server::fake("one").option("--record", record.path()).key("check_on_start = false").toml();
    let gateway = Gateway::start(&format!(
        "listen.public_url = \"https://mcp.example\"\n[auth]\nmethods = [\"oauth\"]\n{}{server}",
        issuer.toml("main", "")
    ));
    gateway.await_event("issuers_ready", |_| true);
    let claims = issuer.claims(RESOURCE);
    let mut good: Vec<(String, String)> = Vec::new();
    for key in &keys {
        good.push((key.header().to_string(), key.token(&key.header(), &claims)));
    }
    let key = &keys[0];
    for header in [
        json!({ "typ": "JWT" }),
        json!({ "typ": "application/at+JWT" }),
        json!({ "typ": null }),
        json!({ "x5t": "t", "jku": "http://127.0.0.1:1/keys" }),
    ] {
        good.push((header.to_string(), key.token(&with(&key.header(), header), &claims)));
    }
    for change in [
        json!({ "aud": [RESOURCE] }),
        json!({ "aud": ["account", RESOURCE] }),
        json!({ "exp": now() - 10 }),
        json!({ "exp": (now() + 60) as f64 + 0.5 }),
        json!({ "nbf": now() + 10 }),
        json!({ "client_id": null, "azp": "editor" }),
        json!({ "typ": "Bearer", "nonce": "Keycloak leaves it in" }),
        json!({ "token_use": "access" }),
    ] {
        good.push((change.to_string(), key.token(&key.header(), &with(&claims, change))));
    }
    for (what, token) in &good {
        let response = begin("/one/mcp", token).send(gateway.address());
        assert_eq!(response.status(), 200, "{what}: {response:?}");
    }
    let checked = gateway.metrics().value("auth_checks_total", &[("method", "jwt"), ("result", "ok")]);
    assert_eq!(checked, Some(good.len() as f64));
    let read = record.all().into_values().flatten().collect::<Vec<u8>>();
    let read = String::from_utf8_lossy(&read);
    assert!(good.iter().all(|(_, token)| !read.contains(token.as_str())), "a child read a token");
}

/// C:B96: what is issued for the server's URL with a slash behind it counts where that is listed, and only there; the
/// server names itself without.
#[test]
fn a_slash_counts_where_it_is_listed() {
    let key = SigningKey::es256("a");
    let issuer = Issuer::start(&[&key]);
    let record = Record::new();
    let slash = format!("{RESOURCE}/");
    let server = Server::fake("one").option("--record", record.path()).key("check_on_start = false").toml();
    let gateway = Gateway::start(&format!(
        "listen.public_url = \"https://mcp.example/\"\n[auth]\nmethods = [\"oauth\"]\n{}{server}",
        issuer.toml("main", &format!("audiences = [\"{slash}\"]"))
    ));
    gateway.await_event("issuers_ready", |_| true);
    let token = |audience: &str| key.token(&key.header(), &issuer.claims(audience));
    for path in ["/one/mcp", "/one/mcp/"] {
        assert_eq!(begin(path, &token(&slash)).send(gateway.address()).status(), 200, "{path}");
        assert_refused(&begin(path, &token(RESOURCE)).send(gateway.address()), AUDIENCE, "it is not in the list");
    }
    let document = Request::get("/.well-known/oauth-protected-resource/one/mcp").send(gateway.address()).json();
    assert_eq!(document["resource"], RESOURCE);
}

/// R:A09, R:A10: a token belongs in one `Authorization` header and nowhere else.
#[test]
fn a_token_belongs_in_one_place() {
    let record = Record::new();
    let scene = Scene::new();
    let gateway = scene.gateway(&record);
    let good = scene.token(json!({}), json!({}));
    let body = initialize("2025-11-25", json!({})).to_string();
    let bare = |path: &str| Request::post(path, &body);
    let twice = begin("/one/mcp", &good).header("Authorization", &format!("Bearer {good}"));
    for (what, request, status) in [
        ("two headers", twice, 400),
        ("in the query", bare(&format!("/one/mcp?access_token={good}")), 401),
        ("in the query too", begin(&format!("/one/mcp?access_token={good}"), &good), 400),
        ("as a cookie", bare("/one/mcp").header("Cookie", &format!("access_token={good}")), 401),
        ("of another scheme", bare("/one/mcp").header("Authorization", &format!("DPoP {good}")), 401),
        ("for the proxy", bare("/one/mcp").header("Proxy-Authorization", &format!("Bearer {good}")), 401),
    ] {
        let response = request.send(gateway.address());
        assert_eq!(response.status(), status, "{what}: {response:?}");
        if status == 401 {
            assert!(!challenge(&response).contains_key("error"), "{what}: {response:?}");
        }
    }
    assert!(record.all().is_empty(), "a child was started");
}
