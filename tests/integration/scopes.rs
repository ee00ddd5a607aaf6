//! Scopes: what callers must be granted, decided before a child sees anything.

use serde_json::json;

use crate::caller_key::Key;
use crate::child::{Record, Server};
use crate::client::{Request, Response};
use crate::gateway::Gateway;
use crate::session::{Exchange, Session, initialize};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// How often a child was asked to do something, whoever wants to know what it offers.
fn asked(record: &Record) -> usize {
    record.lines().iter().filter(|line| line.contains("/call\"") || line.contains("read\"")).count()
}

/// What every test here asks for.
const AUTH: &str = r#"
[auth]
methods = ["api_key"]
scopes = ["use"]
implies = { admin = ["write"], write = ["use"] }
method_scopes = { "resources/read" = ["read"] }
"#;

fn start(keys: &[(&Key, &str)], record: &Record) -> Gateway {
    let tables: String = keys.iter().map(|(key, scopes)| key.toml(scopes)).collect();
    let server = Server::fake("fake").option("--record", record.path()).key("legacy_sse = true");
    let server = server.key("auth.tools = { \"e*\" = [\"write\"], \"echo\" = [\"talk\"] }");
    let open = Server::fake("plain").key("auth.scopes = []").key("check_on_start = false").key("pool.min_idle = 0");
    Gateway::start(&format!("{AUTH}{tables}{}{}", server.toml(), open.toml()))
}

#[track_caller]
fn assert_lacking(response: &Response, scope: &str) {
    assert_eq!(response.status(), 403, "{response:?}");
    let challenges: Vec<&str> = response.head.all("www-authenticate").collect();
    // No metadata: this server takes keys.
    let wanted = format!(
        "Bearer error=\"insufficient_scope\", error_description=\"More scopes are needed for this\", scope=\"{scope}\""
    );
    assert_eq!(challenges, [wanted]);
    assert_eq!(response.json()["error"]["code"], 403);
    assert_eq!(response.json()["error"]["data"]["reason"], "scope");
}

fn call(tool: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": {} } })
        .to_string()
}

/// R:A06, R:A08, R:A23, F:E10: by route, method and tool, with a hierarchy; the answer names all that is needed at once,
/// and the child has seen nothing.
#[test]
fn too_little_is_a_403_before_the_child() {
    let record = Record::new();
    let (some, much) = (Key::of("some"), Key::of("much"));
    let gateway =
        start(&[(&some, "scopes = [\"use\"]"), (&much, "scopes = [\"admin\", \"talk\", \"other\"]")], &record);
    let open = |key: &Key| Session::open_with(&gateway, "/fake/mcp", "2025-11-25", json!({}), &[key.header()]);
    let (theirs, ours) = (open(&some), open(&much));
    let before = asked(&record);
    let read = r#"{"jsonrpc":"2.0","id":1,"method":"resources\/read","params":{"uri":"fake://a"}}"#;
    let send = |session: &Session, body: &str| session.post_request(body).send(gateway.address());
    assert_lacking(&send(&theirs, &call("echo")), "talk use write");
    assert_lacking(&send(&theirs, &call("error")), "use write");
    assert_lacking(&send(&theirs, &call("echo").replace("echo", r"\u0065cho")), "talk use write");
    assert_lacking(&send(&theirs, &call("echo").replace("\"id\":1,", "")), "talk use write");
    assert_lacking(&send(&theirs, read), "read use");
    assert_lacking(&send(&ours, read), "admin read talk use");
    assert_eq!(send(&theirs, &call("echo")).json()["id"], 1, "the answer is the request's");
    // Each has a child of its own, which reads in order: by now it has read whatever came before this.
    assert_eq!(ours.post(call("echo")).message()["result"]["content"][0]["text"], "{}");
    assert_eq!(theirs.post(call("state")).head.status, 200);
    assert_eq!(asked(&record), before + 2, "{:?}", record.lines());
    gateway.await_metric("refusals_total", &[("server", "fake"), ("reason", "scope")], |count| count >= 6.0);
    gateway.await_event("refused", |event| event["reason"] == "scope" && event["principal"] == "key:some");
}

/// A name in another case beside the one that counts here: nobody can say which of them the server takes.
#[test]
fn no_second_name_gets_past() {
    let record = Record::new();
    let key = Key::of("some");
    let gateway = start(&[(&key, "scopes = [\"use\"]")], &record);
    let session = Session::open_with(&gateway, "/fake/mcp", "2025-11-25", json!({}), &[key.header()]);
    let before = asked(&record);
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"state","NAME":"echo"}}"#;
    assert_eq!(session.post(body).message()["error"]["code"], -32602);
    session.call(2, "state", json!({}));
    assert_eq!(asked(&record), before + 1);
}

