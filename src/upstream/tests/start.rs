//! Starting: what the new process is given, and what it is told apart by when it fails.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::{Spawner, command, ended, output, shell, start};
use crate::upstream::{Command, SpawnError, SpawnFailure};

async fn failure(command: Command) -> SpawnError {
    let spawner = Spawner::start().expect("a thread");
    spawner.spawn(command).await.expect_err("must not start")
}

/// A directory of this test's own.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gangway-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
        path.to_str().expect("text").to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn arguments_are_no_shell_text() {
    let text = output(command("printf", &["%s|", "a b", "$HOME", "*", ""])).await;
    assert_eq!(text, "a b|$HOME|*||");
}

#[tokio::test]
async fn the_environment_is_exactly_what_was_given() {
    let mut command = command("/usr/bin/env", &[]);
    command.environment = vec![("B".into(), "2".into()), ("A".into(), "x=y".into())];
    let mut lines: Vec<String> = output(command).await.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["A=x=y", "B=2"]);
}

#[tokio::test]
async fn the_program_is_looked_up_in_the_childs_path() {
    let directory = Directory::new("path");
    directory.file("only-here", "#!/bin/sh\necho found\n", 0o755);
    let mut command = command("only-here", &[]);
    command.environment = vec![("PATH".into(), directory.0.clone().into())];
    assert_eq!(output(command).await, "found\n");
}

/// execvp(3): what cannot be executed is passed over, and a file without a first line to say is a shell's.
#[tokio::test]
async fn the_first_that_can_be_run_is() {
    let directories = ["first", "second", "third"].map(|name| Directory::new(&format!("order-{name}")));
    directories[0].file("tool", "#!/bin/sh\necho first\n", 0o644);
    directories[1].file("tool", "echo second \"$@\"\n", 0o755);
    directories[2].file("tool", "#!/bin/sh\necho third\n", 0o755);
    let mut path: Vec<PathBuf> = directories.iter().map(|directory| directory.0.clone()).collect();
    path.insert(0, PathBuf::from("/no/such"));
    path.insert(1, PathBuf::from("/bin/sh"));
    let mut tool = command("tool", &["a b", "c"]);
    tool.environment = vec![("PATH".into(), std::env::join_paths(path).expect("no colon"))];
    assert_eq!(output(tool).await, "second a b c\n");

    let mut tool = command("tool", &[]);
    tool.environment = vec![("PATH".into(), directories[0].0.clone().into())];
    let expected = SpawnFailure::NotExecutable(directories[0].0.join("tool"));
    assert_eq!(*failure(tool).await.failure(), expected);
}

/// After a fork each page that is written to costs a fault, for a child of a moment.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_start_leaves_the_gateways_memory_alone() {
    const PAGE_BYTES: usize = 4096;
    let faults = || {
        // SAFETY: the struct is a live local, for which zero is a valid value.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage.ru_minflt
        }
    };
    let mut memory = vec![0_u8; 32 << 20];
    let mut touch = |value| memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = value);
    touch(1);
    assert!(ended(&start(command("true", &[])).await).await.ending.success());
    let before = faults();
    touch(2);
    let taken = faults() - before;
    assert!(taken < 1000, "{taken} faults");
    assert_eq!(memory[0], 2);
}

#[tokio::test]
async fn the_directory_is_set() {
    let mut command = command("pwd", &[]);
    command.directory = Some(PathBuf::from("/"));
    assert_eq!(output(command).await, "/\n");
}

#[tokio::test]
async fn a_program_in_no_path() {
    let mut command = command("no-such-program", &[]);
    command.environment = vec![("PATH".into(), "/nowhere:/bin".into())];
    let error = failure(command).await;
    assert_eq!(*error.failure(), SpawnFailure::NotFound(Some(OsString::from("/nowhere:/bin"))));
    let text = error.to_string();
    assert!(text.contains("no-such-program") && text.contains("PATH=/nowhere:/bin"), "{text}");
}

#[tokio::test]
async fn a_program_that_is_no_file() {
    assert_eq!(*failure(command("/no/such", &[])).await.failure(), SpawnFailure::NotFound(None));
}

#[tokio::test]
async fn files_that_cannot_be_executed() {
    let directory = Directory::new("files");
    let plain = directory.file("plain", "#!/bin/sh\n", 0o644);
    let expected = SpawnFailure::NotExecutable(PathBuf::from(&plain));
    assert_eq!(*failure(command(&plain, &[])).await.failure(), expected);

    let orphan = directory.file("orphan", "#!/no/interpreter -x\n", 0o755);
    let error = failure(command(&orphan, &[])).await;
    assert_eq!(*error.failure(), SpawnFailure::InterpreterMissing(PathBuf::from(&orphan)));
    assert!(error.hint().is_some_and(|hint| hint.contains("/no/interpreter,")), "{error}");
}

#[tokio::test]
async fn a_directory_that_is_missing() {
    let mut command = command("true", &[]);
    command.directory = Some(PathBuf::from("/no/such/directory"));
    let expected = SpawnFailure::Directory(PathBuf::from("/no/such/directory"));
    assert_eq!(*failure(command).await.failure(), expected);
}

#[tokio::test]
async fn arguments_that_are_too_long_or_hold_nul() {
    let long = "x".repeat(4 << 20);
    assert_eq!(*failure(command("true", &[&long])).await.failure(), SpawnFailure::TooLong);
    assert_eq!(*failure(command("true", &["a\0b"])).await.failure(), SpawnFailure::NulByte);
}

#[tokio::test]
async fn no_descriptor_but_the_standard_ones_is_inherited() {
    // dup leaves out close-on-exec: what a careless parent of the gateway might have left open.
    // SAFETY: duplicates a descriptor that is open, and closes the copy.
    let leaky = unsafe { libc::dup(2) };
    assert!(leaky > 2);
    let text = output(command("ls", &["/proc/self/fd"])).await;
    // SAFETY: as above.
    unsafe { libc::close(leaky) };
    // The fourth is the directory ls reads.
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
}

/// The test harness ignores SIGPIPE, as the gateway does.
#[tokio::test]
async fn signals_privileges_and_session_are_fresh() {
    let text = output(command("cat", &["/proc/self/status", "/proc/self/limits", "/proc/self/stat"])).await;
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).expect(name);
        line[name.len()..].trim().to_owned()
    };
    assert_eq!(field("SigBlk:"), "0".repeat(16));
    assert_eq!(field("SigIgn:"), "0".repeat(16));
    assert_eq!(field("NoNewPrivs:"), "1");
    let core: Vec<String> = field("Max core file size").split_whitespace().map(str::to_owned).collect();
    assert_eq!(core[..2], ["0", "0"]);
    let stat = text.lines().last().and_then(|line| line.rsplit_once(')')).expect("a stat line").1;
    let ids: Vec<&str> = stat.split_whitespace().skip(2).take(2).collect();
    let pid = field("Pid:");
    assert_eq!(ids, [&pid, &pid], "leader of its group and of its session");
}

#[tokio::test]
async fn a_broken_pipe_ends_a_child_by_default() {
    let exit = ended(&start(shell("(yes; echo status $? >&2) | head -1")).await).await;
    let expected = format!("status {}", 128 + libc::SIGPIPE);
    assert_eq!(*exit.stderr, [expected]);
}

#[test]
fn a_command_prints_no_secret() {
    let mut command = command("program", &["--key=SECRET"]);
    command.environment = vec![("TOKEN".into(), "SECRET".into())];
    let text = format!("{command:?}");
    assert!(!text.contains("SECRET") && text.contains("TOKEN"), "{text}");
}
