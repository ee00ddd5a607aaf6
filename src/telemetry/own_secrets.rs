//! The gateway's own secrets, which no event may hold, whoever said them: a child that was given one, or a server on the
//! other side that repeats what it was sent.

use std::sync::{PoisonError, RwLock};

use super::mask::KnownSecrets;

/// Values that are left out of every event. They may change while the gateway runs.
#[derive(Default)]
pub struct OwnSecrets(RwLock<KnownSecrets>);

impl OwnSecrets {
    /// Leaves out these from now on, in the place of those before.
    pub fn set<'a>(&self, values: impl IntoIterator<Item = &'a str>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = KnownSecrets::new(values);
    }

    pub(super) fn current(&self) -> KnownSecrets {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
