//! Which revision a session speaks, and what `MCP-Protocol-Version` may say about it.

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::client::Request;
use crate::gateway::Gateway;
use crate::session::{Exchange, Session, initialize};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// The gateway's answer to `initialize` with this version, the header as given.
#[track_caller]
fn negotiate(gateway: &Gateway, version: Value, header: Option<&str>) -> crate::session::Answer {
    let mut body = initialize("", json!({}));
    body["params"]["protocolVersion"] = version;
    let mut request = Request::post("/fake/mcp", body.to_string());
    if let Some(header) = header {
        request = request.header("MCP-Protocol-Version", header);
    }
    Exchange::send(gateway.address(), &request).finish()
}

/// R:V03: the child's own process hears the version the client asked for, and its answer is the session's.
#[test]
fn the_child_of_a_session_negotiates_itself() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        assert_eq!(session.revision, revision);
        record.await_message(|message| message["params"]["protocolVersion"] == revision);
    }
    let old = Gateway::start(&Server::fake("fake").option("--version", "2024-11-05").toml());
    let session = Session::open(&old, "/fake/mcp", "2025-11-25", json!({}));
    assert_eq!(session.revision, "2024-11-05", "a child that only knows the first revision");
    assert_eq!(session.post(PING).head.status, 200);
}

/// R:V01, R:V02, R:V08, C:B61: a version nobody has a handshake for is answered by the latest that has one,
/// as a result; the child never hears a version it might take for its own.
#[test]
fn an_unknown_version_is_answered_by_a_result() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    for asked in ["2099-01-01", "2026-07-28", "DRAFT", "1.0", "", "2025-11-25 ", "2025-11-2"] {
        let answer = negotiate(&gateway, json!(asked), None);
        assert_eq!(answer.head.status, 200, "{asked}: {answer:?}");
        assert_eq!(answer.message()["result"]["protocolVersion"], "2025-11-25", "{asked}: {answer:?}");
        assert!(answer.head.header("mcp-session-id").is_some(), "{asked}");
    }
    let lines = record.lines();
    assert_eq!(lines.len(), 7, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains(r#""protocolVersion":"2025-11-25""#)), "{lines:?}");
}

/// R:V09, C:B61: on `initialize` the header decides nothing, whatever it says.
#[test]
fn the_header_of_initialize_is_ignored() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    for header in [None, Some("2025-11-25"), Some("2026-07-28"), Some("2099-01-01"), Some("abc"), Some("")] {
        let answer = negotiate(&gateway, json!("2025-06-18"), header);
        assert_eq!(answer.head.status, 200, "{header:?}: {answer:?}");
        assert_eq!(answer.message()["result"]["protocolVersion"], "2025-06-18", "{header:?}: {answer:?}");
    }
}

/// R:V04, R:V05, R:V06, R:V07, R:V08, C:B61: absent or known, the header changes nothing; unknown it is a
/// 400, on every method, and the session lives on.
#[test]
fn the_header_must_name_a_revision() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    for negotiated in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway, "/fake/mcp", negotiated, json!({}));
        let post = |header: Option<&str>, body: &str| {
            let request = session.post_request(body).without("MCP-Protocol-Version");
            header.into_iter().fold(request, |request, header| request.header("MCP-Protocol-Version", header))
        };
        for header in [None, Some("2024-11-05"), Some("2025-03-26"), Some("2025-06-18"), Some("2025-11-25")] {
            let response = post(header, PING).send(session.address);
            assert_eq!(response.status(), 200, "{negotiated}, header {header:?}: {response:?}");
            // The rules stay those of the negotiated revision: only it decides about arrays.
            let array = post(header, &format!("[{PING}]")).send(session.address);
            let wanted = if negotiated == "2025-03-26" { 200 } else { 400 };
            assert_eq!(array.status(), wanted, "{negotiated}, header {header:?}: {array:?}");
        }
        let before = record.lines().len();
        for header in ["2026-07-28", "2099-01-01", "1999-01-01-x", "DRAFT", "abc", "", "2025-11-25, 2025-06-18"] {
            let response = post(Some(header), PING).send(session.address);
            assert_eq!(response.status(), 400, "{negotiated}, header {header:?}: {response:?}");
            let answer = response.json();
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &json!(1)), "{answer}");
            for request in [session.get_request(), session.delete_request()] {
                let response = request.with("MCP-Protocol-Version", header).send(session.address);
                assert_eq!(response.status(), 400, "{negotiated}, header {header:?}: {response:?}");
            }
        }
        let twice = post(Some("2025-11-25"), PING).header("MCP-Protocol-Version", "2025-11-25");
        assert_eq!(twice.send(session.address).status(), 400);
        assert_eq!(record.lines().len(), before, "what is refused does not reach the child");
        assert_eq!(session.post(PING).head.status, 200);
    }
}

/// R:V05: without the header a session keeps the rules of its own revision, not those of 2025-03-26.
#[test]
fn a_session_without_the_header_keeps_its_revision() {
    let gateway = Gateway::start(&format!("streams.sse_after = \"0s\"\n{}", Server::fake("fake").toml()));
    for (revision, primed) in
        [("2024-11-05", false), ("2025-03-26", false), ("2025-06-18", false), ("2025-11-25", true)]
    {
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        let request = session.post_request(PING).without("MCP-Protocol-Version");
        let answer = Exchange::send(session.address, &request).finish();
        let priming = answer.events.iter().filter(|event| event.data.is_empty()).count();
        assert_eq!(priming, usize::from(primed), "{revision}: {answer:?}");
    }
}

/// R:S04: a client of both eras probes without a session; it must see at once that this
/// is a server with a handshake, whatever its headers say.
#[test]
fn a_probe_without_a_session_falls_back() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "x", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    for (id, method) in [(json!("probe"), "server/discover"), (json!(7), "tools/list"), (json!(8), "ping")] {
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": { "_meta": meta } }).to_string();
        for version in [None, Some("2026-07-28"), Some("2025-11-25"), Some("x")] {
            let request = Request::post("/fake/mcp", &body).header("Mcp-Method", method).header("Mcp-Name", "x");
            let request =
                version.into_iter().fold(request, |request, version| request.header("MCP-Protocol-Version", version));
            let response = request.send(gateway.address());
            assert_eq!(response.status(), 400, "{method} {version:?}: {response:?}");
            let answer = response.json();
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &id), "{method} {version:?}");
        }
    }
    assert!(record.all().is_empty(), "a probe starts no child");
}
