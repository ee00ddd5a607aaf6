//! `[servers.NAME.env_from]`: variables whose values callers bring for children of their own.
//!
//! A caller must not come to decide which code a child runs, where that is found, or whom it talks to and trusts. So
//! the names that do are refused here, where the operator is told, and not when a caller comes.

use std::collections::BTreeMap;

use super::convert::{Refused, text};
use super::document::{Place, Value};
use super::interpolate::is_variable;
use super::meaning::{EnvFrom, Mode, Server};
use super::report::shown;
use super::section::Section;

/// Headers that prove to the gateway who calls, or name a session: none of a child's business (R:A13).
const CREDENTIALS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "dpop"];
/// The protocol's own headers, its session id among them.
const OF_THE_PROTOCOL: &str = "mcp-";
/// Headers that say how this one message travels. `Proxy` is none, but what CGI made of it was a proxy (httpoxy).
const OF_THE_MESSAGE: [&str; 12] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "keep-alive",
    "last-event-id",
    "proxy",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Beginnings of variables that a caller may not set, in upper case: of those that loaders, interpreters and package
/// runners read, of those that say whom to trust, and of those the gateway itself passes on. The documentation lists them
/// with the reasons.
const REFUSED_PREFIXES: &str = "LD_ DYLD_ GLIBC_ GCONV_ MALLOC_ BASH_ PYTHON PERL RUBY GEM_ BUNDLE_ NPM_ YARN_ DENO_ BUN_ \
    ELECTRON_ JAVA_ JDK_ _JAVA_ DOTNET_ COR_ CORECLR_ COMPLUS_ PHP LUA_ UV_ PIP_ CARGO_ RUSTC_ GIT_ OPENSSL_ SSL_ SSH_ \
    DOCKER_ SUDO_ TERMINFO XDG_ LC_ GANGWAY_";
/// Ends of them.
const REFUSED_SUFFIXES: &str = "_PROXY _CA_BUNDLE _ASKPASS";
/// Whole names of them.
const REFUSED_NAMES: &str = "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TZDIR TERM TMPDIR TMP TEMP PWD ENV IFS CDPATH \
    FPATH ZDOTDIR SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND GLOBIGNORE NODE_OPTIONS NODE_PATH NODE_EXTRA_CA_CERTS \
    NODE_TLS_REJECT_UNAUTHORIZED NODE_REPL_EXTERNAL_MODULE NODE_ICU_DATA NODE_V8_COVERAGE CLASSPATH GOFLAGS GOENV GODEBUG \
    GOPATH GOROOT GOPROXY R_PROFILE R_ENVIRON R_LIBS LOCPATH NLSPATH HOSTALIASES LOCALDOMAIN RES_OPTIONS RESOLV_HOST_CONF \
    SSLKEYLOGFILE EDITOR VISUAL PAGER BROWSER LESSOPEN KUBECONFIG AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE";

/// Reads the table.
pub(super) fn read(mut section: Section<'_>) -> EnvFrom {
    let headers = sources(&mut section, "headers", header_name);
    let claims = sources(&mut section, "claims", |name| match name {
        "" => Err(Refused::new("names no claim", "write the name of a claim, such as \"email\"")),
        name => Ok(name.to_owned()),
    });
    EnvFrom { headers, claims }
}

/// Reads one table of sources, each with the variable it fills.
fn sources(
    section: &mut Section<'_>,
    kind: &'static str,
    source_name: fn(&str) -> Result<String, Refused>,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let node = section.take(kind);
    let Some(table) = section.table_of(kind, node).filter(|table| !table.is_empty()) else {
        section.record(kind, node, "{}".to_owned());
        return found;
    };
    for (typed, entry) in table {
        let key = format!("{kind}.{typed}");
        section.record(&key, Some(&entry.node), shown(&entry.node.value));
        if matches!(entry.node.value, Value::Unfilled) {
            continue;
        }
        let pair = source_name(typed).and_then(|source| Ok((source, variable_name(text(&entry.node.value)?)?)));
        let added = pair.and_then(|(source, variable)| match found.insert(source, variable) {
            None => Ok(()),
            Some(_) => Err(Refused::new("stands twice", "case does not count in a header's name: leave one out")),
        });
        if let Err(refused) = added {
            section.refuse(&key, Some(&entry.node.place), refused);
        }
    }
    found
}

/// A field name (RFC 9110 section 5.1) that may be passed on, in lower case.
fn header_name(typed: &str) -> Result<String, Refused> {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if typed.is_empty() || !typed.chars().all(is_token) {
        return Err(Refused::new("is no header", "write the name of a header, such as \"X-GitHub-Token\""));
    }
    let name = typed.to_ascii_lowercase();
    if CREDENTIALS.contains(&name.as_str()) || name.starts_with(OF_THE_PROTOCOL) {
        let remedy = "what a caller shows to the gateway stays there: let clients send another header for the server";
        return Err(Refused::new("is never passed on", remedy));
    }
    if OF_THE_MESSAGE.contains(&name.as_str()) {
        return Err(Refused::new("is about the message itself", "let clients send a header of its own for this"));
    }
    Ok(name)
}

