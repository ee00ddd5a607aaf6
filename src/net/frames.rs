//! What an HTTP/2 client sends beside requests, counted: frames that cost us work and it nothing.
//!
//! hyper ends connections over some floods (rapid resets, CONTINUATION, empty DATA) and answers others for ever
//! (PING, SETTINGS, PRIORITY, WINDOW_UPDATE). Here the nine-byte heads of all frames are read (RFC 9113, 4.1), on
//! their way to hyper and whatever they hold; [`MOST`] *glitches* within [`WITHIN`] end the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Glitches that end a connection.
const MOST: u32 = 500;
/// Time after which the count starts anew.
const WITHIN: Duration = Duration::from_secs(10);

/// "PRI * HTTP/2.0 …" (RFC 9113, 3.4), whose content hyper checks.
pub(super) const PREFACE: usize = 24;
/// What a frame begins with.
pub(super) const HEAD: usize = 9;

/// DATA frames with less, but for the last of a request, are glitches.
const SMALL_DATA: usize = 64;

/// Window updates a client may send for each piece of an answer it was given: one for the stream, one for the
/// connection, and the same again for one that is cut in two.
const UPDATES_PER_PIECE: u64 = 4;

/// Types (RFC 9113, 6).
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
/// Flags.
pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

/// Window updates that are paid for by answers.
#[derive(Debug, Default)]
pub(super) struct Credit(AtomicU64);

impl Credit {
    /// A piece of an answer was handed over.
    pub(super) fn earn(&self) {
        self.0.fetch_add(UPDATES_PER_PIECE, Ordering::Relaxed);
    }

    fn spend(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// How far a connection's input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// The preface was read.
    pub(super) begun: bool,
    /// Frames that were read whole; a header block counts as one.
    pub(super) whole: u64,
    /// Whether a further one, that is no DATA, has begun.
    pub(super) partial: bool,
}

/// Reads along.
#[derive(Debug)]
pub(super) struct Frames {
    credit: Arc<Credit>,
    preface_left: usize,
    head: [u8; HEAD],
    head_read: usize,
    payload_left: usize,
    payload_is_data: bool,
    /// HEADERS came, and the end of their block did not.
    in_block: bool,
    whole: u64,
    glitches: u32,
    since: Option<Instant>,
}

/// The client sent too much of what costs it nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flood;

impl Frames {
    pub(super) fn new(credit: Arc<Credit>) -> Frames {
        Frames {
            credit,
            preface_left: PREFACE,
            head: [0; HEAD],
            head_read: 0,
            payload_left: 0,
            payload_is_data: false,
            in_block: false,
            whole: 0,
            glitches: 0,
            since: None,
        }
    }

    /// Reads what came, in pieces of any size.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Result<Position, Flood> {
        while !bytes.is_empty() {
            let taken = if self.preface_left > 0 {
                let taken = bytes.len().min(self.preface_left);
                self.preface_left -= taken;
                taken
            } else if self.payload_left > 0 {
                let taken = bytes.len().min(self.payload_left);
                self.payload_left -= taken;
                taken
            } else {
                let taken = bytes.len().min(HEAD - self.head_read);
                self.head[self.head_read..self.head_read + taken].copy_from_slice(&bytes[..taken]);
                self.head_read += taken;
                if self.head_read == HEAD {
                    self.begin_frame()?;
                }
                taken
            };
            bytes = &bytes[taken..];
            self.end_frame();
        }
        let between = self.head_read == 0 || (self.head_read == HEAD && self.payload_is_data);
        let partial = self.preface_left == 0 && (!between || self.in_block);
        Ok(Position { begun: self.preface_left == 0, whole: self.whole, partial })
    }

    fn begin_frame(&mut self) -> Result<(), Flood> {
        let [a, b, c, kind, flags, ..] = self.head;
        self.payload_left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        self.payload_is_data = kind == DATA;
        match kind {
            HEADERS | CONTINUATION => self.in_block = flags & END_HEADERS == 0,
            _ => {}
        }
        let is_glitch = match kind {
            HEADERS => false,
            DATA => flags & END_STREAM == 0 && (flags & PADDED != 0 || self.payload_left < SMALL_DATA),
            WINDOW_UPDATE => !self.credit.spend(),
            // Acknowledgements too: what we send is little, and whoever sends none asked for has the same aim.
            _ => true,
        };
        if is_glitch { self.count() } else { Ok(()) }
    }

