//! The protocol's revisions and what each allows. No other file compares revisions.

/// A stateful revision of the protocol: one with a handshake and sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Revision {
    /// 2024-11-05
    V2024_11_05,
    /// 2025-03-26
    V2025_03_26,
    /// 2025-06-18
    V2025_06_18,
    /// 2025-11-25
    V2025_11_25,
}

impl Revision {
    /// Every revision, oldest first.
    pub const ALL: [Revision; 4] =
        [Revision::V2024_11_05, Revision::V2025_03_26, Revision::V2025_06_18, Revision::V2025_11_25];

    /// The revision the gateway itself asks for.
    pub const LATEST: Revision = Revision::V2025_11_25;

    /// The revision with exactly this name. Names are opaque: an unknown one is not "newer".
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Revision> {
        Revision::ALL.into_iter().find(|revision| revision.name().as_bytes() == name)
    }

    /// Its name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Revision::V2024_11_05 => "2024-11-05",
            Revision::V2025_03_26 => "2025-03-26",
            Revision::V2025_06_18 => "2025-06-18",
            Revision::V2025_11_25 => "2025-11-25",
        }
    }

    /// What a client that asked for `asked` is told to use: the same where it is known, else the
    /// latest one with a handshake (lifecycle, Version Negotiation).
    #[must_use]
    pub fn granted(asked: &[u8]) -> Revision {
        Revision::named(asked).unwrap_or(Revision::LATEST)
    }

    /// Whether a body may be a JSON-RPC batch: only 2025-03-26 knew them.
    #[must_use]
    pub fn has_batches(self) -> bool {
        self == Revision::V2025_03_26
    }

    /// Whether a stream starts with an event that has an id and no data, and may be closed before
    /// its response (2025-11-25 transports, Sending Messages 6; older clients fail on empty data).
    #[must_use]
    pub fn primes_streams(self) -> bool {
        self == Revision::V2025_11_25
    }
}

#[cfg(test)]
mod tests {
    use super::Revision;

    #[test]
    fn names_are_opaque() {
        for revision in Revision::ALL {
            assert_eq!(Revision::named(revision.name().as_bytes()), Some(revision));
        }
        for name in ["DRAFT", "2026-07-28", "2025-11-25 ", "", "2099-01-01"] {
            assert_eq!(Revision::named(name.as_bytes()), None);
            assert_eq!(Revision::granted(name.as_bytes()), Revision::LATEST);
        }
    }
}
