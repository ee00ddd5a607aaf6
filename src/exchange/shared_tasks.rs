//! The tasks of the sessions on one shared child: what each may ask for, and what each hears (2025-11-25 tasks).

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tracing::warn;

use crate::exchange::call::{Call, Errand, Query};
use crate::exchange::gateway_error::INVALID_PARAMS;
use crate::exchange::session::Session;
use crate::exchange::shared_child::{Place, SharedChild};
use crate::exchange::tasks::Report;
use crate::mcp::message::{Kind, Message};
use crate::mcp::payload::Spliced;
use crate::mcp::stream_log::EventKind;
use crate::telemetry::label::{Direction, Dropped, Notice};
use crate::upstream::conversation::Conversation;
use crate::upstream::participant::{Answer, Participant};

impl SharedChild {
    /// Whether a session may have one more task.
    pub(super) fn has_room_for_task(&self, session: u64) -> bool {
        self.state().tasks.has_room(session, Instant::now())
    }

    /// A session makes a call that asks to become a task.
    pub(super) fn expect_task(&self, session: u64, call: u64, message: &Message) {
        let token = message.id_at(message.fields().token);
        self.state().tasks.expect(session, call, token);
    }

    /// It could not.
    pub(super) fn expect_no_task(&self, call: u64) {
        self.state().tasks.expect_no_more(call);
    }

    /// Whether this task is this session's.
    pub(super) fn owns_task(&self, session: u64, task: &str) -> bool {
        self.state().tasks.owns(session, task, Instant::now())
    }

    /// Waits in a session's place for the answer to a call that may become a task: only then can it be cancelled, which a
    /// notification does not (2025-11-25 cancellation, Behavior Requirements). Tells whether the child may have seen it.
    pub(super) fn adopt(self: &Arc<Self>, conversation: &Conversation, call: u64) -> bool {
        self.await_unheard(conversation, call);
        let heir: Arc<dyn Participant> = Arc::<SharedChild>::clone(self);
        let sent = conversation.hand_over(call, heir);
        if !sent {
            let mut state = self.state();
            state.tasks.expect_no_more(call);
            state.told.retain(|told| *told != call);
        }
        sent
    }

    /// The answer to a call that may have become a task is there; nobody has that task unless the session `is_waiting`.
    /// Tells whether its session can be given that answer: what nobody could ask for again is cancelled at once.
    pub(super) fn note_new_task(self: &Arc<Self>, call: u64, answer: Answer<'_>, is_waiting: bool) -> bool {
        let is_good = {
            let mut state = self.state();
            if !state.tasks.expects(call) {
                return true;
            }
            let Some(report) = result_of(answer).and_then(Report::created) else {
                state.tasks.expect_no_more(call);
                return true;
            };
            let state = &mut *state;
            let is_gone = |session| !is_waiting || !state.members.has(session);
            state.tasks.begin(call, &report, is_gone, Instant::now())
        };
        if !is_good {
            warn!(
                event = "warning", server = %self.parts.server,
                warning = "the id of a task is too long, or that of another caller's task: the task is cancelled"
            );
        }
        self.cancel_ownerless();
        is_good
    }

    /// The child answered a question about a task.
    fn note_query(&self, query: Query, task: &str, answer: Answer<'_>) {
        let mut state = self.state();
        match (query, result_of(answer)) {
            (Query::State | Query::Cancel, Some(result)) => {
                if let Some(report) = Report::read(result).filter(|report| report.id() == task) {
                    state.tasks.note(&report);
                }
            }
            (Query::Result, Some(_)) => state.tasks.end(task),
            // There is none any more, or there is nothing left to cancel (tasks, Protocol Errors).
            (Query::State, None) if is_invalid(answer) => state.tasks.forget(task),
            (Query::Cancel, None) if is_invalid(answer) => state.tasks.end(task),
            // The call behind the task may have failed with any code.
            (_, None) => {}
        }
    }

    /// Tells the child to cancel the tasks that nobody owns; those it cannot be told of now come next time.
    pub fn cancel_ownerless(self: &Arc<Self>) {
        loop {
            let next = self.state().tasks.next_ownerless();
            let Some(task) = next else { return };
            let can = self.greeting().is_some_and(|greeting| greeting.cancels_tasks());
            if can && !self.tell_child("tasks/cancel", &json!({ "taskId": task })) {
                return self.state().tasks.not_told(task);
            }
        }
    }

    /// How a task is concerns its owner alone.
    pub(super) fn tell_owner(&self, message: &Message) {
        let params = message.fields().params.map(|params| params.of(message.text()));
        let report = params.and_then(Report::read);
        let owner = report.as_ref().and_then(|report| {
            let mut state = self.state();
            let session = state.tasks.note(report)?;
            state.members.get(session)
        });
        match (report, owner) {
            (Some(report), Some(session)) => {
                session.hear_of_task(report.id(), EventKind::Notification, &message.unchanged());
            }
            _ => self.drop_notification(Dropped::NoRequest),
        }
    }

    /// Passes progress of a task on to its owner. Tells whether it has one.
    pub(super) fn tell_progress(&self, message: &Message, call: u64) -> bool {
        let found = {
            let state = self.state();
            let progressing = state.tasks.progressing(call);
            progressing.and_then(|task| Some((state.members.get(task.session)?, task)))
        };
        let Some((session, task)) = found else { return false };
        self.parts.metrics.notification(Direction::ToClient, Notice::Progress);
        session.hear_of_task(&task.task, EventKind::Progress(call), &message.with_progress_of(&task.token));
        true
    }
}

impl Session {
    /// Notes what an answer says of a task, before its session learns of it. `call` is the one that waits for it, if it
    /// still does. Tells whether it can be given the answer.
    pub(super) fn note_task(&self, place: &Place, number: u64, call: Option<&Call>, answer: Answer<'_>) -> bool {
        let Some(call) = call else { return place.child().note_new_task(number, answer, false) };
        match &call.errand {
            Some(Errand::NewTask) => return place.child().note_new_task(number, answer, true),
            Some(Errand::Task(query, task)) => place.child().note_query(*query, task, answer),
            Some(Errand::Subscription(_)) | None => {}
        }
        true
    }

    /// Takes something about one of its tasks: whoever waits for its result hears it, else the standalone stream.
    fn hear_of_task(&self, task: &str, kind: EventKind, message: &Spliced<'_>) {
        if !self.is_open() {
            return;
        }
        let post = {
            let mut state = self.state();
            let waiting = state.calls.values_mut().find(|call| call.task.as_deref() == Some(task));
            waiting.map(|call| {
                call.progressed(1, Instant::now());
                Arc::clone(&call.post)
            })
        };
        match post {
            Some(post) if self.push(&post, kind.clone(), message) => {}
            _ => self.push_standalone(kind, message),
        }
        self.settle();
    }
}

/// The result an answer gives, if it is one.
pub(super) fn result_of(answer: Answer<'_>) -> Option<&[u8]> {
    let Answer::Message(message) = answer else { return None };
    if message.kind() != Kind::Result {
        return None;
    }
    Some(message.fields().result?.of(message.text()))
}

fn is_invalid(answer: Answer<'_>) -> bool {
    matches!(answer, Answer::Message(message) if message.error_code() == Some(i64::from(INVALID_PARAMS)))
}
