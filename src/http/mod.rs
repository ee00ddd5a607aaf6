//! The HTTP side: from a request head to a typed call, and every way to answer.
//!
//! What is here is pure: values in, values out. Nothing reads a socket or a clock.

pub mod accept;
pub mod body;
pub mod cors;
pub mod guard;
pub mod loss;
mod origin;
pub mod page;
pub mod refusal;
pub mod sse;
