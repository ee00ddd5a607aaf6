//! The demo server over its own pipes, as a client on this machine would start it.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use crate::lane::Lane;
use crate::process::Process;
use crate::request::{INITIALIZE, INITIALIZED};

/// A child that was shaken hands with.
pub struct Native {
    process: Process,
    output: BufReader<std::process::ChildStdout>,
}

impl Native {
    /// Starts a child and waits for its answer to `initialize`.
    pub fn start() -> io::Result<Native> {
        let mut command = Command::new(crate::GANGWAY);
        command.arg("demo-server").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no stdout"))?;
        let mut native = Native { process: Process::new(child), output: BufReader::new(output) };
        native.answer(INITIALIZE)?;
        native.tell(INITIALIZED)?;
        Ok(native)
    }

    fn tell(&mut self, message: &str) -> io::Result<()> {
        let input = self.process.child.stdin.as_mut().ok_or_else(|| io::Error::other("no stdin"))?;
        input.write_all(format!("{message}\n").as_bytes())
    }

    /// Sends a request and gives the first line that comes back.
    pub fn answer(&mut self, request: &str) -> io::Result<String> {
        self.tell(request)?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.contains("\"result\"") { Ok(line) } else { Err(io::Error::other(format!("no result: {line}"))) }
    }

    /// A lane over its pipes; the child ends with what is returned beside it.
    pub fn into_lane(mut self, request: &str, depth: usize, lines: usize) -> io::Result<(Lane, Process)> {
        let input = self.process.child.stdin.take().ok_or_else(|| io::Error::other("no stdin"))?;
        let output = OwnedFd::from(self.output.into_inner());
        let lane = Lane::pipes(OwnedFd::from(input), output, format!("{request}\n").into_bytes(), depth, lines);
        Ok((lane, self.process))
    }
}