/// A variable that a caller may set.
fn variable_name(name: &str) -> Result<String, Refused> {
    if !is_variable(name) {
        return Err(Refused::new("names no variable", "write letters, digits and _, such as \"GITHUB_TOKEN\""));
    }
    // Some of them are read in lower case too, such as http_proxy and npm_config_registry.
    let upper = name.to_ascii_uppercase();
    let is_refused = REFUSED_NAMES.split_whitespace().any(|refused| upper == refused)
        || REFUSED_PREFIXES.split_whitespace().any(|prefix| upper.starts_with(prefix))
        || REFUSED_SUFFIXES.split_whitespace().any(|suffix| upper.ends_with(suffix));
    if is_refused {
        let problem = format!("would let callers set {name}");
        let remedy = "it decides what a process runs, where that is found or whom it trusts: only `env` may set it";
        return Err(Refused::new(problem, remedy));
    }
    Ok(name.to_owned())
}

/// Reports what does not go together: values of callers and children of nobody, and variables that two decide about.
pub(super) fn check(section: &Section<'_>, server: &Server) {
    let Server { env_from, env, env_pass, mode, .. } = server;
    if env_from.is_empty() {
        return;
    }
    // Where one of them comes from [server_defaults], the server's own is the one that is wrong.
    let is_own = |key: &&str| section.has(key) && !matches!(section.place(key), Some(Place::Defaults(_)));
    let refuse = |keys: &[&'static str], refused: Refused| {
        let key = keys.iter().copied().find(is_own).unwrap_or("env_from");
        section.refuse(key, section.place(key).as_ref(), refused);
    };
    if *mode == Mode::Shared {
        let remedy = "`mode = \"principal\"` shares processes within each caller only; `session` shares none";
        refuse(&["env_from", "mode"], Refused::new("gives a caller's values to a process of all (`mode`)", remedy));
    }
    let mut variables: Vec<&str> =
        env_from.headers.values().chain(env_from.claims.values()).map(String::as_str).collect();
    variables.sort_unstable();
    for pair in variables.windows(2).filter(|pair| pair[0] == pair[1]) {
        let problem = format!("fills the variable `{}` twice", pair[0]);
        refuse(&["env_from"], Refused::new(problem, "a variable has one source"));
    }
    variables.dedup();
    for variable in
        variables.into_iter().filter(|name| env.contains_key(*name) || env_pass.iter().any(|own| own == name))
    {
        let problem =
            format!("leaves open who decides about `{variable}`: `env_from`, `env` and `env_pass` share no name");
        let remedy = "a caller who brings no value must not get the operator's: leave one out";
        refuse(&["env_from", "env", "env_pass", "env_file"], Refused::new(problem, remedy));
    }
}

#[cfg(test)]
mod tests {
    use super::{header_name, variable_name};

    #[test]
    fn headers_that_are_shown_to_the_gateway_stay_there() {
        for name in ["Authorization", "PROXY-authorization", "Cookie", "Mcp-Session-Id", "mcp-anything", "DPoP", "Host"]
        {
            assert!(header_name(name).is_err(), "{name}");
        }
        for name in ["", "X Y", "X:", "é", "X\n"] {
            assert!(header_name(name).is_err(), "{name:?}");
        }
        assert_eq!(header_name("X-GitHub-Token").ok().as_deref(), Some("x-github-token"));
        assert!(header_name("X-Forwarded-User").is_ok() && header_name("X_Y").is_ok());
    }

    #[test]
    fn variables_that_decide_what_runs_are_the_operators() {
        for name in [
            "LD_PRELOAD",
            "DYLD_INSERT_LIBRARIES",
            "PATH",
            "HTTP_PROXY",
            "https_proxy",
            "All_Proxy",
            "NODE_OPTIONS",
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "BASH_ENV",
            "ENV",
            "PERL5OPT",
            "PERLLIB",
            "RUBYOPT",
            "JAVA_TOOL_OPTIONS",
            "_JAVA_OPTIONS",
            "GIT_SSH_COMMAND",
            "IFS",
            "HOME",
            "LC_ALL",
            "XDG_CONFIG_HOME",
            "GANGWAY_CHILD",
            "npm_config_registry",
            "SSL_CERT_FILE",
            "REQUESTS_CA_BUNDLE",
            "SSH_ASKPASS",
            "SSLKEYLOGFILE",
            "PHPRC",
        ] {
            assert!(variable_name(name).is_err(), "{name}");
        }
        for name in ["", "A B", "1A", "A=B", "A-B", "A\0", "é"] {
            assert!(variable_name(name).is_err(), "{name:?}");
        }
        for name in ["GITHUB_TOKEN", "OPENAI_API_KEY", "AWS_ACCESS_KEY_ID", "NODE_AUTH_TOKEN", "TOKEN", "PGPASSWORD"] {
            assert_eq!(variable_name(name).ok().as_deref(), Some(name));
        }
    }
}
