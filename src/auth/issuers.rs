//! Every issuer whose access tokens count here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use super::{Asked, Rejection, Verdict};
use crate::config::{Auth, Issuer};
use crate::telemetry::label::AuthMethod;

/// The issuers of the configuration in effect. Requests read it, and a reload replaces it as a whole.
pub struct Issuers {
    /// An `RwLock` around an `Arc`: readers clone the `Arc` out and never hold the lock while they work.
    current: RwLock<Arc<BTreeMap<Arc<str>, Arc<Issuer>>>>,
}

impl fmt::Debug for Issuers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.current().keys()).finish()
    }
}

impl Issuers {
    /// Takes over the issuers of `[auth]`.
    #[must_use]
    pub fn new(auth: &Auth) -> Arc<Issuers> {
        Arc::new(Issuers { current: RwLock::new(Arc::new(auth.issuers.clone())) })
    }

    fn current(&self) -> Arc<BTreeMap<Arc<str>, Arc<Issuer>>> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Judges an access token for the server that is asked for.
    pub async fn verify(&self, _token: &[u8], _asked: &Asked<'_>) -> Verdict {
        // No key was loaded yet.
        Verdict { method: Some(AuthMethod::Jwt), outcome: Err(Rejection::Unavailable) }
    }
}
