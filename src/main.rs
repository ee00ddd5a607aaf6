//! The `gangway` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    gangway::cli::main()
}
