//! Mode `shared`: many sessions on one child, and what each of them sees of it: its own calls, and nobody else's.

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::gateway::Gateway;
use crate::session::{Answer, Exchange, Session, call, initialize};

/// A server `fake` of mode `shared` that starts no child before it must.
pub fn shared() -> Server {
    Server::fake("fake").key("mode = \"shared\"").key("check_on_start = false").key("pool.min_idle = 0")
}

pub fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({}))
}

/// What the child behind a session says of itself.
pub fn state(session: &Session) -> Value {
    let answer = session.call("state", "state", json!({}));
    answer["result"]["structuredContent"].clone()
}

/// The messages of this method that children read, in their order.
pub fn read(record: &Record, method: &str) -> Vec<Value> {
    let lines = record.lines();
    let messages = lines.iter().map(|line| line.parse::<Value>().unwrap());
    messages.filter(|message| message["method"] == method).collect()
}

/// R:P06, C:B36, F:C05: with equal ids and tokens in several sessions of one child at once, each answer and each
/// progress goes to the session that asked, spelled as it spelled them, and the child never sees an id twice.
#[test]
fn equal_ids_of_several_sessions_do_not_meet() {
    let record = Record::new();
    let gateway = Gateway::start(&shared().option("--record", record.path()).toml());
    let sessions: Vec<Session> = (0..4).map(|_| open(&gateway)).collect();
    let pids: Vec<Value> = sessions.iter().map(|session| state(session)["pid"].clone()).collect();
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
    let ids = [json!(0), json!(1), json!("1")];
    let of = 4 * ids.len();
    let mut calls = Vec::new();
    for (own, session) in sessions.iter().enumerate() {
        for id in &ids {
            let arguments = json!({ "of": of, "nonce": format!("{own}-{id}") });
            calls.push((own, id, session.send_call_with_token(id.clone(), "reverse", arguments, id.clone())));
        }
    }
    for (own, id, call) in calls {
        let answer = call.finish().response(id);
        assert_eq!(answer["result"]["structuredContent"]["nonce"], format!("{own}-{id}"), "{answer}");
    }
    let mut seen: Vec<u64> = read(&record, "tools/call").iter().map(|call| call["id"].as_u64().unwrap()).collect();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((seen.len(), count), (of + 4, of + 4), "an id is used once");
}

/// R:P07, C:B40: progress under equal tokens comes to the owner's stream only, with the token as the owner spelled it;
/// what comes after the answer reaches nobody.
#[test]
fn progress_comes_to_its_owner_only() {
    let gateway = Gateway::start(&shared().toml());
    let sessions: Vec<Session> = (0..3).map(|_| open(&gateway)).collect();
    let mut others: Vec<_> = sessions.iter().map(Session::get).collect();
    let tokens = ["1", "\"1\"", "\"a\\u0062\""];
    let mut calls = Vec::new();
    for (own, session) in sessions.iter().enumerate() {
        for token in tokens {
            let values: Vec<usize> = (1..=4).map(|step| 1000 * (own + 1) + step).collect();
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":{token},"method":"tools/call","params":{{"name":"progress","arguments":{{"values":{values:?},"pace":0.01,"late":2}},"_meta":{{"progressToken":{token}}}}}}}"#
            );
            calls.push((values, token, session.send(body)));
        }
    }
    for (values, token, call) in calls {
        let answer = call.finish();
        let expected: Vec<String> = values
            .iter()
            .map(|value| format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{value},"total":4}}}}"#))
            .collect();
        assert_eq!(answer.texts[..4], expected[..], "{answer:?}");
        assert!(answer.raw().starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{token},"result":"#)), "{answer:?}");
        assert_eq!(answer.texts.len(), 5, "{answer:?}");
    }
    gateway.await_metric("notifications_dropped_total", &[("reason", "no_request")], |count| count == 18.0);
    for (session, stream) in sessions.iter().zip(&mut others) {
        session.delete();
        while let Some(event) = stream.next_event_or_end() {
            assert!(event.data.is_empty(), "nothing of it came elsewhere: {event:?}");
        }
    }
}

