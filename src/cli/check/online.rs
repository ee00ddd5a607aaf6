//! `gangway check --online`: what a file says against what this machine has.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::issuers;
use crate::config::{Address, Config, Server};

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What keeps the gateway or a server from working.
    pub(super) problems: Vec<String>,
    /// What may be as it should.
    pub(super) warnings: Vec<String>,
    /// What else is worth knowing, for standard output.
    pub(super) report: String,
}

/// Looks for every command, tries every address and asks every issuer.
pub(super) fn look(config: &Config) -> Found {
    let mut found = Found::default();
    for (name, server) in &config.servers {
        if let Some(folder) = server.cwd.as_deref().filter(|folder| !folder.is_dir()) {
            found.problems.push(format!("{name}: cwd {} is no folder", folder.display()));
        }
        let path = server.env.get("PATH").map(OsString::from).or_else(|| std::env::var_os("PATH"));
        if let Err(problem) = find_command(server, &path.unwrap_or_default()) {
            found.problems.push(format!("{name}: {problem}"));
        }
    }
    for address in config.listen.address.iter().chain(&config.admin.address) {
        try_address(address, &mut found);
    }
    issuers::look(&config.auth, &mut found);
    found
}

/// Finds the program as the system will: as it is if it has a slash, else in the folders of `path`.
fn find_command(server: &Server, path: &OsString) -> Result<(), String> {
    let command = &server.command;
    if command.contains('/') {
        return runnable(Path::new(command)).map_err(|reason| format!("command {command} {reason}"));
    }
    let mut reason = None;
    for folder in std::env::split_paths(path) {
        let candidate = folder.join(command);
        match runnable(&candidate) {
            Ok(()) => return Ok(()),
            Err(why) if candidate.exists() => reason = Some(format!("{} {why}", candidate.display())),
            Err(_) => {}
        }
    }
    Err(reason.unwrap_or_else(|| format!("command {command} is not in PATH={}", path.to_string_lossy())))
}

fn runnable(path: &Path) -> Result<(), &'static str> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Err("does not exist"),
        Err(_) => Err("cannot be reached"),
        Ok(metadata) if !metadata.is_file() => Err("is no file"),
        // Root may pass the access check of a file nobody can execute.
        Ok(metadata) if metadata.permissions().mode() & 0o111 == 0 => Err("is not executable"),
        Ok(_) => rustix::fs::access(path, rustix::fs::Access::EXEC_OK).map_err(|_| "is not executable by this user"),
    }
}

/// Binds an address for a moment. A unix socket is not touched: a running gateway may own it.
fn try_address(address: &Address, found: &mut Found) {
    let (host, port) = match address {
        Address::Tcp { host, port } => (host.as_str(), *port),
        Address::Unix(path) => {
            if let Some(folder) = path.parent().filter(|folder| !folder.is_dir()) {
                found.problems.push(format!("{address}: {} is no folder", folder.display()));
            }
            return;
        }
    };
    let resolved: Vec<SocketAddr> = match (host, port).to_socket_addrs() {
        Ok(resolved) => resolved.collect(),
        Err(error) => {
            return found.problems.push(format!("{address}: the host cannot be resolved: {error}"));
        }
    };
    // A machine without IPv6 cannot bind ::1; `localhost` needs one of its two addresses.
    let outcomes: Vec<_> = resolved.iter().map(|socket| TcpListener::bind(socket).map(drop)).collect();
    let missing = |error: &std::io::Error| error.kind() == ErrorKind::AddrNotAvailable;
    let some = outcomes.iter().any(Result::is_ok);
    for error in outcomes.into_iter().filter_map(Result::err).filter(|error| !(some && missing(error))) {
        match error.kind() {
            ErrorKind::AddrInUse => {
                found.warnings.push(format!("{address} is in use; that is as it should be if Gangway runs already"));
            }
            _ => found.problems.push(format!("{address} cannot be bound: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::path::Path;

    use super::{Found, look};
    use crate::config::parse;

    fn look_at(text: &str) -> Found {
        look(&parse(text, "a.toml", Path::new("/"), &|_| None).expect("the configuration is good").config)
    }

    const QUIET: &str = "listen.address = \"127.0.0.1:0\"\nadmin.address = \"off\"\n";

    #[test]
    fn commands_are_looked_for() {
        for (server, expected) in [
            ("command = \"sh\"", None),
            ("command = \"/bin/sh\"", None),
            ("command = \"no-such-program-here\"", Some("is not in PATH=")),
            ("command = \"sh\"\nenv.PATH = \"/nonexistent\"", Some("is not in PATH=/nonexistent")),
            ("command = \"/nonexistent/sh\"", Some("does not exist")),
            ("command = \"/etc/passwd\"", Some("is not executable")),
            ("command = \"/bin\"", Some("is no file")),
            ("command = \"sh\"\ncwd = \"/nonexistent\"", Some("is no folder")),
        ] {
            let found = look_at(&format!("{QUIET}[servers.a]\n{server}\n"));
            match expected {
                None => assert!(found.problems.is_empty(), "{server}: {found:?}"),
                Some(text) => {
                    assert!(found.problems.iter().any(|problem| problem.contains(text)), "{server}: {found:?}")
                }
            }
        }
    }

    #[test]
    fn addresses_are_tried() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("its address");
        let found = look_at(&format!("listen.address = \"{address}\"\nadmin.address = \"unix:/nonexistent/g.sock\"\n"));
        assert!(found.warnings.iter().any(|warning| warning.contains("in use")), "{found:?}");
        assert!(found.problems.iter().any(|problem| problem.contains("/nonexistent is no folder")), "{found:?}");
        drop(taken);
        let found = look_at(&format!(
            "listen.address = \"192.0.2.1:{}\"\nadmin.address = \"off\"\nauth.methods = [\"none\"]\n",
            address.port()
        ));
        assert!(found.problems.iter().any(|problem| problem.contains("cannot be bound")), "{found:?}");
    }
}
