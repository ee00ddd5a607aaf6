//! Trials of the child kit with real processes.

mod isolation;
mod life;
#[cfg(target_os = "linux")]
mod orphans;
mod own_process;
mod role;
mod sandbox;
mod spares;
mod start;
mod stop;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::{Child, Command, Exit, Line, LineSplitter, Spawner};
use crate::config::Sandbox;
use crate::telemetry::KnownSecrets;

/// Far beyond what anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn command(program: &str, arguments: &[&str]) -> Command {
    Command {
        server: Arc::from("test"),
        program: program.to_owned(),
        arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
        directory: None,
        environment: std::env::vars_os().filter(|(name, _)| name == "PATH").collect(),
        sandbox: Sandbox { scope: true, umask: 0o022, ..Sandbox::default() },
        known_secrets: KnownSecrets::default(),
        stderr_count: None,
        metrics: None,
    }
}

fn shell(script: &str) -> Command {
    command("sh", &["-c", script])
}

async fn start(command: Command) -> Child {
    let spawner = Spawner::start().expect("a thread");
    spawner.spawn(command).await.expect("a child")
}

async fn ended(child: &Child) -> Exit {
    let mut exit = child.exit();
    let exit = timeout(PATIENCE, exit.wait_for(Option::is_some)).await.expect("in time").expect("an owner");
    exit.clone().expect("waited for")
}

/// Everything a child writes up to its end.
async fn output(command: Command) -> String {
    let mut child = start(command).await;
    let mut stdout = child.take_stdout().expect("untaken");
    let mut text = String::new();
    timeout(PATIENCE, stdout.read_to_string(&mut text)).await.expect("in time").expect("text");
    let exit = ended(&child).await;
    assert!(exit.ending.success(), "{exit:?}");
    text
}

/// Reads a child's stdout line by line.
struct Lines {
    stdout: pipe::Receiver,
    buffer: BytesMut,
    splitter: LineSplitter,
}

impl Lines {
    fn of(child: &mut Child) -> Self {
        let stdout = child.take_stdout().expect("untaken");
        Self { stdout, buffer: BytesMut::new(), splitter: LineSplitter::new(64 << 20) }
    }

    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.splitter.next(&mut self.buffer) {
                let Line::Whole(line) = line else { panic!("{line:?}") };
                return Some(String::from_utf8(line.to_vec()).expect("text"));
            }
            self.buffer.reserve(LineSplitter::READ_BYTES);
            let read = timeout(PATIENCE, self.stdout.read_buf(&mut self.buffer)).await.expect("in time");
            if read.expect("a pipe") == 0 {
                return None;
            }
        }
    }

    async fn pid(&mut self) -> i32 {
        self.next().await.expect("a line").trim().parse().expect("a process id")
    }
}

/// Waits for what no event tells.
pub(in crate::upstream) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// State letter, parent and group of a process.
fn stat(pid: i32) -> Option<(char, i32, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Whether nothing but a zombie of somebody else is left.
fn is_gone(pid: i32) -> bool {
    stat(pid).is_none_or(|(state, _, _)| state == 'Z' || state == 'X')
}

fn is_reaped(pid: i32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

fn every_pid() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").expect("a /proc");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}
