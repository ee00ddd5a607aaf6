//! The thread on which every fork happens.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::process::Pid;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::child::{Child, Pipes};
use super::command::Command;
use super::fork::Preparation;
use super::landlock::ScopeRuleset;
use super::launch::launch;
use super::living::{Counted, Living};
use super::oom_kills::OomKills;
use super::own_process::inherited_descriptor_limit;
use super::process::{EndWatch, Process, bury};
use super::spawn_error::{SpawnError, SpawnFailure};
use super::stderr::Stderr;

/// How often processes that were handed over are looked at; they were sent SIGKILL.
const BURY_INTERVAL: Duration = Duration::from_millis(5);

/// Starts children, all from one thread.
///
/// A parent-death signal is sent when the *thread* that forked ends, so no thread of a pool may
/// fork. This one lives as long as any clone of the spawner and any child. Forks are therefore
/// one after the other, each until the new program runs.
#[derive(Clone, Debug)]
pub struct Spawner {
    orders: mpsc::Sender<Order>,
    living: Living,
    oom_kills: Arc<OomKills>,
    scope: Option<Arc<ScopeRuleset>>,
}

/// What the thread is asked to do.
#[derive(Debug)]
pub(super) enum Order {
    /// Start a child.
    Start(Box<Start>),
    /// Kill and reap a process whose owner is gone.
    Bury(Pid, Counted),
}

#[derive(Debug)]
pub(super) struct Start {
    command: Command,
    /// Keeps the thread, and the ruleset, for the child's life.
    spawner: Spawner,
    answer: oneshot::Sender<Result<(Process, Ends), SpawnError>>,
}

/// The gateway's ends of a child's three pipes.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl Spawner {
    /// Starts the thread. One per process is enough.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start() -> io::Result<Self> {
        Self::start_with(OomKills::of_this_process())
    }

    pub(super) fn start_with(oom_kills: Arc<OomKills>) -> io::Result<Self> {
        keep_ended_children()?;
        let (orders, inbox) = mpsc::channel();
        std::thread::Builder::new().name("spawner".into()).spawn(move || serve(&inbox))?;
        Ok(Self { orders, living: Living::default(), oom_kills, scope: ScopeRuleset::create().map(Arc::new) })
    }

    /// Whether children can be put into a Landlock domain. If not, those that ask for one run without.
    #[must_use]
    pub fn scope_supported(&self) -> bool {
        self.scope.is_some()
    }

    /// The processes it started that are not reaped yet.
    #[must_use]
    pub fn living(&self) -> &Living {
        &self.living
    }

    /// Starts one child. Needs a tokio runtime. If the future is dropped, so is the child.
    ///
    /// # Errors
    /// See [`SpawnFailure`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn spawn(&self, command: Command) -> Result<Child, SpawnError> {
        let (answer, started) = oneshot::channel();
        let (server, count) = (Arc::clone(&command.server), command.stderr_count.clone());
        let program = command.program.clone();
        let failed = |error| SpawnError::new(SpawnFailure::of(&error), &program, error);
        let order = Start { command, spawner: self.clone(), answer };
        // The thread ends only after its last sender, and answers every order.
        let gone = || failed(io::Error::other("the spawner's thread is gone"));
        self.orders.send(Order::Start(Box::new(order))).map_err(|_| gone())?;
        let (process, ends) = started.await.map_err(|_| gone())??;
        let stderr = pipe::Receiver::from_owned_fd(ends.stderr).map_err(failed)?;
        let pipes = Pipes {
            stdin: pipe::Sender::from_owned_fd(ends.stdin).map_err(failed)?,
            stdout: pipe::Receiver::from_owned_fd(ends.stdout).map_err(failed)?,
            stderr: Stderr::new(stderr, server, process.pid(), count),
        };
        let end = EndWatch::new(process.pid()).map_err(failed)?;
        Ok(Child::new(process, end, pipes))
    }
}

/// With SIGCHLD ignored, which is inherited through exec, the kernel would reap children by itself:
/// their exit status would be lost and their ids free while still in use here.
fn keep_ended_children() -> io::Result<()> {
    // SAFETY: both structs are live locals, for which zero is a valid value; an installed handler
    // is left alone, so no code is taken away from anyone.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGCHLD, std::ptr::null(), &raw mut action) != 0 {
            return Err(io::Error::last_os_error());
        }
        if action.sa_sigaction == libc::SIG_IGN || action.sa_flags & libc::SA_NOCLDWAIT != 0 {
            action.sa_flags &= !libc::SA_NOCLDWAIT;
            if action.sa_sigaction == libc::SIG_IGN {
                action.sa_sigaction = libc::SIG_DFL;
            }
            if libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// The thread: starts what is ordered and buries what was left behind, until nobody can ask.
fn serve(inbox: &mpsc::Receiver<Order>) {
    let mut left_behind: Vec<(Pid, Counted)> = Vec::new();
    loop {
        let order = if left_behind.is_empty() {
            inbox.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected)
        } else {
            inbox.recv_timeout(BURY_INTERVAL)
        };
        match order {
            Ok(Order::Start(start)) => {
                let Start { command, spawner, answer } = *start;
                // Nobody waiting: the process in the unsent answer is dropped, and comes back here.
                let _ = answer.send(fork(&command, &spawner));
            }
            Ok(Order::Bury(pid, counted)) => left_behind.push((pid, counted)),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) if left_behind.is_empty() => return,
            Err(mpsc::RecvTimeoutError::Disconnected) => std::thread::sleep(BURY_INTERVAL),
        }
        left_behind.retain(|(pid, _)| !bury(*pid));
    }
}

/// Forks and waits until the new program runs or has failed to.
fn fork(command: &Command, spawner: &Spawner) -> Result<(Process, Ends), SpawnError> {
    let scope = spawner.scope.as_ref().filter(|_| command.scope);
    let preparation = Preparation::new(inherited_descriptor_limit(), scope.map(|ruleset| ruleset.descriptor()));
    let oom = spawner.oom_kills.mark();
    let (pid, ends) = launch(command, &preparation).map_err(|error| SpawnError::diagnose(command, error))?;
    let mut process = Process::new(pid, spawner.living.one(), oom, spawner.orders.clone());
    if let Some(metrics) = &command.metrics {
        process.measure(metrics);
    }
    Ok((process, ends))
}
