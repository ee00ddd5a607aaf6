//! The command line: what can be typed, and which command it starts.

mod auth;
mod check;
mod demo_server;
mod key;
pub mod name;
mod named_files;
mod picture;
mod process;
mod run;
mod serve;
mod startup;
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Exit status: it went well, also after a clean drain.
pub const OK: u8 = 0;
/// Exit status: something failed while running, or the drain cut calls.
pub const FAILURE: u8 = 1;
/// Exit status: the command line is wrong.
pub const USAGE: u8 = 2;
/// Exit status: the configuration is wrong (`EX_CONFIG` of sysexits.h), so starting again would not help.
pub const CONFIGURATION: u8 = 78;

const EXAMPLES: &str = "\
Gangway puts local MCP servers on the network.

  gangway run npx -y @modelcontextprotocol/server-everything      one server, on this machine
  gangway run --listen 0.0.0.0:8080 uvx mcp-server-time           one server, for other machines (makes an API key)
  gangway serve -c gangway.toml                                   what a configuration file says

`gangway run` alone serves a demo to try a client with. `gangway --help` lists every command.
";

const EXIT_STATUS: &str = "\
Exit status:
  0   it went well, also after a drain that cut no call
  1   something failed while running, or the drain cut calls
  2   the command line is wrong
  78  the configuration is wrong: starting again would not help";

const RUN_NOTES: &str = "\
Flags of gangway stand before CMD; what follows goes to the server as it is.
The server gets your environment, all but GANGWAY_*. On an address that other
machines reach, an API key is made, asked for, and shown once.

Environment:
  GANGWAY_API_KEY  ask for this key, on any address; needed for other machines
                   where there is no terminal to show a new one on
  GANGWAY_NODE     first part of every session id, as for `gangway serve`

Examples:
  gangway run                                                     a demo to try a client with
  gangway run npx -y @modelcontextprotocol/server-everything
  gangway run --listen 0.0.0.0:8080 --env TZ=UTC uvx mcp-server-time";

const SERVE_NOTES: &str = "\
Environment:
  GANGWAY_NODE  first part of every session id: 1 to 16 of a-z and 0-9, so that
                a load balancer in front of several gateways can send each
                Mcp-Session-Id where it belongs. Without it, a start makes one.

Signals:
  TERM  drains: unready first, then no new work, then the end of what still runs
  INT   the same without the pause at its beginning
  HUP   reads FILE again: all of it is taken over, or nothing
  QUIT  writes what stands where to the log and goes on
A second TERM or INT ends everything at once.";

#[derive(Parser)]
#[command(name = "gangway", version, about = "Puts local MCP servers on the network as Streamable HTTP")]
#[command(after_help = EXIT_STATUS)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(RunArgs),
    Serve(ServeArgs),
    Check(CheckArgs),
    #[command(subcommand)]
    Key(KeyCommand),
    #[command(subcommand)]
    Auth(AuthCommand),
    /// Speak MCP on standard input and output: a server to try things with
    DemoServer,
}

/// Serve one server until Ctrl-C; without CMD the built-in demo server
#[derive(Args)]
#[command(override_usage = "gangway run [OPTIONS] [--] [CMD [ARG]...]", after_help = RUN_NOTES)]
pub struct RunArgs {
    /// Address to listen on: host:port or unix:/path [default: localhost:8080]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Name of the server [default: taken from CMD]
    #[arg(long, value_name = "N")]
    pub name: Option<String>,
    /// A variable for the server; may be given several times
    #[arg(long, value_name = "K=V", value_parser = parse_variable)]
    pub env: Vec<(String, String)>,
    /// Address for metrics and health: host:port or unix:/path [default: off]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// Ask for no key: let everybody in who reaches the address
    #[arg(long)]
    pub no_auth: bool,
    /// The server to start, with its arguments
    #[arg(value_names = ["CMD", "ARG"], trailing_var_arg = true)]
    pub command: Vec<String>,
}

