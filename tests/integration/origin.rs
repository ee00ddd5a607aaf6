//! Who may call from where: `Host`, `Origin` and what browsers are told about them.

use serde_json::json;

use crate::child::{Record, Server};
use crate::client::{Connection, Request};
use crate::gateway::Gateway;
use crate::session::{Session, initialize};

const APP: &str = "https://app.example.com";

/// A gateway on loopback that knows one foreign host and one foreign origin.
fn listed(record: &Record) -> Gateway {
    let server = Server::fake("fake").option("--record", record.path()).key("legacy_sse = true");
    let server = server.key("check_on_start = false").key("pool.min_idle = 0").toml();
    Gateway::start(&format!(
        "[listen]\nhealth = true\nallowed_hosts = [\"mcp.example.com\"]\nallowed_origins = [\"{APP}\"]\n{server}"
    ))
}

/// R:H20, F:D13, C:B88: a foreign origin is refused on every method and path, before the key, the body and
/// any child; no origin is no browser and passes.
#[test]
fn a_foreign_origin_is_refused_everywhere() {
    let record = Record::new();
    let gateway = listed(&record);
    let paths =
        ["/fake/mcp", "/fake/sse", "/fake/messages", "/livez", "/nothing", "/.well-known/oauth-protected-resource"];
    for path in paths {
        for method in ["POST", "GET", "DELETE", "OPTIONS", "PUT", "HEAD"] {
            // A body is announced and never sent: the answer must not wait for it.
            let request = Request::new(method, path).header("Origin", "http://evil.example");
            let mut connection = Connection::open(gateway.address());
            connection.request(&request.header("Content-Length", "1000"));
            let head = connection.head();
            assert_eq!(head.status, 403, "{method} {path}: {head:?}");
            assert!(head.header("access-control-allow-origin").is_none(), "{method} {path}: {head:?}");
        }
    }
    for path in ["/metrics", "/livez", "/readyz", "/servers/fake/readyz", "/nothing"] {
        let request = Request::get(path).header("Origin", "http://evil.example");
        assert_eq!(request.send(gateway.admin()).status(), 403, "{path}");
        assert_eq!(Request::get(path).with("Host", "evil.example").send(gateway.admin()).status(), 403, "{path}");
    }
    assert!(record.all().is_empty(), "nothing refused starts a child");
    let refused = gateway.await_event("refused", |event| event["reason"] == "origin");
    assert_eq!(refused["key"], "listen.allowed_origins", "{refused}");
    let answer =
        Request::post("/fake/mcp", "{}").header("Origin", "http://evil.example").send(gateway.address()).json();
    assert_eq!(answer["error"]["code"], 403, "{answer}");
    assert!(answer.get("id").is_none() && !answer.to_string().contains("evil"), "{answer}");
}

/// R:H20, F:D13, C:B88: an origin is scheme, host and port together; only the listed and, on a loopback bind,
/// those of this machine pass.
#[test]
fn origins_are_compared_whole() {
    let record = Record::new();
    let gateway = listed(&record);
    let begin = initialize("2025-11-25", json!({})).to_string();
    let status = |origins: &[&str]| {
        let request =
            origins.iter().fold(Request::post("/fake/mcp", &begin), |request, origin| request.header("Origin", origin));
        request.send(gateway.address()).status()
    };
    for good in [
        APP,
        "HTTPS://APP.EXAMPLE.COM",
        "https://app.example.com:443",
        "http://localhost",
        "http://localhost:6274",
        "https://localhost:3000",
        "http://127.0.0.1:1",
        "http://127.9.9.9",
        "http://[::1]:8080",
        "http://[::ffff:127.0.0.1]",
    ] {
        assert_eq!(status(&[good]), 200, "{good}");
    }
    for bad in [
        "https://evil.example",
        "https://app.example.com.evil.example",
        "https://evil.example/app.example.com",
        "http://app.example.com",
        "https://app.example.com:8443",
        "https://app.example.com/",
        "https://app.example.com.",
        "https://x@app.example.com",
        "app.example.com",
        "null",
        "",
        "*",
        "file://",
        "http://localhost.evil.example",
        "http://localhost:x",
        "http://localhost.",
        "http://127.0.0.1.evil.example",
        "http://10.0.0.1",
        "http://[::2]",
        "ftp://localhost",
        "chrome-extension://abcdefgh",
        "https://app.example.com https://app.example.com",
        "https://app.example.com, https://evil.example",
        "https://xn--pp-eka.example.com",
        "data:",
        "about:blank",
    ] {
        assert_eq!(status(&[bad]), 403, "{bad}");
    }
    assert_eq!(status(&[APP, APP]), 403, "two origins are none");
    assert_eq!(status(&[]), 200);
}

