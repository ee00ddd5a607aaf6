//! What a client on the official Rust SDK does with the demo server, step by step.
//!
//! Prints `ok NAME` or `FAIL NAME: why` for each step, as the clients in the other languages do.
//!
//! ```text
//! rmcp-client URL
//! ```

#![expect(
    deprecated,
    reason = "the revision under test has what 2026-07-28 gave up"
)]

mod ping;
mod recorder;
mod relay;
mod report;
mod scenario;

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(url) = std::env::args().nth(1) else {
        eprintln!("the URL of the server is missing");
        return ExitCode::from(2);
    };
    match scenario::perform(&url).await {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
