//! Reading what a child writes, line by line, to its end.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::mcp::beginning::Beginning;
use crate::mcp::message::Message;
use crate::telemetry::ServerMetrics;
use crate::telemetry::label::Direction;
use crate::upstream::Exit;
use crate::upstream::conversation::Conversation;
use crate::upstream::last_words::LastWords;
use crate::upstream::participant::{Gone, Owner, Participant};
use crate::upstream::wide_pipe::WidePipe;
use crate::upstream::{Line, LineSplitter};

/// Bytes of room for the first read after a pause; one that fills it is followed by larger ones.
const QUIET_ROOM: usize = 8 * 1024;

/// A line of which so many bytes are there, and more to come, is worth a wide pipe.
const WIDE_FROM: usize = 128 * 1024;

/// A line that has not ended after this many times its limit ends the child.
const RUNAWAY: usize = 4;

/// How long the end of a process may take to show after the end of its pipes: whoever reports it
/// should know how it ended.
pub(super) const EXIT_WAIT: Duration = Duration::from_millis(250);

/// How often reading stopped for a reader of ours, and went on: odd while it is stopped.
#[derive(Default)]
pub(super) struct Pauses(AtomicU64);

impl Pauses {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// While this lives the child is not read.
struct Pause(Arc<Pauses>);

impl Pause {
    fn begin(pauses: &Arc<Pauses>) -> Pause {
        pauses.0.fetch_add(1, Ordering::Relaxed);
        Pause(Arc::clone(pauses))
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the lines of one read have in common: whom they are for, the conversation's own participant and whoever else
/// heard something, and how they begin.
pub(super) struct Audience<'a> {
    pub(super) participant: Option<&'a dyn Participant>,
    others: Vec<Arc<dyn Participant>>,
    /// Whose progress the last line was.
    pub(super) progress: Option<Progress>,
    pub(super) beginning: Beginning,
}

/// A call in flight that reports progress.
pub(super) struct Progress {
    pub(super) owner: Owner,
    /// Who made it, if not the conversation's own participant.
    pub(super) who: Option<Arc<dyn Participant>>,
}

impl<'a> Audience<'a> {
    fn of(participant: Option<&'a dyn Participant>) -> Audience<'a> {
        Audience { participant, others: Vec::new(), progress: None, beginning: Beginning::default() }
    }

    /// Hands progress over to whose it is, and remembers who is to be told that the read is over. Lines come in runs, so
    /// that comparing with the last is enough; being told twice harms nobody.
    pub(super) fn hear_progress(&mut self, message: &Message, participant: &dyn Participant) -> bool {
        let Some(Progress { owner, who }) = &self.progress else { return false };
        match who {
            None => participant.notification(message, Some(owner)),
            Some(who) => {
                who.notification(message, Some(owner));
                if self.others.last().is_none_or(|last| !Arc::ptr_eq(last, who)) {
                    self.others.push(Arc::clone(who));
                }
            }
        }
        true
    }

    /// Lets everybody tell their readers.
    fn settle(self) {
        if let Some(participant) = self.participant {
            participant.settle();
        }
        for who in self.others {
            who.settle();
        }
    }
}

/// The reading end of one conversation.
pub(super) struct Reading {
    conversation: Weak<Conversation>,
    stdout: pipe::Receiver,
    exit: watch::Receiver<Option<Exit>>,
    metrics: Arc<ServerMetrics>,
    line_bytes: usize,
    splitter: LineSplitter,
    buffer: BytesMut,
    room: usize,
    /// Whether the last read took less than there was room for, so that the next one waits by itself.
    is_paused: bool,
    /// Bytes read since a line was given up as too long, until the next line.
    runaway: Option<usize>,
    last_words: LastWords,
    wide: Option<WidePipe>,
}

impl Reading {
    pub(super) fn new(
        conversation: &Arc<Conversation>,
        stdout: pipe::Receiver,
        exit: watch::Receiver<Option<Exit>>,
    ) -> Reading {
        let terms = conversation.terms();
        Reading {
            conversation: Arc::downgrade(conversation),
            stdout,
            exit,
            metrics: Arc::clone(&terms.metrics),
            line_bytes: terms.line_bytes,
            splitter: LineSplitter::new(terms.line_bytes),
            buffer: BytesMut::new(),
            room: QUIET_ROOM,
            is_paused: true,
            runaway: None,
            last_words: LastWords::default(),
            wide: None,
        }
    }

