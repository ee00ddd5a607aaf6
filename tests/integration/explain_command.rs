//! `gangway auth explain`, and what `gangway check --online` says of issuers.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::caller_key::Key;
use crate::gateway::{BINARY, Directory};
use crate::issuer::{Issuer, Mood, OPAQUE, SigningKey, now};

const RESOURCE: &str = "https://mcp.example/one/mcp";

/// Runs the binary on this configuration, with this on its standard input; its status, and all it wrote.
fn gangway(arguments: &[&str], toml: &str, typed: &str) -> (Option<i32>, String) {
    let directory = Directory::new();
    let file = directory.path().join("gangway.toml");
    std::fs::write(&file, toml).unwrap();
    let mut command = Command::new(BINARY);
    command.args(arguments.iter().map(|argument| argument.replace("FILE", file.to_str().unwrap())));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may have ended before it read anything.
    let _ = child.stdin.take().unwrap().write_all(typed.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (status.code(), text)
}

fn toml(issuers: &str) -> String {
    format!(
        "listen = {{ address = \"127.0.0.1:0\", public_url = \"https://mcp.example\" }}\nadmin.address = \"off\"\n\
         [auth]\nmethods = [\"api_key\", \"oauth\"]\n{}{issuers}[servers.one]\ncommand = \"sh\"\n",
        Key::of("laptop").toml("")
    )
}

fn explain(toml: &str, token: &str) -> (Option<i32>, String) {
    gangway(&["auth", "explain", "-c", "FILE", "--server", "one"], toml, token)
}

/// R:A29: each check with what was expected and got, 0 or 1, and never the token itself.
#[test]
fn every_check_is_told_and_the_token_is_not() {
    let key = SigningKey::es256("a");
    let issuer = Issuer::start(&[&key]);
    let toml = toml(&issuer.toml("main", ""));
    let token = |change: Value| {
        let mut claims = issuer.claims(RESOURCE);
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        key.token(&key.header(), &claims)
    };
    let good = token(json!({}));
    for typed in [good.clone(), format!("Bearer {good}\n"), format!("bearer  {good}")] {
        let (status, text) = explain(&toml, &typed);
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains("let in as token:alice@") && text.contains("scopes: read write"), "{text}");
        assert!(!text.contains("FAIL") && !text.contains(&good), "{text}");
        assert!(
            ["iss", "alg", "kid", "signature", "exp", "aud", "sub"].iter().all(|name| text.contains(name)),
            "{text}"
        );
    }
    let two = token(json!({ "aud": ["account", "a\u{1b}[31m"], "exp": now() - 100 }));
    let (status, text) = explain(&toml, &two);
    assert_eq!(status, Some(1), "{text}");
    let failed: Vec<&str> = text.lines().filter(|line| line.contains("FAIL")).collect();
    assert_eq!(failed.len(), 2, "{text}");
    assert!(failed[0].contains("exp") && failed[0].contains(" ago"), "{text}");
    assert!(failed[1].contains(&format!("expected \"{RESOURCE}\", got [\"account\", ")), "{text}");
    assert!(!text.contains('\u{1b}') && !text.contains(&two), "{text}");
    assert!(text.contains("refused: The access token has expired"), "the first that failed: {text}");
    let (status, text) = explain(&toml, &token(json!({ "iss": format!("{}/", issuer.url()) })));
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("slash at the end"), "{text}");
    let confirmation = json!({ "cnf": { "x5t#S256": "thumb" }, "exp": now() - 100, "nonce": "n" });
    let (status, text) = explain(&toml, &token(confirmation));
    assert_eq!(status, Some(1), "{text}");
    for name in ["exp", "cnf"] {
        let told = text.lines().filter(|line| line.split_whitespace().nth(1) == Some(name)).count();
        assert_eq!(told, 1, "{name} is told once: {text}");
    }
    assert!(text.contains("it has `nonce`") && text.contains("got no client certificate"), "{text}");
    let needing = format!("{toml}auth.scopes = [\"read\", \"more\"]\n");
    let (status, text) = explain(&needing, &good);
    assert_eq!(status, Some(1), "a request would be a 403: {text}");
    assert!(text.contains("expected read more, got read write") && text.contains("403"), "{text}");
    let (status, text) = explain(&toml, " \n");
    assert!(status == Some(2) && text.contains("no token on standard input"), "{text}");
    let (status, text) = explain(&toml, "no-jwt");
    assert!(status == Some(1) && text.contains("tokens = \"opaque\""), "{text}");
    issuer.mood("*", Mood::Down);
    let (status, text) = explain(&toml, &good);
    assert!(status == Some(1) && text.contains("main: its metadata cannot be had"), "{text}");
    let (status, text) = gangway(&["auth", "explain", "-c", "FILE", "--server", "two"], &toml, &good);
    assert!(status == Some(2) && text.contains("it is one of one"), "{text}");
}

