//! The shipped example for the public internet, as it is: each thing a stranger or a network may do that would be critical
//! there, tried once. Every test has a gateway of its own, and comes as if through the proxy it trusts. What concerns
//! tokens is in `internet_callers`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::challenge::challenge;
use crate::child::{Record, Server};
use crate::client::{Connection, Request, Response};
use crate::gateway::Gateway;
use crate::issuer::{Issuer, Mood, SigningKey};
use crate::session::{Exchange, Session, call, initialize};
use crate::sse::Parser;

const FILE: &str = include_str!("../../config/examples/internet.toml");
pub const PUBLIC: &str = "https://mcp.example.com";
pub const RESOURCE: &str = "https://mcp.example.com/everything/mcp";
pub const PATH: &str = "/everything/mcp";
pub const METADATA: &str = "/.well-known/oauth-protected-resource/everything/mcp";
pub const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// The example with addresses, issuer and the server's command of this test, and nothing else changed.
fn example(issuer: &str, server: &Server) -> String {
    let mut text = FILE.to_owned();
    let mut replace = |old: &str, new: &str| {
        assert_eq!(text.matches(old).count(), 1, "{old}");
        text = text.replace(old, new);
    };
    replace("\"127.0.0.1:8080\"", "\"127.0.0.1:0\"");
    replace("\"https://login.example.com\"", &format!("{issuer:?}"));
    let ours = server.toml();
    let ours: Vec<&str> = ours.lines().filter(|line| !line.is_empty()).collect();
    let [_header, command, args] = ours.as_slice() else { panic!("{ours:?}") };
    replace("command = \"npx\"", command);
    replace("args = [\"-y\", \"@modelcontextprotocol/server-everything@2026.8.31\"]", args);
    text
}

/// A gateway on the internet.
pub struct Scene {
    pub gateway: Gateway,
    pub issuer: Issuer,
    pub key: SigningKey,
    pub record: Record,
}

impl Scene {
    /// With the keys of its issuer loaded.
    pub fn start() -> Self {
        let scene = Self::starting(Mood::Well);
        scene.gateway.await_event("issuers_ready", |_| true);
        scene.gateway.await_event("server_ready", |_| true);
        scene
    }

    /// With an issuer in this mood.
    pub fn starting(mood: Mood) -> Self {
        let (key, other) = (SigningKey::es256("a"), SigningKey::rs256("b"));
        let issuer = Issuer::start(&[&key, &other]);
        issuer.mood("*", mood);
        let record = Record::new();
        let server = Server::fake("everything").option("--record", record.path());
        let gateway = Gateway::start(&example(issuer.url(), &server));
        Self { gateway, issuer, key, record }
    }

    /// A token of this user's with these claims beside, or instead of, the usual ones.
    pub fn token(&self, user: &str, claims: Value) -> String {
        self.key.token(&self.key.header(), &self.claims(user, claims))
    }

    pub fn claims(&self, user: &str, claims: Value) -> Value {
        let mut all = self.issuer.claims(RESOURCE);
        all["sub"] = user.into();
        all["scope"] = "mcp:use".into();
        for (name, value) in claims.as_object().unwrap() {
            all[name] = value.clone();
        }
        all
    }

    pub fn open(&self, user: &str) -> Session {
        self.open_with(user, &[])
    }

    pub fn open_with(&self, user: &str, more: &[(&str, &str)]) -> Session {
        let authorization = format!("Bearer {}", self.token(user, json!({})));
        let headers = [&[("Authorization", authorization.as_str()), ("X-Forwarded-For", "203.0.113.7")], more].concat();
        let capabilities = json!({ "elicitation": {}, "sampling": {} });
        Session::open_with(&self.gateway, PATH, "2025-11-25", capabilities, &headers)
    }

    pub fn send(&self, request: &Request) -> Response {
        request.send(self.gateway.address())
    }

    /// What children read that holds this word.
    pub fn reached(&self, word: &str) -> Vec<String> {
        self.record.lines().into_iter().filter(|line| line.contains(word)).collect()
    }
}

pub fn begin(token: &str, client: &str) -> Request {
    let request = Request::post(PATH, initialize("2025-11-25", json!({})).to_string());
    request.header("Authorization", &format!("Bearer {token}")).header("X-Forwarded-For", client)
}

