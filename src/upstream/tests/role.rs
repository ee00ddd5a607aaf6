//! Running one test function as a process of its own.
//!
//! A trial about a whole process runs the test program again for one function whose name begins
//! with `role_`. Such a function is ignored otherwise and does nothing unless [`ROLE`] is set.

use std::process::Command;

use rustix::process::DumpableBehavior;

/// Set in the environment of a process that plays a role.
pub(super) const ROLE: &str = "GANGWAY_TEST_ROLE";
const NOBODY: u32 = 65_534;

/// The command that runs `name`, a path below this folder's module.
pub(super) fn role(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let path = format!("upstream::tests::{name}");
    command.args(["--exact", &path, "--ignored", "--nocapture", "--test-threads=1"]).env(ROLE, "");
    command
}

/// Gives up root, which is above most of what keeps processes apart; for a role only.
///
/// From within, because the test program may lie where nobody else may enter.
pub(super) fn become_nobody() {
    // SAFETY: system calls on integers; the C library changes every thread of the process.
    unsafe {
        if libc::geteuid() == 0 {
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
            assert_eq!(libc::setgid(NOBODY), 0);
            assert_eq!(libc::setuid(NOBODY), 0);
        }
    }
    // The change of user took it away.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).expect("the call exists");
}

pub(super) fn is_role() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Runs a role and fails with what it said.
pub(super) fn run(mut command: Command) {
    let output = command.output().expect("the test program runs");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}
