//! `tls` of `[listen]`.

use std::path::PathBuf;

use super::convert::{Refused, mismatch, pick, text};
use super::document::{Node, Value};
use super::meaning::{CertificatePair, ClientAuth, Tls};
use super::report::shown;
use super::section::Section;

const REMEDY: &str = "write [{ cert = \"server.pem\", key = \"server-key.pem\" }]";

/// Reads `tls`; no certificate is no TLS.
pub(super) fn read(mut section: Section<'_>) -> Option<Tls> {
    let (certificates, is_refused) = certificates(&mut section);
    let base = section.report.base;
    let client_ca = section.parsed("client_ca", "", |path| Ok(base.join(path)));
    let auths = [("off", ClientAuth::Off), ("optional", ClientAuth::Optional), ("required", ClientAuth::Required)];
    let client_auth = section.value("client_auth", &Value::plain("off"), |value| pick(text(value)?, &auths));
    let refuse = |key: &'static str, problem: &str, remedy: &str| {
        section.refuse(key, section.place(key).as_ref(), Refused::new(problem, remedy));
    };
    match (client_auth, &client_ca) {
        (ClientAuth::Off, Some(_)) => {
            refuse("client_ca", "is not used", "set client_auth to \"optional\" or \"required\"");
        }
        (ClientAuth::Optional | ClientAuth::Required, None) => {
            refuse("client_auth", "has nobody to trust", "set client_ca to the PEM file of the authority of clients");
        }
        _ => {}
    }
    if certificates.is_empty() && client_auth != ClientAuth::Off && !is_refused {
        refuse("client_auth", "needs a certificate of this side", REMEDY);
    }
    (!certificates.is_empty()).then_some(Tls { certificates, client_ca, client_auth })
}

/// Reads `certificates`, and tells whether something was wrong.
fn certificates(section: &mut Section<'_>) -> (Vec<CertificatePair>, bool) {
    const KEY: &str = "certificates";
    let node = section.take(KEY);
    section.record(KEY, node, node.map_or_else(|| "[]".to_owned(), |node| shown(&node.value)));
    let Some(node) = node else { return (Vec::new(), false) };
    let Value::Array(items) = &node.value else {
        section.refuse(KEY, Some(&node.place), mismatch(&node.value, REMEDY));
        return (Vec::new(), true);
    };
    let pairs: Vec<CertificatePair> = items.iter().filter_map(|item| pair(section, item)).collect();
    let is_refused = pairs.len() < items.len();
    (pairs, is_refused)
}

fn pair(section: &Section<'_>, item: &Node) -> Option<CertificatePair> {
    let table = match &item.value {
        Value::Table(table) => table,
        other => {
            section.refuse("certificates", Some(&item.place), mismatch(other, REMEDY));
            return None;
        }
    };
    let name = section.name("certificates");
    let mut own = Section::new(section.report, &name, Some(table), Some(item.place.clone()));
    let mut path = |key: &'static str| -> Option<PathBuf> {
        let Some(node) = own.take(key) else {
            own.refuse(key, Some(&item.place), Refused::new("is missing", REMEDY));
            return None;
        };
        match text(&node.value) {
            Ok("") => own.refuse(key, Some(&node.place), Refused::new("is empty", REMEDY)),
            Ok(path) => return Some(own.report.base.join(path)),
            Err(_) if matches!(node.value, Value::Unfilled) => {}
            Err(refused) => own.refuse(key, Some(&node.place), refused),
        }
        None
    };
    // Both are read whatever becomes of the first, so that all problems are found at once.
    let (cert, key) = (path("cert"), path("key"));
    Some(CertificatePair { cert: cert?, key: key? })
}
