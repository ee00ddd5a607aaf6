//! The line codec of a child's stdout: bounded, linear, without I/O.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;

/// Bytes of a line that is too long which are handed on, so that its id may still be found.
const HEAD_BYTES: usize = 4 * 1024;

/// A line larger than this takes the read buffer's allocation with it, so that one large line
/// does not leave a large buffer behind. It is several reads, hence what follows it in the buffer
/// and has to move is less than itself.
const SHARE_BYTES: usize = 4 * LineSplitter::READ_BYTES;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// What a child wrote, cut at newlines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// One line that is not blank, without its newline, trailing `\r` and byte order mark. It shares
    /// the read buffer: whoever keeps a small one for long copies it.
    Whole(Bytes),
    /// A line longer than the limit. It is told once; the rest of it is skipped.
    TooLong {
        /// Its first bytes, at most 4 KiB.
        head: Bytes,
        /// Bytes that had arrived when it was given up.
        length_so_far: usize,
    },
    /// The stream ended within a line, which is dropped: joined to nothing, parsed by nobody.
    Torn {
        /// Bytes of it that had arrived.
        length: usize,
    },
}

/// Cuts a growing read buffer into [`Line`]s.
///
/// Read at least [`LineSplitter::READ_BYTES`] at a time into one buffer, call [`next`] until it
/// returns `None`, and [`finish`] at the end of the stream. Nobody else may remove bytes from
/// the buffer. Every byte is looked at once, however small the reads are.
///
/// [`next`]: LineSplitter::next
/// [`finish`]: LineSplitter::finish
#[derive(Debug)]
pub struct LineSplitter {
    max_bytes: usize,
    /// Leading bytes of the buffer that are known to hold no newline.
    scanned: usize,
    /// Whether everything up to the next newline belongs to a line already told as too long.
    skipping: bool,
}

impl LineSplitter {
    /// Bytes of room to reserve in the buffer before each read: a whole default pipe.
    pub const READ_BYTES: usize = 64 * 1024;

    /// A splitter for lines of at most `max_bytes`, a trailing `\r` and byte order mark included
    /// and the newline not.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, scanned: 0, skipping: false }
    }

    /// Takes the next line off the front of `buffer`; `None` asks for more input.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Option<Line> {
        loop {
            if self.skipping && !self.skip(buffer) {
                return None;
            }
            let unseen = self.scanned.min(buffer.len());
            let newline = memchr(b'\n', &buffer[unseen..]).map(|at| unseen + at);
            self.scanned = 0;
            match newline {
                Some(end) if end <= self.max_bytes => {
                    if let Some(line) = take_line(buffer, end) {
                        return Some(Line::Whole(line));
                    }
                }
                None if buffer.len() <= self.max_bytes => {
                    self.scanned = buffer.len();
                    return None;
                }
                _ => {
                    self.skipping = true;
                    let shown = self.max_bytes.min(HEAD_BYTES);
                    let head = without_mark(&buffer[..shown]);
                    return Some(Line::TooLong {
                        head: Bytes::copy_from_slice(head),
                        length_so_far: newline.unwrap_or(buffer.len()),
                    });
                }
            }
        }
    }

    /// Says at the end of the stream what became of the bytes after the last newline.
    ///
    /// To be called after [`LineSplitter::next`] returned `None`. The tail of a line that was
    /// already told as too long is not told again.
    pub fn finish(&mut self, buffer: &mut BytesMut) -> Option<Line> {
        let torn = !self.skipping && !is_blank(without_mark(buffer));
        let length = buffer.len();
        *buffer = BytesMut::new();
        self.scanned = 0;
        self.skipping = false;
        torn.then_some(Line::Torn { length })
    }

    /// Drops what belongs to the line that was too long; true once its newline was found.
    fn skip(&mut self, buffer: &mut BytesMut) -> bool {
        let newline = memchr(b'\n', buffer);
        consume(buffer, newline.map_or(buffer.len(), |at| at + 1));
        self.skipping = newline.is_none();
        !self.skipping
    }
}

/// Takes the line before the newline at `end`, and the newline; `None` if it is blank.
fn take_line(buffer: &mut BytesMut, end: usize) -> Option<Bytes> {
    let raw = &buffer[..end];
    let unmarked = without_mark(raw);
    let start = end - unmarked.len();
    let line = unmarked.strip_suffix(b"\r").unwrap_or(unmarked);
    let length = line.len();
    if is_blank(line) {
        consume(buffer, end + 1);
        return None;
    }
    let mut line = buffer.split_to(end + 1);
    line.advance(start);
    line.truncate(length);
    if end > SHARE_BYTES {
        *buffer = BytesMut::from(&buffer[..]);
    }
    Some(line.freeze())
}

/// Removes `count` bytes; many of them give the buffer's allocation back.
fn consume(buffer: &mut BytesMut, count: usize) {
    if count > SHARE_BYTES {
        *buffer = BytesMut::from(&buffer[count..]);
    } else {
        buffer.advance(count);
    }
}

fn without_mark(line: &[u8]) -> &[u8] {
    line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line)
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
}

#[cfg(test)]
mod tests {
    use super::{HEAD_BYTES, Line, LineSplitter, SHARE_BYTES};
    use bytes::{Bytes, BytesMut};
    use proptest::prelude::{any, prop, proptest};

