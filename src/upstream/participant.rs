//! Whoever takes part in a conversation with a child, seen from the child's side.

use tokio::sync::watch;

use crate::mcp::ids::Id;
use crate::mcp::message::Message;

/// What a call gets back.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// The child's response, still under the child-side id.
    Message(&'a Message),
    /// There will be none.
    Lost(Loss),
}

/// Why a call gets no response from its child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The child ended, or one of its pipes did.
    ChildGone {
        /// Whether it may have seen the call.
        sent: bool,
    },
    /// The line that held the response was longer than `line_bytes`.
    TooLarge,
    /// The line that held the response was no JSON-RPC message.
    BadLine,
}

/// The request a notification belongs to.
#[derive(Debug)]
pub struct Owner {
    /// Its child-side id.
    pub call: u64,
    /// The progress token its owner gave.
    pub token: Id,
}

/// Why a conversation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The process ended.
    Exited,
    /// The process lives, but closed a pipe.
    Closed,
    /// What it wrote could not be followed any more.
    Protocol,
    /// It did not answer a ping after a call had timed out.
    Hung,
}

/// A session, a single call or the scout. Calls come from the task that reads the child, so an
/// implementation hands over and returns; it must not block.
pub trait Participant: Send + Sync {
    /// A request this participant made got its answer; exactly once per request.
    fn answer(&self, call: u64, answer: Answer<'_>);

    /// The child asks something. Pings never arrive here; they are answered on the spot.
    fn request(&self, message: &Message);

    /// The child says something; `owner` is set for progress.
    fn notification(&self, message: &Message, owner: Option<&Owner>);

    /// The child reports progress under the number of a call that is not in flight. Tells whether it is anybody's: a
    /// call that became a task may still have some.
    fn late_progress(&self, _message: &Message, _call: u64) -> bool {
        false
    }

    /// Everything the child has written so far was handed over; what was held back to be told in
    /// one go is told now.
    fn settle(&self);

    /// The child is gone. Every request in flight has been answered before.
    fn gone(&self, gone: Gone);

    /// Whether the negotiated revision lets the child write batches.
    fn takes_batches(&self) -> bool;

    /// Set while a reader of this participant is so far behind that its own child must wait.
    fn congestion(&self) -> Option<watch::Receiver<bool>>;
}
