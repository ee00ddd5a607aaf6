//! Sessions of callers by token: bound to issuer, subject and client, for as long as a token of theirs is valid.

use serde_json::{Value, json};

use crate::caller_key::Key;
use crate::challenge::challenge;
use crate::child::{Record, Server};
use crate::client::{Request, Response};
use crate::gateway::Gateway;
use crate::issuer::{self, SigningKey, now};
use crate::session::{Exchange, Session, call, initialize};

const PUBLIC: &str = "http://127.0.0.1:1";
const AUDIENCE: &str = "http://127.0.0.1:1/fake/mcp";
const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// An issuer with the one key it signs with.
struct Issuer {
    server: issuer::Issuer,
    key: SigningKey,
}

impl Issuer {
    fn start() -> Issuer {
        let key = SigningKey::es256("k");
        Issuer { server: issuer::Issuer::start(&[&key]), key }
    }

    /// Its table; `more` are further lines.
    fn toml(&self, name: &str, more: &str) -> String {
        self.server.toml(name, more)
    }

    /// A token for `audience` with these claims beside `iss`, `aud`, `exp` and `sub`, which they may replace.
    fn token(&self, audience: &str, claims: Value) -> String {
        let mut all = json!({ "iss": self.server.url(), "aud": audience, "exp": now() + 3600, "sub": "alice" });
        for (name, value) in claims.as_object().unwrap() {
            all[name] = value.clone();
        }
        self.key.token(&self.key.header(), &all)
    }
}

/// A gateway that takes tokens, with the keys of its issuers loaded.
#[track_caller]
fn start_gateway(toml: &str) -> Gateway {
    let gateway = Gateway::start(toml);
    gateway.await_event("issuers_ready", |_| true);
    gateway
}

/// A gateway with one server, `fake`, and tokens of this issuer.
fn start(issuer: &Issuer, more: &str, server: &Server) -> Gateway {
    start_gateway(&format!(
        "listen.public_url = \"{PUBLIC}\"\n{more}\n[auth]\nmethods = [\"oauth\"]\n{}{}",
        issuer.toml("tests", "leeway = \"0s\""),
        server.toml()
    ))
}

/// `Authorization` of a client that acts for a subject.
fn of(issuer: &Issuer, subject: &str, client: &str) -> String {
    token(issuer, json!({ "sub": subject, "client_id": client }))
}

fn token(issuer: &Issuer, claims: Value) -> String {
    format!("Bearer {}", issuer.token(AUDIENCE, claims))
}

#[track_caller]
fn open(gateway: &Gateway, authorization: &str) -> Session {
    Session::open_with(gateway, "/fake/mcp", "2025-11-25", json!({}), &[("Authorization", authorization)])
}

/// The same session, its requests with another token.
fn with(session: &Session, authorization: &str) -> Session {
    Session { headers: vec![("Authorization".to_owned(), authorization.to_owned())], ..session.clone() }
}

fn begin(authorization: &str) -> Request {
    Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string()).header("Authorization", authorization)
}

/// Lets the child say that a list changed, on the standalone stream: the call itself takes JSON only.
#[track_caller]
fn notify(session: &Session, method: &str) {
    let call = call(9, "notify", json!({ "method": method }), None).to_string();
    let response = session.post_request(call).with("Accept", "application/json").send(session.address);
    assert_eq!(response.status(), 200, "{response:?}");
}

/// The error of an answer without the id of its request.
fn error(response: &Response) -> Value {
    let mut error = response.json();
    error.as_object_mut().unwrap().remove("id");
    error
}

