//! The audit log: who called what, how it ended, and why it was refused; one line of JSON an entry.
//!
//! It is apart from the log for operators because it answers to somebody else: nothing is left out by level, every entry
//! has a number, and where it is required an entry is with the kernel before the answer it is about goes out.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::{error, info};

use super::access::{optional, without_quotes};
use super::audit_file::{AuditFile, unwritable};
use super::line::{Format, Line};
use super::session_digest::SessionDigest;
use super::spool::Spool;
use super::timestamp;
use crate::caller::{Peer, Principal};
use crate::config;

/// Longest request id, in characters: as long as any that is served.
const LONGEST_ID: usize = 260;

thread_local! {
    /// The buffers entries of this thread are made in: the fields, the line. Taken out while in use.
    static BUFFERS: Cell<(Vec<u8>, Vec<u8>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditEvent {
    /// A request of a client's in a session, at its end.
    Call,
    /// A request that came to no session, or to none that serves it.
    Refused,
    /// A session was opened.
    SessionOpen,
    /// A session was closed.
    SessionClose,
}

impl AuditEvent {
    fn as_str(self) -> &'static str {
        match self {
            AuditEvent::Call => "call",
            AuditEvent::Refused => "refused",
            AuditEvent::SessionOpen => "session_open",
            AuditEvent::SessionClose => "session_close",
        }
    }
}

/// One entry. What is `None` is left out of its line.
#[derive(Clone, Copy, Debug)]
pub struct AuditEntry<'a> {
    /// What it is about.
    pub event: AuditEvent,
    /// The server's configured name.
    pub server: Option<&'a str>,
    /// Who called, as far as it was known by then.
    pub principal: Option<&'a Principal>,
    /// Where the request came from.
    pub client_addr: Option<Peer>,
    /// The JSON-RPC method.
    pub method: Option<&'a str>,
    /// The tool of a `tools/call`.
    pub tool: Option<&'a str>,
    /// How it ended; none for what is no request.
    pub outcome: Option<&'a str>,
    /// Why it was refused or failed, or the session closed: a word.
    pub reason: Option<&'a str>,
    /// The session.
    pub session: Option<SessionDigest>,
    /// The request's id as it stands in its JSON.
    pub request_id: Option<&'a str>,
}

impl AuditEntry<'_> {
    /// An entry with nothing in it.
    #[must_use]
    pub fn new(event: AuditEvent) -> Self {
        AuditEntry {
            event,
            server: None,
            principal: None,
            client_addr: None,
            method: None,
            tool: None,
            outcome: None,
            reason: None,
            session: None,
            request_id: None,
        }
    }

    fn write(&self, line: &mut Line<'_>) {
        optional(self.server, |server| line.text("server", server));
        optional(self.principal, |principal| line.shown_whole("principal", principal));
        optional(self.client_addr, |address| line.peer("client_addr", address));
        optional(self.method, |method| line.text("method", method));
        optional(self.tool, |tool| line.text("tool", tool));
        optional(self.outcome, |outcome| line.text("outcome", outcome));
        optional(self.reason, |reason| line.text("reason", reason));
        optional(self.session, |session| line.text("session", session.as_str()));
        optional(self.request_id, |id| line.cut_text("request_id", without_quotes(id), LONGEST_ID));
    }
}

/// The entry is not in the file, and the audit log is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAudited;

/// The audit log, if there is one. Clones share it.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Inner>>);

struct Inner {
    path: PathBuf,
    /// The number of the next entry. Held until the entry is in its place, so that entries stand in the order of their
    /// numbers.
    next: Mutex<u64>,
    file: Mutex<AuditFile>,
    /// What waits to be written; `None` where each entry is written before its answer goes out.
    spool: Option<Spool>,
    /// Entries that were to be written at once, and could not be.
    lost: AtomicU64,
    /// Whether the last write failed.
    failing: AtomicBool,
    /// The node tag, from the first entry on.
    node: OnceLock<Arc<str>>,
}

impl Audit {
    /// Opens the file; nothing is written yet.
    ///
    /// # Errors
    /// The file cannot be opened, or the system has no thread to give.
    pub(super) fn open(config: Option<&config::Audit>) -> io::Result<Audit> {
        let Some(config::Audit { path, required }) = config else { return Ok(Audit(None)) };
        let inner = Arc::new(Inner {
            path: path.clone(),
            next: Mutex::new(1),
            file: Mutex::new(AuditFile::open(path)?),
            spool: (!required).then(Spool::new),
            lost: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            node: OnceLock::new(),
        });
        if !required {
            let writing = Arc::clone(&inner);
            thread::Builder::new().name("gangway-audit".to_owned()).spawn(move || writing.write_spooled())?;
        }
        Ok(Audit(Some(inner)))
    }