/// An unknown key is said at once, claims are judged all the same; opaque tokens are asked about; keys are keys.
#[test]
fn every_kind_of_credential_is_explained() {
    let (key, stray) = (SigningKey::es256("a"), SigningKey::es256("b"));
    let (jwt, opaque) = (Issuer::start(&[&key]), Issuer::start(&[]));
    let toml = toml(&format!("{}{}", jwt.toml("jwt", ""), opaque.toml("opaque", OPAQUE)));
    let (status, text) = explain(&toml, &stray.token(&stray.header(), &jwt.claims("other")));
    assert!(status == Some(1) && text.contains("kid") && text.contains("got \"other\""), "{text}");
    opaque.introspects("handle", json!({ "active": true, "sub": "bob", "aud": RESOURCE, "scope": "read" }));
    let (status, text) = explain(&toml, "handle");
    assert!(status == Some(0) && text.contains("auth.issuers.opaque") && text.contains("token:bob@"), "{text}");
    let (status, text) = explain(&toml, "unknown");
    assert!(status == Some(1) && text.contains("active"), "{text}");
    let laptop = Key::of("laptop").authorization;
    let (status, text) = explain(&toml, &laptop);
    assert!(status == Some(0) && text.contains("let in as key:laptop"), "{text}");
    assert!(!text.contains(laptop.strip_prefix("Bearer ").unwrap()), "{text}");
    let (status, text) = explain(&toml, &Key::of("other").authorization);
    assert!(status == Some(1) && text.contains("the API key is unknown"), "{text}");
}

/// What an issuer offers, and what users must do then.
#[test]
fn online_says_what_issuers_offer() {
    let key = SigningKey::es256("a");
    let issuer = Issuer::start(&[&key]);
    let toml = toml(&issuer.toml("main", ""));
    let check = || gangway(&["check", "FILE", "--online"], &toml, "");
    let (status, text) = check();
    assert_eq!(status, Some(0), "{text}");
    for said in
        ["issuer main", "openid-configuration", "register a client by hand", "S256          named", "auth explain"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    issuer.claim("client_id_metadata_document_supported", true.into());
    issuer.claim("registration_endpoint", "https://id.example/register".into());
    issuer.claim("code_challenge_methods_supported", Value::Null);
    issuer.claim("protected_resources", json!([RESOURCE]));
    let (status, text) = check();
    assert_eq!(status, Some(0), "{text}");
    for said in ["users need to do nothing", "MCP clients refuse to log in", RESOURCE] {
        assert!(text.contains(said), "{said}: {text}");
    }
    issuer.claim("issuer", "https://id.example".into());
    let (status, text) = check();
    assert_eq!(status, Some(78), "{text}");
    assert!(text.contains("names the issuer \"https://id.example\""), "{text}");
    issuer.mood("*", Mood::Down);
    let (status, text) = check();
    assert!(status == Some(78) && text.contains("auth.issuers.main"), "{text}");
}

/// R:A29: also what a good token does not suffice for, and with which scopes it would.
#[test]
fn what_was_granted_is_held_against_what_is_needed() {
    let key = SigningKey::es256("a");
    let issuer = Issuer::start(&[&key]);
    let rules = "[servers.one.auth]\nscopes = [\"use\"]\nmethod_scopes = { \"resources/read\" = [\"see\"] }\n\
         tools = { \"delete_*\" = [\"write\"] }\n";
    let toml = format!("{}{rules}", toml(&issuer.toml("main", "")));
    let with = |scope: &str| {
        let mut claims = issuer.claims(RESOURCE);
        claims["scope"] = scope.into();
        explain(&toml, &key.token(&key.header(), &claims))
    };
    for (scope, wanted, said) in [
        ("read", Some(1), "each request is a 403"),
        ("use", Some(0), "but not for resources/read: that needs see\nbut not for the tool delete_*: that needs write"),
        ("use see", Some(0), "but not for the tool delete_*: that needs write"),
    ] {
        let (status, text) = with(scope);
        assert!(status == wanted && text.contains(said), "{scope}: {text}");
    }
    assert!(!with("use see write").1.contains("but not"));
    let (status, text) = explain(&toml, " ");
    assert!(status == Some(2) && text.contains("no token on standard input"), "{text}");
}