/// Serve what a configuration file says
#[derive(Args)]
#[command(after_help = SERVE_NOTES)]
pub struct ServeArgs {
    /// The configuration file
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Check a configuration file and print every URL it serves
#[derive(Args)]
pub struct CheckArgs {
    /// The configuration file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print every key with its value and where that comes from
    #[arg(long)]
    pub explain: bool,
    /// Also look around: are the commands there, can the addresses be bound, what do the issuers offer?
    #[arg(long)]
    pub online: bool,
}

/// Make API keys
#[derive(Subcommand)]
pub enum KeyCommand {
    /// Make an API key: prints it once, and the table to paste into the configuration
    New {
        /// Who or what will use the key
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// Look at who may come in
#[derive(Subcommand)]
pub enum AuthCommand {
    /// Say check by check why a server would let a token in, or not; the token is read from standard input
    Explain(ExplainArgs),
}

/// What `gangway auth explain` is told
#[derive(Args)]
pub struct ExplainArgs {
    /// The configuration file
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// The server that would be asked
    #[arg(long, value_name = "NAME")]
    pub server: String,
}

/// Reads `K=V`.
fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        // The text is not repeated: what stands where K=V should may be the secret alone.
        _ => Err("write NAME=value".to_owned()),
    }
}

/// Parses the command line of the process and runs what it says.
#[must_use]
pub fn main() -> ExitCode {
    if std::env::args_os().len() <= 1 {
        return say(EXAMPLES, OK);
    }
    let command = match CommandLine::try_parse() {
        Ok(line) => line.command,
        Err(error) => {
            // A closed standard output or error is nothing that could still be reported.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { OK });
        }
    };
    match command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Key(KeyCommand::New { name }) => key::new(&name),
        Command::Auth(AuthCommand::Explain(args)) => auth::explain_token(&args),
        Command::DemoServer => demo_server::run(),
    }
}

/// Says on standard error why it ends with `status`.
fn complain(status: u8, why: impl std::fmt::Display) -> ExitCode {
    terminal::show(&format!("error: {why}\n"));
    ExitCode::from(status)
}

/// Writes text to standard output and ends with `status`, or with a failure if nobody could read it.
fn say(text: &str, status: u8) -> ExitCode {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::from(status),
        Err(_) => ExitCode::from(FAILURE),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, CommandFactory, FromArgMatches};

    use super::{CommandLine, RunArgs, ServeArgs};

    fn run(line: &str) -> Result<RunArgs, clap::error::ErrorKind> {
        parse::<RunArgs>(line).map_err(|error| error.kind())
    }

    fn parse<T: Args + FromArgMatches>(line: &str) -> Result<T, clap::Error> {
        let command = T::augment_args(clap::Command::new("run"));
        T::from_arg_matches(&command.try_get_matches_from(line.split(' '))?)
    }

    #[test]
    fn the_definition_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn everything_behind_the_command_belongs_to_it() {
        let args = run("run --name a npx -y server --listen x --no-auth").expect("the line is good");
        assert_eq!(args.command, ["npx", "-y", "server", "--listen", "x", "--no-auth"]);
        assert_eq!((args.name.as_deref(), args.listen, args.no_auth), (Some("a"), None, false));
        let args = run("run --no-auth -- -odd --flag").expect("the line is good");
        assert_eq!(args.command, ["-odd", "--flag"]);
        assert!(run("run").expect("no command is the demo").command.is_empty());
    }

    #[test]
    fn a_mistyped_flag_is_no_command() {
        assert!(matches!(run("run --lisen x npx"), Err(clap::error::ErrorKind::UnknownArgument)));
    }

    #[test]
    fn variables_may_be_several() {
        let args = run("run --env A=1 --env B=x=y cmd").expect("the line is good");
        assert_eq!(args.env, [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "x=y".to_owned())]);
        assert!(run("run --env A cmd").is_err());
    }

    #[test]
    fn serve_needs_its_file() {
        assert_eq!(parse::<ServeArgs>("serve -c a.toml").map(|args| args.config).ok(), Some("a.toml".into()));
        assert!(parse::<ServeArgs>("serve").is_err());
    }
}
