//! `Mcp-Session-Id`: what it may be, and that nothing but the very id finds a session.

use serde_json::json;

use crate::child::{Record, Server};
use crate::client::{Request, Response};
use crate::gateway::Gateway;
use crate::session::{Session, initialize};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// Two servers with recorded children, started only by sessions.
fn start(record: &Record) -> Gateway {
    let server = |name| {
        let server = Server::fake(name).option("--record", record.path());
        server.key("check_on_start = false").key("pool.min_idle = 0").toml()
    };
    Gateway::start(&format!("{}{}", server("one"), server("two")))
}

/// The answers to a POST, a GET, a DELETE and a resume with these `Mcp-Session-Id` fields.
fn ask(session: &Session, ids: &[&str]) -> Vec<Response> {
    let requests = [
        session.post_request(PING),
        session.get_request(),
        session.get_request().header("Last-Event-ID", "00000000.1"),
        session.delete_request(),
        session.post_request(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#),
        session.post_request(initialize("2025-11-25", json!({})).to_string()),
    ];
    let with_ids = |request: Request| {
        let request = request.without("Mcp-Session-Id");
        ids.iter().fold(request, |request, id| request.header("Mcp-Session-Id", id)).send(session.address)
    };
    requests.into_iter().map(with_ids).collect()
}

/// R:S05, F:C08, C:B50: an id nobody has is a 404 on every method, whatever it looks like; it never falls back
/// to the one session there is, and nothing reaches its child.
#[test]
fn an_id_nobody_has_is_404() {
    let record = Record::new();
    let gateway = start(&record);
    let session = Session::open(&gateway, "/one/mcp", "2025-11-25", json!({}));
    let (node, random) = session.id.split_once('-').unwrap();
    let unknown = [
        format!("{node}-{}", "0".repeat(32)),
        format!("{}-{random}", "x".repeat(node.len())),
        session.id.to_uppercase(),
        format!("{}0", session.id),
        session.id[..session.id.len() - 1].to_owned(),
        random.to_owned(),
        node.to_owned(),
        format!("{node}-"),
        String::new(),
        "*".to_owned(),
        "../one".to_owned(),
        "null".to_owned(),
        "undefined".to_owned(),
        format!("{},{}", session.id, session.id),
        format!("\"{}\"", session.id),
        "x".repeat(10 << 10),
    ];
    for id in &unknown {
        for response in ask(&session, &[id]) {
            assert_eq!(response.status(), 404, "{id:?}: {response:?}");
            assert_eq!(response.header("content-type"), Some("application/json"));
            assert_eq!(response.json()["error"]["code"], 404, "{id:?}: {response:?}");
            assert!(response.header("mcp-session-id").is_none(), "{id:?}: {response:?}");
        }
    }
    // Of another server, and of one that ended.
    let elsewhere = Session { path: "/two/mcp".to_owned(), ..session.clone() };
    let ended = Session::open(&gateway, "/one/mcp", "2025-11-25", json!({}));
    assert_eq!(ended.delete().status(), 204);
    for (session, id) in [(&elsewhere, &session.id), (&ended, &ended.id)] {
        for response in ask(session, &[id]) {
            assert_eq!(response.status(), 404, "{response:?}");
        }
    }
    assert_eq!(session.post(PING).head.status, 200);
    let reached = record.lines().iter().filter(|line| line.contains("ping")).count();
    assert_eq!(reached, 1, "{:?}", record.lines());
}

/// R:S04, F:C08, C:B50: no id, two of them, or one that is no text are a 400, also where there is but one session;
/// `initialize` alone needs none.
#[test]
fn no_id_or_two_is_400() {
    let record = Record::new();
    let gateway = start(&record);
    let session = Session::open(&gateway, "/one/mcp", "2025-11-25", json!({}));
    let own = session.id.as_str();
    for ids in [&[][..], &[own, own], &[own, "x"], &["\u{e9}"]] {
        let mut answers = ask(&session, ids);
        let begin = answers.pop().unwrap();
        let wanted = if ids.is_empty() { 200 } else { 400 };
        assert_eq!(begin.status(), wanted, "initialize with {ids:?}: {begin:?}");
        for response in answers {
            assert_eq!(response.status(), 400, "{ids:?}: {response:?}");
            assert_eq!(response.header("content-type"), Some("application/json"), "{response:?}");
        }
    }
    let nameless = session.post_request(PING).without("Mcp-Session-Id").send(session.address).json();
    assert_eq!((&nameless["error"]["code"], &nameless["id"]), (&json!(-32600), &json!(1)), "{nameless}");
    assert_eq!(session.post(PING).head.status, 200);
}
