//! A parsed configuration before it means anything: values with their places, variables filled in.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::interpolate::{self, Sources};
use super::problem::Problem;

/// Where something was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the file, at this byte range.
    File(Range<usize>),
    /// In the file's `[server_defaults]`, at this byte range.
    Defaults(Range<usize>),
    /// On the command line, by this flag.
    Flag(&'static str),
}

/// A value and where it was said.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) place: Place,
}

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(Text),
    Integer(i64),
    Boolean(bool),
    /// A date without a time of day: year, month, day.
    Date(u16, u8, u8),
    Array(Vec<Node>),
    Table(Table),
    /// What no key takes (a float, a date with a time, an integer beyond 64 bits), with its name.
    Foreign(&'static str),
    /// A string whose variables could not be filled in: reported already.
    Unfilled,
}

/// A string as it was typed, and with its variables filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text {
    /// Safe to show as far as `meaning` came from variables or files.
    pub(super) typed: String,
    pub(super) meaning: String,
}

/// A table: by key, where the key stands and its value.
pub(super) type Table = BTreeMap<String, Entry>;

/// One entry of a table.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Place,
    pub(super) node: Node,
}

impl Value {
    /// The name of the value's type, with its article.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "a string",
            Value::Integer(_) => "an integer",
            Value::Boolean(_) => "a boolean",
            Value::Date(..) => "a date",
            Value::Array(_) => "an array",
            Value::Table(_) => "a table",
            Value::Foreign(kind) => kind,
            Value::Unfilled => "a string",
        }
    }

    /// A string without variables.
    pub(super) fn plain(text: impl Into<String>) -> Self {
        let text = text.into();
        Value::Text(Text { typed: text.clone(), meaning: text })
    }
}

impl Entry {
    /// An entry a command-line flag stands for.
    pub(super) fn flag(flag: &'static str, value: Value) -> Self {
        Self { key: Place::Flag(flag), node: Node { value, place: Place::Flag(flag) } }
    }
}

/// Parses a TOML document and fills in its strings; what cannot be filled in is reported to `problems`.
///
/// # Errors
/// The first syntax error.
pub(super) fn parse(
    file: &str,
    text: &str,
    sources: Sources<'_>,
    problems: &mut Vec<Problem>,
) -> Result<Table, Problem> {
    let document = DeTable::parse(text).map_err(|error| {
        let message = error.message().replace('\n', ", ");
        let remedy = if text.trim_start().starts_with('{') {
            "this is JSON: write TOML, each server as a table [servers.NAME] with its command and args"
        } else {
            "this is not TOML; nothing below it was read"
        };
        Problem::at(file, text, &error.span().unwrap_or(0..0), message, remedy)
    })?;
    Ok(Reader { file, text, sources, problems }.table(document.into_inner()))
}

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    sources: Sources<'a>,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn table(&mut self, table: DeTable<'_>) -> Table {
        let entries = table.into_iter().map(|(key, value)| {
            let entry = Entry { key: Place::File(key.span()), node: self.node(value) };
            (key.into_inner().into_owned(), entry)
        });
        entries.collect()
    }

    fn node(&mut self, value: Spanned<DeValue<'_>>) -> Node {
        let span = value.span();
        let value = match value.into_inner() {
            DeValue::String(typed) => self.text(typed.into_owned(), &span),
            DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
                Ok(integer) => Value::Integer(integer),
                Err(_) => Value::Foreign("an integer beyond 64 bits"),
            },
            DeValue::Boolean(boolean) => Value::Boolean(boolean),
            DeValue::Float(_) => Value::Foreign("a number with a fraction"),
            DeValue::Datetime(when) => match (when.date, when.time) {
                (Some(date), None) => Value::Date(date.year, date.month, date.day),
                _ => Value::Foreign("a time of day"),
            },
            DeValue::Array(items) => Value::Array(items.into_iter().map(|item| self.node(item)).collect()),
            DeValue::Table(table) => Value::Table(self.table(table)),
        };
        Node { value, place: Place::File(span) }
    }

    fn text(&mut self, typed: String, span: &Range<usize>) -> Value {
        match interpolate::fill(&typed, self.sources) {
            Ok(meaning) => Value::Text(Text { typed, meaning }),
            Err(unfilled) => {
                self.problems.push(Problem::at(self.file, self.text, span, unfilled.problem, unfilled.remedy));
                Value::Unfilled
            }
        }
    }
}

/// Lays a server's own table over the defaults: tables merge key by key, everything else replaces.
pub(super) fn merge(defaults: &Table, own: &Table) -> Table {
    let mut merged: Table = defaults
        .iter()
        .map(|(name, entry)| (name.clone(), Entry { key: inherited(&entry.key), node: inherit(&entry.node) }))
        .collect();
    for (name, entry) in own {
        let entry = match (&entry.node.value, defaults.get(name).map(|default| &default.node.value)) {
            (Value::Table(own), Some(Value::Table(defaults))) => {
                // What a server says of its callers is not mixed with what others are held to.
                let laid = if name == "auth" { replace(defaults, own) } else { merge(defaults, own) };
                let node = Node { value: Value::Table(laid), place: entry.node.place.clone() };
                Entry { key: entry.key.clone(), node }
            }
            _ => entry.clone(),
        };
        merged.insert(name.clone(), entry);
    }
    merged
}

/// Lays a table over the defaults key by key, each value whole.
fn replace(defaults: &Table, own: &Table) -> Table {
    let mut laid = merge(defaults, &Table::new());
    laid.extend(own.iter().map(|(name, entry)| (name.clone(), entry.clone())));
    laid
}

/// The same value, said by `[server_defaults]`.
fn inherit(node: &Node) -> Node {
    let value = match &node.value {
        Value::Array(items) => Value::Array(items.iter().map(inherit).collect()),
        Value::Table(table) => Value::Table(merge(table, &Table::new())),
        value => value.clone(),
    };
    Node { value, place: inherited(&node.place) }
}

fn inherited(place: &Place) -> Place {
    match place {
        Place::File(span) => Place::Defaults(span.clone()),
        other => other.clone(),
    }
}
