//! What `initialize` says, as far as the gateway must know it.

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::mcp::message::Message;
use crate::mcp::revision::Revision;

/// Characters of a client's name and version that are kept for logs.
const NAME_KEPT: usize = 64;

/// What a client said of itself.
#[derive(Clone, Debug, Default)]
pub struct Introduction {
    /// What it calls itself; cut and escaped where it is printed.
    pub client: Implementation,
    /// It answers `sampling/createMessage`.
    pub sampling: bool,
    /// It answers `elicitation/create`.
    pub elicitation: bool,
    /// It answers `roots/list`.
    pub roots: bool,
}

#[derive(Deserialize)]
struct Params {
    #[serde(default)]
    capabilities: Capabilities,
    #[serde(rename = "clientInfo", default)]
    client_info: Implementation,
}

#[derive(Deserialize, Default)]
struct Capabilities {
    sampling: Option<IgnoredAny>,
    elicitation: Option<IgnoredAny>,
    roots: Option<IgnoredAny>,
}

/// Name and version of either side.
#[derive(Deserialize, Default, Debug, Clone)]
pub struct Implementation {
    /// `name`
    #[serde(default)]
    pub name: String,
    /// `version`
    #[serde(default)]
    pub version: String,
}

impl Introduction {
    /// Reads the parameters of `initialize`. What is missing or odd is the child's to judge; a
    /// capability that cannot be read was not declared.
    #[must_use]
    pub fn read(message: &Message) -> Introduction {
        let raw = message.fields().params.map_or(&b"{}"[..], |params| params.of(message.text()));
        let Ok(params) = serde_json::from_slice::<Params>(raw) else { return Introduction::default() };
        let cut = |text: String| text.chars().take(NAME_KEPT).collect();
        let Implementation { name, version } = params.client_info;
        Introduction {
            client: Implementation { name: cut(name), version: cut(version) },
            sampling: params.capabilities.sampling.is_some(),
            elicitation: params.capabilities.elicitation.is_some(),
            roots: params.capabilities.roots.is_some(),
        }
    }

    /// Whether a child may ask `method`: what needs a capability needs it declared (lifecycle,
    /// Operation); what the gateway does not know may be asked.
    #[must_use]
    pub fn admits(&self, method: &str) -> bool {
        match method {
            "sampling/createMessage" => self.sampling,
            "elicitation/create" => self.elicitation,
            "roots/list" => self.roots,
            _ => true,
        }
    }
}

/// The revision an InitializeResult settles on; `None` where it is none with sessions.
#[must_use]
pub fn settled_revision(result: &Message) -> Option<Revision> {
    let name = result.string(result.fields().protocol_version)?;
    Revision::named(name.as_bytes())
}
