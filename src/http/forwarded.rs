//! The client's address behind proxies: from their headers, where the peer is one of ours.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use tracing::warn;

use crate::caller::Peer;
use crate::config::Network;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Hops of one request that are looked at.
const MOST_HOPS: usize = 32;

/// Whose headers count.
pub struct Proxies {
    trusted: Vec<Network>,
    /// Somebody else's headers were seen and logged.
    told_foreign: AtomicBool,
    /// Headers of one request that disagree were seen and logged.
    told_discord: AtomicBool,
}

impl Proxies {
    /// `listen.trusted_proxies`
    #[must_use]
    pub fn new(trusted: Vec<Network>) -> Proxies {
        Proxies { trusted, told_foreign: AtomicBool::new(false), told_discord: AtomicBool::new(false) }
    }

    /// Where a request comes from: the last hop that is none of ours. Whatever stands before it
    /// anybody could have written. From a peer that is no proxy of ours the headers mean nothing.
    ///
    /// A proxy that writes one of the two headers passes the other on as a client wrote it, and
    /// nothing says which of them it writes: where they name different clients, neither counts.
    ///
    /// The first request of either kind is logged, since most often a key or a line is missing.
    pub fn client(&self, headers: &HeaderMap, peer: Peer) -> Peer {
        let is_there = (headers.contains_key(FORWARDED), headers.contains_key(X_FORWARDED_FOR));
        if is_there == (false, false) {
            return peer;
        }
        if !self.is_ours(peer) {
            tell_once(
                &self.told_foreign,
                peer,
                "a forwarded header came from a peer that is no trusted proxy; it is ignored",
            );
            return peer;
        }
        let named = match is_there {
            (true, false) => self.last_stranger(forwarded(headers)),
            (false, _) => self.last_stranger(x_forwarded_for(headers)),
            (true, true) => {
                let named = self.last_stranger(forwarded(headers));
                if named != self.last_stranger(x_forwarded_for(headers)) {
                    tell_once(
                        &self.told_discord,
                        peer,
                        "Forwarded and X-Forwarded-For name different clients; both are ignored: \
                         let the proxy write one and remove the other",
                    );
                    return peer;
                }
                named
            }
        };
        named.unwrap_or(peer)
    }

    /// A unix socket has mode 0600: whoever writes to it could as well change our configuration.
    pub(super) fn is_ours(&self, peer: Peer) -> bool {
        match peer {
            Peer::Ip(address) => self.trusts(address),
            Peer::Local => true,
        }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }

    /// The last of `hops`, oldest first, that is no proxy of ours; the oldest where all are.
    fn last_stranger(&self, hops: Vec<Option<IpAddr>>) -> Option<Peer> {
        let mut last = None;
        for hop in hops.into_iter().rev().take(MOST_HOPS) {
            // A hop that cannot be read ends what can be believed.
            let address = hop?;
            last = Some(Peer::Ip(address));
            if !self.trusts(address) {
                break;
            }
        }
        last
    }
}

fn tell_once(told: &AtomicBool, peer: Peer, warning: &'static str) {
    if !told.swap(true, Ordering::Relaxed) {
        warn!(event = "warning", client_addr = %peer, key = "listen.trusted_proxies", warning);
    }
}

/// The hops of `Forwarded` (RFC 7239); oldest first, `None` what is no address.
fn forwarded(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    hops(headers, &FORWARDED, |hop| {
        hop.split(';').find_map(|pair| {
            let (name, value) = pair.trim().split_once('=')?;
            name.eq_ignore_ascii_case("for").then(|| address(value.trim_matches('"')))?
        })
    })
}

/// The hops of `X-Forwarded-For`, in the same way.
fn x_forwarded_for(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    hops(headers, &X_FORWARDED_FOR, address)
}

