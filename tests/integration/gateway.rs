//! A running gateway: the real binary in a process group of its own, its log, numbers and processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::PATIENCE;
use crate::child::Process;
use crate::client::Request;
use crate::metrics::Metrics;

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_gangway");

/// How often something that tells no event is looked at again.
const GLANCE: Duration = Duration::from_millis(10);

/// A gateway that is ready. Killed when dropped.
pub struct Gateway {
    process: Child,
    log: Arc<Log>,
    /// What the `ready` event said.
    pub ready: Value,
    directory: Directory,
}

/// A start that ended before `ready`.
#[derive(Debug)]
pub struct Failed {
    pub status: ExitStatus,
    pub stderr: String,
}

impl Gateway {
    /// `gangway serve -c FILE`; fails unless it becomes ready.
    #[track_caller]
    pub fn start(toml: &str) -> Self {
        Self::start_with(toml, |_| {})
    }

    /// As [`Gateway::start`], with a chance to change the command, such as its environment.
    #[track_caller]
    pub fn start_with(toml: &str, change: impl FnOnce(&mut Command)) -> Self {
        Self::try_start(toml, change).unwrap_or_else(|failed| panic!("no start: {failed:#?}"))
    }

    /// As [`Gateway::start_with`], for a start that may fail.
    pub fn try_start(toml: &str, change: impl FnOnce(&mut Command)) -> Result<Self, Failed> {
        let directory = Directory::new();
        let file = directory.path().join("gangway.toml");
        fs::write(&file, with_listeners(toml)).unwrap();
        let mut command = Command::new(BINARY);
        command.arg("serve").arg("-c").arg(file);
        change(&mut command);
        Self::spawn(command, directory)
    }

    /// `gangway run ARGS…` on ports of the system's choice.
    #[track_caller]
    pub fn run(args: &[&str]) -> Self {
        Self::run_with(args, |_| {})
    }

    /// As [`Gateway::run`], with a chance to change the command.
    #[track_caller]
    pub fn run_with(args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(BINARY);
        command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(args);
        change(&mut command);
        Self::spawn(command, Directory::new()).unwrap_or_else(|failed| panic!("no start: {failed:#?}"))
    }

    fn spawn(mut command: Command, directory: Directory) -> Result<Self, Failed> {
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let log = Arc::new(Log::default());
        let stderr = process.stderr.take().unwrap();
        let writer = Arc::clone(&log);
        thread::spawn(move || writer.collect(BufReader::new(stderr)));
        let mut gateway = Self { process, log, ready: Value::Null, directory };
        match gateway.log.wait(|event| event["event"] == "ready") {
            Ok(ready) => {
                gateway.ready = ready;
                Ok(gateway)
            }
            Err(Silence::Ended) => Err(Failed { status: gateway.process.wait().unwrap(), stderr: gateway.stderr() }),
            Err(Silence::TooLong) => panic!("not ready within {PATIENCE:?}"),
        }
    }

    /// Puts another configuration into its file and asks for it by HUP; what the gateway says of it.
    #[track_caller]
    pub fn reload(&self, toml: &str) -> Value {
        // The keys file is told of by the same names, with the number of its keys or its own path.
        let file = self.config_file();
        let told = || -> Vec<Value> {
            let is_told = |event: &Value| {
                matches!(event["event"].as_str(), Some("reload" | "reload_failed"))
                    && event["config"] == file.to_str().unwrap()
            };
            self.events().into_iter().filter(is_told).collect()
        };
        fs::write(&file, with_listeners(toml)).unwrap();
        let before = told().len();
        self.signal(Signal::HUP);
        await_that("an answer to HUP", || told().get(before).cloned())
    }

    /// The file it was started with.
    pub fn config_file(&self) -> PathBuf {
        self.directory.path().join("gangway.toml")
    }

