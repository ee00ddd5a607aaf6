//! A new process that runs a program, by fork and exec: where Linux's clone is not to be had.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use rustix::process::Pid;

use super::command::Command;
use super::fork::Preparation;
use super::spawner::Ends;

/// Starts `command` and returns once its program runs.
///
/// # Errors
/// What the kernel said to the first step that failed; then there is no process.
/// [`io::ErrorKind::InvalidInput`] without a number for a NUL byte.
pub(super) fn launch(command: &Command, preparation: &Preparation) -> io::Result<(Pid, Ends)> {
    let preparation = preparation.clone();
    let mut program = std::process::Command::new(&command.program);
    program
        .args(&command.arguments)
        .env_clear()
        .envs(command.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(directory) = &command.directory {
        program.current_dir(directory);
    }
    // SAFETY: `apply` runs where it asks to, makes async-signal-safe calls only and allocates nothing.
    unsafe { program.pre_exec(move || preparation.apply(false)) };
    let mut started = program.spawn()?;
    let ends = Ends {
        stdin: OwnedFd::from(started.stdin.take().expect("stdin is piped")),
        stdout: OwnedFd::from(started.stdout.take().expect("stdout is piped")),
        stderr: OwnedFd::from(started.stderr.take().expect("stderr is piped")),
    };
    Ok((Pid::from_child(&started), ends))
}
