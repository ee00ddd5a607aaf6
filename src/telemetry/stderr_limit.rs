//! How much of a child's stderr reaches the log.

use std::time::{Duration, Instant};

/// Bytes a second that pass in the long run.
const BYTES_PER_SECOND: u64 = 8 * 1024;

/// Bytes that pass at once after a quiet time.
const BURST_BYTES: u64 = 64 * 1024;

/// A token bucket over the bytes of one child's stderr lines.
///
/// What it holds is kept as the instant at which it was, or will be, empty of debt: one value to
/// update, and no rounding that adds up.
#[derive(Clone, Debug)]
pub struct StderrLimit {
    /// When everything that passed so far is paid for.
    paid_at: Instant,
    suppressed: u64,
}

/// What to do with one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Log it; so many lines were left out since the last one that passed.
    Pass {
        /// Lines left out just before this one.
        suppressed: u64,
    },
    /// Leave it out; it is counted.
    Suppress,
}

impl StderrLimit {
    /// A full bucket.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        StderrLimit { paid_at: now, suppressed: 0 }
    }

    /// Judges a line that takes so many bytes in the log, its newline included. A line passes while
    /// the bucket is not overdrawn, so the last of a burst may overdraw it by its own length.
    pub fn judge(&mut self, now: Instant, bytes: usize) -> Verdict {
        let burst = Duration::from_secs(BURST_BYTES / BYTES_PER_SECOND);
        let paid_at = self.paid_at.max(now);
        if paid_at.duration_since(now) >= burst {
            self.suppressed += 1;
            return Verdict::Suppress;
        }
        self.paid_at = paid_at + Duration::from_nanos(bytes as u64 * 1_000_000_000 / BYTES_PER_SECOND);
        Verdict::Pass { suppressed: std::mem::take(&mut self.suppressed) }
    }

    /// Lines left out since the last one that passed, and forgets them: for the end of the child.
    pub fn take_suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{BURST_BYTES, StderrLimit, Verdict};

    const LINE: usize = 1024;

    #[test]
    fn a_burst_passes_then_the_rate_then_a_burst_again() {
        let start = Instant::now();
        let mut limit = StderrLimit::new(start);
        let passed = (0..1000).filter(|_| limit.judge(start, LINE) != Verdict::Suppress).count();
        assert_eq!(passed, BURST_BYTES as usize / LINE);
        let later = start + Duration::from_secs(1);
        assert_eq!(limit.judge(later, LINE), Verdict::Pass { suppressed: 936 });
        let passed = (0..1000).filter(|_| limit.judge(later, LINE) != Verdict::Suppress).count();
        assert_eq!(passed, 7);
        let quiet = later + Duration::from_secs(600);
        let passed = (0..1000).filter(|_| limit.judge(quiet, LINE) != Verdict::Suppress).count();
        assert_eq!(passed, BURST_BYTES as usize / LINE);
        assert_eq!(limit.take_suppressed(), 936);
        assert_eq!(limit.take_suppressed(), 0);
    }

    #[test]
    fn one_line_above_the_burst_passes_and_is_paid_for_afterwards() {
        let start = Instant::now();
        let mut limit = StderrLimit::new(start);
        assert_eq!(limit.judge(start, BURST_BYTES as usize * 2), Verdict::Pass { suppressed: 0 });
        assert_eq!(limit.judge(start + Duration::from_secs(7), 1), Verdict::Suppress);
        assert_eq!(limit.judge(start + Duration::from_secs(9), 1), Verdict::Pass { suppressed: 1 });
    }

    #[test]
    fn empty_lines_are_not_free() {
        let start = Instant::now();
        let mut limit = StderrLimit::new(start);
        let passed = (0..200_000).filter(|_| limit.judge(start, 1) != Verdict::Suppress).count();
        assert!(passed <= BURST_BYTES as usize + 1, "{passed}");
    }
}
