//! The URL clients type, the hosts and origins they may come with.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::address::{is_host_name, is_loopback_host};
use super::convert::Refused;
use super::issuer::Provider;
use super::meaning::PublicUrl;

/// A host as it stands in a URL.
pub(super) struct Bracketed<'a>(pub(super) &'a str);

impl fmt::Display for Bracketed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.contains(':') { write!(f, "[{}]", self.0) } else { f.write_str(self.0) }
    }
}

impl PublicUrl {
    /// Whether clients that use it are on this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        is_loopback_host(&self.host)
    }

    /// Parses `http(s)://host[:port][/path]`.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    pub(super) fn parse(text: &str) -> Result<Self, Refused> {
        let form = "write what clients type, such as \"https://mcp.example.com\"";
        let (scheme, rest) = split_scheme(text).ok_or_else(|| Refused::new("is no http or https URL", form))?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if rest.contains(['?', '#', '@', ' ', '\\']) {
            return Err(Refused::new("has a query, a fragment, a user or a space", form));
        }
        let (host, port) =
            split_authority(authority).ok_or_else(|| Refused::new("has no valid host and port", form))?;
        // A client that leaves it out means the same, and identifiers are compared byte for byte.
        let port = port.filter(|port| *port != if scheme == "https" { 443 } else { 80 });
        let path = path.trim_end_matches('/');
        if !path.is_empty() && !is_path(path) {
            return Err(Refused::new("has a path with an empty, dotted or encoded part", form));
        }
        Ok(Self { scheme, host, port, path: path.to_owned() })
    }
}

impl fmt::Display for PublicUrl {
    /// The URL without a slash at its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, Bracketed(&self.host))?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(&self.path)
    }
}

fn split_scheme(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    matches!(scheme.as_str(), "http" | "https").then_some((scheme, rest))
}

/// Splits `host[:port]`; the host comes back lower case and without brackets.
fn split_authority(authority: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port.parse::<u16>().ok()?)),
        _ => (authority, None),
    };
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?.to_string(),
        None if host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4()) || is_host_name(host) => {
            host.to_ascii_lowercase()
        }
        None => return None,
    };
    Some((host, port))
}

/// Parses the URL of something the gateway asks for itself: https, or http on this machine.
pub(super) fn endpoint_url(text: &str) -> Result<String, Refused> {
    let form = "write its whole URL, such as \"https://login.example.com/keys\"";
    let (scheme, rest) = split_scheme(text).ok_or_else(|| Refused::new("is no http or https URL", form))?;
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    let (host, _) = split_authority(authority).ok_or_else(|| Refused::new("has no valid host and port", form))?;
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '#' | '\\' | '"' | '<' | '>');
    if !rest.chars().all(plain) || authority.contains('@') {
        return Err(Refused::new("has a fragment, a user, or characters that no URL has", form));
    }
    if scheme == "http" && !is_loopback_host(&host) {
        return Err(Refused::new("is plain HTTP", "write its https URL: whoever sits between could put in other keys"));
    }
    Ok(text.to_owned())
}

/// Parses the identifier of an issuer (RFC 8414, 2), which is compared byte for byte from then on.
pub(super) fn issuer_url(text: &str, provider: Provider) -> Result<String, Refused> {
    let url = endpoint_url(text)?;
    if url.contains('?') {
        return Err(Refused::new("has a query", "write what stands in `iss` of its tokens, byte for byte"));
    }
    if url.contains("/.well-known/") {
        let remedy = "write what stands before /.well-known, which is `iss` of its tokens, byte for byte";
        return Err(Refused::new("names a document of the issuer, not the issuer", remedy));
    }
    let many = ["/common/", "/organizations/", "/consumers/", "/{tenantid}/"];
    if provider == Provider::Entra && many.iter().any(|part| format!("{url}/").contains(part)) {
        let remedy = "write your tenant's: \"https://login.microsoftonline.com/TENANT-ID/v2.0\"";
        return Err(Refused::new("stands for many tenants, whose tokens each name their own", remedy));
    }
    Ok(url)
}

/// Whether a path is made of plain parts: each starts with a letter, a digit, `_`, `~` or `-`, and goes on with those
/// and dots. A router that compares bytes needs no more, and dot segments or escapes never get a second reading.
pub(super) fn is_path(path: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '~' | '-');
    path.strip_prefix('/').is_some_and(|rest| {
        rest.split('/').all(|part| part.starts_with(plain) && part.chars().all(|c| plain(c) || c == '.'))
    })
}

