//! HTTP+SSE of 2024-11-05: one stream is the session, and a second address takes what clients send.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::caller_key::{Key, only};
use crate::child::{Record, Server};
use crate::client::{Connection, Request, Response};
use crate::gateway::Gateway;
use crate::session::{call, initialize};
use crate::sse::{EventStream, Item};

const EVIL: &str = "http://evil.example";

/// What ends with a connection: the stream, and the address its first event names.
pub struct Channel {
    address: SocketAddr,
    pub stream: EventStream,
    /// The posting address, as the client was told.
    pub target: String,
    headers: Vec<(String, String)>,
}

impl Channel {
    /// Opens the stream and reads its first event.
    #[track_caller]
    pub fn open(gateway: &Gateway, path: &str, headers: &[(&str, &str)]) -> Self {
        let request = headers.iter().fold(listen(path), |request, (name, value)| request.header(name, value));
        Self::begin(Connection::open(gateway.address()), gateway.address(), &request, headers)
    }

    #[track_caller]
    fn begin(mut connection: Connection, address: SocketAddr, request: &Request, headers: &[(&str, &str)]) -> Self {
        connection.request(request);
        let head = connection.head();
        let mut stream = EventStream::new(connection, head);
        let first = stream.next_event();
        assert_eq!((first.event.as_str(), first.id.as_deref()), ("endpoint", None), "{first:?}");
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Self { address, stream, target: first.data, headers }
    }

    /// Opens the stream, and the session on it.
    #[track_caller]
    pub fn initialized(gateway: &Gateway, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut channel = Self::open(gateway, path, headers);
        channel.initialize("2024-11-05");
        channel
    }

    /// `initialize` and `notifications/initialized`; the result.
    #[track_caller]
    pub fn initialize(&mut self, revision: &str) -> Value {
        self.tell(initialize(revision, json!({ "roots": {}, "elicitation": {} })));
        let answer = self.next();
        assert_eq!((&answer["id"], answer.get("error")), (&json!("initialize"), None), "{answer}");
        self.tell(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        answer["result"].clone()
    }

    /// A POST of this channel, to be changed before it is sent.
    pub fn post(&self, message: Value) -> Request {
        let request = Request::new("POST", &self.target).header("Content-Type", "application/json");
        let request = self.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        request.body(message.to_string())
    }

    /// Posts a message, which must be accepted without a word.
    #[track_caller]
    pub fn tell(&self, message: Value) {
        assert_accepted(&self.post(message).send(self.address));
    }

    /// The next message; fails unless it comes as one of this transport's events.
    #[track_caller]
    pub fn next(&mut self) -> Value {
        let event = self.stream.next_event();
        assert_eq!((event.event.as_str(), event.id.as_deref()), ("message", None), "{event:?}");
        event.message()
    }

    /// Calls a tool and waits for the answer.
    #[track_caller]
    pub fn call(&mut self, id: impl Into<Value>, tool: &str, arguments: Value) -> Value {
        let id = id.into();
        self.tell(call(id.clone(), tool, arguments, None));
        let answer = self.next();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }
}

fn listen(path: &str) -> Request {
    Request::get(path).header("Accept", "text/event-stream")
}

#[track_caller]
pub fn assert_accepted(response: &Response) {
    assert_eq!((response.status(), response.body.len()), (202, 0), "{response:?}");
}

pub fn ping(id: u32) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "ping" })
}

/// A server named `fake` that speaks HTTP+SSE and starts its child for a session only.
pub fn server(record: &Record) -> Server {
    let server = Server::fake("fake").option("--record", record.path()).key("legacy_sse = true");
    server.key("check_on_start = false").key("pool.min_idle = 0")
}

/// R:L01: the two addresses are there only where they are switched on, also under a path of one's own.
#[test]
fn it_is_off_unless_switched_on() {
    let on = Server::fake("on").key("legacy_sse = true").key("path = \"/deep/own\"");
    let gateway = Gateway::start(&format!("{}{}", Server::fake("off").toml(), on.toml()));
    for path in ["/off/sse", "/off/messages", "/off/messages?session=x", "/on/sse", "/sse"] {
        assert_eq!(listen(path).send(gateway.address()).status(), 404, "GET {path}");
        assert_eq!(Request::post(path, "{}").send(gateway.address()).status(), 404, "POST {path}");
    }
    let channel = Channel::open(&gateway, "/deep/sse", &[]);
    assert!(channel.target.starts_with("/deep/messages?"), "{}", channel.target);
}

