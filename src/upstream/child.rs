//! A running child: its pipes, its end, the sequence that stops it.

use std::time::Duration;

use rustix::process::Signal;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::exit::Exit;
use super::process::{EndWatch, Process};
use super::stderr::{LastLines, Stderr};
use crate::telemetry::KnownSecrets;
use crate::telemetry::label::StopStep;

/// How long the kernel may take to end a group after SIGKILL before its owner goes on.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// One started child. Dropping it kills its group; [`Child::stop`] ends it politely.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    stdin: Option<pipe::Sender>,
    stdout: Option<pipe::Receiver>,
    last_lines: LastLines,
    known_secrets: KnownSecrets,
    exit: watch::Receiver<Option<Exit>>,
    signals: mpsc::UnboundedSender<Signal>,
    /// Owns the process. Aborting it drops the process into the spawner's hands.
    _owner: AbortOnDrop,
}

/// The gateway's ends of the pipes, ready for the runtime.
pub(super) struct Pipes {
    pub(super) stdin: pipe::Sender,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: Stderr,
}

/// How a stop went.
#[derive(Clone, Debug)]
pub struct StopReport {
    /// The last step that was needed.
    pub step: StopStep,
    /// The end; `None` if the kernel did not end the process within 2 s of SIGKILL. It is
    /// reaped nonetheless, as soon as it ends.
    pub exit: Option<Exit>,
}

#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Child {
    /// Starts the task that owns `process`. Needs a tokio runtime.
    pub(super) fn new(process: Process, end: EndWatch, pipes: Pipes, known_secrets: KnownSecrets) -> Self {
        let (exit_sender, exit) = watch::channel(None);
        let (signals, inbox) = mpsc::unbounded_channel();
        let (pid, last_lines) = (process.pid().as_raw_nonzero().get(), pipes.stderr.last_lines());
        let owner = tokio::spawn(own(process, end, pipes.stderr, inbox, exit_sender));
        Self {
            pid,
            stdin: Some(pipes.stdin),
            stdout: Some(pipes.stdout),
            last_lines,
            known_secrets,
            exit,
            signals,
            _owner: AbortOnDrop(owner.abort_handle()),
        }
    }

    /// One that a test plays, without a process.
    #[cfg(test)]
    pub(super) fn played(stdin: pipe::Sender, stdout: pipe::Receiver, exit: watch::Receiver<Option<Exit>>) -> Self {
        Self {
            pid: 1,
            stdin: Some(stdin),
            stdout: Some(stdout),
            last_lines: LastLines::default(),
            known_secrets: KnownSecrets::default(),
            exit,
            signals: mpsc::unbounded_channel().0,
            _owner: AbortOnDrop(tokio::spawn(async {}).abort_handle()),
        }
    }

    /// Process id, also that of the child's group. For logs; signals go through [`Child::stop`].
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The writing end of the child's stdin, once.
    pub fn take_stdin(&mut self) -> Option<pipe::Sender> {
        self.stdin.take()
    }

    /// The reading end of the child's stdout, once.
    ///
    /// A process that left the child's group may hold the other end for ever: after the child's
    /// end read what is there, and do not wait for the end of the stream.
    pub fn take_stdout(&mut self) -> Option<pipe::Receiver> {
        self.stdout.take()
    }

    /// The end of the child, as soon as the kernel reports it and what is left of its group is
    /// killed. If the child is dropped first, the channel closes without a value.
    #[must_use]
    pub fn exit(&self) -> watch::Receiver<Option<Exit>> {
        self.exit.clone()
    }

    /// What the child last wrote to stderr.
    #[must_use]
    pub fn last_lines(&self) -> LastLines {
        self.last_lines.clone()
    }

    /// The secrets it was given, to be left out of what is logged of its words.
    pub(super) fn known_secrets(&self) -> KnownSecrets {
        self.known_secrets.clone()
    }

    /// Closes stdin and waits `close`, sends SIGTERM to the group and waits `term`, sends it
    /// SIGKILL; leaves off as soon as the child has ended. Ends within `close + term + 2 s`.
    ///
    /// Whoever took the stdin must have dropped it, else the first step asks for nothing; and
    /// whoever took the stdout should read on, else a child that has much to write cannot end by itself.
    /// If the future is dropped the group is killed.
    pub async fn stop(mut self, close: Duration, term: Duration) -> StopReport {
        self.stdin = None;
        let mut step = StopStep::Eof;
        let mut exit = self.ended_within(close).await;
        if exit.is_none() {
            step = StopStep::Term;
            exit = self.signal(Signal::TERM, term).await;
        }
        if exit.is_none() {
            step = StopStep::Kill;
            exit = self.signal(Signal::KILL, KILL_GRACE).await;
        }
        StopReport { step, exit }
    }

    async fn signal(&mut self, signal: Signal, patience: Duration) -> Option<Exit> {
        // The owner is gone only if the child has ended, or the runtime is ending.
        let _ = self.signals.send(signal);
        self.ended_within(patience).await
    }

    async fn ended_within(&mut self, patience: Duration) -> Option<Exit> {
        // An owner that is gone without a word leaves `None`, as does the timeout.
        let _ = timeout(patience, self.exit.wait_for(Option::is_some)).await;
        self.exit.borrow().clone()
    }
}

/// Owns the process up to its end: drains stderr, passes signals on, reaps.
async fn own(
    mut process: Process,
    mut end: EndWatch,
    mut stderr: Stderr,
    mut signals: mpsc::UnboundedReceiver<Signal>,
    exit: watch::Sender<Option<Exit>>,
) {
    loop {
        tokio::select! {
            // A flood on stderr must not hide the end.
            biased;
            () = end.ended() => break,
            Some(signal) = signals.recv() => process.signal(signal),
            () = stderr.readable() => { stderr.take(); }
        }
    }
    let ending = process.reap();
    stderr.finish();
    exit.send_replace(Some(Exit { ending, stderr: stderr.last_lines().snapshot() }));
}
