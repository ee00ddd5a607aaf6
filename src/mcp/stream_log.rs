//! The events of one stream: a bounded ring that knows what a reader has and what it may still ask for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};

use crate::mcp::payload::{Payload, Spliced};
use crate::mcp::receipt::{Passage, Receipt};
use crate::mcp::segments::{Place, Segments};

/// What an event is; it decides what may be lost.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// Answers a request: never lost before it was written whole.
    Response,
    /// Asks the client something: not lost before it was written whole while a notification can be
    /// lost in its place, and never without its receipt saying so.
    Request(Receipt),
    /// Says something.
    Notification,
    /// Shows how far the call of this number is: the latest stands for those before.
    Progress(u64),
    /// Is a line of the server's log.
    Log,
}

/// What one log may keep.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Events kept for a resume.
    pub events: usize,
    /// Bytes kept for a resume.
    pub bytes: usize,
    /// Bytes a live reader may be behind before its child is no longer read, or what it says is lost to it.
    pub window: usize,
}

/// What was dropped to keep within the bounds, by the bound that asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Events, because there were too many.
    pub by_events: usize,
    /// Events, because they were too long together.
    pub by_bytes: usize,
}

/// Why a position cannot be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// What followed it is gone.
    Evicted,
    /// It was never given out.
    Future,
}

/// What a reader at some position gets.
#[derive(Debug)]
pub enum Next {
    /// Events that follow each other, as one text.
    Run {
        /// Position of the last of them, where the reader then stands.
        last: u64,
        /// How many they are.
        events: u64,
        /// Their bytes as they stand on the wire.
        bytes: Payload,
    },
    /// Nothing yet.
    Pending,
    /// Nothing any more.
    End,
    /// Events are missing; the reader must stop.
    Gap,
}

#[derive(Debug)]
struct Event {
    position: u64,
    kind: EventKind,
    /// The whole event as it stands on the wire, id line included.
    place: Place,
}

impl Event {
    /// Whether nobody waits for it.
    fn is_expendable(&self) -> bool {
        match &self.kind {
            EventKind::Response => false,
            EventKind::Request(receipt) => receipt.passage() != Passage::Waiting,
            EventKind::Notification | EventKind::Progress(_) | EventKind::Log => true,
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let EventKind::Request(receipt) = &self.kind {
            receipt.lose();
        }
    }
}

/// The log of one stream. Positions count from 1; a reader's cursor is the position it has.
#[derive(Debug)]
pub struct StreamLog {
    nonce: Nonce,
    framing: Framing,
    segments: Segments,
    /// By position. There are holes where notifications gave way to what must be kept; they come
    /// about only while nobody reads.
    events: VecDeque<Event>,
    /// Position the next event gets.
    next: u64,
    /// Everything below was handed to a reader.
    handed: u64,
    /// Everything below was written whole: the reader came back for more.
    written: u64,
    bytes: usize,
    /// Bytes from `handed` on.
    waiting_bytes: usize,
    /// Bytes from `written` on that were handed out.
    bytes_in_hand: usize,
    ended: Option<Instant>,
}

/// The name of a stream within its session: 8 random bytes, as 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// A nonce from random bits.
    #[must_use]
    pub fn from_bits(bits: u64) -> Nonce {
        let mut text = [0; 16];
        for (at, digit) in text.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(bits >> (60 - 4 * at) & 15) as usize];
        }
        Nonce(text)
    }

    /// Its text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Splits an event id `<nonce>.<position>`; `None` where it cannot be one.
#[must_use]
pub fn parse_event_id(text: &[u8]) -> Option<(Nonce, u64)> {
    let (nonce, rest) = text.split_at_checked(16)?;
    let nonce: [u8; 16] = nonce.try_into().ok()?;
    let hex = nonce.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let position = crate::mcp::ids::parse_u64(rest.strip_prefix(b".")?)?;
    hex.then_some((Nonce(nonce), position))
}

/// The event that gives a client its position before there is anything to say: an id, a `retry`
/// and empty data (2025-11-25 transports, Sending Messages 6).
#[must_use]
pub fn priming_event(nonce: Nonce, position: u64, retry: Duration) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    put_id(&mut out, nonce, position);
    out.put_slice(format!("retry: {}\ndata: \n\n", retry.as_millis()).as_bytes());
    out.freeze()
}

