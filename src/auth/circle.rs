//! The issuers of one configuration, and what is known of tokens that were judged before.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use sha2::{Digest as _, Sha256};
use tracing::info;

use super::authority::Authority;
use super::claims::Verified;
use super::jwt::Jwt;
use super::question::{Question, Questions};
use super::rejection::{Rejection, TokenFault};
use super::renewals::{Due, Renewals};
use super::token_cache::TokenCache;
use super::trail::Trail;
use super::{Admitted, Asked, Verdict};
use crate::caller::Proof;
use crate::config::Tokens;
use crate::telemetry::label::AuthMethod;

/// Verified tokens that are remembered, and the bytes of their claims.
const KNOWN: usize = 4096;
const KNOWN_BYTES: usize = 16 << 20;

/// Tokens that are remembered as not active.
const INACTIVE: usize = 4096;

/// What a token is known by: never itself.
pub(super) type Digest = [u8; 32];

/// The digest of a token for a server that takes these issuers: who judges it, and by which table, depends on them.
pub(super) fn digest(token: &[u8], issuers: &[Arc<str>]) -> Digest {
    let mut hash = Sha256::new_with_prefix(token);
    for name in issuers {
        hash.update([0]);
        hash.update(name.as_bytes());
    }
    hash.finalize().into()
}

/// The issuers of one configuration.
#[derive(Default)]
pub(super) struct Circle {
    pub(super) authorities: BTreeMap<Arc<str>, Arc<Authority>>,
    caches: OnceLock<Caches>,
    questions: Questions<Found>,
}

struct Caches {
    known: TokenCache<Known>,
    inactive: TokenCache<()>,
}

/// A token that was verified before.
struct Known {
    authority: Arc<Authority>,
    verified: Verified,
    basis: Basis,
}

/// What it is known by that a token is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// Its signature, by a key of this generation.
    Keys(Option<u64>),
    /// Its issuer's word at this time, in seconds since the Unix epoch.
    Answer(u64),
}

/// What was found out about a token, whoever shows it and wherever.
struct Found {
    method: AuthMethod,
    outcome: Result<Arc<Known>, Rejection>,
}

impl Circle {
    pub(super) fn new(authorities: BTreeMap<Arc<str>, Arc<Authority>>) -> Circle {
        Circle { authorities, ..Circle::default() }
    }

    /// Who may be asked about a token: the one it names as its issuer, else all that take opaque tokens.
    pub(super) fn concerned(&self, jwt: Option<&Jwt<'_>>, asked: &Asked<'_>) -> Vec<&Arc<Authority>> {
        let said = jwt.and_then(Jwt::issuer);
        let concerns = |authority: &&Arc<Authority>| match said {
            Some(said) => *authority.config.issuer == *said,
            None => authority.config.tokens == Tokens::Opaque,
        };
        self.taken(asked).filter(concerns).collect()
    }

    /// Whose tokens count at the server that is asked for.
    fn taken(&self, asked: &Asked<'_>) -> impl Iterator<Item = &Arc<Authority>> {
        asked.policy.issuers.iter().filter_map(|name| self.authorities.get(name))
    }

    fn caches(&self) -> &Caches {
        self.caches.get_or_init(|| Caches {
            known: TokenCache::new(KNOWN, KNOWN_BYTES),
            inactive: TokenCache::new(INACTIVE, INACTIVE * 16),
        })
    }

    /// Judges a token by what is known of it.
    pub(super) fn recall(&self, token: &Shown<'_>, asked: &Asked<'_>, renewals: &Renewals) -> Option<Verdict> {
        let caches = self.caches();
        let Some(known) = caches.known.get(&token.digest, asked.now_unix) else {
            caches.inactive.get(&token.digest, asked.now_unix)?;
            let outcome = Err(Rejection::Token(TokenFault::Inactive));
            return Some(Verdict { method: Some(AuthMethod::Introspection), outcome });
        };
        // Keys that changed may have been taken back.
        if matches!(known.basis, Basis::Keys(generation) if generation != known.authority.keys.generation()) {
            return None;
        }
        Some(Verdict { method: Some(method(&known.authority)), outcome: known.admit(token, asked, renewals) })
    }

