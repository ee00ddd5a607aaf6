//! Opening sessions with one server, and finding them again.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::budget::{Budget, Step};
use crate::caller::{OwnVariables, Principal, Proof};
use crate::config::{self, Mode};
use crate::exchange::account::{Account, Accounts};
use crate::exchange::post::Post;
use crate::exchange::registry::{NoSeat, Registry};
use crate::exchange::session::{Session, SessionTerms};
use crate::exchange::shared_child::{Condition, SharedChild};
use crate::exchange::stream::{Stream, StreamTerms};
use crate::mcp::message::Message;
use crate::mcp::revision::Revision;
use crate::server::breaker::{Breaker, Position};
use crate::server::plan::has_other_rules;
use crate::server::shared_children::{Key, NoPlace, SharedChildren};
use crate::server::status::Status;
use crate::server::tool_rules::warn_of_idle_patterns;
use crate::telemetry::label::{SessionEnd, Start, StreamKind};
use crate::telemetry::{AccessLog, ServerMetrics};
use crate::upstream::conversation::{Conversation, PING_WAIT, Terms};
use crate::upstream::lease::Lease;
use crate::upstream::participant::Participant;
use crate::upstream::pool::{NoChild, Pool};
use crate::upstream::scout::{Catalogue, ScoutFailure, explore};
use crate::upstream::{Command, Spawner};

/// How long a session waits for a child before another session has to make room.
const ROOM_AFTER: Duration = Duration::from_millis(250);

/// What a server is built with.
pub struct ServerParts {
    /// Its name.
    pub name: Arc<str>,
    /// Its table.
    pub config: Arc<config::Server>,
    /// `[sessions]`
    pub sessions: config::Sessions,
    /// Where every fork happens.
    pub spawner: Spawner,
    /// How its child is started.
    pub command: Command,
    /// Every session of the process.
    pub registry: Arc<Registry>,
    /// The memory budget.
    pub budget: Arc<Budget>,
    /// How streams are kept.
    pub streams: StreamTerms,
    /// The access log.
    pub log: AccessLog,
    /// The node tag.
    pub node: Arc<str>,
    /// Its numbers.
    pub metrics: Arc<ServerMetrics>,
}

/// Why no session was opened.
#[derive(Debug)]
pub enum Unopened {
    /// Too many sessions.
    NoSeat(NoSeat),
    /// No child came free in time.
    PoolFull,
    /// Starts fail; the next one is tried after this.
    Breaker(Duration),
    /// The child could not be started.
    StartFailed,
    /// Memory is short.
    Memory,
    /// The gateway is draining.
    Draining,
}

/// Who wants a session.
pub struct Opening {
    /// Whose it will be.
    pub principal: Principal,
    /// How many the caller may have.
    pub cap: Option<usize>,
    /// What is counted and logged about its `initialize`.
    pub account: Account,
    /// The one stream of HTTP+SSE, if it is that.
    pub only: Option<Arc<Stream>>,
    /// What the caller showed.
    pub proof: Proof,
    /// What it brings for a child of its own.
    pub own: OwnVariables,
}

/// One configured server.
pub struct Server {
    name: Arc<str>,
    config: Arc<config::Server>,
    core: Core,
    registry: Arc<Registry>,
    budget: Arc<Budget>,
    session_terms: Arc<SessionTerms>,
    metrics: Arc<ServerMetrics>,
}

/// The children of a server and what is known of them: what it keeps while nothing but the terms of its sessions
/// changes.
#[derive(Clone)]
struct Core {
    pool: Arc<Pool>,
    shared: Arc<SharedChildren>,
    conversation_terms: Terms,
    breaker: Arc<Mutex<Breaker>>,
    status: Arc<watch::Sender<Status>>,
    draining: Arc<AtomicBool>,
}

impl Server {
    /// A server without children; [`Server::scout`] and [`Server::open_pool`] start some.
    #[must_use]
    pub fn new(parts: ServerParts) -> Arc<Server> {
        Self::with(parts, Status::unknown())
    }

    /// What comes in the place of this server when its table changed: other children, and nothing held against it.
    /// It was seen well if this one was, so that a reload makes no gateway unready.
    #[must_use]
    pub fn successor(&self, parts: ServerParts) -> Arc<Server> {
        let status = self.core.status.borrow().clone();
        Self::with(parts, if status.is_ready() { status } else { Status::unknown() })
    }

