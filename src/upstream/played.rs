//! Children that a test plays: real pipes, and no process behind them.

use std::sync::Arc;

use tokio::net::unix::pipe;
use tokio::sync::watch;

use crate::telemetry::ServerMetrics;
use crate::upstream::child::Child;
use crate::upstream::command::tests::server;
use crate::upstream::lease::Lease;
use crate::upstream::pool::Pool;
use crate::upstream::{Command, Ending, Exit, Spawner};

/// Where children are played.
pub(crate) struct Stage {
    pool: Arc<Pool>,
}

/// What a test holds of a child it plays. Dropping it is a child that is gone without a word.
pub(crate) struct Part {
    /// What the child writes.
    pub(crate) stdout: pipe::Sender,
    exit: watch::Sender<Option<Exit>>,
}

impl Stage {
    pub(crate) fn new(metrics: Arc<ServerMetrics>) -> Stage {
        let config = server();
        let command = Command::new(Arc::from("played"), &config, std::iter::empty());
        let spawner = Spawner::start().expect("a thread");
        Stage { pool: Pool::new(spawner, command, Arc::new(config), metrics) }
    }

    /// A child nobody used before, what it reads, and what else there is of it.
    pub(crate) fn enter(&self) -> (Lease, pipe::Receiver, Part) {
        let (to_child, stdin) = pipe::pipe().expect("a pipe");
        let (stdout, from_child) = pipe::pipe().expect("a pipe");
        let (exit, ended) = watch::channel(None);
        (self.pool.lend(Child::played(to_child, from_child, ended)), stdin, Part { stdout, exit })
    }
}

impl Part {
    /// The process ends.
    pub(crate) fn die(self) {
        self.exit.send_replace(Some(Exit { ending: Ending::Status(1), stderr: Arc::from([]) }));
    }
}
