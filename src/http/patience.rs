//! How long an answer is waited for before it is made a stream: one length of wait for every call, on one clock.
//!
//! A timer of the runtime for each call would be set and dropped with hardly one of them ever coming due, and whoever
//! sets the nearest timer has to wake the thread that sleeps until the one that was nearest before. Waits of one length
//! end in the order they began, so that a queue and one sleeping task do for all of them.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;

/// Everybody who waits.
pub struct Patience {
    queue: Mutex<Queue>,
    /// Tells the clock that there is somebody again, or somebody whose wait ends sooner.
    somebody: Notify,
}

struct Queue {
    length: Duration,
    /// Who waits, in the order they came; `None` where somebody left. The first is never `None`.
    waiting: VecDeque<Option<Waiting>>,
    /// The number of the first.
    first: u64,
    /// Whether the clock is told of the next that comes.
    is_clock_idle: bool,
}

struct Waiting {
    until: Instant,
    waker: Waker,
}

impl Patience {
    /// Nobody waits yet; each wait will take `length`, not zero. [`Patience::run_clock`] must run beside it.
    #[must_use]
    pub fn new(length: Duration) -> Arc<Patience> {
        let queue = Queue { length, waiting: VecDeque::new(), first: 0, is_clock_idle: false };
        Arc::new(Patience { queue: Mutex::new(queue), somebody: Notify::new() })
    }

    /// Changes how long a wait takes; those under way take no longer than one that began now.
    pub fn set_length(&self, length: Duration) {
        let mut queue = self.queue();
        queue.length = length;
        let latest = Instant::now() + length;
        // They end in the order they began, as before.
        queue.waiting.iter_mut().flatten().for_each(|waiting| waiting.until = waiting.until.min(latest));
        drop(queue);
        self.somebody.notify_one();
    }

    /// Ends when it was polled first so long ago; costs no timer.
    #[must_use]
    pub fn run_out(&self) -> RunOut<'_> {
        RunOut { patience: self, place: Place::None }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the waits that are over, for as long as it is polled.
    pub async fn run_clock(&self) {
        loop {
            let (over, next) = self.queue().take_over(Instant::now());
            over.into_iter().for_each(Waker::wake);
            match next {
                Some(next) => tokio::select! {
                    () = sleep_until(next.into()) => {}
                    () = self.somebody.notified() => {}
                },
                None => self.somebody.notified().await,
            }
        }
    }
}

impl Queue {
    fn enter(&mut self, waiting: Waiting) -> u64 {
        self.waiting.push_back(Some(waiting));
        self.first + self.waiting.len() as u64 - 1
    }

    /// The place of who still waits.
    fn find(&mut self, number: u64) -> Option<&mut Option<Waiting>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.waiting.get_mut(at).filter(|place| place.is_some())
    }

    fn leave(&mut self, number: u64) {
        if let Some(place) = self.find(number) {
            *place = None;
            self.close_up();
        }
    }

    fn close_up(&mut self) {
        while let Some(None) = self.waiting.front() {
            self.waiting.pop_front();
            self.first += 1;
        }
    }

    /// Those whose wait is over, and when the next one's will be.
    fn take_over(&mut self, now: Instant) -> (Vec<Waker>, Option<Instant>) {
        let mut over = Vec::new();
        while let Some(Some(waiting)) = self.waiting.front_mut() {
            if waiting.until > now {
                return (over, Some(waiting.until));
            }
            over.extend(self.waiting.pop_front().flatten().map(|waiting| waiting.waker));
            self.first += 1;
            self.close_up();
        }
        self.is_clock_idle = true;
        (over, None)
    }
}

/// One wait. Dropping it leaves the queue.
pub struct RunOut<'a> {
    patience: &'a Patience,
    place: Place,
}

#[derive(Clone, Copy)]
enum Place {
    None,
    Number(u64),
    Over,
}

impl Future for RunOut<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let patience = self.patience;
        let mut queue = patience.queue();
        match self.place {
            Place::Over => return Poll::Ready(()),
            Place::None => {
                let until = Instant::now() + queue.length;
                let number = queue.enter(Waiting { until, waker: context.waker().clone() });
                self.place = Place::Number(number);
                if std::mem::take(&mut queue.is_clock_idle) {
                    drop(queue);
                    patience.somebody.notify_one();
                }
            }
            Place::Number(number) => match queue.find(number) {
                Some(Some(waiting)) => waiting.waker.clone_from(context.waker()),
                _ => {
                    self.place = Place::Over;
                    return Poll::Ready(());
                }
            },
        }
        Poll::Pending
    }
}

impl Drop for RunOut<'_> {
    fn drop(&mut self) {
        if let Place::Number(number) = self.place {
            self.patience.queue().leave(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::Patience;

    #[tokio::test]
    async fn who_waits_long_enough_is_told_and_who_leaves_is_not_kept() {
        let patience = Patience::new(Duration::from_millis(40));
        let clock = tokio::spawn({
            let patience = patience.clone();
            async move { patience.run_clock().await }
        });
        let began = std::time::Instant::now();
        let waits: Vec<_> = (0..3)
            .map(|_| {
                let patience = patience.clone();
                tokio::spawn(async move { patience.run_out().await })
            })
            .collect();
        for _ in 0..100 {
            let early = timeout(Duration::ZERO, patience.run_out()).await;
            assert!(early.is_err(), "nobody's wait ends before its time");
        }
        for wait in waits {
            wait.await.expect("it ends");
        }
        assert!(began.elapsed() >= Duration::from_millis(40));
        assert!(patience.queue().waiting.is_empty(), "who left is gone");
        // The clock sleeps now until there is somebody again.
        timeout(Duration::from_secs(20), patience.run_out()).await.expect("told of the next one");
        clock.abort();
    }

    #[tokio::test]
    async fn a_shorter_length_shortens_the_waits_under_way() {
        let patience = Patience::new(Duration::from_secs(3600));
        let mut early = Box::pin(patience.run_out());
        assert!(
            timeout(Duration::from_millis(20), async { tokio::join!(&mut early, patience.run_clock()) }).await.is_err()
        );
        let drive = patience.run_clock();
        let waits = async {
            // The clock sleeps by now, for an hour.
            tokio::task::yield_now().await;
            patience.set_length(Duration::from_millis(10));
            tokio::join!(early, patience.run_out())
        };
        tokio::select! {
            () = drive => unreachable!("the clock never ends"),
            ended = timeout(Duration::from_secs(20), waits) => drop(ended.expect("both are told")),
        }
    }

    #[tokio::test]
    async fn leaving_in_the_middle_keeps_the_others_places() {
        let patience = Patience::new(Duration::from_millis(1));
        let mut waits: Vec<_> = (0..4).map(|_| Box::pin(patience.run_out())).collect();
        for wait in &mut waits {
            assert!(timeout(Duration::ZERO, wait).await.is_err());
        }
        drop(waits.remove(1));
        drop(waits.remove(0));
        assert_eq!(patience.queue().waiting.len(), 2);
        let drive = patience.run_clock();
        let all = async {
            for wait in waits {
                wait.await;
            }
        };
        tokio::select! {
            () = drive => unreachable!("the clock never ends"),
            ended = timeout(Duration::from_secs(20), all) => ended.expect("both are told"),
        }
    }
}
