//! What is done about a budget that fills up: one step after the other, each left later than it was entered.
//!
//! Pure: it is told what is used and what time it is. [`Budget`](super::Budget) asks it whenever what is used crosses
//! a line; whoever acts on a step asks the budget.

use std::time::{Duration, Instant};

/// What is done about the budget. Each step does what those before it do, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Step {
    /// Nothing.
    #[default]
    Calm,
    /// What is kept only for resumes gives way, and little is kept anew.
    Replay,
    /// New sessions are refused.
    Sessions,
    /// New calls are refused.
    Calls,
    /// Readers that stopped reading lose their connections.
    Streams,
}

/// Each step with the percentages of the budget at which it is entered and below which it is left.
const LINES: [(Step, u64, u64); 4] =
    [(Step::Replay, 80, 75), (Step::Sessions, 90, 85), (Step::Calls, 95, 90), (Step::Streams, 100, 90)];

/// So long the calls may be refused without relief before the readers that hold the memory must go.
const PATIENCE: Duration = Duration::from_secs(3);

impl Step {
    /// Every step, the calm first.
    pub const ALL: [Step; 5] = [Step::Calm, Step::Replay, Step::Sessions, Step::Calls, Step::Streams];

    /// Its number, from 0: what the metric shows.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The step with this number; a number there is none for is the last.
    #[must_use]
    pub(super) fn numbered(number: u8) -> Step {
        Step::ALL.get(usize::from(number)).copied().unwrap_or(Step::Streams)
    }

    /// What is done, for the log.
    #[must_use]
    pub fn says(self) -> &'static str {
        match self {
            Step::Calm => "all is well",
            Step::Replay => "little is kept for resuming streams",
            Step::Sessions => "new sessions are refused",
            Step::Calls => "new calls are refused",
            Step::Streams => "connections of readers that stopped are closed",
        }
    }

    /// Bytes of a budget of `limit` at which it is entered.
    fn entered_at(self, limit: u64) -> u64 {
        percent(limit, LINES[self as usize - 1].1)
    }

    /// Bytes of a budget of `limit` below which it is left; the calm has nothing below.
    pub(super) fn left_below(self, limit: u64) -> u64 {
        if self == Step::Calm { 0 } else { percent(limit, LINES[self as usize - 1].2) }
    }

    /// Whether this step is still the right one for `used`, but for what time brings.
    pub(super) fn holds(self, limit: u64, used: u64) -> bool {
        let next = LINES.get(self as usize).map(|(next, ..)| next.entered_at(limit));
        used >= self.left_below(limit) && next.is_none_or(|line| used < line)
    }
}

fn percent(limit: u64, part: u64) -> u64 {
    limit / 100 * part + limit % 100 * part / 100
}

/// The ladder of one budget, and where on it the budget stands.
#[derive(Debug)]
pub(super) struct Ladder {
    limit: u64,
    step: Step,
    since: Option<Instant>,
}

impl Ladder {
    /// At its foot.
    pub(super) fn new(limit: u64) -> Ladder {
        Ladder { limit, step: Step::Calm, since: None }
    }

    /// Measures by another limit from now on.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// The step for what is used now. A step is entered at its line and left below its other one; the last is
    /// entered too where the one before it lasts.
    pub(super) fn look(&mut self, used: u64, now: Instant) -> Step {
        let stands = |step: Step| {
            used >= step.entered_at(self.limit) || (step <= self.step && used >= step.left_below(self.limit))
        };
        let mut step = LINES.iter().map(|(step, ..)| *step).rfind(|step| stands(*step)).unwrap_or_default();
        let waited = self.since.map(|since| now.saturating_duration_since(since));
        if step == Step::Calls && self.step == Step::Calls && waited >= Some(PATIENCE) {
            step = Step::Streams;
        }
        if step != self.step {
            (self.step, self.since) = (step, Some(now));
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::{LINES, Ladder, PATIENCE, Step};
    use proptest::prelude::{any, prop, proptest};
    use std::time::{Duration, Instant};

    /// Where the ladder stands after each of these.
    fn climb(used: &[u64]) -> Vec<u8> {
        let (mut ladder, now) = (Ladder::new(1000), Instant::now());
        used.iter().map(|used| ladder.look(*used, now).number()).collect()
    }

    #[test]
    fn each_step_is_entered_at_its_line() {
        assert_eq!(climb(&[0, 799, 800, 899, 900, 949, 950, 999, 1000, 5000]), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(climb(&[960]), [3], "a leap counts");
    }

    #[test]
    fn each_step_is_left_below_its_other_line() {
        assert_eq!(climb(&[1000, 950, 900, 899, 850, 849, 750, 749, 0]), [4, 4, 4, 2, 2, 1, 1, 0, 0]);
        assert_eq!(climb(&[950, 900, 940, 899]), [3, 3, 3, 2], "and not before");
        assert_eq!(climb(&[1000, 100]), [4, 0]);
    }

    #[test]
    fn refusing_calls_for_long_is_not_enough() {
        let (mut ladder, start) = (Ladder::new(1000), Instant::now());
        assert_eq!(ladder.look(960, start), Step::Calls);
        assert_eq!(ladder.look(920, start + PATIENCE / 2), Step::Calls);
        assert_eq!(ladder.look(920, start + PATIENCE), Step::Streams);
        assert_eq!(ladder.look(920, start + PATIENCE * 2), Step::Streams);
        assert_eq!(ladder.look(899, start + PATIENCE * 2), Step::Sessions, "relief");
        assert_eq!(ladder.look(960, start + PATIENCE * 3), Step::Calls, "and patience anew");
        assert_eq!(ladder.look(960, start + PATIENCE * 7 / 2), Step::Calls);
    }

    proptest! {
        /// Whatever comes: at or above a step's line the ladder is at least there, below its other line it is
        /// below; it moves only when a line is crossed or patience runs out; and a step that holds is the one a
        /// look gives.
        #[test]
        fn stands_where_the_lines_say(
            limit in 100_u64..1 << 40,
            looks in prop::collection::vec((0_u64..1200, any::<u8>()), 1..100),
        ) {
            let (mut ladder, mut now) = (Ladder::new(limit), Instant::now());
            let (mut before, mut since) = (Step::Calm, now);
            for (permille, pause) in looks {
                let used = (u128::from(limit) * u128::from(permille) / 1000) as u64;
                now += Duration::from_millis(u64::from(pause) * 20);
                let step = ladder.look(used, now);
                for (each, ..) in LINES {
                    assert!(used < each.entered_at(limit) || step >= each);
                    assert!(used >= each.left_below(limit) || step < each);
                }
                if before.holds(limit, used) {
                    let impatient = before == Step::Calls && now - since >= PATIENCE;
                    assert_eq!(step, if impatient { Step::Streams } else { before });
                }
                assert!(step.holds(limit, used) || step == Step::Streams);
                assert_eq!(Step::numbered(step.number()), step);
                if step != before {
                    (before, since) = (step, now);
                }
            }
        }
    }
}
