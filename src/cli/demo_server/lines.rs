//! Newline-delimited input (transports, "stdio"), read in large pieces and bounded.

use std::io::{self, ErrorKind, Read};

/// The longest line accepted, in bytes. A longer one is skipped up to its newline.
const LINE_BYTES: usize = 64 * 1024 * 1024;

/// Bytes asked from the kernel at once: what a pipe holds by default on Linux.
const CHUNK: usize = 64 * 1024;

/// A buffer that grew beyond this is given back once it is empty.
const KEEP: usize = 1024 * 1024;

/// The lines of a byte stream, without their line ends.
pub(super) struct Lines<R> {
    input: R,
    /// The longest line handed out, in bytes.
    limit: usize,
    buffer: Vec<u8>,
    /// Where the next line begins; everything before was handed out.
    start: usize,
    /// End of the bytes read so far; the rest of `buffer` is room for the next read.
    end: usize,
    /// No newline lies in `start..scanned`, so a long line is searched only once.
    scanned: usize,
    /// The current line was too long: its rest is dropped up to the newline.
    skipping: bool,
}

impl<R: Read> Lines<R> {
    /// Reads from `input`, which needs no buffering of its own.
    pub(super) fn new(input: R) -> Self {
        Self::with_limit(input, LINE_BYTES)
    }

    fn with_limit(input: R, limit: usize) -> Self {
        let buffer = vec![0; CHUNK];
        Self { input, limit, buffer, start: 0, end: 0, scanned: 0, skipping: false }
    }

    /// Whether a whole line is already in memory, so that [`Lines::next`] would not block.
    pub(super) fn has_next(&mut self) -> bool {
        self.newline().is_some()
    }

    /// The next line that is not blank, or `None` at the end of the input.
    ///
    /// A last line without its newline is a torn message and is not handed out.
    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            if let Some(newline) = self.newline() {
                let line = self.start..newline;
                self.start = newline + 1;
                self.scanned = self.start;
                let wanted = !std::mem::take(&mut self.skipping) && line.len() <= self.limit;
                if !wanted || self.buffer[line.clone()].iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(&self.buffer[line]));
            }
            if self.skipping || self.end - self.start > self.limit {
                self.skipping = true;
                self.start = self.end;
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Where the first newline not yet handed out is.
    fn newline(&mut self) -> Option<usize> {
        match memchr::memchr(b'\n', &self.buffer[self.scanned..self.end]) {
            Some(offset) => {
                self.scanned += offset;
                Some(self.scanned)
            }
            None => {
                self.scanned = self.end;
                None
            }
        }
    }

    /// Reads once more; false at the end of the input.
    fn fill(&mut self) -> io::Result<bool> {
        self.make_room();
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    return Ok(count > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end, self.scanned) = (0, 0, 0);
            if self.buffer.len() > KEEP {
                self.buffer = vec![0; CHUNK];
            }
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.scanned -= self.start;
            self.start = 0;
        }
        if self.buffer.len() - self.end < CHUNK / 2 {
            let longer = (self.buffer.len() * 2).max(CHUNK);
            self.buffer.resize(longer, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Lines;
    use std::io::{self, Read};

    /// Hands out at most `piece` bytes per read.
    struct Pieces<'a> {
        rest: &'a [u8],
        piece: usize,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
            let count = self.piece.min(self.rest.len()).min(target.len());
            target[..count].copy_from_slice(&self.rest[..count]);
            self.rest = &self.rest[count..];
            Ok(count)
        }
    }

    fn all(bytes: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let mut lines = Lines::new(Pieces { rest: bytes, piece });
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            found.push(line.to_vec());
        }
        found
    }

    #[test]
    fn lines_are_the_same_however_the_reads_fall() {
        let long = "x".repeat(300_000);
        let input = format!("one\n\n  \r\ntwo {long}\nthree\ntorn");
        for piece in [1, 7, 4096, usize::MAX] {
            let found = all(input.as_bytes(), piece);
            let wanted = ["one".to_owned(), format!("two {long}"), "three".to_owned()];
            assert_eq!(found.len(), 3, "pieces of {piece}");
            assert!(found.iter().zip(&wanted).all(|(found, wanted)| found == wanted.as_bytes()));
        }
    }

    #[test]
    fn an_overlong_line_is_skipped_and_the_next_one_is_read() {
        let input = format!("{}\nafter\n{}\nlast\n", "x".repeat(200_000), "y".repeat(101));
        for piece in [1, 4096, usize::MAX] {
            let mut lines = Lines::with_limit(Pieces { rest: input.as_bytes(), piece }, 100);
            assert_eq!(lines.next().unwrap(), Some(&b"after"[..]));
            assert_eq!(lines.next().unwrap(), Some(&b"last"[..]));
            assert!(lines.buffer.len() <= 2 * super::CHUNK);
        }
    }

    #[test]
    fn has_next_tells_a_whole_line_from_a_part() {
        let mut lines = Lines::new(Pieces { rest: b"a\nb\nc", piece: usize::MAX });
        lines.next().unwrap();
        assert!(lines.has_next());
        lines.next().unwrap();
        assert!(!lines.has_next());
    }
}
