//! Where the gateway may make control groups of its own (cgroup-v2, "Delegation").
//!
//! Being able to write there is not enough: who manages the tree, systemd mostly, must have handed that part over.
//! It marks what it did (`Delegate=yes`) with an extended attribute; and in a container whose tree begins at its own
//! group all of it is the container's.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Extended attributes that mark a delegated group; the first can be read by its user.
const MARKS: [&str; 2] = ["user.delegate", "trusted.delegate"];

/// A part of the tree that is the gateway's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Delegated {
    /// Its topmost group.
    pub(super) base: PathBuf,
    /// The group the gateway is in: that, or one in it.
    own: PathBuf,
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum NotDelegated {
    /// No cgroup2 is mounted, or the gateway's group is outside of what is.
    Absent,
    /// Somebody else manages the gateway's group.
    Managed(PathBuf),
    /// The system refused.
    Refused(PathBuf, io::Error),
    /// The kernel cannot kill a group at once.
    Old,
}

impl fmt::Display for NotDelegated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no cgroup2 file system is mounted that holds the gateway's group"),
            Self::Managed(group) => {
                write!(f, "{} is not delegated to the gateway (systemd: Delegate=yes)", group.display())
            }
            Self::Refused(group, error) => write!(f, "no group can be made in {}: {error}", group.display()),
            Self::Old => f.write_str("this kernel cannot kill a control group (Linux 5.14)"),
        }
    }
}

impl Delegated {
    /// Looks for the gateway's part.
    pub(super) fn find() -> Result<Self, NotDelegated> {
        let (mount, own) = own_group().ok_or(NotDelegated::Absent)?;
        let base = base(&mount, &own, is_marked).ok_or_else(|| NotDelegated::Managed(own.clone()))?;
        Ok(Self { base, own })
    }

    /// Hands `controller` down from the topmost group, whose child `folder` is; false if it is not to be had.
    ///
    /// A group that hands memory down may hold no process itself, so the gateway moves into a group below `folder`; but
    /// only itself: where it shares its group with others it leaves all as it is.
    pub(super) fn enable(&self, controller: &str, folder: &Path) -> bool {
        let lists = |file: &str| {
            let listed = fs::read_to_string(self.base.join(file)).unwrap_or_default();
            listed.split_whitespace().any(|listed| listed == controller)
        };
        if !lists("cgroup.controllers") {
            return false;
        }
        if lists("cgroup.subtree_control") {
            return true;
        }
        let hand_down = || fs::write(self.base.join("cgroup.subtree_control"), format!("+{controller}")).is_ok();
        hand_down() || (self.holds_only_us() && move_into(&folder.join("gateway")).is_ok() && hand_down())
    }

    fn holds_only_us(&self) -> bool {
        let processes = fs::read_to_string(self.base.join("cgroup.procs")).unwrap_or_default();
        self.base == self.own && processes.lines().eq([std::process::id().to_string().as_str()])
    }
}

fn move_into(group: &Path) -> io::Result<()> {
    fs::create_dir_all(group)?;
    fs::write(group.join("cgroup.procs"), "0")
}

/// Where cgroup2 is mounted, and the folder of this process's group there.
pub(super) fn own_group() -> Option<(PathBuf, PathBuf)> {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    place(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup")).filter(|(_, own)| own.is_dir())
}

/// The mount point of cgroup2 and the folder of this process's group, from `/proc/self/mountinfo` and
/// `/proc/self/cgroup` (proc(5), cgroups(7)).
fn place(mounts: &str, groups: &str) -> Option<(PathBuf, PathBuf)> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mounted, kind) = line.split_once(" - ")?;
        let fields: Vec<&str> = mounted.split(' ').collect();
        let (root, mount) = (*fields.get(3)?, *fields.get(4)?);
        let below = Path::new(own).strip_prefix(root).ok().filter(|_| kind.starts_with("cgroup2 "))?;
        let mount = PathBuf::from(mount.replace("\\040", " "));
        Some((mount.clone(), if below.as_os_str().is_empty() { mount } else { mount.join(below) }))
    })
}

