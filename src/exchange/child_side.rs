//! What a session does with what its child sends.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::config::Tools;
use crate::exchange::ask::{Ask, NotAdded, Via};
use crate::exchange::call::Call;
use crate::exchange::handshake::settled_revision;
use crate::exchange::in_band::Cause;
use crate::exchange::post::{Post, Reply};
use crate::exchange::route::{Candidate, Matter, Target, choose, owner};
use crate::exchange::session::{Phase, Session, State, outcome_of};
use crate::exchange::stream::Stream;
use crate::mcp::ids::Id;
use crate::mcp::message::{Kind, Message};
use crate::mcp::payload::Spliced;
use crate::mcp::revision::Revision;
use crate::mcp::stream_log::EventKind;
use crate::mcp::tool_list::without_tools;
use crate::telemetry::label::{Direction, Dropped, Notice, Outcome, Refusal, SessionEnd, Start};
use crate::upstream::participant::{Answer, Gone, Loss, Owner, Participant};

impl Participant for Session {
    fn answer(&self, call: u64, mut answer: Answer<'_>) {
        // The call's own events are noted before it ends.
        self.settle();
        let (taken, starting) = {
            let mut state = self.state();
            (state.calls.remove(&call), state.phase == Phase::Starting)
        };
        if let Some(place) = self.link.place() {
            // Before the client can ask for it.
            if !self.note_task(place, call, taken.as_ref(), answer) {
                answer = Answer::Lost(Loss::BadLine);
            }
            place.child().end_turn(call);
        }
        let Some(taken) = taken else { return };
        if starting {
            self.answer_handshake(taken, answer);
            return;
        }
        let tools = taken.tools.clone();
        self.conclude(taken, |id| reply_of(id, answer, tools.as_deref()));
    }

    fn request(&self, message: &Message) {
        if !self.introduction.admits(message.method()) {
            self.refuse(message, -32601, "the client did not declare this capability");
            return;
        }
        let held = {
            let mut state = self.state();
            let early = matches!(state.phase, Phase::Starting | Phase::Answered);
            early.then(|| state.early.hold(message, &self.terms.budget))
        };
        match held {
            None => self.ask(message),
            Some(Ok(())) => {}
            Some(Err(reason)) => {
                self.terms.metrics.refused(reason);
                self.refuse(message, -32603, "too many requests before the client is initialized");
            }
        }
    }

    fn notification(&self, message: &Message, owner: Option<&Owner>) {
        if let Some(Owner { call, token }) = owner {
            self.progress(message, *call, token);
            return;
        }
        if message.calls("notifications/cancelled") {
            self.withdraw(message);
            return;
        }
        self.terms.metrics.notification(Direction::ToClient, Notice::of(message.method()));
        self.pass_on(message);
    }

    fn settle(&self) {
        let quiet = self.quiet().take();
        if let Some(quiet) = quiet {
            self.announce(quiet);
        }
    }

    fn gone(&self, _gone: Gone) {
        self.end(SessionEnd::ChildGone);
    }

    fn takes_batches(&self) -> bool {
        self.revision().is_some_and(Revision::has_batches)
    }

    fn congestion(&self) -> Option<watch::Receiver<bool>> {
        self.congestion.wait()
    }
}

/// What a call is answered with; `tools` are those that a list may name, if it is one some are hidden from.
fn reply_of(id: &Id, answer: Answer<'_>, tools: Option<&Tools>) -> Reply {
    match answer {
        Answer::Message(message) => Reply {
            outcome: outcome_of(message),
            rpc_code: message.error_code(),
            payload: match tools {
                Some(tools) => without_tools(message, id, |name| !tools.admits(name)),
                None => message.with_id(id),
            },
            trouble: None,
            permit: None,
        },
        Answer::Lost(Loss::ChildGone { sent }) => Cause::ChildGone { sent }.reply(id),
        Answer::Lost(Loss::TooLarge) => Cause::TooLarge.reply(id),
        Answer::Lost(Loss::BadLine) => Cause::BadChildLine.reply(id),
    }
}

/// The stream that was appended to and not told yet: one, since children write their lines in runs.
pub(super) struct Quiet {
    stream: Arc<Stream>,
    /// The call whose progress it is.
    call: Option<u64>,
    /// Progress after the first, not yet noted at the call.
    events: u64,
}

/// A POST as a routing candidate: by address, since that is what makes it the same.
type Way = (u64, Arc<Post>);

