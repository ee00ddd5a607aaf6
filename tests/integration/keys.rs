//! API keys: who may come in, where to, until when, and to which sessions.

use std::time::Duration;

use serde_json::json;

use crate::caller_key::Key;
use crate::child::{Record, Server};
use crate::client::{Connection, Request, Response};
use crate::gateway::Gateway;
use crate::session::{Exchange, Session, initialize};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// The key of this name: its text, and its table with further lines.
fn key(name: &str, lines: &str) -> (String, String) {
    let key = Key::of(name);
    (key.authorization.strip_prefix("Bearer ").unwrap().to_owned(), key.toml(lines))
}

/// A gateway with keys; two servers, `one` and `two`, which record what they read.
fn start(keys: &[&str], record: &Record) -> Gateway {
    let server = |name| {
        let server = Server::fake(name).option("--record", record.path());
        server.key("check_on_start = false").key("pool.min_idle = 0").toml()
    };
    Gateway::start(&format!("[auth]\nmethods = [\"api_key\"]\n{}{}{}", keys.concat(), server("one"), server("two")))
}

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

fn begin(path: &str) -> Request {
    Request::post(path, initialize("2025-11-25", json!({})).to_string())
}

#[track_caller]
fn open(gateway: &Gateway, path: &str, key: &str) -> Session {
    Session::open_with(gateway, path, "2025-11-25", json!({}), &[("Authorization", &bearer(key))])
}

#[track_caller]
fn assert_challenged(response: &Response, challenge: &str, what: &str) {
    assert_eq!(response.status(), 401, "{what}: {response:?}");
    let challenges: Vec<&str> = response.head.all("www-authenticate").collect();
    assert_eq!(challenges, [challenge], "{what}: {response:?}");
    let answer = response.json();
    assert_eq!(answer["error"]["code"], 401, "{what}: {answer}");
    assert!(answer.get("id").is_none(), "{what}: the body was not read: {answer}");
}

