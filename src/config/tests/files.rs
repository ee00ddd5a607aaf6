//! The files we ship: the one with every key is equal to the defaults in code, and every example loads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::{Loaded, Origin, parse};
use super::HASH;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config")
}

fn read(name: &str, text: &str) -> Loaded {
    let environment = |name: &str| {
        Some(match name {
            // Two keys are never one.
            "GANGWAY_CI_KEY_HASH" => HASH.replace('1', "2"),
            name if name.ends_with("_HASH") => HASH.to_owned(),
            _ => "value".to_owned(),
        })
    };
    parse(text, name, &folder(), &environment).unwrap_or_else(|problems| panic!("{problems}"))
}

fn by_key(loaded: &Loaded) -> BTreeMap<&str, (&str, Origin)> {
    let entries = loaded.effective.iter();
    entries.map(|one| (one.key.as_str(), (one.value.as_str(), one.origin))).collect()
}

/// The text with its commented keys, the lines that start with `#` and no space, uncommented and filled in.
fn uncommented(text: &str) -> String {
    let mut lines = 0;
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => {
            lines += 1;
            format!("{}\n", rest.replace("sha256:…", HASH))
        }
        _ => format!("{line}\n"),
    };
    let text = text.lines().map(uncomment).collect();
    assert!(lines >= 11, "there are only {lines} commented keys");
    text
}

#[test]
fn the_file_with_every_key_is_at_the_defaults() {
    let text = std::fs::read_to_string(folder().join("gangway.toml")).expect("the file is there");
    let (defaults, file) = (read("defaults", ""), read("gangway.toml", &text));
    let (defaults, file) = (by_key(&defaults), by_key(&file));
    assert!(defaults.len() > 60, "there are only {} keys", defaults.len());
    for (key, (value, origin)) in &defaults {
        assert_eq!(*origin, Origin::Default, "{key}");
        let (written, origin) = file.get(key).unwrap_or_else(|| panic!("{key} is not read"));
        assert_eq!(*origin, Origin::File, "{key} is not in the file");
        assert_eq!(written, value, "{key}");
    }
    assert_eq!(file.len(), defaults.len());
}

#[test]
fn the_commented_keys_work_once_they_are_filled_in() {
    let text = std::fs::read_to_string(folder().join("gangway.toml")).expect("the file is there");
    let loaded = read("gangway.toml", &uncommented(&text));
    let written = by_key(&loaded);
    for key in [
        "auth.keys.example.hash",
        "auth.keys.example.expires",
        "auth.keys.example.servers",
        "auth.keys.example.sessions",
        "servers.example.command",
        "servers.example.args",
        "servers.example.path",
        "servers.example.auth.methods",
    ] {
        assert_eq!(written.get(key).map(|(_, origin)| *origin), Some(Origin::File), "{key}");
    }
    assert_eq!(written["servers.example.path"].0, "\"/example/mcp\"");
    // A server that says nothing has the same defaults as one that gets them from the file.
    let bare = read("bare", "[servers.example]\ncommand = \"npx\"\n");
    let bare = by_key(&bare);
    let shared =
        bare.iter().filter(|(key, (_, origin))| key.starts_with("servers.example.") && *origin == Origin::Default);
    let mut seen = 0;
    for (key, (value, _)) in shared.filter(|(key, _)| !key.ends_with(".args")) {
        assert_eq!(written[key].0, *value, "{key}");
        seen += 1;
    }
    assert!(seen > 20, "only {seen} keys were compared");
    // Without a public URL nobody there can take tokens.
    let [unused] = loaded.warnings.as_slice() else { panic!("{:?}", loaded.warnings) };
    assert!(unused.contains("auth.issuers.example count nowhere"), "{unused}");
}

#[test]
fn every_example_loads() {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(folder().join("examples")).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let loaded = read(&name, &std::fs::read_to_string(&path).expect("the file is there"));
        assert!(!loaded.config.servers.is_empty(), "{name}");
        let expected = usize::from(name == "lan.toml");
        assert_eq!(loaded.warnings.len(), expected, "{name}: {:?}", loaded.warnings);
        seen.push(name);
    }
    seen.sort();
    assert_eq!(
        seen,
        ["behind-nginx.toml", "internet.toml", "kubernetes.toml", "lan.toml", "many-servers.toml", "tls.toml"]
    );
}
