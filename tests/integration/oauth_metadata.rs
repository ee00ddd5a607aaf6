//! What a server that takes access tokens says to those who have none: challenges, and where to get a token.

use serde_json::{Value, json};

use crate::caller_key::Key;
use crate::challenge::challenge;
use crate::child::{Record, Server};
use crate::client::{Request, Response};
use crate::gateway::Gateway;
use crate::issuer::{Issuer, SigningKey};
use crate::session::initialize;

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// Two servers that take tokens, one that takes keys, one that takes both; below a path, behind a proxy.
fn start(record: &Record, key: &Key) -> Gateway {
    let server = |name: &str, key: &str| {
        let server = Server::fake(name).option("--record", record.path()).key("check_on_start = false");
        server.key("pool.min_idle = 0").key(key).toml()
    };
    Gateway::start(&format!(
        "[listen]\npublic_url = \"https://MCP.example.com:443/base/\"\nhealth = true\n\
         [auth]\nmethods = [\"oauth\"]\nscopes = [\"use\"]\n{}\
         [auth.issuers.one]\nissuer = \"https://as.example.com/realms/one\"\n\
         [auth.issuers.two]\nissuer = \"https://as.example.com/two/\"\n{}{}{}{}",
        key.toml("scopes = [\"use\"]"),
        server("files", "legacy_sse = true"),
        server("mail", "auth = { issuers = [\"two\"], scopes = [] }"),
        server("keys", "auth.methods = [\"api_key\"]"),
        server("both", "auth.methods = [\"api_key\", \"oauth\"]"),
    ))
}

fn begin(path: &str) -> Request {
    Request::post(path, initialize("2025-11-25", json!({})).to_string())
}

fn get(gateway: &Gateway, path: &str) -> Response {
    Request::get(path).send(gateway.address())
}

/// The path of a URL of this gateway's.
#[track_caller]
fn path_of(url: &str) -> &str {
    url.strip_prefix("https://mcp.example.com").unwrap_or_else(|| panic!("{url}"))
}

/// R:A14, R:A15, R:A16, R:A17, R:A04, C:B88, C:B94, C:B97: a document for each server, at the path with the well-known part in front,
/// from the configuration alone; for everybody, every page and every cache.
#[test]
fn each_server_has_a_document_of_its_own() {
    let (record, key) = (Record::new(), Key::of("key"));
    let gateway = start(&record, &key);
    let two = "https://as.example.com/two/";
    for (name, wanted) in [
        (
            "files",
            json!({ "authorization_servers": ["https://as.example.com/realms/one", two], "scopes_supported": ["use"] }),
        ),
        ("mail", json!({ "authorization_servers": [two] })),
        (
            "both",
            json!({ "authorization_servers": ["https://as.example.com/realms/one", two], "scopes_supported": ["use"] }),
        ),
    ] {
        let mut wanted = wanted;
        wanted["resource"] = format!("https://mcp.example.com/base/{name}/mcp").into();
        wanted["resource_name"] = name.into();
        wanted["bearer_methods_supported"] = json!(["header"]);
        let path = format!("{WELL_KNOWN}/base/{name}/mcp");
        for request in [
            Request::get(&path),
            Request::get(&format!("{path}/")),
            Request::get(&path).header("Origin", "https://evil.example").header("Authorization", "Bearer junk"),
            Request::get(&path).header("Origin", "null").header("Sec-Fetch-Site", "cross-site"),
            Request::get(&path).header("Host", "mcp.example.com").header("X-Forwarded-Host", "evil.example"),
            Request::get(&path).header("X-Forwarded-Host", "a\", error=\"x").header("X-Forwarded-Proto", "http"),
        ] {
            let response = request.send(gateway.address());
            assert_eq!(response.status(), 200, "{response:?}");
            assert_eq!(response.json(), wanted);
            assert_eq!(response.header("content-type"), Some("application/json"));
            assert_eq!(response.header("access-control-allow-origin"), Some("*"));
            assert!(response.header("cache-control").unwrap().contains("max-age="), "{response:?}");
            assert!(response.header("vary").is_none() && response.header("www-authenticate").is_none());
        }
        let preflight = Request::new("OPTIONS", &path).header("Origin", "https://app.example");
        let preflight = preflight.header("Access-Control-Request-Headers", "mcp-protocol-version");
        let preflight = preflight.header("Access-Control-Request-Method", "GET").send(gateway.address());
        assert_eq!((preflight.status(), preflight.header("access-control-allow-origin")), (204, Some("*")));
        assert_eq!(preflight.header("access-control-allow-headers"), Some("*"));
        let refused = Request::post(&path, "{}").send(gateway.address());
        assert_eq!((refused.status(), refused.header("connection")), (405, Some("close")), "its body is left unread");
    }
    assert!(record.all().is_empty(), "no child was started");
}

