//! More room in the pipe of a child that writes long lines.
//!
//! A pipe holds 64 KiB unless asked: a child with a megabyte to say sleeps and is woken sixteen times, and so is the
//! reader. The kernel bounds what all pipes of one user may hold, and gives those beyond it two pages each (pipe(7),
//! `pipe-user-pages-soft`): so only few are widened, and only for as long as they are needed.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::pipe::fcntl_setpipe_size;

/// Bytes a wide pipe holds.
const WIDTH: usize = 1024 * 1024;

/// Wide pipes of this process at once: half of what the kernel lets a user have by default.
const MOST: usize = 32;

/// The kernel counts by user, so this counts by process.
static OF_PROCESS: Places = Places { taken: AtomicUsize::new(0), most: MOST };

/// How many pipes may be wide, and are.
#[derive(Debug)]
struct Places {
    taken: AtomicUsize,
    most: usize,
}

/// One of the few wide pipes, for as long as the pipe is open.
#[derive(Debug)]
pub(super) struct WidePipe(&'static Places);

impl WidePipe {
    /// Widens `pipe`; `None`, and nothing is lost but time, if there are enough or the kernel refuses.
    pub(super) fn widen(pipe: impl AsFd) -> Option<WidePipe> {
        WidePipe::widen_within(&OF_PROCESS, pipe)
    }

    fn widen_within(places: &'static Places, pipe: impl AsFd) -> Option<WidePipe> {
        let one_more = |taken: usize| (taken < places.most).then_some(taken + 1);
        places.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        // From here on the drop gives the place back.
        let wide = WidePipe(places);
        fcntl_setpipe_size(pipe, WIDTH).ok().map(|_| wide)
    }
}

impl Drop for WidePipe {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use rustix::pipe::{fcntl_getpipe_size, pipe};

    use super::{Places, WIDTH, WidePipe};

    #[test]
    fn only_few_are_wide_and_a_closed_one_makes_room() {
        static TWO: Places = Places { taken: AtomicUsize::new(0), most: 2 };
        let (reader, _writer) = pipe().expect("a pipe");
        let first = WidePipe::widen_within(&TWO, &reader).expect("the first may be wide");
        assert_eq!(fcntl_getpipe_size(&reader).expect("its size"), WIDTH);
        let second = WidePipe::widen_within(&TWO, &reader);
        assert!(second.is_some() && WidePipe::widen_within(&TWO, &reader).is_none());
        drop(first);
        assert!(WidePipe::widen_within(&TWO, &reader).is_some());
    }
}
