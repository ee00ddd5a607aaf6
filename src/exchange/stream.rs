//! One SSE stream of a session: its log, and the one reader that may be attached to it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tracing::info;

use crate::caller::Fate;
use crate::exchange::congestion::Congestion;
use crate::exchange::late_progress::LateProgress;
use crate::exchange::ledger::{Holding, Ledger};
use crate::mcp::payload::{Payload, Spliced};
use crate::mcp::stream_log::{Bounds, EventKind, Framing, Lost, Next, Nonce, StreamLog, priming_event};
use crate::telemetry::label::{Dropped, Eviction, StreamCut, StreamKind};
use crate::telemetry::{ServerMetrics, StreamGauge};

/// What every stream of a session is built with.
#[derive(Clone)]
pub struct StreamTerms {
    /// The server's name.
    pub server: Arc<str>,
    /// What a log may keep.
    pub bounds: Bounds,
    /// How long an ended stream is kept.
    pub age: Duration,
    /// `retry` told to clients.
    pub retry: Duration,
    /// Where all logs are accounted.
    pub ledger: Arc<Ledger>,
    /// The server's numbers.
    pub metrics: Arc<ServerMetrics>,
}

struct State {
    log: StreamLog,
    reader: Option<Slot>,
    /// Numbers the readers, so that one that was replaced finds out.
    epoch: u64,
    /// How often a reader came that named a position.
    resumes: u64,
    /// The number of the last reader that was sent away because its token expired; there is no reader 0.
    expired: u64,
    full: bool,
    late: LateProgress,
    settled: Holding,
}

/// The place of the one reader.
#[derive(Default)]
struct Slot {
    waker: Option<Waker>,
    /// Its connection, where it can be cut.
    fate: Option<Arc<dyn Fate>>,
}

/// A stream. The log outlives its readers.
pub struct Stream {
    kind: StreamKind,
    nonce: Nonce,
    terms: StreamTerms,
    congestion: Arc<Congestion>,
    made: Instant,
    /// When its reader last took something, in milliseconds since it was made.
    taken: AtomicU64,
    state: Mutex<State>,
}

/// What came of a look into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Something was handed out, or may be at the next look.
    More,
    /// The stream ended.
    End,
    /// Somebody else reads the stream now.
    TakenOver,
    /// The token it was opened with has expired.
    Expired,
    /// Events are missing; the client must find out by resuming.
    Gap,
}

/// Where a reader puts what it is handed: short runs of events joined, long ones as they are.
#[derive(Debug, Default)]
pub struct Frames {
    /// Small events, one behind the other.
    pub joined: BytesMut,
    /// What follows them: the pieces of one long run or event.
    pub long: Option<Payload>,
}

/// What a stream with something in it takes beside its events, so that very many short ones are
/// no hole in the budget.
const OWN_BYTES: usize = size_of::<Stream>();

/// Runs and events above this are not copied to join them.
const COPY_BELOW: usize = 16 * 1024;

/// While memory is short a log keeps this part of its bounds for a resume.
const SHRUNK: usize = 16;

/// A reader that took nothing for so long has stalled, however little waits for it.
const STALLED: Duration = Duration::from_secs(1);

impl Stream {
    /// An empty stream.
    #[must_use]
    pub fn new(kind: StreamKind, terms: StreamTerms, congestion: Arc<Congestion>) -> Arc<Stream> {
        let framing = if kind == StreamKind::Sse { Framing::Plain } else { Framing::Resumable };
        let nonce = Nonce::from_bits(rand::random());
        Arc::new(Stream {
            kind,
            nonce,
            terms,
            congestion,
            made: Instant::now(),
            taken: AtomicU64::new(0),
            state: Mutex::new(State {
                log: StreamLog::new(nonce, framing),
                reader: None,
                epoch: 0,
                resumes: 0,
                expired: 0,
                full: false,
                late: LateProgress::default(),
                settled: Holding::default(),
            }),
        })
    }

