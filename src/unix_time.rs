//! The time of day, as tokens, certificates and keys count it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since the Unix epoch; zero on a clock set before it, by which nothing has ended, and no token is valid yet that
/// says when it begins.
#[must_use]
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The same in whole seconds.
#[must_use]
pub fn seconds() -> u64 {
    now().as_secs()
}