    /// The first address it serves clients on.
    #[track_caller]
    pub fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    /// Every address it serves clients on.
    #[track_caller]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let listen = self.ready["listen"].as_array().unwrap_or_else(|| panic!("{}", self.ready));
        listen.iter().map(|address| address.as_str().unwrap().parse().unwrap()).collect()
    }

    /// The admin listener's address.
    #[track_caller]
    pub fn admin(&self) -> SocketAddr {
        let admin = self.ready["admin"].as_str().unwrap_or_else(|| panic!("{}", self.ready));
        admin.parse().unwrap()
    }

    /// A directory for files of this test, removed with the gateway.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Everything it wrote to stderr so far.
    pub fn stderr(&self) -> String {
        self.log.lock().lines.join("\n")
    }

    /// Every JSON log line so far.
    pub fn events(&self) -> Vec<Value> {
        self.log.lock().events.clone()
    }

    /// The first log event of this name that matches, past or to come.
    #[track_caller]
    pub fn await_event(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        match self.log.wait(|event| event["event"] == name && wanted(event)) {
            Ok(event) => event,
            Err(silence) => {
                let last = self.log.lock().lines.iter().rev().take(10).rev().cloned().collect::<Vec<_>>().join("\n");
                panic!("no log event {name} that matches: {silence:?}; the last lines:\n{last}")
            }
        }
    }

    /// Waits until this many log events of this name match.
    #[track_caller]
    pub fn await_events(&self, name: &str, count: usize, wanted: impl Fn(&Value) -> bool) {
        let matches = |event: &&Value| event["event"] == name && wanted(event);
        await_that(&format!("{count} log events {name}"), || {
            (self.events().iter().filter(matches).count() >= count).then_some(())
        });
    }

    /// Scrapes the numbers.
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let response = Request::get("/metrics").send(self.admin());
        assert_eq!(response.status(), 200, "{response:?}");
        Metrics::parse(response.text())
    }

    /// Scrapes until the value (zero for a series not there) is as wanted; returns it.
    #[track_caller]
    pub fn await_metric(&self, name: &str, labels: &[(&str, &str)], wanted: impl Fn(f64) -> bool) -> f64 {
        await_that(&format!("metric {name}{labels:?}"), || {
            Some(self.metrics().count(name, labels)).filter(|value| wanted(*value))
        })
    }

    /// Every process that descends from it, zombies included.
    pub fn descendants(&self) -> Vec<Process> {
        Process::descendants(self.pid())
    }

    /// Waits until it has this many descendants.
    #[track_caller]
    pub fn await_descendants(&self, count: usize) -> Vec<Process> {
        await_that(&format!("{count} descendants"), || {
            Some(self.descendants()).filter(|processes| processes.len() == count)
        })
    }

    /// How many descriptors it holds.
    pub fn fd_count(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count)
    }

    /// Its resident memory in bytes.
    pub fn rss(&self) -> u64 {
        self.status_field("VmRSS:") * 1024
    }

    /// How many threads it has.
    pub fn threads(&self) -> u64 {
        self.status_field("Threads:")
    }

    fn status_field(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()).unwrap().parse().unwrap()
    }

    /// Sends a signal to the gateway alone.
    pub fn signal(&self, signal: Signal) {
        kill_process(pid(self.process.id()), signal).unwrap();
    }

    /// Waits for its end.
    #[track_caller]
    pub fn await_exit(&mut self) -> ExitStatus {
        await_that("the gateway's end", || self.process.try_wait().unwrap())
    }

    /// TERM, then the exit code; fails if a signal ended it.
    #[track_caller]
    pub fn stop(&mut self) -> i32 {
        self.signal(Signal::TERM);
        let status = self.await_exit();
        status.code().unwrap_or_else(|| panic!("ended by signal {:?}", status.signal()))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Found before the kill, after which they would be orphans.
        let orphans = self.descendants();
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = kill_process_group(pid(self.process.id()), Signal::KILL);
            let _ = self.process.wait();
        }
        for orphan in orphans {
            orphan.kill();
        }
        if thread::panicking() {
            let lines = &self.log.lock().lines;
            let last = &lines[lines.len().saturating_sub(60)..];
            eprintln!("--- last lines of the gateway ---\n{}\n---", last.join("\n"));
        }
    }
}

