//! The dialogue with one child over its pipes: whose id is whose, and what came back for whom.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::JoinSet;
use tracing::warn;

use crate::budget::Budget;
use crate::config::Queue;
use crate::mcp::call_map::CallMap;
use crate::mcp::ids::{Id, put_u64};
use crate::mcp::message::{Fault, FaultKind, Kind, Message, Remains, remains_of};
use crate::mcp::scan::Author;
use crate::telemetry::label::{BadLine, ChildExit, Dropped, Unmatched};
use crate::telemetry::{KnownSecrets, ServerMetrics, child_text};
use crate::upstream::Exit;
use crate::upstream::Line;
use crate::upstream::lease::Lease;
use crate::upstream::outbound::{NotSent, Outbound, Sender};
use crate::upstream::participant::{Answer, Gone, Loss, Owner, Participant};
use crate::upstream::reading::{Audience, EXIT_WAIT, Pauses, Progress, Reading};
use crate::upstream::token_bucket::TokenBucket;

#[cfg(test)]
mod tests;

/// What a conversation is built with.
#[derive(Clone)]
pub struct Terms {
    /// The server's name, for logs.
    pub server: Arc<str>,
    /// Bounds of the way to the child.
    pub queue: Queue,
    /// Bytes of one line of the child.
    pub line_bytes: usize,
    /// The memory budget.
    pub budget: Arc<Budget>,
    /// The server's numbers.
    pub metrics: Arc<ServerMetrics>,
    /// The next child-side id, for all children of the server: an id is never used twice, so that
    /// an answer can reach no other request, whichever child it comes from.
    pub next_id: Arc<AtomicU64>,
    /// How long a child that let a call time out may answer nothing, a ping included.
    pub hang_after: Duration,
}

/// Characters logged of a line that is no message.
const BAD_LINE_CHARACTERS: usize = 256;

/// Bad lines logged at once; from then on one a second. All are counted.
const BAD_LINES_AT_ONCE: u32 = 20;

/// How long a child that let a call time out may take to answer a ping, where nobody else waits for it.
pub const PING_WAIT: Duration = Duration::from_secs(30);

struct Waiting {
    who: Arc<dyn Participant>,
    /// The progress token its owner gave, if any.
    token: Option<Id>,
}

#[derive(Default)]
struct Inflight {
    calls: CallMap<Waiting>,
    /// The ping that must be answered by then, if one is out.
    ping: Option<u64>,
    /// A call was answered since that ping.
    lives: bool,
    gone: Option<Gone>,
}

/// One conversation. Dropping the last handle closes it.
pub struct Conversation {
    terms: Terms,
    pid: u32,
    outbound: Arc<Outbound>,
    inflight: Mutex<Inflight>,
    pauses: Arc<Pauses>,
    participant: Weak<dyn Participant>,
    /// The first line that was no message, for whoever explains a failed start.
    first_bad_line: OnceLock<String>,
    /// What a child was given is left out of what is logged of its lines.
    known_secrets: KnownSecrets,
    /// A child that writes its log to stdout must not fill ours.
    bad_lines_logged: Mutex<TokenBucket>,
    running: Mutex<Option<Running>>,
}

/// What lives as long as the conversation does; tasks end before the lease goes back.
struct Running {
    tasks: JoinSet<()>,
    lease: Lease,
}

