//! What well-known complaints on a child's stderr mean to the operator.

/// Words that stand together in what a child wrote, and what to do about it.
struct Sign {
    /// All of them must be there, in any order and on any lines.
    words: &'static [&'static str],
    remedy: &'static str,
}

const fn sign(words: &'static [&'static str], remedy: &'static str) -> Sign {
    Sign { words, remedy }
}

/// The first that fits is told, so what is narrower stands first.
const SIGNS: &[Sign] = &[
    sign(
        &["npm", "E404"],
        "npm knows no package of that name: check its spelling, or log in to npm where the package is private",
    ),
    sign(
        &["could not determine executable to run"],
        "the package has no program to start: it is a library, or its program has another name (npx -p PACKAGE PROGRAM)",
    ),
    sign(&["npx canceled"], "npx asks before it installs, and nobody can answer: write npx -y"),
    sign(&["was not found in the package registry"], "PyPI knows no package of that name: check its spelling"),
    sign(&["No solution found when resolving"], "uv finds no version of that package for this Python: check its name"),
    sign(
        &["An executable named", "is not provided by package"],
        "the package's program has another name: write uvx --from PACKAGE PROGRAM",
    ),
    sign(&["input device is not a TTY"], "leave -t out of docker run: an MCP server is driven over pipes (-i)"),
    sign(&["permission denied", "docker"], "this user may not use Docker: add it to the group docker"),
    sign(&["Cannot connect to the Docker daemon"], "Docker is not running"),
    sign(&["pull access denied"], "there is no such image, or docker login is needed"),
    sign(&["ENOSPC"], "the disk is full"),
    sign(&["No space left on device"], "the disk is full"),
    sign(&["ENOTFOUND"], NO_NETWORK),
    sign(&["EAI_AGAIN"], NO_NETWORK),
    sign(&["Temporary failure in name resolution"], NO_NETWORK),
    sign(&["npm", "ETIMEDOUT"], NO_NETWORK),
    sign(&["npm", "ECONNREFUSED"], NO_NETWORK),
    sign(
        &["EADDRINUSE"],
        "it opens a port that is taken: a stdio server needs none; look for an option such as stdio or --transport stdio",
    ),
    sign(&["EACCES"], "a file is closed to this user: the line with EACCES names it"),
    sign(&["Permission denied"], "a file is closed to this user: the line that says so names it"),
    sign(&["ModuleNotFoundError"], NO_PYTHON_MODULE),
    sign(&["No module named"], NO_PYTHON_MODULE),
    sign(&["can't open file"], NO_SCRIPT),
    sign(&["ERR_MODULE_NOT_FOUND"], NO_NODE_MODULE),
    sign(&["Cannot find module"], NO_NODE_MODULE),
    sign(&["GLIBC_"], "it was built for a newer system than this one"),
];

const NO_NETWORK: &str =
    "a name or a registry cannot be reached: check the network, and HTTPS_PROXY if there is a proxy";
const NO_SCRIPT: &str = "there is no such script; a relative path begins where the gateway was started, or at `cwd`";
const NO_PYTHON_MODULE: &str = "this Python lacks a module: install it there, or start the Python of the virtual environment \
                                that has it";
const NO_NODE_MODULE: &str = "Node finds no such file or package: a relative path begins where the gateway was started, or \
                              at `cwd`; perhaps npm install is missing";

/// Complaints of a Node that is older than what it runs.
const OLD_NODE: &[&str] = &[
    "EBADENGINE",
    "Unsupported engine",
    "ERR_REQUIRE_ESM",
    "ERR_UNKNOWN_BUILTIN_MODULE",
    "ERR_UNSUPPORTED_ESM_URL_SCHEME",
    "SyntaxError: Unexpected token '?",
    "SyntaxError: Unexpected token '.'",
    "SyntaxError: Invalid regular expression flags",
    "Named export",
    "does not provide an export named",
    "fetch is not defined",
    "File is not defined",
    "crypto is not defined",
    "CustomEvent is not defined",
    "ReadableStream is not defined",
    "structuredClone is not defined",
];

/// What to do about what the child complained of; `None` where it is nothing known.
pub(super) fn remedy(stderr: &[String]) -> Option<String> {
    let has = |word: &str| stderr.iter().any(|line| line.contains(word));
    if OLD_NODE.iter().any(|word| has(word)) && has_node(stderr) {
        let version =
            node_version(stderr).map_or_else(|| "this Node.js".to_owned(), |version| format!("Node.js {version}"));
        return Some(format!("{version} is too old for it: install a newer one, or put it first in PATH"));
    }
    SIGNS.iter().find(|sign| sign.words.iter().all(|word| has(word))).map(|sign| sign.remedy.to_owned())
}

/// Whether Node or npm wrote this: other programs use some of the same words.
fn has_node(stderr: &[String]) -> bool {
    stderr.iter().any(|line| {
        line.contains("npm ") || line.contains("node:") || line.contains("(internal/") || line.starts_with("Node.js v")
    })
}

/// The version that Node names below an uncaught error, or npm beside what the package asks for.
fn node_version(stderr: &[String]) -> Option<&str> {
    stderr.iter().find_map(|line| {
        let version = match line.strip_prefix("Node.js v") {
            Some(version) => version,
            None => line.split_once("current: { node: 'v")?.1.split('\'').next()?,
        };
        version.starts_with(|c: char| c.is_ascii_digit()).then_some(version.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::remedy;

    fn told(stderr: &str) -> String {
        let lines: Vec<String> = stderr.lines().map(str::to_owned).collect();
        remedy(&lines).unwrap_or_default()
    }

    #[test]
    fn known_complaints_have_a_remedy() {
        for (stderr, part) in [
            (
                "npm error code E404\nnpm error 404 Not Found - GET https://registry.example/x",
                "no package of that name",
            ),
            ("npm ERR! code E404", "no package of that name"),
            ("npm error could not determine executable to run", "npx -p PACKAGE PROGRAM"),
            ("npm error code ENOTFOUND", "network"),
            ("npm error code EACCES\nnpm error path /root/.npm", "EACCES names it"),
            ("Error: Cannot find module '/srv/x.js'\n  code: 'MODULE_NOT_FOUND'", "Node finds no such file"),
            ("/usr/bin/python3: No module named nope", "this Python lacks a module"),
            ("python: can't open file '/x.py': [Errno 2]", "no such script"),
            ("the input device is not a TTY", "leave -t out"),
            ("Error: listen EADDRINUSE: address already in use :::3000", "--transport stdio"),
        ] {
            assert!(told(stderr).contains(part), "{stderr}: {}", told(stderr));
        }
        assert_eq!(told("something else went wrong"), "");
    }

    #[test]
    fn an_old_node_is_named() {
        let crash = "file:///x.js:3\nReferenceError: fetch is not defined\n    at node:internal/x\n\nNode.js v16.20.0";
        assert!(told(crash).starts_with("Node.js 16.20.0 is too old"), "{}", told(crash));
        let engine = "npm warn EBADENGINE   required: { node: '>=22' },\n\
                      npm warn EBADENGINE   current: { node: 'v18.19.1', npm: '9.2.0' }";
        assert!(told(engine).starts_with("Node.js 18.19.1 is too old"), "{}", told(engine));
        assert_eq!(told("ruby: fetch is not defined"), "");
    }
}
