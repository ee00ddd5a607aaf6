//! The house rules that no compiler checks, read from the text of `src`: who may import whom, how long files and
//! functions get, and what stands in code that is no test. `src/lib.rs` says why they are so.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Each part with the parts it may import, beside itself and the leaves.
const IMPORTS: [(&str, &[&str]); 18] = [
    ("main", &["cli"]),
    ("cli", &["gateway", "auth", "mcp"]),
    ("gateway", &["net", "http", "server", "auth", "cluster"]),
    ("http", &["auth", "server", "exchange", "cluster", "mcp"]),
    ("server", &["exchange", "upstream", "mcp"]),
    ("exchange", &["upstream", "cluster", "mcp"]),
    ("upstream", &["mcp"]),
    ("mcp", &[]),
    ("auth", &[]),
    ("net", &[]),
    ("allocator", &[]),
    ("budget", &[]),
    ("caller", &[]),
    ("config", &[]),
    ("paste", &[]),
    ("rare", &[]),
    ("telemetry", &[]),
    ("unix_time", &[]),
];

/// What every part may import.
const LEAVES: [&str; 8] = ["allocator", "budget", "caller", "config", "paste", "rare", "telemetry", "unix_time"];

/// Where the HTTP library may be known.
const KNOWS_HYPER: [&str; 4] = ["net", "http", "auth", "cluster"];

/// What the pure protocol may import: no clock, no runtime, no system.
const PURE: [&str; 7] = ["std", "bytes", "serde", "serde_json", "memchr", "super", "self"];

/// Modules of `std` that are input, output, time or threads.
const IMPURE_STD: [&str; 7] = ["fs", "io", "net", "os", "process", "thread", "time"];

const LONGEST_FILE: usize = 500;
const LONGEST_FUNCTION: usize = 60;

/// A source file.
struct Source {
    /// Relative to `src`.
    path: String,
    /// Its lines, numbered from 1.
    lines: Vec<(usize, String)>,
}

impl Source {
    /// The part of the program it belongs to.
    fn part(&self) -> &str {
        self.path.split(['/', '.']).next().unwrap_or_default()
    }

    /// Its lines without comments; a line's end that looks like one is a comment too unless it stands in a string.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.lines.iter().map(|(number, line)| (*number, without_comment(line)));
        lines.filter(|(_, line)| !line.trim().is_empty())
    }

    /// Every `use` declaration on one line, with its number.
    fn uses(&self) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        let mut open: Option<(usize, String)> = None;
        for (number, line) in self.code() {
            let line = line.trim();
            let (start, mut text) = match open.take() {
                Some(open) => open,
                None if begins_use(line) => (number, String::new()),
                None => continue,
            };
            text.push_str(line);
            text.push(' ');
            if line.ends_with(';') { found.push((start, text)) } else { open = Some((start, text)) }
        }
        found
    }
}

fn begins_use(line: &str) -> bool {
    let line = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) ")).unwrap_or(line);
    let line = line.strip_prefix("pub(super) ").unwrap_or(line);
    line.starts_with("use ")
}

fn without_comment(line: &str) -> &str {
    let comment = line.match_indices("//").find(|(at, _)| line[..*at].matches('"').count().is_multiple_of(2));
    comment.map_or(line, |(at, _)| &line[..at])
}

/// Every file of `src` without its tests: not the `mod tests` at its end, not the files that are tests only.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    let mut tests = BTreeSet::new();
    let mut files = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        tests.extend(test_files(&path, &text));
        files.push((path, text));
    }
    let own = |path: &Path| !tests.iter().any(|test| path.starts_with(test));
    let source = |(path, text): (PathBuf, String)| Source {
        path: path.strip_prefix(&root).unwrap().display().to_string(),
        lines: text.lines().map(str::to_owned).enumerate().map(|(at, line)| (at + 1, line)).collect(),
    };
    let mut sources: Vec<Source> = files.into_iter().filter(|(path, _)| own(path)).map(source).collect();
    sources.iter_mut().for_each(cut_tests);
    assert!(sources.len() > 100, "the walk found {} files only", sources.len());
    sources
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

/// The files and folders that `#[cfg(test)] mod …;` declarations in this file name.
fn test_files(path: &Path, text: &str) -> Vec<PathBuf> {
    let folder = path.parent().unwrap();
    let stem = path.file_stem().unwrap();
    let below = if stem == "mod" || stem == "lib" { folder.to_owned() } else { folder.join(stem) };
    let mut found = Vec::new();
    for (_, rest) in text.match_indices("#[cfg(test)]\n").map(|(at, mark)| text.split_at(at + mark.len())) {
        let mut lines = rest.lines();
        let mut line = lines.next().unwrap_or_default();
        if let Some(file) = line.strip_prefix("#[path = \"").and_then(|line| line.strip_suffix("\"]")) {
            found.push(folder.join(file));
            line = lines.next().unwrap_or_default();
        }
        if let Some(name) =
            line.trim_start_matches("pub(super) ").strip_prefix("mod ").and_then(|l| l.strip_suffix(';'))
        {
            found.extend([below.join(name), below.join(format!("{name}.rs"))]);
        }
    }
    found
}

