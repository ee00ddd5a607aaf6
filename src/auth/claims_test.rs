//! Tests of `claims`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Source, Verified};
use crate::auth::Asked;
use crate::auth::rejection::TokenFault;
use crate::auth::trail::Trail;
use crate::config::{self, Issuer, Method, ServerAuth};

const RESOURCE: &str = "https://mcp.example/one/mcp";
const NOW: u64 = 1_000_000;

fn issuer(lines: &str) -> Arc<Issuer> {
    let text = format!("[auth.issuers.main]\nissuer = \"https://id.example\"\n{lines}\n");
    let text = format!("{text}[servers.a]\ncommand = \"a\"\nauth.methods = [\"none\"]\n");
    let loaded = config::parse(&text, "test", std::path::Path::new("/"), &|_| None).expect("a configuration");
    Arc::clone(&loaded.config.auth.issuers["main"])
}

fn claims(change: &Value) -> Map<String, Value> {
    let mut claims = json!({ "sub": "alice", "aud": RESOURCE, "exp": NOW + 60 });
    claims.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
    claims.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
    claims.as_object().expect("an object").clone()
}

fn judge(lines: &str, change: Value) -> Result<Verified, TokenFault> {
    Verified::judge(claims(&change), Source::Jwt, &issuer(lines), &mut Trail::default())
}

fn check(verified: &Verified, now_unix: u64, thumbprint: Option<&[u8; 32]>) -> Result<(), TokenFault> {
    let policy = ServerAuth { methods: vec![Method::Oauth], resource: RESOURCE.into(), ..ServerAuth::default() };
    let asked = Asked { server: "one", policy: &policy, thumbprint, now_unix };
    verified.check(&issuer(""), &asked, &mut Trail::default())
}

#[test]
fn scopes_come_from_every_claim_that_says_so() {
    for (lines, change, expected) in [
        ("", json!({ "scope": "read  write" }), &["read", "write"][..]),
        ("", json!({ "scp": ["read", "write"] }), &["read", "write"]),
        ("", json!({ "scope": "a", "scp": "b" }), &["a", "b"]),
        ("", json!({ "scope": 7, "scp": ["a", 7, null] }), &["a"]),
        ("", json!({ "permissions": ["read"] }), &[]),
        ("provider = \"auth0\"", json!({ "permissions": ["read:files"] }), &["read:files"]),
        ("provider = \"entra\"", json!({ "roles": ["Tools.Call"] }), &["Tools.Call"]),
        ("scope_prefix = \"rs/\"", json!({ "scope": "rs/read other rs/" }), &["other", "read"]),
    ] {
        let verified = judge(lines, change.clone()).expect("it is good");
        assert_eq!(verified.admitted(NOW).scopes.iter().collect::<Vec<_>>(), expected, "{lines} {change}");
    }
}

/// R:A21
#[test]
fn a_caller_is_issuer_subject_and_client() {
    for (change, expected) in [
        (json!({}), "token:alice@https://id.example"),
        (json!({ "client_id": "c" }), "token:alice@https://id.example by c"),
        (json!({ "azp": "z", "client_id": "c" }), "token:alice@https://id.example by c"),
        (json!({ "azp": "z" }), "token:alice@https://id.example by z"),
        (json!({ "cid": "o" }), "token:alice@https://id.example by o"),
        (json!({ "appid": "e" }), "token:alice@https://id.example by e"),
        (json!({ "client_id": 7, "azp": "" }), "token:alice@https://id.example"),
    ] {
        let verified = judge("", change.clone()).expect("it is good");
        assert_eq!(verified.admitted(NOW).principal.to_string(), expected, "{change}");
    }
}

#[test]
fn time_is_judged_with_the_leeway() {
    let verified = judge("", json!({ "exp": NOW + 60, "nbf": NOW })).expect("it is good");
    for (now, expected) in [
        (NOW - 31, Err(TokenFault::NotYet)),
        (NOW - 30, Ok(())),
        (NOW + 89, Ok(())),
        (NOW + 90, Err(TokenFault::Expired)),
        (u64::MAX, Err(TokenFault::Expired)),
    ] {
        assert_eq!(check(&verified, now, None), expected, "{now}");
    }
    assert_eq!(verified.admitted(NOW).proof.until, Some(NOW + 60 + 28), "what is open is gone after 30 s");
    for late in [NOW + 60 + 28, NOW + 60 + 29] {
        assert_eq!(verified.admitted(late).proof.until, Some(NOW + 60 + 30), "whoever is let in still, stays");
    }
    let other = judge("leeway = \"5s\"", json!({})).expect("it is good");
    assert_eq!(other.admitted(NOW).proof.until, Some(NOW + 60 + 5));
}

