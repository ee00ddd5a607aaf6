//! Why a child could not be started, and what the operator can do about it.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::command::Command;
use super::identity::NoIdentity;
use super::landlock::NoFileRules;
use super::step::Step;

/// A child that could not be started. Its text and hint are for the operator, not for clients.
#[derive(Debug)]
pub struct SpawnError {
    failure: SpawnFailure,
    program: String,
    source: io::Error,
}

/// The kinds of failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpawnFailure {
    /// No such program. With the `PATH` it was looked up in, if it was.
    NotFound(Option<OsString>),
    /// The program is there and may not be executed, or it is a directory (EACCES).
    NotExecutable(PathBuf),
    /// The program is there, but not what its first line or its header asks for (ENOENT).
    InterpreterMissing(PathBuf),
    /// The file is no program of this machine (ENOEXEC).
    WrongFormat,
    /// The working directory does not exist, is no directory, or is closed to us.
    Directory(PathBuf),
    /// Arguments and environment together are too long (E2BIG).
    TooLong,
    /// An argument, a variable or the directory holds a NUL byte.
    NulByte,
    /// No more processes are allowed (EAGAIN).
    Processes,
    /// No more descriptors are allowed (EMFILE, ENFILE).
    Descriptors,
    /// Not enough memory (ENOMEM).
    Memory,
    /// The Landlock domain could not be entered.
    Landlock,
    /// This kernel cannot keep a process from files, and `sandbox.read` or `sandbox.write` asks for it.
    NoFileRules,
    /// A path of `sandbox.read` or `sandbox.write` cannot be opened.
    SandboxPath(PathBuf),
    /// The program, or what runs it, is not among what `sandbox.read` and `sandbox.write` allow.
    OutsideSandbox(PathBuf),
    /// Nobody is called like this.
    NoSuchUser,
    /// A user who is only a number has no group.
    NoGroup,
    /// The gateway may not become another user.
    UserDenied,
    /// `sandbox.nofile` is more than the gateway may give.
    DescriptorLimit,
    /// A control group for the child could not be made, filled in or entered.
    ControlGroup,
    /// Anything else; the source tells.
    Other,
}

impl SpawnFailure {
    /// What `error` says by itself, without looking at files.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOEXEC) => Self::WrongFormat,
            Some(libc::E2BIG) => Self::TooLong,
            Some(libc::EAGAIN) => Self::Processes,
            Some(libc::EMFILE | libc::ENFILE) => Self::Descriptors,
            Some(libc::ENOMEM) => Self::Memory,
            None if error.kind() == io::ErrorKind::InvalidInput => Self::NulByte,
            _ => Self::Other,
        }
    }
}

impl SpawnError {
    pub(super) fn new(failure: SpawnFailure, program: &str, source: io::Error) -> Self {
        Self { failure, program: program.to_owned(), source }
    }

    /// Finds out what `source` means. ENOENT and EACCES come alike from the directory, the program
    /// and its interpreter; they are told apart by looking, after the fact.
    pub(super) fn diagnose(command: &Command, source: io::Error) -> Self {
        let (step, source) = Step::split(source);
        let failure = match step {
            Step::Exec => Self::of_exec(command, &source),
            Step::Group => SpawnFailure::ControlGroup,
            Step::Descriptors => SpawnFailure::DescriptorLimit,
            Step::User if source.raw_os_error() == Some(libc::EPERM) => SpawnFailure::UserDenied,
            Step::User | Step::Limits => SpawnFailure::of(&source),
            Step::Landlock => SpawnFailure::Landlock,
        };
        Self::new(failure, &command.program, source)
    }

