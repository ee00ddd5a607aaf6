//! What reading a configuration brings to light beside the values: problems, warnings and where each value came from.

use std::cell::RefCell;
use std::path::Path;

use super::document::{Node, Place, Table, Value};
use super::problem::{Location, Problem};
use super::secret::HIDDEN;

/// One key with its value in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// The whole key, such as `servers.files.pool.max_size`.
    pub key: String,
    /// The value as TOML, secrets hidden and variables not filled in.
    pub value: String,
    /// Who said so.
    pub origin: Origin,
    /// Where it stands, if it does in the file.
    pub(super) location: Option<Location>,
}

/// Who set a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody: it is the default.
    Default,
    /// The file.
    File,
    /// The file's `[server_defaults]`.
    ServerDefaults,
    /// A command-line flag.
    Flag,
}

impl Origin {
    /// The word `check --explain` prints.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::File => "file",
            Origin::ServerDefaults => "server_defaults",
            Origin::Flag => "flag",
        }
    }
}

impl From<&Place> for Origin {
    fn from(place: &Place) -> Self {
        match place {
            Place::File(_) => Origin::File,
            Place::Defaults(_) => Origin::ServerDefaults,
            Place::Flag(_) => Origin::Flag,
        }
    }
}

/// Collects what comes to light. One reader fills it, so interior mutability is all it needs.
pub(super) struct Report<'a> {
    file: &'a str,
    text: &'a str,
    /// What relative paths are relative to.
    pub(super) base: &'a Path,
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<String>>,
    effective: RefCell<Vec<Effective>>,
}

/// What a report held in the end.
pub(super) struct Findings {
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<String>,
    pub(super) effective: Vec<Effective>,
}

impl<'a> Report<'a> {
    /// Starts a report on `text`, which `file` names.
    pub(super) fn new(file: &'a str, text: &'a str, base: &'a Path, problems: Vec<Problem>) -> Self {
        Self {
            file,
            text,
            base,
            problems: RefCell::new(problems),
            warnings: RefCell::default(),
            effective: RefCell::default(),
        }
    }

    /// Notes a problem at a place.
    pub(super) fn problem(&self, place: Option<&Place>, message: impl Into<String>, remedy: impl Into<String>) {
        let problem = match place {
            Some(Place::File(span) | Place::Defaults(span)) => Problem::at(self.file, self.text, span, message, remedy),
            Some(Place::Flag(_)) | None => Problem::anywhere(message, remedy),
        };
        self.add(problem);
    }

    /// Notes a problem that knows its place, such as one in another file.
    pub(super) fn add(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    /// Notes something that works but deserves a line at each start.
    pub(super) fn warning(&self, text: impl Into<String>) {
        self.warnings.borrow_mut().push(text.into());
    }

    /// Notes a value in effect, and where it stands.
    pub(super) fn effective(&self, key: String, value: String, place: Option<&Place>) {
        let location = match place {
            Some(Place::File(span) | Place::Defaults(span)) => Some(Location::of(self.file, self.text, span)),
            Some(Place::Flag(_)) | None => None,
        };
        let origin = place.map_or(Origin::Default, Origin::from);
        self.effective.borrow_mut().push(Effective { key, value, origin, location });
    }

    /// Ends the report.
    pub(super) fn finish(self) -> Findings {
        Findings {
            problems: self.problems.into_inner(),
            warnings: self.warnings.into_inner(),
            effective: self.effective.into_inner(),
        }
    }
}

/// A value as TOML, variables as they were typed.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Text(text) => quoted(&text.typed),
        Value::Integer(integer) => integer.to_string(),
        Value::Boolean(boolean) => boolean.to_string(),
        Value::Date(year, month, day) => format!("{year:04}-{month:02}-{day:02}"),
        Value::Array(items) => format!("[{}]", items.iter().map(shown_item).collect::<Vec<_>>().join(", ")),
        Value::Table(table) if table.is_empty() => "{}".to_owned(),
        Value::Table(table) => format!("{{ {} }}", shown_table(table)),
        Value::Foreign(_) | Value::Unfilled => "?".to_owned(),
    }
}

fn shown_item(node: &Node) -> String {
    shown(&node.value)
}

fn shown_table(table: &Table) -> String {
    table.iter().map(|(key, entry)| format!("{key} = {}", shown(&entry.node.value))).collect::<Vec<_>>().join(", ")
}

/// A secret as it may be shown: nothing at all, a bare reference, or that it is hidden.
pub(super) fn shown_secret(value: &Value) -> String {
    match value {
        Value::Text(text) if text.typed.is_empty() || is_bare_reference(&text.typed) => quoted(&text.typed),
        _ => HIDDEN.to_owned(),
    }
}

/// Whether a string is one `${…}` without default, so that it says where a secret is and nothing about it.
fn is_bare_reference(typed: &str) -> bool {
    let inner = typed.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    inner.is_some_and(|inner| !inner.contains(['}', '$']) && !inner.contains(":-"))
}

/// A string as TOML.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
