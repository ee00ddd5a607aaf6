//! What is different for a session whose child is not its own: what it wishes is kept here and told the child once, and
//! what it may not do on a child of others is refused.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::exchange::account::Account;
use crate::exchange::call::{Call, Errand, Query};
use crate::exchange::gateway_error::{GatewayError, INVALID_PARAMS};
use crate::exchange::greeting::Greeting;
use crate::exchange::post::{Post, Reply};
use crate::exchange::session::Session;
use crate::exchange::shared_child::{Condition, Place};
use crate::exchange::wishes::{Level, Subscribed};
use crate::mcp::ids::Id;
use crate::mcp::message::Message;
use crate::mcp::payload::Payload;
use crate::mcp::stream_log::EventKind;
use crate::telemetry::label::{Outcome, SessionEnd};
use crate::upstream::outbound::NotSent;
use crate::upstream::participant::Participant;

/// JSON-RPC 2.0 section 5.1: there is no such method here.
const METHOD_NOT_FOUND: i32 = -32601;

/// What a session's request is on a shared child.
enum Matter {
    /// The child's, like any other.
    Child,
    /// The child's, and its answer is noted here too.
    Errand(Errand),
    /// Answered here.
    Answered,
    /// Nothing that can be asked here.
    Refused(i32, &'static str),
    /// More than one session may have.
    TooMany,
}

impl Session {
    /// Answers `initialize` with what the shared child answered when it was started.
    pub fn greet(self: &Arc<Self>, greeting: &Greeting, message: &Message, post: &Arc<Post>, account: Account) {
        let (Some(id), Some(place)) = (message.id(), self.link.place()) else { return };
        place.child().seat(place.number(), self);
        self.admit(greeting.revision(), account.peer());
        let call = Call::new(message, id, Arc::clone(post), account, self.terms.metrics.call_started());
        let is_given = self.conclude(call, |id| reply(greeting.answer(id)));
        // Whoever left before the answer, or was given another one, never learned the id.
        if !is_given || post.is_lost() {
            self.end(SessionEnd::Uninitialized);
        }
    }

    /// Waits while a shared child is being replaced, for `pool.wait` at most.
    pub async fn connected(&self) {
        if let Some(child) = self.link.shared()
            && child.condition() == Condition::Starting
        {
            let _condition = child.settled(self.terms.child_wait).await;
        }
    }

    /// As [`Session::call`], to a child that others use too.
    pub(super) fn call_shared(self: &Arc<Self>, place: &Place, mut call: Call, message: &Message) {
        match self.matter(place, message) {
            Matter::Child => self.submit(place, call, message),
            Matter::Errand(errand) => {
                call.errand = Some(errand);
                self.submit(place, call, message);
            }
            Matter::Answered => {
                call.account.sent();
                self.conclude(call, |id| reply(empty_result(id)));
            }
            Matter::Refused(code, text) => {
                call.account.sent();
                self.conclude(call, |id| refusal(id, code, text));
            }
            Matter::TooMany => {
                call.account.sent();
                self.lose_unsent(call, NotSent::Full);
            }
        }
    }

    /// Sends a call on its way, or lets it wait for its turn.
    fn submit(self: &Arc<Self>, place: &Place, call: Call, message: &Message) {
        let (child, is_task) = (place.child(), call.errand == Some(Errand::NewTask));
        self.send(child.reserve(), call, |number, who| {
            if is_task {
                child.expect_task(place.number(), number, message);
            }
            let sent = child.submit(place.number(), number, who, message);
            if sent.is_err() && is_task {
                child.expect_no_task(number);
            }
            sent
        });
    }

