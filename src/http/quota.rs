//! How much may come in a time: of one address before it is known who asks, of one principal after that.
//!
//! Each rate is a leaky bucket per address or principal. What is counted is a keyed hash of whom, 16 bytes each, so
//! that a million addresses take some 40 MiB; whoever made no use of a rate for a while is forgotten, which changes
//! nothing for anybody.

use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::ShrinkableKeyedStateStore;
use governor::state::{InMemoryState, StateStore};
use governor::{NotUntil, RateLimiter};

use crate::caller::{Peer, Principal, counted_as};
use crate::config::{Limits, Rate};

/// Requests in a row that every rate allows: a client opens a session with some eight.
const LEAST_BURST: u32 = 16;
/// Requests that a credential which is none counts for: guessing is to be slow.
const COST_OF_GUESS: u32 = 10;
/// Bytes are counted in these.
const UNIT: u32 = 1024;
/// How often whoever needs no memory is forgotten.
pub(super) const SWEEP: Duration = Duration::from_secs(10);
/// Whom one rate remembers at most. Beyond it everybody is forgotten: so many at once, each with a burst to use up,
/// are not held by this rate, and must not take the memory of all.
const MOST: usize = 1_000_000;

/// A rate that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// The key of it.
    pub key: &'static str,
    /// When there is some of it again.
    pub wait: Duration,
}

/// The rates in effect; `None` is no bound and costs nothing.
pub(super) struct Quotas {
    address: Option<Arc<Meter>>,
    principal: Option<Arc<Meter>>,
    bytes: Option<Arc<Meter>>,
}

impl Quotas {
    /// The rates of `limits`. One that was in effect `before` goes on counting.
    pub(super) fn new(limits: &Limits, before: Option<&Quotas>) -> Quotas {
        let requests = |rate: Rate| Terms { rate, unit: 1, burst: rate.count.max(LEAST_BURST) };
        let bytes = |rate: Rate| {
            // A body that is allowed at all must be allowed some time.
            let body = u32::try_from(limits.body_bytes).unwrap_or(u32::MAX);
            Terms { rate, unit: UNIT, burst: rate.count.max(body).div_ceil(UNIT) }
        };
        let meter = |key, terms: Option<Terms>, before: Option<&Arc<Meter>>| {
            let terms = terms?;
            let same = before.filter(|before| before.terms == terms).map(Arc::clone);
            Some(same.unwrap_or_else(|| Arc::new(Meter::new(key, terms))))
        };
        let of = |rate: fn(&Quotas) -> &Option<Arc<Meter>>| before.and_then(|before| rate(before).as_ref());
        Quotas {
            address: meter("limits.rate_per_address", limits.rate_per_address.map(requests), of(|all| &all.address)),
            principal: meter(
                "limits.rate_per_principal",
                limits.rate_per_principal.map(requests),
                of(|all| &all.principal),
            ),
            bytes: meter(
                "limits.rate_bytes_per_principal",
                limits.rate_bytes_per_principal.map(bytes),
                of(|all| &all.bytes),
            ),
        }
    }

    /// Whether requests of clients are counted at all.
    pub(super) fn has_address(&self) -> bool {
        self.address.is_some()
    }

    /// Counts a request of this client. A caller on a socket of this machine has no address.
    pub(super) fn count_address(&self, client: Peer) -> Result<(), Over> {
        match (&self.address, client) {
            (Some(meter), Peer::Ip(address)) => meter.count(&counted_as(address), 1),
            _ => Ok(()),
        }
    }

    /// Counts a credential of this client's that was none for several requests, as far as there are any left.
    pub(super) fn count_guess(&self, client: Peer) {
        if let (Some(meter), Peer::Ip(address)) = (&self.address, client) {
            let address: IpAddr = counted_as(address);
            let _used_up = (1..COST_OF_GUESS).try_for_each(|_| meter.count(&address, 1));
        }
    }

    /// Counts a request of this caller. Those who proved nothing cannot be told apart.
    pub(super) fn count_request(&self, caller: &Principal) -> Result<(), Over> {
        match &self.principal {
            Some(meter) if !caller.is_anonymous() => meter.count(&caller.account(), 1),
            _ => Ok(()),
        }
    }

    /// Counts a body of this caller.
    pub(super) fn count_body(&self, caller: &Principal, bytes: usize) -> Result<(), Over> {
        match &self.bytes {
            Some(meter) if !caller.is_anonymous() => {
                meter.count(&caller.account(), u32::try_from(bytes).unwrap_or(u32::MAX))
            }
            _ => Ok(()),
        }
    }

    /// Forgets whom it changes nothing to forget.
    pub(super) fn sweep(&self) {
        [&self.address, &self.principal, &self.bytes].into_iter().flatten().for_each(|meter| meter.sweep());
    }
}

