//! Whether one server works, as readiness and start-up output tell it.

use std::sync::Arc;
use std::time::Instant;

use crate::upstream::scout::{Catalogue, ScoutFailure};

/// What is known of a server.
#[derive(Clone, Debug)]
pub enum Health {
    /// The scout has not come back yet.
    Starting,
    /// It was seen well once.
    Ready,
    /// The scout came back with this; for the operator.
    Failed(Arc<ScoutFailure>),
}

/// One server's state and since when.
#[derive(Clone, Debug)]
pub struct Status {
    /// Whether it works.
    pub health: Health,
    /// Since when.
    pub since: Instant,
    /// What it offers, once it was seen.
    pub catalogue: Option<Arc<Catalogue>>,
}

impl Status {
    /// Nothing is known yet.
    #[must_use]
    pub fn unknown() -> Status {
        Status { health: Health::Starting, since: Instant::now(), catalogue: None }
    }

    /// It was seen well; tells whether that is news.
    pub fn see_well(&mut self) -> bool {
        let news = !self.is_ready();
        if news {
            self.health = Health::Ready;
            self.since = Instant::now();
        }
        news
    }

    /// The scout came back with what it offers.
    pub fn see(&mut self, catalogue: Arc<Catalogue>) {
        self.see_well();
        self.catalogue = Some(catalogue);
    }

    /// The scout came back with a failure, be it another one. Seen well once is enough: a session may
    /// have shown meanwhile that the server works.
    pub fn fail(&mut self, failure: Arc<ScoutFailure>) {
        match self.health {
            Health::Ready => return,
            Health::Failed(_) => {}
            Health::Starting => self.since = Instant::now(),
        }
        self.health = Health::Failed(failure);
    }

    /// Whether it was seen well.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.health, Health::Ready)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::{Health, Status};
    use crate::upstream::scout::ScoutFailure;

    #[test]
    fn it_has_failed_since_the_first_failure() {
        let mut status = Status::unknown();
        status.fail(Arc::new(ScoutFailure::NoSlot));
        let Some(first) = Instant::now().checked_sub(Duration::from_secs(3)) else { return };
        status.since = first;
        status.fail(Arc::new(ScoutFailure::Refused("another".to_owned())));
        assert_eq!(status.since, first);
        assert!(matches!(&status.health, Health::Failed(failure) if failure.to_string() == "another"));
        assert!(status.see_well());
        assert!(status.since > first);
        status.fail(Arc::new(ScoutFailure::NoSlot));
        assert!(status.is_ready(), "seen well once is enough");
    }
}