/// R:S08, R:A21, R:A30, F:E08, F:E09, C:B107: a session is found by issuer, subject and client together. Everybody else
/// gets the answer of an id that never was, whatever they send; the owner notices nothing, and the operator is told.
#[test]
fn a_session_belongs_to_issuer_subject_and_client() {
    let (issuer, other, record) = (Issuer::start(), Issuer::start(), Record::new());
    let key = Key::of("key");
    let auth = format!("[auth]\nmethods = [\"oauth\", \"api_key\"]\n{}{}", key.toml(""), other.toml("other", ""));
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = start_gateway(&format!(
        "listen.public_url = \"{PUBLIC}\"\n{auth}{}{}",
        issuer.toml("tests", ""),
        server.toml()
    ));
    let alice = of(&issuer, "alice", "one");
    let capabilities = json!({ "elicitation": {} });
    let session = Session::open_with(&gateway, "/fake/mcp", "2025-11-25", capabilities, &[("Authorization", &alice)]);
    let mut stream = session.get();
    let primed = stream.next_event().id.unwrap();
    let call = session.send_call(1, "ask", json!({ "method": "elicitation/create", "id": "e" }));
    record.await_message(|message| message["params"]["name"] == "ask");
    let unknown = Session { id: format!("{}-{}", &session.id[..6], "0".repeat(32)), ..session.clone() };
    let never = unknown.post_request(PING).send(gateway.address());
    assert_eq!(never.status(), 404, "{never:?}");
    let strangers = [
        of(&issuer, "bob", "one"),
        of(&issuer, "alice", "two"),
        token(&issuer, json!({})),
        of(&other, "alice", "one"),
        of(&issuer, "Alice", "one"),
        key.authorization.clone(),
    ];
    for stranger in &strangers {
        let theirs = with(&session, stranger);
        for request in [
            theirs.post_request(PING),
            theirs.post_request(initialize("2025-11-25", json!({})).to_string()),
            theirs.post_request(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#),
            theirs.post_request(r#"{"jsonrpc":"2.0","id":"e","result":{"action":"accept"}}"#),
            theirs.get_request(),
            theirs.get_request().header("Last-Event-ID", &primed),
            theirs.delete_request(),
        ] {
            let response = request.header("X-User", "alice").send(gateway.address());
            assert_eq!(response.status(), 404, "{stranger}: {response:?}");
            assert_eq!(error(&response), error(&never));
        }
    }
    gateway.await_event("session_principal_mismatch", |event| {
        let is_hash = |field: &str| event[field].as_str().is_some_and(|text| text.len() == 8);
        event["principal"].as_str().is_some_and(|who| who.starts_with("token:bob@"))
            && is_hash("session")
            && is_hash("owner")
    });
    assert!(!gateway.stderr().contains(&session.id), "an id is a secret");
    // Another token of the same caller goes on.
    let refreshed = with(&session, &token(&issuer, json!({ "sub": "alice", "client_id": "one", "jti": "2" })));
    assert_eq!(refreshed.respond(&json!("e"), json!({ "action": "decline" })).status(), 202);
    let answer = call.finish().message();
    assert_eq!(answer["result"]["structuredContent"]["result"]["action"], "decline", "{answer}");
    notify(&refreshed, "notifications/tools/list_changed");
    assert_eq!(stream.next_event().message()["method"], "notifications/tools/list_changed");
    assert_eq!(refreshed.delete().status(), 204);
}

/// R:A02, R:A03, R:A04, R:A05, R:A12, R:A28, F:E05, C:B98, C:B112: a token that lets nobody in is a 401 with one challenge
/// that says why and where to get another, also with a session's id; nothing is started for it.
#[test]
fn a_bad_token_is_told_what_is_wrong_and_where_to_ask() {
    let (issuer, stranger, record) = (Issuer::start(), Issuer::start(), Record::new());
    let server = Server::fake("fake").option("--record", record.path()).key("auth.scopes = [\"use\", \"see\"]");
    let server = server.key("check_on_start = false").key("pool.min_idle = 0");
    let gateway = start(&issuer, "", &server);
    let token = |claims| issuer.token(AUDIENCE, claims);
    let good = token(json!({}));
    let cases = [
        (issuer.token(&format!("{PUBLIC}/other/mcp"), json!({})), "The access token was not issued for this resource"),
        (issuer.token(&format!("{AUDIENCE}/"), json!({})), "The access token was not issued for this resource"),
        (token(json!({ "exp": now() - 5 })), "The access token has expired"),
        (token(json!({ "sub": "" })), "The access token names no subject"),
        (stranger.token(AUDIENCE, json!({})), "The issuer of the access token is not accepted"),
        (
            stranger.token(AUDIENCE, json!({ "iss": issuer.server.url() })),
            "The signature of the access token is not valid",
        ),
        ("junk".to_owned(), "The access token is malformed"),
        (format!("{good}\\\""), "The signature of the access token is not valid"),
    ];
    for (bad, description) in cases {
        let bad = format!("Bearer {bad}");
        for request in [
            begin(&bad),
            begin(&bad).header("Mcp-Session-Id", "x"),
            Request::get("/fake/mcp").header("Accept", "text/event-stream").header("Authorization", &bad),
            Request::new("DELETE", "/fake/mcp").header("Mcp-Session-Id", "x").header("Authorization", &bad),
        ] {
            let response = request.send(gateway.address());
            assert_eq!(response.status(), 401, "{bad}: {response:?}");
            let challenge = challenge(&response);
            assert_eq!((challenge["error"].as_str(), challenge["scope"].as_str()), ("invalid_token", "use see"));
            assert_eq!(challenge["error_description"], description, "{bad}");
            let metadata = challenge["resource_metadata"].strip_prefix(PUBLIC).unwrap();
            assert_eq!(Request::get(metadata).send(gateway.address()).json()["resource"], AUDIENCE);
        }
    }
    assert!(record.all().is_empty(), "no child was started");
    let lacking = begin(&format!("Bearer {good}")).send(gateway.address());
    assert_eq!(lacking.status(), 403, "{lacking:?}");
}

/// R:A06, R:A07, R:A08, F:E10, C:B99: stepping up. The challenge names what the call needs and what was granted of it, and the
/// client goes on in the same session with a token for that.
#[test]
fn a_client_steps_up_within_its_session() {
    let issuer = Issuer::start();
    let server = Server::fake("fake").key("auth.tools = { \"e*\" = [\"write\"] }");
    let auth = "auth.scopes = [\"read\"]\nauth.implies = { admin = [\"write\"] }";
    let gateway = start_gateway(&format!(
        "listen.public_url = \"{PUBLIC}\"\nauth.methods = [\"oauth\"]\n{auth}\n{}{}",
        issuer.toml("tests", "scope_prefix = \"api://x/\""),
        server.toml()
    ));
    let scoped = |claims: Value| token(&issuer, claims);
    let session = open(&gateway, &scoped(json!({ "scope": "openid api://x/read offline_access" })));
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{}}}"#;
    let response = session.post_request(call).send(gateway.address());
    assert_eq!(response.status(), 403, "{response:?}");
    let challenge = challenge(&response);
    assert_eq!(challenge["error"], "insufficient_scope");
    assert_eq!(challenge["scope"], "api://x/read api://x/write", "as the issuer is asked for them");
    assert!(challenge["resource_metadata"].ends_with("/fake/mcp") && challenge.contains_key("error_description"));
    for claims in [json!({ "scope": "read write" }), json!({ "scp": ["api://x/read", "api://x/admin"] })] {
        let more = with(&session, &scoped(claims));
        assert_eq!(more.post(call).message()["result"]["content"][0]["text"], "{}");
    }
    // No part of a scope counts for it.
    let less = with(&session, &scoped(json!({ "scope": "reader writ write2 WRITE" })));
    assert_eq!(less.post_request(call).send(gateway.address()).status(), 403);
}

