//! Files whose content is taken over as it changes.

use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::spawn_blocking;

/// Pause between two looks at files.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// What changes with a file's content: writing it in place moves the time or the length, putting another in its place,
/// or behind a link it leads to, moves the inode too. `None` is a file that cannot be looked at.
type Stamp = Option<(i64, i64, u64, u64, u64)>;

/// What is known of files that are followed.
#[derive(Default)]
pub(super) struct Watched {
    /// Each file at the last look.
    seen: HashMap<PathBuf, Stamp>,
    /// Each file as it was read last; none of those that are to be read again.
    read: HashMap<PathBuf, Stamp>,
}

impl Watched {
    /// Which of these files are to be read: those that changed since they were. None before every one has rested for one
    /// look: whoever writes in place may be half way, and of two files that belong together one is written first. A file
    /// of which nothing is known yet is read, so a change between the start and the first look is not missed.
    pub(super) async fn look(&mut self, files: Vec<PathBuf>) -> HashSet<PathBuf> {
        // The disk may be slow, or far away.
        let look = spawn_blocking(|| files.into_iter().map(stamped).collect());
        let Ok(found) = look.await else { return HashSet::new() };
        self.note(found)
    }

    fn note(&mut self, found: HashMap<PathBuf, Stamp>) -> HashSet<PathBuf> {
        let rests = found == self.seen;
        self.seen = found;
        if !rests {
            return HashSet::new();
        }
        let is_changed = |(file, stamp): &(&PathBuf, &Stamp)| self.read.get(*file) != Some(stamp);
        let changed = self.seen.iter().filter(is_changed).map(|(file, _)| file.clone()).collect();
        self.read.clone_from(&self.seen);
        changed
    }

    /// What was wrong with a file may pass without it being touched, such as a want of descriptors or of permission: it
    /// is to be read at the next look in any case.
    pub(super) fn read_again(&mut self, file: &Path) {
        self.read.remove(file);
    }
}

fn stamped(file: PathBuf) -> (PathBuf, Stamp) {
    let stamp = |it: Metadata| (it.mtime(), it.mtime_nsec(), it.len(), it.ino(), it.dev());
    let found = std::fs::metadata(&file).ok().map(stamp);
    (file, found)
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::path::{Path, PathBuf};

    use super::{Stamp, Watched};

    fn at(stamps: &[(&str, u64)]) -> HashMap<PathBuf, Stamp> {
        stamps.iter().map(|(file, len)| (PathBuf::from(file), Some((0, 0, *len, 0, 0)))).collect()
    }

    fn files(names: &[&str]) -> HashSet<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn what_changed_is_read_once_everything_rests() {
        let mut watched = Watched::default();
        assert_eq!(watched.note(at(&[("a", 1), ("b", 1)])), files(&[]));
        assert_eq!(watched.note(at(&[("a", 1), ("b", 1)])), files(&["a", "b"]), "nothing is known of them");
        assert_eq!(watched.note(at(&[("a", 1), ("b", 1)])), files(&[]));
        for (a, b, expected) in [(2, 1, &[][..]), (2, 2, &[]), (2, 2, &["a", "b"]), (2, 2, &[])] {
            assert_eq!(watched.note(at(&[("a", a), ("b", b)])), files(expected), "{a} {b}");
        }
    }

    #[test]
    fn what_was_wrong_is_read_again() {
        let mut watched = Watched::default();
        for expected in [&[][..], &["a", "b"]] {
            assert_eq!(watched.note(at(&[("a", 1), ("b", 1)])), files(expected));
        }
        watched.read_again(Path::new("a"));
        for expected in [&["a"][..], &[]] {
            assert_eq!(watched.note(at(&[("a", 1), ("b", 1)])), files(expected));
        }
    }
}
