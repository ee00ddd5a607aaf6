//! Standard error, and on a terminal one line of it that is rewritten in place.

use std::io::{IsTerminal, Write};

/// Columns of a terminal that does not tell.
const USUAL_COLUMNS: usize = 80;

/// A terminal on standard error.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// Whether the cursor can be moved back within a line.
    rewrites: bool,
}

impl Terminal {
    /// The terminal, if standard error is one.
    #[must_use]
    pub fn of_stderr() -> Option<Terminal> {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        std::io::stderr().is_terminal().then_some(Terminal { rewrites: !dumb })
    }

    /// A line to rewrite, if the cursor can be moved back.
    #[must_use]
    pub fn line(self) -> Option<RewrittenLine> {
        self.rewrites.then(|| RewrittenLine(()))
    }
}

/// A line that is shown for the time being; dropping it takes it away.
pub struct RewrittenLine(());

impl RewrittenLine {
    /// Puts `line` in the place of the one before. The cursor is left at its beginning, so that whatever else comes,
    /// such as a log line, overwrites it.
    pub fn rewrite(&mut self, line: &str) {
        // A line that wraps could not be rewritten.
        let line: String = line.chars().take(columns().saturating_sub(1)).collect();
        show(&format!("\r\x1b[K{line}\r"));
    }
}

impl Drop for RewrittenLine {
    fn drop(&mut self) {
        show("\r\x1b[K");
    }
}

/// Writes to standard error as it is, in one piece. A closed standard error is nothing that could still be reported.
pub fn show(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(USUAL_COLUMNS)
}
