//! The keys of an issuer, from its JWK set (RFC 7517).

use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use serde_json::Value;

use crate::config::Algorithm;

/// How many keys of a set are kept, at most.
const KEYS: usize = 100;

/// The longest `kid`, in bytes; it is looked up in memory and nowhere else.
pub(super) const KID_BYTES: usize = 128;

/// A key that may sign tokens, with the one algorithm it is for (RFC 8725, 3.1).
#[derive(Clone)]
pub(super) struct SigningKey {
    pub(super) kid: Option<Box<str>>,
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

/// The keys of one issuer that can be used here.
#[derive(Clone, Default)]
pub(super) struct KeySet {
    keys: Vec<SigningKey>,
    /// Keys that stood in the set and cannot be used, by what is in the way.
    pub(super) unusable: usize,
}

/// Why no key fits a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoKey {
    /// None has this `kid`: a fresh set may have it.
    Unknown,
    /// The token names none and there are several, or several have its `kid`.
    Ambiguous,
    /// The key is for another algorithm.
    OtherAlgorithm,
}

impl KeySet {
    /// Reads a JWK set. A key that is no signing key, or whose algorithm is not among `algorithms`, is left out.
    ///
    /// # Errors
    /// It is no JWK set.
    pub(super) fn parse(document: &[u8], algorithms: &[Algorithm]) -> Result<KeySet, &'static str> {
        let mut document: Value = serde_json::from_slice(document).map_err(|_| "it is not JSON")?;
        let Some(Value::Array(found)) = document.get_mut("keys").map(Value::take) else {
            return Err("it has no array `keys`");
        };
        let mut set = KeySet::default();
        for value in found {
            match serde_json::from_value::<Jwk>(value).ok().and_then(|jwk| signing_key(jwk, algorithms)) {
                Some(key) if set.keys.len() < KEYS => set.keys.push(key),
                _ => set.unusable += 1,
            }
        }
        Ok(set)
    }

    /// How many keys it has.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The key that a token with this header is signed with.
    ///
    /// # Errors
    /// See [`NoKey`].
    pub(super) fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<&SigningKey, NoKey> {
        let key = match kid {
            None => match &self.keys[..] {
                [] => return Err(NoKey::Unknown),
                [only] => only,
                _ => return Err(NoKey::Ambiguous),
            },
            Some(kid) => {
                let same = || self.keys.iter().filter(move |key| key.kid.as_deref() == Some(kid));
                let mut fitting = same().filter(|key| key.algorithm == algorithm);
                match (fitting.next(), fitting.next()) {
                    (Some(key), None) => key,
                    (Some(_), Some(_)) => return Err(NoKey::Ambiguous),
                    (None, _) if same().next().is_some() => return Err(NoKey::OtherAlgorithm),
                    (None, _) => return Err(NoKey::Unknown),
                }
            }
        };
        if key.algorithm == algorithm { Ok(key) } else { Err(NoKey::OtherAlgorithm) }
    }

    /// Whether both hold the same keys, in whatever order.
    pub(super) fn is_same(&self, other: &KeySet) -> bool {
        let held = |key: &SigningKey, set: &KeySet| {
            set.keys.iter().any(|one| one.kid == key.kid && one.algorithm == key.algorithm && is_same_key(one, key))
        };
        self.keys.len() == other.keys.len() && self.keys.iter().all(|key| held(key, other))
    }
}

fn is_same_key(one: &SigningKey, other: &SigningKey) -> bool {
    use jsonwebtoken::DecodingKeyKind::{RsaModulusExponent, SecretOrDer};
    match (one.key.kind(), other.key.kind()) {
        (SecretOrDer(one), SecretOrDer(other)) => one == other,
        (RsaModulusExponent { n, e }, RsaModulusExponent { n: other_n, e: other_e }) => n == other_n && e == other_e,
        _ => false,
    }
}

/// The key of a JWK that may sign tokens; `x5c`, `x5u` and the like are not looked at.
fn signing_key(jwk: Jwk, algorithms: &[Algorithm]) -> Option<SigningKey> {
    let common = &jwk.common;
    let signs = common.public_key_use.as_ref().is_none_or(|purpose| *purpose == PublicKeyUse::Signature);
    let verifies = common.key_operations.as_ref().is_none_or(|operations| operations.contains(&KeyOperations::Verify));
    let algorithm = algorithm_of(&jwk, algorithms)?;
    let kid = common.key_id.as_deref();
    if !signs || !verifies || !algorithms.contains(&algorithm) || kid.is_some_and(|kid| kid.len() > KID_BYTES) {
        return None;
    }
    Some(SigningKey { kid: kid.map(Box::from), algorithm, key: DecodingKey::from_jwk(&jwk).ok()? })
}

/// The one algorithm a key is for: what it says, else what its curve says. An RSA key that says nothing is for the first
/// RSA algorithm of the configuration.
fn algorithm_of(jwk: &Jwk, algorithms: &[Algorithm]) -> Option<Algorithm> {
    let said = match jwk.common.key_algorithm.as_ref() {
        Some(said) => Some(named(said)?),
        None => None,
    };
    let is_rsa = |algorithm: &Algorithm| is_rsa(*algorithm);
    match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => match said {
            Some(said) => Some(said).filter(is_rsa),
            None => algorithms.iter().copied().find(is_rsa),
        },
        AlgorithmParameters::EllipticCurve(parameters) => {
            let own = match parameters.curve {
                EllipticCurve::P256 => Algorithm::ES256,
                EllipticCurve::P384 => Algorithm::ES384,
                _ => return None,
            };
            said.is_none_or(|said| said == own).then_some(own)
        }
        AlgorithmParameters::OctetKeyPair(parameters) => {
            let own = parameters.curve == EllipticCurve::Ed25519;
            (own && said.is_none_or(|said| said == Algorithm::EdDSA)).then_some(Algorithm::EdDSA)
        }
        _ => None,
    }
}

