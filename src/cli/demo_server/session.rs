//! What the handshake settled and what the client wished since.

use serde::Deserialize;
use serde_json::Value;

/// A protocol revision this server speaks, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Revision {
    November2024,
    March2025,
    June2025,
    November2025,
}

impl Revision {
    const ALL: [Self; 4] = [Self::November2024, Self::March2025, Self::June2025, Self::November2025];

    /// The revision to answer `initialize` with: the one asked for, else the newest
    /// (lifecycle, "Version Negotiation").
    pub(super) fn negotiate(asked: &str) -> Self {
        Self::ALL.into_iter().find(|revision| revision.name() == asked).unwrap_or(Self::November2025)
    }

    /// The name on the wire.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::November2024 => "2024-11-05",
            Self::March2025 => "2025-03-26",
            Self::June2025 => "2025-06-18",
            Self::November2025 => "2025-11-25",
        }
    }

    /// Whether several messages may come as one array (2025-03-26 basic, "Batching").
    pub(super) fn has_batches(self) -> bool {
        self == Self::March2025
    }

    /// Whether tools carry annotations and the server declares `completions`.
    pub(super) fn has_annotations(self) -> bool {
        self >= Self::March2025
    }

    /// Whether titles, `structuredContent` and `outputSchema` exist.
    pub(super) fn has_structured_content(self) -> bool {
        self >= Self::June2025
    }

    /// Whether wrong arguments of a tool are a result with `isError`, for the model to correct,
    /// rather than a protocol error (2025-11-25 tools, "Error Handling").
    pub(super) fn reports_arguments_to_model(self) -> bool {
        self >= Self::November2025
    }
}

/// The severities of RFC 5424 as MCP spells them, lowest first (logging, "Log Levels").
pub(super) const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// What `logging/setLevel` may name before it was ever called.
const DEFAULT_LEVEL: &str = "info";

/// A conversation after its `initialize`.
pub(super) struct Session {
    /// What both sides speak.
    pub(super) revision: Revision,
    /// What the client lets itself be asked.
    pub(super) capabilities: Capabilities,
    /// Whether the client subscribed to the one resource that changes.
    pub(super) follows_counter: bool,
    level: usize,
}

/// The client capabilities a server-to-client request depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// `elicitation`, in form mode.
    pub(super) elicitation: bool,
    /// `sampling`
    pub(super) sampling: bool,
    /// `roots`
    pub(super) roots: bool,
}

/// The parameters of `initialize` that matter here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Initialize {
    protocol_version: String,
    capabilities: Value,
}

impl Session {
    /// Opens a session with what the client proposed.
    pub(super) fn open(proposal: &Initialize) -> Self {
        let declared = &proposal.capabilities;
        let elicitation = &declared["elicitation"];
        Self {
            revision: Revision::negotiate(&proposal.protocol_version),
            capabilities: Capabilities {
                // An empty object means form mode (2025-11-25 elicitation, "Capabilities").
                elicitation: elicitation
                    .as_object()
                    .is_some_and(|modes| modes.is_empty() || modes.contains_key("form")),
                sampling: declared["sampling"].is_object(),
                roots: declared["roots"].is_object(),
            },
            follows_counter: false,
            level: rank(DEFAULT_LEVEL).expect("the default is one of LEVELS"),
        }
    }

    /// Sets the lowest severity to send; false if there is no such level.
    pub(super) fn set_level(&mut self, name: &str) -> bool {
        match rank(name) {
            Some(level) => {
                self.level = level;
                true
            }
            None => false,
        }
    }

    /// Whether a message of this severity is wanted; `None` if there is no such level.
    pub(super) fn wants_level(&self, name: &str) -> Option<bool> {
        rank(name).map(|level| level >= self.level)
    }
}

fn rank(name: &str) -> Option<usize> {
    LEVELS.iter().position(|level| *level == name)
}

#[cfg(test)]
mod tests {
    use super::{Capabilities, Initialize, Revision, Session};
    use serde_json::{Value, json};

    fn open(version: &str, capabilities: Value) -> Session {
        let proposal: Initialize =
            serde_json::from_value(json!({ "protocolVersion": version, "capabilities": capabilities })).unwrap();
        Session::open(&proposal)
    }

    #[test]
    fn a_known_revision_is_kept_and_an_unknown_one_becomes_the_newest() {
        for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
            assert_eq!(open(version, json!({})).revision.name(), version);
        }
        assert_eq!(open("2099-01-01", json!({})).revision, Revision::November2025);
    }

    #[test]
    fn capabilities_are_what_was_declared() {
        let all = Capabilities { elicitation: true, sampling: true, roots: true };
        let declared = json!({ "elicitation": {}, "sampling": {}, "roots": { "listChanged": true } });
        assert_eq!(open("2025-11-25", declared).capabilities, all);
        assert_eq!(open("2025-11-25", json!({})).capabilities, Capabilities::default());
        let by_url = open("2025-11-25", json!({ "elicitation": { "url": {} } }));
        assert!(!by_url.capabilities.elicitation);
    }

    #[test]
    fn levels_are_ordered() {
        let mut session = open("2025-11-25", json!({}));
        assert_eq!(session.wants_level("debug"), Some(false));
        assert_eq!(session.wants_level("info"), Some(true));
        assert!(session.set_level("error"));
        assert_eq!(session.wants_level("warning"), Some(false));
        assert_eq!(session.wants_level("emergency"), Some(true));
        assert!(!session.set_level("loud"));
        assert_eq!(session.wants_level("loud"), None);
    }
}
