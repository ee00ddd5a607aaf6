//! Who takes part in conversations with children: sessions, their calls and their streams.

pub mod account;
pub mod answer_leave;
mod ask;
mod call;
pub mod capacity;
mod child_side;
mod client_side;
mod congestion;
mod early;
mod expiry;
pub mod gateway_error;
mod handshake;
mod in_band;
pub mod ledger;
pub mod post;
pub mod registry;
mod relief;
mod route;
pub mod session;
pub mod stream;
mod streams;

pub use in_band::Cause;
