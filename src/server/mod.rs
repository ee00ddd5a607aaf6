//! One configured server: its policy, what it offers, and opening sessions with it.

mod breaker;
mod open;
mod status;

pub use open::{Opening, Server, ServerParts, Unopened};
pub use status::{Health, Status};
