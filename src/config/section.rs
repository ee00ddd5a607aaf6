//! Reads one table of the configuration, key by key.
//!
//! What reads a key also declares it: a key nobody asked for by the time a [`Section`] is dropped is unknown, so the
//! list of known keys cannot differ from what the program understands. A value that is wrong is reported and its
//! default used, so that reading goes on and finds the rest.

use std::time::Duration;

use super::convert::{Refused, bytes, mismatch, pick, text, time_or_off, whole};
use super::document::{Node, Place, Table, Value};
use super::meaning::Rate;
use super::report::{self, Report};
use super::suggest;
use super::unit::Malformed;

/// One table while it is read.
pub(super) struct Section<'a> {
    pub(super) report: &'a Report<'a>,
    /// Its whole key; empty for the document.
    path: String,
    table: Option<&'a Table>,
    /// Where its header stands.
    place: Option<Place>,
    known: Vec<&'static str>,
    /// Names other programs use, with ours.
    aliases: &'static [(&'static str, &'static str)],
}

impl<'a> Section<'a> {
    /// Starts reading a table.
    pub(super) fn new(report: &'a Report<'a>, path: &str, table: Option<&'a Table>, place: Option<Place>) -> Self {
        Self { report, path: path.to_owned(), table, place, known: Vec::new(), aliases: &[] }
    }

    /// Adds names that are suggested for unknown keys however far they are from each other.
    pub(super) fn with_aliases(mut self, aliases: &'static [(&'static str, &'static str)]) -> Self {
        self.aliases = aliases;
        self
    }

    /// The value of a key, which is known from now on.
    pub(super) fn take(&mut self, key: &'static str) -> Option<&'a Node> {
        self.known.push(key);
        self.table.and_then(|table| table.get(key)).map(|entry| &entry.node)
    }

    /// Where the table's header stands.
    pub(super) fn header(&self) -> Option<Place> {
        self.place.clone()
    }

    /// Whether this key holds just this text.
    pub(super) fn is_text(&self, key: &str, expected: &str) -> bool {
        let entry = self.table.and_then(|table| table.get(key));
        entry.is_some_and(|entry| matches!(&entry.node.value, Value::Text(text) if text.meaning == expected))
    }

    /// Whether this key holds a list without items.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        let entry = self.table.and_then(|table| table.get(key));
        entry.is_some_and(|entry| matches!(&entry.node.value, Value::Array(items) if items.is_empty()))
    }

    /// Whether the table has this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Makes a key known that is read only where it stands.
    pub(super) fn declare(&mut self, key: &'static str) {
        self.known.push(key);
    }

    /// The whole name of a key of this table.
    pub(super) fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Where the value of `key` stands, else the table's header.
    pub(super) fn place(&self, key: &str) -> Option<Place> {
        let entry = self.table.and_then(|table| table.get(key));
        entry.map(|entry| entry.node.place.clone()).or_else(|| self.place.clone())
    }

    /// Reports a problem of `key` at `place`. What `[server_defaults]` says is reported where that table is read
    /// itself, not again for each server.
    pub(super) fn refuse(&self, key: &str, place: Option<&Place>, refused: Refused) {
        let name = match place {
            Some(Place::Defaults(_)) => return,
            Some(Place::Flag(flag)) => (*flag).to_owned(),
            _ => format!("`{}`", self.name(key)),
        };
        self.report.problem(place, format!("{name} {}", refused.problem), refused.remedy);
    }

    /// Records the value of `key` in effect.
    pub(super) fn record(&self, key: &str, node: Option<&Node>, value: String) {
        self.report.effective(self.name(key), value, node.map(|node| &node.place));
    }

