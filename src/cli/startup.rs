//! What `gangway run` shows from its start until its server is ready, or turns out not to start.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{interval, sleep};

use crate::cli::picture::Picture;
use crate::cli::terminal::{Terminal, show};
use crate::gateway::{Catalogue, Diagnosis, Health, ScoutFailure, Servers, Status};
use crate::telemetry::Hush;

/// How often the time that has passed is shown anew.
const TICK: Duration = Duration::from_secs(1);

/// How long the log stays hushed once the picture stands.
const SETTLING: Duration = Duration::from_secs(1);

/// The start of one run.
pub struct Startup {
    /// What is shown.
    pub picture: Picture,
    /// Where a line can be rewritten.
    pub terminal: Option<Terminal>,
    /// Keeps the log out of the picture until it stands.
    pub hush: Option<Hush>,
}

/// How the first look at the server ended.
enum Outcome {
    Ready(Arc<Catalogue>),
    Failed(Arc<ScoutFailure>),
}

impl Startup {
    /// Shows how the start goes.
    ///
    /// # Errors
    /// The server does not start; why was shown.
    pub async fn follow(self, servers: Arc<Servers>) -> Result<(), ()> {
        let Some(server) = servers.all().first().cloned() else { return Ok(()) };
        let began = Instant::now();
        show(&self.picture.head());
        let outcome = self.wait(server.status(), began).await;
        match outcome {
            Some(Outcome::Ready(catalogue)) => {
                show(&self.picture.ready(&catalogue, began.elapsed()));
                // The scout's end and the first spare's start are no news to who reads the picture.
                if self.hush.is_some() {
                    sleep(SETTLING).await;
                }
                Ok(())
            }
            Some(Outcome::Failed(failure)) => {
                let diagnosis = Diagnosis::of(&failure, server.name(), server.config());
                show(&self.picture.failed(&diagnosis, began.elapsed()));
                // The process ends now; the log would only say the same again.
                std::mem::forget(self.hush);
                Err(())
            }
            None => Ok(()),
        }
    }

    /// Waits for the scout; `None` if the gateway goes first.
    async fn wait(&self, mut status: watch::Receiver<Status>, began: Instant) -> Option<Outcome> {
        let mut line = self.terminal.and_then(Terminal::line);
        if line.is_none() {
            show(&format!("{}\n", self.picture.starting(Duration::ZERO)));
        }
        let mut ticks = interval(TICK);
        loop {
            tokio::select! {
                decided = status.wait_for(|status| outcome(status).is_some()) => {
                    return decided.ok().and_then(|status| outcome(&status));
                }
                _ = ticks.tick() => if let Some(line) = &mut line {
                    line.rewrite(&self.picture.starting(began.elapsed()));
                }
            }
        }
    }
}

/// A client may have made the server `Ready` before the scout knows what it offers; the picture waits for that.
fn outcome(status: &Status) -> Option<Outcome> {
    match (&status.health, &status.catalogue) {
        (Health::Ready, Some(catalogue)) => Some(Outcome::Ready(Arc::clone(catalogue))),
        (Health::Failed(failure), _) => Some(Outcome::Failed(Arc::clone(failure))),
        _ => None,
    }
}
