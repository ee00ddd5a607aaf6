//! The one owner of a process: it signals, sees the end, reaps.

use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::sync::mpsc;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

#[cfg(target_os = "linux")]
use tokio::io::unix::AsyncFd;

use super::control_group::ControlGroup;
use super::exit::Ending;
use super::oom_kills::OomMark;
use super::reaper::Remains;
use super::spawner::Order;
use crate::telemetry::{MeasuredChild, ServerMetrics};

/// A started process that was not reaped yet.
///
/// Until it is reaped its id, which is also that of its group, cannot be given to another
/// process. Signals are sent and reaping is done through this owner alone, so none goes astray.
/// Dropping it hands the process to the spawner's thread, which kills and reaps it.
#[derive(Debug)]
pub(super) struct Process {
    pid: Pid,
    /// Taken when it is reaped.
    remains: Option<Remains>,
    /// Ends before it is reaped.
    measured: Option<MeasuredChild>,
    /// Whether SIGKILL was sent to it from here.
    killed: bool,
    oom: OomMark,
    orders: mpsc::Sender<Order>,
}

impl Process {
    /// `oom` must have been taken before it was started.
    pub(super) fn new(pid: Pid, remains: Remains, oom: OomMark, orders: mpsc::Sender<Order>) -> Self {
        Self { pid, remains: Some(remains), measured: None, killed: false, oom, orders }
    }

    /// Measures what its group takes, as long as it is not reaped.
    pub(super) fn measure(&mut self, metrics: &ServerMetrics) {
        self.measured = Some(metrics.measure_child(self.pid.as_raw_nonzero().get()));
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends `signal` to the whole group, of which the leader is always part (see `fork`).
    pub(super) fn signal(&mut self, signal: Signal) {
        self.killed |= signal == Signal::KILL;
        signal_group(self.pid, signal);
        if signal == Signal::TERM {
            // Who is stopped cannot heed it.
            signal_group(self.pid, Signal::CONT);
        }
    }

    /// Kills what is left of the group of a leader that has ended, and reaps the leader.
    pub(super) fn reap(mut self) -> Ending {
        self.measured = None;
        let ending = reap(self.pid).unwrap_or(Ending::Unknown);
        let is_oom = ending.is_kill() && !self.killed && self.is_out_of_memory();
        if let Some(remains) = self.remains.take() {
            remains.hand_over();
        }
        if is_oom { Ending::OutOfMemory } else { ending }
    }

    /// Whether memory ran out: what its own control group counted, which nobody else is in; else what can be inferred.
    fn is_out_of_memory(&self) -> bool {
        let group = self.remains.as_ref().and_then(|remains| remains.group.as_ref());
        match group.and_then(ControlGroup::oom_kills) {
            Some(kills) => kills > 0,
            None => self.oom.explains_a_kill(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.measured = None;
        if let Some(remains) = self.remains.take() {
            // The thread outlives every sender, so this arrives.
            let _ = self.orders.send(Order::Bury(self.pid, remains));
        }
    }
}

/// Whether the process has ended; it stays unreaped.
pub(super) fn has_ended(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    match waitid(WaitId::Pid(pid), options) {
        Ok(status) => status.is_some(),
        // Somebody else reaped it.
        Err(error) => error == rustix::io::Errno::CHILD,
    }
}

/// Kills the group and reaps its leader if that has ended; true once there is nothing left to do.
pub(super) fn bury(pid: Pid) -> bool {
    if has_ended(pid) {
        reap(pid);
        return true;
    }
    signal_group(pid, Signal::KILL);
    false
}

/// Reaps an ended leader, killing its group first: as long as the leader is unreaped the group's
/// id cannot belong to anyone else.
fn reap(pid: Pid) -> Option<Ending> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let look = waitid(WaitId::Pid(pid), options | WaitIdOptions::NOWAIT);
    if let Ok(Some(_)) = look {
        signal_group(pid, Signal::KILL);
    }
    let status = waitid(WaitId::Pid(pid), options).ok().flatten()?;
    Some(Ending::of(&status))
}

fn signal_group(pid: Pid, signal: Signal) {
    // Fails only if every member is a zombie (macOS) or belongs to another user.
    let _ = kill_process_group(pid, signal);
}

/// Tells when a process ends, whoever holds its pipes.
#[derive(Debug)]
pub(super) enum EndWatch {
    /// A descriptor that becomes readable.
    #[cfg(target_os = "linux")]
    Descriptor(Pid, AsyncFd<OwnedFd>),
    /// SIGCHLD of any child, where there are no process descriptors.
    Signal(Pid, tokio::signal::unix::Signal),
}

impl EndWatch {
    /// Watches `pid`, which the caller owns. Needs a tokio runtime.
    ///
    /// # Errors
    /// No free descriptor, mostly.
    pub(super) fn new(pid: Pid) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::NONBLOCK) {
            Ok(descriptor) => {
                let interest = tokio::io::Interest::READABLE;
                // SAFETY: the descriptor is owned by what registers it, and closed after it.
                let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, interest)? };
                return Ok(Self::Descriptor(pid, descriptor));
            }
            // Some sandboxes do not know or not allow the call.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM | rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        Self::by_signal(pid)
    }

    fn by_signal(pid: Pid) -> io::Result<Self> {
        // Listens before the first look, so that no end falls between the two.
        let children = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child())?;
        Ok(Self::Signal(pid, children))
    }

    /// Returns when the process has ended and is to be reaped. Cancel-safe.
    pub(super) async fn ended(&mut self) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Descriptor(pid, descriptor) => loop {
                let Ok(mut ready) = descriptor.readable().await else {
                    // The runtime is shutting down and drops this task.
                    return std::future::pending().await;
                };
                if has_ended(*pid) {
                    ready.retain_ready();
                    return;
                }
                ready.clear_ready();
            },
            Self::Signal(pid, signal) => {
                while !has_ended(*pid) {
                    if signal.recv().await.is_none() {
                        return std::future::pending().await;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EndWatch, Process, has_ended};
    use crate::upstream::exit::Ending;
    use crate::upstream::living::Living;
    use crate::upstream::oom_kills::OomKills;
    use crate::upstream::reaper::Remains;
    use rustix::process::Pid;
    use std::process::{Command, Stdio};
    use std::time::Duration;
    use tokio::time::timeout;

    #[expect(clippy::zombie_processes, reason = "reaped by its owner, which is the trial")]
    async fn sees_the_end(watch: impl FnOnce(Pid) -> std::io::Result<EndWatch>) {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; exit 6"]).stdin(Stdio::piped());
        let mut started = command.spawn().expect("a shell");
        let pid = Pid::from_child(&started);
        let (orders, inbox) = std::sync::mpsc::channel();
        let remains = Remains::unwatched(Living::default().one());
        let process = Process::new(pid, remains, OomKills::counted_in(None).mark(), orders);
        let mut watch = watch(pid).expect("a watch");
        assert!(timeout(Duration::ZERO, watch.ended()).await.is_err());
        drop(started.stdin.take());
        timeout(Duration::from_secs(30), watch.ended()).await.expect("in time");
        assert!(has_ended(pid), "it stays to be reaped");
        assert_eq!(process.reap(), Ending::Status(6));
        assert!(inbox.recv().is_err(), "nothing is left to bury");
    }

    #[tokio::test]
    async fn the_end_is_seen_either_way() {
        sees_the_end(EndWatch::new).await;
        sees_the_end(EndWatch::by_signal).await;
    }
}
