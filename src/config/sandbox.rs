//! `[servers.NAME.sandbox]`: what one server's processes may do and take.

use std::path::{Path, PathBuf};

use super::child::without_nul;
use super::convert::{Refused, bytes, mismatch};
use super::document::Value;
use super::meaning::{Sandbox, UserName};
use super::section::Section;

/// The least memory with which a program starts at all.
const LEAST_MEMORY: u64 = 16 << 20;
/// Standard input, output and error, and a few for the libraries and the program itself.
const LEAST_DESCRIPTORS: u32 = 16;

/// Reads the table.
pub(super) fn read(mut section: Section<'_>) -> Sandbox {
    let base = section.report.base;
    Sandbox {
        scope: section.choice("scope", "auto", &[("auto", true), ("off", false)]),
        user: section.parsed("user", "", user),
        umask: section.value("umask", &Value::plain("077"), umask),
        nofile: at_least(&mut section, "nofile", LEAST_DESCRIPTORS),
        nproc: at_least(&mut section, "nproc", 1),
        memory: section.value("memory", &Value::plain("off"), |value| match value {
            Value::Text(text) if text.meaning == "off" => Ok(None),
            Value::Integer(0) => Ok(None),
            other => bytes(other, LEAST_MEMORY).map(Some),
        }),
        read: section.list("read", |path| absolute(base, path)),
        write: section.list("write", |path| absolute(base, path)),
    }
}

/// Reads a limit of which `0` is none, and anything between makes no sense below `least`.
fn at_least(section: &mut Section<'_>, key: &'static str, least: u32) -> Option<u64> {
    let limit = section.value(key, &Value::Integer(0), |value| match super::convert::whole(value, 0)? {
        few if few != 0 && few < least => {
            let remedy = format!("write at least {least}, or 0 for no limit");
            Err(Refused::new("is too small for any program", remedy))
        }
        limit => Ok(limit),
    });
    (limit != 0).then_some(u64::from(limit))
}

/// Reads `name`, `uid` or `uid:gid`. Whether there is such a user is asked when a process is started.
fn user(typed: &str) -> Result<UserName, Refused> {
    const REMEDY: &str = "write a name such as \"mcp\", a number such as \"1000\", or two such as \"1000:1000\"";
    let refused = || Refused::new("is no user", REMEDY);
    if typed.starts_with(|c: char| c.is_ascii_digit()) {
        // The highest number means "leave as it is" to the system (setresuid(2)).
        let number = |digits: &str| digits.parse().ok().filter(|number| *number != u32::MAX).ok_or_else(refused);
        let (uid, gid) = match typed.split_once(':') {
            Some((uid, gid)) => (number(uid)?, Some(number(gid)?)),
            None => (number(typed)?, None),
        };
        return Ok(UserName::Number { uid, gid });
    }
    if typed.contains([':', '/', '\0']) || typed.contains(char::is_whitespace) {
        return Err(refused());
    }
    Ok(UserName::Name(typed.to_owned()))
}

/// Reads the octal text that umask(1) takes.
fn umask(value: &Value) -> Result<u32, Refused> {
    const REMEDY: &str = "write octal digits in quotes: \"077\" for the user alone, \"022\" for all to read";
    let Value::Text(text) = value else { return Err(mismatch(value, REMEDY)) };
    let digits = &text.meaning;
    let mask = u32::from_str_radix(digits, 8).ok();
    mask.filter(|mask| *mask <= 0o777 && digits.starts_with(|c: char| c.is_ascii_digit()))
        .ok_or_else(|| Refused::new("is no umask", REMEDY))
}

fn absolute(base: &Path, path: &str) -> Result<PathBuf, Refused> {
    if path.is_empty() {
        return Err(Refused::new("holds an empty path", "write the path of a file or folder"));
    }
    Ok(base.join(without_nul(path)?))
}

#[cfg(test)]
mod tests {
    use super::{umask, user};
    use crate::config::UserName;
    use crate::config::document::Value;

    #[test]
    fn users_are_names_or_numbers() {
        assert_eq!(user("mcp"), Ok(UserName::Name("mcp".to_owned())));
        assert_eq!(user("1000"), Ok(UserName::Number { uid: 1000, gid: None }));
        assert_eq!(user("1000:100"), Ok(UserName::Number { uid: 1000, gid: Some(100) }));
        for wrong in ["mcp:mcp", "1000:", "1000:staff", "4294967295", "-1x y", "a/b", "99999999999"] {
            assert!(user(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_umask_is_octal_text() {
        for (text, mask) in [("077", 0o77), ("0", 0), ("0022", 0o22), ("777", 0o777)] {
            assert_eq!(umask(&Value::plain(text)), Ok(mask), "{text}");
        }
        for wrong in
            [Value::plain("078"), Value::plain("1000"), Value::plain("+77"), Value::plain(""), Value::Integer(77)]
        {
            assert!(umask(&wrong).is_err(), "{wrong:?}");
        }
    }
}