/// R:A16, R:A25, R:A27, C:B97: nothing is said of a server that takes keys only, nor at the root where it would be true of one of
/// several; the gateway is no authorization server.
#[test]
fn there_is_no_document_that_would_not_be_true() {
    let (record, key) = (Record::new(), Key::of("key"));
    let gateway = start(&record, &key);
    for path in [
        WELL_KNOWN,
        &format!("{WELL_KNOWN}/"),
        &format!("{WELL_KNOWN}/base/keys/mcp"),
        &format!("{WELL_KNOWN}/keys/mcp"),
        &format!("{WELL_KNOWN}/files/mcp"),
        &format!("{WELL_KNOWN}/base/files"),
        &format!("{WELL_KNOWN}/base/files/mcp//"),
        &format!("{WELL_KNOWN}/base/../base/files/mcp"),
        &format!("{WELL_KNOWN}%2Fbase/files/mcp"),
        &format!("/base{WELL_KNOWN}/files/mcp"),
        &format!("/base/files/mcp{WELL_KNOWN}"),
        "/.well-known/oauth-authorization-server",
        "/.well-known/openid-configuration",
        "/register",
        "/authorize",
        "/token",
    ] {
        let response = get(&gateway, path);
        assert_eq!(response.status(), 404, "{path}: {response:?}");
        assert_eq!(response.header("content-type"), Some("application/json"), "{path}: {response:?}");
    }
}

/// R:A15, R:A16, C:B97: with a single server that takes tokens its document is at the root, too, and names its own URL.
#[test]
fn a_single_resource_is_at_the_root_too() {
    let key = Key::of("key");
    let auth =
        format!("[auth]\nmethods = [\"oauth\"]\n{}[auth.issuers.a]\nissuer = \"http://127.0.0.1:1\"\n", key.toml(""));
    let keys = Server::fake("keys").key("auth.methods = [\"api_key\"]").key("check_on_start = false");
    let files = Server::fake("files").key("check_on_start = false").key("legacy_sse = true");
    let listen = "[listen]\npublic_url = \"http://127.0.0.1:8080\"\n";
    let gateway = Gateway::start(&format!("{listen}{auth}{}{}", keys.toml(), files.toml()));
    let document = get(&gateway, &format!("{WELL_KNOWN}/files/mcp")).json();
    assert_eq!(document["resource"], "http://127.0.0.1:8080/files/mcp");
    assert_eq!(get(&gateway, WELL_KNOWN).json(), document);
    assert_eq!(get(&gateway, &format!("{WELL_KNOWN}/keys/mcp")).status(), 404);
}

/// F:D13, R:A17: any page may read the documents, under a name that is served here only.
#[test]
fn the_documents_obey_the_host_rule() {
    let (record, key) = (Record::new(), Key::of("key"));
    let gateway = start(&record, &key);
    let path = format!("{WELL_KNOWN}/base/files/mcp");
    for method in ["GET", "OPTIONS", "POST"] {
        for host in ["evil.test", "evil.test:8080", "mcp.example.com.evil.test"] {
            let response = Request::new(method, &path).header("Host", host).send(gateway.address());
            assert_eq!(response.status(), 403, "{method} {host}: {response:?}");
            assert!(response.header("access-control-allow-origin").is_none());
        }
    }
    gateway.await_event("refused", |event| event["reason"] == "host" && event["value"] == "evil.test");
    gateway.await_metric("http_responses_total", &[("route", "well_known"), ("code", "403")], |count| count == 9.0);
}

