//! One authorization server as the gateway knows it: its configuration, its keys, and where it is asked.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{info, warn};

use super::claims::{Source, Verified};
use super::discovery::{Form, Metadata, Missed, Undiscovered, discover};
use super::fetch::{FetchError, Fetcher, ShownUrl, max_age};
use super::introspection::{Introspector, Unanswered};
use super::jwks::{KeySet, NoKey};
use super::jwt::Jwt;
use super::key_source::{KeySource, Missing, next_fetch, next_try};
use super::new_key::is_api_key;
use super::rejection::{Rejection, TokenFault};
use super::trail::Trail;
use crate::config::{Issuer, Tokens};
use crate::telemetry::label::Refresh;
use crate::telemetry::{Metrics, Occasion};

/// Introspections of one issuer at the same time: tokens of strangers must not become a flood at the issuer.
const ASKING: usize = 32;

/// Longest wait for one of them.
const WAIT: Duration = Duration::from_secs(5);

/// Least time between two complaints that an issuer does not answer about tokens.
const COMPLAINTS: Duration = Duration::from_secs(30);

/// The longest opaque token that is asked about, in bytes.
const OPAQUE_BYTES: usize = 4096;

/// Why an issuer's keys, or its introspection, could not be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Discovery(Missed),
    /// Its metadata does not name what is needed; which member.
    Unnamed(&'static str),
    /// There are no keys at this URL, and why.
    Keys(String, NoKeySet),
}

/// Why there are no keys at a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoKeySet {
    Fetch(FetchError),
    Malformed(&'static str),
    /// None may sign.
    Unfit,
}

impl Trouble {
    fn label(&self) -> Refresh {
        let fetch = |error: &FetchError| match error {
            FetchError::Timeout => Refresh::Timeout,
            FetchError::Unreachable(_) => Refresh::Unreachable,
            FetchError::TooLarge => Refresh::TooLarge,
            FetchError::Status(_) | FetchError::Encoded | FetchError::Url => Refresh::Refused,
        };
        match self {
            Trouble::Discovery(Missed { why, .. }) => match why {
                Undiscovered::Fetch(error) => fetch(error),
                Undiscovered::OtherIssuer(_) => Refresh::OtherIssuer,
                Undiscovered::Url(_) => Refresh::Refused,
                Undiscovered::Malformed(_) => Refresh::Malformed,
            },
            Trouble::Keys(_, NoKeySet::Fetch(error)) => fetch(error),
            Trouble::Unnamed(_) | Trouble::Keys(_, NoKeySet::Malformed(_) | NoKeySet::Unfit) => Refresh::Malformed,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Discovery(error) => error.fmt(f),
            Trouble::Unnamed(member) => write!(f, "its metadata has no `{member}`: write it in the configuration"),
            Trouble::Keys(url, why) => write!(f, "{why} ({})", ShownUrl(url)),
        }
    }
}

impl fmt::Display for NoKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoKeySet::Fetch(error) => write!(f, "its keys cannot be had: {error}"),
            NoKeySet::Malformed(why) => write!(f, "its key set is malformed: {why}"),
            NoKeySet::Unfit => f.write_str("its key set has no key for any of the configured `algorithms`"),
        }
    }
}

/// What a look at an issuer brought.
pub(super) struct Fetched {
    /// Whether it has other keys than before.
    changed: bool,
    /// How long it says that this is fresh, in seconds.
    max_age: Option<u64>,
}

/// One authorization server.
pub(super) struct Authority {
    pub(super) name: Arc<str>,
    pub(super) config: Arc<Issuer>,
    pub(super) keys: KeySource,
    fetcher: Arc<Fetcher>,
    /// Read once, and again after a failure.
    metadata: RwLock<Option<(Form, Arc<Metadata>)>>,
    introspector: RwLock<Option<Arc<Introspector>>>,
    asking: Semaphore,
    /// When it was last said that it does not answer.
    complaints: Occasion,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Authority").field(&self.name).finish()
    }
}

impl Authority {
    pub(super) fn new(name: Arc<str>, config: Arc<Issuer>, fetcher: Arc<Fetcher>) -> Authority {
        Authority {
            name,
            config,
            keys: KeySource::new(),
            fetcher,
            metadata: RwLock::default(),
            introspector: RwLock::default(),
            asking: Semaphore::new(ASKING),
            complaints: Occasion::each(COMPLAINTS),
        }
    }

    /// Whether its tokens can be judged.
    pub(super) fn is_ready(&self) -> bool {
        match self.config.tokens {
            Tokens::Jwt => self.keys.loaded().is_some(),
            Tokens::Opaque => self.introspector().is_some(),
        }
    }

