//! What an ended child left in its pipe.

use rustix::io::ioctl_fionread;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use crate::upstream::Exit;

/// Tells the last bytes of a child from what others write behind them.
///
/// A process that left the child's group holds the pipe open, and may write to it, as long as it
/// likes. But what the child itself wrote is in the pipe when its end is seen: so many bytes are
/// read on, and not one more.
#[derive(Default)]
pub(super) struct LastWords {
    /// Bytes still to be read, once the end was seen.
    left: Option<usize>,
}

impl LastWords {
    /// Whether the child has ended and all it wrote was read.
    pub(super) fn are_over(&mut self, stdout: &pipe::Receiver, exit: &watch::Receiver<Option<Exit>>) -> bool {
        if self.left.is_none() && exit.borrow().is_some() {
            let held = ioctl_fionread(stdout).unwrap_or(0);
            self.left = Some(usize::try_from(held).unwrap_or(usize::MAX));
        }
        self.left == Some(0)
    }

    /// Whether the end of the child was seen.
    pub(super) fn have_begun(&self) -> bool {
        self.left.is_some()
    }

    /// Counts bytes that were read.
    pub(super) fn read(&mut self, bytes: usize) {
        self.left = self.left.map(|left| left.saturating_sub(bytes));
    }
}