    fn of_exec(command: &Command, source: &io::Error) -> SpawnFailure {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES) => missing(command, source),
            _ => SpawnFailure::of(source),
        }
    }

    /// There is nobody to run `command` as.
    pub(super) fn no_identity(command: &Command, why: NoIdentity) -> Self {
        let (failure, source) = match why {
            NoIdentity::Unknown => {
                (SpawnFailure::NoSuchUser, io::Error::other("no user is called like `sandbox.user`"))
            }
            NoIdentity::NoGroup => (SpawnFailure::NoGroup, io::Error::other("`sandbox.user` has no group")),
            NoIdentity::Denied => (SpawnFailure::UserDenied, io::Error::from_raw_os_error(libc::EPERM)),
            NoIdentity::Database(error) => (SpawnFailure::Other, error),
        };
        Self::new(failure, &command.program, source)
    }

    /// Files cannot be restricted as `command` asks.
    pub(super) fn no_file_rules(command: &Command, why: NoFileRules) -> Self {
        let (failure, source) = match why {
            NoFileRules::Unsupported => {
                (SpawnFailure::NoFileRules, io::Error::other("this kernel cannot restrict files with Landlock"))
            }
            NoFileRules::Path(path, error) => (SpawnFailure::SandboxPath(path), error),
            NoFileRules::Kernel(error) => (SpawnFailure::Landlock, error),
        };
        Self::new(failure, &command.program, source)
    }

    /// There is no control group for `command`.
    pub(super) fn no_group(command: &Command, source: io::Error) -> Self {
        Self::new(SpawnFailure::ControlGroup, &command.program, source)
    }

    /// The kind of failure.
    #[must_use]
    pub fn failure(&self) -> &SpawnFailure {
        &self.failure
    }

    /// What the operator can do, as a clause; `None` where only the error itself can tell.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match &self.failure {
            SpawnFailure::NotFound(Some(path)) => {
                format!("not in PATH={}; install it or write its full path", path.display())
            }
            SpawnFailure::NotFound(None) => "no such file; check `command`".into(),
            SpawnFailure::NotExecutable(file) => {
                format!("{} may not be executed by this user; try chmod +x", file.display())
            }
            SpawnFailure::InterpreterMissing(file) => match interpreter(file) {
                Some(interpreter) => {
                    format!("{} is run by {interpreter}, which does not exist", file.display())
                }
                None => format!("{} needs a loader or library this system lacks", file.display()),
            },
            SpawnFailure::WrongFormat => "not a program for this kind of machine".into(),
            SpawnFailure::Directory(directory) => {
                format!("the directory {} cannot be entered; check `cwd`", directory.display())
            }
            SpawnFailure::TooLong => "arguments and environment are too long together; shorten `args` or `env`".into(),
            SpawnFailure::NulByte => "a NUL byte in `command`, `args`, `cwd` or `env`".into(),
            SpawnFailure::Processes => {
                "the process limit is reached; raise ulimit -u, TasksMax, pids.max or sandbox.nproc, or lower pool.max_size".into()
            }
            SpawnFailure::Descriptors => "the descriptor limit is reached; raise ulimit -n or LimitNOFILE".into(),
            SpawnFailure::Memory => "not enough memory for another process, or less in sandbox.memory than the program needs".into(),
            SpawnFailure::Landlock => {
                "the kernel refused another Landlock domain; set sandbox.scope to \"off\" and leave sandbox.read and \
                 sandbox.write empty to do without"
                    .into()
            }
            SpawnFailure::NoFileRules => {
                "it takes Linux 6.2 with Landlock switched on; leave sandbox.read and sandbox.write empty to start \
                 the server with every file its user can reach"
                    .into()
            }
            SpawnFailure::SandboxPath(path) => {
                format!("{} is named in sandbox.read or sandbox.write; make it, or leave it out", path.display())
            }
            SpawnFailure::OutsideSandbox(file) => format!(
                "add {} and the folder of what runs it to sandbox.read: what is not named there cannot be executed",
                file.display()
            ),
            SpawnFailure::NoSuchUser => "make that user, or write sandbox.user as uid:gid".into(),
            SpawnFailure::NoGroup => "nobody has this number, so write its group too: sandbox.user = \"uid:gid\"".into(),
            SpawnFailure::UserDenied => {
                "to run it as sandbox.user the gateway must be root, or have CAP_SETUID, CAP_SETGID and CAP_KILL".into()
            }
            SpawnFailure::DescriptorLimit => {
                "sandbox.nofile is above the gateway's own hard limit; lower it, or raise LimitNOFILE".into()
            }
            SpawnFailure::ControlGroup => {
                "its control group could not be set up or entered; the gateway's own must stay delegated to it".into()
            }
            SpawnFailure::Other => return None,
        })
    }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot start {}: {}", self.program, self.source)?;
        match self.hint() {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl Error for SpawnError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// Which of directory, program and interpreter is missing or closed.
fn missing(command: &Command, source: &io::Error) -> SpawnFailure {
    if let Some(directory) = &command.directory
        && (!directory.is_dir() || !is_executable(directory))
    {
        return SpawnFailure::Directory(directory.clone());
    }
    let denied = source.raw_os_error() == Some(libc::EACCES);
    match found(command) {
        Some(file) if denied && is_executable(&file) && command.sandbox.restricts_files() => {
            SpawnFailure::OutsideSandbox(file)
        }
        Some(file) if denied || !is_executable(&file) => SpawnFailure::NotExecutable(file),
        Some(file) => SpawnFailure::InterpreterMissing(file),
        None if denied => SpawnFailure::NotExecutable(PathBuf::from(&command.program)),
        None if command.program.contains('/') => SpawnFailure::NotFound(None),
        None => SpawnFailure::NotFound(Some(search_path(command))),
    }
}

/// The first file that exec would have taken, or would have if it were executable.
pub(super) fn found(command: &Command) -> Option<PathBuf> {
    let start = command.directory.clone().unwrap_or_default();
    if command.program.contains('/') {
        return Some(start.join(&command.program)).filter(|file| file.exists());
    }
    let candidates: Vec<PathBuf> = std::env::split_paths(&search_path(command))
        .map(|directory| start.join(directory).join(&command.program))
        .filter(|file| file.is_file())
        .collect();
    candidates.iter().find(|file| is_executable(file)).or(candidates.first()).cloned()
}

/// `PATH` of the child, or what execvp(3) uses without one.
fn search_path(command: &Command) -> OsString {
    command.path().map_or_else(|| "/bin:/usr/bin".into(), OsStr::to_os_string)
}

/// Whether anybody may execute it. An approximation that only chooses words.
fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

/// The program a script's first line names.
fn interpreter(script: &Path) -> Option<String> {
    /// Linux reads no more of a script's first line (execve(2)).
    const FIRST_LINE_BYTES: usize = 256;
    let mut start = [0; FIRST_LINE_BYTES];
    let length = io::Read::read(&mut std::fs::File::open(script).ok()?, &mut start).ok()?;
    let line = start[..length].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let line = OsStr::from_bytes(line).to_string_lossy();
    line.split_whitespace().next().map(str::to_owned)
}
