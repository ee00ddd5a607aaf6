//! What people read says what the code does: every key with its default, every metric, every event, every link.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below `folder` whose name ends in `end`, relative to the repository.
fn files(folder: &str, end: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut open = vec![root.join(folder)];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.to_string_lossy().ends_with(end) {
                found.push(path.strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// What stands between backquotes in `text`.
fn code_words(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// What the shipped file says of a key.
struct Shipped {
    value: String,
    /// It stands in a comment: what is there may be an example.
    is_commented: bool,
}

/// The shipped file's `section.key` with the value as it is written.
fn keys_of_the_file() -> BTreeMap<String, Shipped> {
    let mut section = String::new();
    let mut keys = BTreeMap::new();
    for line in read("config/gangway.toml").lines() {
        let (line, is_commented) = match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(' ') || rest.is_empty() => continue,
            Some(rest) => (rest, true),
            None => (line, false),
        };
        if let Some(header) = line.strip_prefix('[') {
            section = header
                .split(']')
                .next()
                .unwrap()
                .replace(".example", ".NAME")
                .replace("server_defaults", "servers.NAME");
        } else if let Some((key, rest)) = line.split_once(" = ") {
            let value = rest.split("  #").next().unwrap().trim().to_owned();
            keys.insert(format!("{section}.{key}"), Shipped { value, is_commented });
        }
    }
    keys
}

/// The same from the tables of the documentation.
fn keys_of_the_documentation() -> BTreeMap<String, Option<String>> {
    let mut section = String::new();
    let mut keys = BTreeMap::new();
    for line in read("docs/configuration.md").lines() {
        if line.starts_with('#') {
            section = line.split_once("`[").and_then(|(_, rest)| rest.split(']').next()).unwrap_or_default().to_owned();
        }
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if let (false, [key, default, ..]) = (section.is_empty(), cells.as_slice())
            && let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`'))
        {
            let default = default.strip_prefix('`').and_then(|text| text.strip_suffix('`')).map(str::to_owned);
            let before = keys.insert(format!("{section}.{key}"), default);
            assert!(before.is_none(), "{section}.{key} stands there twice");
        }
    }
    keys
}

#[test]
fn every_key_is_documented_with_its_default() {
    let (file, documentation) = (keys_of_the_file(), keys_of_the_documentation());
    assert!(file.len() > 70, "the shipped file was not understood: {} keys", file.len());
    for (key, Shipped { value, is_commented }) in &file {
        let default = documentation.get(key).unwrap_or_else(|| panic!("{key} is not in docs/configuration.md"));
        assert!(*is_commented || default.is_some(), "{key} has no default in docs/configuration.md");
        assert_eq!(default.as_ref().unwrap_or(value), value, "{key} in docs/configuration.md");
    }
    for key in documentation.keys() {
        assert!(file.contains_key(key), "{key} of docs/configuration.md is no key");
    }
}

/// Every metric, from the calls that register it.
fn metrics() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in ["families", "tool_metrics", "metrics"] {
        let source = read(format!("src/telemetry/{file}.rs"));
        for call in
            ["by.counters(\"", "by.seconds(\"", "by.gauges(\"", "by.gauge(\"", "by.histograms(\"", " options(\""]
        {
            let calls = source.split(call).skip(1);
            names.extend(calls.map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }
    names
}

#[test]
fn every_metric_is_documented_and_no_other() {
    let metrics = metrics();
    assert!(metrics.len() > 40, "the families were not understood: {metrics:?}");
    let operation = read("docs/operation.md");
    let table = operation.split("## Metrics").nth(1).unwrap();
    let rows: String = table.lines().filter(|line| line.starts_with("| `")).collect();
    let documented: BTreeSet<String> = code_words(&rows).into_iter().map(str::to_owned).collect();
    assert_eq!(documented, metrics, "documented and registered");
}

#[test]
fn every_value_of_a_label_is_documented() {
    let operation = read("docs/operation.md");
    let documented = code_words(&operation);
    let source = read("src/telemetry/label.rs");
    let mut seen = 0;
    for block in source.split("\nlabels! {").skip(1) {
        // Those that MCP names are not for us to list.
        let block = block.split("\n}\n").next().unwrap();
        if block.contains("Method {\n        ToolsCall") || block.contains("Protocol {") {
            continue;
        }
        for value in block.split(" = \"").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(documented.contains(value), "the value {value} is missing in docs/operation.md: {block}");
            seen += 1;
        }
    }
    assert!(seen > 80, "the labels were not understood: {seen}");
}

#[test]
fn alerts_ask_for_metrics_there_are() {
    let metrics = metrics();
    let alerts = read("deploy/alerts.yml");
    let asked: BTreeSet<&str> = alerts
        .split("gangway_")
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap())
        .collect();
    assert!(!asked.is_empty());
    for name in asked {
        assert!(metrics.contains(name), "there is no metric gangway_{name}");
    }
}

/// Every event the code logs.
fn events() -> BTreeSet<String> {
    let mut names = BTreeSet::from(["ready".to_owned(), "rpc".to_owned(), "log_dropped".to_owned()]);
    for file in files("src", ".rs").iter().filter(|file| !file.to_string_lossy().ends_with("_test.rs")) {
        let source = read(file);
        let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let calls = source.split("event = \"").skip(1);
        names.extend(calls.map(|rest| rest.split('"').next().unwrap().to_owned()));
    }
    names
}

#[test]
fn every_event_is_documented_and_no_other() {
    let events = events();
    let operation = read("docs/operation.md");
    let log = operation.split("## Log").nth(1).unwrap().split("## Metrics").next().unwrap();
    let words = code_words(log);
    for event in &events {
        assert!(words.contains(event.as_str()), "the event {event} is missing in docs/operation.md");
    }
    let table = log.split("Other events:").nth(1).unwrap();
    let first_cells: String =
        table.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split(" | ").next()).collect();
    for event in code_words(&first_cells) {
        assert!(events.contains(event), "docs/operation.md has an event {event}, which nothing logs");
    }
}

/// The anchor of a heading, as code hosts make it.
fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .collect::<String>();
    kept.trim().replace(' ', "-")
}

#[test]
fn links_lead_somewhere() {
    let mut checked = 0;
    let pages = [files("docs", ".md"), files("certs", ".md"), vec![PathBuf::from("README.md")]].concat();
    for page in pages {
        let text = read(&page);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("http")) {
            let (path, wanted) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let whole = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
            assert!(whole.exists(), "{}: {target} is not there", page.display());
            if !wanted.is_empty() {
                let found = read(&file)
                    .lines()
                    .filter(|line| line.starts_with('#'))
                    .any(|line| anchor(line.trim_start_matches('#')) == wanted);
                assert!(found, "{}: {target} is no heading", page.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 10, "the links were not found");
}
