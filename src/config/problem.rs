//! What is wrong with a configuration, all of it at once, each with its place and a remedy.

use std::fmt;
use std::ops::Range;

use super::report::Effective;
use super::secret;

/// The longest part of a source line that is shown, in characters.
const SHOWN: usize = 160;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    location: Option<Location>,
    message: String,
    remedy: String,
}

/// Where something stands in a file, with its line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Location {
    file: String,
    /// Counted from 1.
    line: usize,
    /// Counted from 1, in characters.
    column: usize,
    /// The source line, secrets masked.
    text: String,
    /// Characters the caret underlines; none where what it would underline is masked.
    width: usize,
}

/// Everything that is wrong with one configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problem {
    /// A problem of something that stands in no file, such as a command-line flag.
    pub(super) fn anywhere(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { location: None, message: message.into(), remedy: remedy.into() }
    }

    /// A problem at a byte range of a file's text.
    pub(super) fn at(
        file: &str,
        text: &str,
        span: &Range<usize>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let location = Some(Location::of(file, text, span));
        Self { location, message: message.into(), remedy: remedy.into() }
    }

    /// A problem of a value that was read before.
    pub(super) fn of_value(
        effective: Option<&Effective>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let location = effective.and_then(|effective| effective.location.clone());
        Self { location, message: message.into(), remedy: remedy.into() }
    }

    /// What is wrong, without place and remedy.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do about it; empty where the message says it all.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.remedy
    }

    /// Line and column, both counted from 1, where the problem stands in a file.
    #[must_use]
    pub fn position(&self) -> Option<(usize, usize)> {
        self.location.as_ref().map(|location| (location.line, location.column))
    }
}

impl Location {
    /// The place of a byte range of a file's text.
    pub(super) fn of(file: &str, text: &str, span: &Range<usize>) -> Self {
        let start = floor_boundary(text, span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let end = floor_boundary(text, span.end).clamp(start, line_end);
        let line_text = text[line_start..line_end].trim_end_matches('\r');
        let shown = secret::mask_line(&text[..line_start], line_text);
        let visible = text.get(line_start..end).is_some_and(|lead| shown.starts_with(lead));
        Self {
            file: file.to_owned(),
            line: text[..line_start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            text: shown,
            width: if visible { text[start..end].chars().count().max(1) } else { 0 },
        }
    }
}

/// The nearest character boundary at or below `at`.
fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

impl Problems {
    /// Sorts what was found by place; `None` if nothing was.
    pub(super) fn from_found(mut found: Vec<Problem>) -> Option<Self> {
        found.sort_by(|a, b| a.location.cmp(&b.location));
        found.dedup();
        if found.is_empty() { None } else { Some(Self(found)) }
    }

    /// Every problem, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{}:{}:{}: ", location.file, location.line, location.column)?;
        }
        f.write_str(&self.message)?;
        if let Some(location) = &self.location {
            location.draw(f)?;
        }
        if !self.remedy.is_empty() {
            write!(f, "\n  {}", self.remedy)?;
        }
        Ok(())
    }
}

impl Location {
    /// The source line with a caret below it.
    fn draw(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.trim().is_empty() {
            return Ok(());
        }
        let number = self.line.to_string();
        let shown: String = self.text.chars().take(SHOWN).collect();
        let length = shown.chars().count();
        write!(f, "\n  {number} | {shown}")?;
        if self.column > length || self.width == 0 {
            return Ok(());
        }
        // A tab stays a tab, or the caret would stand elsewhere than the character.
        let lead: String = shown.chars().take(self.column - 1).map(|c| if c == '\t' { c } else { ' ' }).collect();
        let caret = "^".repeat(self.width.min(length + 1 - self.column));
        write!(f, "\n  {:width$} | {lead}{caret}", "", width = number.len())
    }
}

impl fmt::Display for Problems {
    /// Every problem with a blank line between two, then how many there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.0 {
            write!(f, "{problem}\n\n")?;
        }
        match self.0.len() {
            1 => f.write_str("1 problem in the configuration"),
            count => write!(f, "{count} problems in the configuration"),
        }
    }
}

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests {
    use super::{Problem, Problems};

    #[test]
    fn the_caret_stands_below_what_is_wrong() {
        let text = "[listen]\n\tädress = 3\n";
        let start = text.find("ädress").expect("the key is there");
        let problem = Problem::at("a.toml", text, &(start..start + "ädress".len()), "unknown key", "did you mean it?");
        assert_eq!(
            problem.to_string(),
            "a.toml:2:2: unknown key\n  2 | \tädress = 3\n    | \t^^^^^^\n  did you mean it?"
        );
    }

    #[test]
    fn places_beyond_the_text_do_not_panic() {
        let problem = Problem::at("a.toml", "é", &(1..99), "odd", "");
        assert_eq!(problem.position(), Some((1, 1)));
        let problem = Problem::at("a.toml", "", &(5..9), "odd", "");
        assert_eq!(problem.to_string(), "a.toml:1:1: odd");
    }

    #[test]
    fn problems_come_in_the_order_of_the_file_and_once() {
        let text = "a = 1\nb = 2\n";
        let at = |offset: usize| Problem::at("a.toml", text, &(offset..offset + 1), format!("at {offset}"), "");
        let problems = Problems::from_found(vec![at(6), at(0), at(6)]).expect("there are problems");
        let messages: Vec<&str> = problems.iter().map(Problem::message).collect();
        assert_eq!(messages, ["at 0", "at 6"]);
        assert!(problems.to_string().ends_with("2 problems in the configuration"));
        assert!(Problems::from_found(Vec::new()).is_none());
    }

    #[test]
    fn a_secret_is_not_shown_with_its_line() {
        let text = "[servers.a.env]\nGITHUB_TOKEN = \"ghp_secret\"\n";
        let start = text.find("GITHUB").expect("the key is there");
        let shown = Problem::at("a.toml", text, &(start..start + 4), "odd", "").to_string();
        assert!(!shown.contains("ghp_secret"), "{shown}");
        assert!(shown.ends_with("| GITHUB_TOKEN = (hidden)\n    | ^^^^"), "{shown}");
        let start = text.find("\"ghp").expect("the value is there");
        let shown = Problem::at("a.toml", text, &(start..text.len()), "odd", "").to_string();
        assert!(shown.ends_with("| GITHUB_TOKEN = (hidden)"), "{shown}");
    }
}