    /// Whether [`Audit::open`] could do so; nothing is made.
    ///
    /// # Errors
    /// The file cannot be opened, nor made.
    pub fn check(config: &config::Audit) -> io::Result<()> {
        AuditFile::check(&config.path)
    }

    /// Begins with an entry `start`, by which a reader knows that numbers begin anew.
    ///
    /// # Errors
    /// The log is required and cannot be written.
    pub fn begin(&self, node: &Arc<str>) -> io::Result<()> {
        let Some(inner) = &self.0 else { return Ok(()) };
        // A process begins once.
        let _first = inner.node.set(Arc::clone(node));
        let begun = inner.write("start", |_nothing| {});
        begun.map_err(|error| unwritable(&inner.path, &error))
    }

    /// Whether there is one, so that entries are worth gathering.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Writes an entry: at once where the log is required, soon where it is not.
    ///
    /// # Errors
    /// The log is required, and the entry is not in it: what it is about must not be answered.
    pub fn record(&self, entry: &AuditEntry<'_>) -> Result<(), NotAudited> {
        let Some(inner) = &self.0 else { return Ok(()) };
        inner.write(entry.event.as_str(), |line| entry.write(line)).map_err(|_| NotAudited)
    }

    /// Whether requests must be refused: the log is required, and the last entry could not be written. The entry about
    /// the refusal is the next try.
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.spool.is_none() && inner.failing.load(Ordering::Relaxed))
    }

    /// Opens the file again, which may have been moved away. Waits for a disk. Where it cannot be opened the one that is
    /// open stays.
    pub fn reopen(&self) {
        let Some(inner) = &self.0 else { return };
        match AuditFile::open(&inner.path) {
            Ok(file) => *inner.file() = file,
            Err(error) => error!(event = "audit_failed", file = %inner.path.display(), error = %error),
        }
    }

    /// Entries that are in no file.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.as_ref().map_or(0, |inner| inner.dropped())
    }

    /// Ends with an entry `stop`, if it has begun, and waits for what is still to be written, so long at most.
    pub(super) fn end(&self, bound: Duration) {
        let Some(inner) = &self.0 else { return };
        if inner.node.get().is_some() {
            // Where this fails, whoever reads the log misses the entry.
            let _unwritten = inner.write("stop", |_nothing| {});
        }
        if let Some(spool) = &inner.spool {
            spool.close(bound);
        }
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Audit").field(&self.0.as_ref().map(|inner| &inner.path)).finish()
    }
}

impl Inner {
    fn file(&self) -> MutexGuard<'_, AuditFile> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dropped(&self) -> u64 {
        self.lost.load(Ordering::Relaxed) + self.spool.as_ref().map_or(0, Spool::dropped)
    }

    fn write(&self, event: &str, fields: impl FnOnce(&mut Line<'_>)) -> io::Result<()> {
        let (mut part, mut whole) = BUFFERS.take();
        part.clear();
        let mut line = Line::part(&mut part, Format::Json);
        line.moment("ts", timestamp::now());
        if let Some(node) = self.node.get() {
            line.text("node", node);
        }
        line.text("event", event);
        fields(&mut line);
        line.end();
        let written = self.put(&part, &mut whole);
        BUFFERS.set((part, whole));
        written
    }

    /// Gives an entry its number and its place.
    fn put(&self, part: &[u8], whole: &mut Vec<u8>) -> io::Result<()> {
        whole.clear();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        write!(whole, "{{\"seq\":{next}").expect("a Vec takes every write");
        whole.extend_from_slice(part);
        *next += 1;
        if let Some(spool) = &self.spool {
            spool.push(whole);
            return Ok(());
        }
        let written = self.file().append(whole);
        if written.is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        drop(next);
        self.tell(written.as_ref().err());
        written
    }

    /// Says once that the file cannot be written, and once that it can be again.
    fn tell(&self, failure: Option<&io::Error>) {
        // Read first: all is well mostly, and workers would take the value from each other.
        if self.failing.load(Ordering::Relaxed) == failure.is_some()
            || self.failing.swap(failure.is_some(), Ordering::Relaxed) == failure.is_some()
        {
            return;
        }
        match failure {
            Some(error) => error!(event = "audit_failed", file = %self.path.display(), error = %error),
            None => info!(event = "audit_recovered", file = %self.path.display(), lost = self.dropped()),
        }
    }

    /// Writes what waits, until there will be no more. For a thread of its own: it blocks with the disk.
    fn write_spooled(&self) {
        if let Some(spool) = &self.spool {
            spool.write_to(&mut Batches(self), None);
        }
    }
}

/// Whole batches of lines into the file.
struct Batches<'a>(&'a Inner);

impl Write for Batches<'_> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let written = self.0.file().write_some(lines);
        // A pipe that is full is no failure: its reader is slow.
        let failure = written.as_ref().err().filter(|error| error.kind() != io::ErrorKind::WouldBlock);
        self.0.tell(failure);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "audit_test.rs"]
mod tests;
