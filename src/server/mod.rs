//! One configured server: its policy, what it offers, and opening sessions with it.

mod breaker;
mod open;
mod readiness;
mod status;

pub use open::{Opening, Server, ServerParts, Unopened};
pub use readiness::Readiness;
pub use status::{Health, Status};
