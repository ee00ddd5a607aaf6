//! Callers who named a session of somebody else's: they get the answer of an unknown id, and the operator a line.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::warn;

use crate::caller::Principal;
use crate::telemetry::session_digest;

/// Lines kept between two looks; who floods the gateway must not flood its log.
const MOST_KEPT: usize = 64;

/// One such request.
struct Stranger {
    /// The id it named.
    id: Box<str>,
    server: Arc<str>,
    caller: Principal,
    /// Whose the session is; `None` is nobody's, which is no news.
    owner: Option<Principal>,
}

/// What is to be told of them. It is told later, by the sweep, and as much is done for an id that nobody has: else the
/// time of an answer would say which ids there are.
#[derive(Default)]
pub(super) struct Strangers {
    kept: Mutex<Vec<Stranger>>,
}

impl Strangers {
    /// Notes that `caller` named the session `id`, which is `owner`'s, if anybody's.
    pub(super) fn note(&self, id: &str, server: &Arc<str>, caller: &Principal, owner: Option<&Principal>) {
        let (server, caller, owner) = (Arc::clone(server), caller.clone(), owner.cloned());
        let stranger = Stranger { id: id.into(), server, caller, owner };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if stranger.owner.is_some() && kept.len() < MOST_KEPT {
            kept.push(stranger);
        }
    }

    /// Logs what was noted since the last time.
    pub(super) fn tell(&self) {
        let noted = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        for Stranger { id, server, caller, owner } in noted {
            let Some(owner) = owner else { continue };
            warn!(
                event = "session_principal_mismatch",
                server = %server,
                session = %session_digest(&id),
                principal = %caller,
                owner = %session_digest(&owner.to_string()),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{MOST_KEPT, Strangers};
    use crate::caller::Principal;

    #[test]
    fn only_what_is_somebodys_is_kept_and_not_too_much_of_it() {
        let strangers = Strangers::default();
        let (server, caller): (Arc<str>, _) = ("s".into(), Principal::Key("a".into()));
        strangers.note("x", &server, &caller, None);
        assert!(strangers.kept.lock().expect("no panic").is_empty());
        for _ in 0..2 * MOST_KEPT {
            strangers.note("x", &server, &caller, Some(&Principal::Anonymous));
        }
        assert_eq!(strangers.kept.lock().expect("no panic").len(), MOST_KEPT);
        strangers.tell();
        assert!(strangers.kept.lock().expect("no panic").is_empty());
    }
}
