//! What a listener shows of itself and asks of clients: every certificate pair, and the authorities of clients.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoClientAuth, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;

use crate::config::{self, ClientAuth};

use super::pair::{Pair, certificates};

/// What is wrong with a file. Its text names the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsProblem {
    /// The file.
    pub file: PathBuf,
    /// What is wrong, to finish the sentence "FILE …".
    pub reason: String,
}

impl fmt::Display for TlsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.file.display(), self.reason)
    }
}

/// Everything the files of `listen.tls` hold, read and checked.
#[derive(Clone)]
pub struct Credentials {
    pairs: Vec<Arc<Pair>>,
    clients: Clients,
}

/// Whom clients' certificates are from.
#[derive(Clone)]
struct Clients {
    roots: Arc<RootCertStore>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Credentials {
    /// Reads every file; may wait for disks.
    ///
    /// # Errors
    /// Every file that is wrong.
    pub fn read(tls: &config::Tls) -> Result<Credentials, Vec<TlsProblem>> {
        let mut problems = Vec::new();
        let mut pairs = Vec::new();
        for files in &tls.certificates {
            match Pair::read(files) {
                Ok(pair) => pairs.push(Arc::new(pair)),
                Err(problem) => problems.push(problem),
            }
        }
        match Clients::read(tls) {
            Ok(clients) if problems.is_empty() => Ok(Credentials { pairs, clients }),
            Ok(_) => Err(problems),
            Err(problem) => {
                problems.push(problem);
                Err(problems)
            }
        }
    }

    /// Reads the pairs and, if it `is_changed`, the authorities of clients again, where `is_changed` says so of one of
    /// their files. What is wrong keeps what it held, and so does a pair whose new certificate has ended at
    /// `now_unix`.
    #[must_use]
    pub fn renewed(
        &self,
        tls: &config::Tls,
        now_unix: u64,
        is_changed: impl Fn(&Path) -> bool,
    ) -> (Credentials, Vec<TlsProblem>) {
        let mut next = self.clone();
        let mut problems = Vec::new();
        for (files, kept) in tls.certificates.iter().zip(&mut next.pairs) {
            if !is_changed(&files.cert) && !is_changed(&files.key) {
                continue;
            }
            match Pair::read(files) {
                Ok(pair) if pair.is_same(kept) => {}
                Ok(pair) if pair.expires <= now_unix => problems.push(ended(&files.cert)),
                Ok(pair) => *kept = Arc::new(pair),
                Err(problem) => problems.push(problem),
            }
        }
        if tls.client_ca.as_deref().is_some_and(is_changed) {
            match Clients::read(tls) {
                Ok(clients) => next.clients = clients,
                Err(problem) => problems.push(problem),
            }
        }
        (next, problems)
    }

    /// The certificates that have ended at `now_unix` and are not among those of `before`.
    #[must_use]
    pub fn ended(&self, tls: &config::Tls, now_unix: u64, before: Option<&Credentials>) -> Vec<TlsProblem> {
        let is_known = |pair: &Pair| before.is_some_and(|before| before.pairs.iter().any(|known| known.is_same(pair)));
        let pairs = self.pairs.iter().zip(&tls.certificates);
        let ended_now = pairs.filter(|(pair, _)| pair.expires <= now_unix && !is_known(pair));
        ended_now.map(|(_, files)| ended(&files.cert)).collect()
    }

    /// Whether these are the same certificates, keys and authorities.
    #[must_use]
    pub fn is_same(&self, other: &Credentials) -> bool {
        self.pairs.len() == other.pairs.len()
            && self.pairs.iter().zip(&other.pairs).all(|(one, other)| one.is_same(other))
            && self.clients.roots.roots == other.clients.roots.roots
    }

    /// Each certificate's name and end, in seconds since the Unix epoch.
    pub fn ends(&self) -> impl Iterator<Item = (&str, u64)> {
        self.pairs.iter().map(|pair| (pair.name.as_str(), pair.expires))
    }

    pub(super) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.clients.verifier)
    }

    pub(super) fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::new(ByName::new(&self.pairs))
    }
}

fn ended(cert: &Path) -> TlsProblem {
    TlsProblem { file: cert.to_owned(), reason: "holds a certificate that has ended".to_owned() }
}

impl Clients {
    fn read(tls: &config::Tls) -> Result<Clients, TlsProblem> {
        let mut roots = RootCertStore::empty();
        let (Some(file), true) = (&tls.client_ca, tls.client_auth != ClientAuth::Off) else {
            return Ok(Clients { roots: Arc::new(roots), verifier: Arc::new(NoClientAuth) });
        };
        let problem = |reason: String| TlsProblem { file: file.clone(), reason };
        for certificate in certificates(file)? {
            roots
                .add(certificate)
                .map_err(|error| problem(format!("holds no certificate of an authority: {error}")))?;
        }
        let roots = Arc::new(roots);
        let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), super::provider());
        if tls.client_auth == ClientAuth::Optional {
            builder = builder.allow_unauthenticated();
        }
        let verifier = builder.build().map_err(|error| problem(format!("cannot be used: {error}")))?;
        Ok(Clients { roots, verifier })
    }
}

/// Certificates by the name a client asks for (RFC 6066, 3).
#[derive(Debug)]
struct ByName {
    /// For names as they are, and under the suffix of a wildcard with its dot.
    by_name: HashMap<String, Vec<Arc<CertifiedKey>>>,
    default: Arc<CertifiedKey>,
}

impl ByName {
    fn new(pairs: &[Arc<Pair>]) -> ByName {
        let mut by_name: HashMap<String, Vec<Arc<CertifiedKey>>> = HashMap::new();
        for pair in pairs {
            for name in &pair.names {
                // A wildcard stands for one label (RFC 9525, 6.3); no name begins with a dot, so both fit one table.
                let key = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
                by_name.entry(key.to_owned()).or_default().push(Arc::clone(&pair.certified));
            }
        }
        let default = pairs.first().expect("TLS without a certificate is no TLS");
        ByName { by_name, default: Arc::clone(&default.certified) }
    }

    fn named(&self, name: &str) -> Option<&Vec<Arc<CertifiedKey>>> {
        let name = name.to_ascii_lowercase();
        let wildcard = || self.by_name.get(name.get(name.find('.')?..)?);
        self.by_name.get(&name).or_else(wildcard)
    }
}

impl ResolvesServerCert for ByName {
    /// The first certificate of that name whose key the client can check. A client that asks for another name, or
    /// none, gets the first: it says better than an alert what is wrong.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.server_name().and_then(|name| self.named(name)).map_or(&[][..], Vec::as_slice);
        let usable = named.iter().find(|one| one.key.choose_scheme(hello.signature_schemes()).is_some());
        Some(Arc::clone(usable.or_else(|| named.first()).unwrap_or(&self.default)))
    }
}
