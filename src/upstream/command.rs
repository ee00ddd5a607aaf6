//! What to start, and with which environment.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::caller::OwnVariables;
use crate::config::{Sandbox, Server};
use crate::telemetry::{KnownSecrets, ServerMetrics};

/// Told how many lines a child has just written to stderr.
pub type StderrCount = Arc<dyn Fn(usize) + Send + Sync>;

/// Variables every child gets, where the gateway has them.
const PASSED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "TMPDIR",
    "TERM",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
];
/// Beginnings of further names that are passed on.
const PASSED_PREFIXES: &[&str] = &["LC_", "XDG_"];
/// What names the gateway's own user, and folders of that user: not for a child that runs as another.
const OF_THE_USER: &[&str] = &["HOME", "USER", "LOGNAME"];
const OF_THE_USER_PREFIX: &str = "XDG_";
/// Beginning of the gateway's own variables, which may hold its keys.
const OWN_PREFIX: &str = "GANGWAY_";

/// One child to be started. No shell is involved.
#[derive(Clone)]
pub struct Command {
    /// Name of the configured server, for log lines.
    pub server: Arc<str>,
    /// Program: a path, or a name to be looked up in the `PATH` of `environment`.
    pub program: String,
    /// Its arguments, without the program itself.
    pub arguments: Vec<String>,
    /// Working directory; `None` is the gateway's.
    pub directory: Option<PathBuf>,
    /// Its whole environment.
    pub environment: Vec<(OsString, OsString)>,
    /// What the child may do and take.
    pub sandbox: Sandbox,
    /// Those of its values that are secrets, to be left out of what is logged of its words.
    pub known_secrets: KnownSecrets,
    /// Told about lines on stderr; called on the runtime's threads and must not block.
    pub stderr_count: Option<StderrCount>,
    /// Where the memory, the processor time and the descriptors of its processes are shown.
    pub metrics: Option<Arc<ServerMetrics>>,
}

impl Command {
    /// What `server` says, with `own` as the gateway's environment.
    #[must_use]
    pub fn new(name: Arc<str>, server: &Server, own: impl Iterator<Item = (OsString, OsString)>) -> Self {
        Self {
            server: name,
            program: server.command.clone(),
            arguments: server.args.clone(),
            directory: server.cwd.clone(),
            environment: environment(server, own),
            sandbox: server.sandbox.clone(),
            known_secrets: KnownSecrets::new(server.secrets()),
            stderr_count: None,
            metrics: None,
        }
    }

    /// This command for a child of the caller who brings these variables.
    pub(super) fn with_own(&self, own: &OwnVariables) -> Self {
        let mut command = self.clone();
        command.known_secrets = command.known_secrets.and(own.iter().map(|(_, value)| value));
        let own = own.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        command.environment.extend(own);
        command
    }

    /// The `PATH` the program is looked up in.
    pub(super) fn path(&self) -> Option<&OsStr> {
        self.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str())
    }
}

impl fmt::Debug for Command {
    /// Arguments and values of variables may be secrets and are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.environment.iter().map(|(name, _)| name).collect();
        f.debug_struct("Command")
            .field("server", &self.server)
            .field("program", &self.program)
            .field("arguments", &self.arguments.len())
            .field("directory", &self.directory)
            .field("environment", &names)
            .field("sandbox", &self.sandbox)
            .finish_non_exhaustive()
    }
}

/// The complete environment of a child of `server`, in name order, each name once.
///
/// From `own` come the built-in names and those in `env_pass`, or with `env_inherit` everything
/// but the gateway's own `GANGWAY_*`; what `env` sets wins. A child that runs as another user gets what names a
/// user from that one (`identity`), not from here.
#[must_use]
pub fn environment(server: &Server, own: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let passes = |name: &OsStr| {
        server.env_pass.iter().any(|pass| name == pass.as_str())
            || if server.sandbox.user.is_some() && names_the_user(name) {
                false
            } else if server.env_inherit {
                !begins_with(name, OWN_PREFIX)
            } else {
                is_passed(name)
            }
    };
    let mut variables: BTreeMap<OsString, OsString> = own.filter(|(name, _)| passes(name)).collect();
    variables.extend(server.env.iter().map(|(name, value)| (name.into(), value.into())));
    // A caller who brings no value has none, not the gateway's.
    variables.retain(|name, _| name.to_str().is_none_or(|name| !server.env_from.sets(name)));
    variables.into_iter().collect()
}

fn names_the_user(name: &OsStr) -> bool {
    OF_THE_USER.iter().any(|own| name == *own) || begins_with(name, OF_THE_USER_PREFIX)
}

fn is_passed(name: &OsStr) -> bool {
    PASSED.iter().any(|passed| name == *passed) || PASSED_PREFIXES.iter().any(|prefix| begins_with(name, prefix))
}

