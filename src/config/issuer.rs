//! `[auth.issuers.NAME]`: whose access tokens count, and how they are judged.
//!
//! `provider` changes defaults only: what the file says counts, whatever the provider.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::convert::{Refused, pick, text};
use super::document::{Place, Value};
use super::keys::{NAME_REMEDY, is_key_name};
use super::report::{shown, shown_secret};
use super::section::Section;
use super::url::{endpoint_url, issuer_url};

/// The largest `leeway`: clocks that differ by more are to be set, not forgiven.
const LEEWAY: Duration = Duration::from_secs(300);

/// The longest `introspection.cache`: a token that was taken back works for that long.
const CACHE: Duration = Duration::from_secs(600);

/// One authorization server whose access tokens count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// `iss` of its tokens, byte for byte.
    pub issuer: Arc<str>,
    /// Whose defaults it has.
    pub provider: Provider,
    /// What its tokens may be issued for; empty is [`ServerAuth::resource`](super::ServerAuth::resource) alone.
    pub audiences: Vec<String>,
    /// How its tokens are checked.
    pub tokens: Tokens,
    /// What its tokens may be signed with.
    pub algorithms: Vec<Algorithm>,
    /// The claim that says what a token was issued for.
    pub audience_claim: String,
    /// The claim that says whom a token speaks for.
    pub subject_claim: String,
    /// The claims that say what a token grants.
    pub scope_claims: Vec<String>,
    /// What is cut off the front of each scope that has it.
    pub scope_prefix: String,
    /// Where its keys are; `None` is what its metadata says.
    pub jwks_uri: Option<String>,
    /// How far its clock and ours may differ.
    pub leeway: Duration,
    /// `introspection`
    pub introspection: Introspection,
}

/// Whose quirks an issuer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// None that are known.
    Generic,
    /// Keycloak.
    Keycloak,
    /// Microsoft Entra ID.
    Entra,
    /// Auth0.
    Auth0,
    /// Okta.
    Okta,
    /// Amazon Cognito.
    Cognito,
}

/// What access tokens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// Signed JWTs (RFC 9068).
    Jwt,
    /// Anything; the issuer is asked what one means (RFC 7662).
    Opaque,
}

/// A signature algorithm (RFC 7518, RFC 8037): asymmetric ones only, since the gateway holds no key of the issuer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant is its own name")]
pub enum Algorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    EdDSA,
}

impl Algorithm {
    /// Every algorithm, under its name in `alg`.
    pub const NAMED: [(&'static str, Algorithm); 9] = [
        ("RS256", Algorithm::RS256),
        ("RS384", Algorithm::RS384),
        ("RS512", Algorithm::RS512),
        ("PS256", Algorithm::PS256),
        ("PS384", Algorithm::PS384),
        ("PS512", Algorithm::PS512),
        ("ES256", Algorithm::ES256),
        ("ES384", Algorithm::ES384),
        ("EdDSA", Algorithm::EdDSA),
    ];
}

/// `introspection`
#[derive(Clone, PartialEq, Eq)]
pub struct Introspection {
    /// Where tokens are asked about; `None` is what the issuer's metadata says.
    pub url: Option<String>,
    /// Who asks.
    pub client_id: String,
    /// Its secret.
    pub client_secret: String,
    /// How long an answer counts; zero asks for each request.
    pub cache: Duration,
}

impl fmt::Debug for Introspection {
    /// Everything but the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Introspection")
            .field("url", &self.url)
            .field("client_id", &self.client_id)
            .field("client_secret", &"(hidden)")
            .field("cache", &self.cache)
            .finish()
    }
}

/// What a provider says otherwise than the rest.
struct Preset {
    algorithms: &'static [&'static str],
    audience_claim: &'static str,
    scope_claims: &'static [&'static str],
}