/// Takes out `#[cfg(test)] mod … { … }` and every other item under that attribute; rustfmt closes an item where it
/// began.
fn cut_tests(source: &mut Source) {
    let lines = std::mem::take(&mut source.lines);
    let mut rest = lines.into_iter();
    while let Some((number, line)) = rest.next() {
        if line.trim() != "#[cfg(test)]" {
            source.lines.push((number, line));
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let end = |line: &str| {
            let own = line.len() - line.trim_start().len() == indent;
            own && (line.ends_with(';') || line.ends_with('}') || line.ends_with("},"))
        };
        let _item: usize = rest.by_ref().take_while(|(_, line)| !end(line)).count();
    }
}

/// Fails with every breach found.
#[track_caller]
fn none(rule: &str, breaches: &[String]) {
    let mut text = String::new();
    for breach in breaches {
        writeln!(text, "  {breach}").unwrap();
    }
    assert!(breaches.is_empty(), "{rule}:\n{text}");
}

/// The parts that a line of code names as `crate::PART`, a braced list included.
fn named_parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for (at, mark) in text.match_indices("crate::") {
        if text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &text[at + mark.len()..];
        match rest.strip_prefix('{') {
            Some(list) => parts.extend(heads(list)),
            None => parts.extend(first_word(rest)),
        }
    }
    parts
}

