//! What a child may do and take. Trials that need root or Landlock try the refusal where these are missing, and say so.

use std::path::PathBuf;
use std::time::Duration;

use super::{Command, Lines, Spawner, command, ended, output, shell, start};
use crate::config::UserName;
use crate::upstream::{Ending, SpawnError, SpawnFailure};

/// A number that no other test uses, so that limits of the user are this test's own.
const UID: u32 = 61_234;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

async fn refused(command: Command) -> SpawnError {
    Spawner::start().expect("a thread").spawn(command).await.expect_err("no child")
}

/// F:A14: without a control group, limits of the process.
#[tokio::test]
async fn limits_and_umask_are_what_was_asked_for() {
    let mut limited =
        shell("umask; ulimit -Sn; ulimit -Hn; ulimit -v; cat /proc/self/limits | grep processes; ulimit -c");
    limited.sandbox.umask = 0o027;
    limited.sandbox.nofile = Some(99);
    limited.sandbox.memory = Some(512 << 20);
    limited.sandbox.nproc = Some(4000);
    let text = output(limited).await;
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words, ["0027", "99", "99", "524288", "Max", "processes", "4000", "4000", "processes", "0"]);
}

/// F:A14: an allocation that is too large fails in the child, and nowhere else.
#[tokio::test]
async fn memory_without_a_group_is_address_space() {
    let script = "try:\n  b'x' * (1 << 30)\nexcept MemoryError:\n  print('refused')";
    let mut eater = command("python3", &["-I", "-S", "-c", script]);
    eater.sandbox.memory = Some(256 << 20);
    assert_eq!(output(eater).await, "refused\n");
}

/// F:A14: a bomb that cannot go off.
#[tokio::test]
async fn processes_of_a_user_without_a_group() {
    if !is_root() {
        eprintln!("not tried: sandbox.nproc with a user of its own, which takes root");
        return;
    }
    // Forks until it may no more; each fork waits for the end of the first.
    let script = "import os, sys\n\
        r, w = os.pipe()\n\
        count = 0\n\
        try:\n\
        \x20 while count < 100:\n\
        \x20   if os.fork() == 0: os.close(w); os.read(r, 1); os._exit(0)\n\
        \x20   count += 1\n\
        except BlockingIOError: print('refused at', count)\n";
    let mut bomb = command("/usr/bin/python3", &["-I", "-S", "-c", script]);
    if !PathBuf::from("/usr/bin/python3").exists() {
        eprintln!("not tried: there is no Python that everybody may run");
        return;
    }
    bomb.sandbox.user = Some(UserName::Number { uid: UID, gid: Some(UID) });
    bomb.sandbox.nproc = Some(8);
    assert_eq!(output(bomb).await, "refused at 7\n");
}

