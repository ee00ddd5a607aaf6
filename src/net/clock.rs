//! The clocks of one connection, as values: no timer, no socket.
//!
//! The wire and the service leave [`Signals`]; after each poll of the connection the [`Clock`]
//! compares them with what it saw last and says when it wants to look again. A request answered
//! without waiting costs a few relaxed stores and two readings of the time.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Limits;

use super::frames::Position;
use super::observe::End;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stage {
    /// The first byte at all.
    Opened,
    /// The first byte of a further head.
    Idle,
    /// The end of a head.
    Head,
    /// The answer to a request; others watch over that.
    Request,
    /// The peer's end, after ours.
    Lingering,
    /// Nothing more.
    Over,
}

impl Stage {
    fn of(word: u64) -> Stage {
        match word & Signals::STAGE {
            0 => Stage::Opened,
            1 => Stage::Idle,
            2 => Stage::Head,
            3 => Stage::Request,
            4 => Stage::Lingering,
            _ => Stage::Over,
        }
    }
}

/// Signs left by the parts of one connection for its clock. All of them run on the connection's
/// own task, one after the other, so nothing needs an ordering.
#[derive(Debug, Default)]
pub(super) struct Signals {
    /// The stage in the low bits and the number of changes above, so that a look tells "again"
    /// from "still".
    stage: AtomicU64,
    written: AtomicU64,
    blocked: AtomicBool,
    /// HTTP/2: whether a frame has begun that is not whole, in the lowest bit, and the number of whole ones above.
    frame: AtomicU64,
    /// HTTP/2: the peer sent too much of what costs it nothing.
    flooded: AtomicBool,
    /// The peer was told that nothing new is taken.
    retired: AtomicBool,
    /// Somebody was let in on it.
    admitted: AtomicBool,
}

impl Signals {
    const STAGE: u64 = 0b111;
    const CHANGE: u64 = 0b1000;

    pub(super) fn stage(&self) -> Stage {
        Stage::of(self.stage.load(Ordering::Relaxed))
    }

    pub(super) fn enter(&self, stage: Stage) {
        let changes = self.stage.load(Ordering::Relaxed) & !Self::STAGE;
        self.stage.store(changes.wrapping_add(Self::CHANGE) | stage as u64, Ordering::Relaxed);
    }

    /// Bytes came in; they may begin a head.
    pub(super) fn received(&self) {
        if matches!(self.stage(), Stage::Opened | Stage::Idle) {
            self.enter(Stage::Head);
        }
    }

    /// The kernel took bytes.
    pub(super) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        self.blocked.store(false, Ordering::Relaxed);
    }

    /// Whether the kernel took nothing at the last try.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    /// What came of handing bytes to the kernel.
    pub(super) fn note_write(&self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &outcome {
            Poll::Ready(Ok(bytes)) => self.wrote(*bytes),
            Poll::Pending => self.write_blocked(),
            Poll::Ready(Err(_)) => {}
        }
        outcome
    }

    /// HTTP/2 bytes came in, up to here.
    pub(super) fn read_frames(&self, position: Position) {
        if position.begun && self.stage() == Stage::Opened {
            self.enter(Stage::Idle);
        }
        self.frame.store(position.whole << 1 | u64::from(position.partial), Ordering::Relaxed);
    }

    /// The peer floods us.
    pub(super) fn flood(&self) {
        self.flooded.store(true, Ordering::Relaxed);
    }

    /// Whether the peer floods us.
    pub(super) fn is_flooded(&self) -> bool {
        self.flooded.load(Ordering::Relaxed)
    }

    /// Somebody was let in on it.
    pub(super) fn admit(&self) {
        self.admitted.store(true, Ordering::Relaxed);
    }

    /// Whether somebody was let in on it.
    pub(super) fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Relaxed)
    }

    /// The peer was told that nothing new is taken.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// The kernel takes nothing now.
    pub(super) fn write_blocked(&self) {
        self.blocked.store(true, Ordering::Relaxed);
    }
}

/// What the clock asks of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing before this instant; `None` is nothing at all.
    Wait(Option<Instant>),
    /// Finish what runs, then close.
    Retire,
    /// Nothing was asked for too long: close.
    Leave,
    /// Wait no longer for the peer's end.
    StopLingering,
    /// Drop it now.
    Cut(End),
}

/// Judges one connection by the signs it leaves.
#[derive(Debug)]
pub(super) struct Clock {
    header_timeout: Duration,
    keep_alive: Duration,
    write_stall: Duration,
    retire_at: Option<Instant>,
    /// The peer was told that nothing new is taken.
    is_retired: bool,
    /// And why: nothing was asked for too long.
    is_idle: bool,
    stage: u64,
    stage_since: Instant,
    written: u64,
    blocked_since: Option<Instant>,
    frame: u64,
    /// Since when a frame is not whole.
    frame_since: Option<Instant>,
}

