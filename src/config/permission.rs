//! Files that hold secrets and that everybody on the machine may read.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::report::Effective;
use super::secret::{HIDDEN, is_secret_name};

/// The permission of everybody to read.
const READABLE_BY_ALL: u32 = 0o004;

/// A warning, if everybody may read this file.
pub(super) fn warn_if_readable(what: &str, path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    (mode & READABLE_BY_ALL != 0).then(|| {
        format!("{what} {} holds secrets and everybody on this machine may read it: chmod o-r it", path.display())
    })
}

/// Whether a file that says all this holds a secret, or the hash of one: a value that is not shown, and no reference to
/// where it is kept.
pub(super) fn holds_secret(effective: &[Effective]) -> bool {
    effective.iter().any(|Effective { key, value, .. }| {
        let name = key.rsplit('.').next().unwrap_or(key);
        // Every variable is hidden, whatever its name.
        let is_plain_variable = key.contains(".env.") && !is_secret_name(name);
        name == "hash" || (value.contains(HIDDEN) && !is_plain_variable)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{holds_secret, warn_if_readable};
    use crate::config::parse;

    #[test]
    fn secrets_are_told_from_other_values() {
        let holds = |text: &str| {
            let text = format!("{text}\n[servers.a]\ncommand = \"a\"\n");
            let loaded = parse(&text, "a.toml", Path::new("/"), &|_| Some("x".to_owned())).expect("a configuration");
            holds_secret(&loaded.effective)
        };
        for secret in [
            "admin.token = \"t\"",
            "admin.token = \"${A:-t}\"",
            "servers.b = { command = \"b\", env.API_TOKEN = \"t\" }",
            "servers.b = { command = \"b\", args = [\"--api-key\", \"t\"] }",
            "auth.methods = [\"api_key\"]\nauth.keys.me.hash = \"sha256:0101010101010101010101010101010101010101010101010101010101010101\"",
        ] {
            assert!(holds(secret), "{secret}");
        }
        for plain in [
            "",
            "admin.token = \"${A}\"",
            "servers.b = { command = \"b\", env = { LANG = \"C\", API_TOKEN = \"${file:/dev/null}\" } }",
            "servers.b = { command = \"b\", args = [\"--keyboard\", \"t\"] }",
        ] {
            assert!(!holds(plain), "{plain}");
        }
    }

    #[test]
    fn only_a_file_for_all_is_warned_of() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("gangway-permission-{}", std::process::id()));
        std::fs::write(&path, "").expect("the file is written");
        let warning = |mode| {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("its mode is set");
            warn_if_readable("the file", &path)
        };
        assert!(warning(0o644).is_some_and(|text| text.contains("chmod o-r")));
        assert_eq!((warning(0o640), warning(0o600)), (None, None));
        std::fs::remove_file(&path).expect("the file is removed");
        assert_eq!(warn_if_readable("the file", &path), None);
    }
}
