//! Kills by the kernel's out-of-memory killer, told from other kills.
//!
//! The kernel says nobody whom it kills, but it counts: for a control group of version 2 in
//! `memory.events` (cgroup-v2, Memory Interface Files), of version 1 in `memory.oom_control`, for
//! the machine in `/proc/vmstat`. It counts before it sends the signal.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The name of the figure, the same in all three files.
const FIGURE: &str = "oom_kill";

/// The count of the gateway's control group, to which its children belong unless they leave it.
#[derive(Debug)]
pub(super) struct OomKills {
    /// `None` where the kernel has no such count.
    counter: Option<PathBuf>,
    /// Kills that the end of a child was put down to.
    explained: Mutex<u64>,
}

/// What was counted when a child was about to be started.
#[derive(Debug)]
pub(super) struct OomMark {
    kills: Arc<OomKills>,
    unexplained: Option<u64>,
}

impl OomKills {
    /// Finds the count that fits this process best.
    pub(super) fn of_this_process() -> Arc<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::counted_in(counter(&groups, Path::new("/sys/fs/cgroup"), Path::new("/proc/vmstat")))
    }

    /// Kills as counted in this file.
    pub(super) fn counted_in(counter: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Self { counter, explained: Mutex::default() })
    }

    /// Notes the count, before a child is started.
    pub(super) fn mark(self: &Arc<Self>) -> OomMark {
        let explained = *self.explained.lock().unwrap_or_else(PoisonError::into_inner);
        let unexplained = self.count().map(|count| count.saturating_sub(explained));
        OomMark { kills: Arc::clone(self), unexplained }
    }

    fn count(&self) -> Option<u64> {
        read(self.counter.as_deref()?)
    }
}

impl OomMark {
    /// Whether the out-of-memory killer is why the child got the SIGKILL that ended it and that was
    /// not the gateway's. Each kill explains one end.
    pub(super) fn explains_a_kill(&self) -> bool {
        let mut explained = self.kills.explained.lock().unwrap_or_else(PoisonError::into_inner);
        let explains = is_new(self.unexplained, self.kills.count(), *explained);
        *explained += u64::from(explains);
        explains
    }
}

/// Whether something was counted since that explains nobody else's end.
fn is_new(unexplained_before: Option<u64>, count: Option<u64>, explained: u64) -> bool {
    matches!((unexplained_before, count), (Some(before), Some(count)) if count.saturating_sub(explained) > before)
}

/// The file that counts for the group named in `groups`, the text of `/proc/self/cgroup`; else that of
/// the machine. Within a container the path may not exist below `mount`; then its nearest ancestor
/// that does is the same group.
fn counter(groups: &str, mount: &Path, machine: &Path) -> Option<PathBuf> {
    let of_group = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (root, file) = if controllers.is_empty() {
            (mount.to_path_buf(), "memory.events")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (mount.join("memory"), "memory.oom_control")
        } else {
            return None;
        };
        let group = root.join(path.trim_start_matches('/'));
        let nearest = group.ancestors().take_while(|group| group.starts_with(&root)).find(|group| group.is_dir())?;
        Some(nearest.join(file)).filter(|file| read(file).is_some())
    });
    of_group.or_else(|| Some(machine.to_path_buf()).filter(|file| read(file).is_some()))
}

/// The figure in a file that has one.
pub(super) fn read(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(FIGURE)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{OomKills, counter, is_new};
    use std::fs;
    use std::path::Path;

    #[test]
    fn only_a_kill_that_was_counted_since_explains_an_end() {
        assert!(is_new(Some(0), Some(1), 0));
        assert!(is_new(Some(3), Some(4), 0));
        assert!(!is_new(Some(3), Some(3), 0), "none was counted");
        assert!(!is_new(Some(0), Some(1), 1), "it was another child's end");
        assert!(is_new(Some(0), Some(2), 1), "there were two");
        assert!(!is_new(Some(3), Some(0), 0), "the count began anew");
        assert!(!is_new(None, Some(1), 0) && !is_new(Some(0), None, 0), "nobody counts");
    }

    #[test]
    fn the_nearest_count_is_taken_and_each_kill_explains_one_end() {
        let mount = std::env::temp_dir().join(format!("gangway-oom-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let file = mount.join(path);
            fs::create_dir_all(file.parent().expect("a file has a folder")).expect("the folder is made");
            fs::write(&file, text).expect("the file is written");
            file
        };
        let machine = write("vmstat", "oom_kill_disable 7\noom_kill 5\n");
        let second = write("a/b/memory.events", "oom 1\noom_kill 0\noom_group_kill 0\n");
        let first = write("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        assert_eq!(counter("4:memory:/gone\n0::/a/b\n", &mount, &machine), Some(first));
        assert_eq!(counter("0::/a/b/gone\n", &mount, &machine), Some(second.clone()));
        assert_eq!(counter("0::/\n", &mount, &machine), Some(machine.clone()), "the root counts nothing");
        assert_eq!(counter("", Path::new("/nonexistent"), Path::new("/nonexistent")), None);

        let kills = OomKills::counted_in(Some(second));
        let (one, other) = (kills.mark(), kills.mark());
        assert!(!one.explains_a_kill());
        write("a/b/memory.events", "oom 1\noom_kill 1\n");
        assert!(one.explains_a_kill());
        assert!(!other.explains_a_kill() && !kills.mark().explains_a_kill());
        fs::remove_dir_all(&mount).expect("the folder is removed");
    }
}
