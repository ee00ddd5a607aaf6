//! What an access token claims, whether it came as a JWT or from introspection.

use std::fmt::{self, Display};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::rejection::TokenFault;
use super::scopes::Scopes;
use super::trail::Trail;
use super::{Admitted, Asked};
use crate::caller::{Principal, Proof, TokenHolder};
use crate::config::{Issuer, ServerAuth};

/// Seconds for which something may stay open after `exp`, be the leeway longer. What is open is looked at every second,
/// and is to be gone after 30.
const LONGEST_AFTER: u64 = 28;

/// The longest subject or client, in bytes.
const NAME_BYTES: usize = 1024;

/// Claims that name the client that acts, in the order in which they are looked for (RFC 9068, OpenID Connect, Okta,
/// Entra ID v1).
const CLIENT_CLAIMS: [&str; 4] = ["client_id", "azp", "cid", "appid"];

/// What a claim `typ` calls an access token.
const ACCESS_KINDS: [&str; 4] = ["Bearer", "at+jwt", "access", "access_token"];

/// Claims that only an ID token has (OpenID Connect Core 1.0, 3.1.3.6 and 3.3.2.11).
const ID_TOKEN_CLAIMS: [&str; 4] = ["nonce", "at_hash", "c_hash", "s_hash"];

/// A token of which everything holds that does not depend on the request that shows it.
#[derive(Debug)]
pub(super) struct Verified {
    principal: Principal,
    scopes: Scopes,
    claims: Arc<Map<String, Value>>,
    /// What it was issued for.
    audiences: Vec<Box<str>>,
    /// `exp`, in seconds since the Unix epoch.
    expires: Option<u64>,
    not_before: u64,
    /// Seconds that clocks may differ by.
    leeway: u64,
    /// Base64url of the SHA-256 of the certificate it is bound to (RFC 8705, 3.1).
    thumbprint: Option<Box<str>>,
}

/// Where claims came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A signed JWT, which says it all itself.
    Jwt,
    /// An introspection answer, whose members are optional (RFC 7662, 2.2).
    Introspection,
}

