//! Polling one connection to its end, between its clock and the drain.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use super::accept::Phase;
use super::clock::{Clock, Signals, Stage, Verdict};
use super::connection::Connection;
use super::observe::End;
use super::self_wake::SelfWake;

/// A connection of whichever protocol.
pub(super) trait Protocol: Future<Output = hyper::Result<()>> {
    /// Finish what runs, take nothing new, then close.
    fn retire(self: Pin<&mut Self>);
}

/// Runs `http` until it ends or is cut. It must be polled by one task only, its own.
pub(super) async fn drive(
    mut http: Pin<&mut impl Protocol>,
    signals: &Signals,
    mut clock: Clock,
    phase: watch::Receiver<Phase>,
    connection: &Connection,
) -> End {
    let own = SelfWake::new();
    let mut timer = pin!(sleep_until(Instant::now()));
    let mut drain = pin!(Drain::watch(phase));
    poll_fn(|cx| {
        if let Some(cut) = connection.end() {
            return Poll::Ready(cut);
        }
        if drain.as_mut().poll_started(cx) {
            signals.retire();
            http.as_mut().retire();
        }
        if connection.is_known() {
            signals.admit();
        }
        let mut now = None;
        loop {
            if let Poll::Ready(outcome) = own.poll(cx, |cx| http.as_mut().poll(cx)) {
                return Poll::Ready(match outcome {
                    Ok(()) if clock.is_idle() => End::Idle,
                    Ok(()) => End::Closed,
                    Err(error) => end_of(&error, signals),
                });
            }
            if signals.is_blocked() {
                connection.wake_when_cut(cx.waker());
                if let Some(cut) = connection.end() {
                    return Poll::Ready(cut);
                }
            }
            match clock.look(signals, now) {
                Verdict::Cut(end) => return Poll::Ready(end),
                // The peer is told in whatever way its protocol has, and TLS has one of its own (RFC 8446 section 6.1).
                Verdict::Retire | Verdict::Leave => {
                    signals.retire();
                    http.as_mut().retire();
                }
                Verdict::StopLingering => signals.enter(Stage::Over),
                Verdict::Wait(None) => return Poll::Pending,
                Verdict::Wait(Some(due)) => {
                    ready!(poll_timer(timer.as_mut(), due, cx));
                    now = Some(Instant::now());
                }
            }
        }
    })
    .await
}

/// Waits until `due`. A timer already armed for an earlier instant is left alone: most deadlines
/// only ever move later, and a wake-up for nothing is rarer than a request.
pub(super) fn poll_timer(mut timer: Pin<&mut Sleep>, due: Instant, cx: &mut Context<'_>) -> Poll<()> {
    if due < timer.deadline() || timer.is_elapsed() {
        timer.as_mut().reset(due);
    }
    ready!(timer.as_mut().poll(cx));
    if timer.deadline() < due {
        timer.as_mut().reset(due);
        return timer.poll(cx);
    }
    Poll::Ready(())
}

/// Notices the first phase after [`Phase::Serving`], once.
struct Drain<F> {
    phase: watch::Receiver<Phase>,
    /// Boxed apart so that `Drain` is `Unpin`; `None` once the drain was noticed.
    started: Option<Pin<Box<F>>>,
    registered: bool,
}

impl Drain<()> {
    fn watch(mut phase: watch::Receiver<Phase>) -> Drain<impl Future<Output = ()>> {
        let seen = phase.clone();
        let started = Box::pin(async move {
            // A sender that is gone is a gateway that is gone.
            let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
        });
        Drain { phase: seen, started: Some(started), registered: false }
    }
}

impl<F: Future<Output = ()>> Drain<F> {
    /// Whether the drain has started since the last call.
    ///
    /// The wait is polled once and then only after a change: its registration lasts, since a
    /// task's wakers all wake that task, and asking for the version is cheaper than the lock a
    /// poll takes.
    fn poll_started(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> bool {
        if self.registered && matches!(self.phase.has_changed(), Ok(false)) {
            return false;
        }
        self.registered = true;
        let Some(started) = &mut self.started else {
            return false;
        };
        let started = started.as_mut().poll(cx).is_ready();
        if started {
            self.started = None;
        }
        started
    }
}

fn end_of(error: &hyper::Error, signals: &Signals) -> End {
    if signals.is_flooded() {
        End::Flooded
    } else if error.is_parse_too_large() {
        End::HeadTooLarge
    } else if error.is_parse() {
        End::BadHead
    } else if error.is_incomplete_message() && matches!(signals.stage(), Stage::Opened | Stage::Idle) {
        End::Closed
    } else {
        End::Broken
    }
}