/// A request of each kind that names a session, shown by `session`'s caller.
pub fn every_kind(session: &Session) -> [Request; 4] {
    [
        session.post_request(PING),
        session.get_request(),
        session.get_request().header("Last-Event-ID", "0123456789abcdef.1"),
        session.delete_request(),
    ]
}

/// F:C03: members twice, or spelled so that two parsers differ, decide nothing and reach no child.
#[test]
fn a_message_is_read_in_one_way() {
    let scene = Scene::start();
    let session = scene.open("alice");
    for body in [
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"vendor/canary"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"vendor/canary"}"#,
        r#"{"jsonrpc":"2.0","id":1,"Method":"vendor/canary"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method\u0000":"vendor/canary"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"get-env","arguments":{"canary":1}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","n\u0061me":"get-env","canary":1}}"#,
    ] {
        let response = session.post_request(body).send(session.address);
        assert_eq!(response.status(), 400, "{body}: {response:?}");
    }
    assert_eq!(scene.reached("canary"), Vec::<String>::new());
}

/// F:C05: whoever uses the same ids gets its own answers.
#[test]
fn ids_collide_and_answers_do_not() {
    let scene = Scene::start();
    let sessions: Vec<Session> = ["alice", "bob", "alice", "carol"].map(|user| scene.open(user)).into();
    for round in 0..3 {
        let ask = |(place, session): (usize, &Session)| {
            let seconds = 0.02 * (sessions.len() - place) as f64;
            session.send_call(round, "delay", json!({ "seconds": seconds, "nonce": format!("{place}-{round}") }))
        };
        let calls: Vec<Exchange> = sessions.iter().enumerate().map(ask).collect();
        for (place, call) in calls.into_iter().enumerate() {
            let answer = call.finish().message();
            assert_eq!(answer["id"], round, "{answer}");
            assert_eq!(answer["result"]["structuredContent"]["nonce"], format!("{place}-{round}"), "{answer}");
        }
    }
}

/// F:C07: what is not said to be JSON is not read as JSON, and opens nothing.
#[test]
fn a_form_is_no_message() {
    let scene = Scene::start();
    let begin = || begin(&scene.token("alice", json!({})), "203.0.113.7");
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "*/*"] {
        assert_eq!(scene.send(&begin().with("Content-Type", kind)).status(), 415, "{kind}");
    }
    assert_eq!(scene.send(&begin().without("Content-Type")).status(), 415);
    assert_eq!(scene.send(&begin().with("Accept", "image/png")).status(), 406);
    assert_eq!(scene.gateway.metrics().count("sessions_opened_total", &[]), 0.0);
    let good = begin().with("Content-Type", "application/json; charset=utf-8").with("Accept", "*/*");
    assert_eq!(scene.send(&good).status(), 200);
}

/// F:C08: an id that is missing, twice or nobody's finds nothing, not even the one session there is.
#[test]
fn a_session_has_one_name() {
    let scene = Scene::start();
    let session = scene.open("alice");
    let other = format!("{}{}", &session.id[..session.id.len() - 1], if session.id.ends_with('0') { '1' } else { '0' });
    let ended = scene.open("alice");
    assert_eq!(ended.delete().status(), 204);
    for (ids, status) in [
        (vec![], 400),
        (vec![session.id.as_str(), session.id.as_str()], 400),
        (vec![other.as_str()], 404),
        (vec![ended.id.as_str()], 404),
        (vec!["../everything"], 404),
        (vec![""], 404),
    ] {
        for request in every_kind(&session) {
            let request = request.without("Mcp-Session-Id");
            let request = ids.iter().fold(request, |request, id| request.header("Mcp-Session-Id", id));
            let response = scene.send(&request);
            assert_eq!(response.status(), status, "{ids:?}: {response:?}");
        }
    }
    let long = session.post_request(PING).with("Mcp-Session-Id", &"x".repeat(10 << 10));
    assert_eq!(scene.send(&long).status(), 404);
    assert_eq!(session.post(PING).head.status, 200, "it lives");
    assert_eq!(scene.reached("ping").len(), 1);
}

