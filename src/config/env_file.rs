//! A server's `env_file`: variables, one a line.

use std::collections::BTreeMap;
use std::path::Path;

use super::interpolate::is_variable;
use super::problem::Problem;

/// Reads the variables of an env file.
///
/// A line is `NAME=value`, also behind `export`; a value may stand in single or double quotes, which are taken off
/// and change nothing within. Empty lines and those that start with `#` do not count; nothing is filled in.
///
/// # Errors
/// The file cannot be read, or every line that is wrong. The lines are not shown: they hold secrets.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, String>, Vec<Problem>> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let message = format!("the env file {} cannot be read: {error}", path.display());
        vec![Problem::anywhere(message, "check `env_file` and its permissions")]
    })?;
    let mut problems = Vec::new();
    let mut variables = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match parse_line(line) {
            Some((name, value)) => {
                variables.insert(name.to_owned(), value.to_owned());
            }
            None => {
                let message = format!("{}:{}: this line is no variable", path.display(), number + 1);
                problems.push(Problem::anywhere(message, "a line is NAME=value"));
            }
        }
    }
    if problems.is_empty() { Ok(variables) } else { Err(problems) }
}

fn parse_line(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_prefix("export ").map_or(line, str::trim_start);
    let (name, value) = line.split_once('=')?;
    let (name, value) = (name.trim_end(), value.trim_start());
    let quoted = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
    (is_variable(name) && !value.contains('\0')).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::{parse_line, read};

    #[test]
    fn lines_are_variables() {
        for (line, expected) in [
            ("A=b", Some(("A", "b"))),
            ("A=", Some(("A", ""))),
            ("A = b c", Some(("A", "b c"))),
            ("export A_1=b=c", Some(("A_1", "b=c"))),
            ("A=\"b # c\"", Some(("A", "b # c"))),
            ("A='${B}'", Some(("A", "${B}"))),
            ("A=\"b", Some(("A", "\"b"))),
            ("A", None),
            ("=b", None),
            ("1A=b", None),
            ("A B=c", None),
        ] {
            assert_eq!(parse_line(line), expected, "{line}");
        }
    }

    #[test]
    fn wrong_lines_are_named_and_not_shown() {
        let path = std::env::temp_dir().join(format!("gangway-env-{}", std::process::id()));
        std::fs::write(&path, "# c\nA=1\nsecret\n\nB=2\n=secret\n").expect("the file is written");
        let problems = read(&path).expect_err("two lines are wrong");
        let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 2);
        assert!(shown[0].contains(":3:") && shown[1].contains(":6:"), "{shown:?}");
        assert!(!shown.concat().contains("secret"), "{shown:?}");
        std::fs::remove_file(&path).expect("the file is removed");
        assert_eq!(read(&path).expect_err("there is no file").len(), 1);
    }
}