/// R:A02, R:A03, R:A04, R:A05, R:A11, R:A28, F:E07, C:B94, C:B98, C:B112: without a token every method and address is a 401
/// with one challenge, which names no error, where the metadata is, and what to ask for; whatever the request claims.
#[test]
fn who_shows_nothing_is_told_where_to_ask() {
    let (record, key) = (Record::new(), Key::of("key"));
    let gateway = start(&record, &key);
    for (name, scope) in [("files", Some("use")), ("mail", None), ("both", Some("use"))] {
        let path = format!("/base/{name}/mcp");
        for request in [
            begin(&path),
            begin(&format!("{path}/")),
            begin(&path).header("Mcp-Session-Id", "x"),
            Request::post(&path, "{").with("Content-Type", "text/plain"),
            Request::get(&path).header("Accept", "text/event-stream"),
            Request::get(&path)
                .header("Accept", "text/event-stream")
                .header("Mcp-Session-Id", "x")
                .header("Last-Event-ID", "y"),
            Request::new("DELETE", &path).header("Mcp-Session-Id", "x"),
            Request::new("PUT", &path),
            begin(&path).header("Authorization", "Basic Z2FuZ3dheQ=="),
            begin(&format!("{path}?access_token=query-canary&x=1")),
            begin(&path).header("X-Forwarded-Host", "a\", error=\"x").header("Forwarded", "host=evil.example"),
            begin(&path).header("Host", "mcp.example.com"),
        ] {
            let response = request.send(gateway.address());
            assert_eq!(response.status(), 401, "{response:?}");
            let challenge = challenge(&response);
            assert_eq!(challenge.get("scope").map(String::as_str), scope);
            assert!(!challenge.contains_key("error") && !challenge.contains_key("error_description"), "{challenge:?}");
            let document = get(&gateway, path_of(&challenge["resource_metadata"]));
            assert_eq!(document.json()["resource"], format!("https://mcp.example.com/base/{name}/mcp"));
            assert!(response.json().get("id").is_none());
        }
    }
    // Clients of HTTP+SSE compare the document with the URL they know.
    for request in [
        Request::get("/base/files/sse").header("Accept", "text/event-stream"),
        Request::post("/base/files/messages?session=x", "{}"),
    ] {
        let response = request.send(gateway.address());
        assert_eq!(response.status(), 401, "{response:?}");
        let document = get(&gateway, path_of(&challenge(&response)["resource_metadata"]));
        assert_eq!(document.json()["resource"], "https://mcp.example.com/base/files/sse");
    }
    let page = Request::get("/base/files/mcp").header("Accept", "text/html").send(gateway.address());
    assert!(page.text().contains("log in"), "{page:?}");
    assert!(record.all().is_empty(), "no child was started");
    assert!(!gateway.stderr().contains("query-canary"), "a query is not logged");
}

/// R:A09, R:A10: two credentials are a 400, in two fields or one of them in the query.
#[test]
fn two_credentials_are_a_bad_request() {
    let (record, key) = (Record::new(), Key::of("key"));
    let gateway = start(&record, &key);
    let (name, good) = key.header();
    for server in ["files", "keys", "both"] {
        let path = format!("/base/{server}/mcp");
        for request in [
            begin(&path).header(name, good).header(name, good),
            begin(&path).header(name, "Basic eA==").header(name, good),
            begin(&format!("{path}?a=b&access_token=x")).header(name, good),
            begin(&format!("{path}?access_token")).header(name, good),
            Request::get(&format!("{path}?access_token=")).header("Accept", "text/event-stream").header(name, good),
        ] {
            let response = request.send(gateway.address());
            assert_eq!(response.status(), 400, "{server}: {response:?}");
            if server == "keys" {
                assert!(response.header("www-authenticate").is_none(), "{response:?}");
                continue;
            }
            let challenge = challenge(&response);
            assert_eq!(challenge["error"], "invalid_request");
            assert!(challenge["resource_metadata"].contains(server));
        }
        if server != "files" {
            let fine =
                begin(&format!("{path}?access_tokens=x&xaccess_token=y")).header(name, good).send(gateway.address());
            assert_eq!(fine.status(), 200, "{fine:?}");
        }
    }
}

/// R:A01, R:A03: a server that takes keys says nothing of metadata; one that takes both says it of keys too.
#[test]
fn keys_are_told_apart_by_nobody() {
    let (record, key) = (Record::new(), Key::of("key"));
    let gateway = start(&record, &key);
    let bad = format!("Bearer gangway_{}", "B".repeat(43));
    let response = begin("/base/keys/mcp").header("Authorization", &bad).send(gateway.address());
    assert_eq!(response.header("www-authenticate"), Some("Bearer error=\"invalid_token\""));
    assert_eq!(begin("/base/keys/mcp").send(gateway.address()).header("www-authenticate"), Some("Bearer"));
    let response = begin("/base/both/mcp").header("Authorization", &bad).send(gateway.address());
    assert_eq!(response.status(), 401);
    let challenge = challenge(&response);
    assert_eq!(challenge["error"], "invalid_token");
    assert_eq!(challenge["error_description"], "The API key is not accepted");
    assert_eq!(path_of(&challenge["resource_metadata"]), format!("{WELL_KNOWN}/base/both/mcp"));
    let (name, good) = key.header();
    assert_eq!(begin("/base/both/mcp").header(name, good).send(gateway.address()).status(), 200);
}