/// F:C10: a position in a stream is the caller's own or none.
#[test]
fn a_position_is_ones_own() {
    let scene = Scene::start();
    let (alice, bob) = (scene.open("alice"), scene.open("bob"));
    let told = |session: &Session| {
        let answer = session.send_call_with_token(1, "progress", json!({ "count": 2 }), "t").finish();
        answer.events[1].id.clone().unwrap()
    };
    let (own, foreign) = (told(&alice), told(&bob));
    let (stream, _) = own.split_once('.').unwrap();
    for position in [foreign.as_str(), &format!("{stream}.99"), "0123456789abcdef.0", "é", "-1", ""] {
        let response = alice.get_request().header("Last-Event-ID", position).send(alice.address);
        assert_eq!(response.status(), 400, "{position}: {response:?}");
    }
    assert!(!alice.resume(&own).rest().is_empty(), "its own still works");
}

/// F:C13: headers that only a later revision gives a meaning decide nothing; the body does.
#[test]
fn headers_do_not_speak_for_the_body() {
    let scene = Scene::start();
    let session = scene.open("alice");
    let dangerous = call(1, "get-env", json!({ "canary": 1 }), None).to_string();
    for (method, name) in [("tools/list", "echo"), ("tools/call", "echo"), ("ping", "=?base64?ZWNobw==?=")] {
        let request = session.post_request(&dangerous).header("Mcp-Method", method).header("Mcp-Name", name);
        let response = scene.send(&request);
        assert_eq!(response.status(), 403, "{response:?}");
        assert_eq!(challenge(&response)["scope"], "mcp:admin mcp:use");
    }
    for version in ["2026-07-28", "1999-01-01", "2025-11-25, 2025-11-25"] {
        let response = session.post_request(PING).with("MCP-Protocol-Version", version).send(session.address);
        assert_eq!(response.status(), 400, "{version}: {response:?}");
    }
    assert_eq!(scene.reached("canary"), Vec::<String>::new());
}

/// F:C14: an answer is taken from whom was asked, once.
#[test]
fn answers_cannot_be_forged() {
    let scene = Scene::start();
    let (alice, bob) = (scene.open("alice"), scene.open("bob"));
    let mut stream = alice.send_call(1, "ask", json!({ "method": "elicitation/create", "id": "e" })).stream();
    let asked = stream.await_message(|message| message["method"] == "elicitation/create")["id"].clone();
    for (session, id) in [(&bob, &asked), (&bob, &json!("e")), (&alice, &json!("never")), (&alice, &json!(77))] {
        assert_eq!(session.respond(id, json!({ "action": "canary" })).status(), 202);
    }
    assert_eq!(alice.respond(&asked, json!({ "action": "decline" })).status(), 202);
    let answer = stream.await_message(|message| message["id"] == 1);
    assert_eq!(answer["result"]["structuredContent"]["result"]["action"], "decline", "{answer}");
    assert_eq!(alice.respond(&asked, json!({ "action": "canary" })).status(), 202);
    assert_eq!(alice.post(PING).head.status, 200);
    assert_eq!(scene.reached("canary"), Vec::<String>::new());
}

/// F:D03: a reader that stops is cut after twenty seconds, can come back, and nobody waits for it.
#[test]
fn a_reader_that_stops_costs_itself_only() {
    let scene = Scene::start();
    let (alice, bob) = (scene.open("alice"), scene.open("bob"));
    let before = scene.gateway.rss();
    let mut stalled = Connection::open_small(scene.gateway.address(), 4096);
    let flood = call(1, "log", json!({ "count": 40, "bytes": 65_536 }), None).to_string();
    stalled.request(&alice.post_request(flood));
    assert_eq!(stalled.head().status, 200);
    let mut parser = Parser::default();
    while parser.last_event_id().is_empty() {
        parser.push(&stalled.read_body().unwrap());
    }
    let began = Instant::now();
    let cut = [("reason", "stall")];
    while scene.gateway.metrics().count("stream_cuts_total", &cut) == 0.0 {
        assert!(bob.call(1, "delay", json!({ "seconds": 0.2 }))["result"].is_object(), "others are served");
        assert!(began.elapsed() < Duration::from_secs(60), "never cut");
    }
    assert!(began.elapsed() > Duration::from_secs(10), "{:?}", began.elapsed());
    let grown = scene.gateway.rss().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes for one reader");
    let rest = alice.resume(parser.last_event_id()).rest();
    assert_eq!(rest.last().unwrap().message()["id"], 1);
}

