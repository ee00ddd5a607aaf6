//! Why a server did not start, in the operator's words.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use crate::config;
use crate::server::signs;
use crate::telemetry::mask_secrets;
use crate::upstream::scout::ScoutFailure;
use crate::upstream::{Ending, Exit, SpawnFailure, environment};

/// Longest part of a line on stdout that is quoted, in characters.
const QUOTED: usize = 120;

/// What went wrong with a start, for the operator: never for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// What happened: an exit status, a signal, an error of the system.
    pub what: String,
    /// The child's last lines on stderr, oldest first, secrets masked. Control characters are still in them.
    pub stderr: Vec<String>,
    /// What to do about it, where that can be told.
    pub hint: Option<String>,
}

impl Diagnosis {
    /// Looks at a failure of the server `name`.
    #[must_use]
    pub fn of(failure: &ScoutFailure, name: &str, server: &config::Server) -> Diagnosis {
        let given: Vec<OsString> = environment(server, std::env::vars_os()).into_iter().map(|(name, _)| name).collect();
        let variables = Variables {
            server: name,
            inherited: server.env_inherit,
            is_given: &|name| given.iter().any(|given| given == name),
            is_own: &|name| std::env::var_os(name).is_some(),
        };
        let lines = stderr_of(failure);
        Diagnosis {
            what: what(failure, server),
            hint: hint(failure, server, &lines, &variables),
            stderr: lines.iter().map(|line| mask_secrets(line).into_owned()).collect(),
        }
    }
}

/// What the child was given of the gateway's environment.
struct Variables<'a> {
    server: &'a str,
    /// Whether it gets everything but the gateway's own variables.
    inherited: bool,
    is_given: &'a dyn Fn(&OsStr) -> bool,
    is_own: &'a dyn Fn(&OsStr) -> bool,
}

fn stderr_of(failure: &ScoutFailure) -> Arc<[String]> {
    match failure {
        ScoutFailure::Exited { exit: Some(exit), .. } => Arc::clone(&exit.stderr),
        ScoutFailure::Silent { stderr, .. } => Arc::clone(stderr),
        _ => Arc::from([]),
    }
}

fn what(failure: &ScoutFailure, server: &config::Server) -> String {
    match failure {
        // The hint of the error itself is told apart from it.
        ScoutFailure::Spawn(error) => {
            let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            format!("cannot start {}: {source}", server.command)
        }
        other => other.to_string(),
    }
}

fn hint(
    failure: &ScoutFailure,
    server: &config::Server,
    stderr: &[String],
    variables: &Variables<'_>,
) -> Option<String> {
    match failure {
        ScoutFailure::Spawn(error) => {
            let missing = matches!(error.failure(), SpawnFailure::NotFound(_));
            let source = missing.then(|| comes_with(&server.command)).flatten();
            Some([error.hint(), source].into_iter().flatten().collect::<Vec<_>>().join("; "))
                .filter(|hint| !hint.is_empty())
        }
        ScoutFailure::Exited { exit, bad_line } => variables
            .missing(stderr, true)
            .or_else(|| signs::remedy(stderr))
            .or_else(|| variables.missing(stderr, false))
            .or_else(|| without_stdin(server))
            .or_else(|| bad_line.as_deref().map(about_line))
            .or_else(|| about_exit(exit.as_ref())),
        ScoutFailure::Silent { bad_line, .. } => bad_line
            .as_deref()
            .map(about_line)
            .or_else(|| without_stdin(server))
            .or_else(|| signs::remedy(stderr))
            .or_else(|| {
                Some(
                    "is it an MCP server that speaks on stdin and stdout? Some need an argument such as stdio"
                        .to_owned(),
                )
            }),
        ScoutFailure::NoSlot | ScoutFailure::Refused(_) => None,
    }
}

/// What brings the usual starters of servers.
fn comes_with(command: &str) -> Option<String> {
    let (program, source) = match command.rsplit('/').next().unwrap_or(command) {
        program @ ("npx" | "npm" | "node") => (program, "Node.js (https://nodejs.org)"),
        program @ ("uvx" | "uv") => (program, "uv (https://docs.astral.sh/uv)"),
        program @ ("bunx" | "bun") => (program, "Bun (https://bun.sh)"),
        _ => return None,
    };
    Some(format!("{program} comes with {source}"))
}