/// R:L02, R:L06: the first event names a path on the same origin, below the public one, with a secret of its own
/// for each stream, which no log line shows.
#[test]
fn the_first_event_says_where_to_post() {
    let record = Record::new();
    let gateway = Gateway::start(&format!(
        "[listen]\npublic_url = \"https://public.example/base\"\n[auth]\nmethods = [\"none\"]\n{}",
        server(&record).toml()
    ));
    assert_eq!(listen("/fake/sse").send(gateway.address()).status(), 404, "without the prefix");
    let open = || {
        let request = listen("/base/fake/sse").header("Host", "public.example");
        let connection = Connection::open(gateway.address());
        Channel::begin(connection, gateway.address(), &request, &[("Host", "public.example")])
    };
    let (mut one, other) = (open(), open());
    let secret = |channel: &Channel| {
        let secret = channel.target.strip_prefix("/base/fake/messages?session=");
        secret.unwrap_or_else(|| panic!("{}", channel.target)).to_owned()
    };
    let secrets = [secret(&one), secret(&other)];
    assert_ne!(secrets[0], secrets[1]);
    assert!(secrets.iter().all(|secret| secret.len() >= 32), "128 bits at least: {secrets:?}");
    assert_eq!(one.stream.head.header("cache-control"), Some("no-cache, no-transform"));
    one.initialize("2024-11-05");
    assert_eq!(one.call(1, "echo", json!({ "text": "a" }))["result"]["structuredContent"]["text"], "a");
    drop(one);
    gateway.await_event("session_close", |_| true);
    let log = gateway.stderr();
    assert!(!secrets.iter().any(|secret| log.contains(secret)), "{log}");
}

/// R:L03, R:L04: every answer is a `message` event of the stream; a POST is answered 202 and nothing else, whatever
/// it carries and whatever becomes of it.
#[test]
fn every_answer_comes_on_the_stream() {
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).toml());
    let mut channel = Channel::open(&gateway, "/fake/sse", &[]);
    let initialized = channel.initialize("2024-11-05");
    assert_eq!(initialized["protocolVersion"], "2024-11-05", "{initialized}");
    channel.tell(json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" }));
    let list = channel.next();
    assert!(list["id"] == 2 && list["result"]["tools"].is_array(), "{list}");
    channel.tell(json!({ "jsonrpc": "2.0", "id": "three", "method": "no/such" }));
    let refused = channel.next();
    assert!(refused["id"] == "three" && refused["error"]["code"] == -32601, "{refused}");
    channel.tell(call(4, "progress", json!({ "count": 2 }), Some(json!("token"))));
    for progress in 1..=2 {
        let said = channel.next();
        assert_eq!(
            (&said["params"]["progressToken"], &said["params"]["progress"]),
            (&json!("token"), &json!(progress))
        );
    }
    assert_eq!(channel.next()["id"], 4);
    // Calls overlap: the later one is answered first.
    channel.tell(call(5, "hold", json!({ "gate": "g" }), None));
    channel.call(6, "await_held", json!({ "gate": "g" }));
    channel.tell(call(7, "release", json!({ "gate": "g" }), None));
    let mut ids = [channel.next()["id"].clone(), channel.next()["id"].clone()];
    ids.sort_by_key(Value::as_u64);
    assert_eq!(ids, [5, 7]);
    // What is no message of this protocol has no answer on the stream.
    for (body, status) in [("{", 400), ("[]", 400), (r#"{"id":8,"method":"ping"}"#, 400)] {
        let response = channel.post(json!(null)).body(body).send(gateway.address());
        assert_eq!(response.status(), status, "{body}: {response:?}");
    }
    let again = channel.post(initialize("2024-11-05", json!({}))).send(gateway.address());
    assert_eq!((again.status(), again.json()["id"].clone()), (400, json!("initialize")), "{again:?}");
    channel.tell(ping(9));
    assert_eq!(channel.next()["id"], 9, "nothing came in between");
}

/// R:L05: an unknown, missing or closed stream is a 404, and so is the stream of another server.
#[test]
fn a_stream_that_is_not_there_is_unknown() {
    let record = Record::new();
    let other = Server::fake("other").key("legacy_sse = true");
    let gateway = Gateway::start(&format!("{}{}", server(&record).toml(), other.toml()));
    let channel = Channel::initialized(&gateway, "/fake/sse", &[]);
    let secret = channel.target.rsplit_once('=').unwrap().1.to_owned();
    let status = |target: &str| Request::post(target, ping(1).to_string()).send(gateway.address()).status();
    for target in [
        "/fake/messages",
        "/fake/messages?",
        "/fake/messages?session=",
        "/fake/messages?session=0123456789abcdef0123456789abcdef",
        &format!("/fake/messages?session={}", &secret[1..]),
        &format!("/fake/messages?session={secret}0"),
        &format!("/fake/messages?other={secret}"),
        &format!("/other/messages?session={secret}"),
    ] {
        assert_eq!(status(target), 404, "{target}");
    }
    assert_eq!(status(&channel.target), 202);
    let target = channel.target.clone();
    drop(channel);
    gateway.await_event("session_close", |_| true);
    assert_eq!(status(&target), 404, "closed");
}

/// R:L06, R:L05: both addresses want the key, whose caller alone may post to its stream: the secret proves nothing.
#[test]
fn both_addresses_want_the_key() {
    let record = Record::new();
    let (one, two) = (Key::of("one"), Key::of("two"));
    let gateway = Gateway::start(&format!("{}{}", only(&[&one, &two]), server(&record).toml()));
    let wrong = Key::of("wrong");
    for request in [listen("/fake/sse"), listen("/fake/sse").header("Authorization", &wrong.authorization)] {
        assert_eq!(request.send(gateway.address()).status(), 401);
    }
    let mut channel = Channel::initialized(&gateway, "/fake/sse", &[one.header()]);
    let status = |key: Option<&Key>| {
        let request = Request::post(&channel.target, ping(1).to_string());
        let request = key.into_iter().fold(request, |request, key| request.header("Authorization", &key.authorization));
        request.send(gateway.address()).status()
    };
    assert_eq!((status(None), status(Some(&wrong)), status(Some(&two))), (401, 401, 404));
    channel.tell(ping(2));
    assert_eq!(channel.next()["id"], 2, "nothing of what was refused went through");
}

/// R:L06: a foreign origin is refused at both addresses, also with the secret.
#[test]
fn both_addresses_look_at_the_origin() {
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).toml());
    assert_eq!(listen("/fake/sse").header("Origin", EVIL).send(gateway.address()).status(), 403);
    let mut channel = Channel::initialized(&gateway, "/fake/sse", &[("Origin", "http://localhost:6274")]);
    let allowed = channel.stream.head.header("access-control-allow-origin");
    assert_eq!(allowed, Some("http://localhost:6274"));
    let refused = channel.post(ping(1)).with("Origin", EVIL).send(gateway.address());
    assert_eq!(refused.status(), 403, "{refused:?}");
    channel.tell(ping(2));
    assert_eq!(channel.next()["id"], 2);
}