impl Verified {
    /// Judges claims that are known to be the issuer's.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn judge(
        claims: Map<String, Value>,
        source: Source,
        issuer: &Issuer,
        trail: &mut Trail,
    ) -> Result<Verified, TokenFault> {
        check_kind(&claims, trail)?;
        let expires = expiry(&claims, source, trail)?;
        let not_before = seconds(claims.get("nbf"));
        let placed = not_before.is_some() || !claims.contains_key("nbf");
        trail.check(TokenFault::NotYet, "nbf", placed, &"a number, or none", &said(&claims, "nbf"))?;
        let audiences = audiences(&claims, &issuer.audience_claim);
        let client = CLIENT_CLAIMS.iter().find_map(|claim| name(claims.get(*claim)));
        let mut subject = name(claims.get(&issuer.subject_claim));
        if subject.is_none() && source == Source::Introspection && !claims.contains_key(&issuer.subject_claim) {
            // A client that acts for itself is its own subject (RFC 9068, 2.2).
            subject = client;
        }
        let found = said(&claims, &issuer.subject_claim);
        let wanted = format_args!("`{}` of 1 to {NAME_BYTES} bytes", issuer.subject_claim);
        trail.check(TokenFault::Subject, "sub", subject.is_some(), &wanted, &found)?;
        let thumbprint = binding(&claims, trail)?;
        let holder = TokenHolder {
            issuer: Arc::clone(&issuer.issuer),
            subject: subject.unwrap_or_default().into(),
            client: client.map(Arc::from),
        };
        Ok(Verified {
            principal: Principal::Token(Arc::new(holder)),
            scopes: scopes(&claims, issuer),
            audiences,
            expires,
            not_before: not_before.unwrap_or(0),
            leeway: issuer.leeway.as_secs(),
            thumbprint,
            claims: Arc::new(claims),
        })
    }

    /// Judges what depends on the request: the time, the server and the connection.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn check(&self, issuer: &Issuer, asked: &Asked<'_>, trail: &mut Trail) -> Result<(), TokenFault> {
        let now = asked.now_unix;
        let alive = self.expires.is_none_or(|end| now < end.saturating_add(self.leeway));
        let at = Instant(self.expires.unwrap_or(u64::MAX), now);
        trail.check(TokenFault::Expired, "exp", alive, &"a time to come", &at)?;
        let begun = now.saturating_add(self.leeway) >= self.not_before;
        let at = Instant(self.not_before, now);
        trail.check(TokenFault::NotYet, "nbf", begun, &"a time that has come, or none", &at)?;
        let wanted = Wanted::of(issuer, asked.policy);
        let is_for = self.audiences.iter().any(|audience| wanted.has(audience));
        trail.check(TokenFault::Audience, claim_name(issuer), is_for, &wanted, &Listed(&self.audiences))?;
        let Some(bound) = &self.thumbprint else { return Ok(()) };
        let shown = asked.thumbprint.map(|shown| URL_SAFE_NO_PAD.encode(shown));
        let holds = shown.as_deref() == Some(&**bound);
        let got = shown.as_deref().unwrap_or("no client certificate");
        trail.check(TokenFault::Binding, "cnf", holds, &format_args!("the client certificate {bound}"), &got)
    }

    /// The caller, for a request at `now` that it was checked for.
    pub(super) fn admitted(&self, now: u64) -> Admitted {
        Admitted {
            proof: Proof { until: self.end(now), renewal: None },
            scopes: self.scopes.clone(),
            claims: Some(Arc::clone(&self.claims)),
            ..Admitted::bare(self.principal.clone())
        }
    }

    /// When what is opened by a request at `now` ends: not much after the token expired. Whoever shows it after that, and
    /// is let in because clocks may differ, must not be sent away at once: such a client would come back each second.
    pub(super) fn end(&self, now: u64) -> Option<u64> {
        let early = self.expires?.saturating_add(self.leeway.min(LONGEST_AFTER));
        Some(if now < early { early } else { self.expires?.saturating_add(self.leeway) })
    }

    /// Whom it speaks for.
    pub(super) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// When it lets nobody in any more, in seconds since the Unix epoch.
    pub(super) fn last(&self) -> u64 {
        self.expires.map_or(u64::MAX, |end| end.saturating_add(self.leeway))
    }

    /// What it takes up in a cache, in bytes, roughly.
    pub(super) fn weight(&self) -> usize {
        // A claim costs a few times its text once it is parsed.
        512 + 4 * self.claims.iter().map(|(name, value)| name.len() + weight(value)).sum::<usize>()
    }
}

fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(members) => members.iter().map(|(name, value)| name.len() + weight(value)).sum(),
        _ => 8,
    }
}

/// The audience check is told under the claim it looks at.
fn claim_name(issuer: &Issuer) -> &'static str {
    match &*issuer.audience_claim {
        "client_id" => "client_id",
        "azp" => "azp",
        _ => "aud",
    }
}

/// Refuses tokens of other kinds: ID tokens, refresh tokens, logout tokens. Keycloak says what a token is in a claim
/// `typ`, Cognito in `token_use`.
fn check_kind(claims: &Map<String, Value>, trail: &mut Trail) -> Result<(), TokenFault> {
    let text = |claim: &str| claims.get(claim).map(|value| value.as_str().unwrap_or("?"));
    let kind = text("typ");
    let access = |kind: &str| ACCESS_KINDS.iter().any(|one| kind.eq_ignore_ascii_case(one));
    let said = kind.is_none_or(access);
    trail.check(TokenFault::Kind, "typ claim", said, &"Bearer, or none", &kind.unwrap_or("none"))?;
    let purpose = text("token_use");
    let used = purpose.is_none_or(|purpose| purpose == "access");
    trail.check(TokenFault::Kind, "token_use", used, &"access, or none", &purpose.unwrap_or("none"))?;
    let foreign = ID_TOKEN_CLAIMS.into_iter().find(|claim| claims.contains_key(*claim)).filter(|_| kind.is_none());
    let event = claims.contains_key("events").then_some("events");
    let got = match foreign.or(event) {
        Some(claim) => format!("one of another kind: it has `{claim}`"),
        None => "an access token".to_owned(),
    };
    trail.check(TokenFault::Kind, "kind", foreign.or(event).is_none(), &"an access token", &got)
}

fn expiry(claims: &Map<String, Value>, source: Source, trail: &mut Trail) -> Result<Option<u64>, TokenFault> {
    let expires = seconds(claims.get("exp"));
    let stands = expires.is_some() || (source == Source::Introspection && !claims.contains_key("exp"));
    trail.check(TokenFault::NoExpiry, "exp", stands, &"a number", &said(claims, "exp"))?;
    // An explanation goes on without it.
    Ok(expires)
}

