//! A new process that begins in its control group (clone3(2), `CLONE_INTO_CGROUP`).
//!
//! Moving a process that exists is slower by far: the kernel waits until no processor can be in the middle of a fork,
//! which takes 10 to 20 ms. The C library has no call for this one, and a process that shares memory must not return
//! from where it began, so its first steps are instructions. Elsewhere than on x86-64 the process moves itself.

use std::io;
use std::os::fd::RawFd;

use libc::{c_int, c_void};

/// What a new process begins with.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "what it takes is the same everywhere"))]
pub(super) struct Beginning {
    /// The lowest address of its stack.
    pub(super) stack: *mut c_void,
    /// Bytes of it.
    pub(super) stack_bytes: usize,
    /// What it runs; never returns.
    pub(super) entry: extern "C" fn(*mut c_void) -> c_int,
    pub(super) argument: *mut c_void,
    /// The open folder of its control group.
    pub(super) group: RawFd,
}

/// `struct clone_args` of linux/sched.h, as of Linux 5.7.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(8))]
#[derive(Default)]
struct Arguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Starts the process with the memory of this one and waits until it runs a program or has ended. Gives its number.
///
/// # Errors
/// What the kernel said; some sandboxes have no such call. Then there is no process.
///
/// # Safety
/// The stack must be live, unshared and aligned to 16 bytes at both ends, and `entry` may do with the shared memory
/// only what does not harm those it is shared with.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn clone_into_group(beginning: &Beginning) -> io::Result<c_int> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let arguments = Arguments {
        flags: (libc::CLONE_VM | libc::CLONE_VFORK) as u64 | CLONE_INTO_CGROUP,
        exit_signal: libc::SIGCHLD as u64,
        stack: beginning.stack as u64,
        stack_size: beginning.stack_bytes as u64,
        cgroup: beginning.group as u64,
        ..Arguments::default()
    };
    let result: i64;
    // SAFETY: the kernel reads live arguments of this size. The new process comes back with the registers of this one
    // but rax and the stack, uses no memory of this frame, and never passes the trap; this one goes on at the label,
    // the kernel having changed rax, rcx and r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") &raw const arguments,
            in("rsi") size_of::<Arguments>(),
            in("r12") beginning.argument,
            in("r13") beginning.entry,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result as c_int) }
}

/// Not here; see above.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn clone_into_group(_beginning: &Beginning) -> io::Result<c_int> {
    Err(io::ErrorKind::Unsupported.into())
}