/// F:C09, C:B98, C:B112: without a good key every method is a 401 with one Bearer challenge,
/// whatever else is wrong with the request; nothing is started, and no body is waited for.
#[test]
fn nobody_comes_in_without_a_key() {
    let record = Record::new();
    let (good, table) = key("good", "");
    let gateway = start(&[&table], &record);
    let wrong = bearer(&format!("gangway_{}", "B".repeat(43)));
    let nearly = bearer(&format!("{}B", &good[..good.len() - 1]));
    let cases: [(&str, Option<&str>, &str); 12] = [
        ("nothing", None, "Bearer"),
        ("an empty field", Some(""), "Bearer"),
        ("Basic", Some("Basic Z2FuZ3dheQ=="), "Bearer"),
        ("the key alone", Some(&good), "Bearer"),
        ("another scheme with the key", Some(&format!("Key {good}")), "Bearer"),
        ("another key", Some(&wrong), r#"Bearer error="invalid_token""#),
        ("nearly the key", Some(&nearly), r#"Bearer error="invalid_token""#),
        ("half the key", Some(&bearer(&good[..30])), r#"Bearer error="invalid_token""#),
        ("the key twice", Some(&bearer(&format!("{good}{good}"))), r#"Bearer error="invalid_token""#),
        ("the key and more", Some(&bearer(&format!("{good}, {good}"))), r#"Bearer error="invalid_token""#),
        ("the hash", Some(&bearer(&table[table.find("sha256").unwrap()..][..71])), r#"Bearer error="invalid_token""#),
        ("junk", Some("Bearer junk"), r#"Bearer error="invalid_token""#),
    ];
    for (what, shown, challenge) in cases {
        let show =
            |request: Request| shown.into_iter().fold(request, |request, shown| request.header("Authorization", shown));
        for path in ["/one/mcp", "/one/mcp/"] {
            for request in [
                begin(path),
                Request::get(path).header("Accept", "text/event-stream").header("Mcp-Session-Id", "x"),
                Request::new("DELETE", path),
                Request::new("PUT", path),
                Request::post(path, "{").with("Content-Type", "text/plain"),
            ] {
                assert_challenged(&show(request).send(gateway.address()), challenge, what);
            }
        }
    }
    // The key belongs in one place.
    for request in [
        begin(&format!("/one/mcp?key={good}&access_token={good}")),
        begin("/one/mcp").header("X-Api-Key", &good),
        begin("/one/mcp").header("Cookie", &format!("key={good}")),
        begin("/one/mcp").header("Proxy-Authorization", &bearer(&good)),
    ] {
        assert_challenged(&request.send(gateway.address()), "Bearer", "another place");
    }
    let mut connection = Connection::open(gateway.address());
    connection.request(&Request::post("/one/mcp", "").with("Content-Length", "8000000"));
    assert_eq!(connection.head().status, 401, "answered without the body");
    assert!(record.all().is_empty(), "no child was started");
    assert_eq!(gateway.metrics().count("sessions_opened_total", &[]), 0.0);
    gateway.await_metric("auth_checks_total", &[("method", "api_key"), ("result", "missing")], |count| count > 50.0);
    gateway.await_metric("auth_checks_total", &[("method", "api_key"), ("result", "invalid")], |count| count > 50.0);
}

/// RFC 9112 section 9.6: whoever is refused for the head alone is told that the connection ends, since its body is not
/// waited for. Clients that log in after a 401 would lose their next request.
#[test]
fn a_refusal_before_the_body_says_that_the_connection_ends() {
    let (good, table) = key("good", "");
    let gateway = start(&[&table], &Record::new());
    let late = |path: &str| Request::post(path, "").with("Content-Length", "100");
    let known = |request: Request| request.header("Authorization", &bearer(&good));
    for (request, status) in [
        (late("/one/mcp"), 401),
        (late("/one/mcp").with("Host", "evil.example"), 403),
        (late("/nowhere"), 404),
        (known(late("/one/mcp")).with("Content-Type", "text/plain"), 415),
        (known(late("/one/mcp")).with("Accept", "image/png"), 406),
        (known(Request::new("PUT", "/one/mcp").header("Content-Length", "100")), 405),
    ] {
        let mut connection = Connection::open(gateway.address());
        connection.request(&request);
        let head = connection.response().head;
        assert_eq!((head.status, head.header("connection")), (status, Some("close")), "{request:?}");
        connection.await_close();
    }
    let mut connection = Connection::open(gateway.address());
    for _ in 0..2 {
        connection.request(&Request::get("/one/mcp"));
        let head = connection.response().head;
        assert_eq!((head.status, head.header("connection")), (401, None), "there was no body");
    }
}

/// RFC 9110 section 11: the scheme in any case; several `Authorization` fields are a 400, also with a good one.
#[test]
fn a_good_key_is_shown_once() {
    let (good, table) = key("good", "");
    let record = Record::new();
    let gateway = start(&[&table], &record);
    for shown in [bearer(&good), format!("bearer {good}"), format!("BEARER   {good}  ")] {
        let response = begin("/one/mcp").header("Authorization", &shown).send(gateway.address());
        assert_eq!(response.status(), 200, "{shown}: {response:?}");
    }
    let twice = begin("/one/mcp").header("Authorization", &bearer(&good)).header("Authorization", &bearer(&good));
    let response = twice.send(gateway.address());
    assert_eq!(response.status(), 400, "{response:?}");
    assert!(response.header("www-authenticate").is_none(), "{response:?}");
}

/// A key opens the servers it names until the end of its last day; a refusal does not tell
/// which it was.
#[test]
fn a_key_has_servers_and_a_last_day() {
    let (every, every_table) = key("every", "expires = 2999-12-31");
    let (one, one_table) = key("only-one", "servers = [\"one\"]");
    let (past, past_table) = key("past", "expires = 2020-02-29");
    let record = Record::new();
    let gateway = start(&[&every_table, &one_table, &past_table], &record);
    let ask = |path: &str, key: &str| begin(path).header("Authorization", &bearer(key)).send(gateway.address());
    for (path, key, status) in [
        ("/one/mcp", &every, 200),
        ("/two/mcp", &every, 200),
        ("/one/mcp", &one, 200),
        ("/two/mcp", &one, 401),
        ("/one/mcp", &past, 401),
        ("/two/mcp", &past, 401),
    ] {
        assert_eq!(ask(path, key).status(), status, "{path} {key}");
    }
    let challenge = r#"Bearer error="invalid_token""#;
    let closed = ask("/two/mcp", &one);
    let expired = ask("/one/mcp", &past);
    let unknown = ask("/one/mcp", &format!("gangway_{}", "B".repeat(43)));
    for response in [&closed, &expired, &unknown] {
        assert_challenged(response, challenge, "refused");
        assert_eq!(response.body, unknown.body);
    }
    for result in ["ok", "forbidden", "expired"] {
        gateway.await_metric("auth_checks_total", &[("result", result)], |count| count > 0.0);
    }
}

/// R:S08, R:S09, C:B107, F:C08: a session belongs to its server and its key; with any other it is the same
/// 404 as one that never was, and its owner notices nothing.
#[test]
fn a_session_belongs_to_its_key_and_server() {
    let record = Record::new();
    let (alice, alice_table) = key("alice", "");
    let (bob, bob_table) = key("bob", "");
    let gateway = start(&[&alice_table, &bob_table], &record);
    let session = open(&gateway, "/one/mcp", &alice);
    let mut stream = session.get();
    let mut call = session.send_call_with_token(1, "hold", json!({ "gate": "g" }), "t");
    session.call(2, "await_held", json!({ "gate": "g" }));
    let before = record.lines().len();
    let foreign = |request: Request| request.with("Authorization", &bearer(&bob)).send(gateway.address());
    let elsewhere = Session { path: "/two/mcp".to_owned(), ..session.clone() };
    let unknown = Session { id: format!("{}-{}", &session.id[..6], "0".repeat(32)), ..session.clone() };
    let never = unknown.post_request(PING).send(gateway.address());
    assert_eq!(never.status(), 404, "{never:?}");
    let withdrawal = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    let answers = [
        foreign(session.post_request(PING)),
        foreign(session.post_request(withdrawal)),
        foreign(session.post_request(initialize("2025-11-25", json!({})).to_string())),
        foreign(session.get_request()),
        foreign(session.get_request().header("Last-Event-ID", stream.next_event().id.as_deref().unwrap())),
        foreign(session.delete_request()),
        elsewhere.post_request(PING).send(gateway.address()),
        elsewhere.get_request().send(gateway.address()),
        elsewhere.delete_request().send(gateway.address()),
    ];
    for response in &answers {
        assert_eq!(response.status(), 404, "{response:?}");
        let (mut answer, mut wanted) = (response.json(), never.json());
        for message in [&mut answer, &mut wanted] {
            message.as_object_mut().unwrap().remove("id");
        }
        assert_eq!(answer, wanted);
    }
    assert_eq!(record.lines().len(), before, "nothing of it reached the child");
    // Without a key the id is worth nothing.
    let keyless = session.post_request(PING).without("Authorization").send(gateway.address());
    assert_challenged(&keyless, "Bearer", "the session's id without a key");
    assert!(call.connection.is_quiet_for(Duration::from_millis(50)));
    session.call(3, "release", json!({ "gate": "g" }));
    assert_eq!(call.finish().message()["id"], 1);
    session.call(4, "notify", json!({ "method": "notifications/tools/list_changed" }));
    drop(stream);
}

/// R:S09: nobody's session is not somebody's: a server for all beside one with keys.
#[test]
fn an_open_server_beside_one_with_keys() {
    let (good, table) = key("good", "");
    let gateway = Gateway::start(&format!(
        "[auth]\nmethods = [\"api_key\"]\n{table}{}{}",
        Server::fake("closed").toml(),
        Server::fake("open").key("auth.methods = [\"none\"]").toml()
    ));
    assert_eq!(begin("/closed/mcp").send(gateway.address()).status(), 401);
    let session = Session::open(&gateway, "/open/mcp", "2025-11-25", json!({}));
    let closed = Session { path: "/closed/mcp".to_owned(), ..session.clone() };
    let response = closed.post_request(PING).header("Authorization", &bearer(&good)).send(gateway.address());
    assert_eq!(response.status(), 404, "{response:?}");
    // A key nobody asks for is no principal.
    let with_key = session.post_request(PING).header("Authorization", &bearer(&good)).send(gateway.address());
    assert_eq!(with_key.status(), 200, "{with_key:?}");
}

/// F:C09, C:B57, C:B119: a key has so many sessions and no more; others are not concerned.
#[test]
fn a_key_has_a_number_of_sessions() {
    let record = Record::new();
    let (few, few_table) = key("few", "sessions = 2");
    let (other, other_table) = key("other", "");
    let gateway = start(&[&few_table, &other_table], &record);
    let sessions = [(); 2].map(|()| open(&gateway, "/one/mcp", &few));
    for path in ["/one/mcp", "/two/mcp"] {
        let response = begin(path).header("Authorization", &bearer(&few)).send(gateway.address());
        assert_eq!(response.status(), 429, "{response:?}");
        assert!(response.header("retry-after").unwrap().parse::<u32>().unwrap() > 0, "{response:?}");
        assert!(response.header("mcp-session-id").is_none(), "{response:?}");
        let answer = response.json();
        assert_eq!((&answer["id"], &answer["error"]["data"]["reason"]), (&json!("initialize"), &json!("sessions")));
    }
    assert_eq!(record.all().len(), 2, "what is refused starts no child");
    open(&gateway, "/one/mcp", &other);
    assert_eq!(sessions[0].delete().status(), 204);
    open(&gateway, "/one/mcp", &few);
    assert_eq!(sessions[1].post(PING).head.status, 200);
}

/// R:H24, C:B92: neither a preflight nor the page for browsers asks for a key, and the page shows none.
#[test]
fn a_preflight_and_the_page_need_no_key() {
    let (good, table) = key("good", "");
    let record = Record::new();
    let gateway = start(&[&table], &record);
    let preflight = Request::new("OPTIONS", "/one/mcp")
        .header("Origin", "http://localhost:6274")
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", "authorization");
    let response = preflight.send(gateway.address());
    assert_eq!(response.status(), 204, "{response:?}");
    let refused = begin("/one/mcp").header("Origin", "http://localhost:6274").send(gateway.address());
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.header("access-control-allow-origin"), Some("http://localhost:6274"), "{refused:?}");
    assert!(refused.header("access-control-expose-headers").unwrap().contains("WWW-Authenticate"), "{refused:?}");
    let page = Request::get("/one/mcp").header("Accept", "text/html").send(gateway.address());
    assert_eq!(page.status(), 200);
    assert!(!page.text().contains(&good) && !page.text().contains("sha256"));
}

/// C:B111: a key, in whatever place it was shown, stands in no log line and no answer, and
/// never reaches a child; nor does the session's id.
#[test]
fn a_key_stays_at_the_door() {
    let record = Record::new();
    let (good, table) = key("good", "");
    let gateway = start(&[&table], &record);
    let wrong = format!("gangway_{}", "C".repeat(43));
    begin("/one/mcp").header("Authorization", &bearer(&wrong)).send(gateway.address());
    begin(&format!("/one/mcp?key={wrong}")).send(gateway.address());
    begin("/one/mcp")
        .header("Authorization", &bearer(&good))
        .header("Origin", &format!("http://{wrong}"))
        .send(gateway.address());
    let session = open(&gateway, "/one/mcp", &good);
    let dump = session.call(1, "dump", json!({})).to_string();
    let stray = Exchange::send(session.address, &session.post_request("{").header("X-Other", &wrong)).finish();
    session.delete();
    gateway.await_event("session_close", |_| true);
    let metrics = gateway.metrics().to_string();
    let read: String = record.lines().concat();
    for (place, text) in [
        ("the log", gateway.stderr()),
        ("the numbers", metrics),
        ("the child", dump),
        ("the child's stdin", read),
        ("an answer", String::from_utf8(stray.body).unwrap()),
    ] {
        for secret in [&good, &session.id] {
            assert!(!text.contains(secret.as_str()), "{place} shows {secret}: {text}");
        }
    }
    assert!(!gateway.stderr().contains(&format!("Bearer {wrong}")));
}
