//! Follows the keys file: keys are handed out and taken back while the gateway runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::auth::Keys;
use crate::config::{Auth, Key, Problems, read_keys_file};
use crate::gateway::revocation::Revocation;
use crate::gateway::watched::Watched;

/// The keys file and what is known of it.
pub(super) struct KeysFile {
    path: PathBuf,
    keys: Arc<Keys>,
    /// Told when keys were taken back.
    revocation: Arc<Revocation>,
    /// Digests of the keys in effect, by name.
    known: BTreeMap<Arc<str>, [u8; 32]>,
    watched: Watched,
    /// What was wrong as it was read last.
    told: Option<Problems>,
}

impl KeysFile {
    /// Follows the file of `[auth]`, if there is one; `revocation` knows the keys, among them what was read from
    /// it at start.
    pub(super) fn new(auth: &Auth, revocation: &Arc<Revocation>) -> Option<KeysFile> {
        let filed = |name: &&Arc<str>| auth.filed.contains(*name);
        let known = auth.keys.iter().filter(|(name, _)| filed(name)).map(|(name, key)| (Arc::clone(name), key.hash));
        Some(KeysFile {
            path: auth.keys_file.clone()?,
            keys: Arc::clone(&revocation.keys),
            revocation: Arc::clone(revocation),
            known: known.collect(),
            watched: Watched::default(),
            told: None,
        })
    }

    /// Takes over what stands in the file, if it changed or was wrong.
    pub(super) async fn look(&mut self) {
        if self.watched.look(vec![self.path.clone()]).await.is_empty() {
            return;
        }
        let path = self.path.clone();
        match spawn_blocking(move || read_keys_file(&path)).await {
            Ok(Ok(found)) => self.take(found),
            Ok(Err(problems)) => self.refuse(problems),
            // It is being torn down.
            Err(_) => {}
        }
    }

    /// A file that is wrong changes nothing: a slip of the pen must not lock everybody out.
    fn refuse(&mut self, problems: Problems) {
        self.watched.read_again(&self.path);
        if self.told.as_ref() == Some(&problems) {
            return;
        }
        warn!(
            event = "reload_failed", config = %self.path.display(), error = %problems,
            warning = "the keys it held before stay in effect"
        );
        self.told = Some(problems);
    }

    fn take(&mut self, found: BTreeMap<Arc<str>, Key>) {
        self.told = None;
        let digests: BTreeMap<Arc<str>, [u8; 32]> =
            found.iter().map(|(name, key)| (Arc::clone(name), key.hash)).collect();
        if digests != self.known {
            info!(event = "reload", config = %self.path.display(), keys = found.len());
            let replaced = self.keys.replace_filed(found);
            self.revocation.end(&replaced);
            self.known = digests;
        }
    }
}