    /// Feeds `input` in pieces whose sizes repeat `sizes`; the arrival counts, which depend on
    /// the pieces by their nature, are set to zero.
    fn split(max_bytes: usize, input: &[u8], sizes: &[usize]) -> Vec<Line> {
        let mut splitter = LineSplitter::new(max_bytes);
        let (mut buffer, mut lines, mut rest) = (BytesMut::new(), Vec::new(), input);
        let mut sizes = sizes.iter().cycle();
        while !rest.is_empty() {
            let size = sizes.next().copied().unwrap_or(1).clamp(1, rest.len());
            buffer.extend_from_slice(&rest[..size]);
            rest = &rest[size..];
            while let Some(line) = splitter.next(&mut buffer) {
                lines.push(match line {
                    Line::TooLong { head, .. } => Line::TooLong { head, length_so_far: 0 },
                    other => other,
                });
            }
        }
        lines.extend(splitter.finish(&mut buffer));
        lines
    }

    fn whole(text: &str) -> Line {
        Line::Whole(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn lines_lose_their_ends_and_blanks_vanish() {
        let input = b"\xEF\xBB\xBF{\"a\":1}\r\n\n\r\n  \t\r\n\xEF\xBB\xBF\nin\rside\n\r\rb\r\r\n";
        let lines = split(100, input, &[1000]);
        assert_eq!(lines, [whole("{\"a\":1}"), whole("in\rside"), whole("\r\rb\r")]);
    }

    #[test]
    fn half_a_line_at_the_end_is_torn() {
        assert_eq!(split(10, b"ab\ncd", &[9]), [whole("ab"), Line::Torn { length: 2 }]);
        assert_eq!(split(10, b"ab\n \r", &[9]), [whole("ab")]);
        let lines = split(2, b"abc", &[9]);
        assert!(matches!(lines[..], [Line::TooLong { .. }]), "told once: {lines:?}");
    }

    #[test]
    fn the_limit_is_exact_and_the_next_line_is_whole() {
        let lines = split(4, b"1234\n123\r\n1234\r\n12345\nnext\n", &[1000]);
        let long = || Line::TooLong { head: Bytes::from_static(b"1234"), length_so_far: 0 };
        assert_eq!(lines, [whole("1234"), whole("123"), long(), long(), whole("next")]);
    }

    #[test]
    fn a_long_line_shows_its_head_and_is_not_kept() {
        let mut splitter = LineSplitter::new(1 << 20);
        let mut buffer = BytesMut::new();
        let mut told = 0;
        for _ in 0..64 {
            buffer.extend_from_slice(&[b'x'; LineSplitter::READ_BYTES]);
            while let Some(line) = splitter.next(&mut buffer) {
                let Line::TooLong { head, length_so_far } = line else { panic!("{line:?}") };
                assert_eq!((head.len(), told), (HEAD_BYTES, 0));
                assert!(length_so_far > 1 << 20);
                told += 1;
            }
            assert!(buffer.len() <= (1 << 20) + LineSplitter::READ_BYTES);
        }
        assert_eq!(told, 1);
        assert!(buffer.is_empty() && buffer.capacity() <= SHARE_BYTES);
    }

    #[test]
    fn a_large_line_takes_its_buffer_along() {
        let mut splitter = LineSplitter::new(64 << 20);
        let mut buffer = BytesMut::new();
        for _ in 0..512 {
            buffer.reserve(LineSplitter::READ_BYTES);
            buffer.extend_from_slice(&[b'x'; LineSplitter::READ_BYTES]);
            assert_eq!(splitter.next(&mut buffer), None);
        }
        buffer.extend_from_slice(b"\nrest");
        let Some(Line::Whole(line)) = splitter.next(&mut buffer) else { panic!("no line") };
        assert_eq!(line.len(), 32 << 20);
        assert_eq!(splitter.next(&mut buffer), None);
        assert_eq!(&buffer[..], b"rest");
        drop(line);
        buffer.reserve(LineSplitter::READ_BYTES);
        assert!(buffer.capacity() <= SHARE_BYTES, "kept {} bytes", buffer.capacity());
    }

    #[test]
    fn every_byte_is_scanned_once() {
        let mut splitter = LineSplitter::new(1 << 20);
        let mut buffer = BytesMut::from(&b"abc"[..]);
        assert_eq!(splitter.next(&mut buffer), None);
        assert_eq!(splitter.scanned, 3);
        buffer.extend_from_slice(b"de\n");
        assert_eq!(splitter.next(&mut buffer), Some(whole("abcde")));
        assert_eq!((splitter.next(&mut buffer), splitter.scanned), (None, 0));
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_lines(
            parts in prop::collection::vec((any::<u8>(), 0_usize..40), 0..60),
            sizes in prop::collection::vec(1_usize..50, 1..20),
            max_bytes in 1_usize..60,
        ) {
            let alphabet: &[u8] = b"\n\r x{\xEF\xBB\xBF\xFF";
            let input: Vec<u8> = parts
                .iter()
                .flat_map(|&(byte, count)| {
                    let byte = alphabet[usize::from(byte) % alphabet.len()];
                    std::iter::repeat_n(byte, if byte == b'x' { count } else { 1 })
                })
                .collect();
            let at_once = split(max_bytes, &input, &[usize::MAX]);
            proptest::prop_assert_eq!(&split(max_bytes, &input, &sizes), &at_once);
            proptest::prop_assert_eq!(&split(max_bytes, &input, &[1]), &at_once);
        }

        #[test]
        fn lines_within_the_limit_come_back(
            texts in prop::collection::vec("[a-z\"{}]{1,30}", 0..20),
            sizes in prop::collection::vec(1_usize..50, 1..20),
        ) {
            let input: String = texts.iter().map(|text| format!("{text}\n")).collect();
            let expected: Vec<Line> = texts.iter().map(|text| whole(text)).collect();
            proptest::prop_assert_eq!(split(30, input.as_bytes(), &sizes), expected);
        }
    }
}
