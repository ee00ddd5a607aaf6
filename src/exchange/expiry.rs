//! What ends when a session's clocks run out: its calls, what its child asks, itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};

use crate::caller::Proof;
use crate::exchange::call::Call;
use crate::exchange::in_band::Cause;
use crate::exchange::session::{Phase, Session, State};
use crate::mcp::ids::Id;
use crate::mcp::payload::Spliced;
use crate::mcp::receipt::Passage;
use crate::mcp::stream_log::EventKind;
use crate::telemetry::label::{Outcome, SessionEnd, Start};
use crate::unix_time;
use crate::upstream::participant::Participant;

/// How long a request waits in the log of a standalone stream nobody reads.
const UNREAD_WAIT: Duration = Duration::from_secs(60);

/// Code of an answer that never came, as both official SDKs use it for a request that timed out.
const TIMED_OUT: i32 = -32001;

impl Session {
    /// Whether its clocks must be looked at.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_look.is_due(now)
    }

    /// Looks at every clock. Gives the reason if the session is over.
    pub fn sweep(self: &Arc<Self>, now: Instant) -> Option<SessionEnd> {
        self.next_look.begin();
        self.expire_asks(now);
        self.expire_calls(now);
        let (over, is_read) = self.look(now);
        // Nobody is asked about what nobody reads by.
        if is_read && self.proven.is_over(unix_time::seconds()) {
            self.streams().iter().for_each(|stream| stream.expire_reader());
        }
        over
    }

    /// Looks at the clocks of the whole. Gives the reason if the session is over, and whether any of its streams is read.
    fn look(&self, now: Instant) -> (Option<SessionEnd>, bool) {
        let limits = &self.terms.limits;
        let mut state = self.state();
        state.streams.expire(now);
        let is_read = self.standalone.is_read() || state.streams.iter().any(|stream| stream.is_read());
        if is_read || state.is_busy() {
            state.active = now;
        }
        let answer = state.silent.filter(|_| state.phase == Phase::Answered);
        let ends = [
            (limits.absolute.and_then(|limit| self.opened.checked_add(limit)), SessionEnd::Absolute),
            (answer.and_then(|since| since.checked_add(limits.uninitialized)), SessionEnd::Uninitialized),
            (limits.idle.and_then(|limit| state.active.checked_add(limit)), SessionEnd::Idle),
        ];
        match state.phase {
            Phase::Ended(why) => return (Some(why), is_read),
            Phase::Starting => return (None, is_read),
            Phase::Answered | Phase::Live => {}
        }
        let over = ends.iter().find(|(end, _)| end.is_some_and(|end| end <= now)).map(|(_, why)| *why);
        // Whose streams are read is active for as long as they are; those that are kept have an age.
        if over.is_none() && !is_read && !state.is_busy() && state.streams.is_empty() {
            self.next_look.end(ends.iter().filter_map(|(end, _)| *end).min());
        }
        (over, is_read)
    }

    /// Takes note of what its caller shows.
    pub fn prove(&self, proof: &Proof) {
        self.proven.take(proof);
    }

    /// Ends the calls whose clocks ran out.
    fn expire_calls(self: &Arc<Self>, now: Instant) {
        let over: Vec<(u64, Call)> = {
            let mut state = self.state();
            let start = self.terms.timeouts.start;
            let starting = state.phase == Phase::Starting;
            let numbers: Vec<u64> = state
                .calls
                .iter()
                .filter(|(_, call)| {
                    if starting {
                        call.account.child_time() >= start
                    } else {
                        call.clock.is_over(now, &self.terms.timeouts)
                    }
                })
                .map(|(number, _)| *number)
                .collect();
            numbers.into_iter().filter_map(|number| Some((number, state.calls.remove(&number)?))).collect()
        };
        for (number, call) in over {
            let starting = self.state().phase == Phase::Starting;
            let sent = self.take_back(number, None, "timed out");
            // A child that does one thing at a time answers no ping while it waits for the client.
            let waits = !self.state().asks.is_empty();
            if let Some(conversation) = self.link.conversation().filter(|_| !waits) {
                conversation.check_alive();
            }
            self.conclude(call, |id| Cause::Timeout { sent }.reply(id));
            if starting {
                (self.terms.handshakes)(Start::Timeout, self.terms.timeouts.start);
                self.end(SessionEnd::ChildGone);
            }
        }
    }

    /// Answers requests of the child's that waited too long, and tells the client to forget them.
    fn expire_asks(&self, now: Instant) {
        let unread = (!self.standalone.is_read()).then_some(UNREAD_WAIT);
        let expired = {
            let mut state = self.state();
            if state.asks.is_empty() {
                return;
            }
            let State { asks, calls, .. } = &mut *state;
            asks.take_expired(now, self.terms.timeouts.ask, unread, calls)
        };
        for ask in expired {
            let lost = ask.receipt.passage() == Passage::Lost;
            let (why, outcome) = if lost {
                ("too much waits for the client to read", Outcome::ClientGone)
            } else {
                ("the client did not answer in time", Outcome::Timeout)
            };
            if let Some(conversation) = self.link.conversation() {
                conversation.refuse(&ask.id, TIMED_OUT, why);
            }
            self.accounts().asked(&ask.id, &ask.method, self, now.duration_since(ask.since), outcome);
            // What the client was never asked needs no cancellation.
            if lost {
                continue;
            }
            let withdrawal = withdrawal(&ask.id);
            self.send_via(&ask.via, EventKind::Notification, &Spliced::unchanged(&withdrawal));
        }
        self.settle();
    }
}

fn withdrawal(id: &Id) -> Bytes {
    let mut text = BytesMut::with_capacity(128);
    text.put_slice(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":");
    text.put_slice(id.raw());
    text.put_slice(b",\"reason\":\"timed out\"}}");
    text.freeze()
}
