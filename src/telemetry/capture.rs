//! Sinks for tests of the log.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::config::{Access, LogFormat, LogLevel, Metrics, Telemetry};

/// Keeps what is written.
#[derive(Clone, Default)]
pub(super) struct Capture(Arc<Mutex<Vec<u8>>>);

impl Capture {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no writer panics").clone()).expect("lines are UTF-8")
    }

    pub(super) fn lines(&self) -> Vec<serde_json::Value> {
        self.text().lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }
}

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no reader panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Answers each write by the next step of a script: `Ok(n)` takes at most so many bytes. When the
/// script's sender is gone it takes everything; until then it blocks for the next step.
pub(super) struct Scripted {
    steps: Receiver<io::Result<usize>>,
    taken: Capture,
}

impl Scripted {
    pub(super) fn new() -> (Self, Sender<io::Result<usize>>, Capture) {
        let (sender, steps) = channel();
        let taken = Capture::default();
        (Scripted { steps, taken: taken.clone() }, sender, taken)
    }
}

impl Write for Scripted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = self.steps.recv().unwrap_or(Ok(usize::MAX))?;
        self.taken.write(&bytes[..most.min(bytes.len())])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `[telemetry]` with JSON lines.
pub(super) fn config(level: LogLevel, access: Access) -> Telemetry {
    Telemetry { level, format: LogFormat::Json, access, audit: None, metrics: Metrics { tools: true, max_tools: 50 } }
}
