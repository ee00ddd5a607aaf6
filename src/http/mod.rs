//! The HTTP side: from a request head to a typed call, and every way to answer.

pub mod accept;
mod access;
mod admin;
mod batch;
mod body;
pub mod cors;
mod door;
pub mod event_stream;
mod forwarded;
pub mod guard;
mod legacy_sse;
mod metadata;
mod origin;
mod own_variables;
pub mod page;
pub mod patience;
mod read;
pub mod refusal;
mod rules;
pub mod sse;
mod streamable;

pub use admin::AdminDoor;
pub use door::{Door, DoorParts};
pub use rules::RulesParts;
