//! What the gateway does to its own process for its children's sake.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit this process was started with, once it has been raised.
static INHERITED: OnceLock<Rlimit> = OnceLock::new();

/// Open descriptors this process may have; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// What is enforced.
    pub soft: Option<u64>,
    /// What the soft limit may be raised to.
    pub hard: Option<u64>,
}

/// Raises the soft limit of open descriptors to the hard one and returns what is in force.
///
/// Children get the soft limit this process was started with, because programs that use
/// select(2) or close every possible descriptor break or crawl under a large one.
/// Never fails: a system that refuses keeps its limit.
pub fn raise_descriptor_limit() -> DescriptorLimit {
    let found = getrlimit(Resource::Nofile);
    INHERITED.get_or_init(|| found);
    let wanted = reachable(found.maximum);
    if wanted.unwrap_or(u64::MAX) > found.current.unwrap_or(u64::MAX) {
        // What a system does not grant shows in the limit read back.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: wanted, ..found });
    }
    let now = getrlimit(Resource::Nofile);
    DescriptorLimit { soft: now.current, hard: now.maximum }
}

/// macOS accepts no soft limit above its OPEN_MAX, whatever the hard limit says.
fn reachable(hard: Option<u64>) -> Option<u64> {
    const OPEN_MAX: u64 = 10_240;
    if cfg!(target_os = "macos") { Some(hard.map_or(OPEN_MAX, |hard| hard.min(OPEN_MAX))) } else { hard }
}

/// The limit to give back to children, if it was ever raised.
pub(super) fn inherited_descriptor_limit() -> Option<Rlimit> {
    INHERITED.get().copied()
}

/// Has the kernel hand this process the orphans among its descendants (prctl(2), `PR_SET_CHILD_SUBREAPER`), so that it
/// can end and reap them. For a process that starts none but servers' children: a [`Spawner`](super::Spawner) started
/// after it reaps every child it does not know. Does nothing where the system has no such call.
///
/// # Errors
/// What the kernel said.
pub fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Closes this process's memory and `/proc/PID/environ` to other processes of the same user, and
/// switches off its core dumps (prctl(2), `PR_SET_DUMPABLE`). Does nothing where the system has no such call.
///
/// # Errors
/// What the kernel said.
pub fn make_process_undumpable() -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}
