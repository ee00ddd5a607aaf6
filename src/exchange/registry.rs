//! Every session of this process: found only by id, server and principal together.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use dashmap::DashMap;
use uuid::Uuid;

use crate::caller::Principal;
use crate::config;
use crate::exchange::ledger::Ledger;
use crate::exchange::places::{Place, Places};
use crate::exchange::session::Session;
use crate::exchange::strangers::Strangers;
use crate::telemetry::label::{SessionEnd, StreamCut};

/// Why no further session may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSeat {
    /// `sessions.max` are open, and none may be ended for this one.
    Total,
    /// The caller has as many as it may.
    Principal,
}

struct Entry {
    session: Arc<Session>,
    _seat: Seat,
}

/// The sessions. Handles are cloned out at once; no guard of the map is held over anything else.
pub struct Registry {
    node: Arc<str>,
    /// Read when a seat is taken.
    limits: RwLock<config::Sessions>,
    pub(super) ledger: Arc<Ledger>,
    sessions: DashMap<Arc<str>, Entry>,
    /// The same by what a request must bring to find one. An id that is somebody else's is in here no more than one that
    /// is nobody's, so that looking for either takes the same time.
    owned: DashMap<u64, Arc<Session>>,
    /// Of the keys of `owned`.
    hasher: RandomState,
    count: Arc<AtomicUsize>,
    /// Sessions that ended, since the start.
    ended: AtomicU64,
    places: Arc<Places>,
    strangers: Strangers,
}

