//! Which step between fork and exec failed, carried beside its errno in one number.
//!
//! A new process that shares memory leaves it in a cell, one that does not sends it through the standard library's
//! pipe, which takes any number for an errno. Those of Linux end at 4095.

use std::io;

const ERRNO_BITS: u32 = 16;

/// A step that has a remedy of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Step {
    /// Any other, or exec itself.
    Exec,
    /// Entering the control group.
    Group,
    /// `sandbox.nofile`
    Descriptors,
    /// `sandbox.nproc` or `sandbox.memory`, as limits of the process.
    Limits,
    /// Becoming `sandbox.user`.
    User,
    /// Entering the Landlock domain.
    Landlock,
}

impl Step {
    const ALL: [Self; 6] = [Self::Exec, Self::Group, Self::Descriptors, Self::Limits, Self::User, Self::Landlock];

    /// The failure of this step with `error`. Async-signal-safe.
    pub(super) fn failed(self, error: &io::Error) -> io::Error {
        let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
        io::Error::from_raw_os_error(((self as i32) << ERRNO_BITS) | errno)
    }

    /// Takes step and error apart again.
    pub(super) fn split(error: io::Error) -> (Self, io::Error) {
        let Some(number) = error.raw_os_error() else { return (Self::Exec, error) };
        let step = Self::ALL.into_iter().find(|step| *step as i32 == number >> ERRNO_BITS);
        match step {
            Some(step) => (step, io::Error::from_raw_os_error(number & ((1 << ERRNO_BITS) - 1))),
            None => (Self::Exec, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Step;
    use std::io;

    #[test]
    fn step_and_errno_come_back() {
        for step in Step::ALL {
            let (back, error) = Step::split(step.failed(&io::Error::from_raw_os_error(libc::EPERM)));
            assert_eq!((back, error.raw_os_error()), (step, Some(libc::EPERM)));
        }
        assert_eq!(Step::split(io::Error::other("no number")).0, Step::Exec);
    }
}