    /// Its name within the session.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// What it tells when its reader is too far behind.
    #[must_use]
    pub fn congestion(&self) -> &Arc<Congestion> {
        &self.congestion
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an event and wakes the reader.
    pub fn push(&self, kind: EventKind, message: &Payload) {
        self.change(|state| {
            // Progress comes before the answer, or not at all.
            state.late.catch_up(&mut state.log);
            state.log.push(kind, message);
        });
    }

    /// Appends an event without telling anybody; [`Stream::announce`] must follow. A child that
    /// writes many lines at once wakes the reader once.
    pub fn push_quietly(&self, kind: EventKind, message: &Spliced<'_>) {
        let mut state = self.state();
        if matches!(kind, EventKind::Progress(_)) && state.log.ended().is_some() {
            // Its call was ended meanwhile, by its client or its clock: nothing follows that.
            drop(state);
            self.terms.metrics.notification_dropped(Dropped::NoRequest);
            return;
        }
        if !self.congestion.is_shared() || state.reader.is_none() || self.has_room(&state.log, &kind) {
            // What was kept back is older; the client's progress must increase.
            let State { late, log, .. } = &mut *state;
            late.catch_up(log);
            log.push_spliced(kind, message);
            return;
        }
        let lost = match kind {
            EventKind::Progress(call) => state.late.keep(call, message),
            _ => true,
        };
        drop(state);
        if lost {
            self.terms.metrics.notification_dropped(Dropped::SlowReader);
        }
    }

    /// Whether a live reader for which no child waits gets this too: log messages for the first half of its window,
    /// other notifications for all of it, and always what is asked or answered.
    fn has_room(&self, log: &StreamLog, kind: &EventKind) -> bool {
        match kind {
            EventKind::Response | EventKind::Request(_) => true,
            EventKind::Log => log.waiting_bytes() <= self.terms.bounds.window / 2,
            EventKind::Notification | EventKind::Progress(_) => !log.is_full(&self.terms.bounds),
        }
    }

    /// How often it was resumed so far.
    #[must_use]
    pub fn resumes(&self) -> u64 {
        self.state().resumes
    }

    /// Wakes the reader for what was appended quietly.
    pub fn announce(&self) {
        self.change(|_state| {});
    }

    /// Marks that nothing follows.
    pub fn end(&self) {
        self.change(|state| {
            state.late.catch_up(&mut state.log);
            state.log.end(Instant::now());
        });
    }

    /// Appends the last event and ends the stream.
    pub fn finish(&self, kind: EventKind, message: &Payload) {
        self.change(|state| {
            state.late.catch_up(&mut state.log);
            state.log.push(kind, message);
            state.log.end(Instant::now());
        });
    }

    /// Ends the stream and forgets everything.
    pub fn discard(&self) {
        self.change(|state| {
            state.log.clear();
            state.late = LateProgress::default();
            state.log.end(Instant::now());
        });
    }

    fn note_taken(&self, now: Instant) {
        let age = u64::try_from(now.saturating_duration_since(self.made).as_millis()).unwrap_or(u64::MAX);
        self.taken.store(age, Ordering::Relaxed);
    }

    fn change(&self, apply: impl FnOnce(&mut State)) {
        let mut state = self.state();
        apply(&mut state);
        self.settle(&mut state);
        let waker = state.reader.as_mut().and_then(|slot| slot.waker.take());
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Brings bounds, congestion and accounts in line with the log after any change.
    fn settle(&self, state: &mut State) {
        let live = state.reader.is_some();
        if !live || !state.log.is_full(&self.terms.bounds) {
            state.late.catch_up(&mut state.log);
        }
        let trimmed = state.log.trim(&self.terms.bounds, live);
        self.report_evicted(Eviction::Events, trimmed.by_events);
        self.report_evicted(Eviction::Bytes, trimmed.by_bytes);
        if self.terms.ledger.is_short() {
            let Bounds { events, bytes, window } = self.terms.bounds;
            let small = Bounds { events: events / SHRUNK, bytes: bytes / SHRUNK, window };
            self.report_evicted(Eviction::Total, state.log.shrink(&small, live));
        }
        let full = live && !self.congestion.is_shared() && state.log.is_full(&self.terms.bounds);
        if full != state.full {
            state.full = full;
            if full { self.congestion.enter() } else { self.congestion.leave() }
        }
        let bytes = state.log.bytes();
        let own = if bytes > 0 { OWN_BYTES } else { 0 };
        let replay_bytes = if live { state.log.kept_bytes() } else { bytes };
        let held_back = state.late.bytes();
        let holding = Holding { bytes: bytes + own + held_back, replay_bytes, events: state.log.len() };
        self.terms.ledger.settle(state.settled, holding);
        state.settled = holding;
    }

    fn report_evicted(&self, reason: Eviction, events: usize) {
        if events > 0 {
            self.terms.ledger.metrics().replay_evicted(reason, events as u64);
        }
    }

    /// Counts what is lost with the whole stream.
    pub fn report_forgotten(&self, reason: Eviction) {
        self.report_evicted(reason, self.state().settled.events);
    }

    /// Says why the connection of its reader is cut.
    pub fn report_cut(&self, reason: StreamCut) {
        info!(event = "stream_cut", server = %self.terms.server, reason = reason.as_str());
        self.terms.metrics.stream_cut(reason);
    }

    /// Whether a reader is attached.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.state().reader.is_some()
    }

    /// Whether something waits that no reader has written whole.
    #[must_use]
    pub fn has_unwritten(&self) -> bool {
        self.state().log.has_unwritten()
    }

    /// Bytes kept for resumes only.
    #[must_use]
    pub fn replay_bytes(&self) -> usize {
        self.state().settled.replay_bytes
    }

    /// Drops about `wanted` bytes that are kept for resumes only; gives what was dropped.
    pub fn evict(&self, wanted: usize) -> usize {
        let (mut bytes, mut events) = (0, 0);
        self.change(|state| {
            let before = state.log.bytes();
            while before - state.log.bytes() < wanted {
                let unread = state.reader.is_some() && !state.log.first_is_written();
                if unread || !state.log.drop_oldest() {
                    break;
                }
                events += 1;
            }
            bytes = before - state.log.bytes();
        });
        self.report_evicted(Eviction::Total, events);
        bytes
    }

    /// Since when its reader has stalled, if it has: its window is full, or it took nothing of what waits for a while.
    #[must_use]
    pub fn stalled_since(&self, now: Instant) -> Option<Instant> {
        let state = self.state();
        // A reader of HTTP+SSE could not come back.
        let can_return = state.reader.as_ref().is_some_and(|slot| slot.fate.is_some()) && self.kind != StreamKind::Sse;
        let taken = self.made + Duration::from_millis(self.taken.load(Ordering::Relaxed));
        let waits = state.log.has_unwritten() && now.saturating_duration_since(taken) >= STALLED;
        // A full window counts where no child waits for it, too.
        let stalled = waits || state.log.is_full(&self.terms.bounds);
        (can_return && stalled).then_some(taken)
    }

    /// Cuts its reader's connection, if that frees anything. What nobody waits for gives way then as in every stream
    /// that is not read; the rest stays for a resume. Tells whether the reader is gone.
    pub fn cut_reader(&self) -> bool {
        let mut cut = None;
        self.change(|state| {
            if state.log.expendable_bytes() == 0 {
                return;
            }
            let Some(fate) = state.reader.as_ref().and_then(|slot| slot.fate.clone()) else { return };
            // Before the reader can find out that it is none any more: its end must tell why.
            fate.cut();
            state.epoch += 1;
            cut = state.reader.take();
        });
        if let Some(waker) = cut.as_mut().and_then(|slot| slot.waker.take()) {
            waker.wake();
        }
        cut.is_some()
    }

    /// Sends its reader away, which has to come back with a token that has not expired. Everything stays for it.
    pub fn expire_reader(&self) {
        let mut sent = None;
        self.change(|state| {
            sent = state.reader.take();
            if sent.is_some() {
                state.expired = state.epoch;
                state.epoch += 1;
            }
        });
        if let Some(waker) = sent.and_then(|slot| slot.waker) {
            waker.wake();
        }
    }

    /// Whether the stream ended longer ago than it is kept.
    #[must_use]
    pub fn is_expired(&self, now: Instant) -> bool {
        let state = self.state();
        state.reader.is_none()
            && state.log.ended().is_some_and(|ended| now.saturating_duration_since(ended) >= self.terms.age)
    }

    /// When it ended, if everything was written to a reader and none is there.
    #[must_use]
    pub fn read_and_ended(&self) -> Option<Instant> {
        let state = self.state();
        let read = state.reader.is_none() && !state.log.has_unwritten();
        state.log.ended().filter(|_| read)
    }

    /// Attaches a reader behind `cursor`, or behind what was handed out before. A reader that was
    /// there is told to stop.
    ///
    /// # Errors
    /// When the position is not there.
    pub fn attach(self: &Arc<Self>, cursor: Option<u64>, primed: bool) -> Result<Reader, Lost> {
        let mut state = self.state();
        if let Some(cursor) = cursor {
            state.log.check(cursor)?;
        }
        let skips = cursor.is_none();
        state.resumes += u64::from(!skips);
        let cursor = cursor.unwrap_or_else(|| state.log.unread());
        state.epoch += 1;
        let epoch = state.epoch;
        let before = state.reader.replace(Slot::default());
        self.note_taken(Instant::now());
        self.settle(&mut state);
        drop(state);
        if let Some(waker) = before.and_then(|slot| slot.waker) {
            waker.wake();
        }
        let prelude = primed.then(|| priming_event(self.nonce, cursor, self.terms.retry));
        let gauge = self.terms.metrics.stream_opened(self.kind);
        Ok(Reader { stream: Arc::clone(self), epoch, cursor, skips, prelude, events: 0, _gauge: gauge })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.terms.ledger.settle(state.settled, Holding::default());
        if state.full {
            self.congestion.leave();
        }
    }
}

/// The one reader of a stream; dropping it leaves the log for a resume.
pub struct Reader {
    stream: Arc<Stream>,
    epoch: u64,
    cursor: u64,
    /// It named no position, so nothing before its first event is missing to it.
    skips: bool,
    prelude: Option<Bytes>,
    events: u64,
    _gauge: StreamGauge,
}

impl Reader {
    /// Takes what there is, about `most` bytes of it. Level-triggered: the log is compared with the
    /// cursor under the same lock that appends, so no wake-up can be missed.
    pub fn poll_take(&mut self, context: &mut Context<'_>, most: usize, frames: &mut Frames) -> Poll<Look> {
        if let Some(prelude) = self.prelude.take() {
            frames.joined.extend_from_slice(&prelude);
        }
        let mut state = self.stream.state();
        if state.epoch != self.epoch {
            return Poll::Ready(if state.expired == self.epoch { Look::Expired } else { Look::TakenOver });
        }
        let before = self.cursor;
        let look = loop {
            if frames.joined.len() >= most {
                break Poll::Ready(Look::More);
            }
            match state.log.read(self.cursor, self.skips, most - frames.joined.len()) {
                Next::Run { last, events, bytes } => {
                    self.cursor = last;
                    self.events += events;
                    if bytes.len() >= COPY_BELOW {
                        frames.long = Some(bytes);
                        break Poll::Ready(Look::More);
                    }
                    bytes.pieces().iter().for_each(|piece| frames.joined.extend_from_slice(piece));
                }
                Next::End => break Poll::Ready(Look::End),
                Next::Gap => break Poll::Ready(Look::Gap),
                Next::Pending => {
                    if let Some(slot) = state.reader.as_mut() {
                        slot.waker = Some(context.waker().clone());
                    }
                    break if frames.joined.is_empty() { Poll::Pending } else { Poll::Ready(Look::More) };
                }
            }
        };
        if self.cursor > before {
            self.stream.settle(&mut state);
        }
        look
    }

    /// Makes `fate` what is cut when this reader stalls while memory is short.
    pub fn is_on(&self, fate: &Arc<dyn Fate>) {
        let mut state = self.stream.state();
        if state.epoch == self.epoch
            && let Some(slot) = state.reader.as_mut()
        {
            slot.fate = Some(Arc::clone(fate));
        }
    }

    /// Notes that the connection takes something now of what it was handed.
    pub fn note_taken(&self, now: Instant) {
        self.stream.note_taken(now);
    }

    /// Events handed out so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Pause a client is asked to make before it comes back.
    #[must_use]
    pub fn retry(&self) -> Duration {
        self.stream.terms.retry
    }

    /// Says why the connection is cut.
    pub fn cut(&self, reason: StreamCut) {
        self.stream.report_cut(reason);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.stream.state();
        if state.epoch == self.epoch {
            state.reader = None;
            self.stream.settle(&mut state);
        }
    }
}
