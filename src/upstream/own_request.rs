//! What the gateway asks a child in its own name.

use bytes::Bytes;

use crate::mcp::ids::put_u64;
use crate::mcp::message::{Fault, Message};
use crate::mcp::revision::Revision;
use crate::mcp::scan::Author;

/// A request under a child-side id. `params` is JSON.
///
/// # Errors
/// `params` is not.
pub fn own_request(method: &str, params: &str, call: u64) -> Result<Message, Fault> {
    let mut text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":"#).into_bytes();
    put_u64(&mut text, call);
    text.push(b'}');
    Message::parse(Bytes::from(text), Author::Client)
}

/// The parameters of an `initialize` in the gateway's own name, with no capability a client might not have.
#[must_use]
pub fn own_introduction(revision: Revision) -> String {
    let (revision, version) = (revision.name(), env!("CARGO_PKG_VERSION"));
    format!(
        r#"{{"protocolVersion":"{revision}","capabilities":{{}},"clientInfo":{{"name":"gangway","version":"{version}"}}}}"#
    )
}
