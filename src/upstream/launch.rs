//! A new process that runs a program, without a copy of the gateway in between.
//!
//! A fork copies the page tables of the whole gateway, and then every page the gateway writes to, so
//! that it costs more the more memory the gateway holds. Here the new process borrows that memory
//! instead, as vfork(2) has it: the thread that starts it stands still until the program runs, all
//! others go on. Therefore the new process has a stack of its own, everything it needs is
//! ready beforehand, and all it writes to in the borrowed memory is what [`Plan`] keeps for it.

use std::cell::Cell;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use libc::{c_char, c_int, c_void};
use rustix::io::{fcntl_dupfd_cloexec, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::clone_into_group::{Beginning, clone_into_group};
use super::command::Command;
use super::fork::{Preparation, SIGNAL_SET_BYTES};
use super::spawner::Ends;

/// What the new process has until it runs its program; it needs a small part of it.
const STACK_BYTES: usize = 64 * 1024;
/// At least one page of any architecture; touching it ends the new process.
const GUARD_BYTES: usize = 64 * 1024;

/// What runs a file that is no program by itself and has no first line to say (execvp(3)).
const SHELL: &CStr = c"/bin/sh";
/// Where a program is looked for when the child has no PATH (execvp(3)).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Starts `command` and returns once its program runs.
///
/// # Errors
/// What the kernel said to the first step that failed, be it here or in the new process; then there is
/// no process. [`io::ErrorKind::InvalidInput`] without a number for a NUL byte.
pub(super) fn launch(command: &Command, preparation: &Preparation) -> io::Result<(Pid, Ends)> {
    let arguments = arguments(command)?;
    let environment = environment(command)?;
    let directory = command.directory.as_ref().map(|directory| c_string(directory.as_os_str())).transpose()?;
    let candidates = candidates(command)?;
    let (theirs_in, stdin) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout, theirs_out) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, theirs_err) = pipe_with(PipeFlags::CLOEXEC)?;
    let theirs = [above_standard(theirs_in)?, above_standard(theirs_out)?, above_standard(theirs_err)?];
    let plan = Plan {
        descriptors: theirs.each_ref().map(AsRawFd::as_raw_fd),
        directory: directory.as_deref(),
        preparation,
        candidates: &candidates,
        arguments: &pointers(&arguments),
        shell_arguments: &shell_arguments(&arguments),
        environment: &pointers(&environment),
        is_in_group: Cell::new(false),
        errno: Cell::new(0),
    };
    let pid = start(&plan)?;
    match plan.errno.get() {
        0 => Ok((pid, Ends { stdin, stdout, stderr })),
        errno => {
            // It has ended, or is about to.
            let _reaped = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// Starts the new process and waits until it has become its program or has given up.
fn start(plan: &Plan<'_>) -> io::Result<Pid> {
    let stack = Stack::new()?;
    // No handler of the gateway's may run in the new process, on its memory.
    let blocked = SignalsBlocked::new()?;
    let argument = ptr::from_ref(plan).cast_mut().cast();
    let into_group = plan.preparation.group().map(|group| {
        plan.is_in_group.set(true);
        let (stack, stack_bytes) = (stack.bottom(), STACK_BYTES);
        let beginning = Beginning { stack, stack_bytes, entry: become_program, argument, group };
        // SAFETY: the stack is live, unshared and aligned to pages; `plan` outlives the call, which returns only after
        // the new process has let go of this memory (CLONE_VFORK); what runs there keeps to what `run` promises.
        unsafe { clone_into_group(&beginning) }
    });
    let started = match into_group {
        Some(Ok(pid)) => Ok(pid),
        // Without a group, or where the call is not to be had: then it moves itself, or says why not.
        _ => {
            plan.is_in_group.set(false);
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            // SAFETY: as above; the stack grows down from its top.
            let pid = unsafe { libc::clone(become_program, stack.top(), flags, argument) };
            if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) }
        }
    };
    drop(blocked);
    Ok(Pid::from_raw(started?).expect("a new process has a number above zero"))
}

/// Everything the new process is to do. Only the cells are written to, and while it runs only by it.
struct Plan<'a> {
    /// What becomes standard input, output and error; none of them is one already.
    descriptors: [RawFd; 3],
    directory: Option<&'a CStr>,
    preparation: &'a Preparation,
    /// Files that may be the program, in order.
    candidates: &'a [CString],
    /// Ends with a null pointer, as do the two below.
    arguments: &'a [*const c_char],
    /// The same for [`SHELL`], with room for the file's name at 1.
    shell_arguments: &'a [Cell<*const c_char>],
    environment: &'a [*const c_char],
    /// Whether it begins in its control group.
    is_in_group: Cell<bool>,
    /// Why there is no program; 0 as long as nothing failed.
    errno: Cell<c_int>,
}

