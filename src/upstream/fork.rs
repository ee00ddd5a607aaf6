//! What happens between fork and exec.
//!
//! The child is one thread of a program with many: it has a copy of its memory, where any lock may be
//! held by a thread that is not there, or it borrows that memory itself (see `launch`). So everything is
//! prepared before the fork, and after it only system calls are made that signal-safety(7) allows (the
//! Linux-specific ones take no locks either), which change nothing but the new process.

use std::io;
use std::os::fd::RawFd;

use rustix::process::Rlimit;

use super::identity::Identity;
use super::landlock;
use super::step::Step;

/// Standard input, output and error; every higher descriptor is closed.
const FIRST_CLOSED: libc::c_uint = 3;
/// The signals of Linux end at 64, those of macOS at 31; a number too high is refused, not harmful.
const LAST_SIGNAL: libc::c_int = 64;
/// Bytes of the kernel's signal set.
#[cfg(target_os = "linux")]
pub(super) const SIGNAL_SET_BYTES: usize = if cfg!(any(target_arch = "mips", target_arch = "mips64")) { 16 } else { 8 };

/// What bounds a new process and whom it runs as.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// Open descriptors; `None` leaves them as they are.
    pub(super) descriptors: Option<Rlimit>,
    /// Processes and threads of its user, as a limit of the process.
    pub(super) processes: Option<u64>,
    /// Bytes of its address space.
    pub(super) address_space: Option<u64>,
    /// Permissions that new files do not get.
    pub(super) umask: u32,
    /// Whom to become; `None` is nobody else.
    pub(super) identity: Option<Identity>,
    /// The control group to be in.
    pub(super) group: Option<Entrance>,
    /// The open Landlock ruleset to enter.
    pub(super) ruleset: Option<RawFd>,
}

/// A control group, open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entrance {
    /// Its folder.
    pub(super) folder: RawFd,
    /// Its `cgroup.procs`.
    pub(super) processes: RawFd,
}

/// Everything the new process needs to know to get ready.
#[derive(Clone, Debug)]
pub(super) struct Preparation {
    parent: libc::pid_t,
    bounds: Bounds,
}

impl Preparation {
    /// Gathers it, in the parent. The descriptors in `bounds` must stay open until the new process runs.
    pub(super) fn new(bounds: Bounds) -> Self {
        // SAFETY: getpid cannot fail and touches nothing.
        Self { parent: unsafe { libc::getpid() }, bounds }
    }

    /// The open folder of the control group to be in.
    #[cfg(target_os = "linux")]
    pub(super) fn group(&self) -> Option<RawFd> {
        self.bounds.group.map(|group| group.folder)
    }

    /// Readies the new process. It runs after standard descriptors and directory are set. `is_in_group`: it began in
    /// its control group.
    ///
    /// # Errors
    /// A number that [`Step::split`] takes apart.
    ///
    /// # Safety
    /// To be called between fork and exec in the child only: it ends the process if the parent is gone.
    pub(super) unsafe fn apply(&self, is_in_group: bool) -> io::Result<()> {
        let bounds = &self.bounds;
        // SAFETY: plain system calls on integers and on live memory; the caller is the new child.
        unsafe {
            // A session of its own is a process group of its own that its leader cannot leave; and
            // without a controlling terminal a child can neither be stopped by one nor type into it.
            check(libc::setsid())?;
            reset_signals()?;
            // While it is still who the gateway is: the new user may be allowed none of this.
            if let Some(group) = bounds.group.filter(|_| !is_in_group) {
                enter_group(group.processes).map_err(|error| Step::Group.failed(&error))?;
            }
            limit(bounds)?;
            libc::umask(bounds.umask as libc::mode_t);
            if let Some(identity) = &bounds.identity {
                become_user(identity).map_err(|error| Step::User.failed(&error))?;
            }
            drop_ambient_capabilities();
            // After the change of user, which takes the parent-death signal back.
            self.tie_to_parent()?;
            yield_to_waker();
            if let Some(ruleset) = bounds.ruleset {
                landlock::enter(ruleset).map_err(|error| Step::Landlock.failed(&error))?;
            }
        }
        close_on_exec();
        Ok(())
    }

