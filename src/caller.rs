//! Who calls: the typed principal, where the call came from and what it brings, as plain values.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

mod variables;

pub use variables::OwnVariables;

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

    /// Asks the client to take further requests elsewhere, where the protocol says that of the connection and not in
    /// an answer (RFC 9113, 6.8).
    fn leave(&self) {}
}

/// A client certificate whose signature and time were good when the connection began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Whose it is: the subject in the form of RFC 4514; where that is empty the first subject alternative name, and
    /// without one `sha256:` and the thumbprint.
    pub subject: Arc<str>,
    /// SHA-256 of the certificate in DER, to which a token may be bound (RFC 8705, 3.1).
    pub thumbprint: [u8; 32],
    /// When it ends, in seconds since the Unix epoch.
    pub expires: u64,
}

/// How a request reached us.
#[derive(Clone)]
pub struct Arrival {
    /// Where its connection comes from.
    pub peer: Peer,
    /// Whether only this machine can reach the socket it came by.
    pub local_bind: bool,
    /// What its client showed in the TLS handshake, checked against the authorities of clients.
    pub certificate: Option<Arc<ClientCertificate>>,
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
