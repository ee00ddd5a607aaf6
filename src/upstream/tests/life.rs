//! Living: pipes, stderr, and the end seen when it comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::{Lines, PATIENCE, Spawner, command, ended, eventually, is_gone, is_reaped, output, shell, start};
use crate::upstream::Ending;
use crate::upstream::oom_kills::OomKills;

#[tokio::test(flavor = "multi_thread")]
async fn lines_go_in_and_come_out() {
    let mut child = start(command("cat", &[])).await;
    let mut stdin = child.take_stdin().expect("untaken");
    let mut lines = Lines::of(&mut child);
    assert!(child.take_stdin().is_none() && child.take_stdout().is_none());
    stdin.write_all(b"one\ntwo\n").await.expect("a reader");
    assert_eq!(lines.next().await.as_deref(), Some("one"));
    assert_eq!(lines.next().await.as_deref(), Some("two"));
    drop(stdin);
    assert_eq!(lines.next().await, None);
    assert_eq!(ended(&child).await.ending, Ending::Status(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_has_status_signal_and_last_words() {
    let exit = ended(&start(shell("echo first >&2; printf second >&2; exit 3")).await).await;
    assert_eq!(exit.ending, Ending::Status(3));
    assert_eq!(*exit.stderr, ["first", "second"]);
    let exit = ended(&start(shell("kill -9 $$")).await).await;
    assert_eq!(exit.ending, Ending::Signal { number: libc::SIGKILL, core: false });
}

/// F:F09: an unprivileged user's later pipes hold one or two pages.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_longer_than_a_small_pipe_flows() {
    let mut child = start(command("cat", &[])).await;
    let mut stdin = child.take_stdin().expect("untaken");
    let mut lines = Lines::of(&mut child);
    for size in [rustix::pipe::fcntl_setpipe_size(&stdin, 4096), rustix::pipe::fcntl_setpipe_size(&lines.stdout, 4096)]
    {
        assert_eq!(size, Ok(4096));
    }
    let text = "x".repeat(3 << 20);
    let sent = format!("{text}\nend\n");
    let writer = tokio::spawn(async move { stdin.write_all(sent.as_bytes()).await });
    assert!(lines.next().await == Some(text));
    assert_eq!(lines.next().await.as_deref(), Some("end"));
    writer.await.expect("no panic").expect("a reader");
}

/// F:A11.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_child_is_seen_though_a_grandchild_holds_its_pipes() {
    let mut child = start(shell("sleep 1000 & echo $!; exit 7")).await;
    let grandchild = Lines::of(&mut child).pid().await;
    assert_eq!(ended(&child).await.ending, Ending::Status(7));
    eventually("the grandchild is gone", || is_gone(grandchild)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_child_is_seen_though_an_escaped_grandchild_holds_its_pipes() {
    let mut child =
        start(shell("setsid sleep 1000 & while [ ! -e /proc/$! ]; do :; done; echo $!; read x; exit 7")).await;
    let stdin = child.take_stdin();
    let mut lines = Lines::of(&mut child);
    let grandchild = lines.pid().await;
    eventually("it has a session of its own", || {
        super::stat(grandchild).is_some_and(|(_, _, group)| group == grandchild)
    })
    .await;
    drop(stdin);
    assert_eq!(ended(&child).await.ending, Ending::Status(7));
    assert!(!is_gone(grandchild), "it escaped; otherwise this shows nothing");
    // SAFETY: sends a signal to a process this test started and has just seen alive.
    unsafe { libc::kill(grandchild, libc::SIGKILL) };
}

/// The kernel counts whom it kills for want of memory before it does.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_for_want_of_memory_is_told_from_other_kills() {
    let count = std::env::temp_dir().join(format!("gangway-oom-count-{}", std::process::id()));
    std::fs::write(&count, "oom_kill 3\n").expect("a file");
    let spawner = Spawner::start_with(OomKills::counted_in(Some(count.clone()))).expect("a thread");
    let counts = format!("echo oom_kill 4 >{}; kill -9 $$", count.display());
    for (script, out_of_memory) in [("kill -9 $$", false), (&counts, true), ("kill -9 $$", false), ("exit 9", false)] {
        let ending = ended(&spawner.spawn(shell(script)).await.expect("a child")).await.ending;
        assert_eq!(ending == Ending::OutOfMemory, out_of_memory, "{script}: {ending:?}");
    }
    let counts = format!("trap '' TERM; echo oom_kill 5 >{}; echo here; while :; do sleep 1000; done", count.display());
    let mut child = spawner.spawn(shell(&counts)).await.expect("a child");
    assert_eq!(Lines::of(&mut child).next().await.as_deref(), Some("here"));
    let report = child.stop(Duration::ZERO, Duration::ZERO).await;
    assert_eq!(report.exit.map(|exit| exit.ending), Some(Ending::Signal { number: libc::SIGKILL, core: false }));
    std::fs::remove_file(&count).expect("it is ours");
}

/// F:B11: nobody reads the log of such a child, and it must neither block nor cost memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_on_stderr_is_drained_and_its_end_kept() {
    let script = "import sys\n\
        e = sys.stderr.buffer\n\
        e.write(b'x' * (4 << 20) + b'\\n')\n\
        e.write(b''.join(b'%06d' % n + b'y' * 94 + b'\\n' for n in range(40000)))\n\
        e.write(b'\\xffbad\\r\\n' + b'z' * 600 + b'\\nlast words')\n\
        e.flush()\n";
    let counted = Arc::new(AtomicUsize::new(0));
    let mut command = command("python3", &["-c", script]);
    let counter = Arc::clone(&counted);
    command.stderr_count = Some(Arc::new(move |lines| {
        counter.fetch_add(lines, Ordering::Relaxed);
    }));
    let exit = ended(&start(command).await).await;
    assert_eq!(exit.ending, Ending::Status(0));
    assert_eq!(exit.stderr.len(), 20);
    assert!(exit.stderr[0].starts_with("039983y"), "{}", exit.stderr[0]);
    assert_eq!(exit.stderr[17], "\u{FFFD}bad");
    assert_eq!(exit.stderr[18], "z".repeat(512));
    assert_eq!(exit.stderr[19], "last words");
    assert_eq!(counted.load(Ordering::Relaxed), 40_004);
}

#[tokio::test(flavor = "multi_thread")]
async fn last_words_are_there_before_the_end() {
    let child = start(shell("echo still starting >&2; sleep 1000")).await;
    let last_lines = child.last_lines();
    eventually("the line is kept", || *last_lines.snapshot() == ["still starting"]).await;
}

/// A thread that asks for a child and ends must not take the child along.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_outlives_the_thread_that_asked_for_it() {
    let spawner = Spawner::start().expect("a thread");
    let handle = tokio::runtime::Handle::current();
    let asked = std::thread::spawn(move || handle.block_on(spawner.spawn(command("cat", &[]))));
    let mut child = asked.join().expect("no panic").expect("a child");
    let mut stdin = child.take_stdin().expect("untaken");
    stdin.write_all(b"alive\n").await.expect("a reader");
    assert_eq!(Lines::of(&mut child).next().await.as_deref(), Some("alive"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_child_is_killed_with_its_group_and_reaped() {
    let mut child = start(shell("trap '' TERM; sh -c 'trap \"\" TERM; echo $$; sleep 1000' & wait")).await;
    let mut lines = Lines::of(&mut child);
    let (pid, grandchild) = (child.pid(), lines.pid().await);
    let mut exit = child.exit();
    drop(child);
    eventually("the child is reaped", || is_reaped(pid)).await;
    eventually("the grandchild is gone", || is_gone(grandchild)).await;
    assert!(timeout(PATIENCE, exit.wait_for(Option::is_some)).await.expect("in time").is_err());
}

#[test]
fn a_runtime_that_ends_leaves_no_child() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let child = runtime.block_on(start(shell("trap '' TERM HUP; sleep 1000")));
    let pid = child.pid();
    drop(runtime);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(eventually("the child is reaped", || is_reaped(pid)));
    drop(child);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_nobody_waits_for_leaves_no_child() {
    let spawner = Spawner::start().expect("a thread");
    let marker = format!("1000.{}", std::process::id());
    for _ in 0..20 {
        let asked = tokio::spawn({
            let (spawner, marker) = (spawner.clone(), marker.clone());
            async move { spawner.spawn(command("sleep", &[&marker])).await.map(drop) }
        });
        tokio::task::yield_now().await;
        asked.abort();
        let _ = asked.await;
    }
    // The forks are in order: once this one answers, the others have happened.
    assert!(ended(&spawner.spawn(command("true", &[])).await.expect("a child")).await.ending.success());
    let is_ours = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|&byte| byte == 0).any(|part| part == marker.as_bytes()))
    };
    eventually("none is left", || !super::every_pid().iter().any(is_ours)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_output_arrives_whole() {
    let text = output(command("python3", &["-c", "print('x' * (8 << 20))"])).await;
    assert_eq!(text.len(), (8 << 20) + 1);
}