/// A container gets no stdin unless it is asked for.
fn without_stdin(server: &config::Server) -> Option<String> {
    let program = server.command.rsplit('/').next().unwrap_or(&server.command);
    if !matches!(program, "docker" | "podman" | "nerdctl") || server.args.first().is_none_or(|arg| arg != "run") {
        return None;
    }
    let interactive =
        |arg: &String| arg == "--interactive" || (arg.starts_with('-') && !arg.starts_with("--") && arg.contains('i'));
    (!server.args.iter().any(interactive))
        .then(|| format!("a container has no stdin unless it is asked for: write {program} run -i"))
}

/// A line on stdout that was no message, and what it tells of the program.
fn about_line(line: &str) -> String {
    let shown: String = mask_secrets(line.trim_end()).chars().take(QUOTED).collect();
    let lower = line.to_ascii_lowercase();
    let remedy = if lower.starts_with("content-length:") {
        "it frames its messages as language servers do; MCP's stdio wants one line each"
    } else if ["http://", "https://", "listening", " port "].iter().any(|word| lower.contains(word)) {
        "it seems to serve HTTP by itself; look for an option such as stdio or --transport stdio"
    } else {
        "stdout is for messages only; whatever else it has to say belongs on stderr"
    };
    format!("on stdout it wrote \"{shown}\", which is no JSON-RPC message: {remedy}")
}

fn about_exit(exit: Option<&Exit>) -> Option<String> {
    let exit = exit?;
    let hint = match exit.ending {
        Ending::OutOfMemory => "memory ran out: give the machine or the control group more, or it less",
        Ending::Signal { number: libc::SIGKILL, .. } => {
            "somebody killed it: most often that is the kernel, out of memory (see dmesg)"
        }
        Ending::Signal { number: libc::SIGILL, .. } => "it was built for another processor than this one",
        Ending::Status(127) => "a program that it starts is not in PATH",
        Ending::Status(126) => "a program that it starts may not be executed",
        Ending::Status(0) if exit.stderr.is_empty() => {
            "it ended as if all were done: is it an MCP server, and does it want an argument such as stdio?"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

impl Variables<'_> {
    /// A variable that the child names in its complaint and does not have. `own` asks for those that the gateway has
    /// and keeps to itself, which is certain; else for those that nobody set, which is a guess from the words around.
    fn missing(&self, stderr: &[String], own: bool) -> Option<String> {
        let absent = |name: &&str| !(self.is_given)(OsStr::new(name)) && (self.is_own)(OsStr::new(name)) == own;
        let mut lines = stderr.iter().filter(|line| own || complains_of_a_variable(line));
        let name = lines.find_map(|line| names(line).find(absent))?;
        let server = self.server;
        Some(match (own, self.inherited) {
            (true, true) => {
                format!("{name} is one of the gateway's own variables, which are not passed on: say --env {name}=…")
            }
            (true, false) => {
                format!(
                    "it names {name}, which is set here and not passed on: add env_pass = [\"{name}\"] to [servers.{server}]"
                )
            }
            (false, true) => {
                format!("it seems to need {name}, which is not set: say --env {name}=… or export it first")
            }
            (false, false) => {
                format!("it seems to need {name}, which is not set: write env.{name} = \"…\" in [servers.{server}]")
            }
        })
    }
}

fn complains_of_a_variable(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    ["environment", "variable", "not set", "be set", "required", "missing", "keyerror", "undefined", "not provided"]
        .iter()
        .any(|word| lower.contains(word))
}

/// Words that look like variables. One without an underscore is as likely any other word in capitals.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.split(move |c: char| !is_part(c)).filter(|word| {
        word.len() >= 4
            && word.contains('_')
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
            // Codes of Node's errors.
            && !word.starts_with("ERR_")
            && !word.ends_with("_NOT_FOUND")
    })
}

#[cfg(test)]
#[path = "diagnosis_test.rs"]
mod tests;
