//! `listen.tls`: what is read, and what of it cannot be meant.

use std::time::Duration;

use super::super::ClientAuth;
use super::{bad, good};

const SERVER: &str = "[servers.a]\ncommand = \"a\"\n";

#[test]
fn pairs_and_authorities_are_files_beside_the_configuration() {
    let text = "[listen]\naddress = \"localhost:1\"\n[listen.tls]\nclient_ca = \"clients.pem\"\nclient_auth = \"required\"\n\
                certificates = [{ cert = \"a.pem\", key = \"/run/a.key\" }, { cert = \"b.pem\", key = \"b.key\" }]\n";
    let config =
        good(&format!("{text}limits.tls_handshake = \"3s\"\n{SERVER}").replace("limits.", "[limits]\n")).config;
    let tls = config.listen.tls.expect("there are certificates");
    assert_eq!(tls.certificates.len(), 2);
    assert_eq!(tls.certificates[0].cert.to_str(), Some("/etc/gangway/a.pem"));
    assert_eq!(tls.certificates[0].key.to_str(), Some("/run/a.key"));
    assert_eq!(tls.client_ca.as_deref().and_then(|path| path.to_str()), Some("/etc/gangway/clients.pem"));
    assert_eq!((tls.client_auth, config.limits.tls_handshake), (ClientAuth::Required, Duration::from_secs(3)));
    let plain = good(SERVER).config;
    assert_eq!((plain.listen.tls.is_none(), plain.listen.scheme()), (true, "http"));
    assert_eq!(plain.limits.tls_handshake, Duration::from_secs(10));
}

#[test]
fn every_problem_is_told_with_its_place() {
    for (text, message, position) in [
        ("tls.certificates = \"a.pem\"", "`listen.tls.certificates` cannot be a string", (2, 20)),
        ("tls.certificates = [\"a.pem\"]", "`listen.tls.certificates` cannot be a string", (2, 21)),
        ("tls.certificates = [{ cert = \"a.pem\" }]", "`listen.tls.certificates.key` is missing", (2, 21)),
        ("tls.certificates = [{ cert = \"\", key = \"k\" }]", "`listen.tls.certificates.cert` is empty", (2, 30)),
        ("tls.certificates = [{ cert = \"c\", key = \"k\", ca = \"x\" }]", "unknown key `ca`", (2, 46)),
        ("tls.client_auth = \"required\"", "`listen.tls.client_auth` has nobody to trust", (2, 19)),
        ("tls = { client_ca = \"a.pem\" }", "`listen.tls.client_ca` is not used", (2, 21)),
        ("tls.client_auth = \"maybe\"", "`listen.tls.client_auth` has an unknown value", (2, 19)),
        ("tls.certs = []", "unknown key `certs` in [listen.tls]", (2, 5)),
    ] {
        let problems = bad(&format!("[listen]\n{text}\n{SERVER}"));
        let found = problems.iter().find(|problem| problem.to_string().contains(message));
        let found = found.unwrap_or_else(|| panic!("{message} is not in\n{problems}"));
        assert_eq!(found.position(), Some(position), "{text}");
    }
    let both = "tls = { certificates = [{ cert = 1 }], client_auth = \"optional\" }";
    let problems = bad(&format!("[listen]\n{both}\n{SERVER}"));
    assert_eq!(problems.iter().count(), 3, "{problems}");
    let alone = "tls = { client_ca = \"a.pem\", client_auth = \"optional\" }";
    assert!(bad(&format!("[listen]\n{alone}\n{SERVER}")).to_string().contains("needs a certificate of this side"));
}