    /// This server, its children included, under other terms for sessions to come.
    #[must_use]
    pub fn renewed(&self, parts: ServerParts) -> Arc<Server> {
        let session_terms = session_terms(&parts, &self.core.breaker, &self.core.status);
        let ServerParts { name, config, registry, budget, metrics, .. } = parts;
        let has_other_rules = has_other_rules(&self.config, &config);
        if let Some(catalogue) = self.core.status.borrow().catalogue.as_ref().filter(|_| has_other_rules) {
            warn_of_idle_patterns(&name, &config, catalogue);
        }
        Arc::new(Server { name, config, core: self.core.clone(), registry, budget, session_terms, metrics })
    }

    fn with(parts: ServerParts, status: Status) -> Arc<Server> {
        let breaker = Arc::new(Mutex::new(Breaker::new(parts.config.breaker.clone())));
        let status = Arc::new(watch::Sender::new(status));
        let session_terms = session_terms(&parts, &breaker, &status);
        let ServerParts { name, config, spawner, command, registry, budget, metrics, .. } = parts;
        let conversation_terms = Terms {
            next_id: Arc::new(AtomicU64::new(1)),
            server: Arc::clone(&name),
            queue: config.queue.clone(),
            line_bytes: config.line_bytes,
            budget: Arc::clone(&budget),
            metrics: Arc::clone(&metrics),
            hang_after: PING_WAIT,
        };
        let pool = Pool::new(spawner, command, Arc::clone(&config), Arc::clone(&metrics));
        let shared = SharedChildren::new(
            Arc::clone(&pool),
            Arc::clone(&config),
            conversation_terms.clone(),
            Arc::clone(&session_terms),
            Arc::clone(&breaker),
        );
        let core = Core { pool, shared, conversation_terms, breaker, status, draining: Arc::default() };
        Arc::new(Server { name, config, core, registry, budget, session_terms, metrics })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its table.
    #[must_use]
    pub fn config(&self) -> &config::Server {
        &self.config
    }

    /// Its numbers.
    #[must_use]
    pub fn metrics(&self) -> &Arc<ServerMetrics> {
        &self.metrics
    }

    /// Where its messages are counted and logged.
    #[must_use]
    pub fn accounts(&self) -> &Accounts {
        &self.session_terms.accounts
    }

    /// What is known of it, and a way to wait for more.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.core.status.subscribe()
    }

    /// Whether starts are being held back.
    #[must_use]
    pub fn breaker_is_open(&self) -> bool {
        lock(&self.core.breaker).position(Instant::now()) == Position::Open
    }

    /// Sends the scout, and keeps what it found.
    ///
    /// # Errors
    /// What it came back with.
    pub async fn scout(&self) -> Result<Arc<Catalogue>, Arc<ScoutFailure>> {
        let found = explore(&self.core.pool, self.core.conversation_terms.clone(), self.config.timeouts.start).await;
        let found = found.map(Arc::new).map_err(Arc::new);
        if let Some(tools) = found.as_ref().ok().and_then(|catalogue| catalogue.tools.as_ref()) {
            self.metrics.set_tools(tools);
        }
        if let Ok(catalogue) = &found {
            warn_of_idle_patterns(&self.name, &self.config, catalogue);
        }
        self.core.status.send_modify(|status| match &found {
            Ok(catalogue) => status.see(Arc::clone(catalogue)),
            Err(failure) => status.fail(Arc::clone(failure)),
        });
        found
    }

    /// Counts the server as seen well without a look, where the scout is switched off.
    pub fn trust(&self) {
        self.core.status.send_if_modified(Status::see_well);
    }

    /// Starts keeping spares.
    pub fn open_pool(&self) {
        self.core.pool.open();
    }

    /// Opens a session: finds a seat, leases a child, sends it the client's `initialize`. The
    /// answer goes to `post`; until it is there the session cannot be found.
    ///
    /// # Errors
    /// See [`Unopened`]; then no session exists, and no byte of the message reached a child.
    pub async fn open(&self, opening: Opening, message: &Message, post: &Arc<Post>) -> Result<Arc<Session>, Unopened> {
        if self.core.draining.load(Ordering::Acquire) {
            return Err(Unopened::Draining);
        }
        if self.budget.step() >= Step::Sessions {
            return Err(Unopened::Memory);
        }
        match self.config.mode {
            Mode::Shared => self.open_shared(opening, None, message, post).await,
            Mode::Principal if !opening.principal.is_anonymous() => {
                let principal = opening.principal.clone();
                self.open_shared(opening, Some(principal), message, post).await
            }
            Mode::Session | Mode::Principal => self.open_own(opening, message, post).await,
        }
    }