/// R:A11, R:A28: who lacks what everything needs is told so at every method and address, and learns of no session.
#[test]
fn nothing_is_told_to_who_lacks_what_everything_needs() {
    let record = Record::new();
    let (none, some) = (Key::of("none"), Key::of("some"));
    let gateway = start(&[(&none, ""), (&some, "scopes = [\"use\"]")], &record);
    let session = Session::open_with(&gateway, "/fake/mcp", "2025-11-25", json!({}), &[some.header()]);
    let (name, value) = none.header();
    for (id, what) in [(session.id.as_str(), "a session"), ("x", "none")] {
        let session = Session { id: id.to_owned(), ..session.clone() };
        for request in [
            session.post_request(PING),
            session.post_request(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
            session.post_request(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#),
            session.post_request(format!("[{PING}]")),
            session.get_request(),
            session.get_request().header("Last-Event-ID", "0000000000000000.1"),
            session.delete_request(),
            Request::get("/fake/sse").header("Accept", "text/event-stream"),
            Request::post(&format!("/fake/messages?session={id}"), PING),
            Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string()),
        ] {
            let response = request.with(name, value).send(gateway.address());
            assert_eq!(response.status(), 403, "{what}: {response:?}");
            assert_lacking(&response, "use");
        }
    }
    // A server that asks for nothing.
    let request = Request::post("/plain/mcp", initialize("2025-11-25", json!({})).to_string());
    assert_eq!(request.with(name, value).send(gateway.address()).status(), 200);
}

/// R:A23: of a batch nothing is done unless all may be; the scopes of all are named.
#[test]
fn a_batch_needs_what_all_of_it_needs() {
    let record = Record::new();
    let key = Key::of("some");
    let gateway = start(&[(&key, "scopes = [\"use\"]")], &record);
    let session = Session::open_with(&gateway, "/fake/mcp", "2025-03-26", json!({}), &[key.header()]);
    let before = asked(&record);
    let batch = format!("[{PING},{},{}]", call("error").replace(":1", ":2"), call("echo").replace(":1", ":3"));
    assert_lacking(&session.post_request(batch).send(gateway.address()), "talk use write");
    let call = call("state");
    assert_eq!(session.post(format!("[{PING},{}]", call.replace(":1", ":2"))).messages().len(), 2);
    assert_eq!(asked(&record), before + 1);
}

/// R:A11: HTTP+SSE of 2024-11-05 is asked for the same.
#[test]
fn http_sse_is_asked_too() {
    let record = Record::new();
    let key = Key::of("some");
    let gateway = start(&[(&key, "scopes = [\"use\"]")], &record);
    let (name, value) = key.header();
    let request = Request::get("/fake/sse").header("Accept", "text/event-stream").header(name, value);
    let mut stream = Exchange::send(gateway.address(), &request).stream();
    let address = stream.next_event().data;
    let post = |body: String| Request::post(&address, body).header(name, value).send(gateway.address());
    assert_eq!(post(initialize("2024-11-05", json!({})).to_string()).status(), 202);
    stream.next_event();
    let before = asked(&record);
    assert_lacking(&post(call("echo")), "talk use write");
    assert_eq!(post(call("state")).status(), 202);
    assert_eq!(stream.next_event().data.parse::<serde_json::Value>().unwrap()["id"], 1);
    assert_eq!(asked(&record), before + 1);
}

/// A key that grants less after a reload, or rules that ask for more: at once, for what is open too.
#[test]
fn rules_change_for_open_sessions() {
    let key = Key::of("some");
    let toml = |scopes: &str, needed: &str| {
        let auth = format!("[auth]\nmethods = [\"api_key\"]\nscopes = [{needed}]\n{}", key.toml(scopes));
        format!("{auth}{}", Server::fake("fake").toml())
    };
    let gateway = Gateway::start(&toml("scopes = [\"a\", \"b\"]", "\"a\""));
    let session = Session::open_with(&gateway, "/fake/mcp", "2025-11-25", json!({}), &[key.header()]);
    let pid = session.call(1, "state", json!({}))["result"]["structuredContent"]["pid"].clone();
    assert_eq!(gateway.reload(&toml("scopes = [\"a\", \"b\"]", "\"a\", \"c\""))["event"], "reload");
    assert_eq!(session.post_request(PING).send(gateway.address()).status(), 403);
    gateway.reload(&toml("scopes = [\"a\", \"b\"]", "\"b\""));
    assert_eq!(session.call(2, "state", json!({}))["result"]["structuredContent"]["pid"], pid, "the same process");
    let mut stream = session.get();
    gateway.reload(&toml("scopes = [\"a\"]", "\"b\""));
    while stream.next_event_or_end().is_some() {}
    assert_eq!(session.post_request(PING).send(gateway.address()).status(), 403);
}

/// What cannot be meant is refused with its place: scopes where nobody has any, and what is no scope.
#[test]
fn rules_nobody_could_meet_are_refused() {
    let refused = |auth: &str, server: &str| {
        let toml = format!("[auth]\n{auth}\n{}", Server::fake("fake").key(server).toml());
        Gateway::try_start(&toml, |_| {}).err().expect("no start").stderr
    };
    let stderr = refused("methods = [\"none\"]\nscopes = [\"a\"]", "");
    assert!(stderr.contains("lets everybody in, but asks for scopes"), "{stderr}");
    let stderr = refused(
        "scopes = [\"a b\", \"offline_access\"]\nmethod_scopes = { \"tools/*\" = [\"a\"] }",
        "auth.tools = { \"[x]\" = [] }\ntools.deny = [\"{a,b}\"]",
    );
    for part in ["no scope", "offline_access", "is no method", "brackets", "gangway.toml:"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}
