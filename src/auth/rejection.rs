//! Why a caller was not let in.

use std::fmt;

use crate::telemetry::label::AuthResult;

/// Why a caller was not let in. What it is told must not tell API keys apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// No `Authorization`, or one of another scheme.
    Missing,
    /// Several `Authorization` fields, of which any could be meant: a 400.
    Repeated,
    /// No key of this gateway, or one that is malformed.
    Invalid,
    /// A key whose last day is over.
    Expired,
    /// A key that opens other servers.
    OtherServer,
    /// An access token that does not count here.
    Token(TokenFault),
    /// The token cannot be judged now: the keys of its issuer were never loaded, or its introspection does not answer.
    Unavailable,
}

/// What the answer to a rejected caller says (RFC 6750, 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 401 with a challenge that names no error: nothing was shown.
    Missing,
    /// 400, with what is wrong.
    Malformed(&'static str),
    /// 401 `invalid_token`, with an `error_description` where one may be given.
    InvalidToken(Option<&'static str>),
    /// 503: the same request may succeed a little later.
    Unavailable,
}

impl Rejection {
    /// What the client is told.
    #[must_use]
    pub fn answer(self) -> Answer {
        match self {
            Rejection::Missing => Answer::Missing,
            Rejection::Repeated => Answer::Malformed("There must be one Authorization header"),
            Rejection::Invalid | Rejection::Expired | Rejection::OtherServer => Answer::InvalidToken(None),
            Rejection::Token(fault) => Answer::InvalidToken(Some(fault.description())),
            Rejection::Unavailable => Answer::Unavailable,
        }
    }

    /// How it counts in metrics and logs.
    #[must_use]
    pub fn label(self) -> AuthResult {
        match self {
            Rejection::Missing => AuthResult::Missing,
            Rejection::Invalid | Rejection::Repeated => AuthResult::Invalid,
            Rejection::Expired | Rejection::Token(TokenFault::Expired) => AuthResult::Expired,
            Rejection::OtherServer | Rejection::Token(TokenFault::Audience) => AuthResult::Forbidden,
            Rejection::Token(_) => AuthResult::Invalid,
            Rejection::Unavailable => AuthResult::Unavailable,
        }
    }
}

impl fmt::Display for Rejection {
    /// For the log; the client is told less.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rejection::Missing => "nothing was shown",
            Rejection::Repeated => "there are several Authorization fields",
            Rejection::Invalid => "the API key is unknown",
            Rejection::Expired => "the API key has expired",
            Rejection::OtherServer => "the API key does not open this server",
            Rejection::Token(fault) => fault.description(),
            Rejection::Unavailable => "the issuer's keys, or its introspection, cannot be reached",
        })
    }
}

/// What is wrong with an access token. One text each, which never quotes the token: a client may show it to its user,
/// and `gangway auth explain` says the rest to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    /// No signed JWT, and no issuer here takes opaque tokens.
    Malformed,
    /// An algorithm that is not configured, or not the one of the key it names.
    Algorithm,
    /// Header members that must be understood and are not (`crit`, `b64`, `enc`, `zip`).
    Header,
    /// A kind of token that is no access token (`typ`, ID tokens).
    Kind,
    /// No key of the issuer has its `kid`, or it names none where there are several.
    Key,
    /// The signature is not that of the key.
    Signature,
    /// An issuer that is not configured, or not taken at this server.
    Issuer,
    /// It was issued for something else.
    Audience,
    /// `exp` is missing, or no number.
    NoExpiry,
    /// `exp` has passed.
    Expired,
    /// `nbf` has not come, or is no number.
    NotYet,
    /// The claim that says whom it speaks for is missing, empty, too long, or no text.
    Subject,
    /// It is bound to a client certificate that this connection did not show (RFC 8705, 3).
    Binding,
    /// Its issuer says that it is not active (RFC 7662, 2.2).
    Inactive,
}

impl TokenFault {
    /// The `error_description` of its challenge (RFC 6750, 3): ASCII without quotes or backslashes.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            TokenFault::Malformed => "The access token is malformed",
            TokenFault::Algorithm => "The access token is signed with an algorithm that is not accepted",
            TokenFault::Header => "The access token has header members that are not understood",
            TokenFault::Kind => "This is not an access token",
            TokenFault::Key => "The access token is signed with an unknown key",
            TokenFault::Signature => "The signature of the access token is not valid",
            TokenFault::Issuer => "The issuer of the access token is not accepted",
            TokenFault::Audience => "The access token was not issued for this resource",
            TokenFault::NoExpiry => "The access token has no valid expiry",
            TokenFault::Expired => "The access token has expired",
            TokenFault::NotYet => "The access token is not valid yet",
            TokenFault::Subject => "The access token names no subject",
            TokenFault::Binding => "The access token is bound to another client certificate",
            TokenFault::Inactive => "The access token is not active",
        }
    }
}