/// F:D07: a request that could be read in two ways is refused and ends its connection.
#[test]
fn requests_are_read_in_one_way() {
    let scene = Scene::start();
    let session = scene.open("alice");
    let body = call("canary", "echo", json!({ "canary": 1 }), None).to_string();
    let length = body.len();
    let chunks = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let good = String::from_utf8(session.post_request("").without("Content-Length").bytes(session.address)).unwrap();
    let with = |fields: &str, body: &str| good.replacen("\r\n\r\n", &format!("\r\n{fields}\r\n{body}"), 1);
    let sized = with(&format!("Content-Length: {length}\r\n"), &body);
    let both = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n";
    for (what, bytes) in [
        ("a length beside chunks", with(both, &chunks)),
        ("two lengths", with(&format!("Content-Length: {length}\r\nContent-Length: 0\r\n"), &body)),
        ("chunks twice", with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", &chunks)),
        ("another coding", with("Transfer-Encoding: xchunked\r\n", &chunks)),
        ("a name with a space", with("Transfer-Encoding : chunked\r\n", &chunks)),
        ("bare LF", sized.replace("\r\n", "\n")),
        ("two hosts", with(&format!("Host: evil.test\r\nContent-Length: {length}\r\n"), &body)),
        ("another host in the target", sized.replacen("POST /", "POST http://evil.test/", 1)),
        ("a body in HTTP/1.0", sized.replacen("HTTP/1.1", "HTTP/1.0", 1)),
        ("a request behind an upgrade", with("Upgrade: h2c\r\nConnection: Upgrade\r\n", "") + &sized),
    ] {
        let mut connection = Connection::open(session.address);
        connection.send(bytes);
        let answer = String::from_utf8_lossy(&connection.read_to_close()).into_owned();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{what}: {answer}");
        let statuses = (answer.matches("HTTP/1.1 ").count(), answer.matches("HTTP/1.1 400 ").count());
        assert_eq!(statuses.0, statuses.1, "{what}: {answer}");
    }
    assert_eq!(scene.reached("canary"), Vec::<String>::new());
    let mut connection = Connection::open(session.address);
    connection.send(with("Transfer-Encoding: chunked\r\n", &chunks));
    assert_eq!(connection.response().status(), 200, "one reading is fine");
}

/// F:D13: a name or a page that is not known here is refused on every method and path, before anything else is looked at.
#[test]
fn foreign_names_and_pages_stay_outside() {
    let scene = Scene::start();
    let session = scene.open("alice");
    let forms = || {
        let others = [Request::new("OPTIONS", PATH), Request::get(METADATA), Request::get("/nowhere")];
        every_kind(&session).into_iter().chain(others)
    };
    for host in
        ["evil.test:8080", "mcp.example.com.evil.test", "mcp.example.com.", "xn--mcp-example-com", "a@b", "localhost:x"]
    {
        for request in forms() {
            assert_eq!(scene.send(&request.with("Host", host)).status(), 403, "{host}");
        }
    }
    for origin in ["http://evil.test", "null", "http://mcp.example.com", "https://mcp.example.com.evil.test"] {
        for request in every_kind(&session) {
            assert_eq!(scene.send(&request.header("Origin", origin)).status(), 403, "{origin}");
        }
    }
    let two = session.post_request(PING).header("Origin", PUBLIC).header("Origin", "http://evil.test");
    assert_eq!(scene.send(&two).status(), 403);
    let admin = Request::get("/metrics").with("Host", "evil.test").send(scene.gateway.admin());
    assert_eq!(admin.status(), 403);
    let good = session.post_request(PING).with("Host", "mcp.example.com").header("Origin", PUBLIC);
    assert_eq!(scene.send(&good).status(), 200);
    let metadata = Request::get(METADATA).with("Host", "mcp.example.com");
    assert_eq!(scene.send(&metadata).status(), 200);
}
