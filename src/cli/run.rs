//! `gangway run`: one server, said by flags.

use std::path::Path;
use std::process::ExitCode;

use crate::auth::{RunKey, RunKeyError, run_key};
use crate::cli::picture::Picture;
use crate::cli::process::{Hangup, Process, base_url, log_bounds, log_ready, log_warnings, node_tag};
use crate::cli::startup::Startup;
use crate::cli::terminal::{Terminal, show};
use crate::cli::{CONFIGURATION, FAILURE, RunArgs, USAGE, complain, name};
use crate::config::{Config, Loaded, LogFormat, RunOptions};
use crate::gateway::{Gateway, NodeTag};

/// The variable that gives a run its key.
const KEY_VARIABLE: &str = "GANGWAY_API_KEY";

/// A run that is decided on, before anything is started.
struct Plan {
    loaded: Loaded,
    key: RunKey,
    node: NodeTag,
}

/// Serves one server until a signal ends it, or until it turns out not to start.
#[must_use]
pub fn run(args: &RunArgs) -> ExitCode {
    let terminal = Terminal::of_stderr();
    let (options, starting) = match options(args) {
        Ok(options) => options,
        Err(error) => return complain(FAILURE, format_args!("cannot start: {error}")),
    };
    let Plan { loaded, key, node } = match plan(options, terminal.is_some()) {
        Ok(plan) => plan,
        Err(status) => return status,
    };
    let Loaded { mut config, warnings, .. } = loaded;
    if terminal.is_some() {
        config.telemetry.format = LogFormat::Text;
    }
    let process = match Process::prepare(&config) {
        Ok(process) => process,
        Err(error) => return complain(FAILURE, format_args!("cannot start: {error}")),
    };
    let gateway = match process.build(config, node) {
        Ok(gateway) => gateway,
        Err(error) => return complain(FAILURE, error),
    };
    let warnings: Vec<String> = warnings.into_iter().chain(gateway.warnings()).collect();
    let hush = terminal.is_some().then(|| process.logs.hush());
    if terminal.is_none() {
        log_ready(&process.logs, None, &gateway);
        log_warnings(&warnings);
        log_bounds(&gateway);
    }
    let picture = picture(&gateway, &key, warnings, starting);
    let startup = Startup { picture, terminal, hush };
    process.run(gateway, Hangup::Drain, |servers| startup.follow(servers))
}

/// What the flags say, and the words for what is being started.
fn options(args: &RunArgs) -> std::io::Result<(RunOptions, String)> {
    let (command, arguments, derived, starting) = match args.command.split_first() {
        Some((command, arguments)) => {
            let program = command.rsplit('/').next().unwrap_or(command).to_owned();
            (command.clone(), arguments.to_vec(), name::server_name(command, arguments), program)
        }
        None => {
            let own = std::env::current_exe()?.to_string_lossy().into_owned();
            (own, vec!["demo-server".to_owned()], "demo".to_owned(), "the built-in demo server".to_owned())
        }
    };
    let options = RunOptions {
        name: args.name.clone().unwrap_or(derived),
        command,
        args: arguments,
        listen: args.listen.clone(),
        env: args.env.clone(),
        admin: args.admin.clone(),
        no_auth: args.no_auth,
        key_hash: None,
    };
    Ok((options, starting))
}

/// Decides everything that the command line and the environment decide.
fn plan(mut options: RunOptions, on_terminal: bool) -> Result<Plan, ExitCode> {
    let here = std::env::current_dir().map_err(|error| {
        complain(FAILURE, format_args!("the current directory is gone: {error}; change to one that exists"))
    })?;
    let node = node_tag().map_err(|error| complain(CONFIGURATION, error))?;
    let key = decide_key(&options, &here, on_terminal).map_err(|error| {
        let status = if matches!(error, RunKeyError::Random(_)) { FAILURE } else { CONFIGURATION };
        complain(status, error)
    })?;
    options.key_hash = key.hash();
    let mut loaded = Config::for_run(&options, &here).map_err(|problems| {
        problems.iter().for_each(|problem| show(&format!("error: {problem}\n")));
        ExitCode::from(USAGE)
    })?;
    loaded.warnings.extend(misplaced(&options.args));
    Ok(Plan { loaded, key, node })
}

/// A flag of ours among the server's arguments is a slip of the pen more often than not.
fn misplaced(args: &[String]) -> Option<String> {
    let flag = args.iter().map(|arg| arg.split('=').next().unwrap_or(arg));
    let flag = flag.into_iter().find(|flag| matches!(*flag, "--listen" | "--no-auth" | "--admin"))?;
    Some(format!("{flag} stands behind CMD and goes to the server: flags of gangway stand before it"))
}

fn decide_key(options: &RunOptions, here: &Path, on_terminal: bool) -> Result<RunKey, RunKeyError> {
    let given = std::env::var_os(KEY_VARIABLE).map(|value| value.to_string_lossy().into_owned());
    run_key(options.stays_on_this_machine(here), options.no_auth, on_terminal, given)
}

fn picture(gateway: &Gateway, key: &RunKey, warnings: Vec<String>, starting: String) -> Picture {
    let endpoint = gateway.endpoints().into_iter().next().expect("a run has one server");
    let admin = gateway.admin_addresses().first().map(base_url);
    Picture::new(endpoint, gateway.addresses(), admin, key, warnings, starting)
}
