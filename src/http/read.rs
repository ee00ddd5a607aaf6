//! Reading a body within its bounds.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::budget::{Budget, Reserved};
use crate::exchange::answer_leave::AnswerLeave;
use crate::http::refusal::Refused;

/// Bytes a second a body must bring on average, once its first pause is used up: else a byte now and
/// then would hold a connection for ever.
const LEAST_RATE: u64 = 1024;

/// Bounds of a body.
#[derive(Clone)]
pub struct Bounds {
    /// Bytes at most.
    pub bytes: usize,
    /// Longest pause.
    pub idle: Duration,
    /// Where its memory comes from.
    pub budget: Arc<Budget>,
}

/// A body up to this size is read even when the budget is spent: a live session's call is refused
/// under its own id, and a client's answer frees memory.
const ALWAYS_READ: usize = 64 * 1024;

/// A whole body, and the part of the budget it takes up.
pub struct Read {
    /// Its bytes.
    pub bytes: Bytes,
    /// Given back with the message.
    _reserved: Reserved,
    _leave: Option<AnswerLeave>,
}

/// Reads a body. A length that is too large is refused before a byte is read; a body in one piece
/// is not copied. `leave` is asked for where the budget has no room for it.
///
/// # Errors
/// Too large, too slow, no memory, or the client went away.
pub async fn read(
    body: &mut Incoming,
    bounds: &Bounds,
    leave: impl Fn() -> Option<AnswerLeave>,
) -> Result<Read, Refused> {
    let announced = body.size_hint().exact();
    if announced.is_some_and(|length| length > bounds.bytes as u64) {
        return Err(Refused::TooLarge);
    }
    // What was only announced takes up nothing: else idle connections could use up the budget.
    let mut reserved = bounds.budget.reserve_nothing();
    let mut held = None;
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut paused = None;
    loop {
        // Most bodies are there whole, with the head.
        let frame = match poll_fn(|context| Poll::Ready(Pin::new(&mut *body).poll_frame(context))).await {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                let earned = Duration::from_secs((first.len() + rest.len()) as u64 / LEAST_RATE);
                let now = Instant::now();
                let due = (now + bounds.idle).min(*paused.get_or_insert(now) + bounds.idle + earned);
                timeout_at(due, body.frame()).await.map_err(|_| Refused::BodyTimeout)?
            }
        };
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(|_| Refused::Invalid("The body ended early"))?.into_data() else { continue };
        let length = first.len() + rest.len() + data.len();
        if length > bounds.bytes {
            return Err(Refused::TooLarge);
        }
        if !reserved.grow(data.len()) && length > ALWAYS_READ {
            held = held.or_else(&leave);
            if held.is_none() {
                return Err(Refused::Memory);
            }
            reserved.overdraw(data.len());
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            rest.reserve(length);
            rest.extend_from_slice(&first);
            first = Bytes::new();
        }
        rest.extend_from_slice(&data);
    }
    Ok(Read { bytes: if rest.is_empty() { first } else { rest.freeze() }, _reserved: reserved, _leave: held })
}
