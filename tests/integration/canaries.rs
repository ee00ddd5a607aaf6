//! Secrets planted wherever there is one, and looked for wherever they must not be.

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::caller_key::Key;
use crate::child::Server;
use crate::client::{Request, Response};
use crate::gateway::{BINARY, Directory, Gateway, await_that};
use crate::issuer::{Issuer, OPAQUE};
use crate::legacy_sse::Channel;
use crate::session::{Session, call, initialize};

/// What was planted, by where.
#[derive(Default)]
struct Canaries(Vec<(&'static str, String)>);

impl Canaries {
    /// A value of no shape that a mask knows by itself.
    fn plant(&mut self, place: &'static str) -> String {
        let value = format!("tweet{}{}", place.replace(|c: char| !c.is_ascii_alphanumeric(), ""), self.0.len());
        self.add(place, &value);
        value
    }

    fn add(&mut self, place: &'static str, value: &str) {
        self.0.push((place, value.to_owned()));
    }

    #[track_caller]
    fn assert_absent(&self, what: &str, text: &str) {
        let found = self.0.iter().find_map(|(place, value)| {
            let line = text.lines().find(|line| line.contains(value.as_str()))?;
            Some(format!("the {place} ({value}) is in {what}: {line}"))
        });
        assert_eq!(found, None);
    }
}

/// Every command line of the gateway and of what it started.
fn command_lines(gateway: &Gateway) -> String {
    let mut pids: Vec<u32> = gateway.descendants().iter().map(|process| process.id).collect();
    pids.push(gateway.pid());
    let line = |pid| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    pids.into_iter().map(|pid| String::from_utf8_lossy(&line(pid)).replace('\0', "\n")).collect()
}

/// Requests that are refused for what they show; the answers.
fn refusals(gateway: &Gateway, session: &Session, canaries: &mut Canaries) -> Vec<Response> {
    let begin = || Request::post("/fake/mcp", initialize("2025-11-25", json!({})).to_string());
    let mut plant = |place| canaries.plant(place);
    let jwt = format!("eyJhbGciOiJSUzI1NiJ9.{}.c2ln", plant("refused JWT"));
    let wrong_key = format!("gangway_{:A<43}", plant("wrong key"));
    let requests = [
        begin().header("Authorization", &format!("Bearer {jwt}")),
        begin().header("Authorization", &format!("Bearer {wrong_key}")),
        begin().header("Authorization", &format!("Basic {}", plant("basic credential"))),
        begin().header("Authorization", &plant("credential without a scheme")),
        begin()
            .header("Authorization", &format!("Bearer {}", plant("first of two")))
            .header("Authorization", "Bearer b"),
        begin().header("Cookie", &format!("sid={}", plant("cookie"))),
        Request::post(&format!("/fake/mcp?access_token={}", plant("token in the query")), "{}"),
        Request::get(&format!("/nowhere/{}?key=x", plant("path"))),
        Request::get(&format!("/readyz?token={}", plant("query of the health route"))),
        begin().header("Origin", &format!("https://user:{}@evil.example", plant("password in an origin"))),
        session.post_request(plant("body that is no JSON")),
        session.post_request(json!({ "jsonrpc": "2.0", "id": {}, "method": plant("malformed message") }).to_string()),
        session.post_request("{}").with("Mcp-Session-Id", &plant("unknown session id")),
        session.get_request().header("Last-Event-ID", &plant("event id")),
        session.post_request("{}").with("MCP-Protocol-Version", &plant("unknown version")),
        session.post_request("{}").header("Proxy-Authorization", &plant("proxy credential")),
        session.post_request("{}").with("Content-Type", &format!("text/{}", plant("content type"))),
    ];
    requests.iter().map(|request| request.send(gateway.address())).collect()
}

/// What a child says that it should not.
fn indiscretions(session: &Session, given: &[&str]) {
    for (id, secret) in given.iter().enumerate() {
        session.call(id, "stderr", json!({ "text": format!("I was told {secret}, in confidence\n") }));
        session.call(id + 10, "raw", json!({ "text": format!("log: {secret} is fine\n"), "answer": true }));
    }
    // The end of a process is told with its last words.
    session.call(99, "exit", json!({ "code": 3 }));
}

/// F:E13, C:B111, R:A13: at level trace, through calls, refusals, failures, a crash, a reload and a drain, no secret is
/// in the log, the audit log, the numbers, a refusal or a command line.
#[test]
fn no_canary_sings() {
    let directory = Directory::new();
    let audit = directory.path().join("audit.log");
    let mut canaries = Canaries::default();
    let (alice, bob) = (Key::of("alice"), Key::of("bob"));
    for key in [&alice, &bob] {
        let text = key.authorization.strip_prefix("Bearer ").unwrap();
        canaries.add("API key", text);
        let hash: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        canaries.add("hash of a key", &hash);
    }
    fs::write(directory.path().join("keys"), bob.line()).unwrap();
    let (operator, introspector) = (canaries.plant("admin token"), canaries.plant("client secret of introspection"));
    fs::write(directory.path().join("token"), &operator).unwrap();
    let issuer = Issuer::start(&[]);
    let opaque = OPAQUE.replace("s3cret", &introspector);
    let variable = canaries.plant("variable of env");
    let (passed, filed) = (canaries.plant("variable of env_file"), directory.path().join("variables"));
    fs::write(&filed, format!("MAIL_PASSWORD={passed}\n")).unwrap();
    let argument = canaries.plant("argument");
    let server = Server::fake("fake")
        .key(&format!("env = {{ DATABASE_PASSWORD = \"{variable}\" }}\nenv_file = {filed:?}\nlegacy_sse = true"))
        .key("env_from.headers = { X-Upstream = \"UPSTREAM\" }")
        .arg("--mark")
        .arg(format!("api-key={argument}"));
    let broken = Server::of("broken", "sh").arg("-c").arg("echo started with $BROKEN_TOKEN >&2; exit 1");
    let broken = broken.key(&format!("env.BROKEN_TOKEN = \"{}\"", canaries.plant("variable of a failed start")));
    let settings = format!(
        "[admin]\ntoken = \"${{file:{0}/token}}\"\n[auth]\nmethods = [\"api_key\", \"oauth\"]\nkeys_file = \"{0}/keys\"\n{1}{2}\
         [listen]\npublic_url = \"http://127.0.0.1:1\"\n[telemetry]\nlog = {{ level = \"trace\", audit = {audit:?} }}\n",
        directory.path().display(),
        alice.toml(""),
        issuer.toml("main", &opaque),
    );
    let toml = format!("{settings}{}{}", server.toml(), broken.toml());
    let mut gateway = Gateway::start(&toml);
    gateway.await_event("server_failed", |event| event["server"] == "broken");

    let brought = canaries.plant("value of env_from");
    let headers = [alice.header(), ("X-Upstream", brought.as_str())];
    let session = Session::open_with(&gateway, "/fake/mcp", "2025-11-25", json!({ "elicitation": {} }), &headers);
    canaries.add("session id", &session.id);
    session.call(1, "echo", json!({ "question": canaries.plant("tool argument") }));
    session.call(2, "result", json!({ "result": { "content": [], "x": canaries.plant("tool result") } }));
    session.call(3, "error", json!({ "error": { "code": 1, "message": canaries.plant("error of a tool") } }));
    session.call(4, "log", json!({ "level": "error", "bytes": 10 }));
    let mut asked = session.send_call(5, "ask", json!({ "method": "elicitation/create", "id": "e" })).stream();
    asked.await_message(|message| message["method"] == "elicitation/create");
    session
        .respond(&json!("e"), json!({ "action": "accept", "content": { "pin": canaries.plant("elicited answer") } }));
    asked.await_message(|message| message["id"] == 5);
    let channel = Channel::initialized(&gateway, "/fake/sse", &headers);
    canaries.add("secret of an old session", channel.target.rsplit('=').next().unwrap());
    let refused = refusals(&gateway, &session, &mut canaries);
    let lines = command_lines(&gateway);
    indiscretions(&session, &[&variable, &passed, &argument, &brought, &operator, &introspector]);
    gateway.await_event("child_exit", |event| event["reason"] == "exit" && event["server"] == "fake");
    assert_eq!(session.post(call(9, "echo", json!({}), None).to_string()).head.status, 404);

    let secret_line = format!("[servers.fake.env]\nAPI_TOKEN = {}\n", canaries.plant("line of a refused reload"));
    assert_eq!(gateway.reload(&format!("{settings}{secret_line}"))["event"], "reload_failed");
    let wrong = format!(
        "[servers.other]\ncommand = \"x\"\nenv = {{ API_TOKEN = 1, B = \"{}\" }}\n",
        canaries.plant("wrong env")
    );
    assert_eq!(gateway.reload(&format!("{toml}{wrong}"))["event"], "reload_failed");
    assert_eq!(gateway.reload(&format!("{toml}\n[sessions]\nidle = \"1h\"\n"))["event"], "reload");
    gateway.signal(Signal::QUIT);
    gateway.await_event("state", |_| true);
    let numbers = Request::get("/metrics").send(gateway.admin());
    let explained = Command::new(BINARY).args(["check", "--explain"]).arg(gateway.config_file()).output().unwrap();
    drop(channel);
    gateway.signal(Signal::INT);
    gateway.await_exit();

    let log = gateway.stderr();
    for (place, expected) in [("refused", 9), ("child_stderr", 4), ("child_bad_line", 4), ("reload_failed", 2)] {
        let told = gateway.events().iter().filter(|event| event["event"] == place).count();
        assert!(told >= expected, "{told} {place} in {log}");
    }
    assert!(log.contains("I was told ***, in confidence"), "what is masked is there to be looked for");
    canaries.assert_absent("the log", &log);
    canaries.assert_absent("the audit log", &fs::read_to_string(&audit).unwrap());
    canaries.assert_absent("the numbers", numbers.text());
    for answer in &refused {
        canaries.assert_absent("a refusal", &format!("{:?}\n{}", answer.head, String::from_utf8_lossy(&answer.body)));
    }
    let shown = [explained.stdout, explained.stderr].concat();
    assert!(shown.len() > 1000);
    canaries.assert_absent("check --explain", &String::from_utf8_lossy(&shown));
    // What an operator types as an argument stands there by the operator's own doing.
    canaries.0.retain(|(place, _)| *place != "argument");
    canaries.assert_absent("a command line", &lines);
    assert!(canaries.0.len() > 30, "{}", canaries.0.len());
}

/// F:E13: neither the gateway nor its children leave a core behind, and a file of secrets that all may read is warned of.
#[test]
fn secrets_do_not_lie_about() {
    let key = Key::of("me");
    let toml = format!("{}{}", crate::caller_key::only(&[&key]), Server::fake("fake").toml());
    let gateway = Gateway::start(&toml);
    gateway.await_event("warning", |event| {
        let warning = event["warning"].as_str().unwrap_or_default();
        warning.contains("gangway.toml holds secrets") && warning.contains("chmod o-r")
    });
    let session = Session::open_with(&gateway, "/fake/mcp", "2025-11-25", json!({}), &[key.header()]);
    let seen = session.call(1, "dump", json!({}))["result"]["structuredContent"].clone();
    assert_eq!(seen["limits"]["CORE"], json!([0, 0]));
    let closed: Value = await_that("who may look into the gateway", || {
        let status = fs::metadata(format!("/proc/{}/environ", gateway.pid())).ok()?;
        // Of a process that may not be dumped these are root's, whoever runs it (proc(5)).
        Some(json!(std::os::unix::fs::MetadataExt::uid(&status)))
    });
    assert_eq!(closed, 0);
}
