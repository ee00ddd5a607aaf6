//! The bytes of a log's events: small ones written one behind the other, so that a run of them is one slice.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::mcp::payload::Payload;

/// Least and most bytes that are set aside at once for small events to come.
const BLOCK_LEAST: usize = 8 * 1024;
const BLOCK_MOST: usize = 32 * 1024;

/// Where an event's bytes are.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    segment: u64,
    start: usize,
    end: usize,
}

impl Place {
    /// Bytes of the event.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether the event has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes from where this begins to where `last` ends, in the same segment.
    #[must_use]
    pub fn to(&self, last: &Place) -> usize {
        last.end - self.start
    }

    /// Whether `next` begins where this ends.
    #[must_use]
    pub fn is_followed_by(&self, next: &Place) -> bool {
        self.segment == next.segment && self.end == next.start
    }
}

/// Events that lie one behind the other, or a single long one.
#[derive(Debug)]
struct Segment {
    bytes: Payload,
    /// Events of it that are kept.
    kept: usize,
}

/// The bytes of all events of one log, oldest first.
#[derive(Debug, Default)]
pub struct Segments {
    closed: VecDeque<Segment>,
    /// The number of the first closed segment; the open one has the number behind the last.
    first: u64,
    /// The segment that small events are still appended to, and how many of them are kept.
    open: BytesMut,
    open_kept: usize,
}

impl Segments {
    /// Appends a small event of at most `most` bytes; `ahead` bytes are expected to follow.
    pub fn append(&mut self, most: usize, ahead: usize, put: impl FnOnce(&mut BytesMut)) -> Place {
        if self.open.capacity() - self.open.len() < most {
            self.close();
            // The first block is only as large as its first event: many logs hold no second.
            let room = if ahead == 0 { most } else { ahead.clamp(BLOCK_LEAST, BLOCK_MOST).max(most) };
            self.open = BytesMut::with_capacity(room);
        }
        let start = self.open.len();
        put(&mut self.open);
        self.open_kept += 1;
        Place { segment: self.open_number(), start, end: self.open.len() }
    }

    /// Takes a long event as it is.
    pub fn keep(&mut self, bytes: Payload) -> Place {
        self.close();
        let place = Place { segment: self.open_number(), start: 0, end: bytes.len() };
        self.closed.push_back(Segment { bytes, kept: 1 });
        place
    }

    fn open_number(&self) -> u64 {
        self.first + self.closed.len() as u64
    }

    /// What was appended since is complete; the rest of its block is for what follows.
    fn close(&mut self) {
        if self.open_kept > 0 {
            let bytes = Payload::whole(self.open.split().freeze());
            self.closed.push_back(Segment { bytes, kept: self.open_kept });
            self.open_kept = 0;
        }
    }

    /// The bytes from the start of `from` to the end of `to`, which lie in one segment.
    pub fn get(&mut self, from: Place, to: Place) -> Payload {
        if from.segment == self.open_number() {
            self.close();
        }
        let Some(segment) = self.find(from.segment) else { return Payload::default() };
        let bytes = &segment.bytes;
        if from.start == 0 && to.end == bytes.len() {
            return bytes.clone();
        }
        Payload::whole(bytes.to_bytes().slice(from.start..to.end))
    }

    fn find(&mut self, number: u64) -> Option<&mut Segment> {
        self.closed.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Forgets an event; its bytes go with the last one of its segment.
    pub fn forget(&mut self, place: Place) {
        if place.segment == self.open_number() {
            self.open_kept -= 1;
            if self.open_kept == 0 {
                self.open.clear();
            }
        } else if let Some(segment) = self.find(place.segment) {
            segment.kept -= 1;
            if segment.kept == 0 {
                segment.bytes = Payload::whole(Bytes::new());
            }
        }
        while self.closed.front().is_some_and(|segment| segment.kept == 0) {
            self.closed.pop_front();
            self.first += 1;
        }
    }

    /// Forgets every event.
    pub fn clear(&mut self) {
        self.first = self.open_number();
        self.closed.clear();
        self.open = BytesMut::new();
        self.open_kept = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use bytes::{BufMut, Bytes};
    use proptest::prelude::{any, prop, proptest};

    use super::{Place, Segments};
    use crate::mcp::payload::Payload;

    fn append(segments: &mut Segments, text: &str) -> Place {
        segments.append(text.len(), 1, |block| block.put_slice(text.as_bytes()))
    }

    #[test]
    fn a_run_of_small_events_is_one_slice_and_stays_what_it_was() {
        let mut segments = Segments::default();
        let (first, second) = (append(&mut segments, "one"), append(&mut segments, "two"));
        assert!(first.is_followed_by(&second));
        let run = segments.get(first, second);
        assert_eq!(run.to_bytes(), "onetwo");
        let third = append(&mut segments, "three");
        assert!(!second.is_followed_by(&third), "what was handed out is not written to");
        assert_eq!((segments.get(third, third).to_bytes(), run.to_bytes()), ("three".into(), "onetwo".into()));
        segments.forget(first);
        assert_eq!(segments.get(second, second).to_bytes(), "two");
    }

    proptest! {
        /// Whatever is appended, read and forgotten in whatever order, what is kept reads as it was written.
        #[test]
        fn what_is_kept_reads_as_it_was_written(steps in prop::collection::vec((any::<u8>(), any::<u16>()), 1..300)) {
            let mut segments = Segments::default();
            let mut kept: VecDeque<(Place, String)> = VecDeque::new();
            for (number, (step, size)) in steps.into_iter().enumerate() {
                let text = format!("{number}-{}", "x".repeat(usize::from(size) % 5000));
                match step % 5 {
                    0 | 1 => kept.push_back((append(&mut segments, &text), text)),
                    2 => {
                        let whole = Payload::whole(Bytes::from(text.clone()));
                        kept.push_back((segments.keep(whole), text));
                    }
                    _ if kept.is_empty() => {}
                    3 => {
                        let (place, _) = kept.remove(usize::from(size) % kept.len()).expect("it is there");
                        segments.forget(place);
                    }
                    _ => {
                        let (place, text) = &kept[usize::from(size) % kept.len()];
                        assert_eq!(segments.get(*place, *place).to_bytes(), text.as_bytes());
                    }
                }
            }
            for (place, text) in kept {
                assert_eq!(segments.get(place, place).to_bytes(), text.as_bytes());
                segments.forget(place);
            }
            assert!(segments.closed.is_empty() && segments.open.is_empty());
        }
    }
}
