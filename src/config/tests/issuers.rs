//! `[auth.issuers]`: what is refused, and what presets change.

use crate::config::{Algorithm, Loaded, Problems, Tokens, parse};

const SERVER: &str = "[servers.a]\ncommand = \"a\"\n";

fn load(text: &str) -> Result<Loaded, Problems> {
    let environment = |name: &str| (name == "SECRET").then(|| "s3cret".to_owned());
    parse(&format!("{text}\n{SERVER}"), "a.toml", std::path::Path::new("/"), &environment)
}

fn issuer(lines: &str) -> Result<Loaded, Problems> {
    load(&format!("listen.public_url = \"https://m.example\"\nauth.methods = [\"oauth\"]\n[auth.issuers.i]\n{lines}"))
}

#[test]
fn what_could_never_work_is_refused() {
    let good = "issuer = \"https://id.example\"\n";
    for (lines, said) in [
        ("", "`auth.issuers.i.issuer` is missing"),
        ("issuer = \"\"", "is missing"),
        ("issuer = \"id.example\"", "is no http or https URL"),
        ("issuer = \"http://id.example\"", "is plain HTTP"),
        ("issuer = \"http://10.0.0.1\"", "is plain HTTP"),
        ("issuer = \"https://id.example?a=b\"", "has a query"),
        ("issuer = \"https://a@id.example\"", "has no valid host and port"),
        ("provider = \"entra\"\nissuer = \"https://login.microsoftonline.com/common/v2.0\"", "many tenants"),
        (&format!("{good}provider = \"google\""), "has an unknown value"),
        (&format!("{good}algorithms = [\"HS256\"]"), "has an unknown value"),
        (&format!("{good}algorithms = [\"none\"]"), "has an unknown value"),
        (&format!("{good}algorithms = []"), "`auth.issuers.i.algorithms` is empty"),
        (&format!("{good}audience_claim = \"client_id\""), "`auth.issuers.i.audiences` is empty"),
        (&format!("{good}provider = \"cognito\""), "`auth.issuers.i.audiences` is empty"),
        (&format!("{good}jwks_uri = \"http://id.example/keys\""), "is plain HTTP"),
        (&format!("{good}leeway = \"1h\""), "is too long"),
        (&format!("{good}tokens = \"opaque\"\nintrospection = {{ client_secret = \"x\" }}"), "client_id` is missing"),
        (&format!("{good}tokens = \"opaque\"\nintrospection = {{ client_id = \"x\" }}"), "client_secret` is missing"),
        (&format!("{good}introspection = {{ cache = \"1h\" }}"), "is too long"),
        (&format!("{good}subject_claim = \"\""), "is empty"),
        (&format!("{good}audience = \"a\""), "unknown key `audience`"),
    ] {
        let problems = issuer(lines).expect_err(lines);
        assert_eq!(problems.iter().count(), 1, "{lines}: {problems}");
        assert!(problems.to_string().contains(said), "{lines}: {problems}");
    }
}

#[test]
fn what_stands_elsewhere_is_judged_too() {
    let table = "[auth.issuers.main]\nissuer = \"https://id.example\"\n";
    let twin = "[auth.issuers.twin]\nissuer = \"https://id.example\"\nscope_prefix = \"api://twin/\"\n";
    for (text, said) in [
        (format!("auth.methods = [\"oauth\"]\n{table}"), "`listen.public_url` is empty"),
        (format!("auth.methods = [\"oauth\"]\nlisten.public_url = \"http://m.example\"\n{table}"), "is plain HTTP"),
        (format!("listen.public_url = \"https://m.example\"\n{table}"), "does not say who may come in"),
        (table.to_owned(), "issuers are configured, but `auth.methods` does not say who may come in"),
        ("auth.methods = [\"oauth\"]\nlisten.public_url = \"https://m.example\"".to_owned(), "no issuer is configured"),
        (
            format!("auth.methods = [\"oauth\", \"none\"]\nlisten.public_url = \"https://m.example\"\n{table}"),
            "has \"none\" beside another",
        ),
        (
            format!(
                "server_defaults.auth.issuers = [\"mian\"]\nlisten.public_url = \"https://m.example\"\nauth.methods = [\"oauth\"]\n{table}"
            ),
            "did you mean \"main\"?",
        ),
        (
            format!("auth.methods = [\"oauth\"]\nlisten.public_url = \"https://m.example\"\n{table}{twin}"),
            "the server `a` takes the issuers `main` and `twin`, which are one issuer",
        ),
    ] {
        let problems = load(&text).expect_err(&text);
        assert!(problems.to_string().contains(said), "{text}: {problems}");
    }
    let named = format!(
        "auth.methods = [\"oauth\"]\nlisten.public_url = \"https://m.example\"\nserver_defaults.auth.issuers = [\"twin\"]\n{table}{twin}"
    );
    assert_eq!(load(&named).expect("one of two").config.servers["a"].auth.issuers, ["twin".into()]);
    for url in ["https://m.example", "http://localhost:8080", "http://127.0.0.1"] {
        let text = format!("auth.methods = [\"oauth\"]\nlisten.public_url = \"{url}/base/\"\n{table}");
        let config = load(&text).expect(url).config;
        assert_eq!(&*config.servers["a"].auth.resource, format!("{url}/base/a/mcp"));
        assert_eq!(config.servers["a"].auth.issuers, ["main".into()]);
    }
}

#[test]
fn presets_change_defaults_and_nothing_that_is_written() {
    let of = |lines: &str| {
        let loaded = issuer(&format!("issuer = \"https://id.example\"\n{lines}")).expect(lines);
        loaded.config.auth.issuers["i"].clone()
    };
    assert_eq!(of("").scope_claims, ["scope", "scp"]);
    assert_eq!(of("").algorithms.len(), 5);
    assert_eq!(of("provider = \"entra\"").scope_claims, ["scp", "roles"]);
    assert_eq!(of("provider = \"okta\"").algorithms, [Algorithm::RS256]);
    assert_eq!(of("provider = \"okta\"\nalgorithms = [\"ES256\"]").algorithms, [Algorithm::ES256]);
    let cognito = of("provider = \"cognito\"\naudiences = [\"c\"]");
    assert_eq!((cognito.audience_claim.as_str(), cognito.tokens), ("client_id", Tokens::Jwt));
    assert_eq!(of("provider = \"cognito\"\naudience_claim = \"aud\"").audience_claim, "aud");
    assert_eq!(&*of("provider = \"auth0\"").issuer, "https://id.example", "no slash is added or taken");
}

#[test]
fn the_secret_of_introspection_is_never_shown() {
    for secret in ["${SECRET}", "s3cret"] {
        let loaded = issuer(&format!(
            "issuer = \"https://id.example\"\ntokens = \"opaque\"\nintrospection = {{ client_id = \"g\", client_secret = \"{secret}\" }}"
        ))
        .expect("it is good");
        assert_eq!(loaded.config.auth.issuers["i"].introspection.client_secret, "s3cret");
        assert!(!format!("{:?} {:?}", loaded.config, loaded.effective).contains("s3cret"));
    }
    let problems = issuer("introspection = { client_secret = \"s3cret\", client_id = 7 }").expect_err("no issuer");
    assert!(!problems.to_string().contains("s3cret"), "{problems}");
}