fn put_id(out: &mut impl BufMut, nonce: Nonce, position: u64) {
    out.put_slice(b"id: ");
    out.put_slice(nonce.as_bytes());
    out.put_u8(b'.');
    crate::mcp::ids::put_u64(out, position);
    out.put_u8(b'\n');
}

/// Above this an event's message is a piece of its own, and not copied into a block.
const COPY_BELOW: usize = 16 * 1024;

/// How the events of a stream are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// With ids a client resumes from.
    Resumable,
    /// As HTTP+SSE of 2024-11-05 has them: named `message`, without ids.
    Plain,
}

/// Bytes an event has around its message at most.
const FRAMING_BYTES: usize = 64;

fn put_head(out: &mut BytesMut, framing: Framing, nonce: Nonce, position: u64) {
    // Many small pieces: each would look for its room in a growing buffer.
    let mut head = [0; FRAMING_BYTES];
    let mut rest = &mut head[..];
    match framing {
        Framing::Resumable => put_id(&mut rest, nonce, position),
        Framing::Plain => rest.put_slice(b"event: message\n"),
    }
    rest.put_slice(b"data: ");
    let length = FRAMING_BYTES - rest.len();
    out.put_slice(&head[..length]);
}

impl StreamLog {
    /// An empty log.
    #[must_use]
    pub fn new(nonce: Nonce, framing: Framing) -> StreamLog {
        StreamLog {
            nonce,
            framing,
            segments: Segments::default(),
            events: VecDeque::new(),
            next: 1,
            handed: 1,
            written: 1,
            bytes: 0,
            waiting_bytes: 0,
            bytes_in_hand: 0,
            ended: None,
        }
    }

