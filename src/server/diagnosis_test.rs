use std::path::Path;
use std::sync::Arc;

use super::{Variables, about_exit, about_line, comes_with, names, without_stdin};
use crate::config::{self, parse};
use crate::upstream::{Ending, Exit};

fn server(command: &str, args: &[&str]) -> Arc<config::Server> {
    let args = serde_json::json!(args);
    let text = format!("[servers.a]\ncommand = \"{command}\"\nargs = {args}\n");
    let loaded = parse(&text, "a.toml", Path::new("/"), &|_| None).expect("the configuration is good");
    Arc::clone(&loaded.config.servers["a"])
}

/// The hint about variables of a child that has `HOME`, of a gateway that has `GITHUB_TOKEN` beside.
fn missing(line: &str, own: bool, inherited: bool) -> Option<String> {
    let is_given = |name: &std::ffi::OsStr| name == "A_GIVEN";
    let is_own = |name: &std::ffi::OsStr| name == "A_GIVEN" || name == "GITHUB_TOKEN" || name == "GANGWAY_API_KEY";
    Variables { server: "hub", inherited, is_given: &is_given, is_own: &is_own }.missing(&[line.to_owned()], own)
}

#[test]
fn a_variable_that_is_not_passed_on_is_named() {
    let line = "Error: A_GIVEN is fine, GITHUB_TOKEN is not";
    let hint = missing(line, true, false).expect("it is decided");
    assert!(hint.contains("env_pass = [\"GITHUB_TOKEN\"] to [servers.hub]"), "{hint}");
    assert!(missing("GANGWAY_API_KEY?", true, true).expect("it is decided").contains("--env GANGWAY_API_KEY=…"));
    assert_eq!(missing("A_GIVEN is not set", false, false), None);
}

#[test]
fn a_variable_nobody_set_is_guessed_from_the_words_around() {
    let line = "SLACK_BOT_TOKEN must be set";
    assert!(missing(line, false, true).expect("it is guessed").contains("--env SLACK_BOT_TOKEN=…"));
    assert!(
        missing(line, false, false).expect("it is guessed").contains("env.SLACK_BOT_TOKEN = \"…\" in [servers.hub]")
    );
    assert_eq!(missing("state SLACK_BOT_TOKEN entered", false, true), None);
    assert_eq!(names("code: 'ERR_MODULE_NOT_FOUND', OK x_Y Z_9Q").collect::<Vec<_>>(), ["Z_9Q"]);
}

#[test]
fn a_line_on_stdout_tells_what_kind_of_program_it_is() {
    for (line, part) in [
        ("Server listening on port 3000\n", "serve HTTP by itself"),
        ("Content-Length: 120", "as language servers do"),
        ("hello", "\"hello\""),
        ("token=abc", "\"token=***\""),
    ] {
        assert!(about_line(line).contains(part), "{}", about_line(line));
    }
    assert!(about_line(&"x".repeat(5_000)).len() < 400);
}

#[test]
fn containers_are_asked_for_stdin() {
    assert!(
        without_stdin(&server("docker", &["run", "--rm", "image"])).is_some_and(|hint| hint.contains("docker run -i"))
    );
    for args in [&["run", "-i", "image"][..], &["run", "--rm", "-it", "image"], &["compose", "up"]] {
        assert_eq!(without_stdin(&server("docker", args)), None);
    }
    assert_eq!(without_stdin(&server("npx", &["run"])), None);
}

#[test]
fn an_end_without_words_has_its_own() {
    let exit = |ending| Exit { ending, stderr: Arc::from([]) };
    assert!(about_exit(Some(&exit(Ending::Status(0)))).is_some());
    assert!(about_exit(Some(&exit(Ending::Signal { number: libc::SIGKILL, core: false }))).is_some());
    assert!(about_exit(Some(&exit(Ending::OutOfMemory))).is_some_and(|hint| hint.contains("memory")));
    assert_eq!(about_exit(Some(&exit(Ending::Status(3)))), None);
    assert!(comes_with("/usr/bin/npx").is_some_and(|source| source.contains("Node.js")));
    assert_eq!(comes_with("files"), None);
}
