//! What needs a process of its own: its limits, its descriptors, its children, its death.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use super::role::{ROLE, become_nobody, is_role, role, run};
use super::{PATIENCE, Spawner, command, ended, eventually, every_pid, is_gone, output, shell, stat};
use crate::upstream::{Child, make_process_undumpable, raise_descriptor_limit};

#[test]
fn two_hundred_quick_children_leave_nothing() {
    run(role("own_process::role_churn"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run in a process of its own"]
async fn role_churn() {
    if !is_role() {
        return;
    }
    let spawner = Spawner::start().expect("a thread");
    assert!(ended(&spawner.spawn(command("true", &[])).await.expect("a child")).await.ending.success());
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("a /proc").count();
    let threads = || std::fs::read_dir("/proc/self/task").expect("a /proc").count();
    let own = i32::try_from(std::process::id()).expect("a process id");
    let children =
        || every_pid().into_iter().filter(|&pid| stat(pid).is_some_and(|(_, parent, _)| parent == own)).count();
    eventually("the first child is gone", || children() == 0).await;
    let before = descriptors();
    let mut seen = BTreeSet::new();
    for round in 0..20 {
        assert!(spawner.spawn(command("/no/such", &[])).await.is_err());
        let mut running = Vec::new();
        for _ in 0..10 {
            running.push(spawner.spawn(command("true", &[])).await.expect("a child"));
        }
        seen.extend(running.iter().map(Child::pid));
        if round % 2 == 0 {
            for child in &running {
                assert!(ended(child).await.ending.success());
            }
            let reaped = |child: &Child| stat(child.pid()).is_none_or(|(_, parent, _)| parent != own);
            assert!(running.iter().all(reaped), "an end that is told is an end that was reaped");
        }
    }
    assert!(seen.len() > 100, "process ids: {}", seen.len());
    eventually("no zombie is left", || children() == 0).await;
    // The first child's may still have been open when they were counted.
    eventually("descriptors are back", || descriptors() <= before).await;
    let with_spawner = threads();
    drop(spawner);
    eventually("the thread ends with its last user", || threads() < with_spawner).await;
}

/// F:A12, without the grandchildren that only a supervisor can find.
#[tokio::test]
async fn children_die_with_a_gateway_that_is_killed() {
    let mut gateway =
        role("own_process::role_gateway").stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(gateway.stdout.take().expect("piped")).lines();
    let pid = lines
        .find_map(|line| line.expect("text").split_once("child=")?.1.trim().parse::<i32>().ok())
        .expect("a child's id");
    assert!(!is_gone(pid));
    gateway.kill().expect("it is ours");
    gateway.wait().expect("it is ours");
    eventually("the child is gone", || is_gone(pid)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run in a process of its own"]
async fn role_gateway() {
    if !is_role() {
        return;
    }
    let spawner = Spawner::start().expect("a thread");
    // Deaf to the end of its stdin and to signals that can be ignored.
    let child = spawner.spawn(shell("trap '' HUP TERM PIPE; exec sleep 1000")).await.expect("a child");
    println!("child={}", child.pid());
    std::io::stdout().flush().expect("a reader");
    tokio::time::sleep(PATIENCE).await;
}

#[test]
fn children_get_the_descriptor_limit_the_gateway_got() {
    let mut command = std::process::Command::new("sh");
    let inner = role("own_process::role_descriptor_limit");
    command.args(["-c", "ulimit -Sn 256 && ulimit -Hn 600 && exec \"$0\" \"$@\""]);
    command.arg(inner.get_program()).args(inner.get_args()).env(ROLE, "");
    run(command);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run in a process of its own"]
async fn role_descriptor_limit() {
    if !is_role() {
        return;
    }
    for _ in 0..2 {
        let limit = raise_descriptor_limit();
        assert_eq!((limit.soft, limit.hard), (Some(600), Some(600)));
    }
    assert_eq!(output(shell("ulimit -Sn; ulimit -Hn")).await, "256\n600\n");
}

/// Without Landlock the gateway's own environment is still closed to its children.
#[test]
fn an_undumpable_gateway_keeps_its_environment() {
    run(role("own_process::role_undumpable"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run in a process of its own"]
async fn role_undumpable() {
    if !is_role() {
        return;
    }
    become_nobody();
    let read = || async {
        let mut spy = shell("cat /proc/$PPID/environ >/dev/null 2>&1 && echo read || echo refused");
        spy.sandbox.scope = false;
        output(spy).await
    };
    assert_eq!(read().await, "read\n");
    make_process_undumpable().expect("the call exists");
    assert_eq!(read().await, "refused\n");
}

/// A disposition that some service managers and shells pass on.
#[test]
fn an_exit_status_survives_ignored_child_signals() {
    run(role("own_process::role_ignored_child_signals"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run in a process of its own"]
async fn role_ignored_child_signals() {
    if !is_role() {
        return;
    }
    // SAFETY: sets a disposition of a process that is this test's own.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let exit = ended(&super::start(shell("exit 3")).await).await;
    assert_eq!(exit.ending, crate::upstream::Ending::Status(3));
}
