//! Ends what is open for keys that are valid no more: a request is checked when it comes, but a
//! stream may be open for days.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{MissedTickBehavior, interval};

use crate::auth::Keys;
use crate::caller::Principal;
use crate::http::Door;
use crate::server::Servers;

/// Pause between two looks at what expires; a key that is taken back is acted upon at once.
const LOOK: Duration = Duration::from_secs(1);

/// Who knows the keys, and who holds what is open.
pub(super) struct Revocation {
    pub(super) keys: Arc<Keys>,
    pub(super) servers: Arc<Servers>,
    pub(super) door: Arc<Door>,
}

impl Revocation {
    /// Looks again and again.
    pub(super) async fn follow(self: Arc<Self>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.end(&[]);
        }
    }

    /// Ends everything of callers whose key is gone or expired, and of `replaced` ones, whose name
    /// has another key now: who of them holds which cannot be told.
    pub(super) fn end(&self, replaced: &[Principal]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let is_over = |principal: &Principal| replaced.contains(principal) || !self.keys.stands(principal, now);
        self.servers.revoke(is_over);
        self.door.revoke(is_over);
    }
}
