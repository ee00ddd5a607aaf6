//! Children: their configuration, what they wait for, what they read, and processes as /proc shows them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::gateway::{BINARY, Directory, await_that, pid};

/// The scripted child.
pub const FAKE_CHILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/fake_child.py");

/// One `[servers.NAME]` table.
#[derive(Clone, Debug)]
pub struct Server {
    name: String,
    command: String,
    args: Vec<String>,
    keys: Vec<String>,
}

impl Server {
    /// The scripted child; [`Server::arg`] chooses its faults.
    pub fn fake(name: &str) -> Self {
        // Isolated, without site packages: it starts in half the time.
        Self::of(name, "python3").arg("-I").arg("-S").arg(FAKE_CHILD)
    }

    /// The built-in demo server.
    pub fn demo(name: &str) -> Self {
        Self::of(name, BINARY).arg("demo-server")
    }

    /// Any command.
    pub fn of(name: &str, command: &str) -> Self {
        Self { name: name.to_owned(), command: command.to_owned(), args: vec![], keys: vec![] }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<str>) -> Self {
        self.args.push(argument.as_ref().to_owned());
        self
    }

    /// Adds an option with its value.
    pub fn option(self, name: &str, value: impl AsRef<Path>) -> Self {
        self.arg(name).arg(value.as_ref().to_str().unwrap())
    }

    /// Adds a line to the table, such as `mode = "shared"` or `timeouts.start = "300ms"`.
    pub fn key(mut self, line: &str) -> Self {
        self.keys.push(line.to_owned());
        self
    }

    /// The command, to be started without a gateway.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.command);
        command.args(&self.args);
        command
    }

    /// The table.
    pub fn toml(&self) -> String {
        let Self { name, command, args, keys } = self;
        // JSON's strings and arrays of them are TOML's too, but for `$`, which begins a variable.
        let command = Value::from(command.as_str()).to_string().replace('$', "$$");
        let args = Value::from(args.clone()).to_string().replace('$', "$$");
        let keys = keys.join("\n");
        format!("[servers.{name}]\ncommand = {command}\nargs = {args}\n{keys}\n")
    }
}

/// Something a child waits for until the test opens it: a named pipe, so nobody polls.
pub struct Gate {
    directory: Directory,
    open: Option<File>,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        let gate = Self { directory: Directory::new(), open: None };
        mknodat(CWD, gate.path(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        gate
    }

    /// What to tell the child, such as `--wait-for PATH`.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("gate")
    }

    /// Lets through whoever waits and whoever comes later.
    pub fn open(&mut self) {
        // For reading too, so that opening does not wait for the child; kept, so that it stays open
        // and its byte stays in it.
        let mut pipe = OpenOptions::new().read(true).write(true).open(self.path()).unwrap();
        pipe.write_all(b".").unwrap();
        self.open = Some(pipe);
    }
}

/// What the children of a server read, byte for byte: one file each, written by `--record DIRECTORY`.
pub struct Record {
    directory: Directory,
}

impl Record {
    pub fn new() -> Self {
        Self { directory: Directory::new() }
    }

    /// What to tell the child.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What each child read so far, by process id.
    pub fn all(&self) -> BTreeMap<u32, Vec<u8>> {
        let entries = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap());
        let read = entries.map(|entry| {
            let id = entry.file_name().to_str().unwrap().parse().unwrap();
            (id, fs::read(entry.path()).unwrap())
        });
        read.collect()
    }

    /// Every whole line any child read so far.
    pub fn lines(&self) -> Vec<String> {
        let whole = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect()
        };
        self.all().values().flat_map(|bytes| -> Vec<String> { whole(bytes) }).collect()
    }

    /// Waits until a child has read a message that matches; returns it.
    #[track_caller]
    pub fn await_message(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        await_that("a message to the child", || {
            let lines = self.lines();
            let messages = lines.iter().filter_map(|line| line.parse::<Value>().ok());
            messages.into_iter().find(|message| wanted(message))
        })
    }
}

/// A process, told apart from a later one of the same number by when it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    pub parent: u32,
    pub group: u32,
    /// `Z` is a zombie, `T` stopped.
    pub state: char,
    /// In clock ticks since boot.
    pub began: u64,
    /// Name of the executable, cut at 15 bytes.
    pub name: String,
}

impl Process {
    /// The process of this number, if there is one.
    pub fn of(id: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name may hold anything, parentheses too.
        let (head, rest) = stat.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        let fields: Vec<_> = rest.split_whitespace().collect();
        Some(Self {
            id,
            parent: fields[1].parse().ok()?,
            group: fields[2].parse().ok()?,
            state: fields[0].chars().next()?,
            began: fields[19].parse().ok()?,
            name: name.to_owned(),
        })
    }

    /// Every process there is.
    pub fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter_map(Self::of).collect()
    }

    /// Every process below this one.
    pub fn descendants(id: u32) -> Vec<Self> {
        let all = Self::all();
        let mut family = vec![id];
        let mut found = Vec::new();
        while let Some(parent) = family.pop() {
            for process in all.iter().filter(|process| process.parent == parent) {
                family.push(process.id);
                found.push(process.clone());
            }
        }
        found
    }

    /// Every process with this argument, such as the `--mark WORD` of a scripted child and all it starts.
    pub fn with_argument(argument: &str) -> Vec<Self> {
        let has = |process: &Self| {
            let line = fs::read(format!("/proc/{}/cmdline", process.id)).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
        };
        Self::all().into_iter().filter(has).collect()
    }

    /// Whether this very process still runs; a zombie does not.
    pub fn is_alive(&self) -> bool {
        Self::of(self.id).is_some_and(|now| now.began == self.began && now.state != 'Z')
    }

    /// Sends KILL, unless the process is gone.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Sends a signal, unless the process is gone.
    pub fn signal(&self, signal: Signal) {
        if self.is_alive() {
            let _ = kill_process(pid(self.id), signal);
        }
    }
}