fn is_rsa(algorithm: Algorithm) -> bool {
    !matches!(algorithm, Algorithm::ES256 | Algorithm::ES384 | Algorithm::EdDSA)
}

/// A JWK's `alg` as one of ours; `None` is one that signs nothing here.
fn named(said: &KeyAlgorithm) -> Option<Algorithm> {
    let name = said.to_string();
    Algorithm::NAMED.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
}

#[cfg(test)]
mod tests {
    use super::{KeySet, NoKey};
    use crate::config::Algorithm;

    const X: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn set(keys: &[&str]) -> KeySet {
        let document = format!(r#"{{"keys":[{}]}}"#, keys.join(",")).replace("XX", X);
        let algorithms = [Algorithm::RS256, Algorithm::PS256, Algorithm::ES256, Algorithm::EdDSA];
        KeySet::parse(document.as_bytes(), &algorithms).expect("a key set")
    }

    fn find(set: &KeySet, kid: Option<&str>, algorithm: Algorithm) -> Result<Algorithm, NoKey> {
        set.find(kid, algorithm).map(|key| key.algorithm)
    }

    #[test]
    fn a_key_has_one_algorithm() {
        let set = set(&[
            r#"{"kty":"RSA","kid":"bare","n":"XX","e":"AQAB"}"#,
            r#"{"kty":"RSA","kid":"ps","alg":"PS256","n":"XX","e":"AQAB"}"#,
            r#"{"kty":"EC","crv":"P-256","kid":"ec","x":"XX","y":"XX"}"#,
            r#"{"kty":"OKP","crv":"Ed25519","kid":"ed","x":"XX"}"#,
        ]);
        for (kid, own, others) in [
            ("bare", Algorithm::RS256, [Algorithm::PS256, Algorithm::ES256]),
            ("ps", Algorithm::PS256, [Algorithm::RS256, Algorithm::EdDSA]),
            ("ec", Algorithm::ES256, [Algorithm::RS256, Algorithm::EdDSA]),
            ("ed", Algorithm::EdDSA, [Algorithm::RS256, Algorithm::ES256]),
        ] {
            assert_eq!(find(&set, Some(kid), own), Ok(own), "{kid}");
            for other in others {
                assert_eq!(find(&set, Some(kid), other), Err(NoKey::OtherAlgorithm), "{kid} {other:?}");
            }
        }
    }

    #[test]
    fn what_signs_nothing_here_is_left_out() {
        let set = set(&[
            r#"{"kty":"RSA","kid":"enc","use":"enc","n":"XX","e":"AQAB"}"#,
            r#"{"kty":"RSA","kid":"oaep","alg":"RSA-OAEP","n":"XX","e":"AQAB"}"#,
            r#"{"kty":"RSA","kid":"wraps","key_ops":["wrapKey"],"n":"XX","e":"AQAB"}"#,
            r#"{"kty":"oct","kid":"shared","alg":"HS256","k":"XX"}"#,
            r#"{"kty":"RSA","kid":"mixed","alg":"ES256","n":"XX","e":"AQAB"}"#,
            r#"{"kty":"EC","crv":"P-256","kid":"mixed","alg":"RS256","x":"XX","y":"XX"}"#,
            r#"{"kty":"EC","crv":"P-384","kid":"unlisted","x":"XX","y":"XX"}"#,
            r#"{"kty":"EC","crv":"secp256k1","kid":"curve","x":"XX","y":"XX"}"#,
            r#"{"kty":"AKP","kid":"future"}"#,
            "7",
            r#"{"kty":"OKP","crv":"Ed25519","kid":"good","x":"XX"}"#,
        ]);
        assert_eq!((set.len(), set.unusable), (1, 10));
    }

    /// F:E02
    #[test]
    fn a_token_that_leaves_open_which_key_is_meant_has_none() {
        let one = r#"{"kty":"OKP","crv":"Ed25519","kid":"a","x":"XX"}"#;
        let anonymous = r#"{"kty":"OKP","crv":"Ed25519","x":"XX"}"#;
        assert_eq!(find(&set(&[one]), None, Algorithm::EdDSA), Ok(Algorithm::EdDSA));
        assert_eq!(find(&set(&[anonymous]), None, Algorithm::EdDSA), Ok(Algorithm::EdDSA));
        assert_eq!(find(&set(&[anonymous]), Some("a"), Algorithm::EdDSA), Err(NoKey::Unknown));
        assert_eq!(find(&set(&[one, anonymous]), None, Algorithm::EdDSA), Err(NoKey::Ambiguous));
        assert_eq!(find(&set(&[one, one]), Some("a"), Algorithm::EdDSA), Err(NoKey::Ambiguous));
        assert_eq!(find(&set(&[]), None, Algorithm::EdDSA), Err(NoKey::Unknown));
        for kid in ["../../etc/passwd", "' OR 1=1 --", "A", "a ", ""] {
            assert_eq!(find(&set(&[one]), Some(kid), Algorithm::EdDSA), Err(NoKey::Unknown), "{kid}");
        }
    }

    #[test]
    fn a_set_is_bounded_and_must_be_one() {
        let many: Vec<String> =
            (0..500).map(|at| format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"{at}","x":"XX"}}"#)).collect();
        let set = set(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((set.len(), set.unusable), (100, 400));
        for document in ["", "<html>", "[]", "{}", r#"{"keys":{}}"#] {
            assert!(KeySet::parse(document.as_bytes(), &[Algorithm::RS256]).is_err(), "{document}");
        }
    }
}
