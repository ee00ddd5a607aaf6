//! Who calls: the typed principal, where the call came from and what it brings, as plain values.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

mod proof;
mod variables;

pub use proof::{Proof, Proven, Renewal};
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

    /// Whose quota counts for this caller.
    #[must_use]
    pub fn account(&self) -> Account {
        Account(self.clone())
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

/// Who has a quota: a user has one, however many clients act for it, so that two of these are the same then.
#[derive(Clone, Debug)]
pub struct Account(Principal);

impl Account {
    /// The caller it was first asked for, whichever client acted.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.0
    }
}

impl PartialEq for Account {
    fn eq(&self, other: &Account) -> bool {
        self.0.shares_account(&other.0)
    }
}

impl Eq for Account {}

impl Hash for Account {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        match &self.0 {
            Principal::Token(holder) => (&holder.issuer, &holder.subject).hash(hasher),
            other => other.hash(hasher),
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

    /// It is known who asks on it, and that one may.
    fn let_in(&self) {}

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

/// Why a request was not let in: it could be read in two ways, or not at all (RFC 9112). Nothing of it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// The request line is no method, target and version, one space apart (section 3).
    RequestLine,
    /// Another version than HTTP/1.1 and HTTP/1.0 (RFC 9110 section 15.6.6).
    Version,
    /// The target is longer than `limits.header_bytes`.
    TargetTooLong,
    /// The head is longer than `limits.header_bytes`.
    HeadTooLarge,
    /// More fields than `limits.header_fields`.
    TooManyFields,
    /// What came begins a TLS handshake (RFC 8446 section 5.1).
    Tls,
    /// A line that ends in another way than with CR LF (section 2.2).
    LineEnd,
    /// A field whose name or value holds what it must not, or that goes on in a further line (section 5).
    Field,
    /// A field name with `_` that is another where that is read as `-`.
    Underscore,
    /// None or several `Host` (section 3.2).
    Host,
    /// The target names another host than `Host` (section 3.2.2).
    HostDisagrees,
    /// A length that is none, several, or one beside a coding (section 6.3).
    Length,
    /// Another coding than `chunked`, alone and once (section 6.1).
    Coding,
    /// Content where none has a meaning: of GET, HEAD, DELETE and TRACE (RFC 9110 section 9.3), and of HTTP/1.0, whose
    /// readers do not agree on where it ends.
    Content,
    /// Bytes behind a request for another protocol, before its answer (RFC 9110 section 7.8).
    AfterUpgrade,
}

/// Whose share of a limit an address takes. One holder of a public IPv6 network has all 2^64 addresses of a /64, so
/// those count as one; private ranges, where a /64 is a rack of pods, do not.
#[must_use]
pub fn counted_as(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) if v6.segments()[0] & 0xe000 == 0x2000 => {
            IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into())
        }
        other => other,
    }
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
