//! Who calls: checks what a request shows against the methods of the server it asks for.

mod api_key;
mod authority;
pub mod bearer;
mod certificate;
mod challenge;
mod circle;
mod claims;
mod discovery;
mod explain;
mod fetch;
mod inspect;
mod introspection;
mod issuers;
mod jwks;
mod jwt;
mod key_source;
mod new_key;
mod question;
mod rejection;
mod renewals;
mod requirements;
mod resource;
mod run_key;
mod scopes;
mod token_cache;
mod trail;

pub use api_key::{Admitted, Keys};
pub use certificate::admit_certificate;
pub use discovery::Form;
pub use explain::{Explanation, explain};
pub use inspect::{Inspection, Offer, inspect};
pub use issuers::Issuers;
pub use new_key::{NewKey, is_api_key};
pub use rejection::{Answer, Rejection, TokenFault};
pub use requirements::{Operation, Requirements};
pub use resource::{Metadata, Resource, ResourceParts, WELL_KNOWN};
pub use run_key::{RunKey, RunKeyError, run_key};
pub use scopes::Scopes;
pub use trail::Step;

use crate::auth::new_key::PREFIX;
use crate::caller::Principal;
use crate::config::{Method, ServerAuth};
use crate::telemetry::label::AuthMethod;

/// What is known of a request before its credentials are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Name of the server it asks for.
    pub server: &'a str,
    /// Who may enter that.
    pub policy: &'a ServerAuth,
    /// SHA-256 of the client certificate its connection showed, where it showed one.
    pub thumbprint: Option<&'a [u8; 32]>,
    /// Seconds since the Unix epoch.
    pub now_unix: u64,
}

/// What became of the credentials of one request.
#[derive(Debug)]
pub struct Verdict {
    /// How they were checked, for the metrics; `None` where nothing is asked for.
    pub method: Option<AuthMethod>,
    /// Whom they let in, or why nobody.
    pub outcome: Result<Admitted, Rejection>,
}

/// Judges what a request shows; `authorization` is the value of each of its `Authorization` fields.
///
/// A bearer token is an API key if it starts like one, else an access token; a server that takes only one of the two
/// judges any token as that. Where the server lets everybody in, nothing is looked at: a client that sends a key anyway
/// is served. Only a token that is not known yet is waited for.
pub async fn admit(
    keys: &Keys,
    issuers: &Issuers,
    asked: &Asked<'_>,
    authorization: impl IntoIterator<Item = &[u8]>,
) -> Verdict {
    let takes = |method| asked.policy.methods.contains(&method);
    if takes(Method::None) {
        return Verdict { method: None, outcome: Ok(Admitted::bare(Principal::Anonymous)) };
    }
    let shown = match bearer::shown(authorization) {
        Ok(shown) => shown,
        Err(rejection) => {
            let method = if takes(Method::ApiKey) { AuthMethod::ApiKey } else { AuthMethod::Jwt };
            return Verdict { method: Some(method), outcome: Err(rejection) };
        }
    };
    let is_key = !takes(Method::Oauth) || (takes(Method::ApiKey) && shown.starts_with(PREFIX.as_bytes()));
    if is_key {
        let outcome = keys.verify(shown, asked.server, asked.now_unix);
        return Verdict { method: Some(AuthMethod::ApiKey), outcome };
    }
    issuers.verify(shown, asked).await
}