fn hops(headers: &HeaderMap, name: &HeaderName, read: impl Fn(&str) -> Option<IpAddr>) -> Vec<Option<IpAddr>> {
    let mut hops = Vec::new();
    for value in headers.get_all(name) {
        match value.to_str() {
            Ok(value) => hops.extend(value.split(',').map(|hop| read(hop.trim()))),
            // Left out, it would let an older hop stand in for one of ours.
            Err(_) => hops.push(None),
        }
    }
    hops
}

/// An address with or without brackets and port; one mapped into IPv6 is the IPv4 address it is.
fn address(text: &str) -> Option<IpAddr> {
    literal(text).map(|address| address.to_canonical())
}

fn literal(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once(']')?.0.parse().ok();
    }
    text.rsplit_once(':')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::Proxies;
    use crate::caller::Peer;
    use crate::config::Network;
    use http::{HeaderMap, HeaderName, HeaderValue};

    fn seen(headers: &[(&'static str, &'static str)], peer: &str) -> String {
        let trusted = vec![Network { address: "10.0.0.0".parse().expect("an address"), prefix: 8 }];
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
            map.append(HeaderName::from_static(name), value);
        }
        Proxies::new(trusted).client(&map, Peer::Ip(peer.parse().expect("an address"))).to_string()
    }

    #[test]
    fn believes_only_its_own_proxies() {
        let spoofed = ("x-forwarded-for", "6.6.6.6, 1.2.3.4, 10.0.0.9");
        assert_eq!(seen(&[spoofed], "9.9.9.9"), "9.9.9.9");
        assert_eq!(seen(&[spoofed], "10.0.0.1"), "1.2.3.4");
        assert_eq!(seen(&[], "10.0.0.1"), "10.0.0.1");
        assert_eq!(seen(&[("x-forwarded-for", "junk")], "10.0.0.1"), "10.0.0.1");
        assert_eq!(seen(&[("x-forwarded-for", "1.2.3.4:80")], "10.0.0.1"), "1.2.3.4");
        assert_eq!(
            seen(&[("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "2001:db8::1")], "10.0.0.1"),
            "2001:db8::1"
        );
        assert_eq!(
            seen(&[("forwarded", "for=6.6.6.6, For=\"[2001:db8::2]:47\";proto=https")], "10.0.0.1"),
            "2001:db8::2"
        );
        assert_eq!(seen(&[("x-forwarded-for", "10.1.1.1, 10.2.2.2")], "10.0.0.1"), "10.1.1.1");
        assert_eq!(seen(&[("x-forwarded-for", "1.2.3.4, ::ffff:10.0.0.9")], "10.0.0.1"), "1.2.3.4");
        assert_eq!(seen(&[("x-forwarded-for", "[::ffff:1.2.3.4]:80")], "10.0.0.1"), "1.2.3.4");
        assert_eq!(seen(&[("x-forwarded-for", "fe80::1%eth0")], "10.0.0.1"), "10.0.0.1");
    }

    #[test]
    fn believes_no_header_against_another() {
        let forged = ("forwarded", "for=6.6.6.6");
        assert_eq!(seen(&[forged, ("x-forwarded-for", "1.2.3.4")], "10.0.0.1"), "10.0.0.1");
        assert_eq!(seen(&[("forwarded", "for=1.2.3.4"), ("x-forwarded-for", "6.6.6.6")], "10.0.0.1"), "10.0.0.1");
        assert_eq!(seen(&[forged, ("x-forwarded-for", "junk")], "10.0.0.1"), "10.0.0.1");
        assert_eq!(seen(&[("forwarded", "for=_hidden"), ("x-forwarded-for", "6.6.6.6")], "10.0.0.1"), "10.0.0.1");
        let agreeing = [("forwarded", "for=6.6.6.6, for=1.2.3.4"), ("x-forwarded-for", "1.2.3.4, 10.0.0.9")];
        assert_eq!(seen(&agreeing, "10.0.0.1"), "1.2.3.4");
    }

    #[test]
    fn an_unreadable_line_ends_what_can_be_believed() {
        let lines = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "\u{e9}, 1.2.3.4")];
        assert_eq!(seen(&lines, "10.0.0.1"), "10.0.0.1");
    }
}
