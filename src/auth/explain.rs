//! Judging one token for an operator: every check, with what was expected and what was found.

use std::sync::Arc;

use super::authority::Authority;
use super::circle::Circle;
use super::fetch::Fetcher;

use super::jwt::Jwt;
use super::new_key::PREFIX;
use super::rejection::Rejection;
use super::trail::{Step, Trail};
use super::{Admitted, Asked, Keys};
use crate::config::{Auth, Method};

/// What was found out about a token. It holds neither the token nor a secret.
#[derive(Debug)]
pub struct Explanation {
    /// The issuer it was held against, as the configuration names it; `None` for an API key, or if nobody claims it.
    pub issuer: Option<Arc<str>>,
    /// Every check, in order.
    pub steps: Vec<Step>,
    /// Why the issuer could not be asked.
    pub trouble: Option<String>,
    /// Whether a request with it would be let in now.
    pub outcome: Result<Admitted, Rejection>,
}

/// Judges what would stand behind `Bearer`, as a running gateway would; asks its issuer anew.
pub async fn explain(auth: &Auth, asked: &Asked<'_>, token: &[u8]) -> Explanation {
    let takes = |method| asked.policy.methods.contains(&method);
    if !takes(Method::Oauth) || (takes(Method::ApiKey) && token.starts_with(PREFIX.as_bytes())) {
        return explain_key(auth, asked, token);
    }
    let fetcher = Arc::<Fetcher>::default();
    let authority = |(name, config): (&Arc<str>, &Arc<_>)| {
        (Arc::clone(name), Arc::new(Authority::new(Arc::clone(name), Arc::clone(config), Arc::clone(&fetcher))))
    };
    let circle = Circle::new(auth.issuers.iter().map(authority).collect());
    let jwt = Jwt::parse(token);
    let mut trouble = None;
    for authority in circle.concerned(jwt.as_ref(), asked) {
        if let Err(error) = authority.fetch_once().await {
            trouble.get_or_insert_with(|| format!("{}: {error}", authority.name));
        }
    }
    let mut trail = Trail::explaining();
    let (authority, verified) = circle.examine(token, asked, &mut trail).await;
    let outcome = verified.and_then(|(verified, _)| {
        if let Some(authority) = &authority {
            verified.check(&authority.config, asked, &mut trail).map_err(Rejection::Token)?;
        }
        trail.fault().map_or_else(|| Ok(verified.admitted(asked.now_unix)), |fault| Err(Rejection::Token(fault)))
    });
    let issuer = authority.map(|authority| Arc::clone(&authority.name));
    Explanation { issuer, steps: trail.into_steps(), trouble, outcome }
}

fn explain_key(auth: &Auth, asked: &Asked<'_>, shown: &[u8]) -> Explanation {
    let outcome = Keys::new(auth).verify(shown, asked.server, asked.now_unix);
    let got = outcome.as_ref().map_or_else(ToString::to_string, |_| "one that does".to_owned());
    let expected = format!("an API key that opens {}", asked.server);
    let step = Step { name: "key", expected, got, passed: outcome.is_ok() };
    Explanation { issuer: None, steps: vec![step], trouble: None, outcome }
}
