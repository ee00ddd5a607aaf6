//! Sockets: binding them, accepting from them, TLS, and the clocks of one HTTP/1 or HTTP/2 connection.
//!
//! [`bind`] turns addresses into a [`Listener`] with real ports; [`serve`] owns every connection of
//! that listener until the [`Phase`] says to stop. What happens inside a request is the caller's
//! service; what is counted is the caller's [`Observer`]. What can be read in two ways never reaches hyper (`front`).
//! Nothing here knows MCP.

mod accept;
mod bind_error;
mod cap;
mod clock;
mod connection;
mod drive;
mod filter;
mod frames;
mod front;
mod holder;
mod introduction;
mod listen;
mod multiplex;
mod observe;
mod proxy_protocol;
mod refusal_log;
mod self_wake;
mod strict;
mod tls;
mod turns;
mod unix;
mod wire;

pub use accept::{Phase, Terms, serve};
pub use bind_error::BindError;
pub use connection::{Asked, Connection};
pub use front::{Fault, Front, Look};
pub use holder::Holder;
pub use listen::{Bound, Listener, bind};
pub use observe::{End, Observer};
pub use tls::{Credentials, Tls, TlsProblem};

#[cfg(test)]
mod tests;