/// F:D13: a browser that sends no origin still says when a foreign page asked.
#[test]
fn a_cross_site_fetch_without_an_origin_is_refused() {
    let record = Record::new();
    let gateway = listed(&record);
    for (site, status) in [("cross-site", 403), ("Cross-Site", 403), ("same-origin", 400), ("none", 400)] {
        let response = Request::get("/fake/mcp").header("Sec-Fetch-Site", site).send(gateway.address());
        assert_eq!(response.status(), status, "{site}: {response:?}");
    }
}

/// R:H21, F:D13, C:B90: on a loopback bind the names of this machine and the listed ones are served, in any
/// case and with any port, and any address; every other name is refused, with a log line that says what to do.
#[test]
fn hosts_must_be_known() {
    let record = Record::new();
    let gateway = listed(&record);
    let status = |host: &str| Request::get("/fake/mcp").with("Host", host).send(gateway.address()).status();
    for good in [
        "localhost",
        "LOCALHOST:9999",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:80",
        "[::ffff:127.0.0.1]:8080",
        "10.1.2.3",
        "mcp.example.com",
        "MCP.Example.Com:443",
        "mcp.example.com:80",
    ] {
        assert_eq!(status(good), 400, "{good}: let in, and then told that a session is missing");
    }
    for bad in [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "mcp.example.com.evil.example",
        "mcp.example.com.",
        "localhost.",
        "sub.localhost",
        "127.0.0.1.evil.example",
        "x@localhost",
        "localhost:x",
        "localhost:",
        "localhost:80:80",
        ":80",
        "localhost,evil.example",
        "localhost/x",
        "[::1",
        "[fe80::1%25eth0]",
        "xn--lcalhost-54a",
        "loca\u{131}host",
    ] {
        assert_eq!(status(bad), 403, "{bad}");
    }
    gateway.await_event("refused", |event| {
        event["reason"] == "host"
            && event["key"] == "listen.allowed_hosts"
            && event.to_string().contains("evil.example")
    });
    assert!(record.all().is_empty());
}

/// R:H21, F:D13: exactly one `Host`, in agreement with the target; what is unclear is a 400 and the end of the
/// connection.
#[test]
fn a_request_names_one_host() {
    let record = Record::new();
    let gateway = listed(&record);
    let get = |target: &str, version: &str, fields: &str| {
        let mut connection = Connection::open(gateway.address());
        connection.send(format!("GET {target} HTTP/{version}\r\n{fields}\r\n"));
        let response = connection.response();
        if response.status() == 400 && response.json()["error"]["data"]["reason"] == "host" {
            connection.await_close();
            return 0;
        }
        response.status()
    };
    // 0 stands for: malformed, and the connection closed.
    let cases = [
        ("/fake/mcp", "1.1", "", 0),
        ("/fake/mcp", "1.1", "Host: localhost\r\nHost: localhost\r\n", 0),
        ("/fake/mcp", "1.1", "Host: localhost\r\nHost: evil.example\r\n", 0),
        ("http://evil.example/fake/mcp", "1.1", "Host: localhost\r\n", 0),
        ("http://localhost:81/fake/mcp", "1.1", "Host: localhost:82\r\n", 0),
        ("http://localhost/fake/mcp", "1.1", "Host: localhost\r\n", 400),
        ("http://evil.example/fake/mcp", "1.1", "Host: evil.example\r\n", 403),
        ("/fake/mcp", "1.1", "Host:\r\n", 403),
        ("/fake/mcp", "1.0", "", 403),
        ("/fake/mcp", "1.0", "Host: localhost\r\n", 400),
    ];
    for (target, version, fields, wanted) in cases {
        assert_eq!(get(target, version, fields), wanted, "{target} {version} {fields:?}");
    }
}

