//! A control group for each child (cgroup-v2), so that nothing of it escapes and its limits hold for all of it.
//!
//! They stand in a folder of this gateway's own, below what was delegated to it (see `delegation`). The folder is
//! locked as long as the gateway lives: one that can be locked was left by a gateway that was killed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};

use super::delegation::{Delegated, NotDelegated};
use super::oom_kills;
use crate::config::Sandbox;

/// Beginning of the folders' names.
const PREFIX: &str = "gangway-";
/// Somebody may take a new folder for an abandoned one before it is locked.
const TRIES: u32 = 5;
/// What makes everything in a group end (Linux 5.14).
const KILL: &str = "cgroup.kill";

/// The groups of this gateway's children.
#[derive(Debug)]
pub(super) struct ControlGroups {
    folder: PathBuf,
    /// Locked.
    _lock: File,
    next: AtomicU64,
    /// Controllers its children's groups have.
    pub(super) has_pids: bool,
    pub(super) has_memory: bool,
}

/// The group of one child.
#[derive(Debug)]
pub(super) struct ControlGroup {
    path: PathBuf,
    /// Keeps the folder around it.
    _groups: Arc<ControlGroups>,
}

impl ControlGroups {
    /// Makes the folder below `delegated`, with as many controllers as can be had.
    ///
    /// # Errors
    /// The folder cannot be made, or the kernel cannot kill groups.
    pub(super) fn create(delegated: &Delegated) -> Result<Self, NotDelegated> {
        let refused = |error: io::Error| NotDelegated::Refused(delegated.base.clone(), error);
        let (folder, lock) = locked_folder(&delegated.base).map_err(refused)?;
        if !folder.join(KILL).exists() {
            let _ = fs::remove_dir(&folder);
            return Err(NotDelegated::Old);
        }
        for controller in ["pids", "memory"] {
            if delegated.enable(controller, &folder) {
                // What does not come about shows in the files of the first child's group.
                let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
        let enabled = fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
        let has = |controller| enabled.split_whitespace().any(|enabled| enabled == controller);
        let (has_pids, has_memory) = (has("pids"), has("memory"));
        Ok(Self { folder, _lock: lock, next: AtomicU64::new(0), has_pids, has_memory })
    }

    /// Makes a group with the limits of `sandbox`, as far as there are controllers for them.
    pub(super) fn child(self: &Arc<Self>, sandbox: &Sandbox) -> io::Result<ControlGroup> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(number.to_string());
        fs::create_dir(&path)?;
        // From here on the drop removes it.
        let group = ControlGroup { path, _groups: Arc::clone(self) };
        if let (true, Some(processes)) = (self.has_pids, sandbox.nproc) {
            fs::write(group.path.join("pids.max"), processes.to_string())?;
        }
        if let (true, Some(bytes)) = (self.has_memory, sandbox.memory) {
            fs::write(group.path.join("memory.max"), bytes.to_string())?;
            // All or nothing: a server that lost one of its processes rarely notices. No file without swap.
            fs::write(group.path.join("memory.oom.group"), "1")?;
            let _ = fs::write(group.path.join("memory.swap.max"), "0");
        }
        Ok(group)
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

impl ControlGroup {
    /// The two ways in: the folder to begin in, and the file to write a process to.
    pub(super) fn ways_in(&self) -> io::Result<[File; 2]> {
        let processes = OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))?;
        Ok([File::open(&self.path)?, processes])
    }

    /// How many of its processes the out-of-memory killer ended; `None` if nobody counts.
    pub(super) fn oom_kills(&self) -> Option<u64> {
        oom_kills::read(&self.path.join("memory.events"))
    }

    /// Kills everything in it, forks that are under way included.
    pub(super) fn kill(&self) {
        // Fails only if it is gone.
        let _ = fs::write(self.path.join(KILL), "1");
    }

    /// Removes it; false as long as something in it has not ended. What is alive in it is killed.
    pub(super) fn remove(&self) -> bool {
        remove_tree(&self.path)
    }
}

impl Drop for ControlGroup {
    /// For one that never held a child, or was removed already.
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// Removes what gateways that were killed have left beside `folder`, and ends what still runs in it.
pub(super) fn remove_abandoned(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if is_ours && let Some(_lock) = lock(&entry.path()) {
            let _ = fs::write(entry.path().join(KILL), "1");
            remove_tree(&entry.path());
        }
    }
}

fn locked_folder(base: &Path) -> io::Result<(PathBuf, File)> {
    for _ in 0..TRIES {
        let folder = base.join(format!("{PREFIX}{:016x}", rand::random::<u64>()));
        fs::create_dir(&folder)?;
        if let Some(lock) = lock(&folder)
            && folder.exists()
        {
            return Ok((folder, lock));
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Locks a folder unless somebody has.
fn lock(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(file)
}

/// Removes a group and those within, innermost first; true if it is gone. A process that was killed holds its group
/// for a moment more.
fn remove_tree(group: &Path) -> bool {
    if fs::write(group.join(KILL), "1").is_err() && !group.exists() {
        return true;
    }
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    fs::remove_dir(group).is_ok() || !group.exists()
}