    /// The stream's name.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Bytes kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes kept only for a resume, while a reader is attached: what was written whole.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.bytes - self.waiting_bytes - self.bytes_in_hand
    }

    /// Whether the oldest event was written whole.
    #[must_use]
    pub fn first_is_written(&self) -> bool {
        self.events.front().is_some_and(|event| event.position < self.written)
    }

    /// Events kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// When the stream ended, if it did.
    #[must_use]
    pub fn ended(&self) -> Option<Instant> {
        self.ended
    }

    /// Whether there is an event that no reader has written whole.
    #[must_use]
    pub fn has_unwritten(&self) -> bool {
        self.events.back().is_some_and(|event| event.position >= self.written)
    }

    /// Whether a live reader is behind by more than its window.
    #[must_use]
    pub fn is_full(&self, bounds: &Bounds) -> bool {
        self.waiting_bytes > bounds.window
    }

    /// Bytes a live reader is behind.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Position of the first kept event, or of the next one to come.
    fn first(&self) -> u64 {
        self.events.front().map_or(self.next, |event| event.position)
    }

    /// Where among the kept events the first one stands that is not before `position`.
    fn seek(&self, position: u64) -> usize {
        let without_holes = position.saturating_sub(self.first()) as usize;
        match self.events.get(without_holes) {
            Some(event) if event.position == position || without_holes == 0 => without_holes,
            None if position >= self.next => self.events.len(),
            _ => self.events.partition_point(|event| event.position < position),
        }
    }

    /// Appends an event. The message holds no raw CR or LF, so it is one `data` line.
    pub fn push(&mut self, kind: EventKind, message: &Payload) {
        if message.len() < COPY_BELOW {
            self.push_small(kind, message.len(), |block| {
                message.pieces().iter().for_each(|piece| block.put_slice(piece));
            });
            return;
        }
        let mut head = BytesMut::with_capacity(FRAMING_BYTES);
        put_head(&mut head, self.framing, self.nonce, self.next);
        let message = Payload::kept_between(head.freeze(), message, Bytes::from_static(b"\n\n"));
        let place = self.segments.keep(message);
        self.add(kind, place);
    }

    /// Appends an event whose message is spliced on the way.
    pub fn push_spliced(&mut self, kind: EventKind, message: &Spliced<'_>) {
        if message.len() < COPY_BELOW {
            self.push_small(kind, message.len(), |block| message.put(block));
        } else {
            self.push(kind, &message.to_payload());
        }
    }

    fn push_small(&mut self, kind: EventKind, length: usize, put: impl FnOnce(&mut BytesMut)) {
        let StreamLog { framing, nonce, next, .. } = *self;
        // What waits already tells a log that is written in runs from one that gets an event now and then.
        let ahead = if self.events.is_empty() { 0 } else { self.waiting_bytes.max(1) };
        let place = self.segments.append(length + FRAMING_BYTES, ahead, |block| {
            put_head(block, framing, nonce, next);
            put(block);
            block.put_slice(b"\n\n");
        });
        self.add(kind, place);
    }

    fn add(&mut self, kind: EventKind, place: Place) {
        self.events.push_back(Event { position: self.next, kind, place });
        self.next += 1;
        self.bytes += place.len();
        self.waiting_bytes += place.len();
    }

    /// Forgets every event.
    pub fn clear(&mut self) {
        (self.handed, self.written) = (self.next, self.next);
        self.events.clear();
        self.segments.clear();
        (self.bytes, self.waiting_bytes, self.bytes_in_hand) = (0, 0, 0);
    }

    /// Marks that nothing follows.
    pub fn end(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    /// Whether a reader may start behind `cursor`.
    ///
    /// # Errors
    /// When what followed it is gone, or it was never given out.
    pub fn check(&self, cursor: u64) -> Result<(), Lost> {
        if cursor >= self.handed {
            Err(Lost::Future)
        } else if cursor + 1 < self.next && !self.has(cursor + 1) {
            Err(Lost::Evicted)
        } else {
            Ok(())
        }
    }

    fn has(&self, position: u64) -> bool {
        self.events.get(self.seek(position)).is_some_and(|event| event.position == position)
    }

    /// The position behind which a reader starts that names none: what was written whole ends there.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.written.max(self.first()) - 1
    }

    /// What a reader that has written everything up to `cursor` gets next: one event, or a run of them of about `most`
    /// bytes. A reader that started at [`StreamLog::unread`] knows of no position before and `skips` what was dropped
    /// meanwhile.
    pub fn read(&mut self, cursor: u64, skips: bool, most: usize) -> Next {
        let wanted = cursor + 1;
        self.note_written(wanted.min(self.handed));
        if wanted < self.next && !skips && !self.has(wanted) {
            return Next::Gap;
        }
        let at = self.seek(wanted);
        let Some(first) = self.events.get(at) else {
            return if self.ended.is_some() { Next::End } else { Next::Pending };
        };
        let from = first.place;
        let (mut last, mut to, mut events) = (first.position, from, 1);
        for event in self.events.range(at + 1..) {
            if !to.is_followed_by(&event.place) || from.to(&event.place) > most {
                break;
            }
            (last, to, events) = (event.position, event.place, events + 1);
        }
        self.hand_out(at, last);
        Next::Run { last, events, bytes: self.segments.get(from, to) }
    }

    /// Notes that everything from the event at index `at` to position `last` is in a reader's hand.
    fn hand_out(&mut self, at: usize, last: u64) {
        let fresh = self.events.range(at..).take_while(|event| event.position <= last);
        let bytes: usize = fresh.filter(|event| event.position >= self.handed).map(|event| event.place.len()).sum();
        self.waiting_bytes -= bytes;
        self.bytes_in_hand += bytes;
        self.handed = self.handed.max(last + 1);
    }

    /// Notes that everything below `position`, which was handed out, was written whole.
    fn note_written(&mut self, position: u64) {
        if position <= self.written {
            return;
        }
        for event in self.events.range(self.seek(self.written)..).take_while(|event| event.position < position) {
            self.bytes_in_hand -= event.place.len();
            if let EventKind::Request(receipt) = &event.kind {
                receipt.write();
            }
        }
        self.written = position;
    }

    /// Drops what exceeds the bounds, oldest first; `read_by_someone` says that a live reader
    /// still wants what is unwritten.
    pub fn trim(&mut self, bounds: &Bounds, read_by_someone: bool) -> Trimmed {
        self.keep_within(bounds, read_by_someone, |log| log.drop_oldest() || !read_by_someone && log.drop_request())
    }

    /// As [`StreamLog::trim`], but never at the cost of what somebody waits for. Gives the number of events dropped.
    pub fn shrink(&mut self, bounds: &Bounds, read_by_someone: bool) -> usize {
        let Trimmed { by_events, by_bytes } = self.keep_within(bounds, read_by_someone, StreamLog::drop_oldest);
        by_events + by_bytes
    }

    fn keep_within(
        &mut self,
        bounds: &Bounds,
        read_by_someone: bool,
        mut drop_one: impl FnMut(&mut StreamLog) -> bool,
    ) -> Trimmed {
        let mut trimmed = Trimmed::default();
        loop {
            let (events, bytes) = if read_by_someone {
                (self.seek(self.written), self.kept_bytes())
            } else {
                (self.events.len(), self.bytes)
            };
            let too_many = events > bounds.events;
            let is_within = !too_many && bytes <= bounds.bytes;
            if is_within || !drop_one(self) {
                return trimmed;
            }
            if too_many {
                trimmed.by_events += 1;
            } else {
                trimmed.by_bytes += 1;
            }
        }
    }

    /// Drops the oldest event that may be: any that was written whole, else a notification or what
    /// nobody awaits any more.
    pub fn drop_oldest(&mut self) -> bool {
        let oldest = self.events.iter().position(|event| event.position < self.written || event.is_expendable());
        oldest.is_some_and(|at| self.remove(at))
    }

    /// Bytes a live reader has not written whole that would be expendable without it.
    #[must_use]
    pub fn expendable_bytes(&self) -> usize {
        let unwritten = self.events.range(self.seek(self.written)..);
        unwritten.filter(|event| event.is_expendable()).map(|event| event.place.len()).sum()
    }

    /// Drops the oldest request although somebody waits for its answer.
    fn drop_request(&mut self) -> bool {
        let oldest = self.events.iter().position(|event| matches!(event.kind, EventKind::Request(_)));
        oldest.is_some_and(|at| self.remove(at))
    }

    fn remove(&mut self, at: usize) -> bool {
        let Some(event) = self.events.remove(at) else { return false };
        let bytes = event.place.len();
        self.segments.forget(event.place);
        self.bytes -= bytes;
        if event.position >= self.handed {
            self.waiting_bytes -= bytes;
        } else if event.position >= self.written {
            self.bytes_in_hand -= bytes;
        }
        if at == 0 {
            self.handed = self.handed.max(self.first());
            self.written = self.written.max(self.first());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Bounds, EventKind, Framing, Lost, Next, Nonce, StreamLog, parse_event_id, priming_event};
    use crate::mcp::payload::Payload;
    use crate::mcp::receipt::{Passage, Receipt};
    use bytes::Bytes;
    use proptest::prelude::{any, prop, proptest};
    use std::time::{Duration, Instant};

    const BOUNDS: Bounds = Bounds { events: 4, bytes: 10_000, window: 1_000 };

    fn log() -> StreamLog {
        StreamLog::new(Nonce::from_bits(0x0123_4567_89ab_cdef), Framing::Resumable)
    }

    fn push(log: &mut StreamLog, kind: EventKind, text: &str) {
        log.push(kind, &Payload::whole(Bytes::copy_from_slice(text.as_bytes())));
    }

    /// The next single event.
    fn read(log: &mut StreamLog, cursor: u64, skips: bool) -> String {
        match log.read(cursor, skips, 0) {
            Next::Run { events: 1, bytes, .. } => String::from_utf8(bytes.to_bytes().to_vec()).expect("utf-8"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn events_carry_their_position() {
        let mut log = log();
        push(&mut log, EventKind::Notification, "{\"a\":1}");
        assert_eq!(read(&mut log, 0, false), "id: 0123456789abcdef.1\ndata: {\"a\":1}\n\n");
        assert_eq!(read(&mut log, 1, false), "Pending");
        log.end(Instant::now());
        assert_eq!(read(&mut log, 1, false), "End");
        assert_eq!(
            priming_event(log.nonce(), 0, Duration::from_secs(2)),
            "id: 0123456789abcdef.0\nretry: 2000\ndata: \n\n"
        );
    }

    #[test]
    fn plain_events_have_no_id() {
        let mut log = StreamLog::new(Nonce::from_bits(1), Framing::Plain);
        push(&mut log, EventKind::Response, "{}");
        assert_eq!(read(&mut log, 0, false), "event: message\ndata: {}\n\n");
    }

    #[test]
    fn long_messages_are_framed_alike() {
        let mut log = log();
        let long = "x".repeat(100_000);
        push(&mut log, EventKind::Response, &long);
        assert_eq!(read(&mut log, 0, false), format!("id: 0123456789abcdef.1\ndata: {long}\n\n"));
    }

    #[test]
    fn event_ids_are_read_strictly() {
        let (nonce, position) = parse_event_id(b"0123456789abcdef.12").expect("an id");
        assert_eq!((nonce, position), (log().nonce(), 12));
        for bad in [
            "",
            "0123456789abcdef",
            "0123456789abcdef.",
            "0123456789abcdef.01",
            "0123456789ABCDEF.1",
            "0123456789abcdef.-1",
            "0123456789abcdef.1 ",
        ] {
            assert!(parse_event_id(bad.as_bytes()).is_none(), "{bad}");
        }
    }

    #[test]
    fn what_is_gone_is_said_to_be_gone() {
        let mut log = log();
        for number in 0..6 {
            push(&mut log, EventKind::Notification, &number.to_string());
        }
        assert_eq!(log.trim(&BOUNDS, false).by_events, 2);
        assert_eq!(log.check(1), Err(Lost::Evicted));
        assert_eq!(log.check(2), Ok(()));
        assert_eq!(log.check(3), Err(Lost::Future), "kept, but never given out");
        assert_eq!(read(&mut log, 1, false), "Gap");
        assert!(read(&mut log, 2, false).contains("data: 2"));
        assert_eq!(log.check(3), Ok(()));
    }

    #[test]
    fn a_response_waits_for_its_reader() {
        let mut log = log();
        push(&mut log, EventKind::Response, "r");
        for _ in 0..20 {
            push(&mut log, EventKind::Notification, "n");
        }
        assert_eq!(log.trim(&BOUNDS, false).by_events, 17, "what stands behind it is bounded all the same");
        assert!(read(&mut log, 0, false).contains("data: r"));
        push(&mut log, EventKind::Notification, "n");
        assert_eq!(log.trim(&BOUNDS, false).by_events, 1);
        assert!(log.check(0).is_ok(), "it may break off in the middle");
        assert_eq!(read(&mut log, 1, false), "Gap", "asks for more, so it has the answer");
        push(&mut log, EventKind::Notification, "n");
        assert_eq!(log.trim(&BOUNDS, false).by_events, 1);
        assert_eq!(log.check(0), Err(Lost::Evicted));
    }

    #[test]
    fn a_live_reader_keeps_what_it_has_not_seen() {
        let mut log = log();
        for number in 0..20 {
            push(&mut log, EventKind::Notification, &number.to_string());
        }
        assert_eq!(log.trim(&BOUNDS, true).by_events, 0);
        for cursor in 0..10 {
            assert!(read(&mut log, cursor, false).contains(&format!("data: {cursor}")));
        }
        assert_eq!(log.trim(&BOUNDS, true).by_events, 5, "the tenth is in hand");
        assert_eq!(log.check(4), Err(Lost::Evicted));
        assert_eq!(log.unread(), 9);
        push(&mut log, EventKind::Notification, &"x".repeat(2_000));
        assert!(log.is_full(&BOUNDS));
    }

    /// Pushes a request, and gives the receipt whoever awaits its answer would hold.
    fn ask(log: &mut StreamLog, text: &str) -> Receipt {
        let receipt = Receipt::default();
        push(log, EventKind::Request(receipt.clone()), text);
        receipt
    }

    #[test]
    fn a_request_waits_for_its_reader_while_notifications_give_way() {
        let mut log = log();
        push(&mut log, EventKind::Notification, "before");
        let receipt = ask(&mut log, "r");
        for number in 0..20 {
            push(&mut log, EventKind::Notification, &format!("n{number}"));
        }
        assert_eq!(log.trim(&BOUNDS, false).by_events, 18);
        assert_eq!(receipt.passage(), Passage::Waiting);
        let start = log.unread();
        assert!(read(&mut log, start, true).contains(".2\ndata: r"));
        assert!(read(&mut log, 2, true).contains(".20\ndata: n17"), "whoever starts anew misses nothing it knew of");
        assert_eq!(receipt.passage(), Passage::Written);
        assert_eq!(read(&mut log, 2, false), "Gap");
        assert_eq!(log.check(2), Err(Lost::Evicted));
        assert_eq!(log.check(20), Ok(()));
        assert_eq!(log.trim(&BOUNDS, false).by_events, 0);
        push(&mut log, EventKind::Notification, "n");
        assert_eq!(log.trim(&BOUNDS, false).by_events, 1);
        assert_eq!(log.check(1), Err(Lost::Evicted), "it was written, and is not kept longer than others");
    }

    #[test]
    fn a_request_that_must_go_says_so() {
        let mut log = log();
        let receipts: Vec<Receipt> = (0..6).map(|number| ask(&mut log, &format!("r{number}"))).collect();
        assert!(!log.drop_oldest(), "not for room elsewhere");
        assert_eq!(log.trim(&BOUNDS, false).by_events, 2);
        let lost = receipts.iter().filter(|receipt| receipt.passage() == Passage::Lost);
        assert_eq!(lost.count(), 2);
        receipts[4].close();
        assert!(log.drop_oldest(), "nobody awaits its answer any more");
        assert_eq!(log.len(), 3);
        log.clear();
        assert!(receipts.iter().all(|receipt| receipt.passage() != Passage::Waiting));
    }

    proptest! {
        /// Whatever happens, a reader that named its position sees consecutive events or is told of
        /// the gap, one that named none sees them in order, what somebody waits for is not lost
        /// unsaid, and the accounts match what is kept.
        #[test]
        fn never_a_silent_gap(steps in prop::collection::vec((any::<u8>(), any::<bool>()), 1..200)) {
            let mut log = log();
            let (mut cursor, mut pushed, mut fresh) = (0u64, 0u64, false);
            let mut asked: Vec<(u64, Receipt)> = Vec::new();
            for (step, live) in steps {
                match step % 4 {
                    0 | 1 => {
                        pushed += 1;
                        let text = format!("<{pushed}>");
                        match step % 16 {
                            0 => push(&mut log, EventKind::Response, &text),
                            4 | 8 => asked.push((pushed, ask(&mut log, &text))),
                            _ => push(&mut log, EventKind::Notification, &text),
                        }
                    }
                    2 => match log.read(cursor, fresh, usize::from(step)) {
                        Next::Run { last, events, bytes } => {
                            let first = last + 1 - events;
                            assert!(first == cursor + 1 || fresh && first > cursor);
                            cursor = last;
                            let expected: String = (first..=last).map(|at| format!(".{at}\ndata: <{at}>\n\n")).collect();
                            let shown = String::from_utf8(bytes.to_bytes().to_vec()).expect("utf-8");
                            assert_eq!(shown.replace("id: 0123456789abcdef", ""), expected);
                        }
                        Next::Gap => {
                            assert_eq!(log.check(cursor), Err(Lost::Evicted));
                            (cursor, fresh) = (log.unread(), true);
                        }
                        Next::Pending => assert!(cursor == pushed || fresh),
                        Next::End => unreachable!("never ended"),
                    },
                    _ => {
                        log.trim(&BOUNDS, live);
                        // Nobody reads now, so whoever reads next comes back to its position.
                        fresh &= live;
                    }
                }
                for (position, receipt) in &asked {
                    let kept = log.events.iter().any(|event| event.position == *position);
                    assert!(kept || receipt.passage() != Passage::Waiting);
                    assert!(receipt.passage() != Passage::Lost || !kept);
                }
                let positions: Vec<u64> = log.events.iter().map(|event| event.position).collect();
                assert!(positions.is_sorted());
                assert!(log.kept_bytes() <= log.bytes());
                assert_eq!(log.is_empty(), log.bytes() == 0);
                assert_eq!(log.has_unwritten(), log.kept_bytes() < log.bytes());
            }
        }
    }
}
