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

    /// Whether it was seen well.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.health, Health::Ready)
    }
}