/// R:A26, C:B101: what could not be safe or true is refused at the start.
#[test]
fn tokens_need_a_public_url_that_is_safe() {
    let refused = |listen: &str| {
        let auth = "[auth]\nmethods = [\"oauth\"]\n[auth.issuers.a]\nissuer = \"https://as.example.com\"\n";
        let toml = format!("[listen]\n{listen}\n{auth}{}", Server::fake("fake").toml());
        Gateway::try_start(&toml, |_| {}).err().expect("no start").stderr
    };
    assert!(refused("").contains("public_url"), "none");
    assert!(refused("public_url = \"http://mcp.example.com\"").contains("https"), "plain HTTP");
}

/// C:B96, R:A12, R:A16: what tokens are issued for is compared to the byte. A URL that is written with a slash at its end
/// has none in the document, and a token for the form with a slash counts only where that is listed.
#[test]
fn a_slash_at_the_end_counts_only_where_it_is_listed() {
    let key = SigningKey::es256("a");
    let issuer = Issuer::start(&[&key]);
    let start = |audiences: &str| {
        let server = Server::fake("fake").key("path = \"/fake/mcp/\"").key("check_on_start = false");
        Gateway::start(&format!(
            "[listen]\npublic_url = \"https://mcp.example.com/\"\n[auth]\nmethods = [\"oauth\"]\n{}{}",
            issuer.toml("main", audiences),
            server.toml()
        ))
    };
    let (bare, slash) = ("https://mcp.example.com/fake/mcp", "https://mcp.example.com/fake/mcp/");
    let origin = "https://mcp.example.com";
    let both = format!("audiences = [\"{bare}\", \"{slash}\"]");
    let only_origin = format!("audiences = [\"{origin}\"]");
    for (audiences, counted) in [("", &[bare][..]), (&both, &[bare, slash]), (&only_origin, &[origin])] {
        let gateway = start(audiences);
        assert_eq!(get(&gateway, &format!("{WELL_KNOWN}/fake/mcp")).json()["resource"], bare);
        for audience in [bare, slash, origin, "https://mcp.example.com/"] {
            let token = format!("Bearer {}", key.token(&key.header(), &issuer.claims(audience)));
            for path in ["/fake/mcp", "/fake/mcp/"] {
                let response = begin(path).header("Authorization", &token).send(gateway.address());
                let expected = if counted.contains(&audience) { 200 } else { 401 };
                assert_eq!(response.status(), expected, "{audiences}: {audience} at {path}: {response:?}");
            }
        }
    }
}

/// A reload that takes an issuer away changes documents and challenges from then on.
#[test]
fn documents_follow_the_configuration() {
    let toml = |issuers: &str, scopes: &str| {
        let auth = format!("[auth]\nmethods = [\"oauth\"]\nscopes = [{scopes}]\n{issuers}");
        let listen = "[listen]\npublic_url = \"https://mcp.example.com\"\n";
        format!("{listen}{auth}{}", Server::fake("fake").key("check_on_start = false").toml())
    };
    let one = "[auth.issuers.one]\nissuer = \"https://one.example.com\"\n";
    let two = "[auth.issuers.two]\nissuer = \"https://two.example.com\"\n";
    let gateway = Gateway::start(&toml(&format!("{one}{two}"), "\"a\""));
    let document = || -> Value { get(&gateway, &format!("{WELL_KNOWN}/fake/mcp")).json() };
    assert_eq!(document()["authorization_servers"], json!(["https://one.example.com", "https://two.example.com"]));
    assert_eq!(gateway.reload(&toml(two, "\"b\", \"c\""))["event"], "reload");
    assert_eq!(document()["authorization_servers"], json!(["https://two.example.com"]));
    assert_eq!(document()["scopes_supported"], json!(["b", "c"]));
    assert_eq!(challenge(&begin("/fake/mcp").send(gateway.address()))["scope"], "b c");
}
