//! Which servers there are now: one list for everybody who asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::server::open::Server;

/// The servers of the configuration in effect, and those of configurations before that still have processes.
#[derive(Default)]
pub struct Roster {
    current: RwLock<Arc<[Arc<Server>]>>,
    leaving: Mutex<Vec<Arc<Server>>>,
}

impl Roster {
    /// The servers there are, in name order.
    #[must_use]
    pub fn current(&self) -> Arc<[Arc<Server>]> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Those that take no new session and still have processes.
    #[must_use]
    pub fn leaving(&self) -> Vec<Arc<Server>> {
        self.lock_leaving().clone()
    }

    fn lock_leaving(&self) -> MutexGuard<'_, Vec<Arc<Server>>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts other servers in the place of those there are; `left` are those of them that are to go.
    pub(super) fn replace(&self, servers: &[Arc<Server>], left: impl IntoIterator<Item = Arc<Server>>) {
        self.lock_leaving().extend(left);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = servers.into();
    }

    /// Forgets a server that has left.
    pub(super) fn forget(&self, gone: &Arc<Server>) {
        self.lock_leaving().retain(|server| !Arc::ptr_eq(server, gone));
    }
}
