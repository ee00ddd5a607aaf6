//! What a child finds around itself: variables, directory, descriptors, signals, neighbours. Nothing
//! of it is a client's to choose.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::child::{Process, Record, Server};
use crate::gateway::{BINARY, Directory, Gateway, await_that};
use crate::session::Session;

fn open(gateway: &Gateway) -> Session {
    Session::open(gateway, "/fake/mcp", "2025-11-25", json!({}))
}

/// What a child sees of itself, or of another process.
#[track_caller]
fn dump(session: &Session, arguments: Value) -> Value {
    session.call("dump", "dump", arguments)["result"]["structuredContent"].clone()
}

/// C:B29, R:D06: a child's environment is the allow-list, `env` and `env_pass`, its own mark, and nothing else.
#[test]
fn a_child_gets_the_variables_it_is_given() {
    let directory = Directory::new();
    let file = directory.path().join("environ");
    // As the kernel handed it over: shells and interpreters add to their own.
    let script = format!("cat /proc/$$/environ > {0}.new; mv {0}.new {0}; exec cat > /dev/null", file.display());
    let server = Server::of("fake", "sh").arg("-c").arg(script).key("check_on_start = false");
    let server = server.key("env = { A = \"1\", LANG = \"xx\" }\nenv_pass = [\"HTTPS_PROXY\", \"ABSENT\"]");
    let gateway = Gateway::start_with(&server.toml(), |command| {
        let path = std::env::var("PATH").unwrap();
        command.env_clear().env("PATH", path).env("HOME", "/home/x").env("LANG", "C").env("LC_ALL", "C.UTF-8");
        command.env("HTTPS_PROXY", "http://u:p@px:1").env("GW_OAUTH_SECRET", "s3").env("GANGWAY_API_KEY", "k");
        command.env("LD_PRELOAD", "").env("PYTHONPATH", "/x").env("AWS_SECRET_ACCESS_KEY", "s4");
    });
    let seen = await_that("what the child was given", || fs::read_to_string(&file).ok());
    let (marks, mut variables): (Vec<_>, Vec<_>) = seen
        .split_terminator('\0')
        .filter(|variable| !variable.starts_with("PATH="))
        .partition(|variable| variable.starts_with("GANGWAY_CHILD="));
    variables.sort_unstable();
    assert_eq!(variables, ["A=1", "HOME=/home/x", "HTTPS_PROXY=http://u:p@px:1", "LANG=xx", "LC_ALL=C.UTF-8"]);
    // By which the gateway knows what it leaves behind.
    let is_mark = |mark: &str| mark.len() == 32 && mark.chars().all(|c| c.is_ascii_hexdigit());
    assert!(matches!(marks[..], [mark] if is_mark(&mark["GANGWAY_CHILD=".len()..])), "{marks:?}");
    assert!(seen.split('\0').any(|variable| variable.starts_with("PATH=")), "{seen:?}");
    assert!(!gateway.stderr().contains("u:p@px"), "a value reached the log");
}

/// R:D06, C:B29: a caller's credential reaches no variable, argument, message or log.
#[test]
fn a_callers_credential_reaches_no_child() {
    let made = Command::new(BINARY).args(["key", "new", "me"]).output().unwrap();
    let text = String::from_utf8([made.stdout, made.stderr].concat()).unwrap();
    let word = |prefix: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':');
        let found = text.split(|c: char| !is_part(c)).find(|word| word.starts_with(prefix));
        found.unwrap_or_else(|| panic!("no {prefix} in {text}")).to_owned()
    };
    let (key, hash) = (word("gangway_"), word("sha256:"));
    let record = Record::new();
    let server = Server::fake("fake").option("--record", record.path());
    let toml = format!("[auth]\nmethods = [\"api_key\"]\n[auth.keys.me]\nhash = \"{hash}\"\n{}", server.toml());
    let gateway = Gateway::start(&toml);
    let bearer = format!("Bearer {key}");
    let headers = [("Authorization", bearer.as_str()), ("Cookie", "sid=hunter2")];
    let session = Session::open_with(&gateway, "/fake/mcp", "2025-11-25", json!({}), &headers);
    let seen = dump(&session, json!({})).to_string();
    session.call(1, "echo", json!({}));
    let read: Vec<u8> = record.all().into_values().flatten().collect();
    for secret in [key.as_str(), "hunter2"] {
        assert!(!seen.contains(secret), "in the child's environment or arguments");
        assert!(!String::from_utf8_lossy(&read).contains(secret), "in the child's input");
        assert!(!gateway.stderr().contains(secret), "in the log");
    }
}

/// R:D32: nothing in a request selects a command, an argument, a variable or a directory.
#[test]
fn no_request_changes_what_is_started() {
    let directory = Directory::new();
    let marker = directory.path().join("marker");
    let server = Server::fake("fake").key(&format!("cwd = {:?}\npool.min_idle = 0", directory.path()));
    let gateway = Gateway::start(&server.toml());
    // Each has a mark of its own.
    let without_mark = |mut seen: Value| {
        assert!(seen["env"].as_object_mut().unwrap().remove("GANGWAY_CHILD").is_some());
        seen
    };
    let plain = without_mark(dump(&open(&gateway), json!({})));
    let capabilities = json!({
        "command": "touch", "args": [marker], "env": { "EVIL": "1" }, "cwd": "/",
        "experimental": { "command": format!("touch {}", marker.display()) },
    });
    let headers = [("X-Command", "touch"), ("EVIL", "1"), ("Mcp-Env", "EVIL=1")];
    let session = Session::open_with(&gateway, "/fake/mcp", "2025-11-25", capabilities, &headers);
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","command":"touch","args":["x"],"env":{"EVIL":"1"},"arguments":{}}}"#;
    assert!(session.post(body).message()["result"].is_object());
    let seen = without_mark(dump(&session, json!({})));
    for part in ["argv", "env", "cwd", "umask", "limits", "uid"] {
        assert_eq!(seen[part], plain[part], "{part}");
    }
    assert_eq!(Path::new(seen["cwd"].as_str().unwrap()), directory.path());
    assert!(!marker.exists());
}