/// What a meter measures by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    rate: Rate,
    /// What is counted as one.
    unit: u32,
    /// So many at once, after a pause.
    burst: u32,
}

/// One rate, and how much of it each has used.
struct Meter {
    key: &'static str,
    terms: Terms,
    limiter: RateLimiter<u64, Buckets, MonotonicClock, NoOpMiddleware<Instant>>,
    buckets: Buckets,
    hasher: RandomState,
}

impl Meter {
    fn new(key: &'static str, terms: Terms) -> Meter {
        let each = terms.rate.time.mul_f64(f64::from(terms.unit)).div_f64(f64::from(terms.rate.count));
        let burst = NonZeroU32::new(terms.burst).unwrap_or(NonZeroU32::MIN);
        // The fastest rate that can be written is one unit in 238 ns.
        let quota = governor::Quota::with_period(each.max(Duration::from_nanos(1)));
        let quota = quota.expect("a time above zero is a period").allow_burst(burst);
        let buckets = Buckets::default();
        let limiter = RateLimiter::new(quota, buckets.clone(), MonotonicClock);
        Meter { key, terms, limiter, buckets, hasher: RandomState::new() }
    }

    fn count(&self, whom: &impl Hash, much: u32) -> Result<(), Over> {
        let units = NonZeroU32::new(much.div_ceil(self.terms.unit).min(self.terms.burst)).unwrap_or(NonZeroU32::MIN);
        // The seed is ours: nobody can choose whose bucket to empty.
        let bucket = self.hasher.hash_one(whom);
        let verdict = self.limiter.check_key_n(&bucket, units).unwrap_or(Ok(()));
        verdict.map_err(|until: NotUntil<Instant>| {
            let wait = until.wait_time_from(self.limiter.clock().now()).max(Duration::from_millis(1));
            Over { key: self.key, wait }
        })
    }

    fn sweep(&self) {
        self.limiter.retain_recent();
        if self.buckets.0.len() > MOST {
            self.buckets.0.clear();
        }
        self.limiter.shrink_to_fit();
    }
}

/// The buckets that are not full.
#[derive(Clone, Default)]
struct Buckets(Arc<DashMap<u64, InMemoryState>>);

impl StateStore for Buckets {
    type Key = u64;

    fn measure_and_replace<T, F, E>(&self, bucket: &u64, judge: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        self.0.measure_and_replace(bucket, judge)
    }
}

impl ShrinkableKeyedStateStore<u64> for Buckets {
    fn retain_recent(&self, drop_below: Nanos) {
        ShrinkableKeyedStateStore::retain_recent(&*self.0, drop_below);
    }

