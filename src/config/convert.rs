//! Turns one value of a document into a number, a size, a time or a word, or says why that cannot be.

use std::time::Duration;

use super::document::Value;
use super::report::quoted;
use super::suggest;
use super::unit::{self, Malformed};

/// Why a value was refused; `problem` finishes the sentence "`key` …".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) problem: String,
    pub(super) remedy: String,
}

impl Refused {
    pub(super) fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: remedy.into() }
    }
}

impl From<Malformed> for Refused {
    fn from(malformed: Malformed) -> Self {
        Self::new(malformed.problem, malformed.remedy)
    }
}

/// The refusal of a value of another type.
pub(super) fn mismatch(value: &Value, remedy: impl Into<String>) -> Refused {
    Refused::new(format!("cannot be {}", value.kind()), remedy)
}

/// A string, variables filled in.
pub(super) fn text(value: &Value) -> Result<&str, Refused> {
    match value {
        Value::Text(text) => Ok(&text.meaning),
        other => Err(mismatch(other, "write a string in quotes")),
    }
}

/// One word of several.
pub(super) fn pick<T: Copy>(word: &str, choices: &[(&str, T)]) -> Result<T, Refused> {
    let found = choices.iter().find(|(name, _)| *name == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<String> = choices.iter().map(|(name, _)| quoted(name)).collect();
        let hint = suggest::nearest(word, choices.iter().map(|(name, _)| *name))
            .map_or_else(String::new, |near| format!("; did you mean {}?", quoted(near)));
        let remedy = if words.len() == 1 {
            format!("the only value is {}", words[0])
        } else {
            format!("it is one of {}{hint}", words.join(", "))
        };
        Refused::new("has an unknown value", remedy)
    })
}

/// A whole number of at least `least`.
pub(super) fn whole(value: &Value, least: u32) -> Result<u32, Refused> {
    let Value::Integer(integer) = value else {
        return Err(mismatch(value, "write a whole number without quotes"));
    };
    match u32::try_from(*integer) {
        Ok(count) if count >= least => Ok(count),
        Ok(_) => Err(Refused::new(format!("must be at least {least}"), "write a larger number")),
        Err(_) if *integer < 0 => Err(Refused::new("cannot be negative", format!("write at least {least}"))),
        Err(_) => Err(Refused::new("is too large", format!("write at most {}", u32::MAX))),
    }
}

/// A size of at least `least` bytes: a whole number, or a string with a unit.
pub(super) fn bytes(value: &Value, least: u64) -> Result<u64, Refused> {
    let bytes = match value {
        Value::Integer(integer) => unit::size(&integer.to_string())?,
        Value::Text(text) if text.meaning == "off" => {
            return Err(Refused::new(
                "cannot be switched off",
                format!("write at least \"{}\"", unit::shown_size(least)),
            ));
        }
        Value::Text(text) => unit::size(&text.meaning)?,
        other => return Err(mismatch(other, "write a size such as \"8MiB\"")),
    };
    if bytes < least {
        let least = unit::shown_size(least);
        return Err(Refused::new(format!("must be at least {least}"), format!("write \"{least}\" or more")));
    }
    Ok(bytes)
}

/// A time that may be switched off by `"off"` or `0`.
pub(super) fn time_or_off(value: &Value) -> Result<Option<Duration>, Refused> {
    match value {
        Value::Text(text) if text.meaning == "off" => Ok(None),
        Value::Text(text) => Ok(Some(unit::time(&text.meaning)?)),
        Value::Integer(0) => Ok(None),
        Value::Integer(_) => Err(Refused::new("has no unit", "write a time such as \"30s\"")),
        other => Err(mismatch(other, "write a time such as \"30s\"")),
    }
}
