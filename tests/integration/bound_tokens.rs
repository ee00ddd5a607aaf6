//! Access tokens that are bound to a client certificate (RFC 8705).

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::gateway::Gateway;
use crate::issuer::{Issuer, OPAQUE, SigningKey, now};
use crate::session::initialize;
use crate::tls_client::{Authority, Https, Issued};

const RESOURCE: &str = "https://localhost/fake/mcp";

fn start(authority: &Authority, issuers: &str, record: &Record) -> Gateway {
    let server = authority.issue(&["localhost"]);
    let listen = format!("client_ca = {:?}\nclient_auth = \"optional\"", authority.file());
    let fake = Server::fake("fake").key("check_on_start = false").key("pool.min_idle = 0");
    let gateway = Gateway::start(&format!(
        "listen.public_url = \"https://localhost\"\n{}[auth]\nmethods = [\"oauth\"]\n{issuers}{}",
        authority.toml(&[("server", &server)], &listen),
        fake.option("--record", record.path()).toml()
    ));
    gateway.await_event("issuers_ready", |_| true);
    gateway
}

/// What `initialize` with this token is answered on a connection that showed this certificate, and the challenge.
#[track_caller]
fn begin(gateway: &Gateway, authority: &Authority, shown: Option<&Issued>, token: &str) -> (u16, String) {
    let authorization = format!("Bearer {token}");
    let headers = [("authorization", authorization.as_str())];
    let body = initialize("2025-11-25", json!({})).to_string();
    let mut statuses = ["http/1.1", "h2"].map(|protocol| {
        let mut client = Https::connect(gateway.address(), &authority.client(&[protocol], shown));
        let reply = client.post("/fake/mcp", &headers, &body);
        (reply.status, reply.header("www-authenticate").unwrap_or_default().to_owned())
    });
    assert_eq!(statuses[0], statuses[1], "in both versions of HTTP");
    std::mem::take(&mut statuses[0])
}

/// RFC 8705, 3: a token counts with the certificate it is bound to, and with no other and with none; whether it is a JWT
/// or is asked about, and also where it was good a moment before. One that is bound to nothing counts with any.
#[test]
fn a_bound_token_counts_with_its_certificate_only() {
    let (authority, record) = (Authority::new(), Record::new());
    let (own, other) = (authority.issue_client("own"), authority.issue_client("other"));
    let key = SigningKey::es256("a");
    let (jwt, opaque) = (Issuer::start(&[&key]), Issuer::start(&[]));
    let issuers = format!("{}{}", jwt.toml("jwt", ""), opaque.toml("opaque", OPAQUE));
    let gateway = start(&authority, &issuers, &record);
    let confirmation = json!({ "x5t#S256": own.thumbprint() });
    let token = |confirmation: Value| {
        let mut claims = jwt.claims(RESOURCE);
        if !confirmation.is_null() {
            claims["cnf"] = confirmation;
        }
        key.token(&key.header(), &claims)
    };
    opaque.introspects(
        "handle",
        json!({ "active": true, "sub": "bob", "aud": RESOURCE, "exp": now() + 600, "cnf": confirmation }),
    );
    for bound in [&token(confirmation.clone()), "handle"] {
        for (shown, is_own) in
            [(Some(&other), false), (None, false), (Some(&own), true), (Some(&other), false), (None, false)]
        {
            let (status, challenge) = begin(&gateway, &authority, shown, bound);
            if is_own {
                assert_eq!(status, 200);
                continue;
            }
            assert_eq!(status, 401);
            assert!(challenge.contains("error=\"invalid_token\""), "{challenge}");
            assert!(challenge.contains("bound to another client certificate"), "{challenge}");
        }
    }
    let told = gateway.await_event("auth_refused", |event| event["check"] == "cnf" && event["issuer"] == "jwt");
    assert!(told["expected"].as_str().is_some_and(|said| said.contains(&own.thumbprint())), "{told}");
    for shown in [Some(&own), Some(&other), None] {
        assert_eq!(begin(&gateway, &authority, shown, &token(Value::Null)).0, 200);
    }
    // A binding of a kind that nobody checks here is none (RFC 9449 has another).
    let other_kind = json!({ "jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I" });
    assert_eq!(begin(&gateway, &authority, Some(&own), &token(other_kind)).0, 401);
}
