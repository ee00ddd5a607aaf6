//! Children kept in bounds: what they may do and take, and that nothing of them outlives them. What this machine does
//! not have is not tried, and said; what stands in for it is.

use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde_json::{Value, json};

use crate::child::{Process, Server};
use crate::gateway::{Gateway, await_that};
use crate::session::Session;

fn open(gateway: &Gateway, path: &str) -> Session {
    Session::open(gateway, path, "2025-11-25", json!({}))
}

fn lone(name: &str) -> Server {
    Server::fake(name).key("check_on_start = false\npool.min_idle = 0")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether the gateway has control groups for its children.
fn has_groups(gateway: &Gateway) -> bool {
    gateway.await_event("bounds", |_| true)["control_groups"] == "yes"
}

/// Hides every cgroup2 mount from the gateway. Takes root.
fn without_groups(command: &mut Command) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_second = |line: &&str| line.contains(" - cgroup2 ");
    let folder = |line: &str| CString::new(line.split(' ').nth(4).unwrap()).unwrap();
    let mut folders: Vec<CString> = mounts.lines().filter(is_second).map(folder).collect();
    folders.reverse();
    // SAFETY: system calls on integers and on live strings, in the new process.
    unsafe {
        command.pre_exec(move || {
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            let none = std::ptr::null();
            libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast());
            for folder in &folders {
                libc::umount2(folder.as_ptr(), libc::MNT_DETACH);
            }
            Ok(())
        });
    }
}

/// The gateway as it is here, and as it is without control groups, each with what it is called.
fn both_ways(toml: &str, trial: impl Fn(&Gateway)) {
    let gateway = Gateway::start(toml);
    if !has_groups(&gateway) {
        let bounds = gateway.await_event("bounds", |_| true);
        eprintln!("not tried: control groups, {}", bounds["reason"]);
    }
    trial(&gateway);
    drop(gateway);
    if !is_root() {
        eprintln!("not tried: hiding control groups, which takes root");
        return;
    }
    let gateway = Gateway::start_with(toml, without_groups);
    assert!(!has_groups(&gateway), "they are hidden");
    trial(&gateway);
}

