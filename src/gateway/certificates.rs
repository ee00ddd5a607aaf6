//! Follows the files of `listen.tls`: certificates are renewed while the gateway runs.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::config;
use crate::net::{Credentials, Tls, TlsProblem};
use crate::telemetry::Metrics;

/// What changes with a file's content: writing it in place moves the time or the length, putting another in its place,
/// or behind a link it leads to, moves the inode too. `None` is a file that cannot be looked at.
type Stamp = Option<(i64, i64, u64, u64, u64)>;

/// The certificates in effect and the files they came from.
pub(super) struct Certificates {
    tls: Arc<Tls>,
    files: config::Tls,
    held: Credentials,
    metrics: Arc<Metrics>,
    /// Each file at the last look.
    seen: HashMap<PathBuf, Stamp>,
    /// Each file as it was read last, whether it was good or not; none that could not be read at all.
    read: HashMap<PathBuf, Stamp>,
    /// What was wrong then.
    told: Vec<TlsProblem>,
}

impl Certificates {
    /// Reads every file.
    ///
    /// # Errors
    /// Every file that is wrong.
    pub(super) fn read(files: &config::Tls, metrics: &Arc<Metrics>) -> Result<Certificates, Vec<TlsProblem>> {
        // Taken before the files are read, so that no change after that is missed.
        let read = stamps(files);
        let held = Credentials::read(files)?;
        for problem in held.ended(files, now(), None) {
            warn!(event = "warning", warning = %problem);
        }
        let certificates = Certificates {
            tls: Tls::new(&held),
            files: files.clone(),
            held,
            metrics: Arc::clone(metrics),
            seen: HashMap::new(),
            read,
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
        let ended = next.ended(files, now(), held);
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

    /// Reads again what changed, once it has rested for one look: whoever writes it in place may be half way, and a
    /// certificate is written before or after its key.
    pub(super) async fn look(&mut self) {
        let files = self.files.clone();
        // The disk may be slow, or far away.
        let Ok(stamps) = spawn_blocking(move || stamps(&files)).await else { return };
        let rests = stamps == self.seen;
        self.seen = stamps;
        if !rests || self.seen == self.read {
            return;
        }
        let before = std::mem::replace(&mut self.read, self.seen.clone());
        let (files, held, now_read) = (self.files.clone(), self.held.clone(), self.read.clone());
        let is_changed = move |file: &Path| before.get(file) != now_read.get(file);
        let Ok((next, problems)) = spawn_blocking(move || held.renewed(&files, now(), is_changed)).await else {
            return;
        };
        // They are read again at the next look: there were no descriptors, or the disk was away.
        for problem in problems.iter().filter(|problem| problem.may_pass) {
            self.read.remove(&problem.file);
        }
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

fn stamps(files: &config::Tls) -> HashMap<PathBuf, Stamp> {
    let pairs = files.certificates.iter().flat_map(|pair| [&pair.cert, &pair.key]);
    pairs.chain(&files.client_ca).map(|file| (file.clone(), stamp(file))).collect()
}

fn stamp(file: &Path) -> Stamp {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.mtime(), metadata.mtime_nsec(), metadata.len(), metadata.ino(), metadata.dev()))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
