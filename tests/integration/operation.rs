//! What the operator sees: health, metrics, the access log.

use std::collections::BTreeSet;

use serde_json::json;

use crate::child::Server;
use crate::client::{Connection, Request};
use crate::gateway::Gateway;
use crate::session::{Session, call};

fn admin(gateway: &Gateway, target: &str) -> (u16, String) {
    let response = Request::get(target).send(gateway.admin());
    (response.status(), response.text().to_owned())
}

/// C:B114: health tells the process from its servers, by one word, and starts no child.
#[test]
fn health_tells_and_starts_nothing() {
    let broken = Server::of("broken", "/nonexistent/server").key("required = true");
    let idle = Server::fake("idle").key("check_on_start = false").key("pool.min_idle = 0");
    let gateway = Gateway::start(&format!("[listen]\nhealth = true\n{}{}", broken.toml(), idle.toml()));
    gateway.await_event("server_failed", |event| event["server"] == "broken");
    for _ in 0..20 {
        assert_eq!(admin(&gateway, "/livez"), (200, "ok\n".to_owned()));
        assert_eq!(admin(&gateway, "/readyz"), (503, "failed\n".to_owned()));
        assert_eq!(admin(&gateway, "/servers/idle/readyz"), (200, "ok\n".to_owned()));
        assert_eq!(admin(&gateway, "/servers/broken/readyz").0, 503);
        assert_eq!(admin(&gateway, "/servers/nobody/readyz").0, 404);
        assert_eq!(Request::get("/readyz").send(gateway.address()).status(), 503);
        assert_eq!(Request::post("/idle/mcp", "").send(gateway.address()).status(), 400);
    }
    let (status, verbose) = admin(&gateway, "/readyz?verbose");
    assert_eq!(status, 503);
    assert!(verbose.contains("broken failed") && verbose.contains("idle ready"), "{verbose}");
    assert!(verbose.lines().all(|line| line.trim_end() == line), "{verbose:?}");
    assert_eq!(admin(&gateway, "/livez?verbose"), (200, "ok\n".to_owned()));
    assert_eq!(admin(&gateway, "/servers/idle/readyz?verbose"), (200, "ok\n".to_owned()));
    assert!(gateway.descendants().is_empty());
}

/// Off loopback only health goes without the token.
#[test]
fn off_loopback_the_token_opens_the_metrics() {
    let toml = format!(
        "[admin]\naddress = \"0.0.0.0:0\"\ntoken = \"operator-token-of-this-test\"\n{}",
        Server::demo("demo").toml()
    );
    let gateway = Gateway::start(&toml);
    let address = ([127, 0, 0, 1], gateway.admin().port()).into();
    assert_eq!(Request::get("/livez").send(address).status(), 200);
    for target in ["/metrics", "/readyz?verbose"] {
        assert_eq!(Request::get(target).send(address).status(), 401, "{target}");
        let wrong = Request::get(target).with("Authorization", "Bearer operator-token-of-this-tesT");
        assert_eq!(wrong.send(address).status(), 401, "{target}");
        for right in ["Bearer operator-token-of-this-test", "bearer  operator-token-of-this-test "] {
            let request = Request::get(target).with("Authorization", right);
            assert_ne!(request.send(address).status(), 401, "{target} {right:?}");
            let twice = Request::get(target).header("Authorization", right).header("Authorization", right);
            assert_eq!(twice.send(address).status(), 401, "which of two is meant cannot be known");
        }
    }
}

/// F:F12, C:B115: names a client makes up become no series.
#[test]
fn series_do_not_grow_with_input() {
    let gateway = Gateway::start(&Server::demo("demo").toml());
    // The scout's end and the first spare make series of their own.
    gateway.await_event("child_exit", |_| true);
    gateway.await_metric("children", &[("state", "idle")], |idle| idle == 1.0);
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let labels = |gateway: &Gateway| -> BTreeSet<String> {
        let text = Request::get("/metrics").send(gateway.admin()).text().to_owned();
        let series = text.lines().filter(|line| !line.starts_with('#'));
        series.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
    };
    session.request(1, "vendor/0", json!({}));
    session.call(2, "made_up_0", json!({}));
    Request::get("/nowhere/0").send(gateway.address());
    // The pool refills by itself, and the scrape is counted from the second on.
    gateway.await_metric("children", &[("state", "idle")], |count| count == 1.0);
    labels(&gateway);
    let before = labels(&gateway);
    for n in 1..40 {
        session.request(10 + n, &format!("vendor/{n}"), json!({}));
        session.call(100 + n, &format!("made_up_{n}"), json!({}));
        Request::get(&format!("/nowhere/{n}")).send(gateway.address());
    }
    let grown: Vec<_> = labels(&gateway).difference(&before).cloned().collect();
    assert!(grown.is_empty(), "{grown:?}");
}