    /// Notes the end of a frame that was read to it.
    fn end_frame(&mut self) {
        if self.head_read == HEAD && self.payload_left == 0 {
            self.head_read = 0;
            self.whole += u64::from(!self.in_block);
        }
    }

    fn count(&mut self) -> Result<(), Flood> {
        let now = Instant::now();
        if self.since.is_none_or(|since| now - since >= WITHIN) {
            self.since = Some(now);
            self.glitches = 0;
        }
        self.glitches += 1;
        if self.glitches > MOST { Err(Flood) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::advance;

    use super::{
        CONTINUATION, Credit, DATA, END_HEADERS, END_STREAM, Flood, Frames, HEADERS, MOST, PING, Position, WITHIN,
    };

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const WINDOW_UPDATE: u8 = 8;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let mut bytes = (length as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(vec![0xff; length]);
        bytes
    }

    fn frames() -> Frames {
        let mut frames = Frames::new(Arc::default());
        frames.read(PREFACE).expect("no flood");
        frames
    }

    fn at(whole: u64, partial: bool) -> Position {
        Position { begun: true, whole, partial }
    }

    #[tokio::test]
    async fn the_position_is_the_same_however_bytes_are_cut() {
        let input =
            [PREFACE, &frame(HEADERS, 0, 70), &frame(CONTINUATION, END_HEADERS, 0), &frame(DATA, 1, 300)].concat();
        for size in 1..input.len() {
            let mut frames = Frames::new(Arc::default());
            let mut position = None;
            for piece in input.chunks(size) {
                position = Some(frames.read(piece).expect("no flood"));
            }
            assert_eq!(position, Some(at(2, false)), "cut every {size} bytes");
        }
    }

    #[tokio::test]
    async fn a_block_that_is_not_whole_and_half_a_frame_are_partial() {
        let mut frames = frames();
        assert_eq!(frames.read(&[0, 0]), Ok(at(0, true)));
        assert_eq!(frames.read(&[8, PING, 0, 0, 0, 0, 0]), Ok(at(0, true)));
        assert_eq!(frames.read(&[0; 8]), Ok(at(1, false)));
        assert_eq!(frames.read(&frame(HEADERS, 0, 5)), Ok(at(1, true)));
        assert_eq!(frames.read(&frame(CONTINUATION, 0, 5)), Ok(at(1, true)), "it is no further");
        assert_eq!(frames.read(&frame(CONTINUATION, END_HEADERS, 5)), Ok(at(2, false)));
        let data = frame(DATA, 0, 100);
        assert_eq!(frames.read(&data[..50]), Ok(at(2, false)), "bodies have a clock of their own");
        assert_eq!(frames.read(&data[50..]), Ok(at(3, false)));
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_glitches_in_a_while_are_a_flood() {
        let mut frames = frames();
        let ping = frame(PING, 0, 8);
        for _ in 0..MOST {
            frames.read(&ping).expect("no flood yet");
        }
        advance(WITHIN - Duration::from_millis(1)).await;
        assert_eq!(frames.read(&ping), Err(Flood));
        advance(Duration::from_millis(1)).await;
        frames.read(&ping).expect("the count begins anew");
    }

    #[tokio::test]
    async fn requests_and_their_bodies_are_no_glitches() {
        let mut frames = frames();
        let request = [frame(HEADERS, END_HEADERS, 50), frame(DATA, 0, 64), frame(DATA, END_STREAM, 1)].concat();
        for _ in 0..MOST * 2 {
            frames.read(&request).expect("no flood");
        }
    }

    #[tokio::test]
    async fn window_updates_are_paid_for_by_answers() {
        let credit = Arc::new(Credit::default());
        let mut frames = Frames::new(Arc::clone(&credit));
        frames.read(PREFACE).expect("no flood");
        let update = frame(WINDOW_UPDATE, 0, 4);
        for _ in 0..MOST {
            credit.earn();
            for _ in 0..4 {
                frames.read(&update).expect("no flood");
            }
        }
        for _ in 0..MOST {
            frames.read(&update).expect("no flood yet");
        }
        assert_eq!(frames.read(&update), Err(Flood));
    }
}