impl Conversation {
    /// Starts talking to a leased child. `None` if its pipes were taken before.
    #[must_use]
    pub fn start(mut lease: Lease, terms: Terms, participant: Weak<dyn Participant>) -> Option<Arc<Conversation>> {
        let (stdin, stdout) = lease.take_pipes()?;
        let outbound =
            Arc::new(Outbound::new(stdin, terms.queue.clone(), Arc::clone(&terms.budget), Arc::clone(&terms.metrics)));
        let conversation = Arc::new(Conversation {
            pid: lease.pid(),
            outbound: Arc::clone(&outbound),
            inflight: Mutex::default(),
            pauses: Arc::default(),
            participant,
            first_bad_line: OnceLock::new(),
            known_secrets: lease.known_secrets(),
            bad_lines_logged: Mutex::new(TokenBucket::new(1, BAD_LINES_AT_ONCE, Instant::now())),
            running: Mutex::new(None),
            terms,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(write(Arc::downgrade(&conversation), outbound));
        tasks.spawn(Reading::new(&conversation, stdout, lease.exit()).run());
        *conversation.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running { tasks, lease });
        Some(conversation)
    }

    fn inflight(&self) -> MutexGuard<'_, Inflight> {
        // Every critical section leaves the map whole, so a panic elsewhere does not spoil it.
        self.inflight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The child's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether nothing was answered since this ping. One that was overtaken by answers is waited for no longer.
    fn still_awaits(&self, ping: u64) -> bool {
        let mut inflight = self.inflight();
        let awaited = inflight.ping == Some(ping);
        if awaited && inflight.lives {
            inflight.ping = None;
        }
        awaited && !inflight.lives
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.inflight().gone.is_some()
    }

    /// Calls in flight.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.inflight().calls.len()
    }

