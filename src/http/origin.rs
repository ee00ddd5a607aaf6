//! Hosts and origins as values that can be compared.

use std::net::IpAddr;

/// `host[:port]`, as in `Host` and in a URL (RFC 3986 section 3.2 without user information).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Authority<'a> {
    pub(super) host: Host<'a>,
    pub(super) port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host<'a> {
    /// A name as written; compare it without regard to case.
    Name(&'a str),
    /// An IP literal.
    Ip(IpAddr),
}

impl<'a> Authority<'a> {
    /// Reads `text`; `None` where it is anything else, so also with user information, an empty
    /// host, an empty port or a zone.
    pub(super) fn parse(text: &'a str) -> Option<Authority<'a>> {
        if let Some(rest) = text.strip_prefix('[') {
            let (literal, rest) = rest.split_once(']')?;
            let host = Host::Ip(IpAddr::V6(literal.parse().ok()?));
            let port = if rest.is_empty() { None } else { Some(port(rest.strip_prefix(':')?)?) };
            return Some(Authority { host, port });
        }
        let (name, port) = match text.split_once(':') {
            Some((name, digits)) => (name, Some(port(digits)?)),
            None => (text, None),
        };
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
            return None;
        }
        let host = name.parse().map_or(Host::Name(name), |v4| Host::Ip(IpAddr::V4(v4)));
        Some(Authority { host, port })
    }
}

impl Host<'_> {
    /// Whether this can only be the machine it is said on.
    pub(super) fn is_loopback(self) -> bool {
        match self {
            Host::Name(name) => name.eq_ignore_ascii_case("localhost"),
            Host::Ip(address) => address.to_canonical().is_loopback(),
        }
    }

    pub(super) fn same(self, other: Host<'_>) -> bool {
        match (self, other) {
            (Host::Name(one), Host::Name(other)) => one.eq_ignore_ascii_case(other),
            (one, other) => one == other,
        }
    }
}

fn port(digits: &str) -> Option<u16> {
    // `parse` alone would take a sign.
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// An origin in one spelling (RFC 6454 section 6): equal exactly when the origins are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    text: String,
    /// Whether it is a page served by this very machine.
    pub(super) is_loopback: bool,
}

impl Origin {
    /// Reads a serialised origin. What is no `http` or `https` origin, `null` too, equals only
    /// itself.
    pub(super) fn parse(text: &str) -> Origin {
        let lower = text.to_ascii_lowercase();
        let web = lower.split_once("://").and_then(|(scheme, authority)| {
            let default_port = match scheme {
                "http" => 80,
                "https" => 443,
                _ => return None,
            };
            let Authority { host, port } = Authority::parse(authority)?;
            Some(Origin::web(scheme, host, port.unwrap_or(default_port)))
        });
        web.unwrap_or(Origin { text: lower, is_loopback: false })
    }

    fn web(scheme: &str, host: Host<'_>, port: u16) -> Origin {
        let text = match host {
            Host::Name(name) => format!("{scheme}://{name}:{port}"),
            Host::Ip(address) => format!("{scheme}://[{}]:{port}", address.to_canonical()),
        };
        Origin { text, is_loopback: host.is_loopback() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{Authority, Host, Origin};

    #[test]
    fn authorities_are_read_strictly() {
        for bad in [
            "",
            ":80",
            "a:",
            "a:+1",
            "a:65536",
            "a:1:2",
            "user@a",
            "user:pw@a",
            "[::1",
            "[::1]80",
            "[::1]:",
            "[fe80::1%eth0]",
            "::1",
            "a b",
            "a/b",
            "a,b",
            "ä",
            "[127.0.0.1]",
        ] {
            assert_eq!(Authority::parse(bad), None, "{bad}");
        }
        let name = Authority::parse("Mcp.Example.com:443").expect("well formed");
        assert_eq!((name.host, name.port), (Host::Name("Mcp.Example.com"), Some(443)));
        assert!(matches!(Authority::parse("[::1]:8080").expect("well formed").host, Host::Ip(_)));
        assert_eq!(Authority::parse("127.1").expect("a name").host, Host::Name("127.1"));
    }

    #[test]
    fn origins_are_equal_across_spellings_only() {
        assert_eq!(Origin::parse("https://App.example.com"), Origin::parse("https://app.example.com:443"));
        assert_eq!(Origin::parse("http://[0:0::1]:80"), Origin::parse("http://[::1]"));
        for other in [
            "http://app.example.com",
            "https://app.example.com:8443",
            "https://app.example.com.evil.example",
            "https://app.example.com/",
        ] {
            assert_ne!(Origin::parse("https://app.example.com"), Origin::parse(other), "{other}");
        }
        assert_eq!(Origin::parse("null"), Origin::parse("null"));
        assert!(!Origin::parse("null").is_loopback);
    }

    #[test]
    fn loopback_is_known_by_what_it_is() {
        for yes in [
            "http://localhost:3000",
            "https://LOCALHOST",
            "http://127.9.9.9",
            "http://[::1]:1",
            "http://[::ffff:127.0.0.1]",
        ] {
            assert!(Origin::parse(yes).is_loopback, "{yes}");
        }
        for no in [
            "http://localhost.evil.test",
            "http://evil.test",
            "http://127.0.0.1.evil.test",
            "file://localhost",
            "http://localhost.",
            "http://localhost@evil.test",
            "http://10.0.0.1",
        ] {
            assert!(!Origin::parse(no).is_loopback, "{no}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_every_address_reads_back(text in any::<String>(), address in any::<u128>(), port in any::<u16>()) {
            let _ = (Authority::parse(&text), Origin::parse(&text));
            let address = std::net::Ipv6Addr::from_bits(address);
            let text = format!("[{address}]:{port}");
            let read = Authority::parse(&text).expect("well formed");
            prop_assert_eq!(read, Authority { host: Host::Ip(address.into()), port: Some(port) });
        }
    }
}