/// R:L07: the connection is the session: when it closes, however, the call in flight is cancelled at its child and
/// counted so, the session is over, and the child is told by the end of its input.
#[test]
fn closing_the_stream_ends_the_session() {
    for reset in [false, true] {
        let record = Record::new();
        let gateway = Gateway::start(&server(&record).toml());
        let mut channel = Channel::initialized(&gateway, "/fake/sse", &[]);
        channel.tell(call("held", "hold", json!({ "gate": "g" }), None));
        channel.call(2, "await_held", json!({ "gate": "g" }));
        gateway.await_descendants(1);
        let in_flight = |count: f64| gateway.await_metric("requests_in_flight", &[], |calls| calls == count);
        in_flight(1.0);
        if reset {
            channel.stream.reset()
        } else {
            drop(channel)
        }
        gateway.await_event("session_close", |event| event["reason"] == "delete");
        let held = record.await_message(|message| message["params"]["name"] == "hold");
        let cancelled = record.await_message(|message| message["method"] == "notifications/cancelled");
        assert_eq!(cancelled["params"]["requestId"], held["id"], "{cancelled}");
        let line = gateway.await_event("rpc", |event| event["rpc_id"] == "held");
        assert_eq!(line["outcome"], "cancelled", "{line}");
        gateway.await_event("child_exit", |event| event["step"] == "eof" && event["reason"] == "stopped");
        gateway.await_descendants(0);
        in_flight(0.0);
        gateway.await_metric("sessions", &[("server", "fake")], |sessions| sessions == 0.0);
    }
}

/// R:L07: a stream that closes before `initialize` leaves nothing, and one that closes during it no child.
#[test]
fn a_stream_that_closes_early_leaves_nothing() {
    let mut gate = crate::child::Gate::new();
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).option("--wait-init", gate.path()).toml());
    let channel = Channel::open(&gateway, "/fake/sse", &[]);
    let target = channel.target.clone();
    drop(channel);
    gateway.await_metric("streams", &[], |streams| streams == 0.0);
    let late = Request::post(&target, initialize("2024-11-05", json!({})).to_string()).send(gateway.address());
    assert_eq!(late.status(), 404, "{late:?}");
    assert!(record.all().is_empty(), "no child was started");

    let channel = Channel::open(&gateway, "/fake/sse", &[]);
    let mut posting = Connection::open(gateway.address());
    posting.request(&channel.post(initialize("2024-11-05", json!({}))));
    record.await_message(|message| message["method"] == "initialize");
    drop(channel);
    gate.open();
    gateway.await_descendants(0);
    gateway.await_metric("sessions", &[("server", "fake")], |sessions| sessions == 0.0);
}

