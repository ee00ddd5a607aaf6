//! How a child ended.

use std::fmt;
use std::sync::Arc;

use rustix::process::WaitIdStatus;

/// The end of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// What the kernel said.
    pub ending: Ending,
    /// The last lines the child wrote to stderr, oldest first: at most 20 of at most 512
    /// characters. Text of the child, secrets masked, for the operator only.
    pub stderr: Arc<[String]>,
}

/// What the kernel says about an ended process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status, 0 to 255.
    Status(i32),
    /// A signal ended it.
    Signal {
        /// The signal's number.
        number: i32,
        /// Whether a core was dumped.
        core: bool,
    },
    /// The kernel ended it with SIGKILL because memory had run out.
    OutOfMemory,
    /// It ended, but somebody else took its status.
    Unknown,
}

impl Ending {
    pub(super) fn of(status: &WaitIdStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(status), _) => Self::Status(status),
            (None, Some(number)) => Self::Signal { number, core: status.dumped() },
            (None, None) => Self::Unknown,
        }
    }

    /// Whether SIGKILL ended it, as far as is known for no better reason.
    pub(super) fn is_kill(self) -> bool {
        matches!(self, Self::Signal { number: libc::SIGKILL, .. })
    }

    /// Whether a signal ended it.
    pub(super) fn is_by_signal(self) -> bool {
        matches!(self, Self::Signal { .. } | Self::OutOfMemory)
    }

    /// Whether the child exited with status 0.
    #[must_use]
    pub fn success(self) -> bool {
        self == Self::Status(0)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Status(status) => write!(f, "exit status {status}"),
            Self::Signal { number, core } => {
                match signal_name(number) {
                    Some(name) => write!(f, "signal {name}")?,
                    None => write!(f, "signal {number}")?,
                }
                if core { f.write_str(" (core dumped)") } else { Ok(()) }
            }
            Self::OutOfMemory => f.write_str("signal SIGKILL (out of memory)"),
            Self::Unknown => f.write_str("unknown exit status"),
        }
    }
}

/// The names of the signals an operator meets; their numbers differ between systems.
fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::Ending;

    #[test]
    fn reads_like_a_sentence_part() {
        assert_eq!(Ending::Status(3).to_string(), "exit status 3");
        let killed = Ending::Signal { number: libc::SIGKILL, core: false };
        assert_eq!(killed.to_string(), "signal SIGKILL");
        let odd = Ending::Signal { number: 60, core: true };
        assert_eq!(odd.to_string(), "signal 60 (core dumped)");
    }
}
