//! Files that a configuration names: what is wrong with them, at the places that name them.

use crate::config::{Loaded, Problems};
use crate::gateway::{TlsProblem, check_tls};
use crate::telemetry::Audit;

/// Looks at the files of `listen.tls` and of the audit log; may wait for disks. `None` if nothing is wrong.
pub fn look(loaded: &Loaded) -> Option<Problems> {
    let tls = loaded.config.listen.tls.as_ref().and_then(|tls| check_tls(tls).err()).unwrap_or_default();
    let audit = loaded.config.telemetry.audit.as_ref().and_then(|audit| Audit::check(audit).err());
    let remedy = "the gateway does not start without it: write a file in a folder it may write to";
    let audit = audit.map(|error| ("telemetry.log.audit", error.to_string(), remedy));
    loaded.problems(tls.iter().map(|problem| tls_problem(loaded, problem)).chain(audit))
}

/// What is wrong with the files of `listen.tls`; `None` if nothing is.
pub fn tls_problems(loaded: &Loaded, found: &[TlsProblem]) -> Option<Problems> {
    loaded.problems(found.iter().map(|problem| tls_problem(loaded, problem)))
}

/// The key that names the file, what is wrong, and what should be there.
fn tls_problem(loaded: &Loaded, problem: &TlsProblem) -> (&'static str, String, &'static str) {
    let is_authority =
        loaded.config.listen.tls.as_ref().is_some_and(|tls| tls.client_ca.as_ref() == Some(&problem.file));
    let (key, remedy) = if is_authority {
        ("listen.tls.client_ca", "write the PEM file with the certificate of the authority that signs clients'")
    } else {
        let remedy = "a pair is two PEM files: the certificate with those between it and its authority, and its key";
        ("listen.tls.certificates", remedy)
    };
    (key, format!("`{key}`: {problem}"), remedy)
}
