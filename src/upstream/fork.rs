//! What happens between fork and exec.
//!
//! The child is one thread of a program with many: it has a copy of its memory, where any lock may be
//! held by a thread that is not there, or it borrows that memory itself (see `launch`). So everything is
//! prepared before the fork, and after it only system calls are made that signal-safety(7) allows (the
//! Linux-specific ones take no locks either), which change nothing but the new process.

use std::io;
use std::os::fd::RawFd;

use rustix::process::Rlimit;

use super::landlock;

/// Errno that stands for "could not enter the Landlock domain": exec never gives it.
pub(super) const SCOPE_ERRNO: i32 = libc::EOPNOTSUPP;
/// Standard input, output and error; every higher descriptor is closed.
const FIRST_CLOSED: libc::c_uint = 3;
/// The signals of Linux end at 64, those of macOS at 31; a number too high is refused, not harmful.
const LAST_SIGNAL: libc::c_int = 64;
/// Bytes of the kernel's signal set.
#[cfg(target_os = "linux")]
pub(super) const SIGNAL_SET_BYTES: usize = if cfg!(any(target_arch = "mips", target_arch = "mips64")) { 16 } else { 8 };

/// Everything the new process needs to know to get ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Preparation {
    parent: libc::pid_t,
    descriptors: Option<libc::rlimit>,
    scope: Option<RawFd>,
}

impl Preparation {
    /// Gathers it, in the parent. `descriptors` is the limit to give back, `scope` an open Landlock ruleset.
    pub(super) fn new(descriptors: Option<Rlimit>, scope: Option<RawFd>) -> Self {
        let limit = |value: Option<u64>| value.map_or(libc::RLIM_INFINITY, |value| value as libc::rlim_t);
        Self {
            // SAFETY: getpid cannot fail and touches nothing.
            parent: unsafe { libc::getpid() },
            descriptors: descriptors
                .map(|limits| libc::rlimit { rlim_cur: limit(limits.current), rlim_max: limit(limits.maximum) }),
            scope,
        }
    }

    /// Readies the new process. It runs after standard descriptors and directory are set.
    ///
    /// # Safety
    /// To be called between fork and exec in the child only: it ends the process if the parent is gone.
    pub(super) unsafe fn apply(&self) -> io::Result<()> {
        // SAFETY: plain system calls on integers and on locals; the caller is the new child.
        unsafe {
            // A session of its own is a process group of its own that its leader cannot leave; and
            // without a controlling terminal a child can neither be stopped by one nor type into it.
            check(libc::setsid())?;
            reset_signals()?;
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            check(libc::setrlimit(libc::RLIMIT_CORE, &raw const none))?;
            if let Some(limit) = &self.descriptors {
                check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const *limit))?;
            }
            self.tie_to_parent()?;
            yield_to_waker();
            if let Some(ruleset) = self.scope
                && !landlock::enter(ruleset)
            {
                return Err(io::Error::from_raw_os_error(SCOPE_ERRNO));
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