    /// A session with a child of its own.
    async fn open_own(&self, opening: Opening, message: &Message, post: &Arc<Post>) -> Result<Arc<Session>, Unopened> {
        let Opening { principal, cap, account, only, proof, own } = opening;
        let seat = self.registry.seat(&principal, cap).map_err(Unopened::NoSeat)?;
        lock(&self.core.breaker).admit(Instant::now()).map_err(Unopened::Breaker)?;
        let lease = self.lease(&principal, &own).await.map_err(|no_child| self.explain(no_child))?;
        let session =
            Session::new(self.registry.mint(), principal, message, only, None, Arc::clone(&self.session_terms));
        session.prove(&proof);
        let who: Arc<dyn Participant> = Arc::<Session>::clone(&session);
        let conversation = Conversation::start(lease, self.core.conversation_terms.clone(), Arc::downgrade(&who))
            .ok_or(Unopened::StartFailed)?;
        self.registry.insert(&session, seat);
        // A drain says so before it walks the sessions: who came in after the walk sees it here.
        if self.is_draining() {
            self.registry.end(&session, SessionEnd::Drain);
            return Err(Unopened::Draining);
        }
        session.start(conversation, message, post, account);
        Ok(session)
    }

    /// A session on a child of several: its `initialize` is answered with what the child answered once.
    async fn open_shared(
        &self,
        opening: Opening,
        only_of: Option<Principal>,
        message: &Message,
        post: &Arc<Post>,
    ) -> Result<Arc<Session>, Unopened> {
        let Opening { principal, cap, account, only, proof, own } = opening;
        let seat = self.registry.seat(&principal, cap).map_err(Unopened::NoSeat)?;
        let asked = message.string(message.fields().protocol_version).unwrap_or_default();
        let key = Key { revision: Revision::granted(asked.as_bytes()), principal: only_of, own: own.digest() };
        let place = self.core.shared.enter(&key, &own).map_err(|no_place| match no_place {
            NoPlace::Breaker(retry) => Unopened::Breaker(retry),
            NoPlace::Closed => Unopened::Draining,
        })?;
        match self.settled(place.child(), &principal).await {
            Condition::Ready => {}
            Condition::Full => return Err(Unopened::PoolFull),
            Condition::Closed => return Err(Unopened::Draining),
            Condition::Paused(until) => {
                return Err(Unopened::Breaker(until.saturating_duration_since(Instant::now())));
            }
            Condition::Starting | Condition::Failed => return Err(Unopened::StartFailed),
        }
        let greeting = place.child().greeting().ok_or(Unopened::StartFailed)?;
        let terms = Arc::clone(&self.session_terms);
        let session = Session::new(self.registry.mint(), principal, message, only, Some(place), terms);
        session.prove(&proof);
        self.registry.insert(&session, seat);
        if self.is_draining() {
            self.registry.end(&session, SessionEnd::Drain);
            return Err(Unopened::Draining);
        }
        session.greet(&greeting, message, post, account);
        Ok(session)
    }

    /// Waits until a shared child can be used, or cannot. If it waits for a slot, one that nobody uses gives its own up.
    async fn settled(&self, child: &SharedChild, principal: &Principal) -> Condition {
        let soon = child.settled(ROOM_AFTER.min(self.config.pool.wait / 2)).await;
        if soon != Condition::Starting {
            return soon;
        }
        if self.core.pool.is_full() && !self.core.shared.make_room() && self.registry.make_room(&self.name, principal) {
            self.core.shared.make_room();
        }
        child.settled(self.config.pool.wait + self.config.timeouts.start).await
    }

