//! Every issuer whose access tokens count here, and what is known of tokens that were judged before.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info;

use super::authority::Authority;
use super::claims::Verified;
use super::fetch::Fetcher;
use super::jwt::Jwt;
use super::rejection::{Rejection, TokenFault};
use super::token_cache::TokenCache;
use super::trail::Trail;
use super::{Admitted, Asked, Verdict};
use crate::caller::Principal;
use crate::config::{Auth, Issuer, Tokens};
use crate::rare::rarely;
use crate::telemetry::Metrics;
use crate::telemetry::label::AuthMethod;

/// Verified tokens that are remembered, and the bytes of their claims.
const KNOWN: usize = 4096;
const KNOWN_BYTES: usize = 16 << 20;

/// Tokens that are remembered as not active.
const INACTIVE: usize = 4096;

/// The issuers of the configuration in effect. Requests read it, and a reload replaces it as a whole.
pub struct Issuers {
    /// Readers clone the `Arc` out and never hold a lock while they work; whoever keeps keys fresh watches it.
    current: watch::Sender<Arc<Circle>>,
    fetcher: Arc<Fetcher>,
    metrics: Arc<Metrics>,
    /// Whether every issuer could be asked at once, some time.
    was_ready: AtomicBool,
}

/// The issuers of one configuration.
#[derive(Default)]
pub(super) struct Circle {
    authorities: BTreeMap<Arc<str>, Arc<Authority>>,
    caches: OnceLock<Caches>,
}

struct Caches {
    known: TokenCache<Known>,
    inactive: TokenCache<()>,
}

/// A token that was verified before.
struct Known {
    authority: Arc<Authority>,
    verified: Verified,
    /// The generation of keys it was verified with; `None` for one that was asked about.
    generation: Option<u64>,
}

impl fmt::Debug for Issuers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.current().authorities.keys()).finish()
    }
}

impl Issuers {
    /// Takes over the issuers of `[auth]`; nobody is asked anything yet.
    #[must_use]
    pub fn new(auth: &Auth, metrics: Arc<Metrics>) -> Arc<Issuers> {
        let issuers = Issuers {
            current: watch::Sender::default(),
            fetcher: Arc::default(),
            metrics,
            was_ready: AtomicBool::new(false),
        };
        issuers.replace(auth);
        Arc::new(issuers)
    }

    /// Puts the issuers of `[auth]` in the place of all there were. One that did not change keeps its keys; what is
    /// known of tokens is judged anew.
    pub fn replace(&self, auth: &Auth) {
        let before = self.current();
        let kept = |name: &Arc<str>, config: &Arc<Issuer>| {
            before.authorities.get(name).filter(|authority| authority.config == *config).cloned()
        };
        let authority = |(name, config): (&Arc<str>, &Arc<Issuer>)| {
            let fresh = || Arc::new(Authority::new(Arc::clone(name), Arc::clone(config), Arc::clone(&self.fetcher)));
            (Arc::clone(name), kept(name, config).unwrap_or_else(fresh))
        };
        let authorities: BTreeMap<_, _> = auth.issuers.iter().map(authority).collect();
        for gone in before.authorities.keys().filter(|name| !authorities.contains_key(*name)) {
            self.metrics.issuer_gone(gone);
        }
        self.current.send_replace(Arc::new(Circle::new(authorities)));
    }

    fn current(&self) -> Arc<Circle> {
        Arc::clone(&self.current.borrow())
    }

    /// Keeps the keys of every issuer fresh, of those too that come with a reload; ends never.
    pub async fn follow(self: Arc<Self>) {
        let mut current = self.current.subscribe();
        let mut fresh: JoinSet<()> = JoinSet::new();
        let mut followed: Vec<(Arc<Authority>, tokio::task::AbortHandle)> = Vec::new();
        loop {
            let circle = Arc::clone(&current.borrow_and_update());
            let has = |authority: &Arc<Authority>| circle.authorities.values().any(|one| Arc::ptr_eq(one, authority));
            followed.retain(|(authority, task)| {
                has(authority) || {
                    task.abort();
                    false
                }
            });
            for authority in circle.authorities.values() {
                if followed.iter().all(|(one, _)| !Arc::ptr_eq(one, authority)) {
                    let (issuers, own) = (Arc::clone(&self), Arc::clone(authority));
                    let task = fresh.spawn(async move { own.keep_fresh(&issuers.metrics, || issuers.loaded()).await });
                    followed.push((Arc::clone(authority), task));
                }
            }
            drop(circle);
            if current.changed().await.is_err() {
                return;
            }
            while fresh.try_join_next().is_some() {}
        }
    }

    fn loaded(&self) {
        let every = self.current().authorities.values().all(|authority| authority.is_ready());
        if every && !self.was_ready.swap(true, Ordering::AcqRel) {
            info!(event = "issuers_ready");
        }
    }