/// R:H22, F:D13: a bind that other machines reach needs a decision about who may come in, and knows no
/// loopback names.
#[test]
fn an_open_bind_must_be_asked_for() {
    let server = Server::fake("fake").toml();
    let open = "[listen]\naddress = \"0.0.0.0:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n";
    let failed = Gateway::try_start(&format!("{open}{server}"), |_| {}).err().expect("no start without [auth]");
    assert_eq!(failed.status.code(), Some(78), "{failed:?}");
    assert!(failed.stderr.contains("auth.methods"), "{failed:?}");
    let gateway = Gateway::start(&format!("{open}[auth]\nmethods = [\"none\"]\n{server}"));
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], gateway.address().port()));
    let status = |name: &str, value: &str| Request::get("/fake/mcp").with(name, value).send(address).status();
    assert_eq!(status("Host", "localhost"), 403, "a rebound name is no better for being called localhost");
    assert_eq!(status("Host", "127.0.0.1"), 400);
    assert_eq!(status("Host", "192.0.2.7:8080"), 400);
    assert_eq!(status("Origin", "http://localhost:6274"), 403);
    assert_eq!(status("Origin", "http://127.0.0.1"), 403);
}

/// C:B90: the host and the origin of `public_url` are known, and its path stands before every route.
#[test]
fn the_public_url_is_known() {
    let gateway = Gateway::start(&format!(
        "[listen]\npublic_url = \"https://public.example/base\"\n[auth]\nmethods = [\"none\"]\n{}",
        Server::fake("fake").toml()
    ));
    let status =
        |path: &str, name: &str, value: &str| Request::get(path).with(name, value).send(gateway.address()).status();
    assert_eq!(status("/base/fake/mcp", "Host", "public.example"), 400);
    assert_eq!(status("/base/fake/mcp", "Host", "public.example:443"), 400);
    assert_eq!(status("/base/fake/mcp", "Origin", "https://public.example"), 400);
    assert_eq!(status("/base/fake/mcp", "Origin", "http://public.example"), 403);
    assert_eq!(status("/fake/mcp", "Host", "public.example"), 404);
    assert_eq!(status("/basefake/mcp", "Host", "public.example"), 404);
}

/// R:H24, F:D14, C:B92: a preflight needs no key, opens no session and starts no child; it allows all an MCP
/// client sends, for the one origin that asked.
#[test]
fn a_preflight_allows_what_clients_send() {
    let record = Record::new();
    let gateway = listed(&record);
    let asked = "authorization, content-type, accept, mcp-protocol-version, mcp-session-id, last-event-id, mcp-method, mcp-name, Mcp-Param-Region";
    let request = Request::new("OPTIONS", "/fake/mcp")
        .header("Origin", APP)
        .header("Access-Control-Request-Method", "DELETE")
        .header("Access-Control-Request-Headers", &format!("{asked}, x-other"));
    let response = request.send(gateway.address());
    assert_eq!(response.status(), 204, "{response:?}");
    assert!(response.body.is_empty());
    let value = |name: &str| response.header(name).unwrap_or_else(|| panic!("no {name}: {response:?}")).to_lowercase();
    assert_eq!(response.header("access-control-allow-origin"), Some(APP));
    let (allowed, methods) = (value("access-control-allow-headers"), value("access-control-allow-methods"));
    let allowed: Vec<&str> = allowed.split(", ").collect();
    for name in asked.to_lowercase().split(", ") {
        assert!(allowed.contains(&name), "{name} in {allowed:?}");
    }
    assert!(!allowed.contains(&"x-other") && !allowed.contains(&"*"), "{allowed:?}");
    for method in ["get", "post", "delete"] {
        assert!(methods.contains(method), "{methods}");
    }
    assert!(value("vary").contains("origin"));
    assert!(response.header("access-control-allow-credentials").is_none());
    assert!(record.all().is_empty());
}

