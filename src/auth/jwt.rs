//! One signed JWT: its parts, its header and its signature. What it claims is judged in `claims`.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::crypto::verify;
use serde_json::{Map, Value};

use super::jwks::{KID_BYTES, SigningKey};
use super::rejection::TokenFault;
use super::trail::Trail;
use crate::config::{Algorithm, Issuer};

/// A JWT of which nothing is verified yet.
pub(super) struct Jwt<'a> {
    header: Map<String, Value>,
    claims: Map<String, Value>,
    /// What is signed.
    message: &'a str,
    signature: &'a str,
}

impl<'a> Jwt<'a> {
    /// Takes a token apart; `None` is no signed JWT (RFC 7515, 7.1).
    pub(super) fn parse(token: &'a [u8]) -> Option<Jwt<'a>> {
        let token = std::str::from_utf8(token).ok()?;
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        Some(Jwt { header: object(header)?, claims: object(claims)?, message, signature })
    }

    /// `iss`, unverified: good for choosing who may verify it.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_str()
    }

    /// `kid`, where there is one that can be looked up.
    pub(super) fn kid(&self) -> Option<&str> {
        self.header.get("kid")?.as_str()
    }

    /// The algorithm it says it is signed with, where that is one there is.
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        let said = self.header.get("alg")?.as_str()?;
        Algorithm::NAMED.iter().find(|(name, _)| *name == said).map(|(_, algorithm)| *algorithm)
    }

    /// A header member as text, for saying what was found.
    pub(super) fn said(&self, member: &str) -> String {
        self.header.get(member).map_or_else(|| "nothing".to_owned(), ToString::to_string)
    }

    /// Judges the header (RFC 7515, 4.1; RFC 9068, 2.1; RFC 8725, 3.1 and 3.11). Keys that a header brings or points to
    /// (`jwk`, `jku`, `x5c`, `x5u`) are not looked at.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn check_header(&self, issuer: &Issuer, trail: &mut Trail) -> Result<(), TokenFault> {
        let kind = self.header.get("typ");
        let is_access = match kind {
            None => true,
            Some(Value::String(kind)) => {
                let kind = kind.to_ascii_lowercase();
                matches!(kind.strip_prefix("application/").unwrap_or(&kind), "at+jwt" | "jwt")
            }
            Some(_) => false,
        };
        trail.check(TokenFault::Kind, "typ", is_access, &"at+jwt, JWT or none", &self.said("typ"))?;
        let unknown = ["crit", "b64", "enc", "zip", "cty"].into_iter().find(|member| self.header.contains_key(*member));
        trail.check(
            TokenFault::Header,
            "header",
            unknown.is_none(),
            &"nothing critical",
            &unknown.unwrap_or("nothing critical"),
        )?;
        let accepted = self.algorithm().is_some_and(|algorithm| issuer.algorithms.contains(&algorithm));
        let names = Names(&issuer.algorithms);
        trail.check(TokenFault::Algorithm, "alg", accepted, &names, &self.said("alg"))?;
        let kid = self.header.get("kid");
        let named = kid.is_none_or(|kid| kid.as_str().is_some_and(|kid| kid.len() <= KID_BYTES));
        trail.check(TokenFault::Key, "kid", named, &format_args!("up to {KID_BYTES} bytes"), &self.said("kid"))
    }

    /// Whether it is signed with this key.
    pub(super) fn is_signed_with(&self, key: &SigningKey) -> bool {
        verify(self.signature, self.message.as_bytes(), &key.key, foreign(key.algorithm)).unwrap_or(false)
    }

    /// What it claims.
    pub(super) fn into_claims(self) -> Map<String, Value> {
        self.claims
    }
}

/// Decodes one part that must be a JSON object.
fn object(part: &str) -> Option<Map<String, Value>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// An algorithm as `jsonwebtoken` has it.
fn foreign(algorithm: Algorithm) -> jsonwebtoken::Algorithm {
    match algorithm {
        Algorithm::RS256 => jsonwebtoken::Algorithm::RS256,
        Algorithm::RS384 => jsonwebtoken::Algorithm::RS384,
        Algorithm::RS512 => jsonwebtoken::Algorithm::RS512,
        Algorithm::PS256 => jsonwebtoken::Algorithm::PS256,
        Algorithm::PS384 => jsonwebtoken::Algorithm::PS384,
        Algorithm::PS512 => jsonwebtoken::Algorithm::PS512,
        Algorithm::ES256 => jsonwebtoken::Algorithm::ES256,
        Algorithm::ES384 => jsonwebtoken::Algorithm::ES384,
        Algorithm::EdDSA => jsonwebtoken::Algorithm::EdDSA,
    }
}

/// Algorithms by their names.
struct Names<'a>(&'a [Algorithm]);

impl std::fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, algorithm) in self.0.iter().enumerate() {
            let name = Algorithm::NAMED.iter().find(|(_, one)| one == algorithm).map_or("", |(name, _)| *name);
            write!(f, "{}{name}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
