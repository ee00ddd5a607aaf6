//! A Landlock domain that restricts scopes only.
//!
//! A process in a domain may not trace processes outside it, hence not read their `/proc/PID/environ`
//! or memory, even as the same user; signals and abstract unix sockets stop at the same border.
//! Each child enters a domain of its own, so neighbours are as far from each other as from the gateway.
//! Root is above this on recent kernels: CAP_PERFMON and CAP_SYS_ADMIN open `environ` by themselves.
//! Files and TCP stay as they are (landlock(7), `LANDLOCK_SCOPE_*`, ABI 6).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const CREATE_RULESET_VERSION: u32 = 1;
const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;
const SCOPE_SIGNAL: u64 = 2;
/// The first ABI with scopes (Linux 6.12).
const SCOPE_ABI: libc::c_long = 6;

/// `struct landlock_ruleset_attr` of linux/landlock.h, as of ABI 6.
#[repr(C)]
struct RulesetAttributes {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// A ruleset any number of children may enter, each getting its own domain.
#[derive(Debug)]
pub(super) struct ScopeRuleset(OwnedFd);

impl ScopeRuleset {
    /// Makes the ruleset; `None` where the kernel has no scopes.
    pub(super) fn create() -> Option<Self> {
        // SAFETY: with a null pointer, size 0 and this flag the call only returns the ABI version.
        let abi = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                std::ptr::null::<RulesetAttributes>(),
                0_usize,
                CREATE_RULESET_VERSION,
            )
        };
        if abi < SCOPE_ABI {
            return None;
        }
        let attributes = RulesetAttributes {
            handled_access_fs: 0,
            handled_access_net: 0,
            scoped: SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL,
        };
        // SAFETY: the pointer and size describe a live struct of the kernel's layout.
        let descriptor = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const attributes,
                size_of::<RulesetAttributes>(),
                0_u32,
            )
        };
        let descriptor = RawFd::try_from(descriptor).ok().filter(|&descriptor| descriptor >= 0)?;
        // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
        Some(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// The descriptor to hand to [`enter`].
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Puts the calling thread into a new domain; it must have no-new-privileges set.
///
/// Async-signal-safe: one system call.
pub(super) fn enter(ruleset: RawFd) -> bool {
    // SAFETY: the call takes integers only; a bad descriptor is an error, not undefined.
    unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0_u32) == 0 }
}