impl Provider {
    const NAMED: [(&'static str, Provider); 6] = [
        ("generic", Provider::Generic),
        ("keycloak", Provider::Keycloak),
        ("entra", Provider::Entra),
        ("auth0", Provider::Auth0),
        ("okta", Provider::Okta),
        ("cognito", Provider::Cognito),
    ];

    fn preset(self) -> Preset {
        let usual = Preset {
            algorithms: &["RS256", "PS256", "ES256", "ES384", "EdDSA"],
            audience_claim: "aud",
            scope_claims: &["scope", "scp"],
        };
        match self {
            Provider::Generic => usual,
            Provider::Keycloak => Preset { scope_claims: &["scope"], ..usual },
            // Tokens of an application for itself have roles and no scopes.
            Provider::Entra => Preset { algorithms: &["RS256"], scope_claims: &["scp", "roles"], ..usual },
            Provider::Auth0 => {
                Preset { algorithms: &["RS256", "PS256"], scope_claims: &["scope", "permissions"], ..usual }
            }
            Provider::Okta => Preset { algorithms: &["RS256"], scope_claims: &["scp"], ..usual },
            // Its access tokens have no `aud`.
            Provider::Cognito => {
                Preset { algorithms: &["RS256"], audience_claim: "client_id", scope_claims: &["scope"] }
            }
        }
    }
}

/// Reads every `[auth.issuers.NAME]`.
pub(super) fn read(section: &mut Section<'_>) -> BTreeMap<Arc<str>, Arc<Issuer>> {
    let mut issuers: BTreeMap<Arc<str>, Arc<Issuer>> = BTreeMap::new();
    for (name, section) in section.tables("issuers") {
        let place = section.header().unwrap_or(Place::File(0..0));
        let report = section.report;
        if !is_key_name(name) {
            report.problem(Some(&place), format!("`{}` is no name for an issuer", name.escape_debug()), NAME_REMEDY);
        }
        let Some(issuer) = read_issuer(section) else { continue };
        issuers.insert(Arc::from(name), Arc::new(issuer));
    }
    issuers
}

fn read_issuer(mut section: Section<'_>) -> Option<Issuer> {
    let provider = section.choice("provider", "generic", &Provider::NAMED);
    let preset = provider.preset();
    let remedy = "write what stands in `iss` of its tokens, byte for byte";
    let url = required(&mut section, "issuer", remedy, |url| issuer_url(url, provider));
    let tokens = section.choice("tokens", "jwt", &[("jwt", Tokens::Jwt), ("opaque", Tokens::Opaque)]);
    let issuer = Issuer {
        issuer: Arc::from(url.as_deref().unwrap_or_default()),
        provider,
        audiences: section.list("audiences", not_empty),
        tokens,
        algorithms: section.list_or("algorithms", preset.algorithms, |word| pick(word, &Algorithm::NAMED)),
        audience_claim: claim(&mut section, "audience_claim", preset.audience_claim),
        subject_claim: claim(&mut section, "subject_claim", "sub"),
        scope_claims: section.list_or("scope_claims", preset.scope_claims, not_empty),
        scope_prefix: section.value("scope_prefix", &Value::plain(""), |value| text(value).map(str::to_owned)),
        jwks_uri: section.parsed("jwks_uri", "", endpoint_url),
        leeway: bounded_time(&mut section, "leeway", "30s", LEEWAY),
        introspection: introspection(section.table("introspection"), tokens),
    };
    refuse_what_takes_nothing(&section, &issuer);
    url.map(|_| issuer)
}

/// Reads a string that must be there; `None` was reported.
fn required(
    section: &mut Section<'_>,
    key: &'static str,
    remedy: &str,
    parse: impl Fn(&str) -> Result<String, Refused>,
) -> Option<String> {
    let node = section.take(key);
    section.record(key, node, node.map_or_else(|| "\"\"".to_owned(), |node| shown(&node.value)));
    let parsed = match node.map(|node| &node.value) {
        Some(Value::Unfilled) => return None,
        Some(value) => text(value).and_then(|text| if text.is_empty() { Ok(None) } else { parse(text).map(Some) }),
        None => Ok(None),
    };
    let refused = match parsed {
        Ok(Some(text)) => return Some(text),
        Ok(None) => Refused::new("is missing", remedy),
        Err(refused) => refused,
    };
    section.refuse(key, section.place(key).as_ref(), refused);
    None
}

/// Refuses what could never let a token in.
fn refuse_what_takes_nothing(section: &Section<'_>, issuer: &Issuer) {
    let refuse = |key, problem: &str, remedy: &str| {
        section.refuse(key, section.place(key).as_ref(), Refused::new(problem, remedy));
    };
    if issuer.algorithms.is_empty() && issuer.tokens == Tokens::Jwt && section.is_empty_list("algorithms") {
        refuse("algorithms", "is empty", "name what its tokens are signed with, or leave it out");
    }
    if issuer.audience_claim != "aud" && issuer.audiences.is_empty() {
        let remedy = format!("list the values of `{}` that may come in", issuer.audience_claim);
        refuse("audiences", "is empty, while `audience_claim` is not \"aud\"", &remedy);
    }
}

fn introspection(mut section: Section<'_>, tokens: Tokens) -> Introspection {
    let url = section.parsed("url", "", endpoint_url);
    let client_id = section.value("client_id", &Value::plain(""), |value| text(value).map(str::to_owned));
    let node = section.take("client_secret");
    section.record("client_secret", node, node.map_or_else(|| "\"\"".to_owned(), |node| shown_secret(&node.value)));
    let secret = node.map_or(Ok(""), |node| match node.value {
        Value::Unfilled => Ok(""),
        _ => text(&node.value),
    });
    let client_secret = secret.map(str::to_owned).unwrap_or_else(|refused| {
        section.refuse("client_secret", section.place("client_secret").as_ref(), refused);
        String::new()
    });
    for (key, is_empty) in [("client_id", client_id.is_empty()), ("client_secret", client_secret.is_empty())] {
        let said = section.has(key) && !section.is_text(key, "");
        if tokens == Tokens::Opaque && is_empty && !said {
            let remedy =
                "opaque tokens are asked about by a client of the issuer: register one, write its id and secret";
            section.refuse(key, section.place(key).as_ref(), Refused::new("is missing", remedy));
        }
    }
    let cache = bounded_time(&mut section, "cache", "30s", CACHE);
    Introspection { url, client_id, client_secret, cache }
}

fn claim(section: &mut Section<'_>, key: &'static str, default: &str) -> String {
    section.value(key, &Value::plain(default), |value| text(value).and_then(not_empty))
}

fn not_empty(word: &str) -> Result<String, Refused> {
    if word.is_empty() { Err(Refused::new("is empty", "leave it out")) } else { Ok(word.to_owned()) }
}

fn bounded_time(section: &mut Section<'_>, key: &'static str, default: &str, most: Duration) -> Duration {
    let place = section.place(key);
    let time = section.time(key, default);
    if time > most {
        let refused = Refused::new("is too long", format!("write at most \"{}s\"", most.as_secs()));
        section.refuse(key, place.as_ref(), refused);
    }
    time.min(most)
}