/// F:E10, R:A22, C:B105: the streams of a session end with the last token its caller has shown, and only they: calls go
/// on, and a fresh token resumes what was cut. A caller that refreshed in time keeps its stream.
#[test]
fn streams_end_with_their_token_and_are_resumed_with_another() {
    let issuer = Issuer::start();
    let gateway = start(&issuer, "", &Server::fake("fake"));
    let end = now() + 3;
    let brief = |subject: &str| token(&issuer, json!({ "sub": subject, "exp": end }));
    let fresh = |subject: &str| token(&issuer, json!({ "sub": subject }));
    let (late, early) = (open(&gateway, &brief("late")), open(&gateway, &brief("early")));
    let (mut cut, mut kept) = (late.get(), early.get());
    let position = cut.next_event().id.unwrap();
    kept.next_event();
    let mut call = late.send_call_with_token(1, "progress", json!({ "count": 1, "gate": "g" }), 1).stream();
    let progress = loop {
        let event = call.next_event();
        if event.data.contains("progressToken") {
            break event.id.unwrap();
        }
    };
    let early = with(&early, &fresh("early"));
    assert_eq!(early.post(PING).head.status, 200);
    while cut.next_event_or_end().is_some() {}
    while call.next_event_or_end().is_some() {}
    assert!(now() >= end, "not before its time");
    gateway.await_metric("stream_cuts_total", &[("reason", "token_expired")], |count| count == 2.0);
    let refused = late.get_request().header("Last-Event-ID", &position).send(gateway.address());
    assert_eq!(challenge(&refused)["error"], "invalid_token");
    let late = with(&late, &fresh("late"));
    let mut resumed = late.resume(&progress);
    let mut again = late.resume(&position);
    late.call(2, "release", json!({ "gate": "g" }));
    assert_eq!(resumed.next_event().message()["id"], 1, "the answer of the call that went on");
    notify(&late, "notifications/prompts/list_changed");
    assert_eq!(again.next_event().message()["method"], "notifications/prompts/list_changed");
    notify(&early, "notifications/tools/list_changed");
    assert_eq!(kept.next_event().message()["method"], "notifications/tools/list_changed");
    assert_eq!(gateway.metrics().count("sessions", &[]), 2.0);
}

