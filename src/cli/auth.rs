//! `gangway auth explain`

use std::fmt::Write as _;
use std::io::Read;
use std::process::ExitCode;

use super::{CONFIGURATION, ExplainArgs, FAILURE, OK, USAGE, complain, say};
use crate::auth::{Asked, Explanation, Operation, Rejection, Requirements, Scopes, TokenFault, bearer, explain};
use crate::config::{self, Config, ScopeRules};
use crate::unix_time;

/// The most that is read as a token: more than any header may hold.
const TOKEN_BYTES: u64 = 256 * 1024;

/// Judges a token from standard input as the server would, and says how each check went. Neither the token nor a secret
/// is shown.
pub(super) fn explain_token(args: &ExplainArgs) -> ExitCode {
    let loaded = match config::load(&args.config, &|name| std::env::var(name).ok()) {
        Ok(loaded) => loaded,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(CONFIGURATION);
        }
    };
    let config = loaded.config;
    let Some((name, server)) = config.servers.get_key_value(args.server.as_str()) else {
        let known: Vec<&str> = config.servers.keys().map(AsRef::as_ref).collect();
        return complain(
            USAGE,
            format_args!("there is no server {:?}: it is one of {}", args.server, known.join(", ")),
        );
    };
    let mut typed = Vec::new();
    if let Err(error) = std::io::stdin().lock().take(TOKEN_BYTES).read_to_end(&mut typed) {
        return complain(FAILURE, format_args!("the token cannot be read from standard input: {error}"));
    }
    let typed = typed.trim_ascii();
    if typed.is_empty() {
        return complain(USAGE, "there is no token on standard input: type `gangway auth explain … < FILE`");
    }
    let token = bearer::credential(typed).unwrap_or(typed);
    let now_unix = unix_time::seconds();
    let asked = Asked { server: name, policy: &server.auth, thumbprint: None, now_unix };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(FAILURE, format_args!("cannot start: {error}")),
    };
    let explanation = runtime.block_on(explain(&config.auth, &asked, token));
    let rules = &server.auth.scope_rules;
    let lacking = lacking(&explanation, rules);
    let mut text = text(&explanation, &config, lacking.as_deref());
    if let (Ok(admitted), None) = (&explanation.outcome, &lacking) {
        text.push_str(&withheld(rules, &admitted.scopes));
    }
    say(&text, if explanation.outcome.is_ok() && lacking.is_none() { OK } else { FAILURE })
}

/// A line for each thing that what was granted does not suffice for.
fn withheld(rules: &ScopeRules, granted: &Scopes) -> String {
    let requirements = Requirements::new(rules);
    let suffices = |method: &str, tool: Option<&str>| requirements.check(granted, [Operation { method, tool }]).is_ok();
    let methods = rules.method_scopes.iter().filter(|(method, _)| !suffices(method, None));
    let methods = methods.map(|(method, scopes)| format!("but not for {method}: that needs {}\n", scopes.join(" ")));
    // A pattern matches itself.
    let tools = rules.tools.iter().map(|(tool, scopes)| (tool.to_string(), scopes));
    let tools = tools.filter(|(tool, _)| !suffices("", Some(tool)));
    let tools = tools.map(|(tool, scopes)| format!("but not for the tool {tool}: that needs {}\n", scopes.join(" ")));
    methods.chain(tools).collect()
}

/// The scopes that every request needs, if the caller was granted too little for any.
fn lacking(explanation: &Explanation, rules: &ScopeRules) -> Option<String> {
    let admitted = explanation.outcome.as_ref().ok()?;
    let requirements = Requirements::new(rules);
    requirements.check(&admitted.scopes, []).err()?;
    Some(requirements.everything().collect::<Vec<_>>().join(" "))
}

/// A line for each check, then what follows from them. What passed a first look and failed a second one is told once.
fn text(explanation: &Explanation, config: &Config, lacking: Option<&str>) -> String {
    let mut text = String::new();
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        writeln!(text, "{arguments}").expect("writing to a String cannot fail");
    };
    if let Some(name) = &explanation.issuer {
        let issuer = config.auth.issuers.get(name).map_or("", |issuer| &*issuer.issuer);
        line(format_args!("held against auth.issuers.{name}, {issuer}"));
    }
    for (at, step) in explanation.steps.iter().enumerate() {
        if step.passed && explanation.steps[at + 1..].iter().any(|later| later.name == step.name) {
            continue;
        }
        match step.passed {
            true => line(format_args!("  pass  {:9}  {}", step.name, step.got)),
            false => line(format_args!("  FAIL  {:9}  expected {}, got {}", step.name, step.expected, step.got)),
        }
    }
    if let Some(trouble) = &explanation.trouble {
        line(format_args!("  FAIL  issuer     {trouble}"));
    }
    match &explanation.outcome {
        Ok(admitted) => {
            let scopes = admitted.scopes.iter().collect::<Vec<_>>().join(" ");
            match lacking {
                None => line(format_args!("let in as {}, scopes: {scopes}", admitted.principal)),
                Some(needed) => {
                    line(format_args!("  FAIL  {:9}  expected {needed}, got {}", "scope", or_nothing(&scopes)));
                    line(format_args!(
                        "let in as {}, but each request is a 403: More scopes are needed",
                        admitted.principal
                    ));
                    line(format_args!("grant the scopes at the issuer, or see `scopes`, `implies` and `scope_prefix`"));
                }
            }
        }
        Err(rejection) => {
            line(format_args!("refused: {rejection}"));
            if let Some(remedy) = remedy(*rejection) {
                line(format_args!("{remedy}"));
            }
        }
    }
    text
}

fn or_nothing(text: &str) -> &str {
    if text.is_empty() { "nothing" } else { text }
}

/// What an operator may do about it.
fn remedy(rejection: Rejection) -> Option<&'static str> {
    Some(match rejection {
        Rejection::Token(TokenFault::Audience) => {
            "have the issuer put the expected value in, or list what it puts in under `audiences` of the issuer"
        }
        Rejection::Token(TokenFault::Issuer) => {
            "`issuer` and `iss` must be the same to the byte, slash at the end included"
        }
        Rejection::Token(TokenFault::Algorithm) => "`algorithms` of the issuer says what is accepted",
        Rejection::Token(TokenFault::Subject) => "`subject_claim` of the issuer says which claim is taken",
        Rejection::Token(TokenFault::Malformed) => {
            "if the issuer's tokens are no JWTs, set `tokens = \"opaque\"` and `introspection`"
        }
        Rejection::Token(TokenFault::Binding) => {
            "it counts on connections that show that client certificate; this command shows none"
        }
        Rejection::Token(TokenFault::Key) => {
            "the token may be older than the issuer's keys, or of another one of its key sets: see `jwks_uri`"
        }
        Rejection::Token(TokenFault::Kind) => "clients must send the access token, not the ID token",
        Rejection::Unavailable => "`gangway check FILE --online` looks at every issuer",
        _ => return None,
    })
}
