//! What a child leaves behind ends with it, and nothing else does. Each in a process of its own, which adopts orphans.

use std::time::Duration;

use super::role::{is_role, role, run};
use super::{Child, Command, Lines, Spawner, command, ended, eventually, every_pid, is_reaped, shell, stat};
use crate::upstream::adopt_orphans;

/// A spawner as the gateway has it. `groups`: with control groups where there are any.
fn adopting(groups: bool) -> Spawner {
    adopt_orphans().expect("the call exists");
    let (mut spawner, lacks) = Spawner::start_with_reaper().expect("threads");
    assert_eq!(lacks.orphans, None);
    if !groups {
        spawner.do_without_groups();
    } else if let Some(reason) = lacks.group {
        eprintln!("not tried: control groups ({reason})");
    }
    let reaping = spawner.clone();
    tokio::spawn(async move { reaping.reap_orphans().await });
    spawner
}

/// Starts what writes the id of what it leaves behind first.
async fn leaving(spawner: &Spawner, command: Command) -> (Child, i32) {
    let mut child = spawner.spawn(command).await.expect("a child");
    let escapee = Lines::of(&mut child).pid().await;
    (child, escapee)
}

fn escaping(how: &str) -> Command {
    // The pipe brings the number of what setsid left to run.
    shell(&format!("{how} setsid -f sh -c 'echo $$; exec sleep 999'; cat"))
}

fn own() -> i32 {
    i32::try_from(std::process::id()).expect("a process id")
}

/// F:A10, R:D16: with a control group, by its mark without one, and by its age where even that was taken away.
#[test]
fn who_left_the_group_ends_with_the_child() {
    run(role("orphans::role_escapees"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run in a process of its own"]
async fn role_escapees() {
    if !is_role() {
        return;
    }
    for groups in [true, false] {
        let spawner = adopting(groups);
        for how in ["", "env -i PATH=$PATH"] {
            let (child, escapee) = leaving(&spawner, escaping(how)).await;
            eventually("it is handed over", || stat(escapee).is_some_and(|(_, parent, _)| parent == own())).await;
            assert_ne!(stat(escapee).map(|(_, _, group)| group), Some(child.pid()));
            let of_its_own = |pid| {
                let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("a /proc");
                groups.lines().any(|line| line.starts_with("0::") && line.contains("/gangway-"))
            };
            assert!(of_its_own(child.pid()) == spawner.has_groups() && of_its_own(escapee) == spawner.has_groups());
            child.stop(Duration::ZERO, super::PATIENCE).await;
            let living = spawner.living().clone();
            assert_eq!(
                tokio::task::spawn_blocking(move || living.wait_for_none(super::PATIENCE)).await.expect("no panic"),
                0
            );
            assert!(is_reaped(escapee), "groups: {groups}, {how}");
        }
    }
}

/// A neighbour's daemon is alive as long as its own child is; one that nothing tells waits until all older children ended.
#[test]
fn a_neighbours_processes_are_left_alone() {
    run(role("orphans::role_neighbours"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run in a process of its own"]
async fn role_neighbours() {
    if !is_role() {
        return;
    }
    let spawner = adopting(false);
    let (elder, daemon) = leaving(&spawner, escaping("")).await;
    let (younger, nameless) = leaving(&spawner, escaping("env -i PATH=$PATH")).await;
    let (last, escapee) = leaving(&spawner, escaping("")).await;
    for child in [last, younger] {
        child.stop(Duration::ZERO, super::PATIENCE).await;
    }
    eventually("what carries the mark of the dead is gone", || is_reaped(escapee)).await;
    assert!(!is_reaped(daemon) && !is_reaped(nameless), "it may be the elder's");
    elder.stop(Duration::ZERO, super::PATIENCE).await;
    eventually("both are gone", || is_reaped(daemon) && is_reaped(nameless)).await;
}

/// Who ran before the gateway (a shell that became it by exec had started it) is no child's, nor is what it leaves.
#[test]
fn strangers_are_left_alone() {
    run(role("orphans::role_strangers"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run in a process of its own"]
async fn role_strangers() {
    if !is_role() {
        return;
    }
    adopt_orphans().expect("the call exists");
    let mut stranger = std::process::Command::new("sh");
    stranger.args(["-c", "setsid -f sh -c 'echo $$; exec sleep 999'; read line"]);
    stranger.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    // Else a trial that fails would not end before what is left of it.
    stranger.stderr(std::process::Stdio::null());
    let mut stranger = stranger.spawn().expect("a shell");
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(stranger.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut stdout, &mut line).expect("a line");
    let orphan: i32 = line.trim().parse().expect("a process id");
    let spawner = adopting(false);
    let (child, escapee) = leaving(&spawner, escaping("")).await;
    child.stop(Duration::ZERO, super::PATIENCE).await;
    eventually("the child's is gone", || is_reaped(escapee)).await;
    let pid = i32::try_from(stranger.id()).expect("a process id");
    assert!(
        stat(pid).is_some_and(|(state, _, _)| state != 'Z') && stat(orphan).is_some_and(|(state, _, _)| state != 'Z')
    );
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(orphan).expect("above zero"),
        rustix::process::Signal::KILL,
    )
    .expect("it is ours");
    stranger.kill().expect("it is ours");
    let _ = stranger.wait();
}

/// F:A13: what a child that lives on has left is reaped as soon as it ends.
#[test]
fn orphans_do_not_stay_as_zombies() {
    run(role("orphans::role_zombies"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run in a process of its own"]
async fn role_zombies() {
    if !is_role() {
        return;
    }
    let spawner = adopting(true);
    let script = "i=0; while [ $i -lt 50 ]; do setsid -f true; i=$((i+1)); done; echo 1; cat";
    let (child, _) = leaving(&spawner, shell(script)).await;
    let quick: Vec<Child> = {
        let mut quick = Vec::new();
        for _ in 0..20 {
            quick.push(spawner.spawn(command("sh", &["-c", "exit 3"])).await.expect("a child"));
        }
        quick
    };
    for child in &quick {
        assert_eq!(ended(child).await.ending, crate::upstream::Ending::Status(3), "nobody else took its status");
    }
    let zombies = || {
        every_pid()
            .into_iter()
            .filter(|pid| stat(*pid).is_some_and(|(state, parent, _)| state == 'Z' && parent == own()))
            .count()
    };
    eventually("no zombie is left", || zombies() == 0).await;
    assert!(stat(child.pid()).is_some_and(|(state, _, _)| state != 'Z'), "the child goes on");
}
