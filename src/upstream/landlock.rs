//! Landlock domains (landlock(7)): who a child can see, and which files it can reach.
//!
//! A process in a domain may not trace processes outside it, hence not read their `/proc/PID/environ`
//! or memory, even as the same user; signals and abstract unix sockets stop at the same border.
//! Each child enters a domain of its own, so neighbours are as far from each other as from the gateway.
//! Root is above this on recent kernels: CAP_PERFMON and CAP_SYS_ADMIN open `environ` by themselves.
//! Files stay as they are unless `sandbox.read` or `sandbox.write` says otherwise; TCP always does. A
//! domain's file rules bind root too.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::start_files::{DEVICES, Need, SYSTEM};

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: libc::c_int = 1;
const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;
const SCOPE_SIGNAL: u64 = 2;
/// The first ABI with scopes (Linux 6.12).
const SCOPE_ABI: libc::c_long = 6;
/// The first ABI that can keep files from being truncated (Linux 6.2).
const FILES_ABI: libc::c_long = 3;
/// The first ABI that can refuse requests to devices (Linux 6.10).
const IOCTL_ABI: libc::c_long = 5;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_BLOCK: u64 = 1 << 11;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
/// Everything an ABI of at least [`FILES_ABI`] knows about files: bits 0 to 14.
const ALL_OF_FILES_ABI: u64 = (1 << 15) - 1;
/// What makes sense for something that is no folder; more is an error.
const OF_A_FILE: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
/// What reading means.
const READ: u64 = EXECUTE | READ_FILE | READ_DIR;

/// `struct landlock_ruleset_attr` of linux/landlock.h, as of ABI 6. An older kernel takes the longer struct as
/// long as what it does not know is zero.
#[repr(C)]
struct RulesetAttributes {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr` of linux/landlock.h.
#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

/// A ruleset any number of children may enter, each getting its own domain.
#[derive(Debug)]
pub(super) struct Ruleset(OwnedFd);

/// Why files cannot be restricted as asked.
#[derive(Debug)]
pub(super) enum NoFileRules {
    /// The kernel has no Landlock, or one that is too old for it.
    Unsupported,
    /// A path that was named cannot be opened.
    Path(PathBuf, io::Error),
    /// The kernel refused.
    Kernel(io::Error),
}

impl Ruleset {
    /// One that restricts scopes only; `None` where the kernel has none.
    pub(super) fn of_scopes() -> Option<Self> {
        if abi() < SCOPE_ABI {
            return None;
        }
        Self::create(0, SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL).ok()
    }

    /// One that lets a child reach only what it needs to start, `program`, `read`, and `write` for changes too; with
    /// `scope`, as far as the kernel has scopes, those as well.
    pub(super) fn of_files(
        read: &[PathBuf],
        write: &[PathBuf],
        program: Option<&Path>,
        scope: bool,
    ) -> Result<Self, NoFileRules> {
        let abi = abi();
        if abi < FILES_ABI {
            return Err(NoFileRules::Unsupported);
        }
        let scoped = if scope && abi >= SCOPE_ABI { SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL } else { 0 };
        let handled = if abi >= IOCTL_ABI { ALL_OF_FILES_ABI | IOCTL_DEV } else { ALL_OF_FILES_ABI };
        let ruleset = Self::create(handled, scoped).map_err(NoFileRules::Kernel)?;
        let change = handled & !(MAKE_CHAR | MAKE_BLOCK);
        let needs = SYSTEM.iter().map(|path| (path, READ)).chain(DEVICES.iter().map(|device| match device {
            Need::Read(path) => (path, READ_FILE | IOCTL_DEV),
            Need::ReadAndWrite(path) => (path, READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV),
        }));
        for (path, access) in needs {
            // What a system does not have no process there needs.
            if let Ok(file) = open(Path::new(path)) {
                ruleset.allow(&file, access & handled).map_err(NoFileRules::Kernel)?;
            }
        }
        let program = program.into_iter().map(|path| (path, EXECUTE | READ_FILE));
        let read = read.iter().map(|path| (path.as_path(), READ));
        let write = write.iter().map(|path| (path.as_path(), change));
        for (path, access) in program.chain(read).chain(write) {
            let file = open(path).map_err(|error| NoFileRules::Path(path.to_owned(), error))?;
            ruleset.allow(&file, access).map_err(NoFileRules::Kernel)?;
        }
        Ok(ruleset)
    }

    fn create(files: u64, scoped: u64) -> io::Result<Self> {
        let attributes = RulesetAttributes { handled_access_fs: files, handled_access_net: 0, scoped };
        // SAFETY: the pointer and size describe a live struct of the kernel's layout.
        let descriptor = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const attributes,
                size_of::<RulesetAttributes>(),
                0_u32,
            )
        };
        match RawFd::try_from(descriptor) {
            // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
            Ok(descriptor) if descriptor >= 0 => Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Allows `access` to `file`, and if it is a folder to everything below it.
    fn allow(&self, file: &File, access: u64) -> io::Result<()> {
        let access = if file.metadata()?.is_dir() { access } else { access & OF_A_FILE };
        let rule = PathBeneath { allowed_access: access, parent_fd: file.as_raw_fd() };
        // SAFETY: the rule is a live struct of the kernel's layout for this kind; both descriptors are open.
        let added = unsafe {
            libc::syscall(libc::SYS_landlock_add_rule, self.0.as_raw_fd(), RULE_PATH_BENEATH, &raw const rule, 0_u32)
        };
        if added == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The descriptor to hand to [`enter`].
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The version of Landlock the kernel has; below 1 none.
fn abi() -> libc::c_long {
    // SAFETY: with a null pointer, size 0 and this flag the call only returns the version.
    unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttributes>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)
}

/// Puts the calling thread into a new domain; it must have no-new-privileges set.
///
/// Async-signal-safe: one system call.
pub(super) fn enter(ruleset: RawFd) -> io::Result<()> {
    // SAFETY: the call takes integers only; a bad descriptor is an error, not undefined.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0_u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
