//! Who takes part in conversations with children: sessions, their calls and their streams.

pub mod account;
pub mod answer_leave;
mod ask;
pub mod audit;
mod call;
pub mod capacity;
mod child_side;
mod client_side;
mod congestion;
mod early;
mod expiry;
pub mod gateway_error;
mod greeting;
mod handshake;
mod in_band;
mod late_progress;
pub mod ledger;
mod link;
mod next_look;
pub mod post;
pub mod registry;
mod relief;
mod route;
pub mod session;
mod shared_calls;
pub mod shared_child;
mod shared_tasks;
mod shared_wishes;
mod sharing;
pub mod stream;
mod streams;
mod tasks;
mod turns;
mod wishes;

pub use in_band::Cause;
