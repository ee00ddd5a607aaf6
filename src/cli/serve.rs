//! `gangway serve`: everything a configuration file says.

use std::process::ExitCode;

use tracing::warn;

use crate::cli::process::{Hangup, Process, log_ready};
use crate::cli::{CONFIGURATION, FAILURE, ServeArgs};
use crate::config;

/// Serves what the file says until a signal ends it.
#[must_use]
pub fn run(args: &ServeArgs) -> ExitCode {
    let environment = |name: &str| std::env::var(name).ok();
    let loaded = match config::load(&args.config, &environment) {
        Ok(loaded) => loaded,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(CONFIGURATION);
        }
    };
    let process = match Process::prepare(&loaded.config) {
        Ok(process) => process,
        Err(error) => {
            eprintln!("gangway: cannot start: {error}");
            return ExitCode::from(FAILURE);
        }
    };
    let gateway = match process.build(loaded.config) {
        Ok(gateway) => gateway,
        Err(error) => {
            eprintln!("gangway: {error}");
            return ExitCode::from(FAILURE);
        }
    };
    log_ready(&process.logs, &args.config.display().to_string(), &gateway);
    for warning in loaded.warnings.iter().map(String::as_str).chain(gateway.warnings()) {
        warn!(event = "warning", warning);
    }
    process.run(gateway, Hangup::Ignore, |_servers| async { Ok(()) })
}
