//! `gangway demo-server`: a small, complete MCP server on stdio, for a first try and for measuring.
//!
//! It speaks 2024-11-05, 2025-03-26, 2025-06-18 and 2025-11-25 and needs nothing but the standard
//! library and serde_json. One thread reads stdin and answers everything that is quick, several
//! answers in one write when a backlog is waiting; one more thread, started on first use, is the
//! clock of all `slow` calls. Requests to the client (sampling, elicitation, roots, ping) are kept
//! as continuations, so that no thread waits for a person.
//!
//! ```text
//! stdin -> lines -> echo (hot path, spliced)
//!                \-> message -> server -> tools / resources / prompts -> reply -> output -> stdout
//!                                     \-> slow (clock thread) -----------/
//! ```

mod ask;
mod catalogue;
mod echo;
mod lines;
mod message;
mod output;
mod prompts;
mod reply;
mod resources;
mod server;
mod session;
mod slow;
mod tools;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;

use lines::Lines;
use output::Output;
use server::Server;

/// Serves MCP on stdin and stdout until stdin ends or stdout breaks.
///
/// Exit status 0 in both cases: each is how a client stops a stdio server
/// (lifecycle, "Shutdown"). Any other failure to read or write is reported on stderr with status 1.
pub fn run() -> ExitCode {
    match serve_stdio() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gangway demo-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_stdio() -> io::Result<()> {
    // Duplicates of the descriptors, because the standard handles add a buffer and a lock of their own.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    serve(input, Arc::new(Output::new(Box::new(output))))
}

/// Answers every line of `input`; returns at its end.
fn serve(input: impl Read, output: Arc<Output>) -> io::Result<()> {
    let mut lines = Lines::new(input);
    let mut server = Server::new(Arc::clone(&output));
    while let Some(line) = lines.next()? {
        server.receive(line);
        if !lines.has_next() {
            output.flush()?;
        }
    }
    output.flush()
}
