//! What a listener tells the outside about its connections.

use crate::caller::Malformed;
use crate::telemetry::label::Accepted;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Either side closed it in order.
    Closed,
    /// The peer vanished or the socket failed in the middle of a message.
    Broken,
    /// The peer sent something that is no HTTP/1 head; it was refused and the connection closed.
    BadHead,
    /// The head was larger than allowed; it was refused and the connection closed.
    HeadTooLarge,
    /// A head did not end within `limits.header_timeout`.
    HeadTimeout,
    /// Nothing was asked for `limits.keep_alive`.
    Idle,
    /// A write made no progress for `limits.write_stall`.
    Stalled,
    /// TLS could not be agreed upon, or the client has no certificate that is good.
    Handshake,
    /// The peer spoke HTTP where TLS is spoken.
    PlainHttp,
    /// A TLS handshake did not end within `limits.tls_handshake`.
    HandshakeTimeout,
    /// The client that a proxy speaks for has too many open.
    TooMany,
    /// The peer sent too many HTTP/2 frames that cost it nothing.
    Flooded,
    /// The gateway stopped before the connection ended by itself.
    Aborted,
}

impl End {
    /// The end of a connection whose peer sent what is no request.
    pub(super) fn of(malformed: Malformed) -> End {
        match malformed {
            Malformed::TargetTooLong | Malformed::HeadTooLarge | Malformed::TooManyFields => End::HeadTooLarge,
            _ => End::BadHead,
        }
    }
}

/// Counts connections. Every `accepted` is followed by exactly one `closed`.
///
/// Called on the accept loop and on connection tasks; an implementation must not block.
pub trait Observer: Send + Sync + 'static {
    /// A connection was taken.
    fn accepted(&self, listener: &'static str);
    /// A taken connection is gone.
    fn closed(&self, listener: &'static str, end: End);
    /// A connection was closed at once because a cap is reached; `why` is never `Accepted::Ok`.
    fn refused(&self, listener: &'static str, why: Accepted);
    /// `accept` failed; `errno` is the symbol of the error, from a small fixed set.
    fn accept_error(&self, listener: &'static str, errno: &'static str);
}