/// The right to one session, counted until it is dropped.
pub struct Seat {
    count: Arc<AtomicUsize>,
    _place: Option<Place>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Registry {
    /// An empty registry; `node` starts every id.
    #[must_use]
    pub fn new(node: Arc<str>, limits: config::Sessions, ledger: Arc<Ledger>) -> Arc<Registry> {
        Arc::new(Registry {
            node,
            limits: RwLock::new(limits),
            ledger,
            sessions: DashMap::new(),
            owned: DashMap::new(),
            hasher: RandomState::new(),
            count: Arc::default(),
            ended: AtomicU64::new(0),
            places: Arc::default(),
            strangers: Strangers::default(),
        })
    }

    fn limits(&self) -> RwLockReadGuard<'_, config::Sessions> {
        self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes how many there may be; none that is open ends by it.
    pub fn set_limits(&self, limits: config::Sessions) {
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// What all their streams hold together.
    #[must_use]
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// A new session id: `<node>-` and 128 random bits in hex, from a cryptographic generator
    /// (transports, Session Management 1).
    #[must_use]
    pub fn mint(&self) -> Arc<str> {
        format!("{}-{}", self.node, Uuid::from_bytes(rand::random()).simple()).into()
    }

    /// Takes a seat for a session, if need be by ending one that has long been idle: first the
    /// caller's own. `cap` bounds the caller's own sessions; anonymous callers have none, since
    /// they cannot be told apart.
    ///
    /// # Errors
    /// See [`NoSeat`].
    pub fn seat(&self, principal: &Principal, cap: Option<usize>) -> Result<Seat, NoSeat> {
        let cap = cap.filter(|_| !principal.is_anonymous());
        self.try_seat(principal, cap).or_else(|full| {
            let own = |session: &Session| session.principal().shares_account(principal);
            let evicted = self.evict(own) || (full == NoSeat::Total && self.evict(|_| true));
            if evicted { self.try_seat(principal, cap) } else { Err(full) }
        })
    }

    fn try_seat(&self, principal: &Principal, cap: Option<usize>) -> Result<Seat, NoSeat> {
        let max = self.limits().max.unwrap_or(usize::MAX);
        if self.count.fetch_add(1, Ordering::AcqRel) >= max {
            self.count.fetch_sub(1, Ordering::AcqRel);
            return Err(NoSeat::Total);
        }
        let mut seat = Seat { count: Arc::clone(&self.count), _place: None };
        if principal.is_anonymous() {
            return Ok(seat);
        }
        seat._place = Some(self.places.take(principal, cap.unwrap_or(usize::MAX)).ok_or(NoSeat::Principal)?);
        Ok(seat)
    }

    /// Frees a child of this server's for a caller, by ending a session that has long been idle: first
    /// one of the caller's own. Tells whether there was one.
    pub fn make_room(&self, server: &str, principal: &Principal) -> bool {
        let here = |session: &Session| session.server() == server;
        self.evict(|session| here(session) && session.principal().shares_account(principal)) || self.evict(here)
    }

    /// Ends the admissible session that is idle longest.
    fn evict(&self, admissible: impl Fn(&Session) -> bool) -> bool {
        let now = Instant::now();
        let evict_after = self.limits().evict_after;
        let oldest = self
            .all()
            .into_iter()
            .filter(|session| admissible(session))
            .filter_map(|session| session.evictable_since().map(|since| (since, session)))
            .filter(|(since, _)| now.saturating_duration_since(*since) >= evict_after)
            .min_by_key(|(since, _)| *since);
        match oldest {
            Some((_, session)) => {
                self.end(&session, SessionEnd::Pressure);
                true
            }
            None => false,
        }
    }

    /// Puts a session in, which can be found once its handshake is done.
    pub fn insert(&self, session: &Arc<Session>, seat: Seat) {
        self.sessions.insert(Arc::clone(session.id()), Entry { session: Arc::clone(session), _seat: seat });
        // Of 10,000 sessions no two have the same key but once in 10^11 times; the first would be found no more.
        self.owned.insert(self.key(session.id(), session.server(), session.principal()), Arc::clone(session));
    }

    fn key(&self, id: &str, server: &str, principal: &Principal) -> u64 {
        self.hasher.hash_one((id, server, principal))
    }

    /// The open session with this id that belongs to this server and caller; anything else is
    /// the same nothing.
    #[must_use]
    pub fn find(&self, id: &str, server: &Arc<str>, principal: &Principal) -> Option<Arc<Session>> {
        let session = self.owned.get(&self.key(id, server, principal)).map(|entry| Arc::clone(&entry));
        let is_asked_for = |session: &Arc<Session>| {
            **session.id() == *id && session.server() == &**server && session.principal() == principal
        };
        let Some(session) = session.filter(is_asked_for) else {
            self.note_stranger(id, server, principal, None);
            return None;
        };
        session.is_open().then_some(session)
    }

    /// Takes note of a caller who named the session `id`, which may be somebody else's, `owner`'s where that is known by
    /// now; the log is told later.
    pub fn note_stranger(&self, id: &str, server: &Arc<str>, caller: &Principal, owner: Option<&Principal>) {
        self.strangers.note(id, server, caller, owner);
    }

    /// Whether there is an open session with this id at this server, whoever's. Nothing a client is told may depend on
    /// it alone.
    #[must_use]
    pub fn has(&self, id: &str, server: &str) -> bool {
        self.sessions.get(id).is_some_and(|entry| entry.session.server() == server && entry.session.is_open())
    }

    /// Ends a session and forgets it.
    pub fn end(&self, session: &Session, why: SessionEnd) {
        self.sessions.remove(session.id().as_ref());
        let key = self.key(session.id(), session.server(), session.principal());
        self.owned.remove_if(&key, |_, owned| std::ptr::eq(&**owned, session));
        session.end(why);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the sessions of callers who may have none any more, and says so of the streams they read.
    pub fn revoke(&self, is_over: impl Fn(&Principal) -> bool) {
        // Few callers, mostly; and only if one of them is over a walk over all sessions.
        if !self.places.has(&is_over) {
            return;
        }
        self.end_revoked(self.all().into_iter().filter(|session| is_over(session.principal())));
    }

    /// As [`Registry::revoke`], at the server with this name only.
    pub fn revoke_at(&self, server: &str, is_over: impl Fn(&Principal) -> bool) {
        self.end_revoked(self.of_server(server).into_iter().filter(|session| is_over(session.principal())));
    }

    fn end_revoked(&self, sessions: impl Iterator<Item = Arc<Session>>) {
        for session in sessions {
            for stream in session.streams().into_iter().filter(|stream| stream.is_read()) {
                stream.report_cut(StreamCut::TokenExpired);
            }
            self.end(&session, SessionEnd::Admin);
        }
    }

    /// The sessions of the server with this name.
    #[must_use]
    pub fn of_server(&self, server: &str) -> Vec<Arc<Session>> {
        self.all().into_iter().filter(|session| session.server() == server).collect()
    }

    /// Ends every session of the server with this name.
    pub fn end_of_server(&self, server: &str, why: SessionEnd) {
        for session in self.of_server(server) {
            self.end(&session, why);
        }
    }

    /// Ends every session.
    pub fn end_all(&self, why: SessionEnd) {
        for session in self.all() {
            self.end(&session, why);
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.sessions.iter().map(|entry| Arc::clone(&entry.session)).collect()
    }

    /// Looks at the clocks of every session that is due and ends those that are over.
    pub fn sweep(&self, now: Instant) {
        self.strangers.tell(|id| self.sessions.get(id).map(|entry| entry.session.principal().clone()));
        let sessions = self.sessions.iter();
        let due: Vec<_> = sessions.filter(|it| it.session.is_due(now)).map(|it| Arc::clone(&it.session)).collect();
        for session in due {
            if let Some(why) = session.sweep(now) {
                self.end(&session, why);
            }
        }
    }

    /// Sessions that were opened or are being opened.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Sessions that ended since the start; those that end in a burst between two looks at
    /// [`Registry::len`] leave no other trace.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls in flight in all sessions.
    #[must_use]
    pub fn calls_in_flight(&self) -> usize {
        self.all().iter().map(|session| session.calls_in_flight()).sum()
    }
}