/// One line per posted message and per request a child makes, its fields in the documented order;
/// F:F12: nothing anybody sends gets through unescaped.
#[test]
fn the_access_log_has_a_line_per_message() {
    let gateway = Gateway::start(&Server::demo("demo").toml());
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({ "roots": {} }));
    let hostile = "x\u{1b}[31m\r\nevent=\u{202e}forged\u{2028}";
    session.call(json!(hostile), hostile, json!({}));
    let mut stream = session.send_call(2, "ask_roots", json!({})).stream();
    let question = stream.await_message(|message| message["method"] == "roots/list");
    session.respond(&question["id"], json!({ "roots": [] }));
    stream.await_message(|message| message["id"] == 2);
    gateway.await_event("rpc", |event| event["method"] == "roots/list");
    gateway.await_event("rpc", |event| event["tool"] == "ask_roots");

    let lines = gateway.stderr();
    let rpc: Vec<&str> = lines.lines().filter(|line| line.contains(r#""event":"rpc""#)).collect();
    // initialize, initialized, the hostile call, the call, the child's question, its answer.
    assert_eq!(rpc.len(), 6, "{rpc:#?}");
    let order = ["ts", "level", "event", "node", "server", "method", "outcome", "ms", "session", "principal"];
    for line in rpc {
        let places: Vec<usize> = order.iter().map(|key| line.find(&format!("\"{key}\":")).expect(key)).collect();
        assert!(places.is_sorted(), "{line}");
    }
    assert!(!lines.contains(['\u{1b}', '\u{202e}', '\u{2028}', '\r']));
}

/// R:S17, C:B111, F:E13: the log at its loudest and the metrics hold no session id, key, argument or result.
#[test]
fn secrets_stay_out_of_logs_and_metrics() {
    let hash = "3f5fd1a7ec3f1d7f0e5b6e1e3b1c8b6a3b7a0b1c2d3e4f5061728394a5b6c7d8";
    let auth = format!("[auth.keys.alice]\nhash = \"sha256:{hash}\"\n");
    let server = Server::demo("demo").key("env = { TOKEN = \"canary-environment\" }").key("auth.methods = [\"none\"]");
    let gateway = Gateway::start(&format!("{auth}[telemetry]\nlog = {{ level = \"trace\" }}\n{}", server.toml()));
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    let shown = session.post_request(r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"echo","arguments":{"text":"canary-argument"}}}"#);
    let target = shown.with("Authorization", "Bearer gangway_canarykeycanarykeycanarykeycanarykeycanary1");
    assert!(target.send(gateway.address()).text().contains("canary-argument"));
    Request::get("/demo/mcp?access_token=canary-query").send(gateway.address());
    gateway.await_event("rpc", |event| event["tool"] == "echo");
    let all = gateway.stderr() + &admin(&gateway, "/metrics").1;
    let id = session.id.clone();
    for canary in ["canary", &id, hash] {
        assert!(!all.contains(canary), "{canary}");
    }
}

/// W3C Trace Context: the trace a client or a proxy names stands with every message of it, and nothing that is none.
#[test]
fn lines_name_the_trace_their_request_is_part_of() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let call = |id: &str| call(id, "echo", json!({}), None).to_string();
    for (id, parent, wanted) in [("of", parent.as_str(), json!(trace)), ("un", "00-x-y-01", json!(null))] {
        let response = session.post_request(call(id)).header("traceparent", parent).send(session.address);
        assert_eq!(response.status(), 200, "{response:?}");
        let line = gateway.await_event("rpc", |event| event["rpc_id"] == id);
        assert_eq!(line["trace_id"], wanted, "{line}");
    }
    let told = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    assert_eq!(session.post_request(told).header("traceparent", &parent).send(session.address).status(), 202);
    gateway.await_event("rpc", |event| event["answer"] == "accepted" && event["trace_id"] == trace);
}

/// R:X06, C:B114: whoever may see the metrics is no stranger: its connection is not taken from it however often it looks.
#[test]
fn a_scraper_keeps_its_connection() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let mut connection = Connection::open(gateway.admin());
    for look in 0..80 {
        connection.request(&Request::get("/metrics"));
        let response = connection.response();
        assert_eq!((response.status(), response.header("Connection")), (200, None), "look {look}");
    }
}