    /// Dies with the parent, and gains no privileges by exec (which would also undo the former).
    #[cfg(target_os = "linux")]
    unsafe fn tie_to_parent(&self) -> io::Result<()> {
        // SAFETY: plain system calls on integers, as above.
        unsafe {
            // The arguments are read as long words, so none may be shorter.
            let (yes, zero): (libc::c_ulong, libc::c_ulong) = (1, 0);
            let kill = libc::SIGKILL as libc::c_ulong;
            check(libc::prctl(libc::PR_SET_PDEATHSIG, kill, zero, zero, zero))?;
            // Who died before the call above sends nothing.
            if libc::getppid() != self.parent {
                libc::_exit(1);
            }
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, zero, zero, zero))
        }
    }

    #[cfg(not(target_os = "linux"))]
    unsafe fn tie_to_parent(&self) -> io::Result<()> {
        // SAFETY: plain system calls on integers, as above.
        unsafe {
            if libc::getppid() != self.parent {
                libc::_exit(1);
            }
        }
        Ok(())
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Moves the calling process, whose number is 0 to itself (cgroup-v2, "Processes").
unsafe fn enter_group(processes: RawFd) -> io::Result<()> {
    // SAFETY: writes a live byte to a descriptor.
    let written = unsafe { libc::write(processes, c"0".as_ptr().cast(), 1) };
    if written == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the limits of the process; the soft ones are the hard ones, so that nothing in it can raise them.
fn limit(bounds: &Bounds) -> io::Result<()> {
    let value = |value: Option<u64>| value.map_or(libc::RLIM_INFINITY, |value| value as libc::rlim_t);
    let set = |resource, soft: Option<u64>, hard: Option<u64>| {
        let limits = libc::rlimit { rlim_cur: value(soft), rlim_max: value(hard) };
        // SAFETY: reads a live local.
        check(unsafe { libc::setrlimit(resource, &raw const limits) })
    };
    set(libc::RLIMIT_CORE, Some(0), Some(0))?;
    if let Some(limits) = bounds.descriptors {
        let set = set(libc::RLIMIT_NOFILE, limits.current, limits.maximum);
        set.map_err(|error| Step::Descriptors.failed(&error))?;
    }
    for (resource, bound) in [(libc::RLIMIT_NPROC, bounds.processes), (libc::RLIMIT_AS, bounds.address_space)] {
        if bound.is_some() {
            set(resource, bound, bound).map_err(|error| Step::Limits.failed(&error))?;
        }
    }
    Ok(())
}

/// Becomes another user for good: groups first, which only the old one may set.
///
/// Past the C library, which would change every thread of the process, and here those are the gateway's.
#[cfg(target_os = "linux")]
unsafe fn become_user(identity: &Identity) -> io::Result<()> {
    // Where the plain calls take numbers of 16 bits.
    #[cfg(not(any(target_arch = "x86", target_arch = "arm")))]
    use libc::{SYS_setgroups as SETGROUPS, SYS_setresgid as SETRESGID, SYS_setresuid as SETRESUID};
    #[cfg(any(target_arch = "x86", target_arch = "arm"))]
    use libc::{SYS_setgroups32 as SETGROUPS, SYS_setresgid32 as SETRESGID, SYS_setresuid32 as SETRESUID};
    let Identity { uid, gid, groups, .. } = identity;
    // SAFETY: system calls on integers and on a live list of this length.
    unsafe {
        check_long(libc::syscall(SETGROUPS, groups.len(), groups.as_ptr()))?;
        check_long(libc::syscall(SETRESGID, *gid, *gid, *gid))?;
        check_long(libc::syscall(SETRESUID, *uid, *uid, *uid))
    }
}

#[cfg(target_os = "linux")]
fn check_long(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(not(target_os = "linux"))]
unsafe fn become_user(identity: &Identity) -> io::Result<()> {
    // SAFETY: system calls on integers and on a live list of this length.
    unsafe {
        check(libc::setgroups(identity.groups.len() as _, identity.groups.as_ptr()))?;
        check(libc::setgid(identity.gid))?;
        check(libc::setuid(identity.uid))
    }
}

/// What the gateway was given to serve with (a low port, another user) would survive exec (capabilities(7)).
#[cfg(target_os = "linux")]
unsafe fn drop_ambient_capabilities() {
    let zero: libc::c_ulong = 0;
    // SAFETY: a plain system call on integers. Before Linux 4.3 there are none to drop.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, zero, zero, zero) };
}

#[cfg(not(target_os = "linux"))]
unsafe fn drop_ambient_capabilities() {}

/// Lets the child wait for a processor until whoever woke it is done with what it does.
///
/// By default a process that is woken often pushes aside the one that woke it: here the gateway, in the middle of its
/// work, for each line it writes, only to be switched back in right after. Under `SCHED_BATCH` the shares of the
/// processors stay what they were (sched(7)). A policy that an operator chose for the gateway, which its children
/// inherit, is left alone; where the change is not allowed nothing is lost but time.
#[cfg(target_os = "linux")]
unsafe fn yield_to_waker() {
    // SAFETY: plain system calls on integers and on a live local, zero being the only valid priority of this policy.
    unsafe {
        if libc::sched_getscheduler(0) == libc::SCHED_OTHER {
            let mut batch: libc::sched_param = std::mem::zeroed();
            batch.sched_priority = 0;
            libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const batch);
        }
    }
}

#[cfg(not(target_os = "linux"))]
unsafe fn yield_to_waker() {}

/// Every signal does what it does by default, and none is blocked.
unsafe fn reset_signals() -> io::Result<()> {
    // SAFETY: the set is a live local, zero being a valid value of it.
    unsafe {
        for signal in 1..=LAST_SIGNAL {
            default_action(signal);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        check(libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()))
    }
}

/// Fails for SIGKILL and SIGSTOP, which are at their default. Past the C library, which refuses
/// to touch two signals it uses itself: whoever started the gateway may have left them ignored.
#[cfg(target_os = "linux")]
unsafe fn default_action(signal: libc::c_int) {
    /// At least as large as the kernel's `struct sigaction` of any architecture; all zero is the
    /// default action with no flags and an empty mask.
    static DEFAULT: [u64; 8] = [0; 8];
    let none = std::ptr::null_mut::<u64>();
    // SAFETY: the kernel reads from a live static and writes nothing back.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), none, SIGNAL_SET_BYTES) };
}

#[cfg(not(target_os = "linux"))]
unsafe fn default_action(signal: libc::c_int) {
    // SAFETY: removes a handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Marks every descriptor above standard error to be closed by exec.
///
/// Marking instead of closing keeps the pipe through which the standard library, where it forks, reports
/// a failed exec. All of ours carry the mark anyway; this is about those the gateway itself inherited.
fn close_on_exec() {
    #[cfg(target_os = "linux")]
    {
        const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
        // SAFETY: the call takes integers only.
        let marked =
            unsafe { libc::syscall(libc::SYS_close_range, FIRST_CLOSED, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
        if marked == 0 {
            return;
        }
    }
    // Before Linux 5.11 and elsewhere: one by one, as far as inherited descriptors plausibly go.
    const LAST_PLAUSIBLE: libc::c_int = 1024;
    for descriptor in FIRST_CLOSED as libc::c_int..LAST_PLAUSIBLE {
        // SAFETY: sets a flag on a number; a descriptor that is not open is an error, no more.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}
