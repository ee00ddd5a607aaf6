//! How much memory the gateway may use when nobody says: `limits.memory = "auto"`.

use std::path::{Path, PathBuf};

/// The most `auto` takes, in bytes.
const MOST: u64 = 2 << 30;

/// A quarter of the machine's or the control group's memory, whichever is less, at most 2 GiB, in bytes.
pub(super) fn automatic() -> u64 {
    let group = std::fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|groups| group_limit(&groups, Path::new("/sys/fs/cgroup")));
    share(machine(), group)
}

/// The share of what there is.
fn share(machine: u64, group: Option<u64>) -> u64 {
    (machine.min(group.unwrap_or(u64::MAX)) / 4).min(MOST)
}

/// The machine's memory in bytes.
fn machine() -> u64 {
    // SAFETY: sysconf takes a number and returns one; it touches no memory of ours.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let bytes = u64::try_from(pages).ok().zip(u64::try_from(page).ok());
    // A system that cannot say is taken to have room for the most.
    bytes.map_or(MOST * 4, |(pages, page)| pages.saturating_mul(page))
}

/// The least limit on the way from the process's control group up to the root, in bytes.
///
/// `groups` is the text of `/proc/self/cgroup`: `0::/path` for version 2, `N:memory:/path` for version 1. Within a
/// container the path may not exist below `mount`; then its nearest ancestor that does holds the limit.
fn group_limit(groups: &str, mount: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (root, file) = if controllers.is_empty() {
            (mount.to_path_buf(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (mount.join("memory"), "memory.limit_in_bytes")
        } else {
            return None;
        };
        least_limit(&root, path, file)
    });
    limits.min()
}

fn least_limit(root: &Path, path: &str, file: &str) -> Option<u64> {
    let mut group: PathBuf = root.join(path.trim_start_matches('/'));
    let mut least = None;
    loop {
        let limit = std::fs::read_to_string(group.join(file)).ok().and_then(|text| text.trim().parse::<u64>().ok());
        least = least.into_iter().chain(limit).min();
        if group == root || !group.pop() {
            return least;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{MOST, automatic, group_limit, share};

    #[test]
    fn a_quarter_of_what_there_is_and_at_most_two_gibibytes() {
        assert_eq!(share(4 << 30, None), 1 << 30);
        assert_eq!(share(4 << 30, Some(512 << 20)), 128 << 20);
        assert_eq!(share(4 << 30, Some(u64::MAX)), 1 << 30);
        assert_eq!(share(64 << 30, None), MOST);
        let here = automatic();
        assert!(here > 1 << 20 && here <= MOST, "{here}");
    }

    #[test]
    fn the_least_limit_up_to_the_root_counts() {
        let mount = std::env::temp_dir().join(format!("gangway-memory-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let file = mount.join(path);
            std::fs::create_dir_all(file.parent().expect("a file has a folder")).expect("the folder is made");
            std::fs::write(file, text).expect("the file is written");
        };
        write("a/memory.max", "1073741824\n");
        write("a/b/memory.max", "max\n");
        write("memory/c/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/memory.limit_in_bytes", "536870912\n");
        assert_eq!(group_limit("0::/a/b\n", &mount), Some(1 << 30));
        assert_eq!(group_limit("0::/a/b/gone\n", &mount), Some(1 << 30));
        assert_eq!(group_limit("3:cpu,memory:/c\n2:cpu:/x\n", &mount), Some(512 << 20));
        assert_eq!(group_limit("0::/\n", Path::new("/nonexistent")), None);
        std::fs::remove_dir_all(&mount).expect("the folder is removed");
    }
}