/// R:A22: the one stream of HTTP+SSE ends with its token too, whether its session has begun or not.
#[test]
fn http_sse_ends_with_its_token() {
    let issuer = Issuer::start();
    let gateway = start(&issuer, "", &Server::fake("fake").key("legacy_sse = true"));
    // Issued for the URL that such clients know.
    let brief = issuer.token(&format!("{PUBLIC}/fake/sse"), json!({ "exp": now() + 2 }));
    let brief = format!("Bearer {brief}");
    let request = Request::get("/fake/sse").header("Accept", "text/event-stream").header("Authorization", &brief);
    let mut bare = Exchange::send(gateway.address(), &request).stream();
    let mut begun = Exchange::send(gateway.address(), &request).stream();
    bare.next_event();
    let address = begun.next_event().data;
    let post = Request::post(&address, initialize("2024-11-05", json!({})).to_string());
    assert_eq!(post.header("Authorization", &brief).send(gateway.address()).status(), 202);
    begun.next_event();
    while bare.next_event_or_end().is_some() {}
    while begun.next_event_or_end().is_some() {}
    gateway.await_metric("sessions", &[], |count| count == 0.0);
    gateway.await_metric("stream_cuts_total", &[("reason", "token_expired")], |count| count == 2.0);
}

/// Quotas are a user's, however many clients act for it.
#[test]
fn quotas_count_by_issuer_and_subject() {
    let issuer = Issuer::start();
    let limits = "limits.requests_in_flight_per_principal = 1\nsessions.max_per_principal = 2";
    let gateway = start(&issuer, limits, &Server::fake("fake"));
    let alice = open(&gateway, &of(&issuer, "alice", "one"));
    let again = open(&gateway, &of(&issuer, "alice", "two"));
    let refused = begin(&of(&issuer, "alice", "three")).send(gateway.address());
    assert_eq!(refused.status(), 429, "{refused:?}");
    let bob = open(&gateway, &of(&issuer, "bob", "one"));
    let held = alice.send_call(1, "hold", json!({ "gate": "g" }));
    gateway.await_metric("requests_in_flight", &[("server", "fake")], |count| count == 1.0);
    let busy = again.call(2, "echo", json!({}));
    assert_eq!((&busy["error"]["code"], &busy["error"]["data"]["reason"]), (&json!(503), &json!("busy")));
    assert_eq!(bob.call_text(3, "echo", json!({})), "{}");
    assert_eq!(again.delete().status(), 204);
    open_when_free(&gateway, &of(&issuer, "alice", "three"));
    drop(held);
}

fn open_when_free(gateway: &Gateway, authorization: &str) {
    // Its place is given back by the end of the session, which a DELETE waits for; the call in flight has the other quota.
    let response = begin(authorization).send(gateway.address());
    assert_eq!(response.status(), 429, "one request is in flight: {response:?}");
}

/// Mode `principal`: two clients of one user are two callers, and share no process.
#[test]
fn processes_are_shared_within_one_principal_only() {
    let issuer = Issuer::start();
    let gateway = start(&issuer, "", &Server::fake("fake").key("mode = \"principal\""));
    let pid = |who: &str, client: &str| {
        let session = open(&gateway, &of(&issuer, who, client));
        session.call(1, "state", json!({}))["result"]["structuredContent"]["pid"].clone()
    };
    let one = pid("alice", "one");
    assert_eq!(pid("alice", "one"), one);
    assert_ne!(pid("alice", "two"), one);
    assert_ne!(pid("bob", "one"), one);
    let first = open(&gateway, &token(&issuer, json!({ "sub": "carol", "jti": "1" })));
    let second = with(&first, &token(&issuer, json!({ "sub": "carol", "jti": "2" })));
    assert_eq!(second.post(PING).head.status, 200);
}

