//! `${VAR}`, `${VAR:-default}`, `${file:PATH}` and `$$` in a string value.
//!
//! It runs on values that were parsed already, so what a variable holds can never become configuration syntax.

use std::path::Path;

/// The largest file `${file:…}` reads, in bytes: a secret, not a document.
const FILE_BYTES: u64 = 64 * 1024;

/// Where values come from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    /// Looks a variable up.
    pub(super) environment: &'a dyn Fn(&str) -> Option<String>,
    /// What a relative `${file:…}` is relative to.
    pub(super) base: &'a Path,
}

/// Why a value could not be filled in: what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unfilled {
    /// What is wrong; it names the variable or file, never a value.
    pub(super) problem: String,
    /// What to do.
    pub(super) remedy: String,
}

/// Fills in one string value.
///
/// A `$` that starts neither `$$` nor `${` stands for itself. A set but empty variable counts as set for `${VAR}`
/// and as unset for `${VAR:-default}`, as in a shell. One line end at the end of a file is dropped.
///
/// # Errors
/// A variable that is unset and has no default, a file that cannot be read, or a reference that is not closed.
pub(super) fn fill(text: &str, sources: Sources<'_>) -> Result<String, Unfilled> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        filled.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            filled.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('{') {
            let Some(end) = after.find('}') else {
                return Err(unfilled("a `${` is not closed", "add the `}`, or write `$${` for the two characters"));
            };
            filled.push_str(&resolve(&after[..end], sources)?);
            rest = &after[end + 1..];
        } else {
            filled.push('$');
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Resolves what stands between the braces.
fn resolve(reference: &str, sources: Sources<'_>) -> Result<String, Unfilled> {
    if let Some(path) = reference.strip_prefix("file:") {
        return read(path, sources.base);
    }
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    if !is_variable(name) {
        return Err(unfilled(
            format!("`${{{name}}}` does not name a variable"),
            "the forms are `${VAR}`, `${VAR:-default}` and `${file:PATH}`; `$$` stands for one `$`",
        ));
    }
    if default.is_some_and(|default| default.contains("${")) {
        return Err(unfilled(format!("the default of `{name}` holds another `${{`"), "a default is plain text"));
    }
    match ((sources.environment)(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(unfilled(
            format!("the environment variable `{name}` is not set"),
            format!("set it, or give a default: `${{{name}:-…}}`"),
        )),
    }
}

/// Whether a variable may have this name.
pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Reads the file of a `${file:…}`.
fn read(path: &str, base: &Path) -> Result<String, Unfilled> {
    if path.is_empty() {
        return Err(unfilled("`${file:}` names no file", "write the path behind the colon"));
    }
    let whole = base.join(path);
    let failed = |reason: &dyn std::fmt::Display| {
        unfilled(format!("the file {} cannot be read: {reason}", whole.display()), "check the path and its permissions")
    };
    let metadata = std::fs::metadata(&whole).map_err(|error| failed(&error))?;
    if metadata.len() > FILE_BYTES {
        return Err(failed(&format_args!("it is larger than {FILE_BYTES} bytes")));
    }
    let mut text = std::fs::read_to_string(&whole).map_err(|error| failed(&error))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

fn unfilled(problem: impl Into<String>, remedy: impl Into<String>) -> Unfilled {
    Unfilled { problem: problem.into(), remedy: remedy.into() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Sources, fill};

    fn filled(text: &str) -> Result<String, String> {
        let environment = |name: &str| match name {
            "NAME" => Some("value".to_owned()),
            "EMPTY" => Some(String::new()),
            "TRICKY" => Some("a\"\n${NAME}".to_owned()),
            _ => None,
        };
        fill(text, Sources { environment: &environment, base: Path::new("/nonexistent") })
            .map_err(|unfilled| unfilled.problem)
    }

    #[test]
    fn references_are_replaced_and_the_rest_stays() {
        for (text, expected) in [
            ("plain", "plain"),
            ("a ${NAME} b", "a value b"),
            ("${NAME}${NAME}", "valuevalue"),
            ("${NONE:-fall back}", "fall back"),
            ("${EMPTY:-fall back}", "fall back"),
            ("${NAME:-fall back}", "value"),
            ("${NONE:-}", ""),
            ("${EMPTY}", ""),
            ("$${NAME}", "${NAME}"),
            ("$$$$", "$$"),
            ("costs $5 and $", "costs $5 and $"),
            ("${TRICKY}", "a\"\n${NAME}"),
        ] {
            assert_eq!(filled(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_filled_names_the_culprit() {
        for (text, expected) in [
            ("${NONE}", "`NONE` is not set"),
            ("${NAME", "not closed"),
            ("${}", "does not name a variable"),
            ("${A B}", "does not name a variable"),
            ("${NONE:-${NAME}}", "another `${`"),
            ("${file:}", "names no file"),
            ("${file:missing}", "/nonexistent/missing cannot be read"),
        ] {
            let problem = filled(text).expect_err(text);
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }
}
