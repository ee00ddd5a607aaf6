//! Callers who named a session of somebody else's: they get the answer of an unknown id, and the operator a line.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::warn;

use crate::caller::Principal;
use crate::telemetry::session_digest;

/// Requests kept between two looks, of which most may name what is nobody's.
const MOST_KEPT: usize = 1024;

/// Lines told of them; who floods the gateway must not flood its log.
const MOST_TOLD: usize = 64;

/// The longest id that can be a session's, in bytes.
const LONGEST_ID: usize = 64;

/// One such request.
struct Stranger {
    /// The id it named.
    id: Box<str>,
    server: Arc<str>,
    caller: Principal,
    /// Whose the session is, where that is known already.
    owner: Option<Principal>,
}

/// What is to be told of them. Whose an id is, is found out later, by the sweep: else the time of an answer would say
/// which ids there are.
#[derive(Default)]
pub(super) struct Strangers {
    kept: Mutex<Vec<Stranger>>,
}

impl Strangers {
    /// Notes that `caller` named the session `id`, which is `owner`'s, if anybody's.
    pub(super) fn note(&self, id: &str, server: &Arc<str>, caller: &Principal, owner: Option<&Principal>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MOST_KEPT && id.len() <= LONGEST_ID {
            let (server, caller, owner) = (Arc::clone(server), caller.clone(), owner.cloned());
            kept.push(Stranger { id: id.into(), server, caller, owner });
        }
    }

    /// Logs what was noted since the last time, as far as it is of sessions that are somebody else's; `owner_of` says
    /// whose a session is. Gives how many lines that were.
    pub(super) fn tell(&self, owner_of: impl Fn(&str) -> Option<Principal>) -> usize {
        let noted = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        let owned = noted.into_iter().filter_map(|mut stranger| {
            let owner = stranger.owner.take().or_else(|| owner_of(&stranger.id))?;
            (owner != stranger.caller).then_some((stranger, owner))
        });
        let mut told = 0;
        for (Stranger { id, server, caller, .. }, owner) in owned.take(MOST_TOLD) {
            told += 1;
            warn!(
                event = "session_principal_mismatch",
                server = %server,
                session = %session_digest(&id),
                principal = %caller,
                owner = %session_digest(&owner.to_string()),
            );
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{LONGEST_ID, MOST_KEPT, MOST_TOLD, Strangers};
    use crate::caller::Principal;

    #[test]
    fn only_what_is_somebody_elses_is_told_and_not_too_much_of_it() {
        let strangers = Strangers::default();
        let (server, caller): (Arc<str>, _) = ("s".into(), Principal::Key("a".into()));
        let owner_of = |id: &str| match id {
            "theirs" => Some(Principal::Anonymous),
            "own" => Some(Principal::Key("a".into())),
            _ => None,
        };
        for id in ["nobody's", "own", "theirs", &"x".repeat(LONGEST_ID + 1)] {
            strangers.note(id, &server, &caller, None);
        }
        assert_eq!(strangers.kept.lock().expect("no panic").len(), 3);
        assert_eq!(strangers.tell(owner_of), 1);
        for _ in 0..2 * MOST_KEPT {
            strangers.note("x", &server, &caller, Some(&Principal::Anonymous));
        }
        assert_eq!(strangers.kept.lock().expect("no panic").len(), MOST_KEPT);
        assert_eq!((strangers.tell(owner_of), strangers.tell(owner_of)), (MOST_TOLD, 0));
    }
}