    fn introspector(&self) -> Option<Arc<Introspector>> {
        self.introspector.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its metadata, as last read.
    pub(super) fn metadata(&self) -> Option<(Form, Arc<Metadata>)> {
        self.metadata.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads its metadata, unless that was done.
    pub(super) async fn discover(&self) -> Result<Arc<Metadata>, Trouble> {
        if let Some((_, metadata)) = self.metadata() {
            return Ok(metadata);
        }
        let (form, metadata) = discover(&self.fetcher, &self.config.issuer).await.map_err(Trouble::Discovery)?;
        let metadata = Arc::new(metadata);
        *self.metadata.write().unwrap_or_else(PoisonError::into_inner) = Some((form, Arc::clone(&metadata)));
        Ok(metadata)
    }

    /// Fetches what is needed to judge its tokens.
    ///
    /// # Errors
    /// See [`Trouble`]; what was there stays.
    async fn fetch(&self) -> Result<Fetched, Trouble> {
        let fetched = match self.config.tokens {
            Tokens::Jwt => self.fetch_keys().await,
            Tokens::Opaque => self.find_introspection().await,
        };
        if fetched.is_err() {
            // It may have moved.
            *self.metadata.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        fetched
    }

    async fn fetch_keys(&self) -> Result<Fetched, Trouble> {
        let uri = match &self.config.jwks_uri {
            Some(uri) => uri.clone(),
            None => self.discover().await?.jwks_uri.clone().ok_or(Trouble::Unnamed("jwks_uri"))?,
        };
        let (headers, keys) = self.keys_at(&uri).await.map_err(|why| Trouble::Keys(uri, why))?;
        Ok(Fetched { changed: self.keys.take(keys), max_age: max_age(&headers) })
    }

    async fn keys_at(&self, url: &str) -> Result<(HeaderMap, KeySet), NoKeySet> {
        let (headers, body) = self.fetcher.get(url).await.map_err(NoKeySet::Fetch)?;
        let keys = KeySet::parse(&body, &self.config.algorithms).map_err(NoKeySet::Malformed)?;
        if keys.len() == 0 { Err(NoKeySet::Unfit) } else { Ok((headers, keys)) }
    }

    async fn find_introspection(&self) -> Result<Fetched, Trouble> {
        const NAME: &str = "introspection_endpoint";
        let introspection = &self.config.introspection;
        let found = match &introspection.url {
            Some(url) => Introspector::new(url, introspection, &[]),
            None => {
                let metadata = self.discover().await?;
                let url = metadata.introspection_endpoint.as_deref().ok_or(Trouble::Unnamed(NAME))?;
                Introspector::new(url, introspection, &metadata.introspection_endpoint_auth_methods_supported)
            }
        };
        let found = found.map_err(|_| Trouble::Unnamed(NAME))?;
        let mut introspector = self.introspector.write().unwrap_or_else(PoisonError::into_inner);
        let changed = introspector.replace(Arc::new(found)).is_none();
        Ok(Fetched { changed, max_age: None })
    }

    /// As [`Authority::fetch`], where nobody fetches again.
    pub(super) async fn fetch_once(&self) -> Result<Fetched, Trouble> {
        let fetched = self.fetch().await;
        self.keys.attempt_ended();
        fetched
    }

    /// Fetches again and again, and whenever a token asks for it; ends never.
    pub(super) async fn keep_fresh(&self, metrics: &Metrics, loaded: impl Fn()) {
        let mut failures = 0;
        loop {
            self.keys.attempt_began();
            let fetched = self.fetch().await;
            self.keys.attempt_ended();
            let label = fetched.as_ref().map_or_else(|trouble| trouble.label(), |_| Refresh::Ok);
            metrics.keys_refreshed(&self.name, label);
            let pause = match fetched {
                Ok(fetched) => {
                    metrics.keys_loaded(&self.name);
                    self.tell(&fetched, failures);
                    loaded();
                    failures = 0;
                    next_fetch(fetched.max_age)
                }
                Err(trouble) => {
                    failures += 1;
                    self.complain(&trouble, failures);
                    next_try(failures)
                }
            };
            self.keys.due(pause).await;
        }
    }

    fn tell(&self, fetched: &Fetched, failures: u32) {
        if fetched.changed || failures > 0 {
            let keys = self.keys.loaded().map_or(0, |loaded| loaded.keys.len());
            info!(event = "issuer_keys", issuer = &*self.name, keys, changed = fetched.changed);
        }
    }

    /// Says it at the first failure, and about every five minutes while it lasts.
    fn complain(&self, trouble: &Trouble, failures: u32) {
        if failures == 1 || failures.is_multiple_of(10) {
            let effect = if self.is_ready() { "the keys loaded before stay in use" } else { "its tokens get 503" };
            warn!(event = "issuer_keys_failed", issuer = &*self.name, error = %trouble, failures, warning = effect);
        }
    }

    /// Says it once in a while: every request with a token meets it.
    fn complain_of_silence(&self, url: &str, error: &Unanswered) {
        if self.complaints.take().is_some() {
            let error = format!("{error} ({})", ShownUrl(url));
            warn!(event = "introspection_failed", issuer = &*self.name, error, warning = "its tokens get 503");
        }
    }

    /// Verifies a JWT that says it is of this issuer; gives the generation of the keys it was verified with.
    ///
    /// # Errors
    /// The first thing that is wrong, or that there are no keys to tell by.
    pub(super) async fn verify(&self, jwt: Jwt<'_>, trail: &mut Trail) -> Result<(Verified, Option<u64>), Rejection> {
        jwt.check_header(&self.config, trail).map_err(Rejection::Token)?;
        let algorithm = jwt.algorithm().ok_or(Rejection::Token(TokenFault::Algorithm))?;
        let found = match self.keys.find(jwt.kid(), algorithm).await {
            Ok(found) => Some(found),
            Err(Missing::NeverLoaded) => return Err(Rejection::Unavailable),
            Err(Missing::NoKey(why)) => {
                miss(why, &jwt, trail).map_err(Rejection::Token)?;
                None
            }
        };
        // Without a key only an explanation comes here.
        if let Some((key, _)) = &found {
            let signed = jwt.is_signed_with(key);
            let got = if signed { "that of the issuer's key" } else { "another, or a changed token" };
            trail
                .check(TokenFault::Signature, "signature", signed, &"that of the issuer's key", &got)
                .map_err(Rejection::Token)?;
        }
        trail.genuine();
        let verified = Verified::judge(jwt.into_claims(), Source::Jwt, &self.config, trail);
        Ok((verified.map_err(Rejection::Token)?, found.map(|(_, generation)| generation)))
    }

    /// Asks the issuer about an opaque token.
    ///
    /// # Errors
    /// It is not active, something it claims is wrong, or the issuer does not answer.
    pub(super) async fn introspect(&self, token: &[u8], trail: &mut Trail) -> Result<Verified, Rejection> {
        let fit = |token: &&str| {
            let has_form = token.len() <= OPAQUE_BYTES && token.bytes().all(is_token_byte) && !token.is_empty();
            // A key of this gateway's, sent to the wrong server of it, is not for an issuer to see.
            has_form && !is_api_key(token.as_bytes())
        };
        let Some(token) = std::str::from_utf8(token).ok().filter(fit) else {
            let got = "characters no token has, or too many";
            return Err(Rejection::Token(trail.stop(TokenFault::Malformed, "form", &"a bearer token", &got)));
        };
        if self.introspector().is_none() {
            self.keys.begun().await;
        }
        let introspector = self.introspector().ok_or(Rejection::Unavailable)?;
        let Ok(Ok(_permit)) = timeout(WAIT, self.asking.acquire()).await else { return Err(Rejection::Unavailable) };
        let answer = introspector.ask(token, &self.fetcher).await.map_err(|error| {
            self.complain_of_silence(introspector.url(), &error);
            Rejection::Unavailable
        })?;
        let check = |trail: &mut Trail, fault, name, passed, expected: &str, got: &dyn fmt::Display| {
            trail.check(fault, name, passed, &expected, got).map_err(Rejection::Token)
        };
        let Some(claims) = answer else {
            return Err(Rejection::Token(trail.stop(TokenFault::Inactive, "active", &"true", &"false")));
        };
        check(trail, TokenFault::Inactive, "active", true, "true", &"true")?;
        trail.genuine();
        let said = claims.get("iss");
        let own = said.is_none_or(|said| said.as_str() == Some(&*self.config.issuer));
        let got = said.map_or_else(|| "none".to_owned(), ToString::to_string);
        check(trail, TokenFault::Issuer, "iss", own, &self.config.issuer, &got)?;
        Verified::judge(claims, Source::Introspection, &self.config, trail).map_err(Rejection::Token)
    }
}

/// Notes that no key fits.
fn miss(why: NoKey, jwt: &Jwt<'_>, trail: &mut Trail) -> Result<(), TokenFault> {
    let (fault, name, expected) = match why {
        NoKey::Unknown => (TokenFault::Key, "kid", "one of the issuer's keys"),
        NoKey::Ambiguous => (TokenFault::Key, "kid", "exactly one of the issuer's keys"),
        NoKey::OtherAlgorithm => (TokenFault::Algorithm, "alg", "that of the key"),
    };
    trail.check(fault, name, false, &expected, &jwt.said(name))
}

/// What a bearer token is made of (RFC 6750, 2.1).
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)
}