/// F:F07: what is open for tokens of an issuer that is taken out of the configuration ends with it.
#[test]
fn an_issuer_that_is_gone_takes_its_sessions_along() {
    let (stays, goes) = (Issuer::start(), Issuer::start());
    let toml = |issuers: &str| {
        let listen = format!("listen.public_url = \"{PUBLIC}\"\n[auth]\nmethods = [\"oauth\"]\n");
        format!("{listen}{issuers}{}", Server::fake("fake").key("auth.issuers = [\"stays\"]").toml())
    };
    let all = |issuers: &str| toml(issuers).replace("auth.issuers = [\"stays\"]", "");
    let (one, two) = (stays.toml("stays", ""), goes.toml("goes", ""));
    let gateway = start_gateway(&all(&format!("{one}{two}")));
    let (ours, theirs) = (open(&gateway, &of(&stays, "alice", "c")), open(&gateway, &of(&goes, "alice", "c")));
    let (mut kept, mut cut) = (ours.get(), theirs.get());
    kept.next_event();
    assert_eq!(gateway.reload(&all(&one))["event"], "reload");
    while cut.next_event_or_end().is_some() {}
    gateway.await_metric("sessions_closed_total", &[("reason", "admin")], |count| count >= 1.0);
    assert_eq!(theirs.post_request(PING).send(gateway.address()).status(), 401);
}

/// F:F07: the same at a server that takes an issuer no more; what is open by tokens of another one goes on.
#[test]
fn a_server_that_takes_an_issuer_no_more_ends_what_is_open_by_it() {
    let (stays, goes) = (Issuer::start(), Issuer::start());
    let toml = |taken: &str| {
        let listen = format!("listen.public_url = \"{PUBLIC}\"\n[auth]\nmethods = [\"oauth\"]\n");
        let server = Server::fake("fake").key(&format!("auth.issuers = [{taken}]")).key("legacy_sse = true");
        format!("{listen}{}{}{}", stays.toml("stays", ""), goes.toml("goes", ""), server.toml())
    };
    let gateway = start_gateway(&toml("\"stays\", \"goes\""));
    let authorization = of(&goes, "alice", "c");
    let mut cut = open(&gateway, &authorization).get();
    let ours = open(&gateway, &of(&stays, "alice", "c"));
    let mut kept = ours.get();
    kept.next_event();
    let request =
        Request::get("/fake/sse").header("Accept", "text/event-stream").header("Authorization", &authorization);
    let mut bare = Exchange::send(gateway.address(), &request).stream();
    bare.next_event();
    let reloaded = gateway.reload(&toml("\"stays\""));
    assert_eq!((&reloaded["renewed"], &reloaded["changed"]), (&json!("fake"), &Value::Null), "{reloaded}");
    while cut.next_event_or_end().is_some() {}
    while bare.next_event_or_end().is_some() {}
    notify(&ours, "notifications/tools/list_changed");
    assert_eq!(kept.next_event().message()["method"], "notifications/tools/list_changed");
}

/// F:F07, R:A14: a server that moves leaves its open sessions the paths they know, and with them what their tokens are
/// issued for: that is what the metadata there says. At its new path those tokens count for nothing.
#[test]
fn a_moved_server_keeps_the_tokens_of_its_sessions() {
    let issuer = Issuer::start();
    let toml = |lines: &[&str]| {
        let server = lines.iter().fold(Server::fake("fake"), |server, line| server.key(line));
        let listen = format!("listen.public_url = \"{PUBLIC}\"\n[auth]\nmethods = [\"oauth\"]\n");
        format!("{listen}{}{}", issuer.toml("tests", ""), server.toml())
    };
    let of = |path: &str| {
        let claims = json!({ "sub": "alice", "client_id": "c" });
        format!("Bearer {}", issuer.token(&format!("{PUBLIC}{path}"), claims))
    };
    let gateway = start_gateway(&toml(&["legacy_sse = true"]));
    let session = open(&gateway, &of("/fake/mcp"));
    assert_eq!(gateway.reload(&toml(&["path = \"/elsewhere\""]))["changed"], "fake");
    let status = |token: &str| with(&session, token).post_request(PING).send(gateway.address()).status();
    assert_eq!((status(&of("/fake/mcp")), status(&of("/fake/sse")), status(&of("/elsewhere"))), (200, 200, 401));
    let metadata = Request::get("/.well-known/oauth-protected-resource/fake/mcp").send(gateway.address()).json();
    assert_eq!(metadata["resource"], AUDIENCE);
    let begin = |token: &str| {
        let request = Request::post("/elsewhere", initialize("2025-11-25", json!({})).to_string());
        request.header("Authorization", token).send(gateway.address()).status()
    };
    assert_eq!((begin(&of("/fake/mcp")), begin(&of("/elsewhere"))), (401, 200));
}

