//! Acts on the ladder of the memory budget where streams are concerned, and tells of its steps.
//!
//! What refuses new work asks the budget itself: sessions in `server`, calls in `http`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::budget::{Budget, Step};
use crate::exchange::registry::Registry;
use crate::exchange::stream::Stream;

/// Pause before logs that had nothing more to give are looked at again: it takes a walk over all sessions.
const NOTHING_TO_GIVE: Duration = Duration::from_millis(50);

/// Pause between looks while memory is short: patience runs out by itself.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

impl Registry {
    /// Makes room whenever all logs together hold too much: the one that holds most gives first, and on the last step
    /// of the ladder the readers that stalled first are cut.
    pub async fn relieve(&self) {
        let budget = self.ledger.budget();
        let mut steps = Steps::new(Instant::now());
        loop {
            if budget.step() > Step::Calm || steps.are_owed(budget.step()) {
                let _over = timeout(LOOK_AGAIN, self.ledger.pressed()).await;
            } else {
                self.ledger.pressed().await;
            }
            let step = budget.look();
            steps.tell(step, budget, self.len());
            self.evict_replay();
            if step == Step::Streams {
                self.cut_stalled();
                self.evict_replay();
            }
            if self.ledger.excess() > 0 {
                sleep(NOTHING_TO_GIVE).await;
            }
        }
    }

    fn streams(&self) -> impl Iterator<Item = Arc<Stream>> {
        self.all().into_iter().flat_map(|session| session.streams())
    }

    fn evict_replay(&self) {
        if self.ledger.excess() == 0 {
            return;
        }
        let mut streams: Vec<(usize, Arc<Stream>)> =
            self.streams().map(|stream| (stream.replay_bytes(), stream)).filter(|(bytes, _)| *bytes > 0).collect();
        streams.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (bytes, stream) in streams {
            let excess = self.ledger.excess();
            if excess == 0 {
                break;
            }
            stream.evict(excess.min(bytes));
        }
    }

    fn cut_stalled(&self) {
        let now = Instant::now();
        let mut stalled: Vec<(Instant, Arc<Stream>)> =
            self.streams().filter_map(|stream| Some((stream.stalled_since(now)?, stream))).collect();
        stalled.sort_by_key(|(since, _)| *since);
        for (_, stream) in stalled {
            if self.ledger.budget().shortage(Step::Streams) == 0 {
                break;
            }
            stream.cut_reader();
        }
    }
}

/// Lines that may follow each other at once, as when the ladder is climbed to its end and down again.
const AT_ONCE: u32 = 8;

/// After those, one line in so long.
const BETWEEN: Duration = Duration::from_secs(5);

/// Tells of the ladder's steps in the log, without flooding it when the budget is used up and freed in quick turns.
struct Steps {
    told: Step,
    /// What it was at the last look.
    seen: Step,
    /// Changes since the last line, beyond the one that a line tells.
    untold: u32,
    /// When every line so far will have had its pause.
    paid: Instant,
}

impl Steps {
    fn new(now: Instant) -> Steps {
        Steps { told: Step::Calm, seen: Step::Calm, untold: 0, paid: now }
    }

    /// Whether a line is still to come for this step.
    fn are_owed(&self, step: Step) -> bool {
        step != self.told
    }

    /// Whether to tell of `step` now; then from which one, and how many changes lie between.
    fn turn(&mut self, step: Step, now: Instant) -> Option<(Step, u32)> {
        if step != self.seen {
            (self.seen, self.untold) = (step, self.untold.saturating_add(1));
        }
        if !self.are_owed(step) || self.paid > now + BETWEEN * (AT_ONCE - 1) {
            return None;
        }
        self.paid = self.paid.max(now) + BETWEEN;
        let before = std::mem::replace(&mut self.told, step);
        Some((before, std::mem::take(&mut self.untold).saturating_sub(1)))
    }

    fn tell(&mut self, step: Step, budget: &Budget, sessions: usize) {
        let Some((before, between)) = self.turn(step, Instant::now()) else { return };
        let (from, to, used, limit) = (before.number(), step.number(), budget.used(), budget.limit());
        // The level is part of where a line is logged.
        macro_rules! line {
            ($level:ident) => {
                $level!(
                    event = "overload", reason = "memory", key = "limits.memory", from, to, used, budget = limit,
                    between, sessions, action = step.says(),
                )
            };
        }
        if step > before { line!(warn) } else { line!(info) }
    }
}

#[cfg(test)]
mod tests {
    use super::{AT_ONCE, BETWEEN, Steps};
    use crate::budget::Step;
    use std::time::Instant;

    #[test]
    fn every_step_is_told_once() {
        let now = Instant::now();
        let mut steps = Steps::new(now);
        for (before, step) in Step::ALL.into_iter().zip(Step::ALL.into_iter().skip(1)) {
            assert_eq!(steps.turn(step, now), Some((before, 0)));
            assert_eq!(steps.turn(step, now), None);
        }
        assert_eq!(steps.turn(Step::Calm, now), Some((Step::Streams, 0)));
    }

    #[test]
    fn flapping_does_not_flood_the_log() {
        let start = Instant::now();
        let mut steps = Steps::new(start);
        let (mut lines, mut changes) = (0, 0);
        for look in 0..1000_u32 {
            let step = if look % 2 == 0 { Step::Replay } else { Step::Calm };
            if let Some((_, between)) = steps.turn(step, start + BETWEEN * look / 100) {
                (lines, changes) = (lines + 1, changes + 1 + between);
            }
        }
        assert!((AT_ONCE..=AT_ONCE + 10).contains(&lines), "{lines}");
        let end = start + BETWEEN * 20;
        assert_eq!(steps.turn(Step::Sessions, end).map(|(_, between)| changes + 1 + between), Some(1001));
        assert!(!steps.are_owed(Step::Sessions) && steps.are_owed(Step::Calm), "the last one is told in the end");
    }
}
