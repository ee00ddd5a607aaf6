//! Address ranges in CIDR form.

use std::fmt;
use std::net::IpAddr;

use super::convert::Refused;
use super::meaning::Network;

/// Bits before an IPv4 address that is mapped into IPv6 (RFC 4291 section 2.5.5.2).
const MAPPED: u8 = 96;

impl Network {
    /// Whether `address` lies in the range; an IPv4-mapped IPv6 address counts as the IPv4 address it is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        first(address.to_canonical(), self.prefix) == self.address
    }

    /// Parses `ADDRESS/BITS`; an address alone is the range of that one.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    pub(super) fn parse(text: &str) -> Result<Self, Refused> {
        let refused = || {
            Refused::new(
                "has an entry that is no address and no range",
                "write \"10.0.0.10\", \"10.0.0.0/8\" or \"2001:db8::/32\"",
            )
        };
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| refused())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix: u8 = prefix.map_or(Ok(bits), str::parse).map_err(|_| refused())?;
        if prefix > bits {
            return Err(refused());
        }
        // One mapped into IPv6 is looked up as the IPv4 address it is.
        let (address, prefix) = match address.to_canonical() {
            canonical if canonical != address && prefix >= MAPPED => (canonical, prefix - MAPPED),
            _ => (address, prefix),
        };
        let start = first(address, prefix);
        if start != address {
            let remedy = format!("did you mean \"{start}/{prefix}\"?");
            return Err(Refused::new("has an entry whose address does not start its range", remedy));
        }
        Ok(Self { address, prefix })
    }
}

/// The first address of the range of `prefix` bits that `address` lies in.
fn first(address: IpAddr, prefix: u8) -> IpAddr {
    let prefix = u32::from(prefix);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(prefix)).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(prefix)).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::super::meaning::Network;

    #[test]
    fn ranges_hold_their_addresses() {
        for (range, address, inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("::ffff:10.0.0.0/104", "10.1.1.1", true),
            ("::ffff:10.0.0.0/104", "11.0.0.1", false),
            ("::ffff:192.0.2.7", "::ffff:192.0.2.7", true),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "::1", true),
            ("::1", "::1", true),
        ] {
            let network = Network::parse(range).expect(range);
            assert_eq!(network.contains(address.parse().expect(address)), inside, "{range} {address}");
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "10.0.0/8", "localhost", "10.0.0.0/"] {
            assert!(Network::parse(text).is_err(), "{text}");
        }
        let refused = Network::parse("10.1.2.3/8").expect_err("host bits");
        assert_eq!(refused.remedy, "did you mean \"10.0.0.0/8\"?");
    }
}