    fn matter(&self, place: &Place, message: &Message) -> Matter {
        let (child, number) = (place.child(), place.number());
        match message.method() {
            "ping" => Matter::Answered,
            "logging/setLevel" => {
                let Some(level) = message.string(message.fields().level).and_then(|name| Level::named(&name)) else {
                    return Matter::Refused(INVALID_PARAMS, "There is no such log level.");
                };
                if !child.greeting().is_some_and(|greeting| greeting.offers("logging")) {
                    return Matter::Refused(METHOD_NOT_FOUND, "The server does not log to clients.");
                }
                child.set_level(number, level);
                Matter::Answered
            }
            "resources/subscribe" => match message.string(message.fields().uri) {
                Some(uri) if child.subscribe(number, &uri) => Matter::Answered,
                Some(uri) => Matter::Errand(Errand::Subscription(uri.into())),
                None => Matter::Child,
            },
            "resources/unsubscribe" => match message.string(message.fields().uri) {
                Some(uri) => {
                    child.unsubscribe(number, &uri);
                    Matter::Answered
                }
                None => Matter::Child,
            },
            "tools/call" if message.fields().task.is_some() => {
                if child.has_room_for_task(number) {
                    Matter::Errand(Errand::NewTask)
                } else {
                    Matter::TooMany
                }
            }
            method => {
                method.strip_prefix("tasks/").map_or(Matter::Child, |query| self.about_task(place, query, message))
            }
        }
    }

    /// What a request about a task is: its owner's, or about nothing.
    fn about_task(&self, place: &Place, query: &str, message: &Message) -> Matter {
        let query = match query {
            "get" => Query::State,
            "result" => Query::Result,
            "cancel" => Query::Cancel,
            _ => return Matter::Refused(METHOD_NOT_FOUND, "A shared server does not list tasks."),
        };
        if !place.child().greeting().is_some_and(|greeting| greeting.offers("tasks")) {
            return Matter::Refused(METHOD_NOT_FOUND, "The server has no tasks.");
        }
        // Whether there is such a task of somebody else's is nobody's business (tasks, Task Isolation and Access Control).
        match message.string(message.fields().task_id) {
            Some(task) if place.child().owns_task(place.number(), &task) => {
                Matter::Errand(Errand::Task(query, task.into()))
            }
            _ => Matter::Refused(INVALID_PARAMS, "There is no such task."),
        }
    }

    /// Notes what became of a request for a subscription at a shared child, before its session learns of it.
    pub(super) fn note_subscription(&self, call: &Call, outcome: Outcome) {
        let (Some(place), Some(Errand::Subscription(uri))) = (self.link.place(), &call.errand) else { return };
        let how = match outcome {
            Outcome::Ok => Subscribed::Yes,
            Outcome::RpcError | Outcome::Refused => Subscribed::No,
            _ => Subscribed::Unknown,
        };
        place.child().note_subscribed(place.number(), uri, how);
    }

    /// Takes something a shared child says to several sessions, or to this one.
    pub(super) fn hear(&self, message: &Message) {
        if !self.is_open() {
            return;
        }
        self.push_standalone(EventKind::Notification, &message.unchanged());
        self.settle();
    }

    /// Takes something a shared child says while this session's calls alone are with it.
    pub(super) fn hear_alone(&self, message: &Message) {
        if self.is_open() {
            self.pass_on(message);
            self.settle();
        }
    }

    /// Whether a notification of the client's is for the session alone: a shared child knows of no single client.
    pub(super) fn keeps_to_itself(&self, message: &Message) -> bool {
        self.link.place().is_some() && !message.calls("notifications/cancelled")
    }
}

fn reply(payload: Payload) -> Reply {
    Reply { payload, outcome: Outcome::Ok, rpc_code: None, trouble: None, permit: None }
}

fn refusal(id: &Id, code: i32, message: &'static str) -> Reply {
    let error = GatewayError { code, message, reason: None, executed: None, retry_after: None };
    let payload = Payload::whole(error.to_json(Some(id.raw())));
    Reply { payload, outcome: Outcome::RpcError, rpc_code: Some(i64::from(code)), trouble: None, permit: None }
}

fn empty_result(id: &Id) -> Payload {
    let mut text = BytesMut::with_capacity(48 + id.raw().len());
    text.put_slice(br#"{"jsonrpc":"2.0","id":"#);
    text.put_slice(id.raw());
    text.put_slice(br#","result":{}}"#);
    Payload::whole(Bytes::from(text))
}