/// A NumericDate (RFC 7519, 2): seconds, perhaps with a fraction, but none so large that a number cannot tell it from the
/// next.
fn seconds(value: Option<&Value>) -> Option<u64> {
    let number = value?.as_f64()?;
    (0.0..=9_007_199_254_740_991.0).contains(&number).then_some(number as u64)
}

/// A text that may name somebody.
fn name(value: Option<&Value>) -> Option<&str> {
    value?.as_str().filter(|name| !name.is_empty() && name.len() <= NAME_BYTES)
}

/// What a token was issued for; anything but texts is for nobody (RFC 7519, 4.1.3).
fn audiences(claims: &Map<String, Value>, claim: &str) -> Vec<Box<str>> {
    match claims.get(claim) {
        Some(Value::String(one)) => vec![Box::from(one.as_str())],
        Some(Value::Array(items)) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).map(Box::from).collect()
        }
        _ => Vec::new(),
    }
}

/// What a token grants, from every claim that may say so: a list with spaces, or an array.
fn scopes(claims: &Map<String, Value>, issuer: &Issuer) -> Scopes {
    let bare = |scope| -> &str { str::strip_prefix(scope, &*issuer.scope_prefix).unwrap_or(scope) };
    let values = issuer.scope_claims.iter().filter_map(|claim| claims.get(claim));
    let texts = values.flat_map(|value| match value {
        Value::String(list) => vec![list.as_str()],
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    });
    texts.flat_map(str::split_ascii_whitespace).map(bare).filter(|scope| !scope.is_empty()).collect()
}

/// The certificate a token is bound to. A binding of another kind cannot be checked here, so it is refused (RFC 7800,
/// 3.1).
fn binding(claims: &Map<String, Value>, trail: &mut Trail) -> Result<Option<Box<str>>, TokenFault> {
    let Some(confirmation) = claims.get("cnf") else { return Ok(None) };
    let members = confirmation.as_object();
    let thumbprint = members.and_then(|members| members.get("x5t#S256")).and_then(Value::as_str);
    let known = thumbprint.is_some() && members.is_some_and(|members| members.len() == 1);
    let found = members
        .map_or_else(|| "no object".to_owned(), |members| members.keys().cloned().collect::<Vec<_>>().join(", "));
    trail.check(TokenFault::Binding, "cnf", known, &"x5t#S256 alone", &found)?;
    Ok(thumbprint.map(Box::from))
}

/// A claim as it stands there.
fn said(claims: &Map<String, Value>, claim: &str) -> String {
    claims.get(claim).map_or_else(|| "nothing".to_owned(), ToString::to_string)
}

/// What a token may have been issued for.
struct Wanted<'a> {
    listed: &'a [String],
    /// The URLs its clients know; what is empty is none.
    resources: [&'a str; 2],
}

impl<'a> Wanted<'a> {
    fn of(issuer: &'a Issuer, policy: &'a ServerAuth) -> Wanted<'a> {
        Wanted { listed: &issuer.audiences, resources: [&policy.resource, &policy.sse_resource] }
    }

    fn has(&self, audience: &str) -> bool {
        match self.listed {
            [] => !audience.is_empty() && self.resources.contains(&audience),
            listed => listed.iter().any(|one| one == audience),
        }
    }
}

impl Display for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.listed {
            [] => {
                let [resource, sse] = self.resources;
                write!(f, "\"{resource}\"")?;
                if sse.is_empty() { Ok(()) } else { write!(f, " or \"{sse}\"") }
            }
            listed => write!(f, "one of {listed:?}"),
        }
    }
}

struct Listed<'a>(&'a [Box<str>]);

impl Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("nothing"),
            [one] => write!(f, "\"{one}\""),
            several => write!(f, "{several:?}"),
        }
    }
}

/// A time, and how far it is from now.
struct Instant(u64, u64);

impl Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Instant(at, now) = *self;
        match at {
            0 | u64::MAX => f.write_str("none"),
            at if at >= now => write!(f, "{at}, in {} s", at - now),
            at => write!(f, "{at}, {} s ago", now - at),
        }
    }
}

#[cfg(test)]
#[path = "claims_test.rs"]
mod tests;