    /// Reads a key with `convert`; `default` is its default as the operator would write it.
    pub(super) fn value<T>(
        &mut self,
        key: &'static str,
        default: &Value,
        convert: impl Fn(&Value) -> Result<T, Refused>,
    ) -> T {
        let node = self.take(key);
        self.record(key, node, report::shown(node.map_or(default, |node| &node.value)));
        let outcome =
            node.filter(|node| !matches!(node.value, Value::Unfilled)).map(|node| (convert(&node.value), node));
        match outcome {
            Some((Ok(value), _)) => return value,
            Some((Err(refused), node)) => self.refuse(key, Some(&node.place), refused),
            None => {}
        }
        convert(default).unwrap_or_else(|refused| unreachable!("the default of {key} {}", refused.problem))
    }

    /// Reads `true` or `false`.
    pub(super) fn boolean(&mut self, key: &'static str, default: bool) -> bool {
        self.value(key, &Value::Boolean(default), |value| match value {
            Value::Boolean(boolean) => Ok(*boolean),
            other => Err(mismatch(other, "write true or false")),
        })
    }

    /// Reads a whole number that is at least `least`.
    pub(super) fn count(&mut self, key: &'static str, default: u32, least: u32) -> u32 {
        self.value(key, &Value::Integer(default.into()), |value| whole(value, least))
    }

    /// Reads a whole number of which `0` means no limit.
    pub(super) fn limit(&mut self, key: &'static str, default: u32) -> Option<usize> {
        let count = self.count(key, default, 0);
        (count != 0).then_some(count as usize)
    }

    /// Reads a size in bytes that is at least `least`.
    pub(super) fn size(&mut self, key: &'static str, default: &str, least: u64) -> usize {
        self.value(key, &Value::plain(default), |value| bytes(value, least)) as usize
    }

    /// Reads a time that may be zero.
    pub(super) fn time(&mut self, key: &'static str, default: &str) -> Duration {
        self.value(key, &Value::plain(default), |value| match time_or_off(value)? {
            Some(time) => Ok(time),
            None => Err(Refused::new("cannot be switched off", "write a time such as \"30s\"")),
        })
    }

    /// Reads a time that is not zero.
    pub(super) fn time_above_zero(&mut self, key: &'static str, default: &str) -> Duration {
        self.value(key, &Value::plain(default), |value| match time_or_off(value)? {
            Some(time) if !time.is_zero() => Ok(time),
            _ => Err(Refused::new("cannot be switched off", "write a time above zero, such as \"30s\"")),
        })
    }

    /// Reads a time that `"off"` or `0` switches off.
    pub(super) fn time_or_off(&mut self, key: &'static str, default: &str) -> Option<Duration> {
        self.value(key, &Value::plain(default), |value| match time_or_off(value)? {
            Some(time) if time.is_zero() => {
                Err(Refused::new("leaves no time at all", "write \"off\" to switch it off"))
            }
            time => Ok(time),
        })
    }

    /// Reads how much may come in a time, as `parse` has it; off by default.
    pub(super) fn rate(
        &mut self,
        key: &'static str,
        parse: fn(&str) -> Result<(u32, Duration), Malformed>,
    ) -> Option<Rate> {
        self.value(key, &Value::plain("off"), |value| match value {
            Value::Text(text) if text.meaning == "off" => Ok(None),
            Value::Integer(_) => Err(Refused::new("has no time", "write it with /s, /m or /h, in quotes, or \"off\"")),
            value => parse(text(value)?).map(|(count, time)| Some(Rate { count, time })).map_err(Refused::from),
        })
    }