impl Session {
    /// The child's answer to `initialize`. A session exists only after a good one.
    fn answer_handshake(&self, call: Call, answer: Answer) {
        let revision = match &answer {
            Answer::Message(message) if message.kind() == Kind::Result => settled_revision(message),
            _ => None,
        };
        let refused =
            matches!(&answer, Answer::Message(message) if message.kind() == Kind::Result) && revision.is_none();
        if let Some(revision) = revision {
            self.admit(revision, call.account.peer());
        }
        let how = match &answer {
            Answer::Message(_) => Start::Ok,
            Answer::Lost(Loss::ChildGone { .. }) => Start::Exited,
            Answer::Lost(Loss::BadLine | Loss::TooLarge) => Start::Protocol,
        };
        (self.terms.handshakes)(how, call.account.child_time());
        let post = Arc::clone(&call.post);
        let is_given =
            self.conclude(call, |id| if refused { Cause::BadRevision.reply(id) } else { reply_of(id, answer, None) });
        // Whoever left before the answer, or was given another one, never learned the id.
        if revision.is_none() || !is_given || post.is_lost() {
            self.end(if revision.is_none() { SessionEnd::ChildGone } else { SessionEnd::Uninitialized });
        }
    }

    /// Passes a notification on that names no request.
    pub(super) fn pass_on(&self, message: &Message) {
        let payload = message.unchanged();
        let kind = if Notice::of(message.method()) == Notice::Log { EventKind::Log } else { EventKind::Notification };
        match self.target(Matter::Notification, message).0 {
            Target::Post((_, post)) if self.push(&post, kind.clone(), &payload) => {}
            _ => self.push_standalone(kind, &payload),
        }
    }

    fn progress(&self, message: &Message, number: u64, token: &Id) {
        self.terms.metrics.notification(Direction::ToClient, Notice::Progress);
        let spliced = message.with_progress_of(token);
        if let Some(quiet) = self.quiet().as_mut().filter(|quiet| quiet.call == Some(number)) {
            quiet.stream.push_quietly(EventKind::Progress(number), &spliced);
            quiet.events += 1;
            return;
        }
        let post = {
            let mut state = self.state();
            let Some(call) = state.calls.get_mut(&number) else {
                self.terms.metrics.notification_dropped(Dropped::NoRequest);
                return;
            };
            call.progressed(1, Instant::now());
            Arc::clone(&call.post)
        };
        match post.push_quietly(EventKind::Progress(number), &spliced, || self.open_stream()) {
            Some(stream) => self.announce_later(stream, Some(number)),
            None => self.terms.metrics.notification_dropped(Dropped::NoStream),
        }
    }

    /// Sends something on a POST's stream, which it becomes if it is none yet.
    pub(super) fn push(&self, post: &Post, kind: EventKind, message: &Spliced<'_>) -> bool {
        let stream = post.push_quietly(kind, message, || self.open_stream());
        let delivered = stream.is_some();
        if let Some(stream) = stream {
            self.announce_later(stream, None);
        }
        delivered
    }

    pub(super) fn push_standalone(&self, kind: EventKind, message: &Spliced<'_>) {
        self.standalone.push_quietly(kind, message);
        self.announce_later(Arc::clone(&self.standalone), None);
    }

    /// Remembers the one stream that is to be told; another one that was is told now.
    fn announce_later(&self, stream: Arc<Stream>, call: Option<u64>) {
        let before = {
            let mut quiet = self.quiet();
            if quiet.as_ref().is_some_and(|quiet| quiet.call == call && Arc::ptr_eq(&quiet.stream, &stream)) {
                return;
            }
            quiet.replace(Quiet { stream, call, events: 0 })
        };
        if let Some(before) = before {
            self.announce(before);
        }
    }

    /// Tells a stream's reader, and winds the clock of the call that made progress.
    fn announce(&self, quiet: Quiet) {
        if let Some(number) = quiet.call.filter(|_| quiet.events > 0)
            && let Some(call) = self.state().calls.get_mut(&number)
        {
            call.progressed(quiet.events, Instant::now());
        }
        quiet.stream.announce();
    }

