//! Who calls: the typed principal and where the call came from, as plain values.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// The typed caller a session belongs to. Two callers are the same exactly when these are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// Nobody proved anything; the server admits such callers (`methods = ["none"]`).
    Anonymous,
    /// The holder of the API key with this name.
    Key(Arc<str>),
    /// Whom an access token speaks for.
    Token(Arc<TokenHolder>),
    /// The holder of the client certificate with this subject.
    Certificate(Arc<str>),
}

/// Whom an access token speaks for (RFC 9068 section 2.2). A subject means something only together with its issuer, and
/// two clients of one user are two callers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenHolder {
    /// `iss`
    pub issuer: Arc<str>,
    /// `sub`, or the claim that stands for it.
    pub subject: Arc<str>,
    /// The client that acts, where the token names one.
    pub client: Option<Arc<str>>,
}

impl Principal {
    /// Whether this caller proved nothing.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        matches!(self, Principal::Anonymous)
    }

    /// Whose quota counts: a user has one, however many clients act for it.
    #[must_use]
    pub fn account(&self) -> Principal {
        match self {
            Principal::Token(holder) if holder.client.is_some() => {
                Principal::Token(Arc::new(TokenHolder { client: None, ..TokenHolder::clone(holder) }))
            }
            _ => self.clone(),
        }
    }

    /// Whether both have one quota.
    #[must_use]
    pub fn shares_account(&self, other: &Principal) -> bool {
        match (self, other) {
            (Principal::Token(one), Principal::Token(other)) => {
                one.subject == other.subject && one.issuer == other.issuer
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for Principal {
    /// The form that stands in logs; it never holds a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Anonymous => f.write_str("anonymous"),
            Principal::Key(name) => write!(f, "key:{name}"),
            Principal::Token(holder) => match &holder.client {
                Some(client) => write!(f, "token:{}@{} by {client}", holder.subject, holder.issuer),
                None => write!(f, "token:{}@{}", holder.subject, holder.issuer),
            },
            Principal::Certificate(subject) => write!(f, "certificate:{subject}"),
        }
    }
}

/// What becomes of a connection, for the answers on it.
pub trait Fate: Send + Sync {
    /// Whether it was cut because its client stopped reading. Set before the answers under way are
    /// dropped.
    fn is_stalled(&self) -> bool;

    /// Cuts it now because its client stopped reading, as the clock would have later.
    fn cut(&self);
}

/// How a request reached us.
#[derive(Clone)]
pub struct Arrival {
    /// Where its connection comes from.
    pub peer: Peer,
    /// Whether only this machine can reach the socket it came by.
    pub local_bind: bool,
    /// What becomes of its connection.
    pub fate: Arc<dyn Fate>,
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A TCP peer.
    Ip(IpAddr),
    /// A caller on a unix socket of this machine.
    Local,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Ip(address) => address.fmt(f),
            Peer::Local => f.write_str("unix"),
        }
    }
}
