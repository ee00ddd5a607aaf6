//! Lets callers in by the certificate they showed in the TLS handshake, which checked it.

use super::{Admitted, Rejection};
use crate::caller::{ClientCertificate, Principal, Proof};

/// Lets a caller in by its certificate. The handshake was a while ago, so its end is looked at again: `now_unix` is in
/// seconds since the Unix epoch.
///
/// # Errors
/// There is none, or it has ended since.
pub fn admit_certificate(certificate: Option<&ClientCertificate>, now_unix: u64) -> Result<Admitted, Rejection> {
    let certificate = certificate.ok_or(Rejection::Missing)?;
    if certificate.expires <= now_unix {
        return Err(Rejection::Expired);
    }
    let principal = Principal::Certificate(certificate.subject.clone());
    Ok(Admitted { proof: Proof::until(certificate.expires), ..Admitted::bare(principal) })
}

#[cfg(test)]
mod tests {
    use super::admit_certificate;
    use crate::auth::Rejection;
    use crate::caller::{ClientCertificate, Principal};

    #[test]
    fn a_certificate_lets_in_until_it_ends() {
        let certificate = ClientCertificate { subject: "CN=agent".into(), thumbprint: [0; 32], expires: 2_000 };
        let admitted = admit_certificate(Some(&certificate), 1_999).expect("it is good");
        assert_eq!(admitted.principal, Principal::Certificate("CN=agent".into()));
        assert_eq!(admitted.proof.until, Some(2_000));
        assert_eq!(admit_certificate(Some(&certificate), 2_000).err(), Some(Rejection::Expired));
        assert_eq!(admit_certificate(None, 0).err(), Some(Rejection::Missing));
    }
}
