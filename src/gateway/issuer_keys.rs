//! What access tokens need before requests are welcome: the keys of every issuer.

use std::fmt::Write;
use std::sync::Arc;

use crate::auth::Issuers;
use crate::server::Prerequisite;

/// Every issuer's keys, once.
pub(super) struct IssuerKeys(pub(super) Arc<Issuers>);

impl Prerequisite for IssuerKeys {
    fn check(&self) -> Result<(), &'static str> {
        if self.0.were_ready() { Ok(()) } else { Err("issuers") }
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for name in self.0.unready() {
            writeln!(text, "issuer {name} unreachable").expect("writing to a String cannot fail");
        }
        text
    }
}
