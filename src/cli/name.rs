//! The name of a server that `gangway run` is given no name for.

use crate::config::check_server_name;

/// Programs that run what their first argument names.
const RUNNERS: [&str; 9] = ["npx", "bunx", "uvx", "node", "nodejs", "bun", "deno", "tsx", "python"];

/// Extensions of what runners run.
const EXTENSIONS: [&str; 12] = ["py", "pyz", "js", "mjs", "cjs", "ts", "mts", "sh", "rb", "jar", "exe", "git"];

/// What names of MCP servers start with; the longest that fits is taken off, once.
const PREFIXES: [&str; 3] = ["mcp-server-", "server-", "mcp-"];

/// Derives a name: the last path part of what is run, minus scope, version, extension and the usual prefixes, in the
/// characters a name may have; `default` where nothing is left.
#[must_use]
pub fn server_name(command: &str, args: &[String]) -> String {
    let program = last_part(command);
    let runs = if is_runner(program) { args.iter().find(|arg| !arg.starts_with('-')) } else { None };
    let part = last_part(runs.map_or(command, String::as_str));
    let plain = clean(without_extension(without_version(part)));
    let short = PREFIXES.iter().find_map(|prefix| plain.strip_prefix(prefix)).unwrap_or(&plain);
    let name: String = short.chars().take(32).collect();
    let name = name.trim_matches('-');
    if check_server_name(name).is_ok() { name.to_owned() } else { "default".to_owned() }
}

/// Whether a program is a runner; `python3` and `python3.12` are `python`.
fn is_runner(program: &str) -> bool {
    let program = without_extension(program);
    RUNNERS.contains(&program)
        || program.strip_prefix("python").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

fn last_part(path: &str) -> &str {
    let path = path.trim_end_matches('/');
    path.rsplit('/').next().unwrap_or(path)
}

/// Drops `@1.2`, `==1.2` and the like; a leading `@` is a scope's and no version's.
fn without_version(part: &str) -> &str {
    let end = part.char_indices().skip(1).find(|(_, c)| matches!(c, '@' | '=' | '[' | '<' | '>' | '~' | '#' | '?'));
    end.map_or(part, |(at, _)| &part[..at])
}

fn without_extension(part: &str) -> &str {
    match part.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() && EXTENSIONS.contains(&extension) => stem,
        _ => part,
    }
}

/// Lower case, with one `-` for each run of what a name cannot hold, and none at the ends.
fn clean(part: &str) -> String {
    let mut cleaned = String::with_capacity(part.len());
    for c in part.chars() {
        if c.is_ascii_alphanumeric() {
            cleaned.push(c.to_ascii_lowercase());
        } else if !cleaned.is_empty() && !cleaned.ends_with('-') {
            cleaned.push('-');
        }
    }
    cleaned.truncate(cleaned.trim_end_matches('-').len());
    cleaned
}

#[cfg(test)]
mod tests {
    use super::server_name;

    #[test]
    fn names_come_from_what_is_run() {
        for (line, expected) in [
            ("npx -y @modelcontextprotocol/server-everything", "everything"),
            ("npx -y @modelcontextprotocol/server-everything@2.0.0 stdio", "everything"),
            ("npx mcp-remote@latest https://example.com/mcp", "remote"),
            ("npx @playwright/mcp@latest", "default"),
            ("uvx mcp-server-git==1.2 --repository /srv", "git"),
            ("uvx mcp_server_time", "time"),
            ("uvx git+https://example.com/owner/mcp-notes.git@v1", "notes"),
            ("python -m mcp_server_fetch", "fetch"),
            ("/usr/bin/python3.12 -u ./tools/weather_server.py", "weather-server"),
            ("node --inspect /srv/app/dist/index.js", "index"),
            ("node", "node"),
            ("npx -y", "npx"),
            ("./bin/files-server", "files-server"),
            ("/opt/mcp-server-files", "files"),
            ("github-mcp-server stdio", "github-mcp-server"),
            ("My.Tool", "my-tool"),
            ("mcp", "default"),
            ("server-sse", "default"),
            ("mcp-", "default"),
            ("über", "ber"),
            ("---", "default"),
            ("a-very-long-name-that-goes-on-and-on-and-on", "a-very-long-name-that-goes-on-an"),
            ("a-very-long-name-that-goes-on-1-and-on", "a-very-long-name-that-goes-on-1"),
            ("", "default"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(server_name(&words[0], &words[1..]), expected, "{line}");
        }
    }
}
