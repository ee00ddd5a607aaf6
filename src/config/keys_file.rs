//! The keys file: keys that are handed out and taken back without touching the configuration.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::convert::Refused;
use super::keys::{NAME_REMEDY, is_key_name, parse_hash};
use super::meaning::Key;
use super::problem::{Problem, Problems};

/// Reads a keys file: a line `NAME sha256:…` for each key; empty lines and those that start with `#` do not count.
/// Such a key opens every server and never expires; taking its line out is how it ends.
///
/// # Errors
/// The file cannot be read, or every line that is wrong.
pub fn read_keys_file(path: &Path) -> Result<BTreeMap<Arc<str>, Key>, Problems> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let message = format!("the keys file {} cannot be read: {error}", path.display());
        Problem::anywhere(message, "check `auth.keys_file` and its permissions")
    })?;
    let file = path.display().to_string();
    let mut problems = Vec::new();
    let mut keys = BTreeMap::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let span = start..start + line.trim_end().len();
        start += line.len();
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Err(refused) = add_line(&mut keys, line) {
            let message = format!("this line {}", refused.problem);
            problems.push(Problem::at(&file, &text, &span, message, refused.remedy));
        }
    }
    Problems::from_found(problems).map_or(Ok(keys), Err)
}

/// Adds the key of one line.
fn add_line(keys: &mut BTreeMap<Arc<str>, Key>, line: &str) -> Result<(), Refused> {
    let words = line.split_once([' ', '\t']);
    let (name, hash) = words.ok_or_else(|| Refused::new("has one word", "a line is NAME sha256:…"))?;
    if !is_key_name(name) {
        return Err(Refused::new("starts with no name for a key", NAME_REMEDY));
    }
    let hash = parse_hash(hash.trim_start())?;
    if keys.contains_key(name) {
        return Err(Refused::new("has a name that stands above", "every key has a name of its own"));
    }
    if let Some((other, _)) = keys.iter().find(|(_, key)| key.hash == hash) {
        let problem = format!("gives `{name}` the key of `{other}`");
        return Err(Refused::new(problem, "make a key for each name: a caller has one name"));
    }
    keys.insert(Arc::from(name), Key { hash, expires: None, servers: None, sessions: None, scopes: Vec::new() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::read_keys_file;

    #[test]
    fn a_keys_file_is_read_and_every_wrong_line_reported() {
        let path = std::env::temp_dir().join(format!("gangway-keys-{}", std::process::id()));
        let good = format!("# people\n\nalice sha256:{}\nbob\tsha256:{}\n", "01".repeat(32), "02".repeat(32));
        std::fs::write(&path, &good).expect("the file is written");
        let keys = read_keys_file(&path).expect("the keys are read");
        assert_eq!(keys.keys().map(AsRef::as_ref).collect::<Vec<_>>(), ["alice", "bob"]);
        let bad =
            format!("{good}alice sha256:{}\ncarol sha256:{}\nword\n-x sha256:00\n", "03".repeat(32), "02".repeat(32));
        std::fs::write(&path, bad).expect("the file is written");
        let problems = read_keys_file(&path).expect_err("four lines are wrong");
        assert_eq!(problems.iter().filter_map(|p| p.position()).collect::<Vec<_>>(), [(5, 1), (6, 1), (7, 1), (8, 1)]);
        std::fs::remove_file(&path).expect("the file is removed");
        assert!(read_keys_file(&path).is_err());
    }
}
