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
    told: AtomicBool,
}

impl Proxies {
    /// `listen.trusted_proxies`
    #[must_use]
    pub fn new(trusted: Vec<Network>) -> Proxies {
        Proxies { trusted, told: AtomicBool::new(false) }
    }

    /// Where a request comes from: the last hop that is none of ours. Whatever stands before it
    /// anybody could have written. From a peer that is no proxy of ours the headers mean nothing;
    /// the first such one is logged, since most often a key is missing.
    pub fn client(&self, headers: &HeaderMap, peer: Peer) -> Peer {
        if !headers.contains_key(X_FORWARDED_FOR) && !headers.contains_key(FORWARDED) {
            return peer;
        }
        // A unix socket has mode 0600: whoever writes to it could as well change our configuration.
        let Peer::Ip(address) = peer else { return last_stranger(headers, |hop| self.trusts(hop)).unwrap_or(peer) };
        if self.trusts(address) {
            return last_stranger(headers, |hop| self.trusts(hop)).unwrap_or(peer);
        }
        if !self.told.swap(true, Ordering::Relaxed) {
            warn!(
                event = "warning", client_addr = %address, key = "listen.trusted_proxies",
                warning = "a forwarded header came from a peer that is no trusted proxy; it is ignored"
            );
        }
        peer
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }
}

fn last_stranger(headers: &HeaderMap, trusted: impl Fn(IpAddr) -> bool) -> Option<Peer> {
    let mut last = None;
    for hop in hops(headers).into_iter().rev().take(MOST_HOPS) {
        // A hop that cannot be read ends what can be believed.
        let address = hop?;
        last = Some(Peer::Ip(address));
        if !trusted(address) {
            break;
        }
    }
    last
}

/// The hops of `Forwarded` (RFC 7239) where there is one, else of `X-Forwarded-For`; oldest first.
fn hops(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    let texts = |name: HeaderName| -> Vec<String> {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(|hop| hop.trim().to_owned()).collect()
    };
    if headers.contains_key(FORWARDED) {
        let node = |hop: &String| {
            hop.split(';').find_map(|pair| {
                let (name, value) = pair.trim().split_once('=')?;
                name.eq_ignore_ascii_case("for").then(|| value.trim_matches('"').to_owned())
            })
        };
        return texts(FORWARDED).iter().map(|hop| node(hop).and_then(|node| address(&node))).collect();
    }
    texts(X_FORWARDED_FOR).iter().map(|hop| address(hop)).collect()
}

/// An address with or without brackets and port.
fn address(text: &str) -> Option<IpAddr> {
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
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
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
    }
}
