//! Running one test function as a process of its own.
//!
//! A trial about a whole process runs the test program again for one function whose name begins
//! with `role_`. Such a function is ignored otherwise and does nothing unless [`ROLE`] is set.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in the environment of a process that plays a role.
pub(super) const ROLE: &str = "GANGWAY_TEST_ROLE";
const NOBODY: u32 = 65_534;

/// The command that runs `name`, a path below this folder's module.
pub(super) fn role(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let path = format!("upstream::tests::{name}");
    command
        .args([
            "--exact",
            &path,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, "");
    command
}

/// The same as an unprivileged user; root is above most of what keeps processes apart.
pub(super) fn role_as_nobody(name: &str) -> Command {
    let mut command = role(name);
    // SAFETY: geteuid cannot fail and touches nothing.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    }
    command
}

pub(super) fn is_role() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Runs a role and fails with what it said.
pub(super) fn run(mut command: Command) {
    let output = command.output().expect("the test program runs");
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{errors}"
    );
}