impl Plan<'_> {
    /// Becomes the program; returns only with the errno of what failed.
    ///
    /// Async-signal-safe: system calls, no allocation, no lock, nothing that can panic.
    ///
    /// # Safety
    /// To be called in the new process only.
    unsafe fn run(&self) -> c_int {
        // SAFETY: plain system calls on integers and on live, terminated strings.
        unsafe {
            for (standard, descriptor) in (0..).zip(self.descriptors) {
                if libc::dup2(descriptor, standard) < 0 {
                    return errno();
                }
            }
            if let Some(directory) = self.directory
                && libc::chdir(directory.as_ptr()) < 0
            {
                return errno();
            }
            if let Err(error) = self.preparation.apply(self.is_in_group.get()) {
                return error.raw_os_error().unwrap_or(libc::EINVAL);
            }
            self.execute()
        }
    }

    /// Does as execvp(3) with the environment of the child: takes the first candidate that can be run.
    unsafe fn execute(&self) -> c_int {
        let (mut last, mut denied) = (libc::ENOENT, false);
        for candidate in self.candidates {
            // SAFETY: every pointer is to a live string, and each list ends with a null pointer.
            unsafe { libc::execve(candidate.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr()) };
            last = errno();
            match last {
                libc::EACCES => denied = true,
                libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                libc::ENOEXEC => {
                    if let Some(file) = self.shell_arguments.get(1) {
                        file.set(candidate.as_ptr());
                        let arguments = self.shell_arguments.as_ptr().cast::<*const c_char>();
                        // SAFETY: as above; a cell is laid out like what it holds.
                        unsafe { libc::execve(SHELL.as_ptr(), arguments, self.environment.as_ptr()) };
                    }
                    return libc::ENOEXEC;
                }
                other => return other,
            }
        }
        if denied { libc::EACCES } else { last }
    }
}

/// Where the new process begins.
extern "C" fn become_program(plan: *mut c_void) -> c_int {
    // SAFETY: `start` passes a plan that lives until this process has let go of the memory, and this
    // is the new process. _exit leaves alone what exit handlers would tear down: it is the gateway's.
    unsafe {
        let plan = &*plan.cast::<Plan<'_>>();
        plan.errno.set(plan.run());
        libc::_exit(127)
    }
}

fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

/// The stack of a new process, with a guard below it.
struct Stack(*mut c_void);

impl Stack {
    fn new() -> io::Result<Self> {
        // SAFETY: asks for new memory anywhere, and takes the access to a part of it away.
        unsafe {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let kind = kind | libc::MAP_STACK;
            let base = libc::mmap(ptr::null_mut(), GUARD_BYTES + STACK_BYTES, access, kind, -1, 0);
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let stack = Self(base);
            if libc::mprotect(base, GUARD_BYTES, libc::PROT_NONE) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(stack)
        }
    }

    /// The lowest address of it, above the guard.
    fn bottom(&self) -> *mut c_void {
        self.0.wrapping_byte_add(GUARD_BYTES)
    }

    /// Where it begins: the first address above it, aligned to a page.
    fn top(&self) -> *mut c_void {
        self.0.wrapping_byte_add(GUARD_BYTES + STACK_BYTES)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size; whoever used it has let go.
        unsafe { libc::munmap(self.0, GUARD_BYTES + STACK_BYTES) };
    }
}

/// As long as it lives no signal reaches this thread, nor a process it starts that does not ask for some.
struct SignalsBlocked(u128);

impl SignalsBlocked {
    /// Past the C library, which would leave out the signals it uses itself.
    fn new() -> io::Result<Self> {
        let mut before = 0;
        // SAFETY: both sets are live and at least as large as the kernel is told.
        let done = unsafe { set_mask(&raw const ALL_SIGNALS, &raw mut before) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(before)) }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: as above; the kernel writes nothing back to a null pointer.
        unsafe { set_mask(&raw const self.0, ptr::null_mut()) };
    }
}

/// At least as large as the kernel's signal set of any architecture.
static ALL_SIGNALS: u128 = u128::MAX;

/// rt_sigprocmask(2).
unsafe fn set_mask(set: *const u128, before: *mut u128) -> libc::c_long {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, set, before, SIGNAL_SET_BYTES) }
}

/// Moves a descriptor out of the way of the standard ones, should the gateway itself lack one of them.
fn above_standard(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    const LOWEST: RawFd = libc::STDERR_FILENO + 1;
    if descriptor.as_raw_fd() >= LOWEST { Ok(descriptor) } else { Ok(fcntl_dupfd_cloexec(&descriptor, LOWEST)?) }
}

fn arguments(command: &Command) -> io::Result<Vec<CString>> {
    let rest = command.arguments.iter().map(String::as_str);
    std::iter::once(command.program.as_str()).chain(rest).map(|argument| c_string(OsStr::new(argument))).collect()
}

fn environment(command: &Command) -> io::Result<Vec<CString>> {
    let variables = command.environment.iter().map(|(name, value)| {
        let mut variable = name.clone();
        variable.push("=");
        variable.push(value);
        c_string(&variable)
    });
    variables.collect()
}

/// The files that may be the program: a path is itself one, a name is looked for in the child's PATH.
fn candidates(command: &Command) -> io::Result<Vec<CString>> {
    if command.program.is_empty() || command.program.contains('/') {
        return Ok(vec![c_string(OsStr::new(&command.program))?]);
    }
    let path = command.path().unwrap_or(OsStr::new(DEFAULT_PATH));
    std::env::split_paths(path).map(|directory| c_string(directory.join(&command.program).as_os_str())).collect()
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

fn shell_arguments(arguments: &[CString]) -> Vec<Cell<*const c_char>> {
    let rest = arguments.iter().skip(1).map(|argument| argument.as_ptr());
    [SHELL.as_ptr(), ptr::null()].into_iter().chain(rest).chain([ptr::null()]).map(Cell::new).collect()
}