    /// Judges a token of which nothing is known. Requests that show it at the same time find it out together.
    pub(super) async fn judge(&self, token: &Shown<'_>, asked: &Asked<'_>, renewals: &Renewals) -> Verdict {
        let question = Question::join(&self.questions, token.digest);
        let found = question.answer(|| self.find_out(token, asked)).await;
        let outcome = match &found.outcome {
            Ok(known) => known.admit(token, asked, renewals),
            Err(rejection) => Err(*rejection),
        };
        Verdict { method: Some(found.method), outcome }
    }

    /// Finds out what does not depend on the request, and remembers it.
    async fn find_out(&self, token: &Shown<'_>, asked: &Asked<'_>) -> Found {
        let mut trail = Trail::default();
        let (authority, outcome) = self.examine(token.text, asked, &mut trail).await;
        let method = authority.as_ref().map_or(AuthMethod::Jwt, |authority| method(authority));
        let Some(authority) = authority else {
            return Found { method, outcome: Err(outcome.err().unwrap_or(Rejection::Unavailable)) };
        };
        let outcome = match outcome {
            Ok((verified, generation)) => {
                let basis = match authority.config.tokens {
                    Tokens::Jwt => Basis::Keys(generation),
                    Tokens::Opaque => Basis::Answer(asked.now_unix),
                };
                Ok(self.remember(token.digest, Known { authority, verified, basis }))
            }
            Err(rejection) => {
                if rejection == Rejection::Token(TokenFault::Inactive) {
                    self.remember_inactive(token.digest, &authority, asked.now_unix);
                }
                if trail.is_genuine() {
                    tell(&trail, &authority, asked);
                }
                Err(rejection)
            }
        };
        Found { method, outcome }
    }

    fn remember(&self, digest: Digest, known: Known) -> Arc<Known> {
        let end = match known.basis {
            Basis::Keys(_) => known.verified.last(),
            Basis::Answer(at) => known.verified.last().min(at + known.authority.config.introspection.cache.as_secs()),
        };
        let (weight, known) = (known.verified.weight(), Arc::new(known));
        self.caches().known.put(digest, Arc::clone(&known), weight, end);
        known
    }

    fn remember_inactive(&self, digest: Digest, authority: &Authority, now_unix: u64) {
        let end = now_unix + authority.config.introspection.cache.as_secs();
        self.caches().known.forget(&digest);
        self.caches().inactive.put(digest, Arc::new(()), 16, end);
    }

    /// Asks again about an opaque token by which something is open.
    pub(super) async fn renew(&self, due: &Due, now_unix: impl Fn() -> u64) -> Renewed {
        let Some(authority) = self.authorities.get(&due.issuer) else { return Renewed::Over };
        match authority.introspect(&due.token, &mut Trail::default()).await {
            Ok(verified) if *verified.principal() == due.principal => {
                let authority = Arc::clone(authority);
                let known = Known { authority, verified, basis: Basis::Answer(now_unix()) };
                let known = self.remember(due.digest, known);
                due.renewal.extend(known.due(), known.end(now_unix()).unwrap_or(u64::MAX));
                Renewed::Good
            }
            Err(Rejection::Unavailable) => Renewed::Unknown,
            Ok(_) | Err(_) => {
                self.remember_inactive(due.digest, authority, now_unix());
                Renewed::Over
            }
        }
    }