/// R:L07, R:L08: nothing is resumed: `Last-Event-ID` and the headers of the later transport say nothing here.
#[test]
fn headers_of_later_revisions_say_nothing() {
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).toml());
    let mut channel = Channel::initialized(&gateway, "/fake/sse", &[("Last-Event-ID", "nonsense:1")]);
    assert!(channel.stream.head.header("mcp-session-id").is_none(), "{:?}", channel.stream.head);
    let request = channel.post(ping(1)).header("MCP-Protocol-Version", "1999-01-01").header("Mcp-Session-Id", "x");
    let response = request.send(gateway.address());
    assert_accepted(&response);
    assert!(response.header("mcp-session-id").is_none(), "{response:?}");
    assert_eq!(channel.next()["id"], 1);
    assert_eq!(channel.stream.last_event_id(), "", "no event has an id");
}

/// R:L08: any revision with sessions may be agreed on inside.
#[test]
fn any_revision_with_sessions_is_agreed_on_inside() {
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).toml());
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut channel = Channel::open(&gateway, "/fake/sse", &[]);
        assert_eq!(channel.initialize(revision)["protocolVersion"], revision);
        assert_eq!(channel.call(1, "echo", json!({ "r": revision }))["result"]["structuredContent"]["r"], revision);
        assert_eq!(channel.stream.last_event_id(), "", "{revision}: no event has an id");
    }
}

/// R:L08: a request with the envelope of 2026-07-28 is refused, before and in a session, and reaches no child.
#[test]
fn the_envelope_of_a_later_revision_is_refused() {
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).toml());
    let mut channel = Channel::open(&gateway, "/fake/sse", &[]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "x", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let modern = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": { "_meta": meta } });
    for _ in 0..2 {
        let refused = channel.post(modern.clone()).send(gateway.address());
        let answer = refused.json();
        assert_eq!((refused.status(), &answer["error"]["code"], &answer["id"]), (400, &json!(-32600), &json!(7)));
        if record.all().is_empty() {
            channel.initialize("2024-11-05");
        }
    }
    channel.tell(ping(1));
    assert_eq!(channel.next()["id"], 1);
    assert!(!record.lines().iter().any(|line| line.contains("2026-07-28")), "{:?}", record.lines());
}

/// R:L09: clients find this transport by a POST that fails with 405 and says nothing a later revision would.
#[test]
fn a_post_to_the_stream_address_is_not_allowed() {
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).toml());
    let refused = Request::post("/fake/sse", initialize("2025-11-25", json!({})).to_string()).send(gateway.address());
    assert_eq!((refused.status(), refused.header("allow")), (405, Some("GET, OPTIONS")), "{refused:?}");
    assert!(!refused.text().contains("jsonrpc"), "{refused:?}");
    for method in ["PUT", "DELETE", "HEAD"] {
        let mut connection = Connection::open(gateway.address());
        connection.request(&Request::new(method, "/fake/sse"));
        assert_eq!(connection.head().status, 405, "{method}");
    }
    let refused = listen("/fake/messages?session=x").send(gateway.address());
    assert_eq!((refused.status(), refused.header("allow")), (405, Some("POST, OPTIONS")), "{refused:?}");
    let wrong = Request::get("/fake/sse").header("Accept", "application/json").send(gateway.address());
    assert_eq!(wrong.status(), 406, "{wrong:?}");
    gateway.await_event("refused", |event| event["status"] == 405);
    assert!(record.all().is_empty(), "no child was started");
}

/// R:L10: a quiet stream carries comments, before `initialize` too.
#[test]
fn a_quiet_stream_carries_comments() {
    let record = Record::new();
    let gateway = Gateway::start(&format!("[streams]\ncomment_every = \"50ms\"\n{}", server(&record).toml()));
    let mut channel = Channel::open(&gateway, "/fake/sse", &[]);
    for _ in 0..2 {
        for _ in 0..3 {
            let item = channel.stream.next().unwrap();
            assert!(matches!(item, Item::Comment(_)), "{item:?}");
        }
        if record.all().is_empty() {
            channel.initialize("2024-11-05");
        }
    }
}

