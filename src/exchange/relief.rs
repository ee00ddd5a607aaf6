//! Acts on the ladder of the memory budget where streams are concerned, and tells of its steps.
//!
//! What refuses new work asks the budget itself: sessions in `server`, calls in `http`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;
use tracing::warn;

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
        // Until when nothing can be given anyway.
        let mut rest: Option<Instant> = None;
        loop {
            let look_again = budget.step() > Step::Calm || steps.are_owed(budget.step());
            let wake = rest.or_else(|| look_again.then(|| Instant::now() + LOOK_AGAIN));
            tokio::select! {
                () = budget.changed() => {}
                () = self.ledger.exceeded(), if rest.is_none() => {}
                () = sleep_until(wake.unwrap_or_else(Instant::now).into()), if wake.is_some() => {}
            }
            let step = budget.look();
            steps.tell(step, budget, self.len());
            if rest.is_some_and(|rest| Instant::now() < rest) {
                continue;
            }
            self.evict_replay();
            if step == Step::Streams {
                self.cut_stalled();
                self.evict_replay();
            }
            rest = (self.ledger.excess() > 0).then(|| Instant::now() + NOTHING_TO_GIVE);
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
    /// Changes there had been at the last line.
    changes: u64,
    /// When every line so far will have had its pause.
    paid: Instant,
}

impl Steps {
    fn new(now: Instant) -> Steps {
        Steps { told: Step::Calm, changes: 0, paid: now }
    }

    /// Whether a line is still to come for this step.
    fn are_owed(&self, step: Step) -> bool {
        step != self.told
    }

    /// Whether to tell of `step` now, the last of so many `changes`; then from which one, and how many changes lie
    /// between.
    fn turn(&mut self, step: Step, changes: u64, now: Instant) -> Option<(Step, u64)> {
        if !self.are_owed(step) || self.paid > now + BETWEEN * (AT_ONCE - 1) {
            return None;
        }
        self.paid = self.paid.max(now) + BETWEEN;
        let before = std::mem::replace(&mut self.told, step);
        let since = changes.saturating_sub(std::mem::replace(&mut self.changes, changes));
        Some((before, since.saturating_sub(1)))
    }

    fn tell(&mut self, step: Step, budget: &Budget, sessions: usize) {
        let Some((before, between)) = self.turn(step, budget.changes(), Instant::now()) else { return };
        let (from, to, used, limit) = (before.number(), step.number(), budget.used(), budget.limit());
        warn!(
            event = "overload",
            reason = "memory",
            key = "limits.memory",
            from,
            to,
            used,
            budget = limit,
            between,
            sessions,
            action = step.says(),
        );
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
        for (at, (before, step)) in (1..).zip(Step::ALL.into_iter().zip(Step::ALL.into_iter().skip(1))) {
            assert_eq!(steps.turn(step, at, now), Some((before, 0)));
            assert_eq!(steps.turn(step, at, now), None);
        }
        assert_eq!(steps.turn(Step::Calm, 8, now), Some((Step::Streams, 3)), "three went by too fast");
    }

    #[test]
    fn flapping_does_not_flood_the_log() {
        let start = Instant::now();
        let mut steps = Steps::new(start);
        let (mut lines, mut told) = (0, 0);
        for look in 0..1000_u32 {
            let step = if look % 2 == 0 { Step::Replay } else { Step::Calm };
            if let Some((_, between)) = steps.turn(step, u64::from(look) + 1, start + BETWEEN * look / 100) {
                (lines, told) = (lines + 1, told + 1 + between);
            }
        }
        assert!((AT_ONCE..=AT_ONCE + 10).contains(&lines), "{lines}");
        let end = start + BETWEEN * 20;
        assert_eq!(steps.turn(Step::Sessions, 1001, end).map(|(_, between)| told + 1 + between), Some(1001));
        assert!(!steps.are_owed(Step::Sessions) && steps.are_owed(Step::Calm), "the last one is told in the end");
    }
}
