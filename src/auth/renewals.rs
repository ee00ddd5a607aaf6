//! Opaque tokens by which something is open. A request asks for itself whether its token counts; a stream may be open for
//! days, so its issuer has to be asked again, for which the token itself is needed (RFC 7662, 2.1). It is kept in memory,
//! here alone, and no longer than a session that was opened or used with it lives.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::circle::{Digest, Shown};
use crate::caller::{Principal, Renewal};

/// Every one.
#[derive(Default)]
pub(super) struct Renewals(Mutex<HashMap<Digest, Held>>);

struct Held {
    token: Arc<[u8]>,
    issuer: Arc<str>,
    principal: Principal,
    renewal: Weak<Renewal>,
    /// Whether its issuer is being asked.
    is_asked: bool,
}

/// One that is to be asked about.
pub(super) struct Due {
    pub(super) digest: Digest,
    pub(super) token: Arc<[u8]>,
    /// The name of its issuer's table.
    pub(super) issuer: Arc<str>,
    /// Whom it spoke for.
    pub(super) principal: Principal,
    pub(super) renewal: Arc<Renewal>,
}

impl fmt::Debug for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Due").field(&self.issuer).finish()
    }
}

impl Renewals {
    fn held(&self) -> MutexGuard<'_, HashMap<Digest, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What sessions hold that are opened or used with this token.
    pub(super) fn of(&self, token: &Shown<'_>, issuer: &Arc<str>, principal: &Principal) -> Arc<Renewal> {
        let mut all = self.held();
        let held = all.entry(token.digest).or_insert_with(|| Held {
            token: token.text.into(),
            issuer: Arc::clone(issuer),
            principal: principal.clone(),
            renewal: Weak::new(),
            is_asked: false,
        });
        held.renewal.upgrade().unwrap_or_else(|| {
            let renewal = Arc::default();
            held.renewal = Arc::downgrade(&renewal);
            renewal
        })
    }

    /// Those that are to be asked about now. Forgets those by which nothing is open.
    pub(super) fn due(&self) -> Vec<Due> {
        let mut due = Vec::new();
        self.held().retain(|digest, held| {
            let Some(renewal) = held.renewal.upgrade() else { return false };
            if !held.is_asked && renewal.take_wish() {
                held.is_asked = true;
                let (token, issuer) = (Arc::clone(&held.token), Arc::clone(&held.issuer));
                due.push(Due { digest: *digest, token, issuer, principal: held.principal.clone(), renewal });
            }
            true
        });
        due
    }

    /// Its issuer was asked, and may be again.
    pub(super) fn asked(&self, due: &Due) {
        if let Some(held) = self.held().get_mut(&due.digest) {
            held.is_asked = false;
        }
    }

    /// It counts no more.
    pub(super) fn forget(&self, due: &Due) {
        self.held().remove(&due.digest);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Renewals, Shown};
    use crate::caller::{Principal, Proof, Proven};

    fn shown(text: &[u8]) -> Shown<'_> {
        Shown { text, digest: [text[0]; 32] }
    }

    #[test]
    fn a_token_is_kept_as_long_as_something_is_open_by_it() {
        let (renewals, issuer, principal) = (Renewals::default(), Arc::from("main"), Principal::Anonymous);
        let renewal = renewals.of(&shown(b"a"), &issuer, &principal);
        assert!(Arc::ptr_eq(&renewal, &renewals.of(&shown(b"a"), &issuer, &principal)));
        let proven = Proven::default();
        renewal.extend(0, 1_000);
        proven.take(&Proof { until: Some(1_000), renewal: Some(renewal) });
        assert!(renewals.due().is_empty(), "nobody wants it");
        assert!(!proven.is_over(999));
        let due = renewals.due();
        assert_eq!((due.len(), &*due[0].token), (1, &b"a"[..]));
        assert!(!proven.is_over(999) && renewals.due().is_empty(), "it is being asked about");
        renewals.asked(&due[0]);
        assert!(!proven.is_over(999) && renewals.due().len() == 1);
        drop((proven, due));
        assert!(renewals.due().is_empty() && renewals.held().is_empty(), "nothing is open by it");
    }
}
