//! Wake-ups a connection gives itself while it is polled, taken without the scheduler.
//!
//! An answer that reads a body wakes hyper's connection, which is the very task that polls it. The runtime would put
//! the task at the end of a queue and wake a second thread that might take it, for each request. It is polled again
//! here instead.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

/// Not being polled; whoever wakes must wake the task.
const ASLEEP: u8 = 0;
/// Being polled.
const POLLED: u8 = 1;
/// Woken while it was polled, or its task is woken already.
const WOKEN: u8 = 2;

/// Polls in a row before the others have their turn.
const IN_A_ROW: usize = 4;

/// The waker of one task's connection.
pub(super) struct SelfWake {
    shared: Arc<Shared>,
    waker: Waker,
}

struct Shared {
    state: AtomicU8,
    task: OnceLock<Waker>,
}

impl SelfWake {
    /// For a connection that one task polls.
    pub(super) fn new() -> SelfWake {
        let shared = Arc::new(Shared { state: AtomicU8::new(ASLEEP), task: OnceLock::new() });
        let waker = Waker::from(Arc::clone(&shared));
        SelfWake { shared, waker }
    }

    /// Polls until it is ready, or nobody woke it while it was polled.
    pub(super) fn poll<T>(
        &self,
        context: &mut Context<'_>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let Shared { state, task } = &*self.shared;
        task.get_or_init(|| context.waker().clone());
        for _ in 0..IN_A_ROW {
            state.store(POLLED, Ordering::Release);
            if let Poll::Ready(value) = poll(&mut Context::from_waker(&self.waker)) {
                return Poll::Ready(value);
            }
            if state.compare_exchange(POLLED, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP
            && let Some(task) = self.task.get()
        {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use super::{IN_A_ROW, SelfWake};

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_wakes_itself_is_polled_again_and_whoever_sleeps_is_woken_once() {
        let count = Arc::new(Count::default());
        let task = Waker::from(Arc::clone(&count));
        let (own, mut polls, mut kept) = (SelfWake::new(), 0, None);
        let outcome = own.poll(&mut Context::from_waker(&task), |context| {
            polls += 1;
            kept = Some(context.waker().clone());
            if polls < 3 {
                context.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        assert_eq!((outcome, polls, count.0.load(Ordering::Relaxed)), (Poll::Pending, 3, 0));
        let kept = kept.expect("it was polled");
        kept.wake_by_ref();
        kept.wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "a task that is woken already needs no second time");
        let outcome = own.poll(&mut Context::from_waker(&task), |_| Poll::Ready(7));
        assert_eq!(outcome, Poll::Ready(7));
    }

    #[test]
    fn who_never_stops_lets_the_others_have_their_turn() {
        let count = Arc::new(Count::default());
        let task = Waker::from(Arc::clone(&count));
        let (own, mut polls) = (SelfWake::new(), 0);
        for turn in 1..3 {
            let outcome = own.poll(&mut Context::from_waker(&task), |context| {
                polls += 1;
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            });
            assert_eq!((outcome, polls), (Poll::Pending, turn * IN_A_ROW));
            assert_eq!(count.0.load(Ordering::Relaxed), turn, "the task comes back by itself");
        }
    }
}