    fn quiet(&self) -> MutexGuard<'_, Option<Quiet>> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a request of the child's, for which the client declared itself, on to it.
    pub(super) fn ask(&self, message: &Message) {
        let Some(id) = message.id() else { return };
        let (target, owner) = self.target(Matter::Request, message);
        let via = match &target {
            Target::Post((number, _)) => Via::Post(*number),
            Target::Standalone => Via::Standalone,
        };
        let ask = Ask::new(id, message.method(), via, Instant::now());
        let receipt = ask.receipt.clone();
        let added = {
            let State { asks, calls, .. } = &mut *self.state();
            let is_held = |call: &Call| owner.as_ref().is_none_or(|owner| Arc::ptr_eq(owner, &call.post));
            asks.add(ask, calls, is_held)
        };
        self.next_look.ask();
        match added {
            Ok(()) => {}
            Err(NotAdded::Duplicate) => {
                self.refuse(message, -32600, "a request with this id is open already");
                return;
            }
            Err(NotAdded::Full) => {
                self.terms.metrics.refused(Refusal::Overload);
                self.refuse(message, -32603, "too many requests await the client's answer");
                return;
            }
        }
        let payload = message.unchanged();
        match target {
            Target::Post((_, post)) if self.push(&post, EventKind::Request(receipt.clone()), &payload) => {}
            _ => self.push_standalone(EventKind::Request(receipt), &payload),
        }
    }

    fn refuse(&self, message: &Message, code: i32, text: &'static str) {
        if let (Some(id), Some(conversation)) = (message.id(), self.link.conversation()) {
            conversation.refuse(&id, code, text);
            self.accounts().asked(&id, message.method(), self, Duration::ZERO, Outcome::Refused);
        }
    }

    /// The child takes a request of its own back.
    fn withdraw(&self, message: &Message) {
        self.terms.metrics.notification(Direction::ToClient, Notice::Cancelled);
        let Some(id) = message.id_at(message.fields().request_id) else {
            self.terms.metrics.notification_dropped(Dropped::Invalid);
            return;
        };
        // What the client was never asked needs no cancellation.
        self.state().early.withdraw(&id);
        let Some(ask) = self.take_ask(&id) else {
            self.terms.metrics.notification_dropped(Dropped::NoRequest);
            return;
        };
        self.accounts().asked(&ask.id, &ask.method, self, ask.since.elapsed(), Outcome::Cancelled);
        self.send_via(&ask.via, EventKind::Notification, &message.unchanged());
    }

    /// Sends something the way a request went before.
    pub(super) fn send_via(&self, via: &Via, kind: EventKind, payload: &Spliced<'_>) {
        let post = match via {
            Via::Post(number) => self.state().calls.get(number).map(|call| Arc::clone(&call.post)),
            Via::Standalone => None,
        };
        match post {
            Some(post) if self.push(&post, kind.clone(), payload) => {}
            _ => self.push_standalone(kind, payload),
        }
    }

    /// The way for a message of the child's own, and the POST it is certainly for. The POSTs are
    /// looked at outside the session's lock.
    fn target(&self, matter: Matter, message: &Message) -> (Target<Way>, Option<Arc<Post>>) {
        let fields = message.fields();
        // A status names its task where other messages name what they are about.
        let of_status = message.calls("notifications/tasks/status").then_some(fields.task_id).flatten();
        let task = message.string(fields.related_task.or(of_status));
        let (mut ways, named) = {
            let state = self.state();
            let named = task.and_then(|task| {
                state
                    .calls
                    .iter()
                    .find(|(_, call)| call.task.as_deref() == Some(&*task))
                    .map(|(number, call)| (*number, Arc::clone(&call.post)))
            });
            let ways: Vec<Way> = state.calls.iter().map(|(number, call)| (*number, Arc::clone(&call.post))).collect();
            (ways, named)
        };
        ways.sort_by_key(|(number, _)| *number);
        ways.dedup_by(|(_, later), (_, earlier)| Arc::ptr_eq(later, earlier));
        let candidate = |way: &Way| Candidate { post: way.0, can_stream: way.1.can_stream() };
        let candidates: Vec<Candidate<u64>> = ways.iter().map(candidate).collect();
        let named_candidate = named.as_ref().map(candidate);
        let owner = owner(named_candidate, &candidates);
        let target = choose(matter, named_candidate, &candidates, self.standalone.is_read());
        let way = |number: u64| named.iter().chain(&ways).find(|(known, _)| *known == number).cloned();
        let target = match target {
            Target::Standalone => Target::Standalone,
            Target::Post(number) => way(number).map_or(Target::Standalone, Target::Post),
        };
        (target, owner.and_then(way).map(|(_, post)| post))
    }
}
