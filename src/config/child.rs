//! What a server's table says about the process to start: program, arguments, folder and variables.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::convert::{Refused, text};
use super::document::{Place, Value};
use super::env_file;
use super::report::{quoted, shown, shown_secret};
use super::secret::{is_secret_name, mask_arguments};
use super::section::Section;

/// Reads `command` and `args`. A command with a slash is a path, relative to the file; one without is looked up in
/// `PATH` when it is started.
pub(super) fn program(section: &mut Section<'_>) -> (String, Vec<String>) {
    let node = section.take("command");
    section.record("command", node, node.map_or_else(|| "\"\"".to_owned(), |node| shown(&node.value)));
    let command = match node {
        Some(node) if matches!(node.value, Value::Unfilled) => String::new(),
        node => {
            let named = node.map_or(Ok(""), |node| text(&node.value)).and_then(|text| program_name(section, text));
            named.unwrap_or_else(|refused| {
                section.refuse("command", section.place("command").as_ref(), refused);
                String::new()
            })
        }
    };
    (command, arguments(section))
}

fn program_name(section: &Section<'_>, command: &str) -> Result<String, Refused> {
    if command.is_empty() {
        return Err(Refused::new("is missing", "name the program to start, such as command = \"npx\""));
    }
    let path = section.report.base.join(command);
    if command.contains(char::is_whitespace) && !path.exists() {
        let mut words = command.split_whitespace().map(quoted);
        let first = words.next().unwrap_or_default();
        let rest = words.collect::<Vec<_>>().join(", ");
        let remedy = if matches!(section.place("command"), Some(Place::Flag(_))) {
            "leave out the quotes around it: no shell will read it".to_owned()
        } else if is_secret_name(command) {
            "put the program into `command` and each argument into `args`".to_owned()
        } else {
            format!("no shell reads it: write command = {first} and args = [{rest}]")
        };
        return Err(Refused::new("is more than one word", remedy));
    }
    let command = if command.contains('/') { path.to_string_lossy().into_owned() } else { command.to_owned() };
    without_nul(&command)
}

/// Reads `args`.
fn arguments(section: &mut Section<'_>) -> Vec<String> {
    const KEY: &str = "args";
    let node = section.take(KEY);
    let items = match node.map(|node| &node.value) {
        Some(Value::Array(items)) => items.as_slice(),
        Some(Value::Unfilled) | None => &[],
        Some(other) => {
            let remedy = "write an array with one string for each argument: [\"-y\", \"…\"]";
            section.refuse(KEY, section.place(KEY).as_ref(), super::convert::mismatch(other, remedy));
            &[]
        }
    };
    let typed: Vec<String> = items
        .iter()
        .map(|item| match &item.value {
            Value::Text(text) => text.typed.clone(),
            other => shown(other),
        })
        .collect();
    let listed: Vec<String> = mask_arguments(&typed).iter().map(|argument| quoted(argument)).collect();
    section.record(KEY, node, format!("[{}]", listed.join(", ")));
    section.items(KEY, items, without_nul)
}

/// Reads `cwd`.
pub(super) fn working_directory(section: &mut Section<'_>) -> Option<PathBuf> {
    let base = section.report.base;
    section.parsed("cwd", "", |path| without_nul(path).map(|path| base.join(path)))
}

/// Reads `env_file` and `env`; what `env` says wins.
pub(super) fn environment(section: &mut Section<'_>) -> BTreeMap<String, String> {
    let base = section.report.base;
    let inherited = matches!(section.place("env_file"), Some(Place::Defaults(_)));
    let file = section.parsed("env_file", "", |path| Ok(base.join(path)));
    let mut variables = match file.as_deref().map(env_file::read) {
        Some(Ok(variables)) => variables,
        Some(Err(problems)) if !inherited => {
            problems.into_iter().for_each(|problem| section.report.add(problem));
            BTreeMap::new()
        }
        _ => BTreeMap::new(),
    };
    let node = section.take("env");
    let Some(table) = section.table_of("env", node).filter(|table| !table.is_empty()) else {
        section.record("env", node, "{}".to_owned());
        return variables;
    };
    for (name, entry) in table {
        let key = format!("env.{name}");
        section.record(&key, Some(&entry.node), shown_secret(&entry.node.value));
        if matches!(entry.node.value, Value::Unfilled) {
            continue;
        }
        let pair = variable_name(name).and_then(|name| Ok((name, without_nul(text(&entry.node.value)?)?)));
        match pair {
            Ok((name, value)) => {
                variables.insert(name, value);
            }
            Err(refused) => section.refuse(&key, Some(&entry.node.place), refused),
        }
    }
    variables
}

/// Checks the name of a variable: what the system takes, which is more than a shell does.
pub(super) fn variable_name(name: &str) -> Result<String, Refused> {
    if name.is_empty() || name.contains(['=', '\0']) || name.contains(char::is_whitespace) {
        return Err(Refused::new("has a name no variable can have", "a name has no space and no ="));
    }
    Ok(name.to_owned())
}

/// Refuses the one byte no argument, path or variable can hold (POSIX exec).
pub(super) fn without_nul(text: &str) -> Result<String, Refused> {
    if text.contains('\0') {
        return Err(Refused::new("holds a NUL character", "no program can be given one"));
    }
    Ok(text.to_owned())
}
