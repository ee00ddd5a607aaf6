//! The configuration of `gangway run`.

use std::path::Path;

use super::super::{Config, Loaded, Method, Problems, Required, RunOptions};
use super::good;

fn run(options: RunOptions) -> Result<Loaded, Problems> {
    Config::for_run(&options, Path::new("/home/me"))
}

fn options() -> RunOptions {
    RunOptions { name: "files".to_owned(), command: "npx".to_owned(), ..RunOptions::default() }
}

#[test]
fn a_run_has_the_defaults_of_every_file() {
    let loaded = run(RunOptions { args: vec!["-y".to_owned(), "$${x} ${HOME}".to_owned()], ..options() });
    let config = loaded.expect("the flags are good").config;
    let file = good("admin.address = \"off\"\n[servers.files]\ncommand = \"npx\"\npath = \"/mcp\"\n").config;
    let server = &config.servers["files"];
    assert_eq!(format!("{config:?}"), format!("{file:?}"));
    assert_eq!(format!("{:?}", server.pool), format!("{:?}", file.servers["files"].pool));
    assert_eq!(format!("{:?}", server.timeouts), format!("{:?}", file.servers["files"].timeouts));
    assert_eq!((server.path.as_str(), server.required, server.env_inherit), ("/mcp", Required::Yes, true));
    assert!(!file.servers["files"].env_inherit);
    // A shell has filled in what it wanted to: arguments pass as they are.
    assert_eq!(server.args, ["-y", "$${x} ${HOME}"]);
    assert!(config.admin.address.is_none());
}

#[test]
fn other_machines_need_a_key_or_a_word() {
    let open = RunOptions { listen: Some("0.0.0.0:0".to_owned()), ..options() };
    assert!(run(open.clone()).expect_err("it is open").to_string().contains("open to other machines"));
    let config = run(RunOptions { no_auth: true, ..open.clone() }).expect("it is said").config;
    assert_eq!(config.servers["files"].auth.methods, [Method::None]);
    let config = run(RunOptions { key_hash: Some([7; 32]), ..open }).expect("it has a key").config;
    assert_eq!(config.servers["files"].auth.methods, [Method::ApiKey]);
    let key = &config.auth.keys[super::super::RUN_KEY];
    assert_eq!((key.hash, key.sessions), ([7; 32], Some(usize::MAX)));
}

#[test]
fn a_wrong_flag_is_named() {
    for (options, expected) in [
        (RunOptions { listen: Some("8080".to_owned()), ..options() }, "--listen has no port"),
        (RunOptions { admin: Some("x".to_owned()), ..options() }, "--admin has no port"),
        (
            RunOptions { env: vec![("A B".to_owned(), "s3cret".to_owned())], ..options() },
            "--env has a name no variable",
        ),
        (RunOptions { name: "A".to_owned(), ..options() }, "`A` is no name for a server"),
    ] {
        let problems = run(options).expect_err(expected).to_string();
        assert!(problems.starts_with(expected), "{problems}");
        assert!(!problems.contains("s3cret"));
    }
}
