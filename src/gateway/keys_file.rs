//! Follows the keys file: keys are handed out and taken back while the gateway runs.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::auth::Keys;
use crate::config::{Auth, Key, Problems, read_keys_file};
use crate::gateway::revocation::Revocation;

/// Pause between two looks at the file.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// What changes with a file's content: writing it in place moves the time or the length, putting another in its place
/// moves the inode too. `None` is a file that cannot be looked at.
type Stamp = Option<(i64, i64, u64, u64)>;

/// The keys file and what is known of it.
pub(super) struct KeysFile {
    path: PathBuf,
    keys: Arc<Keys>,
    /// Told when keys were taken back.
    revocation: Arc<Revocation>,
    /// Digests of the keys in effect, by name.
    known: BTreeMap<Arc<str>, [u8; 32]>,
    /// The file at the last look.
    seen: Stamp,
    /// The file as it was read last, whether it was good or not.
    read: Option<Stamp>,
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
            seen: None,
            read: None,
        })
    }

    /// Takes over what stands in the file, once it has rested for one look: whoever writes it in place may be half
    /// way. The first look has no one before it, so a change since the start is not missed either.
    pub(super) async fn look(&mut self) {
        let path = self.path.clone();
        // The disk may be slow, or far away.
        let Ok(stamp) = spawn_blocking(move || stamp(&path)).await else { return };
        let rests = stamp == self.seen;
        self.seen = stamp;
        if !rests || self.read == Some(stamp) {
            return;
        }
        self.read = Some(stamp);
        let path = self.path.clone();
        let Ok(found) = spawn_blocking(move || read_keys_file(&path)).await else { return };
        self.take(found);
    }

    /// A file that is wrong changes nothing: a slip of the pen must not lock everybody out.
    fn take(&mut self, found: Result<BTreeMap<Arc<str>, Key>, Problems>) {
        let found = match found {
            Ok(found) => found,
            Err(problems) => {
                warn!(
                    event = "reload_failed", config = %self.path.display(), error = %problems,
                    warning = "the keys it held before stay in effect"
                );
                return;
            }
        };
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

fn stamp(path: &std::path::Path) -> Stamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.mtime(), metadata.mtime_nsec(), metadata.len(), metadata.ino()))
}
