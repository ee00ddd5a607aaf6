//! The audit log: who called what, how it ended, why it was refused; and what it is worth when it must be kept.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::caller_key::{Key, only};
use crate::child::Server;
use crate::client::Request;
use crate::gateway::{Directory, Gateway, await_that};
use crate::session::{Session, call, initialize};

fn table(path: &Path, required: bool) -> String {
    format!("[telemetry]\nlog = {{ audit = {:?}, audit_required = {required} }}\n", path.to_str().unwrap())
}

/// The whole entries of an audit file.
fn entries(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| line.parse().unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Waits until an entry matches.
#[track_caller]
fn await_entry(path: &Path, wanted: impl Fn(&Value) -> bool) -> Value {
    await_that("an entry of the audit log", || entries(path).into_iter().find(|entry| wanted(entry)))
}

fn is_whole(entries: &[Value]) {
    let numbers: Vec<u64> = entries.iter().map(|entry| entry["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=entries.len() as u64).collect::<Vec<_>>());
}

/// R:A13, C:B111: every call and every refusal is there with who, what and why; no argument, result, token or session
/// id is.
#[test]
fn every_call_and_every_refusal_has_an_entry() {
    let directory = Directory::new();
    let path = directory.path().join("audit.log");
    let (alice, bob) = (Key::of("alice"), Key::of("bob"));
    let server = Server::fake("fake").key("timeouts.call_idle = \"300ms\"");
    let mut gateway = Gateway::start(&format!("{}{}{}", table(&path, false), only(&[&alice, &bob]), server.toml()));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let session = Session::open_with(&gateway, "/fake/mcp", "2025-11-25", json!({}), &[alice.header()]);
    session.call("c1", "echo", json!({ "argument": "canary-argument" }));
    session.call(2, "result", json!({ "result": { "isError": true, "content": [] } }));
    session.call(3, "error", json!({ "error": { "code": -32000, "message": "canary-result" } }));
    session.call(4, "silent", json!({}));
    session.request(5, "tools/list", json!({}));
    // Somebody else's session, nobody's session, no key, another host.
    let mut foreign = session.clone();
    foreign.headers = vec![("Authorization".to_owned(), bob.authorization.clone())];
    assert_eq!(foreign.send(call("f", "echo", json!({}), None).to_string()).finish().head.status, 404);
    let begin = || Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string());
    assert_eq!(begin().send(gateway.address()).status(), 401);
    let wrong = begin().header("Authorization", "Bearer wrong");
    assert_eq!(wrong.send(gateway.address()).status(), 401);
    assert_eq!(begin().header("Host", "evil.example").send(gateway.address()).status(), 403);
    assert_eq!(Request::get("/elsewhere").send(gateway.address()).status(), 404);
    assert_eq!(session.delete().status(), 204);
    gateway.signal(Signal::INT);
    assert_eq!(gateway.await_exit().code(), Some(0));
    let entries = entries(&path);
    is_whole(&entries);
    let seen: Vec<String> = entries
        .iter()
        .map(|entry| {
            let fields = ["event", "principal", "method", "tool", "outcome", "reason", "request_id"];
            let texts = fields.iter().map(|field| entry[field].as_str().unwrap_or("-"));
            texts.collect::<Vec<_>>().join(" ")
        })
        .collect();
    let expected = [
        "start - - - - - -",
        "session_open key:alice - - - - -",
        "call key:alice initialize - ok - initialize",
        "call key:alice tools/call echo ok - c1",
        "call key:alice tools/call result tool_error - 2",
        "call key:alice tools/call error rpc_error - 3",
        "call key:alice tools/call silent timeout timeout 4",
        "call key:alice tools/list - ok - 5",
        "refused key:bob tools/call echo refused session_unknown f",
        "refused - - - refused unauthenticated -",
        "refused - - - refused invalid_token -",
        "refused - - - refused host -",
        "session_close key:alice - - - delete -",
        "stop - - - - - -",
    ];
    assert_eq!(seen, expected);
    let digest = entries[1]["session"].as_str().unwrap();
    assert!(digest.len() == 8 && entries[3]["session"] == digest && entries[12]["session"] == digest);
    for entry in &entries {
        assert_eq!((&entry["node"], entry["ts"].is_string()), (&gateway.ready["node"], true), "{entry}");
        let has_address = entry["client_addr"] == "127.0.0.1";
        assert!(has_address || !["call", "refused"].contains(&entry["event"].as_str().unwrap()), "{entry}");
    }
    let text = fs::read_to_string(&path).unwrap();
    for canary in [session.id.as_str(), "gangway_", "canary"] {
        assert!(!text.contains(canary), "{canary} in {text}");
    }
}

/// Where it is required, the entry is in the file by the time the answer can be read, in whatever form that comes, and
/// whoever gives it.
#[test]
fn a_required_entry_is_there_before_the_answer() {
    let directory = Directory::new();
    let path = directory.path().join("audit.log");
    let shared = Server::fake("shared").key("mode = \"shared\"");
    let toml =
        format!("{}{}{}", table(&path, true), Server::fake("fake").key("legacy_sse = true").toml(), shared.toml());
    let gateway = Gateway::start(&toml);
    let is_there =
        |id: &Value| entries(&path).iter().any(|entry| entry["request_id"] == *id && entry["event"] == "call");
    for server in ["/fake/mcp", "/shared/mcp"] {
        let session = Session::open(&gateway, server, "2025-11-25", json!({}));
        let opened = entries(&path);
        assert!(
            opened.iter().any(|entry| entry["event"] == "session_open" && entry["server"] == server[1..5])
                || server != "/fake/mcp"
        );
        for round in 0..30 {
            let id = json!(format!("{server} {round}"));
            let tool = if round % 2 == 0 { "echo" } else { "progress" };
            session.call(id.clone(), tool, json!({}));
            assert!(is_there(&id), "{id} was answered before it was written");
        }
        assert!(!is_there(&json!("never")));
        let refused = Request::post(server, "{}").header("Mcp-Session-Id", "none").send(gateway.address());
        let last = entries(&path).pop().unwrap();
        assert_eq!((refused.status(), &last["event"]), (400, &json!("refused")));
        session.delete();
        assert_eq!(entries(&path).pop().unwrap()["event"], "session_close");
    }
    let mut channel = crate::legacy_sse::Channel::initialized(&gateway, "/fake/sse", &[]);
    for round in 100..110 {
        channel.call(round, "echo", json!({}));
        assert!(is_there(&json!(round.to_string())), "{round}");
    }
    is_whole(&entries(&path));
}

/// A named pipe in the place of the file: it is full when the test wants it, and has room again.
struct Pipe {
    path: PathBuf,
    file: File,
    _directory: Directory,
}

impl Pipe {
    fn new() -> Self {
        let directory = Directory::new();
        let path = directory.path().join("audit");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        rustix::pipe::fcntl_setpipe_size(&file, 64 * 1024).unwrap();
        Self { path, file, _directory: directory }
    }

    fn fill(&mut self) {
        while self.file.write(&[b'\n'; 64]).is_ok() {}
        while self.file.write(b"\n").is_ok() {}
    }

    /// Everything in it.
    fn drain(&mut self) -> String {
        let mut text = Vec::new();
        match self.file.read_to_end(&mut text) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => String::from_utf8(text).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

/// Where it is required and cannot be written nothing is served silently: no session is opened, no call runs, and the
/// answer of one that ran is kept back; once it can be written again all goes on. What is lost is counted.
#[test]
fn a_required_log_that_fails_refuses_what_it_cannot_write_down() {
    let mut pipe = Pipe::new();
    let gateway = Gateway::start(&format!("{}{}", table(&pipe.path, true), Server::fake("fake").toml()));
    let session = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    let held = session.send_call("held", "hold", json!({ "gate": "g" }));
    let waits = Session::open(&gateway, "/fake/mcp", "2025-11-25", json!({}));
    // Answered, so that the other call is with its child too.
    waits.call(0, "echo", json!({}));
    session.call("count", "await_held", json!({ "gate": "g", "count": 1 }));
    pipe.fill();
    let released = session.call("release", "release", json!({ "gate": "g" }));
    let kept_back = held.finish().response(&json!("held"));
    for answer in [released, kept_back] {
        let data = &answer["error"]["data"];
        assert_eq!((&answer["error"]["code"], &data["reason"]), (&json!(503), &json!("audit")), "{answer}");
        assert_eq!(data["executed"], "maybe", "it ran, and its result is not given: {answer}");
    }
    let refused = waits.call(1, "echo", json!({}));
    assert_eq!(refused["error"]["data"]["executed"], "no", "{refused}");
    assert!(refused["error"]["data"]["retry_after_ms"].is_number());
    let starts = gateway.metrics().count("child_starts_total", &[]);
    let begin = Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string());
    let answer = begin.send(gateway.address());
    assert_eq!((answer.status(), &answer.json()["error"]["data"]["reason"]), (503, &json!("audit")), "{answer:?}");
    assert!(answer.header("retry-after").is_some() && answer.header("mcp-session-id").is_none());
    assert_eq!(gateway.metrics().count("child_starts_total", &[]), starts);
    gateway.await_event("audit_failed", |event| event["file"] == pipe.path.to_str().unwrap());
    let lost = gateway.metrics().count("audit_dropped_total", &[]);
    assert!(lost >= 4.0, "{lost}");
    assert!(gateway.metrics().count("refusals_total", &[("reason", "audit")]) >= 2.0);
    let before = pipe.drain();
    assert!(before.contains("\"count\"") && !before.contains("\"held\""));
    // The refusal of the first call is what finds that there is room again.
    let served = |round: usize| waits.call(round, "echo", json!({}))["result"].is_object();
    assert!((10..12).any(served), "it goes on");
    gateway.await_event("audit_recovered", |_| true);
    let after = pipe.drain();
    let numbers = |text: &str| -> Vec<u64> {
        let entries = text.lines().filter(|line| !line.is_empty()).map(|line| line.parse::<Value>().unwrap());
        entries.map(|entry| entry["seq"].as_u64().unwrap()).collect()
    };
    let (last, next) = (*numbers(&before).last().unwrap(), numbers(&after)[0]);
    assert_eq!((next - last - 1) as f64, lost, "the gap is as long as what was lost");
}

/// A required log that cannot be written at all: no start, with the file's name.
#[test]
fn no_start_without_the_log_that_is_required() {
    for (path, required) in [("/dev/full", true), ("/no/such/folder/audit", false)] {
        let toml = format!("{}{}", table(Path::new(path), required), Server::demo("demo").toml());
        let failed = Gateway::try_start(&toml, |_| {}).map(|_| ()).expect_err("it cannot keep its records");
        assert_eq!(failed.status.code(), Some(1), "{}", failed.stderr);
        assert!(failed.stderr.contains(path), "{}", failed.stderr);
    }
}

/// Where it is not required its loss harms nobody, and is counted.
#[test]
fn a_log_that_is_not_required_fails_alone() {
    let toml = format!("{}{}", table(Path::new("/dev/full"), false), Server::demo("demo").toml());
    let gateway = Gateway::start(&toml);
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    assert_eq!(session.call_text(1, "add", json!({ "a": 2, "b": 3 })), "5");
    gateway.await_metric("audit_dropped_total", &[], |lost| lost >= 4.0);
    gateway.await_event("audit_failed", |_| true);
    assert_eq!(gateway.metrics().count("log_dropped_total", &[]), 0.0);
}

/// F:F08: moved away and HUP: the next entry is in a new file, the numbers go on, and a configuration that is refused
/// changes nothing about that.
#[test]
fn on_hup_the_file_is_opened_again() {
    let directory = Directory::new();
    let (path, moved) = (directory.path().join("audit.log"), directory.path().join("audit.log.1"));
    let toml = format!("{}{}", table(&path, false), Server::demo("demo").toml());
    let gateway = Gateway::start(&toml);
    let session = Session::open(&gateway, "/demo/mcp", "2025-11-25", json!({}));
    await_entry(&path, |entry| entry["method"] == "initialize");
    fs::rename(&path, &moved).unwrap();
    assert_eq!(gateway.reload("wrong = 1")["event"], "reload_failed");
    session.call("after", "add", json!({ "a": 2, "b": 3 }));
    let after = await_entry(&path, |entry| entry["request_id"] == "after");
    let before = entries(&moved);
    is_whole(&before);
    assert_eq!(after["seq"], before.len() + 1);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let elsewhere = format!("{}{}", table(&moved, false), Server::demo("demo").toml());
    let refused = gateway.reload(&elsewhere);
    assert!(refused["error"].as_str().unwrap().contains("telemetry.log.audit needs a restart"), "{refused}");
}
