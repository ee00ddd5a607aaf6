//! How many processes and pipes the system lets this process have.

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};

use super::delegation::own_group;

/// Pages of a pipe that was not asked to be another size (pipe(7)).
const PAGES: u64 = 16;
/// Pages of each pipe beyond the soft limit.
const FEWEST_PAGES: u64 = 2;

/// What is left for children; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Processes and threads, from the limit of the user and those of the control groups this process is in.
    pub tasks: Option<u64>,
    /// Pipes.
    pub pipes: Option<u64>,
    /// Pipes of full size: beyond that, a user without privileges gets small ones, which makes long lines slow.
    pub full_pipes: Option<u64>,
}

impl Room {
    /// Looks at this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        let pages = |name: &str| {
            let limit = number(&Path::new("/proc/sys/fs").join(name))?;
            (limit != 0 && !is_privileged()).then_some(limit)
        };
        // The kernel does not hold root to it (getrlimit(2), RLIMIT_NPROC).
        let of_user = getrlimit(Resource::Nproc).current.filter(|_| !is_privileged());
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let of_groups = group_folders(&groups, own_group(), Path::new("/sys/fs/cgroup/pids"));
        Self {
            tasks: of_groups.into_iter().filter_map(|folder| left(&folder)).chain(of_user).min(),
            pipes: pages("pipe-user-pages-hard").map(|pages| pages / FEWEST_PAGES),
            full_pipes: pages("pipe-user-pages-soft").map(|pages| pages / PAGES),
        }
    }
}

/// Whether limits of the user do not count for this process (capabilities(7), CAP_SYS_RESOURCE).
#[cfg(target_os = "linux")]
fn is_privileged() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    static PRIVILEGED: OnceLock<bool> = OnceLock::new();
    let any = CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN;
    *PRIVILEGED.get_or_init(|| capabilities(None).is_ok_and(|own| own.effective.intersects(any)))
}

#[cfg(not(target_os = "linux"))]
fn is_privileged() -> bool {
    rustix::process::geteuid().is_root()
}

/// The folders of every group that holds this process and counts processes: `unified` is its own of version 2 with
/// where that is mounted, `first` where version 1 counts them.
fn group_folders(groups: &str, unified: Option<(PathBuf, PathBuf)>, first: &Path) -> Vec<PathBuf> {
    let of_first = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let counts = controllers.split(',').any(|controller| controller == "pids");
        counts.then(|| (first.to_owned(), first.join(path.trim_start_matches('/'))))
    });
    let up = |(mount, own): (PathBuf, PathBuf)| -> Vec<PathBuf> {
        own.ancestors().take_while(|folder| folder.starts_with(&mount)).map(Path::to_owned).collect()
    };
    unified.into_iter().chain(of_first).flat_map(up).collect()
}

/// What a group has left; `None` where it has no limit.
fn left(group: &Path) -> Option<u64> {
    let most = number(&group.join("pids.max"))?;
    Some(most.saturating_sub(number(&group.join("pids.current")).unwrap_or(0)))
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Room, group_folders, left};

    #[test]
    fn the_tightest_group_on_the_way_up_counts() {
        let mount = std::env::temp_dir().join(format!("gangway-room-{}", std::process::id()));
        let own = mount.join("a/b");
        fs::create_dir_all(&own).expect("the folder is made");
        let write = |path: &str, text: &str| fs::write(mount.join(path), text).expect("it is ours");
        write("a/pids.max", "100\n");
        write("a/pids.current", "30\n");
        write("a/b/pids.max", "max\n");
        let folders = group_folders("8:pids:/x\n0::/a/b\n", Some((mount.clone(), own)), Path::new("/first"));
        let expected = ["a/b", "a", ""].map(|path| mount.join(path).components().collect::<PathBuf>());
        assert_eq!(folders[..3], expected);
        assert_eq!(folders[3..], [PathBuf::from("/first/x"), PathBuf::from("/first")]);
        assert_eq!(folders.iter().filter_map(|folder| left(folder)).min(), Some(70));
        fs::remove_dir_all(&mount).expect("the folder is removed");
        assert_eq!(group_folders("0::/\n", None, Path::new("/first")), Vec::<PathBuf>::new());
    }

    #[test]
    fn this_process_has_some() {
        let room = Room::of_this_process();
        assert!(room.tasks != Some(0) && room.full_pipes != Some(0), "{room:?}");
    }
}