/// The first words of the items of a braced list, not of those nested in it.
fn heads(list: &str) -> Vec<&str> {
    let mut heads = Vec::new();
    let mut depth = 0_i32;
    let mut fresh = true;
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if fresh && !c.is_whitespace() => {
                heads.extend(first_word(&list[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    heads
}

fn first_word(text: &str) -> Option<&str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|word| !word.is_empty())
}

#[test]
fn parts_import_only_what_they_may() {
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|source| source.part() != "lib") {
        let part = source.part();
        let Some((_, allowed)) = IMPORTS.iter().find(|(name, _)| *name == part) else {
            breaches.push(format!("src/{}: a part without a rule: give it one here and in src/lib.rs", source.path));
            continue;
        };
        let uses = source.uses();
        let inline = source.code().filter(|(_, line)| !begins_use(line.trim()));
        let all = uses.iter().map(|(number, text)| (*number, text.as_str())).chain(inline);
        for (number, text) in all {
            for named in named_parts(text) {
                let may = named == part || LEAVES.contains(&named) || allowed.contains(&named);
                let is_part = IMPORTS.iter().any(|(name, _)| *name == named) || named == "cluster";
                if is_part && !may {
                    breaches.push(format!("src/{}:{number}: {part} imports {named}", source.path));
                }
            }
            if part == "main" && text.contains("gangway::") && !text.contains("gangway::cli") {
                breaches.push(format!("src/{}:{number}: main knows more than cli", source.path));
            }
        }
    }
    none("imports go one way: the table in src/lib.rs", &breaches);
}

#[test]
fn hyper_stays_at_the_edge() {
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|source| !KNOWS_HYPER.contains(&source.part())) {
        for (number, line) in source.code() {
            if line.contains("hyper::") || line.contains("hyper_util::") {
                breaches.push(format!("src/{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    none(&format!("only {KNOWS_HYPER:?} know hyper"), &breaches);
}

#[test]
fn the_protocol_is_pure() {
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|source| source.part() == "mcp") {
        for (number, text) in source.uses() {
            let text = text.split_once("use ").map_or("", |(_, path)| path);
            let head = first_word(text).unwrap_or_default();
            let pure = PURE.contains(&head) || text.starts_with("crate::mcp");
            let std = text.strip_prefix("std::").map(|rest| match rest.strip_prefix('{') {
                Some(list) => heads(list),
                None => first_word(rest).into_iter().collect(),
            });
            // A moment that is handed in is a value; only asking for one is a clock.
            let value = text.starts_with("std::time::") && !source.code().any(|(_, line)| line.contains("::now()"));
            let impure = std.is_some_and(|modules| modules.iter().any(|module| IMPURE_STD.contains(module)));
            if !pure || impure && !value {
                breaches.push(format!("src/{}:{number}: {text}", source.path));
            }
        }
        for (number, line) in source.code().filter(|(_, line)| line.contains("tokio") || line.contains("tracing::")) {
            breaches.push(format!("src/{}:{number}: {}", source.path, line.trim()));
        }
    }
    none("mcp imports std without I/O, bytes, serde, serde_json and memchr", &breaches);
}

#[test]
fn one_file_compares_revisions() {
    let compares = |line: &str| {
        let named = line.match_indices("Revision::V").next().is_some();
        let operator = ["==", "!=", ">=", "<=", " < ", " > "].iter().any(|operator| line.contains(operator));
        let revision = line.contains("revision()") || line.contains("Revision::") || line.contains("revision ");
        named || operator && revision
    };
    let mut breaches = Vec::new();
    for source in sources() {
        if !["mcp", "exchange", "http"].contains(&source.part()) || source.path == "mcp/revision.rs" {
            continue;
        }
        for (number, line) in source.code().filter(|(_, line)| compares(line)) {
            breaches.push(format!("src/{}:{number}: {}", source.path, line.trim()));
        }
    }
    none("what a revision allows is asked of it: give mcp::revision a method", &breaches);
}

#[test]
fn files_and_functions_stay_short() {
    let mut breaches = Vec::new();
    for source in sources() {
        let lines = source.code().count();
        if lines >= LONGEST_FILE {
            breaches.push(format!("src/{}: {lines} lines of code", source.path));
        }
        for (at, (number, line)) in source.lines.iter().enumerate() {
            let Some(name) = function_name(line) else { continue };
            let indent = line.len() - line.trim_start().len();
            let one_line = line.ends_with('}') || line.ends_with(';');
            let is_end = |line: &str| line.trim() == "}" && line.len() == indent + 1;
            let length = source.lines[at..].iter().position(|(_, line)| is_end(line)).map_or(1, |end| end + 1);
            if !one_line && length > LONGEST_FUNCTION {
                breaches.push(format!("src/{}:{number}: fn {name} has {length} lines", source.path));
            }
        }
    }
    none("a file has fewer than 500 lines of code, a function at most 60", &breaches);
}

fn function_name(line: &str) -> Option<&str> {
    let code = without_comment(line).trim_start();
    let (before, after) = code.split_once("fn ")?;
    let qualifiers = ["pub", "pub(super)", "pub(crate)", "const", "async", "unsafe", "extern", "\"C\""];
    before.split_whitespace().all(|word| qualifiers.contains(&word)).then(|| first_word(after))?
}

#[test]
fn nothing_is_imported_by_glob() {
    let mut breaches = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    for folder in ["src", "tests", "benches"] {
        collect(&root.join(folder), &mut paths);
    }
    for path in paths.iter().filter(|path| !path.ends_with("tests/architecture.rs")) {
        let text = fs::read_to_string(path).unwrap();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| begins_use(line.trim()) && line.contains("::*")) {
            breaches.push(format!("{}:{}: {}", path.strip_prefix(root).unwrap().display(), at + 1, line.trim()));
        }
    }
    none("name what is imported", &breaches);
}

#[test]
fn code_that_serves_does_not_give_up() {
    let mut breaches = Vec::new();
    for source in sources() {
        for (number, line) in source.code() {
            for word in [".unwrap()", "todo!", "unimplemented!", "dbg!", "expect(\"\")"] {
                if line.contains(word) {
                    breaches.push(format!("src/{}:{number}: {word}", source.path));
                }
            }
        }
    }
    none("outside tests an invariant is stated: expect(\"why it holds\")", &breaches);
}

#[test]
fn the_map_names_every_part() {
    let lib = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let map: String = lib.lines().filter(|line| line.starts_with("//!")).map(|line| format!("{line}\n")).collect();
    let parts: Vec<&str> = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(parts.len() > 10, "{parts:?}");
    let missing = parts.iter().filter(|part| !map.contains(&format!("`{part}`"))).map(|part| (*part).to_owned());
    none("src/lib.rs: the map names each part in backquotes", &missing.collect::<Vec<_>>());
    let ruled: BTreeSet<&str> = IMPORTS.iter().map(|(part, _)| *part).filter(|part| *part != "main").collect();
    assert_eq!(ruled, parts.into_iter().collect(), "each part has a rule for its imports");
}

#[test]
fn the_rules_see_what_they_look_for() {
    let source = |path: &str, text: &str| {
        let lines = text.lines().map(str::to_owned).enumerate().map(|(at, line)| (at + 1, line)).collect();
        let mut source = Source { path: path.to_owned(), lines };
        cut_tests(&mut source);
        source
    };
    let text = "use crate::{\n    http::{a, b},\n    net,\n};\n#[cfg(test)]\nmod tests {\n    use crate::cli;\n}\nfn last() {}\n";
    let file = source("mcp/x.rs", text);
    assert_eq!(file.part(), "mcp");
    assert_eq!(file.lines.len(), 5, "the tests are gone, what follows is not");
    let uses = file.uses();
    assert_eq!(named_parts(&uses[0].1), ["http", "net"]);
    assert_eq!(named_parts("crate::net::bind(x, crate::auth::Keys)"), ["net", "auth"]);
    assert_eq!(without_comment("let url = \"http://x\"; // why"), "let url = \"http://x\"; ");
    assert_eq!(function_name("    pub(super) async fn serve<T>("), Some("serve"));
    assert_eq!(function_name("    let of = \"fn x\";"), None);
    let found = test_files(
        Path::new("/src/a/mod.rs"),
        "#[cfg(test)]\nmod tests;\n#[cfg(test)]\n#[path = \"b_test.rs\"]\nmod b;\n",
    );
    assert!(found.contains(&PathBuf::from("/src/a/tests")) && found.contains(&PathBuf::from("/src/a/b_test.rs")));
}