/// The topmost delegated group: the own one, or the one above it if the gateway was started in a group below
/// (systemd's `DelegateSubgroup=`). Further up it is somebody else's that we are in.
fn base(mount: &Path, own: &Path, is_marked: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    if own == mount || is_marked(own) {
        return Some(own.to_owned());
    }
    own.parent().filter(|above| *above != mount && is_marked(above)).map(Path::to_owned)
}

#[cfg(target_os = "linux")]
fn is_marked(group: &Path) -> bool {
    let is_one = |mark: &str| {
        let mut value = [0_u8; 8];
        let length = rustix::fs::getxattr(group, mark, &mut value[..]);
        length.is_ok_and(|length| value.get(..length) == Some(b"1"))
    };
    MARKS.iter().any(|mark| is_one(mark))
}

#[cfg(not(target_os = "linux"))]
fn is_marked(_group: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Delegated, base, place};

    #[test]
    fn the_own_group_is_found_in_every_layout() {
        let hybrid = "30 1 0:26 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      31 1 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let unified = "31 1 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let bound = "31 1 0:27 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        for (mounts, groups, mount, own) in [
            (hybrid, "8:pids:/a\n0::/\n", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified"),
            (unified, "0::/system.slice/g.service\n", "/sys/fs/cgroup", "/sys/fs/cgroup/system.slice/g.service"),
            (bound, "0::/docker/abc/x\n", "/sys/fs/cgroup", "/sys/fs/cgroup/x"),
            (bound, "0::/docker/abc\n", "/sys/fs/cgroup", "/sys/fs/cgroup"),
        ] {
            assert_eq!(place(mounts, groups), Some((PathBuf::from(mount), PathBuf::from(own))), "{groups}");
        }
        assert_eq!(place(bound, "0::/other\n"), None, "outside of what is mounted");
        assert_eq!(place("30 1 0:26 / /sys/fs/cgroup rw - cgroup cgroup rw\n", "0::/\n"), None);
        assert_eq!(place(unified, "8:pids:/a\n"), None);
    }

    #[test]
    fn only_what_was_handed_over_is_taken() {
        let mount = Path::new("/m");
        let at = |own: &str, marked: &str| base(mount, Path::new(own), |group| group == Path::new(marked));
        assert_eq!(at("/m", ""), Some(PathBuf::from("/m")), "all of a container's tree");
        assert_eq!(at("/m/s/g.service", ""), None, "a service without Delegate=");
        assert_eq!(at("/m/s/g.service", "/m/s/g.service"), Some(PathBuf::from("/m/s/g.service")));
        assert_eq!(at("/m/s/g.service/sub", "/m/s/g.service"), Some(PathBuf::from("/m/s/g.service")));
        assert_eq!(at("/m/user@1/app.slice/x.scope", "/m/user@1"), None, "the user's, not ours");
    }

    /// With plain files in place of the kernel's, which therefore forbid nothing.
    #[test]
    fn a_controller_is_handed_down_once_and_only_if_there_is_one() {
        let base = std::env::temp_dir().join(format!("gangway-delegation-{}", std::process::id()));
        fs::create_dir_all(base.join("folder")).expect("the folder is made");
        fs::write(base.join("cgroup.controllers"), "cpu pids\n").expect("it is ours");
        fs::write(base.join("cgroup.subtree_control"), "\n").expect("it is ours");
        let delegated = Delegated { base: base.clone(), own: base.clone() };
        assert!(!delegated.enable("memory", &base.join("folder")));
        assert!(delegated.enable("pids", &base.join("folder")));
        assert_eq!(fs::read_to_string(base.join("cgroup.subtree_control")).expect("it is ours"), "+pids");
        for (processes, ours) in [(format!("{}\n", std::process::id()), true), ("1\n2\n".to_owned(), false)] {
            fs::write(base.join("cgroup.procs"), processes).expect("it is ours");
            assert_eq!(delegated.holds_only_us(), ours);
        }
        fs::remove_dir_all(&base).expect("the folder is removed");
    }
}