/// R:L10, R:L07: a reader that stops is cut, and with it the session.
#[test]
fn a_reader_that_stops_ends_the_session() {
    let record = Record::new();
    let gateway = Gateway::start(&format!("limits.write_stall = \"400ms\"\n{}", server(&record).toml()));
    let connection = Connection::open_small(gateway.address(), 4096);
    let mut channel = Channel::begin(connection, gateway.address(), &listen("/fake/sse"), &[]);
    channel.initialize("2024-11-05");
    channel.tell(call(1, "log", json!({ "count": 100, "bytes": 65_536 }), None));
    gateway.await_event("session_close", |_| true);
    gateway.await_descendants(0);
    gateway.await_metric("stream_cuts_total", &[("reason", "stall")], |cuts| cuts == 1.0);
    assert_eq!(channel.post(ping(2)).send(gateway.address()).status(), 404);
}

/// R:L03, R:L04: what a child asks comes on the stream, in a call and outside of any; the answer is posted.
#[test]
fn what_a_child_asks_comes_on_the_stream() {
    let record = Record::new();
    let early = r#"{"jsonrpc":"2.0","id":"r-é","method":"roots/list"}"#;
    let gateway = Gateway::start(&server(&record).arg("--after-initialized").arg(early).toml());
    let mut channel = Channel::open(&gateway, "/fake/sse", &[]);
    channel.initialize("2025-06-18");
    let asked = channel.next();
    assert_eq!(asked["method"], "roots/list", "{asked}");
    channel.tell(json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "roots": [] } }));
    record.await_message(|message| message["id"] == "r-é" && message["result"] == json!({ "roots": [] }));

    let params = json!({ "message": "m", "requestedSchema": {} });
    channel.tell(call(1, "ask", json!({ "method": "elicitation/create", "id": "e1", "params": params }), None));
    let asked = channel.next();
    assert_eq!((&asked["method"], &asked["params"]["message"]), (&json!("elicitation/create"), &json!("m")), "{asked}");
    channel.tell(json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "action": "decline" } }));
    let answer = channel.next();
    assert_eq!(answer["id"], 1, "{answer}");
    assert!(answer["result"].to_string().contains("decline"), "{answer}");
}

/// R:L03, R:L07: when a child dies each call gets its error on the stream, which then ends with its session.
#[test]
fn a_dead_child_ends_the_stream() {
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).toml());
    let mut channel = Channel::initialized(&gateway, "/fake/sse", &[]);
    channel.tell(call(1, "hold", json!({ "gate": "g" }), None));
    channel.call(2, "await_held", json!({ "gate": "g" }));
    channel.tell(call("last", "exit", json!({ "code": 3 }), None));
    let mut errors = [channel.next(), channel.next()];
    errors.sort_by_key(|answer| answer["id"].is_string());
    for (answer, id) in errors.iter().zip([json!(1), json!("last")]) {
        assert_eq!(answer["id"], id, "{answer}");
        assert!(answer["error"]["code"].is_i64(), "{answer}");
    }
    assert!(channel.stream.next_event_or_end().is_none(), "{:?}", channel.stream.seen);
    gateway.await_event("session_close", |event| event["reason"] == "child_gone");
    assert_eq!(channel.post(ping(3)).send(gateway.address()).status(), 404, "the stream is over");
}

/// R:L03: two streams are two sessions: the same ids and gates at once, each answer on its own stream.
#[test]
fn two_streams_do_not_mix() {
    let record = Record::new();
    let gateway = Gateway::start(&server(&record).toml());
    let mut channels = ["a", "b"].map(|name| (name, Channel::initialized(&gateway, "/fake/sse", &[])));
    for (name, channel) in &channels {
        channel.tell(call(1, "hold", json!({ "gate": name, "of": name }), None));
    }
    for (name, channel) in channels.iter_mut().rev() {
        channel.call(2, "await_held", json!({ "gate": name }));
        channel.tell(call(3, "release", json!({ "gate": name }), None));
        let mut answers = [channel.next(), channel.next()];
        answers.sort_by_key(|answer| answer["id"].as_u64());
        assert_eq!((&answers[0]["id"], &answers[1]["id"]), (&json!(1), &json!(3)), "{answers:?}");
        assert_eq!(answers[0]["result"]["structuredContent"]["of"], **name, "{answers:?}");
    }
    let [(_, first), (_, mut second)] = channels;
    drop(first);
    gateway.await_event("session_close", |_| true);
    second.tell(ping(4));
    assert_eq!(second.next()["id"], 4, "the other's end changes nothing");
}