/// Parses an entry of `allowed_hosts`: a name without port.
pub(super) fn parse_allowed_host(text: &str) -> Result<String, Refused> {
    if is_host_name(text) {
        return Ok(text.to_ascii_lowercase());
    }
    let remedy = if text.parse::<IpAddr>().is_ok() {
        "leave it out: every IP address is accepted as a host"
    } else {
        "write the name alone, without scheme, port or wildcard, such as \"mcp.example.com\""
    };
    Err(Refused::new("has an entry that is not a host name", remedy))
}

/// Parses an entry of `allowed_origins`. The port a scheme implies is dropped, as browsers do (RFC 6454, 6.2).
pub(super) fn parse_origin(text: &str) -> Result<String, Refused> {
    let refused = || {
        let remedy = "write scheme://host[:port] without a path, such as \"https://app.example.com\"";
        Refused::new("has an entry that is not an origin", remedy)
    };
    let (scheme, authority) = text.split_once("://").ok_or_else(refused)?;
    let scheme = scheme.to_ascii_lowercase();
    let starts = scheme.starts_with(|c: char| c.is_ascii_lowercase());
    if !starts || !scheme.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '+' | '-' | '.'))
    {
        return Err(refused());
    }
    let (host, port) = split_authority(authority).ok_or_else(refused)?;
    let implied = match scheme.as_str() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    Ok(match port.filter(|port| Some(*port) != implied) {
        Some(port) => format!("{scheme}://{}:{port}", Bracketed(&host)),
        None => format!("{scheme}://{}", Bracketed(&host)),
    })
}

#[cfg(test)]
mod tests {
    use super::super::meaning::PublicUrl;
    use super::{is_path, parse_allowed_host, parse_origin};

    #[test]
    fn public_urls_are_read() {
        for (text, expected) in [
            ("https://mcp.example.com", "https://mcp.example.com"),
            ("https://mcp.example.com/", "https://mcp.example.com"),
            ("HTTPS://MCP.example.com:8443/tools/", "https://mcp.example.com:8443/tools"),
            ("http://127.0.0.1:80/a/b", "http://127.0.0.1/a/b"),
            ("https://mcp.example.com:80", "https://mcp.example.com:80"),
            ("http://[::1]:8080", "http://[::1]:8080"),
        ] {
            assert_eq!(PublicUrl::parse(text).expect(text).to_string(), expected);
        }
        assert!(PublicUrl::parse("http://localhost").expect("a URL").is_loopback());
        assert!(!PublicUrl::parse("http://example.com").expect("a URL").is_loopback());
    }

    #[test]
    fn what_is_no_public_url_is_refused() {
        for text in [
            "mcp.example.com",
            "ftp://example.com",
            "https://",
            "https://user@example.com",
            "https://example.com/?a",
            "https://example.com/#a",
            "https://example.com:x",
            "https://example.com/a//b",
            "https://example.com/../b",
            "https://example.com/%61",
            "https://[::1",
        ] {
            assert!(PublicUrl::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn origins_are_normalised() {
        for (text, expected) in [
            ("https://App.Example.com", Some("https://app.example.com")),
            ("https://app.example.com:443", Some("https://app.example.com")),
            ("http://localhost:5173", Some("http://localhost:5173")),
            ("vscode-webview://abc", Some("vscode-webview://abc")),
            ("http://[::1]:1", Some("http://[::1]:1")),
            ("*", None),
            ("null", None),
            ("https://*.example.com", None),
            ("https://app.example.com/", None),
            ("app.example.com", None),
        ] {
            assert_eq!(parse_origin(text).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn allowed_hosts_are_plain_names() {
        assert_eq!(parse_allowed_host("MCP.example.com").as_deref(), Ok("mcp.example.com"));
        for text in ["", "*", "*.example.com", "example.com:80", "https://example.com", "10.0.0.1", "::1"] {
            assert!(parse_allowed_host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn paths_have_plain_parts() {
        for path in ["/mcp", "/a/mcp", "/a-b_c~d/v1.2"] {
            assert!(is_path(path), "{path}");
        }
        for path in ["", "/", "mcp", "/a/", "/a//b", "/.", "/a/..", "/.well-known/x", "/a%20b", "/a b", "/a?b"] {
            assert!(!is_path(path), "{path}");
        }
    }
}