/// RFC 8705, 3: a bound token counts with its certificate only.
#[test]
fn a_bound_token_needs_its_certificate() {
    let own = [0xab; 32];
    let text = "q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s";
    let verified = judge("", json!({ "cnf": { "x5t#S256": text } })).expect("it is good");
    assert_eq!(check(&verified, NOW, Some(&own)), Ok(()));
    for shown in [None, Some(&[0xac; 32])] {
        assert_eq!(check(&verified, NOW, shown), Err(TokenFault::Binding));
    }
    for unknown in [json!({ "jkt": "k" }), json!({ "x5t#S256": text, "jkt": "k" }), json!({}), json!(7)] {
        assert_eq!(judge("", json!({ "cnf": unknown })).map(|_| ()), Err(TokenFault::Binding), "{unknown}");
    }
}

#[test]
fn introspection_may_leave_things_out_and_a_jwt_may_not() {
    let of = |source, change: &Value| {
        Verified::judge(claims(change), source, &issuer(""), &mut Trail::default())
            .map(|verified| verified.admitted(NOW).proof.until)
    };
    let bare = json!({ "exp": null, "sub": null, "client_id": "c" });
    assert_eq!(of(Source::Introspection, &bare), Ok(None));
    assert_eq!(of(Source::Jwt, &bare), Err(TokenFault::NoExpiry));
    assert_eq!(of(Source::Jwt, &json!({ "sub": null, "client_id": "c" })), Err(TokenFault::Subject));
    assert_eq!(of(Source::Introspection, &json!({ "sub": null })), Err(TokenFault::Subject));
    assert_eq!(of(Source::Introspection, &json!({ "exp": "soon" })), Err(TokenFault::NoExpiry));
}

/// C:B105
#[test]
fn a_time_is_a_number_that_time_may_reach() {
    for time in [json!(1e300), json!(u64::MAX), json!(-1), json!("60"), json!([60]), json!(true)] {
        assert_eq!(judge("", json!({ "exp": time })).map(|_| ()), Err(TokenFault::NoExpiry), "{time}");
        assert_eq!(judge("", json!({ "nbf": time })).map(|_| ()), Err(TokenFault::NotYet), "{time}");
    }
    assert!(judge("", json!({ "exp": NOW as f64 + 60.5 })).is_ok());
}

#[test]
fn a_listed_audience_replaces_the_servers_url() {
    let policy = ServerAuth { methods: vec![Method::Oauth], resource: RESOURCE.into(), ..ServerAuth::default() };
    let asked = Asked { server: "one", policy: &policy, thumbprint: None, now_unix: NOW };
    for (lines, audience, expected) in [
        ("", json!(RESOURCE), true),
        ("", json!(format!("{RESOURCE}/")), false),
        ("audiences = [\"a\", \"b\"]", json!("b"), true),
        ("audiences = [\"a\", \"b\"]", json!(RESOURCE), false),
        ("audiences = [\"https://mcp.example/one/mcp/\"]", json!(format!("{RESOURCE}/")), true),
    ] {
        let verified = judge(lines, json!({ "aud": audience })).expect("it is good");
        let found = verified.check(&issuer(lines), &asked, &mut Trail::default());
        assert_eq!(found.is_ok(), expected, "{lines} {audience}");
    }
    // Without a public URL there is nothing a token could be for.
    let policy = ServerAuth { methods: vec![Method::Oauth], ..ServerAuth::default() };
    let verified = judge("", json!({ "aud": "" })).expect("it is good");
    let found = verified.check(&issuer(""), &Asked { policy: &policy, ..asked }, &mut Trail::default());
    assert_eq!(found, Err(TokenFault::Audience));
}
