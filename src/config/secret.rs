//! What must not be shown: one rule for messages, for `check --explain` and for argument lists.

use super::meaning::{Config, Server};

/// What stands for a secret.
pub(super) const HIDDEN: &str = "(hidden)";

/// Words in a name that say that its value is a secret.
const WORDS: [&str; 8] = ["token", "secret", "password", "passwd", "credential", "authorization", "api-key", "apikey"];

/// Whether a key, a variable or a flag of this name holds a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    let folded = name.to_ascii_lowercase().replace('_', "-");
    WORDS.iter().any(|word| folded.contains(word)) || folded == "key" || folded.ends_with("-key")
}

/// Masks a source line that may hold a secret: one whose key says so, and everything within an `env` table.
///
/// `before` is the text above the line; it decides which table the line belongs to.
pub(super) fn mask_line(before: &str, line: &str) -> String {
    let trimmed = line.trim_start();
    if trimmed.starts_with('[') || trimmed.starts_with('#') {
        return line.to_owned();
    }
    let Some((key, _)) = line.split_once('=') else {
        return if in_environment(before) || line.contains("gangway_") { HIDDEN.to_owned() } else { line.to_owned() };
    };
    let name = key.trim().rsplit('.').next().unwrap_or("").trim_matches(['"', '\'', ' ']);
    let inline =
        ["env =", "env=", "token", "Token", "TOKEN", "secret", "gangway_"].iter().any(|word| line.contains(word));
    let dotted = key.split('.').any(|part| part.trim() == "env");
    if is_secret_name(name) || name == "env" || inline || dotted || in_environment(before) {
        format!("{key}= {HIDDEN}")
    } else {
        line.to_owned()
    }
}

/// Whether the last table header in `before` opens an `env` table.
fn in_environment(before: &str) -> bool {
    let header = before.lines().rev().map(str::trim).find(|line| line.starts_with('['));
    header.is_some_and(|line| {
        let path = line.trim_start_matches('[').split(']').next().unwrap_or("");
        path.rsplit('.').next().is_some_and(|last| last.trim() == "env")
    })
}

/// An argument list as it may be shown: the value of a flag whose name says secret is hidden.
pub(super) fn mask_arguments(arguments: &[String]) -> Vec<String> {
    let masked = with_secrets(arguments).map(|(argument, secret)| match secret {
        Some(secret) => format!("{}{HIDDEN}", &argument[..argument.len() - secret.len()]),
        None => argument.to_owned(),
    });
    masked.collect()
}

/// Each argument, with the secret at its end or that it is.
fn with_secrets(arguments: &[String]) -> impl Iterator<Item = (&str, Option<&str>)> {
    arguments.iter().map(String::as_str).scan(false, |is_announced, argument| {
        let is_value = std::mem::replace(is_announced, announces_secret(argument)) && !argument.starts_with('-');
        let assigned = argument.split_once('=').filter(|(name, _)| is_secret_name(name)).map(|(_, value)| value);
        Some((argument, if is_value { Some(argument) } else { assigned }))
    })
}

/// Whether an argument is a flag whose value, which follows, is a secret.
fn announces_secret(argument: &str) -> bool {
    argument.starts_with('-') && !argument.contains('=') && is_secret_name(argument.trim_start_matches('-'))
}

impl Server {
    /// The values in its table that are secrets by the name of their variable or flag.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let variables = self.env.iter().filter(|(name, _)| is_secret_name(name)).map(|(_, value)| value.as_str());
        variables.chain(with_secrets(&self.args).filter_map(|(_, secret)| secret))
    }
}

impl Config {
    /// The secrets by which the gateway itself is known to others, and its operators to it.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let issuers = self.auth.issuers.values().map(|issuer| issuer.introspection.client_secret.as_str());
        issuers.chain(self.admin.token.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::{mask_arguments, mask_line, with_secrets};

    #[test]
    fn lines_with_secrets_are_masked() {
        for (before, line, masked) in [
            ("[admin]\n", "token = \"s3\"", true),
            ("[servers.a]\n", "env = { A = \"s3\" }", true),
            ("[servers.a]\n", "env.A = \"s3\"", true),
            ("[servers.a.env]\n", "A = \"s3\"", true),
            ("[servers.a.env]\nA = \"\"\"\n", "s3", true),
            ("[servers.a.env]\n[servers.b]\n", "cwd = \"s3\"", false),
            ("[listen]\n", "address = \"s3\"", false),
            ("", "alice gangway_s3", true),
            ("[auth.keys.a]\n", "hash = \"gangway_s3\"", true),
            ("", "servers.a.env.API_KEY = 's3'", true),
            ("", "admin = { address = \"off\", token = \"s3\" }", true),
            ("[auth.issuers.a]\n", "introspection = { client_secret = \"s3\" }", true),
        ] {
            assert_eq!(!mask_line(before, line).contains("s3"), masked, "{before}{line}");
        }
    }

    #[test]
    fn arguments_with_secrets_are_masked() {
        let arguments =
            ["-y", "server", "--api-key", "s1", "--token=s2", "PASSWORD=s3", "--keyboard", "x", "--key", "-v"];
        let arguments = arguments.map(str::to_owned);
        let shown = mask_arguments(&arguments).join(" ");
        let secrets: Vec<&str> = with_secrets(&arguments).filter_map(|(_, secret)| secret).collect();
        assert_eq!(secrets, ["s1", "s2", "s3"]);
        assert_eq!(shown, "-y server --api-key (hidden) --token=(hidden) PASSWORD=(hidden) --keyboard x --key -v");
    }
}
