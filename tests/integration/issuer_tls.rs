//! Issuers that are asked over TLS: whom the gateway trusts, and how an operator says so.

use std::process::Command;

use serde_json::json;

use crate::child::Server;
use crate::client::Request;
use crate::gateway::Gateway;
use crate::issuer::{Issuer, SigningKey};
use crate::session::initialize;
use crate::tls_client::{Authority, Issued};

const RESOURCE: &str = "https://mcp.example/one/mcp";

/// A gateway that takes this issuer's tokens and trusts the authority of that file.
fn start(issuer: &Issuer, trusted: &Authority) -> Gateway {
    let server = Server::fake("one").key("check_on_start = false").key("pool.min_idle = 0").toml();
    let auth = format!("[auth]\nmethods = [\"oauth\"]\n{}", issuer.toml("main", ""));
    let file = trusted.file();
    let trust = |command: &mut Command| {
        command.env("SSL_CERT_FILE", file).env_remove("SSL_CERT_DIR");
    };
    Gateway::start_with(&format!("listen.public_url = \"https://mcp.example\"\n{auth}{server}"), trust)
}

fn begin(gateway: &Gateway, issuer: &Issuer, key: &SigningKey) -> u16 {
    let token = key.token(&key.header(), &issuer.claims(RESOURCE));
    let request = Request::post("/one/mcp", initialize("2025-11-25", json!({})).to_string());
    request.header("Authorization", &format!("Bearer {token}")).send(gateway.address()).status()
}

/// F:E04: an authority of the operator's own is trusted by `SSL_CERT_FILE`.
#[test]
fn a_private_authority_is_trusted_where_the_operator_says_so() {
    let (authority, key) = (Authority::new(), SigningKey::es256("a"));
    let issuer = Issuer::start_with(&authority.issue(&["localhost"]), &[&key]);
    let gateway = start(&issuer, &authority);
    gateway.await_event("issuers_ready", |_| true);
    assert_eq!(begin(&gateway, &issuer, &key), 200);
}

/// F:E04: a certificate of somebody else's, for another name or from another time is none: no token counts, and the log
/// says why.
#[test]
fn a_bad_certificate_is_no_issuer() {
    let (authority, other) = (Authority::new(), Authority::new());
    let cases: [(Issued, &str); 3] = [
        (other.issue(&["localhost"]), "SSL_CERT_FILE"),
        (authority.issue(&["other.example"]), "certificate"),
        (authority.issue_until(&["localhost"], 2001), "certificate"),
    ];
    for (certificate, said) in cases {
        let key = SigningKey::es256("a");
        let issuer = Issuer::start_with(&certificate, &[&key]);
        let gateway = start(&issuer, &authority);
        let failed = gateway.await_event("issuer_keys_failed", |event| event["issuer"] == "main");
        assert!(failed["error"].as_str().is_some_and(|error| error.contains(said)), "{failed}");
        assert_eq!(begin(&gateway, &issuer, &key), 503);
        assert!(issuer.asked("/keys").is_empty(), "nothing was said to it");
    }
}
