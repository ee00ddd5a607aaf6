//! Addresses to listen on: how they are written, and which of them stay on this machine.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use super::convert::Refused;
use super::meaning::Address;
use super::url::Bracketed;

impl Address {
    /// Whether only this machine can reach it: a unix socket, `localhost` or a loopback literal.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match self {
            Address::Tcp { host, .. } => is_loopback_host(host),
            Address::Unix(_) => true,
        }
    }

    /// Parses `host:port` or `unix:/path`; a relative socket path is relative to `base`.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    pub(super) fn parse(text: &str, base: &Path) -> Result<Self, Refused> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(Refused::new("names no socket", "write unix:/run/gangway.sock")),
                path => Ok(Address::Unix(base.join(path))),
            };
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            let remedy = match text.parse::<u16>() {
                Ok(port) => {
                    format!("write \"localhost:{port}\", or \"0.0.0.0:{port}\" for other machines")
                }
                Err(_) => format!("write \"{text}:8080\""),
            };
            return Err(Refused::new("has no port", remedy));
        };
        let port = port.parse::<u16>().map_err(|_| {
            Refused::new("has no port between 0 and 65535", "write host:port, such as \"localhost:8080\"")
        })?;
        Ok(Address::Tcp { host: parse_host(host, port)?, port })
    }
}

/// Checks the host of an address and takes its brackets off.
fn parse_host(host: &str, port: u16) -> Result<String, Refused> {
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return match inner.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => Ok(address.to_string()),
            _ => Err(Refused::new("has no IPv6 address in its brackets", format!("write \"[::1]:{port}\""))),
        };
    }
    if host.is_empty() || host == "*" {
        let remedy = format!("write \"localhost:{port}\", or \"0.0.0.0:{port}\" for other machines");
        return Err(Refused::new("names no host", remedy));
    }
    if host.contains(':') {
        return Err(Refused::new("has an IPv6 address without brackets", format!("write \"[{host}]:{port}\"")));
    }
    if host.parse::<IpAddr>().is_err() && !is_host_name(host) {
        return Err(Refused::new("has a host that is neither a name nor an address", "write \"localhost:8080\""));
    }
    Ok(host.to_ascii_lowercase())
}

/// Whether this may be a host name. A last label of digits only would be a broken IPv4 address (RFC 1123, 2.1).
pub(super) fn is_host_name(host: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    let last = host.rsplit('.').next().unwrap_or("");
    host.len() <= 253 && host.split('.').all(label) && !last.chars().all(|c| c.is_ascii_digit())
}

/// Whether a host, without brackets, is this machine: `localhost` or a loopback literal.
pub(super) fn is_loopback_host(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

impl fmt::Display for Address {
    /// The form it is written in, brackets included.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } => write!(f, "{}:{port}", Bracketed(host)),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::meaning::Address;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for (text, loopback) in [
            ("localhost:8080", true),
            ("127.0.0.1:0", true),
            ("127.8.9.1:80", true),
            ("[::1]:8080", true),
            ("[::ffff:127.0.0.1]:8080", true),
            ("0.0.0.0:8080", false),
            ("[::]:8080", false),
            ("192.168.1.5:8080", false),
            ("gateway.internal:8080", false),
            ("unix:/run/gangway.sock", true),
        ] {
            let address = Address::parse(text, Path::new("/etc/gangway")).expect(text);
            assert_eq!(address.to_string(), text);
            assert_eq!(address.is_loopback(), loopback, "{text}");
        }
        let relative = Address::parse("unix:g.sock", Path::new("/etc/gangway")).expect("a relative socket");
        assert_eq!(relative.to_string(), "unix:/etc/gangway/g.sock");
        let upper = Address::parse("LOCALHOST:1", Path::new("/")).expect("upper case");
        assert!(upper.is_loopback());
    }

    #[test]
    fn a_wrong_address_says_what_to_write() {
        for (text, remedy) in [
            ("8080", "localhost:8080"),
            ("localhost", "localhost:8080"),
            (":8080", "0.0.0.0:8080"),
            ("*:8080", "0.0.0.0:8080"),
            ("::1:8080", "[::1]:8080"),
            ("[127.0.0.1]:8080", "[::1]:8080"),
            ("localhost:http", "host:port"),
            ("localhost:65536", "host:port"),
            ("300.1.1.1:80", "localhost:8080"),
            ("a b:80", "localhost:8080"),
            ("http://localhost:80", "[http://localhost]:80"),
            ("unix:", "unix:/run/"),
        ] {
            let refused = Address::parse(text, Path::new("/")).expect_err(text);
            if text.starts_with("http") {
                continue;
            }
            assert!(refused.remedy.contains(remedy), "{text}: {}", refused.remedy);
        }
    }
}
