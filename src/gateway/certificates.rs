//! Follows the files of `listen.tls`: certificates are renewed while the gateway runs.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::config;
use crate::gateway::watched::Watched;
use crate::net::{Credentials, Tls, TlsProblem};
use crate::telemetry::Metrics;
use crate::unix_time;

/// The certificates in effect and the files they came from.
pub(super) struct Certificates {
    tls: Arc<Tls>,
    files: config::Tls,
    held: Credentials,
    metrics: Arc<Metrics>,
    watched: Watched,
    /// What was wrong as they were read last.
    told: Vec<TlsProblem>,
}

impl Certificates {
    /// Reads every file.
    ///
    /// # Errors
    /// Every file that is wrong.
    pub(super) fn read(files: &config::Tls, metrics: &Arc<Metrics>) -> Result<Certificates, Vec<TlsProblem>> {
        let held = Credentials::read(files)?;
        for problem in held.ended(files, unix_time::seconds(), None) {
            warn!(event = "warning", warning = %problem);
        }
        let certificates = Certificates {
            tls: Tls::new(&held),
            files: files.clone(),
            held,
            metrics: Arc::clone(metrics),
            watched: Watched::default(),
            told: Vec::new(),
        };
        certificates.show();
        Ok(certificates)
    }

    /// What connections begin with.
    pub(super) fn tls(&self) -> &Arc<Tls> {
        &self.tls
    }

    /// Reads the files of another configuration, which nothing is done with yet; may wait for disks. A certificate
    /// that has ended is wrong, unless it is in effect already.
    ///
    /// # Errors
    /// Every file that is wrong.
    pub(super) fn next(files: &config::Tls, held: Option<&Credentials>) -> Result<Credentials, Vec<TlsProblem>> {
        let next = Credentials::read(files)?;
        let ended = next.ended(files, unix_time::seconds(), held);
        if ended.is_empty() { Ok(next) } else { Err(ended) }
    }

    /// The certificates in effect.
    pub(super) fn held(&self) -> Credentials {
        self.held.clone()
    }

    /// Takes over another configuration's.
    pub(super) fn replace(&mut self, files: &config::Tls, next: Credentials) {
        self.files = files.clone();
        self.take(next);
    }

    fn take(&mut self, next: Credentials) {
        if !next.is_same(&self.held) {
            self.tls.set(&next);
            let names: Vec<&str> = next.ends().map(|(name, _)| name).collect();
            info!(event = "tls_reload", certificates = names.join(", "));
        }
        self.held = next;
        self.show();
    }

    /// Reads again what changed or was wrong.
    pub(super) async fn look(&mut self) {
        let changed = self.watched.look(paths(&self.files)).await;
        if changed.is_empty() {
            return;
        }
        let (files, held) = (self.files.clone(), self.held.clone());
        let renew = move || held.renewed(&files, unix_time::seconds(), |file| changed.contains(file));
        let Ok((next, problems)) = spawn_blocking(renew).await else { return };
        problems.iter().for_each(|problem| self.watched.read_again(&problem.file));
        tell(problems.iter().filter(|problem| !self.told.contains(problem)));
        self.told = problems;
        self.take(next);
    }

    fn show(&self) {
        self.metrics.certificates(self.held.ends());
    }
}

/// Says which files are wrong, what they held before being in effect still.
pub(super) fn tell<'a>(problems: impl IntoIterator<Item = &'a TlsProblem>) {
    for problem in problems {
        warn!(
            event = "tls_reload_failed", file = %problem.file.display(), reason = problem.reason,
            warning = "what it held before stays in effect"
        );
    }
}

fn paths(files: &config::Tls) -> Vec<PathBuf> {
    let pairs = files.certificates.iter().flat_map(|pair| [&pair.cert, &pair.key]);
    pairs.chain(&files.client_ca).cloned().collect()
}
