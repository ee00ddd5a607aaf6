//! `gangway key new NAME`

use std::process::ExitCode;

use super::{FAILURE, OK, USAGE, say};
use crate::auth::NewKey;
use crate::config::is_key_name;

/// Makes a key and shows it, once, with the table that admits it.
pub(super) fn new(name: &str) -> ExitCode {
    if !is_key_name(name) {
        eprintln!(
            "error: `{}` is no name for a key: up to 64 letters, digits and . _ @ -, the first a letter or a digit",
            name.escape_debug()
        );
        return ExitCode::from(USAGE);
    }
    match NewKey::generate() {
        Ok(key) => say(&announcement(name, &key), OK),
        Err(error) => {
            eprintln!("error: no key can be made: {error}");
            ExitCode::from(FAILURE)
        }
    }
}

/// The key on a line of its own, then what to paste.
fn announcement(name: &str, key: &NewKey) -> String {
    let bare = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    let hash = key.hash_text();
    let header = if bare { name.to_owned() } else { format!("\"{name}\"") };
    format!(
        "{}\n\n\
         # The key above is shown this once. A client sends it as \"Authorization: Bearer KEY\".\n\
         # The configuration gets its hash, with methods = [\"api_key\"] in [auth]:\n\
         [auth.keys.{header}]\n\
         hash = \"{hash}\"\n\
         # Where auth.keys_file is used, a line of that file does the same:\n\
         # {name} {hash}\n",
        key.reveal(),
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::announcement;
    use crate::auth::NewKey;
    use crate::config::parse;

    #[test]
    fn what_is_printed_can_be_pasted_and_admits_the_key() {
        for name in ["laptop", "alice@example.com"] {
            let key = NewKey::generate().expect("random numbers");
            let text = announcement(name, &key);
            assert_eq!(text.matches(key.reveal()).count(), 1);
            let (shown, table) = text.split_once("\n\n").expect("the key stands apart");
            assert_eq!(shown, key.reveal());
            let loaded = parse(table, "pasted", Path::new("/"), &|_| None).expect("it is a configuration");
            assert_eq!(loaded.config.auth.keys[name].hash, key.hash());
            let line = table.lines().last().and_then(|line| line.strip_prefix("# ")).expect("a line");
            assert_eq!(line, format!("{name} {}", key.hash_text()), "as docs/configuration.md has it");
        }
    }
}
