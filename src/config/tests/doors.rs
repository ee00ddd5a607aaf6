//! Who may come in, and what of it deserves a warning.

use super::super::Method;
use super::{HASH, bad, good, read};

const TLS: &str = "listen.tls.certificates = [{ cert = \"c.pem\", key = \"k.pem\" }]\n";
const CLIENTS: &str = "listen.tls = { certificates = [{ cert = \"c.pem\", key = \"k.pem\" }], client_ca = \"a.pem\", \
     client_auth = \"optional\" }\n";

#[test]
fn saying_nothing_is_open_only_to_this_machine() {
    let server = "[servers.a]\ncommand = \"a\"\n";
    let key = format!("[auth.keys.k]\nhash = \"{HASH}\"\n");
    for (text, expected) in [
        (String::new(), Ok(Method::None)),
        ("listen.public_url = \"http://localhost:1\"\n".to_owned(), Ok(Method::None)),
        ("listen.address = \"unix:/run/g\"\n".to_owned(), Ok(Method::None)),
        (format!("auth.methods = [\"api_key\"]\n{key}"), Ok(Method::ApiKey)),
        ("listen.address = \"0.0.0.0:1\"\nauth.methods = [\"none\"]\n".to_owned(), Ok(Method::None)),
        ("listen.address = \"0.0.0.0:1\"\n".to_owned(), Err("`listen.address` is open to other machines")),
        ("listen.address = [\"localhost:1\", \"[::]:1\"]\n".to_owned(), Err("`listen.address` is open")),
        ("listen.public_url = \"https://a.example\"\n".to_owned(), Err("`listen.public_url` is for other machines")),
        (key.clone(), Err("keys are configured, but")),
        ("auth.methods = [\"api_key\"]\n".to_owned(), Err("no key is configured")),
        (format!("auth.methods = [\"none\", \"api_key\"]\n{key}"), Err("`auth.methods` has \"none\" beside another")),
        ("auth.methods = [\"mtls\"]\n".to_owned(), Err("clients are asked for no certificate")),
        (format!("{TLS}auth.methods = [\"mtls\"]\n"), Err("clients are asked for no certificate")),
        (format!("{CLIENTS}auth.methods = [\"mtls\"]\n"), Ok(Method::Mtls)),
        ("auth.methods = [\"password\"]\n".to_owned(), Err("`auth.methods` has an unknown value")),
    ] {
        match (read(&format!("{text}{server}")), expected) {
            (Ok(loaded), Ok(method)) => {
                assert_eq!(loaded.config.servers["a"].auth.methods, [method], "{text}")
            }
            (Err(problems), Err(message)) => {
                assert!(problems.to_string().contains(message), "{text}\n{problems}");
            }
            (outcome, _) => panic!("{text}\n{outcome:?}"),
        }
    }
}

#[test]
fn a_server_may_have_methods_of_its_own() {
    let text = format!(
        "auth.methods = [\"api_key\"]\nauth.keys.k.hash = \"{HASH}\"\n[servers.a]\ncommand = \"a\"\n\
         auth.methods = [\"none\"]\n[servers.b]\ncommand = \"b\"\n"
    );
    let config = good(&text).config;
    assert_eq!(config.servers["a"].auth.methods, [Method::None]);
    assert_eq!(config.servers["b"].auth.methods, [Method::ApiKey]);
    let empty = "[servers.a]\ncommand = \"a\"\nauth.methods = []\n";
    assert!(bad(empty).to_string().contains("`servers.a.auth.methods` is empty"));
}

#[test]
fn legacy_sse_is_never_open_to_other_machines() {
    let text = |address: &str| {
        format!(
            "listen.address = \"{address}\"\nauth.methods = [\"none\"]\n[servers.a]\ncommand = \"a\"\nlegacy_sse = true\n"
        )
    };
    good(&text("localhost:1"));
    assert_eq!(bad(&text("0.0.0.0:1")).iter().filter_map(|p| p.position()).collect::<Vec<_>>(), [(5, 14)]);
}

#[test]
fn keys_are_judged_together() {
    let other = HASH.replace('1', "2");
    let keys = format!(
        "auth.methods = [\"api_key\"]\n[auth.keys.a]\nhash = \"{HASH}\"\nservers = [\"fils\"]\n\
         [auth.keys.b]\nhash = \"{HASH}\"\nexpires = \"2026-01-01\"\n[auth.keys.c]\nhash = \"gangway_abc\"\n\
         [auth.keys.d]\nhash = \"{other}\"\nservers = []\n[auth.keys.e]\n[servers.files]\ncommand = \"f\"\n"
    );
    let problems = bad(&keys).to_string();
    for message in [
        "opens the server `fils`, which does not exist",
        "did you mean `files`?",
        "are one key",
        "`auth.keys.b.expires` cannot be a string",
        "`auth.keys.c.hash` holds the key itself",
        "`auth.keys.d.servers` opens no server",
        "`auth.keys.e.hash` is missing",
    ] {
        assert!(problems.contains(message), "{message} is not in\n{problems}");
    }
    assert!(!problems.contains("gangway_abc"), "{problems}");
    let unlike = format!("[auth.keys.a]\nhash = \"{HASH}\"\nservers = [\"zzz\"]\n[servers.files]\ncommand = \"f\"\n");
    let problems = bad(&format!("auth.methods = [\"api_key\"]\n{unlike}"));
    let found: Vec<_> = problems.iter().map(|problem| (problem.position(), problem.remedy())).collect();
    assert_eq!(found, [(Some((4, 11)), "the servers here are files")]);
}

