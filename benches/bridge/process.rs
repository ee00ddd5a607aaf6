//! A process under measurement, ended with its owner.

use std::fs;
use std::io;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a process may take to end when asked.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process of ours: asked to end when dropped, killed if it does not.
pub struct Process {
    /// The process itself.
    pub child: Child,
}

impl Process {
    /// Takes it over.
    pub fn new(child: Child) -> Process {
        Process { child }
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> io::Result<u64> {
        Ok(self.status("VmRSS:")? * 1024)
    }

    /// Threads it has.
    pub fn threads(&self) -> io::Result<u64> {
        self.status("Threads:")
    }

    /// Descriptors it holds.
    pub fn descriptors(&self) -> io::Result<u64> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count() as u64)
    }

    /// Processes it started that were not waited for.
    pub fn children(&self) -> io::Result<u64> {
        let mut count = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread that ends in between has no children left.
            let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
            count += children.split_whitespace().count() as u64;
        }
        Ok(count)
    }

    fn status(&self, name: &str) -> io::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok());
        number.ok_or_else(|| io::Error::other(format!("no {name} in /proc")))
    }

    fn ended_within(&mut self, patience: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < patience {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _gone = kill_process(Pid::from_child(&self.child), Signal::INT);
        if !self.ended_within(PATIENCE) {
            let _gone = self.child.kill();
            let _gone = self.child.wait();
        }
    }
}