    /// Whether every issuer could be asked at once, some time since the start. Afterwards an issuer that is out of reach
    /// makes nothing unready: its keys are kept.
    #[must_use]
    pub fn were_ready(&self) -> bool {
        self.was_ready.load(Ordering::Acquire) || self.current().authorities.is_empty()
    }

    /// The names of issuers whose tokens cannot be judged now.
    #[must_use]
    pub fn unready(&self) -> Vec<Arc<str>> {
        let circle = self.current();
        let unready = circle.authorities.values().filter(|authority| !authority.is_ready());
        unready.map(|authority| Arc::clone(&authority.name)).collect()
    }

    /// Whether what was opened by this caller may stay open: its issuer still counts.
    #[must_use]
    pub fn stands(&self, principal: &Principal) -> bool {
        let Principal::Token(holder) = principal else { return true };
        self.current().authorities.values().any(|authority| authority.config.issuer == holder.issuer)
    }

    /// Judges an access token for the server that is asked for. One that was verified before is judged without waiting
    /// and without an allocation.
    pub async fn verify(&self, token: &[u8], asked: &Asked<'_>) -> Verdict {
        let circle = self.current();
        let digest: [u8; 32] = Sha256::digest(token).into();
        if let Some(verdict) = circle.known(&digest, asked) {
            return verdict;
        }
        rarely(|| circle.judge(token, digest, asked)).await
    }
}

impl Circle {
    pub(super) fn new(authorities: BTreeMap<Arc<str>, Arc<Authority>>) -> Circle {
        Circle { authorities, caches: OnceLock::new() }
    }

    /// Who may be asked about a token: the one it names as its issuer, else all that take opaque tokens.
    pub(super) fn concerned(&self, token: &[u8], asked: &Asked<'_>) -> Vec<&Arc<Authority>> {
        let jwt = Jwt::parse(token);
        let said = jwt.as_ref().and_then(Jwt::issuer);
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

    /// What is known of a token that was judged before.
    fn known(&self, digest: &[u8; 32], asked: &Asked<'_>) -> Option<Verdict> {
        let caches = self.caches();
        let Some(known) = caches.known.get(digest, asked.now_unix) else {
            caches.inactive.get(digest, asked.now_unix)?;
            let outcome = Err(Rejection::Token(TokenFault::Inactive));
            return Some(Verdict { method: Some(AuthMethod::Introspection), outcome });
        };
        let Known { authority, verified, generation } = &*known;
        // Keys that changed may have been taken back.
        if generation.is_some() && *generation != authority.keys.generation() {
            return None;
        }
        let mut trail = Trail::default();
        let outcome = if asked.policy.issuers.contains(&authority.name) {
            admit(authority, verified, asked, &mut trail)
        } else {
            Err(Rejection::Token(TokenFault::Issuer))
        };
        tell(&trail, authority, asked);
        Some(Verdict { method: Some(method(authority)), outcome })
    }

    async fn judge(&self, token: &[u8], digest: [u8; 32], asked: &Asked<'_>) -> Verdict {
        let mut trail = Trail::default();
        let (authority, outcome) = self.examine(token, asked, &mut trail).await;
        let method = authority.as_ref().map_or(AuthMethod::Jwt, |authority| method(authority));
        let (authority, (verified, generation)) = match (authority, outcome) {
            (Some(authority), Ok(found)) => (authority, found),
            (authority, outcome) => {
                let rejection = outcome.err().unwrap_or(Rejection::Unavailable);
                self.remember_inactive(digest, authority.as_deref(), rejection, asked);
                if let Some(authority) = authority.filter(|_| trail.is_genuine()) {
                    tell(&trail, &authority, asked);
                }
                return Verdict { method: Some(method), outcome: Err(rejection) };
            }
        };
        let outcome = admit(&authority, &verified, asked, &mut trail);
        tell(&trail, &authority, asked);
        let expires = verified.expires.map_or(u64::MAX, |end| end.saturating_add(authority.config.leeway.as_secs()));
        let end = match generation {
            Some(_) => expires,
            None => expires.min(asked.now_unix + authority.config.introspection.cache.as_secs()),
        };
        let weight = verified.weight();
        let known = Known { authority, verified, generation };
        self.caches().known.put(digest, Arc::new(known), weight, end);
        Verdict { method: Some(method), outcome }
    }

    fn remember_inactive(
        &self,
        digest: [u8; 32],
        authority: Option<&Authority>,
        rejection: Rejection,
        asked: &Asked<'_>,
    ) {
        if let (Some(authority), Rejection::Token(TokenFault::Inactive)) = (authority, rejection) {
            let end = asked.now_unix + authority.config.introspection.cache.as_secs();
            self.caches().inactive.put(digest, Arc::new(()), 16, end);
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
        let concerned = self.concerned(token, asked);
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

/// Judges what depends on the request.
fn admit(
    authority: &Authority,
    verified: &Verified,
    asked: &Asked<'_>,
    trail: &mut Trail,
) -> Result<Admitted, Rejection> {
    verified.check(&authority.config, asked, trail).map_err(Rejection::Token)?;
    Ok(verified.admitted())
}

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
