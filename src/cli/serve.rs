//! `gangway serve`: everything a configuration file says.

use std::fmt::Write;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use crate::cli::process::{Hangup, Process, base_url, log_bounds, log_ready, log_warnings, node_tag};
use crate::cli::terminal::show;
use crate::cli::{CONFIGURATION, FAILURE, ServeArgs, complain, named_files};
use crate::config::{self, LogFormat};
use crate::gateway::{BuildError, ConfigSource, Gateway};

/// Serves what the file says until a signal ends it.
#[must_use]
pub fn run(args: &ServeArgs) -> ExitCode {
    let node = match node_tag() {
        Ok(node) => node,
        Err(error) => return complain(CONFIGURATION, error),
    };
    let path = args.config.clone();
    let load = move || config::load(&path, &|name| std::env::var(name).ok());
    let loaded = match load() {
        Ok(loaded) => loaded,
        Err(problems) => {
            show(&format!("{problems}\n"));
            return ExitCode::from(CONFIGURATION);
        }
    };
    let log = loaded.config.telemetry.format;
    let on_terminal = log == LogFormat::Auto && std::io::stderr().is_terminal();
    let process = match Process::prepare(&loaded.config) {
        Ok(process) => process,
        Err(error) => return complain(FAILURE, format_args!("cannot start: {error}")),
    };
    let gateway = match process.build(loaded.config.clone(), node) {
        Ok(gateway) => gateway,
        Err(BuildError::Tls(found)) => {
            if let Some(problems) = named_files::tls_problems(&loaded, &found) {
                show(&format!("{problems}\n"));
            }
            return ExitCode::from(CONFIGURATION);
        }
        Err(error) => return complain(FAILURE, error),
    };
    let file = args.config.display().to_string();
    if on_terminal {
        show(&announcement(&file, &gateway));
    } else {
        log_ready(&process.logs, Some(&file), &gateway);
    }
    log_warnings(&loaded.warnings);
    log_warnings(&gateway.warnings());
    log_bounds(&gateway);
    let source = ConfigSource { file, load: Arc::new(load), asked: Arc::default() };
    process.run(gateway, Hangup::Reload(source), |_servers| async { Ok(()) })
}

/// What a server asks callers for, by the names of its methods.
fn admission(methods: &str) -> String {
    let shown = methods.split(", ").map(|method| match method {
        "api_key" => "API key",
        "oauth" => "access token",
        "mtls" => "client certificate",
        _ => "",
    });
    match shown.collect::<Vec<_>>().join(" or ").as_str() {
        "" => "no authentication".to_owned(),
        shown => format!("{shown} required"),
    }
}

/// What the `ready` event tells scripts, for people: a line for each server.
fn announcement(file: &str, gateway: &Gateway) -> String {
    let mut rows: Vec<(String, String, String)> = gateway
        .endpoints()
        .into_iter()
        .map(|endpoint| {
            let auth = admission(&endpoint.auth);
            (endpoint.name, endpoint.url, auth)
        })
        .collect();
    rows.extend(
        gateway.admin_addresses().iter().map(|address| ("-".to_owned(), base_url(address), "admin".to_owned())),
    );
    let names = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    let urls = rows.iter().map(|(_, url, _)| url.chars().count()).max().unwrap_or(0);
    let mut text = format!("gangway {}   {file}   node {}\n", env!("CARGO_PKG_VERSION"), gateway.node());
    for (name, url, note) in rows {
        writeln!(text, "  {name:names$}  {url:urls$}  {note}").expect("writing to a String cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::admission;

    #[test]
    fn several_methods_are_a_choice() {
        for (methods, said) in [
            ("none", "no authentication"),
            ("api_key", "API key required"),
            ("oauth, mtls", "access token or client certificate required"),
        ] {
            assert_eq!(admission(methods), said);
        }
    }
}
