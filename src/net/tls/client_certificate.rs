//! Whose a client certificate is.

use std::fmt::Write;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::parse_x509_certificate;
use x509_parser::prelude::X509Certificate;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use crate::caller::ClientCertificate;

/// Reads a certificate that the handshake has verified.
///
/// # Errors
/// It is no X.509 certificate after all.
pub(super) fn read(der: &CertificateDer<'_>) -> Result<ClientCertificate, ()> {
    let (_, certificate) = parse_x509_certificate(der).map_err(drop)?;
    let thumbprint: [u8; 32] = Sha256::digest(der).into();
    let subject = Some(subject(certificate.subject()))
        .filter(|subject| !subject.is_empty())
        .or_else(|| first_alternative(&certificate))
        .unwrap_or_else(|| format!("sha256:{}", hexadecimal(&thumbprint)));
    let expires = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
    Ok(ClientCertificate { subject: Arc::from(subject), thumbprint, expires })
}

/// A name as one string, which no other name has (RFC 4514): the last part first, everything special escaped.
fn subject(name: &X509Name<'_>) -> String {
    let parts: Vec<String> = name.iter().map(|part| part.iter().map(attribute).collect::<Vec<_>>().join("+")).collect();
    parts.iter().rev().map(String::as_str).collect::<Vec<_>>().join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let kind = match oid2abbrev(attribute.attr_type(), oid_registry()) {
        Ok(name) => name.to_owned(),
        Err(_) => attribute.attr_type().to_id_string(),
    };
    let value = match attribute.as_str() {
        Ok(text) => escaped(text),
        // Not a text that is known; its bytes tell it apart.
        Err(_) => format!("#{}", hexadecimal(attribute.as_slice())),
    };
    format!("{kind}={value}")
}

/// Escapes a value (RFC 4514, 2.4). Control characters become their bytes, so that it can stand in a log.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let last = text.chars().count().saturating_sub(1);
    for (at, c) in text.chars().enumerate() {
        match c {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=' => out.extend(['\\', c]),
            '#' if at == 0 => out.push_str("\\#"),
            ' ' if at == 0 || at == last => out.push_str("\\ "),
            c if c.is_control() => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    write!(out, "\\{byte:02x}").expect("writing to a String cannot fail");
                }
            }
            c => out.push(c),
        }
    }
    out
}

/// The first name of a certificate without a subject, as workload identities are.
fn first_alternative(certificate: &X509Certificate<'_>) -> Option<String> {
    let alternatives = certificate.subject_alternative_name().ok()??;
    alternatives.value.general_names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => Some(format!("URI={}", escaped(uri))),
        GeneralName::DNSName(name) => Some(format!("DNS={}", escaped(name))),
        GeneralName::RFC822Name(address) => Some(format!("email={}", escaped(address))),
        _ => None,
    })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};

    use super::{escaped, read};

    fn subject_of(change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        read(certificate.der()).expect("it is one").subject.to_string()
    }

    #[test]
    fn a_subject_is_one_string_that_no_other_has() {
        let name = |parts: &[(DnType, &str)]| {
            subject_of(|params| {
                for (kind, value) in parts {
                    params.distinguished_name.push(kind.clone(), DnValue::Utf8String((*value).to_owned()));
                }
            })
        };
        let (cn, o) = (DnType::CommonName, DnType::OrganizationName);
        assert_eq!(name(&[(o.clone(), "Example"), (cn.clone(), "agent")]), "CN=agent,O=Example");
        let forged = name(&[(cn.clone(), "agent,O=Example")]);
        assert_eq!(forged, "CN=agent\\,O\\=Example");
        assert_eq!(name(&[(cn, " a\nb ")]), "CN=\\ a\\0ab\\ ");
    }

    #[test]
    fn without_a_subject_the_first_alternative_counts_and_then_the_certificate() {
        let uri = subject_of(|params| {
            let uri = "spiffe://example.org/agent".try_into().expect("a URI");
            params.subject_alt_names = vec![SanType::URI(uri)];
        });
        assert_eq!(uri, "URI=spiffe://example.org/agent");
        let bare = subject_of(|_| {});
        assert_eq!(bare.len(), "sha256:".len() + 64, "{bare}");
    }

    #[test]
    fn what_is_special_is_escaped() {
        assert_eq!(escaped("#a;\\"), "\\#a\\;\\\\");
        assert_eq!(escaped("plain name"), "plain name");
    }
}
