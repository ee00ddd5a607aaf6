//! How many connections may be open, in all and from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use crate::caller::counted_as;
use crate::config::{Limits, Network};
use crate::telemetry::label::Accepted;

/// The caps of one listener and what counts against them.
pub(super) struct Caps {
    bounds: RwLock<Bounds>,
    /// Taken for a few instructions by the accept loop and by each connection's end.
    open: Mutex<Open>,
}

struct Bounds {
    total: Option<usize>,
    per_address: Option<usize>,
    exempt: Vec<Network>,
}

#[derive(Default)]
struct Open {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// One place below the caps; given back when dropped.
pub(super) struct Place {
    caps: Arc<Caps>,
    address: Option<IpAddr>,
}

impl Caps {
    pub(super) fn new(limits: &Limits, exempt: Vec<Network>) -> Arc<Caps> {
        Arc::new(Caps { bounds: RwLock::new(Bounds::new(limits, exempt)), open: Mutex::default() })
    }

    /// Changes the caps; who has a place keeps it.
    pub(super) fn set(&self, limits: &Limits, exempt: Vec<Network>) {
        *self.bounds.write().unwrap_or_else(PoisonError::into_inner) = Bounds::new(limits, exempt);
    }

    fn bounds(&self) -> RwLockReadGuard<'_, Bounds> {
        self.bounds.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `address` belongs to a trusted proxy.
    pub(super) fn is_exempt(&self, address: IpAddr) -> bool {
        self.bounds().is_exempt(address)
    }

    /// Counts a place for the client that a proxy speaks for.
    pub(super) fn count_for(&self, place: &mut Place, client: IpAddr) -> Result<(), Accepted> {
        let bounds = self.bounds();
        if !bounds.is_exempt(client) {
            let client = counted_as(client);
            self.open().enter(client, bounds.per_address)?;
            place.address = Some(client);
        }
        Ok(())
    }

    /// Takes a place for a connection from `address`; `None` is a local socket, which only the
    /// total bounds.
    pub(super) fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> Result<Place, Accepted> {
        let bounds = self.bounds();
        let address = address.filter(|address| !bounds.is_exempt(*address)).map(counted_as);
        let mut open = self.open();
        if bounds.total.is_some_and(|cap| open.total >= cap) {
            return Err(Accepted::Limit);
        }
        if let Some(address) = address {
            open.enter(address, bounds.per_address)?;
        }
        open.total += 1;
        Ok(Place { caps: Arc::clone(self), address })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // No code under this lock can leave the counts half done.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bounds {
    fn new(limits: &Limits, exempt: Vec<Network>) -> Bounds {
        Bounds { total: limits.connections, per_address: limits.connections_per_address, exempt }
    }

    fn is_exempt(&self, address: IpAddr) -> bool {
        self.exempt.iter().any(|network| network.contains(address))
    }
}

impl Open {
    fn enter(&mut self, address: IpAddr, most: Option<usize>) -> Result<(), Accepted> {
        let count = self.by_address.get(&address).copied().unwrap_or(0);
        if most.is_some_and(|most| count >= most) {
            return Err(Accepted::AddressLimit);
        }
        self.by_address.insert(address, count + 1);
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.caps.open();
        open.total -= 1;
        let Some(address) = self.address else { return };
        if let Some(count) = open.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::Caps;
    use crate::config::{Limits, Network};
    use crate::net::tests::limits;
    use crate::telemetry::label::Accepted;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address in a test")
    }

    fn network(text: &str) -> Network {
        let (address, prefix) = text.split_once('/').expect("CIDR in a test");
        Network { address: ip(address), prefix: prefix.parse().expect("CIDR in a test") }
    }

    fn caps(total: usize, per_address: usize, exempt: &[&str]) -> std::sync::Arc<Caps> {
        let limits = Limits { connections: Some(total), connections_per_address: Some(per_address), ..limits() };
        Caps::new(&limits, exempt.iter().map(|text| network(text)).collect())
    }

    #[test]
    fn a_place_comes_back_when_dropped() {
        let caps = caps(3, 2, &[]);
        let first = caps.enter(Some(ip("192.0.2.1"))).ok();
        let _second = caps.enter(Some(ip("192.0.2.1"))).ok();
        assert_eq!(caps.enter(Some(ip("192.0.2.1"))).err(), Some(Accepted::AddressLimit));
        let _third = caps.enter(Some(ip("192.0.2.2"))).ok();
        assert_eq!(caps.enter(None).err(), Some(Accepted::Limit));
        drop(first);
        assert!(caps.enter(Some(ip("192.0.2.1"))).is_ok());
        assert_eq!(caps.open().by_address.len(), 2, "an address with nothing open takes no room");
    }

    #[test]
    fn other_caps_count_what_is_open() {
        let caps = caps(3, 2, &[]);
        let _places: Vec<_> = (0..2).map(|_| caps.enter(Some(ip("192.0.2.1"))).ok()).collect();
        let lower = Limits { connections: Some(3), connections_per_address: Some(1), ..limits() };
        caps.set(&lower, vec![network("192.0.2.2/32")]);
        assert_eq!(caps.enter(Some(ip("192.0.2.1"))).err(), Some(Accepted::AddressLimit));
        let _exempt = caps.enter(Some(ip("192.0.2.2"))).ok();
        assert_eq!(caps.enter(Some(ip("192.0.2.2"))).err(), Some(Accepted::Limit));
    }

    #[test]
    fn a_trusted_proxy_counts_only_in_the_total() {
        let caps = caps(3, 1, &["10.0.0.0/8"]);
        let _places: Vec<_> = (0..3).map(|_| caps.enter(Some(ip("10.9.8.7"))).ok()).collect();
        assert_eq!(caps.enter(Some(ip("10.9.8.7"))).err(), Some(Accepted::Limit));
    }

    #[test]
    fn a_client_behind_a_proxy_counts_by_its_own_address() {
        let caps = caps(9, 1, &["10.0.0.0/8"]);
        let enter = |client: &str| {
            let mut place = caps.enter(Some(ip("10.9.8.7"))).expect("a proxy is exempt");
            caps.count_for(&mut place, ip(client)).map(|()| place)
        };
        let first = enter("192.0.2.1").ok();
        assert_eq!(enter("192.0.2.1").err(), Some(Accepted::AddressLimit));
        let _proxies: Vec<_> = (0..2).map(|_| enter("10.0.0.1").expect("it is exempt")).collect();
        drop(first);
        assert!(enter("192.0.2.1").is_ok());
    }

    #[test]
    fn public_ipv6_counts_by_its_network_and_private_by_address() {
        let caps = caps(9, 1, &[]);
        let _public = caps.enter(Some(ip("2001:db8::1"))).ok();
        assert_eq!(caps.enter(Some(ip("2001:db8::ffff:1"))).err(), Some(Accepted::AddressLimit));
        assert!(caps.enter(Some(ip("2001:db8:0:1::1"))).is_ok());
        let _private = caps.enter(Some(ip("fd00::1"))).ok();
        assert!(caps.enter(Some(ip("fd00::2"))).is_ok());
    }
}