    /// Finds who issued a token, and verifies all of it that does not depend on the request.
    pub(super) async fn examine(
        &self,
        token: &[u8],
        asked: &Asked<'_>,
        trail: &mut Trail,
    ) -> (Option<Arc<Authority>>, Result<(Verified, Option<u64>), Rejection>) {
        let jwt = Jwt::parse(token);
        let concerned = self.concerned(jwt.as_ref(), asked);
        if let Some(jwt) = jwt
            && let Some(said) = jwt.issuer()
        {
            let Some(authority) = concerned.first() else {
                let known: Vec<&str> = self.taken(asked).map(|authority| &*authority.config.issuer).collect();
                let expected = format_args!("one of {known:?}");
                let fault = trail.stop(TokenFault::Issuer, "iss", &expected, &format_args!("{said:?}"));
                return (None, Err(Rejection::Token(fault)));
            };
            let _passed = trail.check(TokenFault::Issuer, "iss", true, &authority.config.issuer, &said);
            let outcome = match authority.config.tokens {
                Tokens::Jwt => authority.verify(jwt, trail).await,
                Tokens::Opaque => authority.introspect(token, trail).await.map(|verified| (verified, None)),
            };
            return (Some(Arc::clone(authority)), outcome);
        }
        let mut last = None;
        for authority in concerned {
            let outcome = authority.introspect(token, trail).await.map(|verified| (verified, None));
            let is_over = !matches!(outcome, Err(Rejection::Token(TokenFault::Inactive)));
            last = Some((Some(Arc::clone(authority)), outcome));
            if is_over {
                break;
            }
        }
        last.unwrap_or_else(|| {
            let got = "something else";
            let expected = "a signed JWT, header.claims.signature, that names its issuer";
            (None, Err(Rejection::Token(trail.stop(TokenFault::Malformed, "form", &expected, &got))))
        })
    }
}

/// A token as a request shows it.
pub(super) struct Shown<'a> {
    pub(super) text: &'a [u8],
    pub(super) digest: Digest,
}

/// What became of a question about a token that was good before.
pub(super) enum Renewed {
    /// It is good, and what is open by it may stay.
    Good,
    /// It counts no more.
    Over,
    /// Nobody says.
    Unknown,
}

impl Known {
    /// Judges what depends on the request.
    fn admit(&self, token: &Shown<'_>, asked: &Asked<'_>, renewals: &Renewals) -> Result<Admitted, Rejection> {
        let Known { authority, verified, basis } = self;
        let mut trail = Trail::default();
        let checked = verified.check(&authority.config, asked, &mut trail);
        tell(&trail, authority, asked);
        checked.map_err(Rejection::Token)?;
        let mut admitted = verified.admitted(asked.now_unix);
        if matches!(basis, Basis::Answer(_)) {
            let renewal = renewals.of(token, &authority.name, verified.principal());
            let until = self.end(asked.now_unix);
            renewal.extend(self.due(), until.unwrap_or(u64::MAX));
            admitted.proof = Proof { until, renewal: Some(renewal) };
        }
        Ok(admitted)
    }

    /// When what is opened by it at `now` ends unless its issuer is asked again, for which there is time always: an
    /// answer that is about to end may be what opened it.
    fn end(&self, now: u64) -> Option<u64> {
        let end = self.verified.end(now);
        let Basis::Answer(at) = self.basis else { return end };
        Some(end.unwrap_or(u64::MAX).min((at + self.stay()).max(now + LEAST_STAY)))
    }

    /// Seconds for which an answer about it lets something stay open.
    fn stay(&self) -> u64 {
        self.authority.config.introspection.cache.as_secs().max(LEAST_STAY)
    }

    /// From when on its issuer is asked again: so that it may take a third of the time, or fail and be asked once more.
    fn due(&self) -> u64 {
        match self.basis {
            Basis::Keys(_) => u64::MAX,
            Basis::Answer(at) => at + self.stay() - self.stay() / 3,
        }
    }
}

/// Least seconds for which an answer about an opaque token lets something stay open. They hold the looks of whoever finds
/// out that it is due, and of whoever asks.
const LEAST_STAY: u64 = 5;

fn method(authority: &Authority) -> AuthMethod {
    match authority.config.tokens {
        Tokens::Jwt => AuthMethod::Jwt,
        Tokens::Opaque => AuthMethod::Introspection,
    }
}

/// Says why a token was refused that its issuer did issue: whoever configured one of the two wants to know, and strangers
/// cannot cause such lines.
fn tell(trail: &Trail, authority: &Authority, asked: &Asked<'_>) {
    if let Some(step) = trail.failed() {
        info!(
            event = "auth_refused",
            server = asked.server,
            issuer = &*authority.name,
            check = step.name,
            expected = step.expected,
            got = step.got
        );
    }
}
