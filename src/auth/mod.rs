//! Who calls: checks what a request shows against the methods of the server it asks for.

mod api_key;
mod challenge;
mod new_key;
mod run_key;
mod scopes;

pub use api_key::{Admitted, Keys, Rejection};
pub use new_key::{NewKey, is_api_key};
pub use run_key::{RunKey, RunKeyError, run_key};
pub use scopes::Scopes;

use crate::caller::Principal;
use crate::config::{Method, ServerAuth};

/// Lets a caller into a server, or says why not.
///
/// `authorization` is the value of each `Authorization` field of the request, `now_unix` the seconds since the Unix
/// epoch. Where the server lets everybody in, nothing is looked at: a client that sends a key anyway is served.
///
/// # Errors
/// The server asks for a key and the request shows none that opens it now.
pub fn admit<'a>(
    keys: &Keys,
    policy: &ServerAuth,
    authorization: impl IntoIterator<Item = &'a [u8]>,
    server: &str,
    now_unix: u64,
) -> Result<Admitted, Rejection> {
    if policy.methods.contains(&Method::None) {
        return Ok(Admitted::bare(Principal::Anonymous));
    }
    keys.verify(authorization, server, now_unix)
}