    /// Leases a child. If none comes free soon, a session that has long been idle gives its own up.
    async fn lease(&self, principal: &Principal, own: &OwnVariables) -> Result<Lease, NoChild> {
        let mut lease = pin!(self.core.pool.lease_with(own));
        // Children of sessions that ended are still being stopped; theirs come free by themselves.
        let soon = ROOM_AFTER.min(self.config.pool.wait / 2);
        if let Ok(leased) = timeout(soon, lease.as_mut()).await {
            return leased;
        }
        if self.core.pool.is_full() {
            self.registry.make_room(&self.name, principal);
        }
        lease.await
    }

    fn explain(&self, no_child: NoChild) -> Unopened {
        match no_child {
            NoChild::Full => Unopened::PoolFull,
            NoChild::Closed => Unopened::Draining,
            NoChild::Spawn(error) => {
                warn!(event = "child_start", server = %self.name, error = %error);
                (self.session_terms.handshakes)(Start::SpawnError, Duration::ZERO);
                Unopened::StartFailed
            }
        }
    }

    /// A stream for HTTP+SSE, before there is a session.
    #[must_use]
    pub fn plain_stream(&self) -> Arc<Stream> {
        Stream::new(StreamKind::Sse, self.session_terms.streams.clone(), Arc::default())
    }

    /// The caller's own session with this id on this server.
    #[must_use]
    pub fn find(&self, id: &str, principal: &Principal) -> Option<Arc<Session>> {
        self.registry.find(id, &self.name, principal)
    }

    /// Every session of the process.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Refuses new sessions from now on, those that wait for a child too, and stops the spares.
    pub fn drain(&self) {
        self.core.draining.store(true, Ordering::Release);
        self.core.pool.refuse();
    }

    /// Another server comes in its place: it takes no new session, starts no child any more and stops its spares.
    /// Its sessions go on, each with the child it has, and end with that.
    pub fn supersede(&self) {
        self.core.shared.retire();
        self.core.pool.refuse();
    }

    /// Waits until no child is left, after [`Server::supersede`]: each goes with its last session.
    pub async fn deserted(&self) {
        self.core.pool.close().await;
    }

    /// Whether it refuses new sessions.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.core.draining.load(Ordering::Acquire)
    }

    /// Stops every child and waits until none is left. Sessions must have ended.
    pub async fn close(&self) {
        self.core.shared.close();
        self.core.pool.close().await;
    }
}

fn lock(breaker: &Mutex<Breaker>) -> MutexGuard<'_, Breaker> {
    breaker.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the sessions of a server share.
fn session_terms(
    parts: &ServerParts,
    breaker: &Arc<Mutex<Breaker>>,
    status: &Arc<watch::Sender<Status>>,
) -> Arc<SessionTerms> {
    let ServerParts { name, config, sessions, budget, streams, log, node, metrics, .. } = parts;
    let accounts = Accounts {
        log: log.clone(),
        node: Arc::clone(node),
        server: Arc::clone(name),
        metrics: Arc::clone(metrics),
        strict_status: config.strict_status,
    };
    Arc::new(SessionTerms {
        server: Arc::clone(name),
        limits: sessions.clone(),
        timeouts: config.timeouts.clone(),
        streams: streams.clone(),
        budget: Arc::clone(budget),
        handshakes: watch_handshakes(Arc::clone(breaker), Arc::clone(status), Arc::clone(name), Arc::clone(metrics)),
        accounts: Arc::new(accounts),
        metrics: Arc::clone(metrics),
        child_wait: config.pool.wait,
    })
}

/// Turns the end of each handshake into the breaker's next position.
fn watch_handshakes(
    breaker: Arc<Mutex<Breaker>>,
    status: Arc<watch::Sender<Status>>,
    name: Arc<str>,
    metrics: Arc<ServerMetrics>,
) -> Box<dyn Fn(Start, Duration) + Send + Sync> {
    Box::new(move |how, took| {
        metrics.child_started(how, took);
        if how == Start::Ok {
            metrics.handshake(took);
            status.send_if_modified(Status::see_well);
        }
        let mut breaker = lock(&breaker);
        if how == Start::Ok {
            if breaker.succeeded() {
                info!(event = "breaker_close", server = %name);
            }
        } else if breaker.failed(Instant::now(), rand::random()) {
            warn!(event = "breaker_open", server = %name, reason = how.as_str());
        }
        metrics.breaker(match breaker.position(Instant::now()) {
            Position::Closed => 0,
            Position::HalfOpen => 1,
            Position::Open => 2,
        });
    })
}