/// How long input is read and thrown away after our end, for the answer to reach a client that
/// still sends; and how long a client that asks nothing may take to hear that nothing new is taken.
pub(super) const LINGER: Duration = Duration::from_secs(2);

impl Clock {
    /// A clock that starts now. `spread` in 0..1 moves the age by up to a tenth either way, so that
    /// connections opened together do not come back together.
    pub(super) fn start(limits: &Limits, spread: f64) -> Clock {
        let now = Instant::now();
        Clock {
            header_timeout: limits.header_timeout,
            keep_alive: limits.keep_alive,
            write_stall: limits.write_stall,
            retire_at: limits.connection_age.map(|age| now + age.mul_f64(0.9 + 0.2 * spread)),
            is_retired: false,
            is_idle: false,
            stage: 0,
            stage_since: now,
            written: 0,
            blocked_since: None,
            frame: 0,
            frame_since: None,
        }
    }

    /// Whether the peer was told so because nothing was asked for too long.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Looks at the signs. `now` is a reading for this look, taken where `None` only if something
    /// changed: a deadline can only have passed once the timer armed for it went off.
    pub(super) fn look(&mut self, signals: &Signals, now: Option<Instant>) -> Verdict {
        self.follow_stage(signals, now);
        self.follow_writes(signals, now);
        self.follow_frames(signals, now);
        let deadline = self.deadline();
        if let Some(now) = now {
            if let Some((due, verdict)) = deadline
                && due <= now
            {
                self.is_idle |= verdict == Verdict::Leave;
                return verdict;
            }
            if self.retire_at.is_some_and(|retire_at| retire_at <= now) {
                self.retire_at = None;
                return Verdict::Retire;
            }
        }
        let due = deadline.map(|(due, _)| due);
        Verdict::Wait(due.into_iter().chain(self.retire_at).min())
    }

    fn follow_stage(&mut self, signals: &Signals, now: Option<Instant>) {
        let stage = signals.stage.load(Ordering::Relaxed);
        let is_retired = signals.retired.load(Ordering::Relaxed);
        if stage != self.stage || is_retired != self.is_retired {
            (self.stage, self.is_retired) = (stage, is_retired);
            self.stage_since = now.unwrap_or_else(Instant::now);
        }
    }

    fn follow_writes(&mut self, signals: &Signals, now: Option<Instant>) {
        let written = signals.written.load(Ordering::Relaxed);
        if !signals.blocked.load(Ordering::Relaxed) {
            if self.blocked_since.take().is_some() {
                // Idleness begins when the last answer has left us, not when it was handed over.
                self.stage_since = now.unwrap_or_else(Instant::now);
            }
        } else if self.blocked_since.is_none() || written != self.written {
            self.blocked_since = Some(now.unwrap_or_else(Instant::now));
        }
        self.written = written;
    }

    fn follow_frames(&mut self, signals: &Signals, now: Option<Instant>) {
        let frame = signals.frame.load(Ordering::Relaxed);
        if frame != self.frame {
            self.frame = frame;
            self.frame_since = (frame & 1 == 1).then(|| now.unwrap_or_else(Instant::now));
        }
    }

    /// The instant at which the connection has waited too long, and what follows.
    fn deadline(&self) -> Option<(Instant, Verdict)> {
        let frame = self.frame_since.map(|since| (since + self.header_timeout, Verdict::Cut(End::HeadTimeout)));
        let stage = self.stage_deadline();
        frame.into_iter().chain(stage).min_by_key(|(due, _)| *due)
    }

