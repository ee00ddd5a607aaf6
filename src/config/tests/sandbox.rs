//! `sandbox`: what is read, and what is wrong with it.

use std::path::PathBuf;

use super::{bad, good};
use crate::config::{Sandbox, UserName};

#[test]
fn a_sandbox_is_merged_key_by_key_and_paths_are_relative_to_the_file() {
    let text = r#"
        [server_defaults.sandbox]
        user = "mcp"
        memory = "1GiB"
        read = ["shared"]
        [servers.one]
        command = "one"
        sandbox = { scope = "off", umask = "022", nofile = 64, nproc = 7, memory = "off", write = ["/srv/one"] }
        [servers.two]
        command = "two"
        sandbox.user = "1000:100"
    "#;
    let config = good(text).config;
    let (one, two) = (&config.servers["one"].sandbox, &config.servers["two"].sandbox);
    let shared = one.read.clone();
    assert!(shared.len() == 1 && shared[0].is_absolute() && shared[0].ends_with("shared"), "{shared:?}");
    let expected = Sandbox {
        scope: false,
        user: Some(UserName::Name("mcp".to_owned())),
        umask: 0o22,
        nofile: Some(64),
        nproc: Some(7),
        memory: None,
        read: shared,
        write: vec![PathBuf::from("/srv/one")],
    };
    assert_eq!(*one, expected);
    assert_eq!(two.user, Some(UserName::Number { uid: 1000, gid: Some(100) }));
    assert_eq!((two.umask, two.nofile, two.nproc, two.memory), (0o77, None, None, Some(1 << 30)));
    assert!(two.scope && two.restricts_files() && two.write.is_empty());
    let plain = good("[servers.a]\ncommand = \"a\"\n").config;
    assert!(!plain.servers["a"].sandbox.restricts_files() && plain.servers["a"].sandbox.user.is_none());
}

#[test]
fn what_is_wrong_with_a_sandbox_is_said_at_its_place() {
    let text = r#"[servers.a]
command = "a"
[servers.a.sandbox]
user = "mcp:mcp"
umask = 77
nofile = 3
nproc = -1
memory = "1MiB"
reads = ["/a"]
write = ["", "/b"]
"#;
    let problems = bad(text);
    let found: Vec<(usize, &str)> = problems.iter().map(|p| (p.position().expect("a place").0, p.message())).collect();
    let expected = [
        (4, "`servers.a.sandbox.user` is no user"),
        (5, "`servers.a.sandbox.umask` cannot be an integer"),
        (6, "`servers.a.sandbox.nofile` is too small for any program"),
        (7, "`servers.a.sandbox.nproc` cannot be negative"),
        (8, "`servers.a.sandbox.memory` must be at least 16MiB"),
        (9, "unknown key `reads` in [servers.a.sandbox]"),
        (10, "`servers.a.sandbox.write` holds an empty path"),
    ];
    assert_eq!(found, expected, "{problems}");
}