/// Looks again until `found`; for what announces itself by no event. Fails after [`PATIENCE`].
#[track_caller]
pub fn await_that<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        thread::sleep(GLANCE);
    }
}

/// The process id as rustix has it.
pub fn pid(id: u32) -> Pid {
    Pid::from_raw(id.try_into().unwrap()).unwrap()
}

/// Adds the listeners a configuration does not name, so that every test has ports of its own.
pub fn with_listeners(toml: &str) -> String {
    let mut text = toml.to_owned();
    for table in ["listen", "admin"] {
        let parsed = text.parse::<toml::Table>();
        // What is not TOML stays as it is: a test of just that.
        let Ok(parsed) = parsed else { return text };
        let has_address = parsed.get(table).is_some_and(|table| table.get("address").is_some());
        let header = format!("[{table}]");
        let address = "address = \"127.0.0.1:0\"";
        if has_address {
            continue;
        }
        if text.lines().any(|line| line.trim() == header) {
            text = text.replacen(&header, &format!("{header}\n{address}"), 1);
        } else if parsed.contains_key(table) {
            text = format!("{table}.{address}\n{text}");
        } else {
            text = format!("{text}\n{header}\n{address}\n");
        }
    }
    text
}

/// What a gateway wrote to stderr.
#[derive(Default)]
struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Default)]
struct LogState {
    lines: Vec<String>,
    /// The lines that are JSON.
    events: Vec<Value>,
    ended: bool,
}

/// Why an event did not come.
#[derive(Debug)]
enum Silence {
    /// The log ended first.
    Ended,
    /// It did not come within [`PATIENCE`].
    TooLong,
}

impl Log {
    fn lock(&self) -> std::sync::MutexGuard<'_, LogState> {
        self.state.lock().unwrap()
    }

    fn collect(&self, mut stderr: impl BufRead) {
        let mut bytes = Vec::new();
        while stderr.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            let mut state = self.lock();
            state.events.extend(line.parse::<Value>().ok().filter(Value::is_object));
            state.lines.push(line);
            drop(state);
            self.changed.notify_all();
            bytes.clear();
        }
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn wait(&self, wanted: impl Fn(&Value) -> bool) -> Result<Value, Silence> {
        let began = Instant::now();
        let mut looked_at = 0;
        let mut state = self.lock();
        loop {
            if let Some(found) = state.events[looked_at..].iter().find(|event| wanted(event)) {
                return Ok(found.clone());
            }
            looked_at = state.events.len();
            let left = PATIENCE.checked_sub(began.elapsed()).ok_or(Silence::TooLong)?;
            if state.ended {
                return Err(Silence::Ended);
            }
            (state, _) = self.changed.wait_timeout(state, left).unwrap();
        }
    }
}

/// A directory that goes with its owner.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gangway-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn listeners_are_added_only_where_none_is_named() {
    let parse = |text: &str| with_listeners(text).parse::<toml::Table>().unwrap();
    let any = "127.0.0.1:0";
    for text in ["", "[servers.a]\ncommand = \"x\"", "[listen]\npage = false", "listen.page = false"] {
        let table = parse(text);
        assert_eq!(table["listen"]["address"].as_str(), Some(any), "{text}");
        assert_eq!(table["admin"]["address"].as_str(), Some(any), "{text}");
    }
    let table = parse("[admin]\naddress = \"off\"\n[listen]\naddress = [\"localhost:0\"]");
    assert_eq!(table["admin"]["address"].as_str(), Some("off"));
    assert!(table["listen"]["address"].is_array());
}
