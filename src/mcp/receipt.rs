//! What became of a request to the client: known to the log that holds it and to whoever awaits its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where a request is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Passage {
    /// It waits for a reader, or is in a reader's hand.
    Waiting,
    /// A reader has it whole.
    Written,
    /// It was dropped before any reader had it whole.
    Lost,
}

const WAITING: u8 = Passage::Waiting as u8;
const WRITTEN: u8 = Passage::Written as u8;
const LOST: u8 = Passage::Lost as u8;
/// Nobody awaits an answer any more.
const CLOSED: u8 = LOST + 1;

/// Shared by both sides; it changes once on the way, and is closed once.
#[derive(Clone, Debug, Default)]
pub struct Receipt(Arc<AtomicU8>);

impl Receipt {
    /// Where it is; closed counts as written: nothing is left to be done.
    #[must_use]
    pub fn passage(&self) -> Passage {
        match self.0.load(Ordering::Acquire) {
            WAITING => Passage::Waiting,
            LOST => Passage::Lost,
            _ => Passage::Written,
        }
    }

    /// A reader has it whole.
    pub fn write(&self) {
        self.leave(WRITTEN);
    }

    /// It is dropped; means nothing if a reader has it.
    pub fn lose(&self) {
        self.leave(LOST);
    }

    fn leave(&self, to: u8) {
        let _left_before = self.0.compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Nobody awaits an answer any more, so it need not be kept for one.
    pub fn close(&self) {
        self.0.store(CLOSED, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::{Passage, Receipt};

    #[test]
    fn what_was_written_is_not_lost() {
        let (written, lost, closed) = (Receipt::default(), Receipt::default(), Receipt::default());
        assert_eq!(written.passage(), Passage::Waiting);
        written.write();
        written.lose();
        lost.lose();
        lost.write();
        closed.close();
        closed.lose();
        assert_eq!(
            [written, lost, closed].map(|receipt| receipt.passage()),
            [Passage::Written, Passage::Lost, Passage::Written]
        );
    }
}