/// R:A13, F:E06: the token is nowhere a child could see it, nor in the log, nor in the numbers.
#[test]
fn a_token_goes_no_further() {
    let (issuer, record) = (Issuer::start(), Record::new());
    let server = Server::fake("fake").option("--record", record.path()).key("legacy_sse = true");
    let gateway = start(&issuer, "telemetry.log.level = \"trace\"", &server);
    let authorization = of(&issuer, "alice", "one");
    let session = open(&gateway, &authorization);
    let seen = session.call(1, "dump", json!({})).to_string();
    let stranger = of(&issuer, "bob", "one");
    with(&session, &stranger).post_request(PING).send(gateway.address());
    let in_query = format!("/fake/mcp?access_token={}", &authorization[7..]);
    assert_eq!(Request::post(&in_query, PING).send(gateway.address()).status(), 401);
    gateway.await_event("session_principal_mismatch", |_| true);
    let read = record.lines().concat();
    let numbers = Request::get("/metrics").send(gateway.admin());
    for token in [&authorization, &stranger] {
        // Head, claims and signature, each by itself too.
        for part in token[7..].split('.').chain([&token[7..]]) {
            for (place, text) in [("the child", &seen), ("its input", &read), ("the log", &gateway.stderr())] {
                assert!(!text.contains(part), "{place} has {part}");
            }
            assert!(!numbers.text().contains(part));
        }
    }
}

/// R:A13, F:E06, F:E12: claims of a verified token are variables of the child of the session that was opened with it, as
/// they were then; a value that could be two variables is refused.
#[test]
fn claims_are_variables_of_the_callers_own_child() {
    let issuer = Issuer::start();
    let table = "env_from.claims = { email = \"USER_EMAIL\", groups = \"USER_GROUPS\", tenant = \"TENANT\" }";
    let gateway = start(&issuer, "", &Server::fake("fake").key(table));
    let of = |claims| token(&issuer, claims);
    let environment = |session: &Session| -> Value {
        session.call(1, "dump", json!({}))["result"]["structuredContent"]["env"].clone()
    };
    let alice = of(json!({ "email": "alice@example.com", "groups": ["a", "b"], "tenant": null }));
    let session = open(&gateway, &alice);
    let later = with(&session, &of(json!({ "email": "other@example.com", "tenant": "t" })));
    for session in [&session, &later] {
        let seen = environment(session);
        assert_eq!((&seen["USER_EMAIL"], &seen["USER_GROUPS"]), (&json!("alice@example.com"), &json!("[\"a\",\"b\"]")));
        assert!(seen.get("TENANT").is_none(), "{seen}");
    }
    let bob = open(&gateway, &of(json!({ "sub": "bob", "email": "bob@example.com" })));
    assert_eq!(environment(&bob)["USER_EMAIL"], "bob@example.com");
    assert!(environment(&open(&gateway, &of(json!({})))).get("USER_EMAIL").is_none());
    for bad in ["a\nLD_PRELOAD=/x", "a\0b", &"x".repeat(4097)] {
        let response = begin(&of(json!({ "email": bad }))).send(gateway.address());
        assert_eq!(response.status(), 400, "{response:?}");
    }
    // A header of the same name says nothing.
    let forged = begin(&of(json!({}))).header("email", "eve@example.com").send(gateway.address());
    assert_eq!(forged.status(), 200, "{forged:?}");
    let forged = Session { id: forged.header("mcp-session-id").unwrap().to_owned(), ..later };
    assert!(environment(&with(&forged, &of(json!({})))).get("USER_EMAIL").is_none());
}
