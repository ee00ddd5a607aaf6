//! Stopping: no further than needed, and always to the end.

use std::time::{Duration, Instant};

use super::{Lines, PATIENCE, eventually, is_gone, is_reaped, shell, start};
use crate::telemetry::label::StopStep;
use crate::upstream::Ending;

const SHORT: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread")]
async fn a_polite_child_ends_by_itself() {
    let child = start(shell("cat; exit 5")).await;
    let pid = child.pid();
    let report = child.stop(PATIENCE, PATIENCE).await;
    assert_eq!(report.step, StopStep::Eof);
    assert_eq!(report.exit.map(|exit| exit.ending), Some(Ending::Status(5)));
    assert!(is_reaped(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_deaf_to_eof_is_terminated() {
    let report = start(shell("exec sleep 1000")).await.stop(SHORT, PATIENCE).await;
    assert_eq!(report.step, StopStep::Term);
    let ending = report.exit.map(|exit| exit.ending);
    assert_eq!(ending, Some(Ending::Signal { number: libc::SIGTERM, core: false }));
}

/// F:A05: the last thing a stopped process can do is to heed SIGTERM once it is continued.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_child_is_continued_to_be_terminated() {
    let child = start(shell("kill -STOP $$")).await;
    let pid = child.pid();
    eventually("it is stopped", || super::stat(pid).is_some_and(|(state, _, _)| state == 'T')).await;
    assert_eq!(child.stop(SHORT, PATIENCE).await.step, StopStep::Term);
}

/// F:A08, R:D16.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_deaf_to_everything_is_killed_in_time() {
    let mut child = start(shell("trap '' TERM; echo $$; while :; do sleep 1000; done")).await;
    let pid = Lines::of(&mut child).pid().await;
    let begun = Instant::now();
    let report = child.stop(SHORT, SHORT).await;
    assert_eq!(report.step, StopStep::Kill);
    let ending = report.exit.map(|exit| exit.ending);
    assert_eq!(ending, Some(Ending::Signal { number: libc::SIGKILL, core: false }));
    assert!(begun.elapsed() >= 2 * SHORT && begun.elapsed() < PATIENCE);
    assert!(is_reaped(pid));
}

/// F:A09.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_group_ends() {
    for patience in [SHORT, Duration::ZERO] {
        let mut child = start(shell("sh -c 'trap \"\" TERM; echo $$; sleep 1000; :' & wait")).await;
        let grandchild = Lines::of(&mut child).pid().await;
        let pid = child.pid();
        assert_eq!(super::stat(grandchild).map(|(_, _, group)| group), Some(pid));
        child.stop(patience, PATIENCE).await;
        assert!(is_reaped(pid));
        eventually("the grandchild is gone", || is_gone(grandchild)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_had_ended_is_reported() {
    let child = start(shell("exit 4")).await;
    super::ended(&child).await;
    let report = child.stop(Duration::ZERO, Duration::ZERO).await;
    assert_eq!(report.step, StopStep::Eof);
    assert_eq!(report.exit.map(|exit| exit.ending), Some(Ending::Status(4)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_is_given_up_kills() {
    let child = start(shell("trap '' TERM; sleep 1000; :")).await;
    let pid = child.pid();
    assert!(tokio::time::timeout(SHORT, child.stop(PATIENCE, PATIENCE)).await.is_err());
    eventually("the child is reaped", || is_reaped(pid)).await;
}
