//! Children are shut off from each other and from the gateway, and from nothing else.

use super::role::{become_nobody, is_role, role, run};
use super::{Lines, Spawner, command, output};

/// Prints what became of reading the environment, and of asking for the right to signal.
const SPY: &str = "import os, sys\n\
    for pid in sys.argv[1:]:\n\
    \x20 try:\n\
    \x20   open(f'/proc/{pid}/environ', 'rb').read(); print('read')\n\
    \x20 except OSError as e: print(type(e).__name__)\n\
    \x20 try:\n\
    \x20   os.kill(int(pid), 0); print('signal')\n\
    \x20 except OSError as e: print(type(e).__name__)\n";

/// What a child sees of the gateway and of a neighbour.
async fn spied(scope: bool) -> String {
    let spawner = Spawner::start().expect("a thread");
    let neighbour = spawner.spawn(command("cat", &[])).await.expect("a child");
    let (gateway, pid) = (std::process::id().to_string(), neighbour.pid().to_string());
    let mut spy = command("python3", &["-c", SPY, &gateway, &pid]);
    spy.sandbox.scope = scope;
    output(spy).await
}

/// Not as root, whose CAP_PERFMON opens `environ` past every security module on recent kernels.
#[test]
fn a_scoped_child_sees_neither_gateway_nor_neighbour() {
    run(role("isolation::role_spy"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run in a process of its own"]
async fn role_spy() {
    if !is_role() {
        return;
    }
    become_nobody();
    let open = spied(false).await;
    assert_eq!(open, "read\nsignal\n".repeat(2), "without a domain there is something to see");
    if Spawner::start().expect("a thread").scope_supported() {
        assert_eq!(spied(true).await, "PermissionError\n".repeat(4));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scoped_child_uses_files_and_its_own_children_freely() {
    let script = "cat /proc/self/environ >/dev/null && sleep 1000 & pid=$!; \
        kill -0 $pid && cat /proc/$pid/environ >/dev/null && kill $pid; \
        f=$(mktemp) && echo written >\"$f\" && cat \"$f\" && rm \"$f\"";
    assert_eq!(output(super::shell(script)).await, "written\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_children_enter_domains_of_one_ruleset() {
    let spawner = Spawner::start().expect("a thread");
    for _ in 0..20 {
        let mut child = spawner.spawn(command("echo", &["here"])).await.expect("a child");
        assert_eq!(Lines::of(&mut child).next().await.as_deref(), Some("here"));
    }
}