    /// Reads until the child has ended or must end, or nobody wants to know any more.
    pub(super) async fn run(mut self) {
        while self.take_lines().await {
            let Some(gone) = self.read().await else { continue };
            let Some(conversation) = self.conversation.upgrade() else { return };
            if let Some(line) = self.splitter.finish(&mut self.buffer) {
                let participant = conversation.participant();
                let mut audience = Audience::of(participant.as_deref());
                conversation.take_line(line, &mut audience);
                audience.settle();
            }
            return conversation.end(gone);
        }
    }

    /// Hands over every whole line there is. False if nobody wants them.
    async fn take_lines(&mut self) -> bool {
        let Some(line) = self.splitter.next(&mut self.buffer) else { return true };
        let Some(conversation) = self.conversation.upgrade() else { return false };
        let participant = conversation.participant();
        let mut audience = Audience::of(participant.as_deref());
        let mut next = Some(line);
        while let Some(line) = next {
            self.runaway = matches!(line, Line::TooLong { .. }).then_some(0);
            conversation.take_line(line, &mut audience);
            next = self.splitter.next(&mut self.buffer);
        }
        audience.settle();
        wait_for_room(conversation, participant).await;
        if !self.is_paused {
            // A child that never stops writing must not keep this thread from everybody else.
            tokio::task::yield_now().await;
        }
        true
    }

    /// Reads once what there is. Gives how the child ended, if it did.
    async fn read(&mut self) -> Option<Gone> {
        if self.runaway.is_some_and(|bytes| bytes > self.line_bytes.saturating_mul(RUNAWAY)) {
            return Some(Gone::Protocol);
        }
        if self.last_words.are_over(&self.stdout, &self.exit) {
            return Some(Gone::Exited);
        }
        if self.buffer.is_empty() {
            // A child that says nothing holds no memory: most do most of the time.
            self.buffer = BytesMut::new();
        }
        let wanted = if self.buffer.is_empty() { self.room } else { LineSplitter::READ_BYTES };
        let read = tokio::select! {
            biased;
            read = fill(&mut self.stdout, &mut self.buffer, wanted) => read,
            // Without its watcher a child's end is never told.
            ended = self.exit.wait_for(Option::is_some), if !self.last_words.have_begun() => {
                return ended.is_err().then_some(Gone::Closed);
            }
        };
        match read {
            Ok(0) | Err(_) => Some(self.after_its_pipe().await),
            Ok(bytes) => {
                self.metrics.pipe_bytes(Direction::ToClient, bytes);
                self.runaway = self.runaway.map(|before| before + bytes);
                self.last_words.read(bytes);
                self.is_paused = bytes < wanted;
                if self.buffer.len() > WIDE_FROM && self.wide.is_none() {
                    self.wide = WidePipe::widen(&self.stdout);
                }
                self.room = if self.is_paused { QUIET_ROOM } else { LineSplitter::READ_BYTES };
                None
            }
        }
    }

    /// What became of a child whose pipe has ended.
    async fn after_its_pipe(&mut self) -> Gone {
        let exited = timeout(EXIT_WAIT, self.exit.wait_for(Option::is_some)).await;
        if exited.is_ok() { Gone::Exited } else { Gone::Closed }
    }
}

/// Reads once what there is, into at least `room` bytes that are taken only when there is something. Dropped before it
/// is ready it has read nothing.
async fn fill(stdout: &mut pipe::Receiver, buffer: &mut BytesMut, room: usize) -> io::Result<usize> {
    stdout.readable().await?;
    buffer.reserve(room);
    // Unlike `try_read_buf` this takes a short read to mean that the pipe is empty, and saves asking it again.
    stdout.read_buf(buffer).await
}

/// Stops reading while one of them is too far behind.
async fn wait_for_room(conversation: Arc<Conversation>, participant: Option<Arc<dyn Participant>>) {
    let Some(participant) = participant else { return };
    let Some(mut congestion) = participant.congestion() else { return };
    let pause = Pause::begin(conversation.pauses());
    drop((conversation, participant));
    let _ended = congestion.wait_for(|congested| !congested).await;
    drop(pause);
}
