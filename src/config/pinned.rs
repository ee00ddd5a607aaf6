//! Whether a package runner is told which version to run.

/// The package a runner (`npx`, `bunx`, `uvx`) would fetch in whatever version is newest on the day of the start.
///
/// `None` where a version, a folder, a file or an address is named, or another program runs.
pub(super) fn unpinned<'a>(command: &str, args: &'a [String]) -> Option<&'a str> {
    let program = command.rsplit('/').next().unwrap_or(command);
    let (flags, python) = match program {
        "npx" | "bunx" => (["-p", "--package"], false),
        "uvx" => (["--from", "--spec"], true),
        _ => return None,
    };
    let package = package(args, flags)?;
    let elsewhere = package.starts_with(['.', '/', '~']) || package.contains(':');
    let version = if python {
        package.split_once("==").or_else(|| package.split_once('@')).map(|(_, version)| version)
    } else {
        // The first character may be the @ of a scope.
        package.char_indices().skip(1).find(|(_, c)| *c == '@').map(|(at, _)| &package[at + 1..])
    };
    let pinned = version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit() || c == 'v'));
    (!elsewhere && !pinned).then_some(package)
}

/// The package: what one of `flags` names, else the first argument that is no flag.
fn package<'a>(args: &'a [String], flags: [&str; 2]) -> Option<&'a str> {
    let mut first = None;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if flags.contains(&arg.as_str()) {
            return args.next().map(String::as_str);
        }
        if let Some((flag, package)) = arg.split_once('=')
            && flags.contains(&flag)
        {
            return Some(package);
        }
        if !arg.starts_with('-') {
            first = Some(arg.as_str());
            break;
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::unpinned;

    #[test]
    fn versions_are_recognised() {
        for (line, expected) in [
            ("npx -y @modelcontextprotocol/server-everything", Some("@modelcontextprotocol/server-everything")),
            ("npx -y @modelcontextprotocol/server-everything@2.0.0", None),
            ("npx -y @scope/name@latest", Some("@scope/name@latest")),
            ("npx mcp-remote@^1", Some("mcp-remote@^1")),
            ("npx mcp-remote@1", None),
            ("npx --package=a@1.0.0 b", None),
            ("npx -p a b", Some("a")),
            ("npx ./local", None),
            ("npx github:owner/name", None),
            ("/usr/bin/npx a", Some("a")),
            ("uvx mcp-server-git", Some("mcp-server-git")),
            ("uvx mcp-server-git==1.2", None),
            ("uvx mcp-server-git@1.2", None),
            ("uvx --from git+https://example.com/x y", None),
            ("uvx --from tools y", Some("tools")),
            ("node server.js", None),
            ("npx", None),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(unpinned(&words[0], &words[1..]), expected, "{line}");
        }
    }
}