    /// A fresh child-side id. Whoever asks registers it before [`Conversation::request`].
    #[must_use]
    pub fn reserve(&self) -> u64 {
        self.terms.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request under a reserved id; `who` gets exactly one answer.
    ///
    /// # Errors
    /// When it was not sent; then there is no answer, and the child saw nothing.
    pub fn request(&self, call: u64, who: Arc<dyn Participant>, message: &Message) -> Result<(), NotSent> {
        let token = message.id_at(message.fields().token);
        let alone = {
            let mut inflight = self.inflight();
            if inflight.gone.is_some() {
                return Err(NotSent::Closed);
            }
            inflight.calls.insert(call, Waiting { who, token });
            inflight.calls.len() == 1
        };
        let sent = self.outbound.send(Sender::Client, Some(call), alone, |line| message.write_request(call, line));
        // If the child went in between, the call is answered by `end` and counts as sent.
        if sent.is_err() && self.inflight().calls.remove(&call).is_none() {
            return Ok(());
        }
        sent
    }

    /// Passes a client's notification on.
    ///
    /// # Errors
    /// When it was not sent.
    pub fn notify(&self, message: &Message) -> Result<(), NotSent> {
        self.outbound.send(Sender::Client, None, true, |line| message.write_notification(None, line))
    }

    /// Passes a client's answer to a request of the child's on.
    ///
    /// # Errors
    /// When it was not sent; the child then got an error for it, or will never read again.
    pub fn respond(&self, id: &Id, message: &Message) -> Result<(), NotSent> {
        let sent = self.outbound.send(Sender::Answer, None, true, |line| message.write_response(id, line));
        if sent.is_err() {
            self.refuse(id, -32603, "the client's answer could not be queued");
        }
        sent
    }

    /// Answers a request of the child's with an error. `text` is ours and needs no escaping.
    pub fn refuse(&self, id: &Id, code: i32, text: &'static str) {
        let _closed = self.outbound.send(Sender::Gateway, None, true, |line| {
            line.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
            line.extend_from_slice(id.raw());
            line.extend_from_slice(format!(",\"error\":{{\"code\":{code},\"message\":\"{text}\"}}}}\n").as_bytes());
        });
    }

    /// Sends `notifications/initialized`.
    pub fn confirm_initialized(&self) {
        let _closed = self.outbound.send(Sender::Gateway, None, true, |line| {
            line.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
        });
    }

    /// Ends the wait for a call: takes it back if it is still queued, else tells the child, with
    /// the client's own notification where there is one. An answer that comes later is dropped.
    /// Tells whether the child may have seen the call.
    #[must_use]
    pub fn cancel(&self, call: u64, notification: Option<&Message>, reason: &'static str) -> bool {
        if self.inflight().calls.remove(&call).is_none() {
            return true;
        }
        if self.outbound.take_back(call) {
            return false;
        }
        let _closed = self.outbound.send(Sender::Gateway, None, true, |line| match notification {
            Some(message) => message.write_notification(Some(call), line),
            None => {
                line.extend_from_slice(
                    b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":",
                );
                put_u64(line, call);
                line.extend_from_slice(format!(",\"reason\":\"{reason}\"}}}}\n").as_bytes());
            }
        });
        true
    }

    /// Ends the wait for a call, which the child goes on with: `heir` gets its answer. Takes it back if it is still queued.
    /// Tells whether the child may have seen the call.
    #[must_use]
    pub fn hand_over(&self, call: u64, heir: Arc<dyn Participant>) -> bool {
        let before = {
            let mut inflight = self.inflight();
            // One that is not there is being answered.
            let Some(waiting) = inflight.calls.get_mut(&call) else { return true };
            std::mem::replace(&mut waiting.who, heir)
        };
        // Not under the lock: whose last handle it is may have much to end.
        drop(before);
        let is_unsent = self.outbound.take_back(call);
        if is_unsent {
            self.inflight().calls.remove(&call);
        }
        !is_unsent
    }

    /// After a call timed out: asks whether anybody is still there, and ends a child that is not.
    pub fn check_alive(self: &Arc<Self>) {
        let ping = self.reserve();
        {
            let mut inflight = self.inflight();
            if inflight.ping.is_some() || inflight.gone.is_some() {
                return;
            }
            inflight.ping = Some(ping);
            inflight.lives = false;
        }
        let sent = self.outbound.send(Sender::Gateway, None, true, |line| {
            line.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
            put_u64(line, ping);
            line.extend_from_slice(b",\"method\":\"ping\"}\n");
        });
        if sent.is_err() {
            self.inflight().ping = None;
            return;
        }
        let weak = Arc::downgrade(self);
        if let Some(running) = self.running().as_mut() {
            while running.tasks.try_join_next().is_some() {}
            running.tasks.spawn(give_up_unless_answered(weak, ping));
        }
    }

    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// When the child is not read, for our own reasons.
    pub(super) fn pauses(&self) -> &Arc<Pauses> {
        &self.pauses
    }

    /// The first line that was no message, cut; text of the child's, for the operator only.
    #[must_use]
    pub fn first_bad_line(&self) -> Option<&str> {
        self.first_bad_line.get().map(String::as_str)
    }

    /// How the child ended, once it does, within `patience`.
    pub async fn wait_for_exit(&self, patience: Duration) -> Option<Exit> {
        let mut exit = self.running().as_ref().map(|running| running.lease.exit())?;
        let ended = tokio::time::timeout(patience, exit.wait_for(Option::is_some)).await;
        ended.ok()?.ok()?.clone()
    }

    /// The child's last lines on stderr so far.
    #[must_use]
    pub fn last_lines(&self) -> Arc<[String]> {
        self.running().as_ref().map_or_else(|| Arc::from([]), |running| running.lease.last_lines())
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the conversation from our side: nothing more is written, read or delivered, and the
    /// lease goes back.
    pub fn close(&self) {
        self.outbound.close();
        let waiting = {
            let mut inflight = self.inflight();
            inflight.gone.get_or_insert(Gone::Closed);
            std::mem::take(&mut inflight.calls)
        };
        drop(waiting);
        drop(self.running().take());
    }

    /// As [`Conversation::close`], with a child that is too old or has served enough.
    pub fn recycle(&self) {
        if let Some(running) = self.running().as_mut() {
            running.lease.blame(ChildExit::Recycled);
        }
        self.close();
    }

    /// The child is gone: answers what is in flight, then tells the participant, once.
    pub(super) fn end(&self, gone: Gone) {
        self.outbound.close();
        let waiting = {
            let mut inflight = self.inflight();
            if inflight.gone.is_some() {
                return;
            }
            inflight.gone = Some(gone);
            std::mem::take(&mut inflight.calls)
        };
        let blame = match gone {
            Gone::Hung => Some(ChildExit::Hang),
            Gone::Protocol => Some(ChildExit::Protocol),
            Gone::Exited | Gone::Closed => None,
        };
        if let (Some(blame), Some(running)) = (blame, self.running().as_mut()) {
            running.lease.blame(blame);
        }
        let unsent = self.outbound.take_unsent();
        for (call, waiting) in waiting {
            waiting.who.answer(call, Answer::Lost(Loss::ChildGone { sent: !unsent.contains(&call) }));
        }
        if let Some(participant) = self.participant() {
            participant.gone(gone);
        }
    }

    pub(super) fn participant(&self) -> Option<Arc<dyn Participant>> {
        self.participant.upgrade()
    }

    /// What the child wrote, for the participant that was looked up for the whole read.
    pub(super) fn take_line(&self, line: Line, audience: &mut Audience<'_>) {
        match line {
            Line::Whole(text) => self.take_text(text, audience),
            Line::TooLong { head, .. } => self.take_too_long(&head),
            Line::Torn { .. } => self.bad_line(BadLine::Torn, &[]),
        }
    }

    fn take_text(&self, text: Bytes, audience: &mut Audience<'_>) {
        match Message::parse_next(text, &mut audience.beginning) {
            Ok(message) => self.take_message(&message, audience),
            Err(Fault { kind: FaultKind::Array, text, .. }) => self.take_batch(&text, audience),
            Err(fault) => self.take_fault(&fault, &fault.text),
        }
    }

    /// A child of 2025-03-26 may write batches (base protocol, Batching); for any other a batch is
    /// no message, and ends the calls it answers.
    fn take_batch(&self, text: &Bytes, audience: &mut Audience<'_>) {
        let parts = Message::parse_batch(text, Author::Child).unwrap_or_default();
        let is_welcome = audience.participant.is_some_and(Participant::takes_batches);
        if !is_welcome || parts.iter().all(Result::is_err) {
            self.bad_line(BadLine::NotMessage, text);
            let answers = parts.iter().flatten().filter(|part| matches!(part.kind(), Kind::Result | Kind::Error));
            for call in answers.filter_map(Message::numeric_id) {
                self.fail(call, Loss::BadLine);
            }
            return;
        }
        for part in parts {
            match part {
                Ok(message) => self.take_message(&message, audience),
                Err(fault) => self.take_fault(&fault, text),
            }
        }
    }

    fn take_message(&self, message: &Message, audience: &mut Audience<'_>) {
        match (message.kind(), audience.participant) {
            (Kind::Result | Kind::Error, _) => {
                audience.progress = None;
                self.take_answer(message);
            }
            (Kind::Request, _) if message.calls("ping") => self.answer_ping(message),
            (Kind::Request, Some(participant)) => participant.request(message),
            (Kind::Notification, Some(participant)) => self.take_notification(message, participant, audience),
            (Kind::Request | Kind::Notification, None) => {}
        }
    }

    fn take_answer(&self, message: &Message) {
        let call = message.numeric_id();
        let waiting = call.and_then(|call| {
            let mut inflight = self.inflight();
            if inflight.ping == Some(call) {
                inflight.ping = None;
                return Some(None);
            }
            let waiting = inflight.calls.remove(&call)?;
            inflight.lives = true;
            Some(Some(waiting))
        });
        match (call, waiting) {
            (Some(call), Some(Some(waiting))) => waiting.who.answer(call, Answer::Message(message)),
            (_, Some(None)) => {}
            _ => self.terms.metrics.unmatched(Unmatched::Child),
        }
    }

    fn answer_ping(&self, message: &Message) {
        let Some(id) = message.id() else { return };
        let _closed = self.outbound.send(Sender::Gateway, None, true, |line| {
            line.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
            line.extend_from_slice(id.raw());
            line.extend_from_slice(b",\"result\":{}}\n");
        });
    }

    fn take_notification(&self, message: &Message, participant: &dyn Participant, audience: &mut Audience<'_>) {
        if !message.calls("notifications/progress") {
            participant.notification(message, None);
            return;
        }
        let named = message.number_at(message.fields().progress_of);
        // A call reports in runs; it is in flight until its answer, which ends the run.
        if audience.progress.as_ref().is_none_or(|last| Some(last.owner.call) != named) {
            audience.progress = named.and_then(|call| self.progress_of(call, participant));
        }
        if !audience.hear_progress(message, participant)
            && !named.is_some_and(|call| participant.late_progress(message, call))
        {
            self.terms.metrics.notification_dropped(Dropped::NoRequest);
        }
    }

    /// Whose progress is reported under this number, if the call is in flight and asked for any.
    fn progress_of(&self, call: u64, participant: &dyn Participant) -> Option<Progress> {
        let inflight = self.inflight();
        let waiting = inflight.calls.get(&call)?;
        let owner = Owner { call, token: waiting.token.clone()? };
        let own = std::ptr::addr_eq(Arc::as_ptr(&waiting.who), std::ptr::from_ref(participant));
        Some(Progress { owner, who: (!own).then(|| Arc::clone(&waiting.who)) })
    }

    /// A line that is no message still ends the call it names.
    fn take_fault(&self, fault: &Fault, text: &[u8]) {
        let reason = match fault.kind {
            FaultKind::NotUtf8 => BadLine::NotUtf8,
            FaultKind::NotJson => BadLine::NotJson,
            FaultKind::TooDeep => BadLine::TooDeep,
            FaultKind::Duplicate => BadLine::Duplicate,
            FaultKind::Array | FaultKind::NotMessage | FaultKind::BadId => BadLine::NotMessage,
        };
        self.bad_line(reason, text);
        self.settle_bad(&Bytes::copy_from_slice(text), Loss::BadLine);
    }

    fn take_too_long(&self, head: &Bytes) {
        self.bad_line(BadLine::TooLong, head);
        if self.settle_bad(head, Loss::TooLarge) == Remains::Unknown {
            // Whose answer it was cannot be known before its end, which may never come.
            let calls: Vec<u64> = self.inflight().calls.keys().copied().collect();
            for call in calls {
                self.fail(call, Loss::TooLarge);
            }
        }
    }

    /// Ends what a bad line can be seen to concern: the call it answers, or the child's own request.
    fn settle_bad(&self, text: &Bytes, loss: Loss) -> Remains {
        let remains = remains_of(text);
        match &remains {
            Remains::Answer(id) => {
                if let Some(call) = id.as_u64() {
                    self.fail(call, loss);
                }
            }
            Remains::Request(id) => self.refuse(id, -32600, "the request is not valid or too long"),
            Remains::Said | Remains::Unknown => {}
        }
        remains
    }

    fn fail(&self, call: u64, loss: Loss) {
        let waiting = self.inflight().calls.remove(&call);
        if let Some(waiting) = waiting {
            waiting.who.answer(call, Answer::Lost(loss));
        }
    }

    fn bad_line(&self, reason: BadLine, text: &[u8]) {
        self.terms.metrics.bad_line(reason);
        let limit = &self.bad_lines_logged;
        if !limit.lock().unwrap_or_else(PoisonError::into_inner).take(1, Instant::now()) {
            return;
        }
        let shown = child_text(text, BAD_LINE_CHARACTERS, &self.known_secrets);
        self.first_bad_line.get_or_init(|| shown.clone());
        warn!(event = "child_bad_line", server = %self.terms.server, child_pid = self.pid, reason = reason.as_str(), line = %shown);
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.close();
    }
}

async fn write(conversation: Weak<Conversation>, outbound: Arc<Outbound>) {
    outbound.write_queued().await;
    // The child reads no more. What it wrote before, and how it ended, is the reader's to find.
    tokio::time::sleep(EXIT_WAIT).await;
    if let Some(conversation) = conversation.upgrade() {
        conversation.end(Gone::Closed);
    }
}

/// Ends a child that had all of [`Terms::hang_after`] to answer. While nobody reads what it writes it may
/// be stuck with its answer in hand, so the time begins anew after such a pause.
async fn give_up_unless_answered(conversation: Weak<Conversation>, ping: u64) {
    loop {
        let look = |conversation: Arc<Conversation>| (conversation.pauses.count(), conversation.terms.hang_after);
        let Some((before, patience)) = conversation.upgrade().map(look) else { return };
        tokio::time::sleep(patience).await;
        let Some(conversation) = conversation.upgrade() else { return };
        if !conversation.still_awaits(ping) {
            return;
        }
        if before % 2 == 0 && conversation.pauses.count() == before {
            return conversation.end(Gone::Hung);
        }
    }
}