/// R:H33 on a shared child: payloads pass byte for byte in both directions.
#[test]
fn payloads_pass_unchanged() {
    let gateway = Gateway::start(&shared().toml());
    let session = open(&gateway);
    let _other = open(&gateway);
    let raw = r#"{"a":1.0,"b":[1e400,-0,18446744073709551616],"c":"\u00e9\/é","a2":null}"#;
    let answer = session.post(format!(r#"{{"jsonrpc":"2.0","id":"x","method":"vendor/echo","params":{raw}}}"#));
    assert_eq!(answer.raw(), format!(r#"{{"jsonrpc":"2.0","id":"x","result":{raw}}}"#));
}

fn greeting(gateway: &Gateway, revision: &str, id: &str, capabilities: &Value) -> (Answer, String) {
    let mut body = initialize(revision, capabilities.clone());
    body["id"] = id.parse().unwrap();
    let request = crate::client::Request::post("/fake/mcp", body.to_string());
    let answer = Exchange::send(gateway.address(), &request).finish();
    let text = answer.raw().to_owned();
    (answer, text)
}

/// R:P03, R:P04, R:P05, R:P24, C:B38: the child sees one `initialize`, in the gateway's name and without capabilities,
/// and one `initialized`; what it answered is every session's answer, but for the id.
#[test]
fn the_child_is_initialized_once() {
    let record = Record::new();
    let extra = r#"{"instructions":"\u00e9 é","zz":{"n":1.50}}"#;
    let server = shared().option("--record", record.path()).arg("--init-merge").arg(extra);
    let gateway = Gateway::start(&server.toml());
    let full = json!({ "roots": { "listChanged": true }, "sampling": {}, "elicitation": {}, "tasks": {} });
    let ids = ["1", "\"1\"", "\"initialize\""];
    let texts: Vec<String> = ids.iter().map(|id| greeting(&gateway, "2025-11-25", id, &full).1).collect();
    let strip =
        |text: &str, id: &str| text.strip_prefix(&format!(r#"{{"jsonrpc":"2.0","id":{id},"#)).map(str::to_owned);
    let results: Vec<String> = texts.iter().zip(ids).map(|(text, id)| strip(text, id).expect(text)).collect();
    assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
    let one = open(&gateway);
    assert_eq!(one.initialized["zz"]["n"].to_string(), "1.5");
    let said = state(&one);
    assert_eq!((&said["initializes"], &said["initialized"]), (&json!(1), &json!(1)));
    let seen = read(&record, "initialize");
    assert_eq!(seen.len(), 1);
    let params = &seen[0]["params"];
    assert_eq!(params["clientInfo"], json!({ "name": "gangway", "version": env!("CARGO_PKG_VERSION") }));
    assert_eq!(params["capabilities"], json!({}));
    assert_eq!(params["protocolVersion"], "2025-11-25");
    assert_eq!(gateway.descendants().len(), 1);
}

/// R:P02: a session of another revision has another child; two of one revision have one.
#[test]
fn a_revision_has_a_child_of_its_own() {
    let gateway = Gateway::start(&shared().toml());
    let pid = |revision: &str| {
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        assert_eq!(session.revision, revision);
        let said = state(&session);
        assert_eq!(said["initialize"]["protocolVersion"], revision);
        said["pid"].as_u64().unwrap()
    };
    let revisions = ["2025-03-26", "2025-06-18", "2025-11-25"];
    let first = revisions.map(pid);
    assert_eq!(first, revisions.map(pid));
    let mut distinct = first.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 3);
}

/// R:P12, R:P24, R:H31: what is a session's own business reaches no child: pings, `initialized`, `roots/list_changed`,
/// unknown notifications, and answers to what was never asked.
#[test]
fn the_child_hears_nothing_of_single_sessions() {
    let record = Record::new();
    let gateway = Gateway::start(&shared().option("--record", record.path()).toml());
    let session = open(&gateway);
    state(&session);
    // The gateway reads lists in its own name, some time.
    let lines = || record.lines().into_iter().filter(|line| !line.contains("/list\"")).count();
    let before = lines();
    assert_eq!(
        session.post(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#).raw(),
        r#"{"jsonrpc":"2.0","id":"p","result":{}}"#
    );
    for method in
        ["notifications/initialized", "notifications/roots/list_changed", "notifications/progress", "vendor/x"]
    {
        assert_eq!(session.notify(method, json!({ "progressToken": 1, "progress": 1 })).status(), 202);
    }
    assert_eq!(session.respond(&json!("ask"), json!({})).status(), 202);
    session.call(1, "echo", json!({}));
    assert_eq!(lines(), before + 1, "{:?}", record.lines());
}

/// R:P03, R:P18, F:B08, C:B48: what a shared child asks is refused at once, whatever the client declared and however few
/// sessions there are, already while it starts; its pings are answered. No client hears of any of it.
#[test]
fn the_child_cannot_ask() {
    let ask = |method: &str| format!(r#"{{"jsonrpc":"2.0","id":"early","method":"{method}"}}"#);
    let server = shared().arg("--after-init").arg(ask("roots/list")).arg("--after-initialized").arg(ask("roots/list"));
    let gateway = Gateway::start(&server.toml());
    let full = json!({ "roots": {}, "sampling": {}, "elicitation": {} });
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", full);
    let stream = session.get();
    for method in ["sampling/createMessage", "elicitation/create", "roots/list", "vendor/ask"] {
        let call = session.send_call_with_token(1, "ask", json!({ "method": method, "params": {} }), "t").finish();
        let answer = call.response(&json!(1));
        assert_eq!(answer["result"]["structuredContent"]["error"]["code"], -32601, "{method}: {answer}");
        assert_eq!(call.texts.len(), 1, "{method}: {call:?}");
    }
    let pong = session.call(2, "ask", json!({ "method": "ping" }));
    assert_eq!(pong["result"]["structuredContent"]["result"], json!({}), "{pong}");
    let early = state(&session)["stray"].as_array().unwrap().clone();
    assert_eq!(early.len(), 2, "{early:?}");
    assert!(early.iter().all(|answer| answer["error"]["code"] == -32601), "{early:?}");
    session.delete();
    assert!(stream.rest().iter().all(|event| event.data.is_empty()));
}

/// R:P14, C:B41: a cancellation ends the own call of that id and no other's; the child is told its own id of it.
#[test]
fn a_cancellation_ends_the_own_call_only() {
    let record = Record::new();
    let gateway = Gateway::start(&shared().option("--record", record.path()).toml());
    let (a, b, c) = (open(&gateway), open(&gateway), open(&gateway));
    let hold = |session: &Session, whose: &str| session.send_call(7, "hold", json!({ "gate": "g", "whose": whose }));
    let calls = [hold(&a, "a"), hold(&b, "b")];
    a.call(1, "await_held", json!({ "gate": "g", "count": 2 }));
    c.notify("notifications/cancelled", json!({ "requestId": 7 }));
    a.notify("notifications/cancelled", json!({ "requestId": "7" }));
    assert_eq!(state(&c)["cancelled"], json!([]), "neither of them was theirs");
    a.notify("notifications/cancelled", json!({ "requestId": 7, "reason": "mine" }));
    let [of_a, of_b] = calls;
    assert_eq!(of_a.finish().message()["error"]["data"]["reason"], "cancelled");
    b.call(2, "await_cancelled", json!({}));
    let seen = read(&record, "notifications/cancelled");
    assert_eq!(seen.len(), 1, "{seen:?}");
    let calls = read(&record, "tools/call");
    let own = calls.iter().find(|call| call["params"]["arguments"]["whose"] == "a").unwrap();
    assert_eq!(seen[0]["params"], json!({ "requestId": own["id"], "reason": "mine" }));
    b.call(2, "release", json!({ "gate": "g" }));
    assert_eq!(of_b.finish().response(&json!(7))["result"]["structuredContent"]["gate"], "g");
    gateway.await_metric("unmatched_responses_total", &[("from", "child")], |count| count == 1.0);
}

/// R:P24, R:P15: the end of a session cancels its own calls and leaves the child and everybody else alone.
#[test]
fn the_end_of_a_session_is_no_end_of_the_child() {
    let gateway = Gateway::start(&shared().toml());
    let (a, b) = (open(&gateway), open(&gateway));
    let pid = state(&a)["pid"].clone();
    let calls = [&a, &b].map(|session| session.send_call(7, "hold", json!({ "gate": "g" })));
    b.call(1, "await_held", json!({ "gate": "g", "count": 2 }));
    assert_eq!(a.delete().status(), 204);
    let [of_a, of_b] = calls;
    assert_eq!(of_a.finish().message()["error"]["code"], 502);
    let cancelled = b.call(2, "await_cancelled", json!({}));
    assert_eq!(cancelled["result"]["structuredContent"]["cancelled"].as_array().map(Vec::len), Some(1));
    b.call(3, "release", json!({ "gate": "g" }));
    assert_eq!(of_b.finish().response(&json!(7))["result"]["structuredContent"]["gate"], "g");
    assert_eq!(state(&b)["pid"], pid);
    b.delete();
    assert_eq!(state(&open(&gateway))["pid"], pid, "it waits for the next one");
}

/// R:P15: a call that ran out of time ends alone.
#[test]
fn a_call_times_out_alone() {
    let gateway = Gateway::start(&shared().key("timeouts.call_idle = \"1s\"").toml());
    let (a, b) = (open(&gateway), open(&gateway));
    let slow = a.send_call(1, "silent", json!({}));
    let steady = b.send_call_with_token(1, "progress", json!({ "count": 15, "pace": 0.1 }), 1);
    assert_eq!(slow.finish().message()["error"]["code"], 504);
    assert_eq!(steady.finish().response(&json!(1))["result"]["content"][0]["text"], "progressed");
}

/// R:P20, C:B44: pages of a list come from the process that gave the cursor.
#[test]
fn cursors_work() {
    let gateway = Gateway::start(&shared().arg("--page-size").arg("7").toml());
    let sessions = [open(&gateway), open(&gateway)];
    let all = |session: &Session| {
        let (mut names, mut params) = (Vec::new(), json!({}));
        loop {
            let page = session.request(1, "tools/list", params)["result"].clone();
            names
                .extend(page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
            let Some(cursor) = page["nextCursor"].as_str() else { return names };
            params = json!({ "cursor": cursor });
        }
    };
    let lists = [all(&sessions[0]), all(&sessions[1])];
    assert!(lists[0].len() > 30);
    assert_eq!(lists[0], lists[1]);
}

/// R:P26: the parts of a batch may meet other sessions' calls at the child; every answer is right all the same.
#[test]
fn batches_interleave() {
    let gateway = Gateway::start(&shared().toml());
    let sessions = [(); 2].map(|()| Session::open(&gateway, "/fake/mcp", "2025-03-26", json!({})));
    let batch = |own: usize| {
        let part = |id: usize| call(id, "reverse", json!({ "of": 8, "nonce": format!("{own}-{id}") }), None);
        Value::Array((0..4).map(part).collect()).to_string()
    };
    let calls: Vec<Exchange> = sessions.iter().enumerate().map(|(own, session)| session.send(batch(own))).collect();
    for (own, call) in calls.into_iter().enumerate() {
        let mut answers = call.finish().messages();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        let nonces: Vec<&str> =
            answers.iter().map(|answer| answer["result"]["structuredContent"]["nonce"].as_str().unwrap()).collect();
        assert_eq!(nonces, (0..4).map(|id| format!("{own}-{id}")).collect::<Vec<_>>());
    }
}