    /// Reads one word of several.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, default: &str, choices: &[(&str, T)]) -> T {
        self.value(key, &Value::plain(default), |value| pick(text(value)?, choices))
    }

    /// Reads a string that is parsed by `parse`; empty is `None`.
    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        default: &str,
        parse: impl Fn(&str) -> Result<T, Refused>,
    ) -> Option<T> {
        self.value(key, &Value::plain(default), |value| match text(value)? {
            "" => Ok(None),
            text => parse(text).map(Some),
        })
    }

    /// Reads a list of strings, each parsed by `parse`; what is refused is reported at its item and left out.
    pub(super) fn list<T>(&mut self, key: &'static str, parse: impl Fn(&str) -> Result<T, Refused>) -> Vec<T> {
        self.list_or(key, &[], parse)
    }

    /// Reads a list of strings that has a default.
    pub(super) fn list_or<T>(
        &mut self,
        key: &'static str,
        default: &[&str],
        parse: impl Fn(&str) -> Result<T, Refused>,
    ) -> Vec<T> {
        let node = self.take(key);
        let shown = || format!("[{}]", default.iter().map(|word| report::quoted(word)).collect::<Vec<_>>().join(", "));
        self.record(key, node, node.map_or_else(shown, |node| report::shown(&node.value)));
        match node.map(|node| (&node.value, node)) {
            None | Some((Value::Unfilled, _)) => {
                let sound =
                    |word: &&str| parse(word).unwrap_or_else(|refused| unreachable!("{key} {}", refused.problem));
                default.iter().map(sound).collect()
            }
            Some((Value::Array(items), _)) => self.items(key, items, parse),
            Some((other, node)) => {
                self.refuse(key, Some(&node.place), mismatch(other, "write an array of strings: [\"…\", \"…\"]"));
                Vec::new()
            }
        }
    }

    /// Parses the items of a list.
    pub(super) fn items<T>(&self, key: &str, items: &[Node], parse: impl Fn(&str) -> Result<T, Refused>) -> Vec<T> {
        let mut parsed = Vec::with_capacity(items.len());
        for item in items.iter().filter(|item| !matches!(item.value, Value::Unfilled)) {
            match text(&item.value).and_then(&parse) {
                Ok(value) => parsed.push(value),
                Err(refused) => self.refuse(key, Some(&item.place), refused),
            }
        }
        parsed
    }

    /// Starts reading a sub-table; one that is absent reads as empty.
    pub(super) fn table(&mut self, key: &'static str) -> Section<'a> {
        let place = self.place(key);
        let node = self.take(key);
        Section::new(self.report, &self.name(key), self.table_of(key, node), place)
    }

    /// Starts reading each table of a table of tables, with its name.
    pub(super) fn tables(&mut self, key: &'static str) -> Vec<(&'a str, Section<'a>)> {
        let node = self.take(key);
        let tables = self.table_of(key, node).into_iter().flatten();
        let path = self.name(key);
        let mut sections = Vec::new();
        for (name, entry) in tables {
            let section = Section::new(self.report, &path, None, None);
            let table = section.table_of(name, Some(&entry.node));
            let named = Section::new(self.report, &section.name(name), table, Some(entry.key.clone()));
            drop(section);
            if table.is_some() {
                sections.push((name.as_str(), named));
            }
        }
        sections
    }

    /// The table a node holds; anything else is reported.
    pub(super) fn table_of(&self, key: &str, node: Option<&'a Node>) -> Option<&'a Table> {
        match node.map(|node| (&node.value, &node.place))? {
            (Value::Table(table), _) => Some(table),
            (other, place) => {
                let header = self.name(key);
                self.refuse(key, Some(place), mismatch(other, format!("write a table: [{header}]")));
                None
            }
        }
    }

    fn suggestion(&self, unknown: &str) -> String {
        let alias = self.aliases.iter().find(|(alias, _)| *alias == unknown).map(|(_, ours)| *ours);
        match alias.or_else(|| suggest::nearest(unknown, self.known.iter().copied())) {
            Some(known) => format!("did you mean `{known}`?"),
            None if self.known.len() <= 12 => {
                format!("the keys here are {}", self.known.join(", "))
            }
            None => "config/gangway.toml lists every key".to_owned(),
        }
    }
}

impl Drop for Section<'_> {
    /// Reports every key nobody asked for.
    fn drop(&mut self) {
        for (key, entry) in self.table.into_iter().flatten() {
            if self.known.contains(&key.as_str()) || matches!(entry.key, Place::Defaults(_)) {
                continue;
            }
            let message = match self.path.as_str() {
                "" => format!("unknown table or key `{key}`"),
                path => format!("unknown key `{key}` in [{path}]"),
            };
            self.report.problem(Some(&entry.key), message, self.suggestion(key));
        }
    }
}