#[test]
fn what_works_but_deserves_a_line_is_a_warning() {
    let key = format!("auth.methods = [\"api_key\"]\nauth.keys.k = {{ hash = \"{HASH}\" }}\n");
    let server = "[servers.a]\ncommand = \"a\"\n";
    for (text, expected) in [
        (String::new(), "no server is configured"),
        (format!("auth.methods = [\"none\"]\n{server}"), "no authentication: everybody on this machine may use a"),
        (
            format!("auth.methods = [\"none\"]\nlisten.address = \"0.0.0.0:1\"\n{server}"),
            "no authentication: everybody who reaches this gateway may use a",
        ),
        (format!("listen.address = \"0.0.0.0:1\"\n{key}{server}"), "API keys travel in plain HTTP"),
        ("[servers.a]\ncommand = \"npx\"\nargs = [\"x\"]\n".to_owned(), "a: the version of x is not pinned"),
        (format!("{server}mode = \"shared\"\n"), "a: mode \"shared\" makes one trust domain"),
        (format!("admin.address = \"0.0.0.0:1\"\n{server}"), "admin.address is open to other machines"),
        (format!("{}{server}", key.replace(" }", ", expires = 2020-01-01 }")), "the key k has expired"),
        (
            format!("{}{server}[servers.b]\ncommand = \"b\"\n", key.replace(" }", ", servers = [\"b\"] }")),
            "a: no key opens it yet",
        ),
    ] {
        let warnings = good(&text).warnings;
        assert!(warnings.iter().any(|warning| warning.contains(expected)), "{text}\n{warnings:?}");
    }
    let quiet =
        good(&format!("listen.address = \"0.0.0.0:1\"\nlisten.public_url = \"https://a.example\"\n{key}{server}"));
    assert_eq!(quiet.warnings, Vec::<String>::new());
    let encrypted = good(&format!("listen.address = \"0.0.0.0:1\"\n{TLS}{key}{server}"));
    assert_eq!(encrypted.warnings, Vec::<String>::new());
    assert_eq!(good(server).warnings, Vec::<String>::new());
}

#[test]
fn what_can_have_no_effect_is_a_warning() {
    let key = format!("auth.methods = [\"api_key\"]\nauth.keys.k = {{ hash = \"{HASH}\", scopes = [\"x\"] }}\n");
    let issuer = "auth.issuers.i = { issuer = \"https://id.example\", introspection = { client_id = \"g\" } }\n";
    let server = "[servers.a]\ncommand = \"a\"\n";
    for (text, expected) in [
        (format!("{key}{server}env_from.claims.email = \"EMAIL\"\n"), "a: env_from.claims fills nothing"),
        (format!("{server}mode = \"principal\"\n"), "a: mode \"principal\" shares nothing"),
        (format!("{key}{server}auth.method_scopes.\"tool/call\" = [\"x\"]\n"), "did you mean tools/call?"),
        (format!("{key}{issuer}{server}"), "the tokens of auth.issuers.i count nowhere"),
        (format!("{key}{issuer}{server}"), "auth.issuers.i.introspection is not used"),
    ] {
        let warnings = good(&text).warnings;
        assert!(warnings.iter().any(|warning| warning.contains(expected)), "{text}\n{warnings:?}");
    }
    let known = format!("{key}{server}auth.method_scopes.\"tools/call\" = [\"x\"]\nmode = \"principal\"\n");
    assert_eq!(good(&known).warnings, Vec::<String>::new());
}

#[test]
fn one_mistake_is_one_problem_at_its_own_place() {
    let server = "[servers.a]\ncommand = \"a\"\n";
    let oauth = "auth.methods = [\"oauth\"]\nauth.issuers.i.issuer = \"https://id.example\"\n";
    for (text, place, message) in [
        (format!("{server}auth.tools.x = [\"y\"]\n"), (3, 6), "lets everybody in, but asks for scopes"),
        (format!("auth.scopes = [\"x\"]\n{server}"), (1, 15), "lets everybody in, but asks for scopes"),
        (format!("listen.public_url = \"https://a.example/?b\"\n{oauth}{server}"), (1, 21), "has a query"),
        (
            format!("{}{server}", oauth.replace("example", "example/.well-known/openid-configuration"))
                .replace("auth.methods", "listen.public_url = \"https://a.example\"\nauth.methods"),
            (3, 25),
            "names a document of the issuer",
        ),
        (format!("limits.rate_per_address = 5\n{server}"), (1, 27), "has no time"),
    ] {
        let problems = bad(&text);
        let found: Vec<_> = problems.iter().map(|problem| problem.position()).collect();
        assert_eq!(found, [Some(place)], "{problems}");
        assert!(problems.to_string().contains(message), "{problems}");
    }
}
