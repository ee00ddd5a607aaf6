//! Messages that are none: each has one answer, in every stateful revision and without a session, and
//! not one byte of them reaches a child.

use serde_json::{Value, json};

use crate::child::{Record, Server};
use crate::client::{Connection, Request, Response};
use crate::gateway::Gateway;
use crate::session::Session;

/// Every revision with a handshake.
pub const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// Stands in every method and value below; an answer that quotes its request would show it.
const CANARY: &str = "canary";

/// A body that is no message, and its one answer; the status is 400 for all.
struct Bad {
    what: &'static str,
    body: Vec<u8>,
    code: i64,
    /// As it must stand in the answer; `None` where the answer must have no `id` at all.
    id: Option<&'static str>,
}

/// -32700: not JSON.
fn unparsable() -> Vec<Bad> {
    let texts: [(&str, &[u8]); 58] = [
        ("nothing", b""),
        ("white space", b" \r\n\t"),
        ("an opened object", b"{"),
        ("a closed object", b"}"),
        ("a closed array", b"]"),
        ("half a message", br#"{"jsonrpc":"2.0","id":1,"method":"canary"#),
        ("a message without its end", br#"{"jsonrpc":"2.0","id":1,"method":"canary""#),
        ("a comma at the end", br#"{"jsonrpc":"2.0","id":1,"method":"canary",}"#),
        ("a comma at the beginning", br#"{,"jsonrpc":"2.0","id":1,"method":"canary"}"#),
        ("two commas", br#"{"jsonrpc":"2.0",,"id":1,"method":"canary"}"#),
        ("no comma", br#"{"jsonrpc":"2.0" "id":1,"method":"canary"}"#),
        ("no colon", br#"{"jsonrpc" "2.0","id":1,"method":"canary"}"#),
        ("two colons", br#"{"jsonrpc"::"2.0","id":1,"method":"canary"}"#),
        ("a key without a value", br#"{"jsonrpc":"2.0","id":1,"method":"canary","params"}"#),
        ("a value that is missing", br#"{"jsonrpc":"2.0","id":1,"method":"canary","params":}"#),
        ("single quotes", br#"{'jsonrpc':'2.0','id':1,'method':'canary'}"#),
        ("keys without quotes", br#"{jsonrpc:"2.0",id:1,method:"canary"}"#),
        ("a number as key", br#"{"jsonrpc":"2.0","id":1,"method":"canary",1:2}"#),
        ("a comment", br#"{"jsonrpc":"2.0",/* canary */"id":1,"method":"canary"}"#),
        ("a line comment", b"{\"jsonrpc\":\"2.0\",// canary\n\"id\":1,\"method\":\"canary\"}"),
        ("brackets that do not match", br#"{"jsonrpc":"2.0","id":1,"method":"canary","params":[}]"#),
        ("a string without its end", br#"{"jsonrpc":"2.0","id":1,"method":"canary}"#),
        ("NaN", br#"{"jsonrpc":"2.0","id":1,"method":"canary","params":{"n":NaN}}"#),
        ("Infinity", br#"{"jsonrpc":"2.0","id":1,"method":"canary","params":{"n":-Infinity}}"#),
        ("undefined", br#"{"jsonrpc":"2.0","id":1,"method":"canary","params":{"n":undefined}}"#),
        ("True", br#"{"jsonrpc":"2.0","id":1,"method":"canary","params":{"n":True}}"#),
        ("half a null", br#"{"jsonrpc":"2.0","id":1,"method":"canary","params":{"n":nul}}"#),
        ("a hexadecimal id", br#"{"jsonrpc":"2.0","id":0x1,"method":"canary"}"#),
        ("a zero before the id", br#"{"jsonrpc":"2.0","id":01,"method":"canary"}"#),
        ("a plus before the id", br#"{"jsonrpc":"2.0","id":+1,"method":"canary"}"#),
        ("a point without digits", br#"{"jsonrpc":"2.0","id":1.,"method":"canary"}"#),
        ("a fraction without a zero", br#"{"jsonrpc":"2.0","id":.5,"method":"canary"}"#),
        ("an exponent without digits", br#"{"jsonrpc":"2.0","id":1e,"method":"canary"}"#),
        ("a minus alone", br#"{"jsonrpc":"2.0","id":-,"method":"canary"}"#),
        ("digits with underscores", br#"{"jsonrpc":"2.0","id":1_000,"method":"canary"}"#),
        ("a line feed in a string", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\n\"}"),
        ("a carriage return in a string", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\r\"}"),
        ("a tab in a string", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\t\"}"),
        ("a NUL in a string", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\0\"}"),
        ("a NUL behind the message", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\"}\0"),
        ("an unknown escape", br#"{"jsonrpc":"2.0","id":1,"method":"canary\x41"}"#),
        ("a short escape", br#"{"jsonrpc":"2.0","id":1,"method":"canary\u12"}"#),
        ("a high surrogate alone", br#"{"jsonrpc":"2.0","id":1,"method":"canary\ud83d"}"#),
        ("a low surrogate alone", br#"{"jsonrpc":"2.0","id":1,"method":"canary\ude80"}"#),
        ("surrogates in the wrong order", br#"{"jsonrpc":"2.0","id":1,"method":"canary\ude80\ud83d"}"#),
        ("a surrogate before a letter", br#"{"jsonrpc":"2.0","id":1,"method":"canary\ud83d\u0041"}"#),
        ("a byte that is no UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\xff\"}"),
        ("Latin-1", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\xe9\"}"),
        ("an overlong slash", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\xc0\xaf\"}"),
        ("a surrogate in UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\xed\xa0\x80\"}"),
        ("half a character", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\xf0\x9f\x9a\"}"),
        ("a character past the last", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\xf5\x80\x80\x80\"}"),
        ("a byte order mark", b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\"}"),
        ("a no-break space", b"\xc2\xa0{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\"}"),
        ("a form feed", b"\x0c{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"canary\"}"),
        ("a form", b"jsonrpc=2.0&id=1&method=canary"),
        ("a page", b"<!doctype html><title>canary</title>"),
        ("a frame of a language server", b"Content-Length: 40\r\n\r\n{\"jsonrpc\":\"2.0\",\"method\":\"canary\"}"),
    ];
    let mut all: Vec<Bad> =
        texts.into_iter().map(|(what, text)| Bad { what, body: text.to_vec(), code: -32700, id: None }).collect();
    let message = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{CANARY}"}}"#);
    let little: Vec<u8> = message.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = format!("\u{feff}{message}").encode_utf16().flat_map(u16::to_be_bytes).collect();
    let more = [
        ("UTF-16", little),
        ("UTF-16 with its mark", big),
        ("two messages", format!("{message}{message}").into_bytes()),
        ("a line for each message", format!("{message}\n{message}\n").into_bytes()),
        ("a message and a bracket", format!("{message}]").into_bytes()),
        ("a message and a comma", format!("{message},").into_bytes()),
        ("an opened array of messages", format!("[{message}").into_bytes()),
    ];
    all.extend(more.map(|(what, body)| Bad { what, body, code: -32700, id: None }));
    all
}

/// -32600: JSON, but not one message of JSON-RPC 2.0 as MCP has it.
fn invalid() -> Vec<Bad> {
    let texts: [(&str, &str, Option<&str>); 64] = [
        ("null", "null", None),
        ("true", "true", None),
        ("a number", "7", None),
        ("a string", r#""canary""#, None),
        ("an empty object", "{}", None),
        ("a version only", r#"{"jsonrpc":"2.0"}"#, None),
        ("an id only", r#"{"jsonrpc":"2.0","id":1}"#, Some("1")),
        ("parameters only", r#"{"jsonrpc":"2.0","id":1,"params":{}}"#, Some("1")),
        ("another protocol", r#"{"level":30,"msg":"canary"}"#, None),
        ("no version", r#"{"id":1,"method":"canary"}"#, Some("1")),
        ("JSON-RPC 1.0", r#"{"jsonrpc":"1.0","id":1,"method":"canary"}"#, Some("1")),
        ("a version that is a number", r#"{"jsonrpc":2.0,"id":1,"method":"canary"}"#, Some("1")),
        ("a version that is null", r#"{"jsonrpc":null,"id":1,"method":"canary"}"#, Some("1")),
        ("half a version", r#"{"jsonrpc":"2","id":1,"method":"canary"}"#, Some("1")),
        ("a version with a space", r#"{"jsonrpc":"2.0 ","id":1,"method":"canary"}"#, Some("1")),
        ("a version in capitals", r#"{"JSONRPC":"2.0","id":1,"method":"canary"}"#, Some("1")),
        ("a version that is an array", r#"{"jsonrpc":["2.0"],"id":1,"method":"canary"}"#, Some("1")),
        ("an id that is null", r#"{"jsonrpc":"2.0","id":null,"method":"canary"}"#, None),
        ("an id that is true", r#"{"jsonrpc":"2.0","id":true,"method":"canary"}"#, None),
        ("an id with a fraction", r#"{"jsonrpc":"2.0","id":1.5,"method":"canary"}"#, None),
        ("an id with a fraction of zero", r#"{"jsonrpc":"2.0","id":1.0,"method":"canary"}"#, None),
        ("an id with an exponent", r#"{"jsonrpc":"2.0","id":1e3,"method":"canary"}"#, None),
        ("an id beyond all numbers", r#"{"jsonrpc":"2.0","id":1e400,"method":"canary"}"#, None),
        ("an id that is an object", r#"{"jsonrpc":"2.0","id":{"n":1},"method":"canary"}"#, None),
        ("an id that is an array", r#"{"jsonrpc":"2.0","id":[1],"method":"canary"}"#, None),
        ("an id in capitals of a response", r#"{"jsonrpc":"2.0","ID":1,"result":{}}"#, None),
        ("a method that is a number", r#"{"jsonrpc":"2.0","id":1,"method":7}"#, Some("1")),
        ("a method that is null", r#"{"jsonrpc":"2.0","id":1,"method":null}"#, Some("1")),
        ("a method that is an array", r#"{"jsonrpc":"2.0","id":1,"method":["canary"]}"#, Some("1")),
        ("a method that is an object", r#"{"jsonrpc":"2.0","id":1,"method":{"canary":1}}"#, Some("1")),
        ("a method in capitals", r#"{"jsonrpc":"2.0","id":1,"Method":"canary"}"#, Some("1")),
        ("a method with a NUL in its key", r#"{"jsonrpc":"2.0","id":1,"method\u0000":"canary"}"#, Some("1")),
        ("a notification's method in capitals", r#"{"jsonrpc":"2.0","METHOD":"canary"}"#, None),
        ("parameters that are a number", r#"{"jsonrpc":"2.0","id":1,"method":"canary","params":7}"#, Some("1")),
        ("parameters that are a string", r#"{"jsonrpc":"2.0","id":1,"method":"canary","params":"x"}"#, Some("1")),
        ("parameters that are true", r#"{"jsonrpc":"2.0","id":1,"method":"canary","params":true}"#, Some("1")),
        ("parameters that are null", r#"{"jsonrpc":"2.0","id":1,"method":"canary","params":null}"#, Some("1")),
        ("a notification's parameters", r#"{"jsonrpc":"2.0","method":"canary","params":7}"#, None),
        ("a method and a result", r#"{"jsonrpc":"2.0","id":1,"method":"canary","result":{}}"#, Some("1")),
        ("a method and an error", r#"{"jsonrpc":"2.0","id":1,"method":"canary","error":{}}"#, Some("1")),
        ("a result and an error", r#"{"jsonrpc":"2.0","id":"x","result":{},"error":{"code":1}}"#, Some(r#""x""#)),
        ("a result and an error that is null", r#"{"jsonrpc":"2.0","id":1,"result":{},"error":null}"#, Some("1")),
        ("a result without an id", r#"{"jsonrpc":"2.0","result":{}}"#, None),
        ("a result for nobody", r#"{"jsonrpc":"2.0","id":null,"result":{}}"#, None),
        ("a result for a fraction", r#"{"jsonrpc":"2.0","id":0.5,"result":{}}"#, None),
        ("an error without an id", r#"{"jsonrpc":"2.0","error":{"code":1,"message":""}}"#, None),
        ("an error for nobody", r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}"#, None),
        ("an error that is a string", r#"{"jsonrpc":"2.0","id":1,"error":"canary"}"#, Some("1")),
        ("an error that is null", r#"{"jsonrpc":"2.0","id":1,"error":null}"#, Some("1")),
        ("an error that is an array", r#"{"jsonrpc":"2.0","id":1,"error":[1,"canary"]}"#, Some("1")),
        ("two versions", r#"{"jsonrpc":"2.0","id":1,"jsonrpc":"2.0","method":"canary"}"#, Some("1")),
        ("two methods", r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"canary"}"#, Some("1")),
        (
            "a second method spelled out",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","m\u0065thod":"canary"}"#,
            Some("1"),
        ),
        ("a first method spelled out", r#"{"jsonrpc":"2.0","id":1,"\u006dethod":"ping","method":"canary"}"#, Some("1")),
        ("two parameters", r#"{"jsonrpc":"2.0","id":1,"method":"canary","params":{},"params":[]}"#, Some("1")),
        ("two results", r#"{"jsonrpc":"2.0","id":1,"result":{},"result":{"canary":1}}"#, Some("1")),
        ("two members nobody knows", r#"{"jsonrpc":"2.0","id":1,"method":"canary","x":1,"x":2}"#, Some("1")),
        ("two names", r#"{"jsonrpc":"2.0","id":1,"method":"canary","params":{"name":"a","name":"b"}}"#, Some("1")),
        (
            "a second name spelled out",
            r#"{"jsonrpc":"2.0","id":1,"method":"canary","params":{"name":"a","n\u0061me":"b"}}"#,
            Some("1"),
        ),
        (
            "two arguments",
            r#"{"jsonrpc":"2.0","id":1,"method":"canary","params":{"arguments":{},"arguments":{"canary":1}}}"#,
            Some("1"),
        ),
        ("two metas", r#"{"jsonrpc":"2.0","id":1,"method":"canary","params":{"_meta":{},"_meta":{}}}"#, Some("1")),
        (
            "two tokens",
            r#"{"jsonrpc":"2.0","id":1,"method":"canary","params":{"_meta":{"progressToken":1,"progressToken":2}}}"#,
            Some("1"),
        ),
        (
            "two request ids",
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"requestId":2}}"#,
            None,
        ),
        ("a notification with an id that is null", r#"{"jsonrpc":"2.0","id":null,"method":"notifications/x"}"#, None),
    ];
    let mut all: Vec<Bad> = texts
        .into_iter()
        .map(|(what, text, id)| Bad { what, body: text.as_bytes().to_vec(), code: -32600, id })
        .collect();
    let with_id = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{CANARY}"}}"#).into_bytes();
    let nested = |open: &str, close: &str, depth: usize| {
        let (open, close) = (open.repeat(depth), close.repeat(depth));
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{CANARY}","params":{{"x":{open}0{close}}}}}"#).into_bytes()
    };
    let more = [
        ("a string of 257 bytes as id", with_id(&format!(r#""{}""#, "x".repeat(257))), None),
        ("a string of a mebibyte as id", with_id(&format!(r#""{}""#, "x".repeat(1 << 20))), None),
        ("an integer of 257 digits as id", with_id(&"9".repeat(257)), None),
        ("arrays 126 deep in parameters", nested("[", "]", 126), Some("1")),
        ("arrays three million deep", nested("[", "]", 3_000_000), Some("1")),
        ("objects a million deep", nested(r#"{"a":"#, "}", 1_000_000), Some("1")),
    ];
    all.extend(more.map(|(what, body, id)| Bad { what, body, code: -32600, id }));
    all
}

/// What each answer must be, apart from its message.
#[track_caller]
fn check(bad: &Bad, response: &Response, where_: &str) {
    let Bad { what, code, id, .. } = bad;
    assert_eq!(response.status(), 400, "{what}, {where_}: {response:?}");
    assert_eq!(response.header("content-type"), Some("application/json"), "{what}, {where_}: {response:?}");
    assert!(response.header("mcp-session-id").is_none(), "{what}, {where_}: {response:?}");
    let text = response.text();
    let value = response.json();
    assert_eq!(value["error"]["code"], *code, "{what}, {where_}: {text}");
    assert_eq!(value["jsonrpc"], "2.0", "{what}, {where_}: {text}");
    match id {
        Some(id) => assert!(text.contains(&format!(r#""id":{id},"#)), "{what}, {where_}: {text}"),
        None => assert!(value.get("id").is_none(), "{what}, {where_}: {text}"),
    }
    assert!(!text.contains(CANARY), "{what}, {where_}: an answer must not quote its request: {text}");
}

/// R:H05, R:H07, R:H08, R:H28, F:C02, F:C03, F:C04, F:C06, C:B65: one status, one code, the id only
/// where it is sure; the connection, the session and the child live on, and the child saw nothing.
#[test]
fn what_is_no_message_has_one_answer_and_never_reaches_the_child() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    let corpus: Vec<Bad> = unparsable().into_iter().chain(invalid()).collect();
    assert!(corpus.len() >= 80);
    let mut nameless = Connection::open(gateway.address());
    for bad in &corpus {
        nameless.request(&Request::post("/fake/mcp", &bad.body));
        check(bad, &nameless.response(), "without a session");
    }
    for revision in REVISIONS {
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        let mut connection = Connection::open(gateway.address());
        for bad in &corpus {
            connection.request(&session.post_request(&bad.body));
            check(bad, &connection.response(), revision);
        }
        let last = session.request(1, "vendor/last", json!({ "revision": revision }));
        assert_eq!(last["result"]["revision"], revision);
    }
    assert_eq!(record.all().len(), REVISIONS.len());
    for (child, read) in record.all() {
        let methods: Vec<String> = String::from_utf8(read)
            .unwrap()
            .lines()
            .map(|line| line.parse::<Value>().unwrap()["method"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(methods, ["initialize", "notifications/initialized", "vendor/last"], "child {child}");
    }
    let refused = gateway.metrics().count("refusals_total", &[("server", "fake"), ("reason", "parse")]);
    assert_eq!(refused, (corpus.len() * (1 + REVISIONS.len())) as f64);
}

/// F:C02, R:B02: an array of messages of another revision is refused whole, however deep or long.
#[test]
fn arrays_are_refused_outside_2025_03_26() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    let ping = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{CANARY}"}}"#);
    let arrays = [
        ("an empty array", "[]".to_owned()),
        ("an array of one", format!("[{ping}]")),
        ("an array of two", format!("[{ping},{ping}]")),
        ("an array of numbers", "[1,2]".to_owned()),
        ("an array of arrays", format!("[[{ping}]]")),
        ("an array of notifications", format!(r#"[{{"jsonrpc":"2.0","method":"{CANARY}"}}]"#)),
        ("an array of responses", r#"[{"jsonrpc":"2.0","id":1,"result":{}}]"#.to_owned()),
        ("an array with initialize", r#"[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}]"#.to_owned()),
        ("an array of 100000", format!("[{}0]", "0,".repeat(99_999))),
        ("a deep array", format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000))),
    ];
    for revision in REVISIONS.into_iter().filter(|revision| *revision != "2025-03-26") {
        let session = Session::open(&gateway, "/fake/mcp", revision, json!({}));
        for (what, body) in &arrays {
            let bad = Bad { what, body: Vec::new(), code: -32600, id: None };
            check(&bad, &session.post_request(body).send(session.address), revision);
        }
        session.request(1, "vendor/last", json!({}));
    }
    for (what, body) in &arrays {
        let bad = Bad { what, body: Vec::new(), code: -32600, id: None };
        check(&bad, &Request::post("/fake/mcp", body).send(gateway.address()), "without a session");
    }
    assert_eq!(record.lines().len(), 3 * 3, "{:?}", record.lines());
}

/// F:C03, R:H33: what only resembles a member of the envelope is no member, and does not pass; what
/// stands in the parameters passes as it is.
#[test]
fn members_nobody_knows_stay_outside() {
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let gateway = Gateway::start(&server.key("check_on_start = false").key("pool.min_idle = 0").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let body = r#"{"Method":"tools/call","method\u0000":"a","ID":9,"Params":{},"jsonrpc":"2.0","id":1,"method":"vendor/x","params":{"Name":1,"name\u0000":2,"arguments":{"a":1,"a":2}},"extra":{"method":"b"}}"#;
    let answer = session.post(body).message();
    assert_eq!(answer["id"], 1, "{answer}");
    let line = record.lines().into_iter().find(|line| line.contains("vendor/x")).unwrap();
    let members: serde_json::Map<String, Value> = serde_json::from_str(&line).unwrap();
    let mut names: Vec<&str> = members.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["id", "jsonrpc", "method", "params"], "{line}");
    assert!(line.contains(r#""params":{"Name":1,"name\u0000":2,"arguments":{"a":1,"a":2}}}"#), "{line}");
}

/// F:C02: what is large but sound passes, and quickly.
#[test]
fn large_sound_messages_pass() {
    let gateway = Gateway::start(&Server::fake("fake").toml());
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let keys: Vec<String> = (0..200_000).map(|number| format!(r#""k{number}":{number}"#)).collect();
    let deep = format!("{}0{}", "[".repeat(120), "]".repeat(120));
    let long = format!(r#""{}""#, "x".repeat(4 << 20));
    for params in [format!("{{{}}}", keys.join(",")), format!(r#"{{"x":{deep}}}"#), format!(r#"{{"x":{long}}}"#)] {
        let answer = session.post(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"vendor/x","params":{params}}}"#));
        assert!(answer.raw().contains(&format!(r#""result":{params}"#)), "{} bytes", params.len());
    }
}
