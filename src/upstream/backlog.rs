//! The lines that wait for a child's stdin, one behind the other in one piece of memory.

use std::collections::VecDeque;

/// Memory that grew past this is not kept once it is empty.
const KEPT: usize = 64 * 1024;

/// Lines of which at most the first has been written in part.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Every line, those that were written included, up to `start`.
    bytes: Vec<u8>,
    start: usize,
    lines: VecDeque<Queued>,
    /// Bytes of the first line that were written.
    begun: usize,
}

#[derive(Debug)]
struct Queued {
    /// The request it carries, so that a cancellation finds it while it waits.
    call: Option<u64>,
    length: usize,
}

impl Backlog {
    /// Lines that are not written whole.
    pub(super) fn lines(&self) -> usize {
        self.lines.len()
    }

    /// What is not written.
    pub(super) fn unwritten(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Appends the one line that `write` appends, and gives its length.
    pub(super) fn push(&mut self, call: Option<u64>, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        if self.start > KEPT && self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        let before = self.bytes.len();
        write(&mut self.bytes);
        let length = self.bytes.len() - before;
        self.lines.push_back(Queued { call, length });
        length
    }

    /// Whether a part of the newest line was written.
    pub(super) fn newest_has_begun(&self) -> bool {
        self.lines.len() == 1 && self.begun > 0
    }

    /// Forgets the newest line, of which nothing was written.
    pub(super) fn take_newest(&mut self) {
        if let Some(newest) = self.lines.pop_back() {
            self.bytes.truncate(self.bytes.len() - newest.length);
            self.reuse_if_empty();
        }
    }

    /// Notes that so many bytes more were written, and gives the number of lines that are whole now.
    pub(super) fn note_written(&mut self, bytes: usize) -> usize {
        self.start += bytes;
        self.begun += bytes;
        let before = self.lines.len();
        while let Some(first) = self.lines.front().filter(|first| first.length <= self.begun) {
            self.begun -= first.length;
            self.lines.pop_front();
        }
        self.reuse_if_empty();
        before - self.lines.len()
    }

    /// Takes a request back of which nothing was written; gives the length of its line.
    pub(super) fn take_back(&mut self, call: u64) -> Option<usize> {
        let at = self.lines.iter().position(|line| line.call == Some(call))?;
        if at == 0 && self.begun > 0 {
            return None;
        }
        let start = self.start - self.begun + self.lines.range(..at).map(|line| line.length).sum::<usize>();
        let length = self.lines.remove(at)?.length;
        self.bytes.drain(start..start + length);
        self.reuse_if_empty();
        Some(length)
    }

    /// Forgets everything, and gives the requests of which nothing was written.
    pub(super) fn clear(&mut self) -> Vec<u64> {
        let begun = usize::from(self.begun > 0);
        let unsent = self.lines.iter().skip(begun).filter_map(|line| line.call).collect();
        *self = Backlog::default();
        unsent
    }

    fn reuse_if_empty(&mut self) {
        if !self.lines.is_empty() {
            return;
        }
        (self.start, self.begun) = (0, 0);
        if self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        } else {
            self.bytes.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::{any, prop, proptest};

    use super::Backlog;

    proptest! {
        /// Whatever is pushed, written in pieces and taken back, what leaves are whole lines in order, and nothing of
        /// what was taken back.
        #[test]
        fn whole_lines_leave_in_order(steps in prop::collection::vec((any::<u8>(), any::<u16>()), 1..200)) {
            let mut backlog = Backlog::default();
            let mut model: VecDeque<(u64, String)> = VecDeque::new();
            let (mut left, mut expected) = (Vec::new(), String::new());
            for (number, (step, size)) in (0u64..).zip(steps) {
                match step % 4 {
                    0 | 1 => {
                        let line = format!("{number}:{}\n", "x".repeat(usize::from(size) % 3000));
                        assert_eq!(backlog.push(Some(number), |out| out.extend_from_slice(line.as_bytes())), line.len());
                        model.push_back((number, line));
                        if step % 32 == 0 && !backlog.newest_has_begun() {
                            backlog.take_newest();
                            model.pop_back();
                        }
                    }
                    2 => {
                        let bytes = usize::from(size).min(backlog.unwritten().len());
                        left.extend_from_slice(&backlog.unwritten()[..bytes]);
                        let whole = backlog.note_written(bytes);
                        expected.extend(model.drain(..whole).map(|(_, line)| line));
                    }
                    _ if model.is_empty() => assert_eq!(backlog.take_back(u64::from(size)), None),
                    _ => {
                        let at = usize::from(size) % model.len();
                        match backlog.take_back(model[at].0) {
                            Some(length) => assert_eq!(length, model.remove(at).expect("it is there").1.len()),
                            None => assert_eq!(at, 0, "only the first can have begun"),
                        }
                    }
                }
                assert_eq!(backlog.lines(), model.len());
            }
            left.extend_from_slice(backlog.unwritten());
            let begun = left.len() > expected.len() + model.iter().map(|(_, line)| line.len()).sum::<usize>()
                - backlog.unwritten().len() && backlog.begun > 0;
            let unsent: Vec<u64> = model.iter().skip(usize::from(begun)).map(|(number, _)| *number).collect();
            expected.extend(model.into_iter().map(|(_, line)| line));
            assert_eq!(String::from_utf8(left).expect("text"), expected);
            assert_eq!(backlog.clear(), unsent);
        }
    }
}