/// F:A10: who left the child's process group, and lost its parent, ends with the child within 5 s; however the child
/// ends, and while neighbours live on.
#[test]
fn an_escapee_ends_with_its_child() {
    let mark = format!("escapee-{}", std::process::id());
    both_ways(&lone("fake").option("--mark", &mark).toml(), |gateway| {
        let neighbour = open(gateway, "/fake/mcp");
        let of_neighbour = neighbour.call_text(1, "spawn", json!({ "kind": "setsid" }));
        assert!(!of_neighbour.is_empty());
        for end in ["delete", "kill"] {
            let session = open(gateway, "/fake/mcp");
            session.call_text(1, "spawn", json!({ "kind": "setsid" }));
            session.call_text(2, "spawn", json!({ "kind": "setsid" }));
            // Two children, three escapees.
            await_that("every process", || (Process::with_argument(&mark).len() == 5).then_some(()));
            match end {
                "delete" => assert_eq!(session.delete().status(), 204),
                _ => {
                    let state = session.call("pid", "state", json!({}));
                    let child = state["result"]["structuredContent"]["pid"].as_u64().unwrap().try_into().unwrap();
                    Process::of(child).unwrap().kill();
                }
            }
            let began = Instant::now();
            await_that("the escapees' end", || (Process::with_argument(&mark).len() == 2).then_some(()));
            assert!(began.elapsed() < Duration::from_secs(5) + Duration::from_secs(1));
        }
        assert_eq!(neighbour.call(3, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
    });
    // The neighbours went with their gateways, which were killed: the kernel takes a moment for each.
    await_that("the end of the neighbours", || Process::with_argument(&mark).is_empty().then_some(()));
}

/// F:A10: what was left behind is gone before the gateway is, also when it goes in haste.
#[test]
fn no_escapee_outlives_the_gateway() {
    let mark = format!("left-{}", std::process::id());
    let toml =
        format!("drain = {{ prestop = \"0s\", calls = \"0s\" }}\n{}", lone("fake").option("--mark", &mark).toml());
    both_ways(&toml, |gateway| {
        open(gateway, "/fake/mcp").call_text(1, "spawn", json!({ "kind": "setsid" }));
        await_that("the escapee", || (Process::with_argument(&mark).len() == 2).then_some(()));
        gateway.signal(Signal::TERM);
        let own = Process::of(gateway.pid()).unwrap();
        await_that("the gateway's end", || (!own.is_alive()).then_some(()));
        assert!(Process::with_argument(&mark).is_empty());
    });
}

/// F:A12: the kernel ends the child of a gateway that is killed, and the next gateway what the child left.
#[test]
fn the_next_gateway_clears_up_after_one_that_was_killed() {
    let mark = format!("orphan-{}", std::process::id());
    let toml = lone("fake").option("--mark", &mark).toml();
    let gateway = Gateway::start(&toml);
    open(&gateway, "/fake/mcp").call_text(1, "spawn", json!({ "kind": "setsid" }));
    let left = await_that("both", || Some(Process::with_argument(&mark)).filter(|both| both.len() == 2));
    let has_groups = has_groups(&gateway);
    gateway.signal(Signal::KILL);
    await_that("the child's end", || (Process::with_argument(&mark).len() <= 1).then_some(()));
    if has_groups {
        let _next = Gateway::start(&toml);
        await_that("the escapee's end", || Process::with_argument(&mark).is_empty().then_some(()));
    } else {
        eprintln!("not tried: what the next gateway clears up, for which it takes control groups");
    }
    left.iter().for_each(Process::kill);
}

/// F:A13, R:D16: nothing that comes to the gateway stays as a zombie, while the child that left it lives on.
#[test]
fn orphans_are_reaped_while_their_child_lives() {
    let gateway = Gateway::start(&lone("fake").toml());
    let session = open(&gateway, "/fake/mcp");
    for id in 0..5 {
        session.call_text(id, "spawn", json!({ "kind": "setsid", "seconds": 0 }));
    }
    await_that("nothing but the child", || (gateway.descendants().len() == 1).then_some(()));
    assert_eq!(session.call(9, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
}

/// Everything of `sandbox` that a child can tell about itself.
#[test]
fn a_child_is_bounded_as_configured() {
    let nobody = if is_root() { "user = \"65534:65534\"" } else { "" };
    let script = "echo is=$(id -u):$(id -G) home=$HOME umask=$(umask) files=$(ulimit -n) \
        open=$(cat /etc/hosts >/dev/null 2>&1 && echo yes) shut=$(ls /var >/dev/null 2>&1 || echo yes) >&2; exec cat >/dev/null";
    let server = Server::of("fake", "sh").arg("-c").arg(script).key("check_on_start = false\npool.min_idle = 1");
    let toml = format!(
        "{}[servers.fake.sandbox]\n{nobody}\numask = \"027\"\nnofile = 77\nread = [\"/etc/hosts\"]\n",
        server.toml()
    );
    let gateway = Gateway::start(&toml);
    let is_said = |event: &Value| matches!(event["event"].as_str(), Some("child_stderr" | "warning"));
    let event = await_that("what the child says", || {
        let found = gateway.events().into_iter().filter(is_said).find(|event| event.to_string().contains("umask="));
        found.or_else(|| gateway.events().into_iter().find(|event| event.to_string().contains("Linux 6.2")))
    });
    let text = event.to_string();
    if text.contains("Linux 6.2") {
        eprintln!("not tried: file rules, which this kernel does not have; tried: that they are refused");
        return;
    }
    if is_root() {
        assert!(text.contains("is=65534:65534 ") && text.contains("home=/"), "{text}");
        assert!(!text.contains("home=/root"), "{text}");
    } else {
        eprintln!("not tried: another user, which takes root");
    }
    assert!(text.contains("umask=0027 files=77 open=yes shut=yes"), "{text}");
}

/// A server that cannot be bounded as configured is not started unbounded, and its neighbours are.
#[test]
fn a_server_that_cannot_be_bounded_does_not_start() {
    let toml = [
        lone("good").toml(),
        Server::fake("user").key("pool.min_idle = 0\nsandbox.user = \"no-such-user-here\"").toml(),
        Server::fake("path").key("pool.min_idle = 0\nsandbox.read = [\"/no/such/path\"]").toml(),
    ];
    let gateway = Gateway::start(&toml.concat());
    for (server, words) in [("user", "sandbox.user"), ("path", "sandbox.read")] {
        let failed = gateway.await_event("server_failed", |event| event["server"] == server);
        assert!(failed["hint"].as_str().unwrap().contains(words), "{failed}");
    }
    assert_eq!(open(&gateway, "/good/mcp").call(1, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
}

/// F:A14: one that wants too much memory or too many files is the only one that notices.
#[test]
fn a_greedy_child_harms_only_itself() {
    let toml = [lone("good").toml(), lone("greedy").key("sandbox = { memory = \"256MiB\", nofile = 64 }").toml()];
    both_ways(&toml.concat(), |gateway| {
        let (good, greedy) = (open(gateway, "/good/mcp"), open(gateway, "/greedy/mcp"));
        let files = greedy.call_text(1, "consume", json!({ "kind": "files", "amount": 100 }));
        assert!(files.contains("Too many open files"), "{files}");
        let answer = greedy.call(2, "consume", json!({ "kind": "memory", "amount": 1 << 30 }));
        if gateway.await_event("bounds", |_| true)["memory"] == "yes" {
            assert_eq!(answer["error"]["data"]["reason"], "child_gone", "{answer}");
            gateway.await_metric("child_exits_total", &[("server", "greedy"), ("reason", "oom")], |exits| exits == 1.0);
        } else {
            eprintln!("not tried: memory.max, for which this machine has no controller; tried: the address space");
            assert!(answer.to_string().contains("refused"), "{answer}");
            gateway.await_event("warning", |event| event["warning"].as_str().unwrap().contains("sandbox.memory"));
        }
        assert_eq!(good.call(3, "echo", json!({ "a": 1 }))["result"]["structuredContent"]["a"], 1);
        assert!(good.call_text(4, "consume", json!({ "kind": "files", "amount": 100 })).contains("taken"));
    });
}

/// F:F09: what the limits allow stands in the ready line, and the one to raise is named.
#[test]
fn the_ready_line_counts_what_the_limits_allow() {
    let toml = Server::fake("fake").key("pool.max_size = 64").toml();
    let gateway = Gateway::start(&toml);
    assert_eq!(gateway.ready["limits"]["children_max"], 64, "{}", gateway.ready);
    let tight = Gateway::start_with(&toml, |command| {
        // SAFETY: one system call in the new process.
        unsafe {
            command.pre_exec(|| {
                let limit = Rlimit { current: Some(256), maximum: Some(256) };
                Ok(setrlimit(Resource::Nofile, limit)?)
            });
        }
    });
    let limits = &tight.ready["limits"];
    assert_eq!(
        (&limits["nofile"], &limits["children_max"], &limits["sessions_max"]),
        (&256.into(), &48.into(), &38.into())
    );
    tight.await_event("warning", |event| event["warning"].as_str().unwrap().contains("LimitNOFILE"));
}