    fn shrink_to_fit(&self) {
        self.0.shrink_to_fit();
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;
    use std::time::Duration;

    use super::{LEAST_BURST, MOST, Quotas};
    use crate::caller::{Peer, Principal, TokenHolder};
    use crate::config::{Limits, Rate, parse};

    /// Every limit at its default.
    fn limits() -> Limits {
        let text = "[servers.a]\ncommand = \"true\"\n";
        parse(text, "test", std::path::Path::new("/"), &|_| None).expect("a configuration").config.limits
    }

    fn slow(count: u32) -> Option<Rate> {
        Some(Rate { count, time: Duration::from_secs(3600) })
    }

    fn of_address(count: u32) -> Limits {
        Limits { rate_per_address: slow(count), ..limits() }
    }

    fn peer(text: &str) -> Peer {
        Peer::Ip(text.parse().expect("an address"))
    }

    fn passed(quotas: &Quotas, client: &str, tries: u32) -> u32 {
        (0..tries).filter(|_| quotas.count_address(peer(client)).is_ok()).count().try_into().expect("few")
    }

    #[test]
    fn an_address_has_its_own_rate_and_a_network_of_one_holder_has_one() {
        let quotas = Quotas::new(&of_address(20), None);
        assert_eq!(passed(&quotas, "192.0.2.1", 30), 20);
        assert_eq!(passed(&quotas, "192.0.2.2", 30), 20);
        assert_eq!(passed(&quotas, "2001:db8::1", 15), 15);
        assert_eq!(passed(&quotas, "2001:db8::2", 15), 5);
        assert_eq!(passed(&quotas, "2001:db8:0:1::2", 15), 15);
        assert!((0..100).all(|_| quotas.count_address(Peer::Local).is_ok()));
        let over = quotas.count_address(peer("192.0.2.1")).expect_err("it is used up");
        assert_eq!(over.key, "limits.rate_per_address");
        assert!(over.wait > Duration::from_secs(100) && over.wait <= Duration::from_secs(180), "{over:?}");
    }

    #[test]
    fn the_slowest_rate_lets_a_client_open_a_session() {
        assert_eq!(passed(&Quotas::new(&of_address(1), None), "192.0.2.1", 30), LEAST_BURST);
    }

    #[test]
    fn guessing_costs_more_than_asking() {
        let quotas = Quotas::new(&of_address(40), None);
        let guess = || quotas.count_address(peer("192.0.2.1")).map(|()| quotas.count_guess(peer("192.0.2.1"))).is_ok();
        assert_eq!((0..30).filter(|_| guess()).count(), 4);
        assert_eq!(passed(&quotas, "192.0.2.2", 50), 40, "nobody else pays for it");
    }

    #[test]
    fn a_user_has_one_rate_whichever_client_acts() {
        let limits = Limits { rate_per_principal: slow(20), rate_bytes_per_principal: slow(64 << 10), ..limits() };
        let limits = Limits { body_bytes: 48 << 10, ..limits };
        let quotas = Quotas::new(&limits, None);
        let of = |subject: &str, client: &str| {
            let client = Some(client.into());
            Principal::Token(Arc::new(TokenHolder { issuer: "i".into(), subject: subject.into(), client }))
        };
        let passed = |who: &Principal| (0..15).filter(|_| quotas.count_request(who).is_ok()).count();
        assert_eq!((passed(&of("a", "x")), passed(&of("a", "y")), passed(&of("b", "x"))), (15, 5, 15));
        assert!((0..100).all(|_| quotas.count_request(&Principal::Anonymous).is_ok()));
        let key = Principal::Key("k".into());
        assert!(quotas.count_body(&key, 48 << 10).is_ok());
        assert_eq!(quotas.count_body(&key, 48 << 10).map_err(|over| over.key), Err("limits.rate_bytes_per_principal"));
        assert!(quotas.count_body(&key, 16 << 10).is_ok(), "what is left is left");
        assert!(quotas.count_body(&key, 1).is_err());
    }

    #[test]
    fn a_rate_that_stays_goes_on_counting_and_another_begins_anew() {
        let before = Quotas::new(&of_address(20), None);
        assert_eq!(passed(&before, "192.0.2.1", 30), 20);
        assert_eq!(passed(&Quotas::new(&of_address(20), Some(&before)), "192.0.2.1", 30), 0);
        assert_eq!(passed(&Quotas::new(&of_address(25), Some(&before)), "192.0.2.1", 30), 25);
        assert_eq!(passed(&Quotas::new(&limits(), Some(&before)), "192.0.2.1", 30), 30);
    }

    /// Resident bytes of this process.
    #[cfg(target_os = "linux")]
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/statm").expect("this process is there");
        let pages: usize = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
        pages * rustix::param::page_size()
    }

    /// F:E11. Runs in a process of its own, because memory is the process's.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_million_addresses_take_little_and_give_it_back() {
        const MARK: &str = "GANGWAY_TEST_MILLION";
        if std::env::var_os(MARK).is_none() {
            let own = std::env::current_exe().expect("the test binary is there");
            let test = "http::quota::tests::a_million_addresses_take_little_and_give_it_back";
            let output = std::process::Command::new(own).args(["--exact", test]).env(MARK, "1").output();
            let output = output.expect("the test binary runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        let count = |quotas: &Quotas, addresses: std::ops::Range<u32>| {
            for address in addresses {
                let address = Peer::Ip(IpAddr::V4(Ipv4Addr::from_bits(address)));
                assert!(quotas.count_address(address).is_ok(), "{address} came once");
            }
        };
        let quotas = Quotas::new(&of_address(20), None);
        let before = resident();
        count(&quotas, 0..1_000_000);
        let grown = resident().saturating_sub(before);
        assert!(grown > 8 << 20, "a million were counted in {grown} bytes");
        assert!(grown < 64 << 20, "{} MiB", grown >> 20);
        quotas.sweep();
        assert_eq!(quotas.address.as_ref().map(|meter| meter.buckets.0.len()), Some(MOST), "they are remembered");
        count(&quotas, 1_000_000..1_100_000);
        quotas.sweep();
        let meter = quotas.address.as_ref().expect("it is on");
        assert_eq!((meter.buckets.0.len(), meter.buckets.0.capacity()), (0, 0), "too many are forgotten");
        assert_eq!(passed(&quotas, "192.0.2.1", 30), 20);
    }

    #[test]
    fn whoever_was_silent_is_forgotten() {
        let fast =
            Limits { rate_per_address: Some(Rate { count: 1_000_000, time: Duration::from_secs(1) }), ..limits() };
        let quotas = Quotas::new(&fast, None);
        let meter = quotas.address.as_ref().expect("it is on");
        assert_eq!(passed(&quotas, "192.0.2.1", 5), 5);
        let began = std::time::Instant::now();
        while !meter.buckets.0.is_empty() {
            quotas.sweep();
            assert!(began.elapsed() < Duration::from_secs(20), "five of a million are made up for in microseconds");
        }
    }
}