fn begins_with(name: &OsStr, prefix: &str) -> bool {
    name.as_encoded_bytes().starts_with(prefix.as_bytes())
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Command, environment};
    use crate::caller::OwnVariables;
    use crate::config::{
        Breaker, EnvFrom, Method, Mode, Pool, Queue, Required, Sandbox, Server, ServerAuth, Timeouts, Tools, UserName,
    };
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::sync::Arc;
    use std::time::Duration;

    /// A server whose clocks are a second each, and which bounds nothing else.
    pub(in crate::upstream) fn server() -> Server {
        let second = Duration::from_secs(1);
        Server {
            command: "npx".into(),
            args: vec!["-y".into()],
            cwd: Some("/srv".into()),
            env: [("TOKEN".into(), "set".into())].into(),
            env_pass: vec!["EXTRA".into()],
            env_from: EnvFrom::default(),
            env_inherit: false,
            path: "/x/mcp".into(),
            required: Required::Yes,
            check_on_start: true,
            mode: Mode::Session,
            legacy_sse: false,
            strict_status: false,
            pool: Pool {
                min_idle: 0,
                max_size: None,
                wait: second,
                idle_timeout: None,
                max_lifetime: None,
                max_uses: None,
                max_sessions_per_child: None,
                max_calls_per_child: None,
            },
            timeouts: Timeouts {
                start: second,
                call_idle: None,
                call_total: None,
                ask: None,
                close: second,
                term: second,
            },
            line_bytes: 1,
            queue: Queue { messages: 1, bytes: 1 },
            breaker: Breaker { failures: 1, backoff_max: second },
            tools: Tools::default(),
            auth: ServerAuth { methods: vec![Method::None], ..ServerAuth::default() },
            sandbox: Sandbox { scope: true, umask: 0o77, ..Sandbox::default() },
        }
    }

    fn given(server: &Server, own: &[&str]) -> Vec<String> {
        let own = own.iter().map(|&name| (OsString::from(name), OsString::from("own")));
        let text = |part: OsString| part.into_string().expect("text");
        environment(server, own).into_iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect()
    }

    const OWN: &[&str] = &[
        "PATH",
        "HOME",
        "LC_ALL",
        "XDG_RUNTIME_DIR",
        "TZ",
        "EXTRA",
        "TOKEN",
        "AWS_SECRET",
        "LC",
        "PATHS",
        "GANGWAY_API_KEY",
        "SSL_CERT_FILE",
    ];

    #[test]
    fn only_known_names_are_passed_and_env_wins() {
        let expected = [
            "EXTRA=own",
            "HOME=own",
            "LC_ALL=own",
            "PATH=own",
            "SSL_CERT_FILE=own",
            "TOKEN=set",
            "TZ=own",
            "XDG_RUNTIME_DIR=own",
        ];
        assert_eq!(given(&server(), OWN), expected);
    }

    #[test]
    fn a_name_to_pass_that_is_absent_is_absent() {
        assert_eq!(given(&server(), &["PATH"]), ["PATH=own", "TOKEN=set"]);
    }

    #[test]
    fn another_user_is_not_given_the_gateways_own_folders() {
        let mut server = server();
        server.sandbox.user = Some(UserName::Name("mcp".into()));
        assert_eq!(
            given(&server, OWN),
            ["EXTRA=own", "LC_ALL=own", "PATH=own", "SSL_CERT_FILE=own", "TOKEN=set", "TZ=own"]
        );
        server.env_pass.push("HOME".into());
        assert!(given(&server, OWN).contains(&"HOME=own".into()));
    }

    #[test]
    fn run_passes_all_but_the_gateways_own() {
        let mut server = server();
        server.env_inherit = true;
        let given = given(&server, OWN);
        assert_eq!(given.len(), OWN.len() - 1);
        assert!(given.contains(&"AWS_SECRET=own".into()) && given.contains(&"TOKEN=set".into()));
        assert!(!given.iter().any(|variable| variable.starts_with("GANGWAY_")));
    }

    #[test]
    fn what_callers_decide_about_comes_from_nobody_else() {
        let mut server = server();
        server.env_from.headers.insert("x-token".into(), "TOKEN".into());
        server.env_from.claims.insert("sub".into(), "EXTRA".into());
        assert_eq!(
            given(&server, OWN).iter().filter(|it| it.starts_with("TOKEN") || it.starts_with("EXTRA")).count(),
            0
        );
        let command = Command::new(Arc::from("x"), &server, std::iter::empty());
        let own = OwnVariables::new([("TOKEN".to_owned(), "brought".to_owned())].into());
        assert_eq!(command.with_own(&own).environment, [("TOKEN".into(), "brought".into())]);
        assert!(command.with_own(&OwnVariables::default()).environment.is_empty());
    }

    #[test]
    fn values_need_not_be_text() {
        let odd = OsString::from_vec(vec![0xFF, b'=']);
        let own = [(OsString::from("PATH"), odd.clone())];
        let command = Command::new(Arc::from("x"), &server(), own.into_iter());
        assert_eq!(command.path(), Some(odd.as_os_str()));
        assert_eq!((command.program.as_str(), command.arguments.len()), ("npx", 1));
    }
}