#[tokio::test]
async fn more_descriptors_than_there_may_be_are_refused() {
    let mut greedy = shell("ulimit -n");
    greedy.sandbox.nofile = Some(u64::from(u32::MAX));
    let error = refused(greedy).await;
    assert_eq!(*error.failure(), SpawnFailure::DescriptorLimit, "{error}");
    assert!(error.to_string().contains("sandbox.nofile"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_is_become_for_good() {
    let script = "id -u; id -ru; id -g; id -G; echo $HOME $USER $LOGNAME; grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status \
        | tr -d '\\n'; echo; cd; pwd; exec sleep 1000";
    let mut child = shell(script);
    child.sandbox.user = Some(UserName::Number { uid: UID, gid: Some(UID + 1) });
    if !is_root() {
        eprintln!("not tried: becoming another user, which takes root; tried: that it is refused");
        let error = refused(child).await;
        assert_eq!(*error.failure(), SpawnFailure::UserDenied);
        assert!(error.to_string().contains("CAP_SETUID"), "{error}");
        return;
    }
    let mut child = start(child).await;
    let mut lines = Lines::of(&mut child);
    let (uid, gid) = (UID.to_string(), (UID + 1).to_string());
    for expected in [&uid, &uid, &gid, &gid, &format!("/ {uid} {uid}")] {
        assert_eq!(lines.next().await.as_ref(), Some(expected));
    }
    let capabilities = lines.next().await.expect("a line");
    assert!(!capabilities.contains(|c: char| ('1'..='9').contains(&c)), "{capabilities}");
    assert_eq!(lines.next().await.as_deref(), Some("/"));
    let report = child.stop(Duration::ZERO, super::PATIENCE).await;
    assert_eq!(report.exit.map(|exit| exit.ending), Some(Ending::Signal { number: libc::SIGTERM, core: false }));
    // SAFETY: reads a number of this process.
    assert_eq!(unsafe { libc::geteuid() }, 0, "the gateway stays who it is");
}

#[tokio::test]
async fn a_user_by_name_has_its_groups_and_home() {
    let mut child = shell("id -un; id -Gn; echo $HOME");
    child.sandbox.user = Some(UserName::Name("nobody".into()));
    if !is_root() {
        eprintln!("not tried: becoming nobody, which takes root; tried: that it is refused");
        assert_eq!(*refused(child).await.failure(), SpawnFailure::UserDenied);
        return;
    }
    let script = "id -un nobody; id -Gn nobody; getent passwd nobody | cut -d: -f6";
    let known = std::process::Command::new("sh").args(["-c", script]).output().expect("a shell").stdout;
    assert_eq!(output(child).await, String::from_utf8(known).expect("text"));
}

#[tokio::test]
async fn nobody_like_that() {
    for (user, failure) in [
        (UserName::Name("no-such-user-here".into()), SpawnFailure::NoSuchUser),
        (UserName::Number { uid: 4_123_456_789, gid: None }, SpawnFailure::NoGroup),
    ] {
        let mut child = command("true", &[]);
        child.sandbox.user = Some(user);
        assert_eq!(*refused(child).await.failure(), failure);
    }
}

/// A folder with `open` and `shut` in it, each with a file.
struct Folders(PathBuf);

impl Folders {
    fn new(name: &str) -> Self {
        let base = std::env::temp_dir().join(format!("gangway-sandbox-{name}-{}", std::process::id()));
        for folder in ["open", "shut"] {
            std::fs::create_dir_all(base.join(folder)).expect("the folder is made");
            std::fs::write(base.join(folder).join("file"), format!("{folder}\n")).expect("it is ours");
        }
        Self(base)
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether files can be restricted here; if not, that a server that asks for it does not start.
async fn has_file_rules(command: &Command) -> bool {
    match Spawner::start().expect("a thread").spawn(command.clone()).await {
        Err(error) if *error.failure() == SpawnFailure::NoFileRules => {
            assert!(error.to_string().contains("Linux 6.2"), "{error}");
            eprintln!("not tried: file rules, which this kernel does not have; tried: that they are refused");
            false
        }
        _ => true,
    }
}

#[tokio::test]
async fn only_what_is_named_can_be_read_or_changed() {
    let folders = Folders::new("rules");
    let script = "cat open/file; cat shut/file 2>/dev/null || echo unread; ls shut 2>/dev/null || echo unlisted; \
        cat /etc/shadow 2>/dev/null || echo hidden; (echo x >open/file) 2>/dev/null || echo unchanged; \
        (: >/tmp/gangway-sandbox-nowhere) 2>/dev/null || echo unmade; echo gone >/dev/null; cat </dev/null; \
        head -c 1 /dev/urandom | wc -c; cat /proc/self/comm";
    let mut child = shell(script);
    child.directory = Some(folders.0.clone());
    child.sandbox.read = vec![folders.0.join("open")];
    if !has_file_rules(&child).await {
        return;
    }
    assert_eq!(output(child).await, "open\nunread\nunlisted\nhidden\nunchanged\nunmade\n1\ncat\n");

    let script = "cat open/file; echo new >open/file; mkdir open/a; echo x >open/a/b; mv open/a/b open/c; rm open/c; \
        rmdir open/a; cat open/file; truncate -s 0 shut/file 2>/dev/null || echo whole; rm shut/file 2>/dev/null || echo kept";
    let mut child = shell(script);
    child.directory = Some(folders.0.clone());
    child.sandbox.write = vec![folders.0.join("open")];
    child.sandbox.scope = false;
    assert_eq!(output(child).await, "open\nnew\nwhole\nkept\n");
    assert_eq!(std::fs::read_to_string(folders.0.join("shut/file")).expect("it is there"), "shut\n");
}

#[tokio::test]
async fn what_cannot_be_started_within_its_rules_says_why() {
    let folders = Folders::new("start");
    let mut child = command("true", &[]);
    child.sandbox.read = vec![folders.0.join("missing")];
    if !has_file_rules(&child).await {
        return;
    }
    assert_eq!(*refused(child).await.failure(), SpawnFailure::SandboxPath(folders.0.join("missing")));

    // The script may be run, what runs it may not.
    let script = folders.0.join("open/script");
    let runner = folders.0.join("shut/runner");
    std::fs::copy("/bin/sh", &runner).expect("a shell");
    std::fs::write(&script, format!("#!{} -e\necho ran\n", runner.display())).expect("it is ours");
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("it is ours");
    let mut child = command(script.to_str().expect("text"), &[]);
    child.sandbox.read = vec![folders.0.join("open/file")];
    assert_eq!(*refused(child.clone()).await.failure(), SpawnFailure::OutsideSandbox(script));
    child.sandbox.read = vec![runner];
    assert_eq!(output(child).await, "ran\n");
}

/// A rule is about the file that is there when the child starts, also where one took its place.
#[tokio::test]
async fn a_replaced_file_is_read_by_the_next_child() {
    let folders = Folders::new("replaced");
    let file = folders.0.join("open/file");
    let mut child = command("cat", &[file.to_str().expect("text")]);
    child.sandbox.read = vec![file.clone()];
    if !has_file_rules(&child).await {
        return;
    }
    let spawner = Spawner::start().expect("a thread");
    for text in ["one\n", "two\n"] {
        let new = folders.0.join("new");
        std::fs::write(&new, text).expect("it is ours");
        std::fs::rename(&new, &file).expect("it is ours");
        let mut running = spawner.spawn(child.clone()).await.expect("a child");
        assert_eq!(Lines::of(&mut running).next().await.as_deref(), Some(text.trim()));
        assert!(ended(&running).await.ending.success());
    }
}