/// F:A07, F:A09: its own group, three descriptors, default signals, no core
/// dumps, no new privileges, and the gateway as its parent.
#[test]
fn a_child_starts_clean() {
    let gateway = Gateway::start_with(&Server::fake("fake").toml(), |command| {
        // What the gateway inherited is no business of its children.
        let file = fs::File::open("/dev/null").unwrap();
        let inherited = rustix::io::fcntl_dupfd_cloexec(&file, 100).unwrap();
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        // Kept open until the gateway is forked.
        std::mem::forget(inherited);
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' PIPE HUP USR1; exec \"$0\" \"$@\""]).arg(BINARY).args(command.get_args());
        *command = shell;
    });
    let session = open(&gateway);
    let seen = dump(&session, json!({}));
    assert_eq!(seen["pgid"], seen["pid"]);
    assert_eq!(seen["ppid"], gateway.pid());
    assert_eq!(seen["limits"]["CORE"], json!([0, 0]));
    assert_eq!(seen["blocked_signals"], json!([]));
    let open = seen["proc"]["fd"].as_object().unwrap();
    // The fourth is the listing itself.
    let held = open.iter().filter(|(_, target)| !target.as_str().unwrap().starts_with("refused"));
    let held: Vec<_> =
        held.filter(|(_, target)| !target.as_str().unwrap().contains("/proc/")).map(|(fd, _)| fd).collect();
    assert_eq!(held, ["0", "1", "2"], "{open:?}");
    // The policy is the 41st field, and what comes before the 3rd may hold spaces.
    let scheduling = fs::read_to_string(format!("/proc/{}/stat", seen["pid"])).unwrap();
    let policy = scheduling.rsplit(')').next().unwrap().split_whitespace().nth(38).unwrap().to_owned();
    assert_eq!(policy, libc::SCHED_BATCH.to_string(), "a child does not push the gateway aside when it is woken");
    let status = seen["proc"]["status"].as_str().unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(field("NoNewPrivs:"), "1");
    // Python itself ignores SIGPIPE and SIGXFSZ; HUP and USR1 show what was inherited.
    let ignored = u64::from_str_radix(&field("SigIgn:"), 16).unwrap();
    assert_eq!(ignored & (1 | 1 << 9), 0, "{ignored:x}");
    let direct = dump(&session, json!({ "pid": gateway.pid() }))["proc"]["environ"].clone();
    assert!(direct.is_string());
}

/// F:A07: SIGPIPE has its default in a child, so that pipelines in it end.
#[test]
fn sigpipe_has_its_default_in_a_child() {
    let directory = Directory::new();
    let file = directory.path().join("signals");
    let script = format!("grep -E 'SigIgn|SigBlk' /proc/self/status > {}; exec cat > /dev/null", file.display());
    let server = Server::of("fake", "sh").arg("-c").arg(script).key("check_on_start = false");
    let _gateway = Gateway::start(&server.toml());
    let text =
        await_that("what the child saw", || fs::read_to_string(&file).ok().filter(|text| text.lines().count() == 2));
    for line in text.lines() {
        let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        assert_eq!(mask, 0, "{text}");
    }
}

/// C:B29: a child of an unprivileged gateway sees neither the gateway's nor a
/// neighbour's environment, descriptors or directory.
#[test]
fn a_child_cannot_look_into_its_neighbours() {
    let server = Server::fake("fake").key("env = { SECRET = \"of-a-child\" }");
    let gateway = Gateway::start_with(&server.toml(), |command| {
        command.env("GANGWAY_TEST_SECRET", "of-the-gateway");
        if rustix::process::getuid().is_root() {
            drop_root(command);
        }
    });
    if gateway.stderr().contains("no Landlock scopes") {
        // Without the kernel's help only the gateway itself is closed.
        let seen = dump(&open(&gateway), json!({ "pid": gateway.pid() }));
        assert!(seen["proc"]["environ"].as_str().unwrap().starts_with("refused"), "{seen}");
        return;
    }
    let (session, neighbour) = (open(&gateway), open(&gateway));
    let own = dump(&session, json!({}));
    assert!(own["proc"]["environ"].as_str().unwrap().contains("of-a-child"), "{own}");
    assert_ne!(own["uid"], 0);
    let other = dump(&neighbour, json!({}))["pid"].clone();
    for pid in [json!(gateway.pid()), other] {
        let id: u32 = pid.as_u64().unwrap().try_into().unwrap();
        assert!(Process::of(id).is_some());
        let answer = session.call("look", "dump", json!({ "pid": pid }));
        let seen = &answer["result"]["structuredContent"]["proc"];
        // Where even the listing of descriptors is refused, so is the whole call.
        if seen.is_null() {
            continue;
        }
        for part in ["environ", "cwd", "fd"] {
            assert!(seen[part].to_string().contains("refused"), "{part} of {pid}: {seen}");
        }
        assert!(!seen.to_string().contains("of-a-child") && !seen.to_string().contains("of-the-gateway"), "{seen}");
    }
}

/// Runs the gateway as nobody, from places nobody may read.
fn drop_root(command: &mut Command) {
    let mut dropped = Command::new("setpriv");
    dropped.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(BINARY).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            dropped.env(name, value);
        }
    }
    *command = dropped;
}
