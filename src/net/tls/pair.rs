//! One certificate with its key, as two files hold them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, InconsistentKeys};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;
use x509_parser::prelude::X509Certificate;

use crate::config::CertificatePair;

use super::credentials::TlsProblem;

/// A certificate that can be served.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) certified: Arc<CertifiedKey>,
    /// Names it is for, lower case; a wildcard with its `*.`.
    pub(super) names: Vec<String>,
    /// What metrics and the log call it: its first name, else the name of its file.
    pub(super) name: String,
    /// When it ends, in seconds since the Unix epoch.
    pub(super) expires: u64,
    /// The text of the key, to tell whether it changed.
    key: Vec<u8>,
}

impl Pair {
    /// Reads both files.
    ///
    /// # Errors
    /// Which of them is wrong, and how.
    pub(super) fn read(files: &CertificatePair) -> Result<Pair, TlsProblem> {
        let problem = |file: &Path, reason: String| TlsProblem { file: file.to_owned(), reason };
        let cert = |reason: String| problem(&files.cert, reason);
        let key_problem = |reason: String| problem(&files.key, reason);
        let chain = certificates(&files.cert)?;
        let key = fs::read(&files.key).map_err(|error| unreadable(&files.key, &error))?;
        let parsed = PrivateKeyDer::from_pem_slice(&key).map_err(|error| key_problem(no_pem("private key", &error)))?;
        let signing = super::provider()
            .key_provider
            .load_private_key(parsed)
            .map_err(|_| key_problem("holds a private key of a kind that is not known".to_owned()))?;
        let leaf = chain.first().expect("a file without a certificate is refused");
        let (names, name, expires) = {
            let (_, leaf) =
                parse_x509_certificate(leaf).map_err(|error| cert(format!("holds no X.509 certificate: {error}")))?;
            let names = names(&leaf);
            let name = names.first().cloned().unwrap_or_else(|| file_name(&files.cert));
            (names, name, u64::try_from(leaf.validity().not_after.timestamp()).unwrap_or(0))
        };
        let certified = CertifiedKey::new(chain, signing);
        match certified.keys_match() {
            Ok(()) | Err(TlsError::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(TlsError::InconsistentKeys(_)) => {
                return Err(key_problem(format!("does not fit the certificate in {}", files.cert.display())));
            }
            Err(error) => return Err(cert(format!("holds no certificate that can be served: {error}"))),
        }
        Ok(Pair { certified: Arc::new(certified), names, name, expires, key })
    }

    /// Whether it is the same certificate with the same key.
    pub(super) fn is_same(&self, other: &Pair) -> bool {
        self.certified.cert == other.certified.cert && self.key == other.key
    }
}

/// Every certificate of a PEM file, in order; never empty.
pub(super) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
    let problem = |reason: String| TlsProblem { file: file.to_owned(), reason };
    let text = fs::read(file).map_err(|error| unreadable(file, &error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| problem(no_pem("certificate", &error)))?;
    if found.is_empty() {
        return Err(problem(no_pem("certificate", &PemError::NoItemsFound)));
    }
    Ok(found)
}

fn unreadable(file: &Path, error: &io::Error) -> TlsProblem {
    TlsProblem { file: file.to_owned(), reason: format!("cannot be read: {error}") }
}

fn no_pem(what: &str, error: &PemError) -> String {
    match error {
        PemError::NoItemsFound => format!("holds no {what} in PEM form"),
        _ => format!("holds no whole {what} in PEM form"),
    }
}

/// The names a certificate is for. The subject's common name has not counted for long (RFC 9525, 6.3), and a client
/// asks for no address (RFC 6066, 3).
fn names(leaf: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(alternatives)) = leaf.subject_alternative_name() else { return Vec::new() };
    let dns = alternatives.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    dns.collect()
}

fn file_name(file: &Path) -> String {
    PathBuf::from(file.file_name().unwrap_or_default()).display().to_string()
}
