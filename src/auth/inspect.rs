//! Looking at an issuer for its operator: whether the gateway can work with it, and what it offers to MCP clients.

use std::sync::Arc;

use super::authority::Authority;
use super::discovery::Form;
use super::fetch::Fetcher;
use crate::config::Issuer;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Whether its tokens can be judged, else why not. For JWTs, the number of keys that can be used and of others.
    pub keys: Result<Option<(usize, usize)>, String>,
    /// What its metadata says, else why there is none.
    pub metadata: Result<Offer, String>,
}

/// What an issuer says about itself that MCP clients need (MCP 2025-11-25, Authorization).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Where its metadata stands.
    pub form: Form,
    /// Whether users can log in there at all.
    pub authorizes: bool,
    /// Whether a client may name itself by the URL of its metadata document.
    pub client_documents: bool,
    /// Whether clients may register themselves (RFC 7591).
    pub registration: bool,
    /// Whether it names the code challenge S256 (RFC 7636), without which MCP clients do not log in.
    pub s256: bool,
    /// The resources it says it issues tokens for (RFC 9728, 4).
    pub resources: Vec<String>,
}

/// Asks an issuer for its metadata and its keys.
pub async fn inspect(name: &Arc<str>, issuer: &Arc<Issuer>) -> Inspection {
    let authority = Authority::new(Arc::clone(name), Arc::clone(issuer), Arc::<Fetcher>::default());
    let metadata = authority.discover().await.map_err(|trouble| trouble.to_string());
    let form = authority.metadata().map_or(Form::AuthorizationServer, |(form, _)| form);
    let keys = authority.fetch_once().await.map_err(|trouble| trouble.to_string());
    let loaded = authority.keys.loaded().map(|loaded| (loaded.keys.len(), loaded.keys.unusable));
    let metadata = metadata.map(|metadata| Offer {
        form,
        authorizes: metadata.authorization_endpoint.is_some(),
        client_documents: metadata.client_id_metadata_document_supported,
        registration: metadata.registration_endpoint.is_some(),
        s256: metadata.code_challenge_methods_supported.iter().any(|method| method == "S256"),
        resources: metadata.protected_resources.clone(),
    });
    Inspection { keys: keys.map(|_| loaded), metadata }
}