    fn stage_deadline(&self) -> Option<(Instant, Verdict)> {
        if let Some(since) = self.blocked_since {
            // While an answer is on its way the peer may well wait with its next request.
            return Some((since + self.write_stall, Verdict::Cut(End::Stalled)));
        }
        match Stage::of(self.stage) {
            Stage::Opened | Stage::Idle if self.is_retired => {
                let end = if self.is_idle { End::Idle } else { End::Closed };
                Some((self.stage_since + LINGER, Verdict::Cut(end)))
            }
            Stage::Opened => Some((self.stage_since + self.header_timeout, Verdict::Leave)),
            Stage::Idle => Some((self.stage_since + self.keep_alive, Verdict::Leave)),
            Stage::Head => Some((self.stage_since + self.header_timeout, Verdict::Cut(End::HeadTimeout))),
            Stage::Request | Stage::Over => None,
            Stage::Lingering => Some((self.stage_since + LINGER, Verdict::StopLingering)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, advance};

    use super::{Clock, LINGER, Signals, Stage, Verdict};
    use crate::config::Limits;
    use crate::net::observe::End;
    use crate::net::tests::limits;

    const HEAD: Duration = Duration::from_secs(10);
    const IDLE: Duration = Duration::from_secs(75);
    const STALL: Duration = Duration::from_secs(20);

    fn clock() -> Clock {
        let limits = Limits { header_timeout: HEAD, keep_alive: IDLE, write_stall: STALL, ..limits() };
        Clock::start(&limits, 0.5)
    }

    fn due(clock: &mut Clock, signals: &Signals) -> Option<Duration> {
        match clock.look(signals, None) {
            Verdict::Wait(due) => due.map(|due| due - Instant::now()),
            other => panic!("{other:?} without a reading of the time"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_stage_has_its_own_time() {
        let (mut clock, signals) = (clock(), Signals::default());
        assert_eq!(due(&mut clock, &signals), Some(HEAD), "a silent connection is bounded");
        signals.received();
        assert_eq!(due(&mut clock, &signals), Some(HEAD));
        advance(HEAD / 2).await;
        signals.received();
        assert_eq!(due(&mut clock, &signals), Some(HEAD / 2), "more bytes buy no more time");
        signals.enter(Stage::Request);
        assert_eq!(due(&mut clock, &signals), None);
        signals.enter(Stage::Idle);
        assert_eq!(due(&mut clock, &signals), Some(IDLE));
        advance(IDLE).await;
        assert_eq!(clock.look(&signals, Some(Instant::now())), Verdict::Leave);
        signals.retire();
        assert_eq!(due(&mut clock, &signals), Some(LINGER), "who does not hear of it is not waited for");
        advance(LINGER).await;
        assert_eq!(clock.look(&signals, Some(Instant::now())), Verdict::Cut(End::Idle));
    }

    #[tokio::test(start_paused = true)]
    async fn a_whole_request_between_two_looks_counts() {
        let (mut clock, signals) = (clock(), Signals::default());
        signals.enter(Stage::Idle);
        assert_eq!(due(&mut clock, &signals), Some(IDLE));
        advance(IDLE - Duration::from_secs(1)).await;
        signals.received();
        signals.enter(Stage::Request);
        signals.enter(Stage::Idle);
        assert_eq!(due(&mut clock, &signals), Some(IDLE));
    }

    #[tokio::test(start_paused = true)]
    async fn only_progress_resets_the_stall() {
        let (mut clock, signals) = (clock(), Signals::default());
        signals.enter(Stage::Request);
        signals.write_blocked();
        assert_eq!(due(&mut clock, &signals), Some(STALL));
        advance(STALL / 2).await;
        signals.write_blocked();
        assert_eq!(due(&mut clock, &signals), Some(STALL / 2), "waiting is no progress");
        signals.wrote(1);
        signals.write_blocked();
        assert_eq!(due(&mut clock, &signals), Some(STALL));
        advance(STALL).await;
        assert_eq!(clock.look(&signals, Some(Instant::now())), Verdict::Cut(End::Stalled));
    }

    #[tokio::test(start_paused = true)]
    async fn idleness_starts_when_the_answer_has_left() {
        let (mut clock, signals) = (clock(), Signals::default());
        signals.enter(Stage::Idle);
        signals.write_blocked();
        for _ in 0..20 {
            assert_eq!(due(&mut clock, &signals), Some(STALL));
            advance(STALL / 2).await;
            signals.wrote(1000);
            signals.write_blocked();
        }
        signals.wrote(1000);
        assert_eq!(due(&mut clock, &signals), Some(IDLE));
    }

    #[tokio::test(start_paused = true)]
    async fn age_retires_once_within_its_spread() {
        let age = Duration::from_secs(100);
        let limits = Limits { connection_age: Some(age), ..limits() };
        let signals = Signals::default();
        signals.enter(Stage::Request);
        for (spread, expected) in [(0.0, 90), (0.5, 100), (1.0, 110)] {
            let mut clock = Clock::start(&limits, spread);
            let Verdict::Wait(Some(due)) = clock.look(&signals, None) else {
                panic!("an age is a deadline");
            };
            assert_eq!((due - Instant::now()).as_secs(), expected);
            assert_eq!(clock.look(&signals, Some(due)), Verdict::Retire);
            assert_eq!(clock.look(&signals, Some(due)), Verdict::Wait(None));
        }
    }
}