/// R:H24, F:D14: every answer, errors too, can be read by the listed origin, with the session's id; never by
/// `*`; and without an origin nothing is said.
#[test]
fn answers_can_be_read_by_who_may_call() {
    let record = Record::new();
    let gateway = listed(&record);
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let begin = Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string());
    let cases = [
        (begin, 200),
        (session.post_request("{"), 400),
        (session.post_request("{}").with("Content-Type", "text/plain"), 415),
        (session.get_request().with("Mcp-Session-Id", "x"), 404),
        (Request::new("PUT", "/fake/mcp"), 405),
        (Request::get("/nothing"), 404),
    ];
    for (request, status) in cases {
        let response = request.clone().header("Origin", APP).send(gateway.address());
        assert_eq!(response.status(), status, "{response:?}");
        assert_eq!(response.header("access-control-allow-origin"), Some(APP), "{response:?}");
        let exposed = response.header("access-control-expose-headers").unwrap().to_lowercase();
        for name in ["mcp-session-id", "mcp-protocol-version", "www-authenticate", "retry-after"] {
            assert!(exposed.contains(name), "{name} in {exposed}");
        }
        assert!(response.head.all("vary").any(|value| value.to_lowercase().contains("origin")), "{response:?}");
        let plain = request.send(gateway.address());
        assert_eq!(plain.status(), status);
        assert!(!plain.head.headers.iter().any(|(name, _)| name.starts_with("access-control-")), "{plain:?}");
    }
}

/// F:D15: a client cannot choose the address it is logged with: not by a header its proxy does not write, nor
/// from a peer that is no proxy.
#[test]
fn forwarded_headers_that_disagree_name_nobody() {
    let address = |gateway: &Gateway, id: &str, headers: &[(&str, &str)]| {
        let mut begin = initialize("2025-11-25", json!({}));
        begin["id"] = json!(id);
        let request = Request::post("/fake/mcp", begin.to_string());
        let request = headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        assert_eq!(request.send(gateway.address()).status(), 200, "{headers:?}");
        gateway.await_event("rpc", |event| event["rpc_id"] == id)["client_addr"].clone()
    };
    let appended = ("X-Forwarded-For", "6.6.6.6, 192.0.2.1");
    let forged = ("Forwarded", "for=6.6.6.6");
    let server = Server::fake("fake").key("check_on_start = false").toml();
    let behind = Gateway::start(&format!("[listen]\ntrusted_proxies = [\"127.0.0.1\"]\n{server}"));
    assert_eq!(address(&behind, "one", &[appended]), "192.0.2.1");
    assert_eq!(address(&behind, "other", &[("Forwarded", "for=6.6.6.6, for=192.0.2.2")]), "192.0.2.2");
    assert_eq!(address(&behind, "agreeing", &[appended, ("Forwarded", "for=192.0.2.1")]), "192.0.2.1");
    assert_eq!(address(&behind, "forged", &[appended, forged]), "127.0.0.1");
    let told = behind.await_event("warning", |event| event["key"] == "listen.trusted_proxies");
    assert!(told["warning"].as_str().unwrap().contains("name different clients"), "{told}");

    let open = Gateway::start(&server);
    assert_eq!(address(&open, "foreign", &[forged]), "127.0.0.1");
    open.await_event("warning", |event| {
        event["warning"].as_str().is_some_and(|text| text.contains("no trusted proxy"))
    });
}
