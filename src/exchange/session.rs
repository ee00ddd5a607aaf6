//! One session: its handshake, its calls, its streams, its end.
//!
//! Lock order: a POST's, then the session's, then a stream's. Nothing here calls into the
//! conversation or a POST while holding `state`.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::SetOnce;
use tracing::info;

use crate::budget::Budget;
use crate::caller::{Peer, Principal, Proven};
use crate::config;
use crate::exchange::account::{Account, Accounts};
use crate::exchange::ask::{Ask, Asks};
use crate::exchange::call::Call;
use crate::exchange::child_side::Quiet;
use crate::exchange::congestion::Congestion;
use crate::exchange::early::Early;
use crate::exchange::gateway_error::SOON;
use crate::exchange::handshake::{Implementation, Introduction};
use crate::exchange::in_band::Cause;
use crate::exchange::link::Link;
use crate::exchange::next_look::NextLook;
use crate::exchange::post::{Post, Reply};
use crate::exchange::shared_child::Place;
use crate::exchange::stream::{Reader, Stream, StreamTerms};
use crate::exchange::streams::Streams;
use crate::mcp::call_map::CallMap;
use crate::mcp::ids::Id;
use crate::mcp::message::{Kind, Message};
use crate::mcp::revision::Revision;
use crate::mcp::stream_log::{Lost, parse_event_id};
use crate::telemetry::label::{Outcome, SessionEnd, Start, StreamCut, StreamKind};
use crate::telemetry::{Client, ServerMetrics, SessionDigest, session_digest};
use crate::upstream::conversation::Conversation;
use crate::upstream::outbound::NotSent;
use crate::upstream::participant::Participant;

/// What every session of one server shares.
pub struct SessionTerms {
    /// The server's name.
    pub server: Arc<str>,
    /// `[sessions]`
    pub limits: config::Sessions,
    /// `timeouts` of the server.
    pub timeouts: config::Timeouts,
    /// How streams are kept.
    pub streams: StreamTerms,
    /// The memory budget.
    pub budget: Arc<Budget>,
    /// Told how each handshake ended and how long it took.
    pub handshakes: Box<dyn Fn(Start, Duration) + Send + Sync>,
    /// Where calls are counted and logged.
    pub accounts: Arc<Accounts>,
    /// The server's numbers.
    pub metrics: Arc<ServerMetrics>,
    /// How long a call waits for a shared child that is being replaced.
    pub child_wait: Duration,
}

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// `initialize` is with the child.
    Starting,
    /// The child answered; the client has not confirmed.
    Answered,
    /// Confirmed.
    Live,
    /// Over.
    Ended(SessionEnd),
}

pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) revision: Option<Revision>,
    pub(super) calls: CallMap<Call>,
    pub(super) asks: Asks,
    pub(super) streams: Streams,
    /// Requests of the child's that came before the client had confirmed.
    pub(super) early: Early,
    pub(super) active: Instant,
    /// Since when the client is silent after the InitializeResult; `None` before it and once it went on.
    pub(super) silent: Option<Instant>,
}

/// One session. Only `exchange::registry` hands them out, to their owner.
pub struct Session {
    id: Arc<str>,
    digest: SessionDigest,
    principal: Principal,
    pub(super) introduction: Introduction,
    pub(super) terms: Arc<SessionTerms>,
    pub(super) link: Link,
    pub(super) congestion: Arc<Congestion>,
    pub(super) standalone: Arc<Stream>,
    /// The standalone stream carries the answers too.
    one_stream: bool,
    /// The stream that was appended to and not told yet.
    pub(super) quiet: Mutex<Option<Quiet>>,
    confirmed: SetOnce<()>,
    pub(super) opened: Instant,
    pub(super) next_look: NextLook,
    /// Bodies that are being read past the budget.
    pub(super) answer_leaves: AtomicUsize,
    /// What its caller has shown.
    pub(super) proven: Proven,
    pub(super) state: Mutex<State>,
}

/// Why a stream cannot be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoStream {
    /// No event id of ours.
    Malformed,
    /// Not a stream of this session, or never given out.
    Foreign,
    /// What followed is gone.
    Evicted,
}

/// How long a request waits for the client's `initialized` before the gateway sends it itself.
const CONFIRM_WAIT: Duration = Duration::from_millis(500);

impl Session {
    /// A session whose handshake is about to start. `only` is the one stream of HTTP+SSE, which
    /// carries everything, `place` that at a child it shares.
    #[must_use]
    pub fn new(
        id: Arc<str>,
        principal: Principal,
        initialize: &Message,
        only: Option<Arc<Stream>>,
        place: Option<Place>,
        terms: Arc<SessionTerms>,
    ) -> Arc<Session> {
        let one_stream = only.is_some();
        let standalone = only.unwrap_or_else(|| Stream::new(StreamKind::Get, terms.streams.clone(), Arc::default()));
        let congestion = Arc::clone(standalone.congestion());
        if place.is_some() {
            congestion.share();
        }
        let now = Instant::now();
        Arc::new(Session {
            digest: session_digest(&id),
            id,
            principal,
            introduction: Introduction::read(initialize),
            terms,
            link: place.map_or_else(|| Link::Own(OnceLock::new()), Link::Shared),
            congestion,
            standalone,
            one_stream,
            quiet: Mutex::default(),
            confirmed: SetOnce::new(),
            opened: now,
            next_look: NextLook::new(now),
            answer_leaves: AtomicUsize::new(0),
            proven: Proven::default(),
            state: Mutex::new(State {
                phase: Phase::Starting,
                revision: None,
                calls: CallMap::default(),
                asks: Asks::default(),
                streams: Streams::default(),
                early: Early::default(),
                active: now,
                silent: None,
            }),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `Mcp-Session-Id` names it.
    #[must_use]
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// What logs call it.
    #[must_use]
    pub fn digest(&self) -> SessionDigest {
        self.digest
    }

    /// Whose it is.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The server it belongs to.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.terms.server
    }

    /// What the client calls itself.
    #[must_use]
    pub fn client(&self) -> Option<Client<'_>> {
        let Implementation { name, version } = &self.introduction.client;
        (!name.is_empty()).then_some(Client { name, version })
    }

    pub(super) fn accounts(&self) -> &Accounts {
        &self.terms.accounts
    }

    /// The negotiated revision, once there is one.
    #[must_use]
    pub fn revision(&self) -> Option<Revision> {
        self.state().revision
    }

    /// The child's process id.
    #[must_use]
    pub fn child_pid(&self) -> Option<u32> {
        self.link.child_pid()
    }

    /// Whether it can be found: its handshake is done and it has not ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.state().phase, Phase::Answered | Phase::Live)
    }

    /// Starts the handshake: `message` is the client's `initialize`. The child is asked for the same
    /// revision, unless the gateway could not speak it even if the child agreed.
    pub fn start(
        self: &Arc<Self>,
        conversation: Arc<Conversation>,
        message: &Message,
        post: &Arc<Post>,
        account: Account,
    ) {
        info!(event = "child_ready", server = %self.terms.server, session = %self.digest, child_pid = conversation.pid());
        if let Link::Own(own) = &self.link {
            // A session starts once, so the cell is empty.
            let _first = own.set(conversation);
        }
        match message.string(message.fields().protocol_version) {
            Some(asked) if Revision::named(asked.as_bytes()).is_none() => {
                self.call(&message.asking_for(Revision::granted(asked.as_bytes())), post, account, None);
            }
            _ => self.call(message, post, account, None),
        }
    }

    /// Sends a request to the child. Its answer, or an error in its place, goes to `post`; if it is a list of tools,
    /// with those that `tools` admits.
    pub fn call(
        self: &Arc<Self>,
        message: &Message,
        post: &Arc<Post>,
        account: Account,
        tools: Option<Arc<config::Tools>>,
    ) {
        let Some(id) = message.id() else { return };
        let mut call = Call::new(message, id, Arc::clone(post), account, self.terms.metrics.call_started());
        call.tools = tools;
        if let Some(place) = self.link.place() {
            return self.call_shared(place, call, message);
        }
        let Some(conversation) = self.link.conversation() else { return };
        self.send(conversation.reserve(), call, |number, who| conversation.request(number, who, message));
    }

    /// Keeps a call under its number and sends it: it may be answered before `send` returns.
    pub(super) fn send(
        self: &Arc<Self>,
        number: u64,
        mut call: Call,
        send: impl FnOnce(u64, Arc<dyn Participant>) -> Result<(), NotSent>,
    ) {
        let now = call.account.sent();
        {
            let mut state = self.state();
            if let Phase::Ended(_) = state.phase {
                drop(state);
                self.lose_unsent(call, NotSent::Closed);
                return;
            }
            state.active = now;
            state.calls.insert(number, call);
        }
        self.next_look.ask();
        if let Err(refused) = send(number, Arc::<Session>::clone(self)) {
            let call = self.state().calls.remove(&number);
            if let Some(call) = call {
                self.lose_unsent(call, refused);
            }
        }
    }

    /// Answers a call of which no byte reached the child. If it was the handshake, that was the
    /// session: a child may be gone before anything could be written to it.
    pub(super) fn lose_unsent(&self, call: Call, refused: NotSent) {
        let drained = self.state().phase == Phase::Ended(SessionEnd::Drain);
        let cause = match refused {
            NotSent::Full => Cause::Full,
            NotSent::Memory => Cause::Memory,
            NotSent::Closed if drained => Cause::Draining { sent: false },
            NotSent::Closed => Cause::ChildGone { sent: false },
        };
        if let Some(reason) = cause.refusal() {
            self.terms.metrics.refused(reason);
        }
        let is_start = call.account.is_initialize();
        self.conclude(call, |id| cause.reply(id));
        if !is_start {
            return;
        }
        if refused != NotSent::Closed {
            self.end(SessionEnd::ChildGone);
        } else if !drained {
            // A drain says nothing about the child.
            (self.terms.handshakes)(Start::Exited, Duration::ZERO);
        }
        // A child that is gone ends the session by itself, which may have been before the session
        // knew its conversation.
        let is_over = matches!(self.state().phase, Phase::Ended(_));
        if let Some(conversation) = self.link.conversation().filter(|_| is_over) {
            conversation.close();
        }
    }

    /// Gives a call its answer; the one way a call ends. Tells whether it was that one, and not another in its place.
    pub(super) fn conclude(&self, mut call: Call, reply: impl FnOnce(&Id) -> Reply) -> bool {
        let mut reply = reply(&call.id);
        self.note_subscription(&call, reply.outcome);
        let kept_back = self.audit_call(&call.account, &call.id, &reply);
        let is_given = kept_back.is_none();
        reply = kept_back.unwrap_or(reply);
        if call.account.is_initialize()
            && let Some(trouble) = &mut reply.trouble
        {
            // There is no session the status could be told in (and 5xx other than this is nothing a
            // client would wait for).
            trouble.always = true;
            trouble.status = 503;
            trouble.retry_after.get_or_insert(SOON);
        }
        call.account.answered(&mut reply);
        let delivered = call.post.answer(reply, || self.open_stream());
        call.account.delivered(delivered, &call.id, self);
        is_given
    }

    /// Answers a request without asking the child.
    pub fn decline(&self, message: &Message, post: &Post, mut account: Account, cause: Cause) {
        let Some(id) = message.id() else { return };
        if let Some(reason) = cause.refusal() {
            self.terms.metrics.refused(reason);
        }
        let mut reply = cause.reply(&id);
        if let Some(another) = self.audit_call(&account, &id, &reply) {
            reply = another;
        }
        account.answered(&mut reply);
        let delivered = post.answer(reply, || self.open_stream());
        account.delivered(delivered, &id, self);
    }

    /// Delivers an answer to what was no proper request.
    pub fn deliver_to(&self, post: &Post, reply: Reply) {
        self.audit_fault(&reply);
        post.answer(reply, || self.open_stream());
    }

    /// A new stream for a POST.
    pub(super) fn open_stream(&self) -> Arc<Stream> {
        let stream = Stream::new(StreamKind::Post, self.terms.streams.clone(), Arc::clone(&self.congestion));
        let mut state = self.state();
        if let Phase::Ended(_) = state.phase {
            drop(state);
            return stream;
        }
        state.streams.insert(&stream);
        drop(state);
        self.next_look.ask();
        stream
    }

    /// Makes a waiting POST a stream now.
    pub fn promote(&self, post: &Post) {
        post.promote(|| self.open_stream());
    }

    /// Ends the wait for a client's answer; the clocks it held run on.
    pub(super) fn take_ask(&self, id: &Id) -> Option<Ask> {
        let now = Instant::now();
        let State { asks, calls, .. } = &mut *self.state();
        asks.take(id, now, calls)
    }

    pub(super) fn touch(&self) {
        self.state().active = Instant::now();
    }

    /// The child answered `initialize`; from here on the session can be found.
    pub(super) fn admit(&self, revision: Revision, peer: Peer) {
        let mut state = self.state();
        if state.phase == Phase::Starting {
            state.phase = Phase::Answered;
            state.revision = Some(revision);
            state.active = Instant::now();
            state.silent = Some(state.active);
            drop(state);
            self.next_look.ask();
            self.terms.metrics.session_opened(revision.name());
            self.audit_opened(peer);
            info!(
                event = "session_open", server = %self.terms.server, session = %self.digest, principal = %self.principal,
                client = %self.introduction.client.name, protocol = revision.name(), child_pid = self.child_pid(),
            );
        }
    }

    /// Sends `initialized` to the child, once, and then what it asked too early.
    pub(super) fn confirm(&self) {
        let early = {
            let mut state = self.state();
            if state.phase != Phase::Answered {
                return;
            }
            state.phase = Phase::Live;
            std::mem::take(&mut state.early)
        };
        if let Link::Own(own) = &self.link
            && let Some(conversation) = own.get()
        {
            conversation.confirm_initialized();
        }
        let _by_its_end = self.confirmed.set(());
        for (message, _memory) in early.release() {
            self.ask(&message);
        }
        self.settle();
    }

    /// Holds `request` until the child knows that the client is initialized: clients send both at
    /// once, on connections that may overtake each other.
    pub async fn confirmed_for(&self, request: &Message) {
        self.connected().await;
        if self.confirmed.initialized() {
            return;
        }
        self.state().silent = None;
        // A ping may come at any time (lifecycle, Initialization).
        if request.method() == "ping" {
            return;
        }
        if tokio::time::timeout(CONFIRM_WAIT, self.confirmed.wait()).await.is_err() {
            self.confirm();
        }
    }

    /// Opens the standalone stream; one that is open already is taken over.
    #[must_use]
    pub fn listen(&self) -> Option<Reader> {
        self.touch();
        let primed = self.revision().is_some_and(Revision::primes_streams);
        let reader = self.standalone.attach(None, primed).ok();
        self.next_look.ask();
        reader
    }

    /// Continues the stream an event id names, behind that event.
    ///
    /// # Errors
    /// When there is no such stream or position any more.
    pub fn resume(&self, event_id: &[u8]) -> Result<Reader, NoStream> {
        self.touch();
        let (nonce, position) = parse_event_id(event_id).ok_or(NoStream::Malformed)?;
        let stream = if nonce == self.standalone.nonce() {
            Arc::clone(&self.standalone)
        } else {
            self.state().streams.get(nonce).cloned().ok_or(NoStream::Foreign)?
        };
        let reader = stream.attach(Some(position), false);
        self.next_look.ask();
        reader.map_err(|lost| match lost {
            Lost::Evicted => NoStream::Evicted,
            Lost::Future => NoStream::Foreign,
        })
    }

    /// Ends the session: every call gets an error, every stream its end, the child its stop.
    /// Only the first call does anything.
    pub fn end(&self, why: SessionEnd) {
        let (calls, asks, streams, was_open) = {
            let mut state = self.state();
            let was_open = match state.phase {
                Phase::Ended(_) => return,
                Phase::Starting => false,
                Phase::Answered | Phase::Live => true,
            };
            state.phase = Phase::Ended(why);
            state.early = Early::default();
            let calls = std::mem::take(&mut state.calls);
            (calls, state.asks.take_all(), std::mem::take(&mut state.streams), was_open)
        };
        self.next_look.ask();
        for (number, call) in calls {
            let sent = self.take_back(number, None, "session ended");
            let cause = match why {
                SessionEnd::ChildGone => Cause::ChildGone { sent },
                SessionEnd::Drain => Cause::Draining { sent },
                _ => Cause::SessionEnded { sent },
            };
            self.conclude(call, |id| cause.reply(id));
        }
        for ask in asks {
            let outcome = if why == SessionEnd::ChildGone { Outcome::ChildGone } else { Outcome::Cancelled };
            self.accounts().asked(&ask.id, &ask.method, self, ask.since.elapsed(), outcome);
        }
        for stream in streams.iter() {
            stream.end();
        }
        if why == SessionEnd::Drain && self.standalone.is_read() {
            self.standalone.report_cut(StreamCut::Drain);
        }
        if self.one_stream {
            self.standalone.end()
        } else {
            self.standalone.discard()
        }
        let _by_the_client = self.confirmed.set(());
        self.link.close();
        if was_open {
            let age = self.opened.elapsed();
            self.terms.metrics.session_closed(why, age);
            self.audit_closed(why);
            info!(
                event = "session_close", server = %self.terms.server, session = %self.digest, principal = %self.principal,
                reason = why.as_str(), age_s = age.as_secs(),
            );
        }
    }

    /// Whether it may be ended to make room, and since when it is idle: nothing in flight, no open
    /// stream, nothing undelivered.
    #[must_use]
    pub fn evictable_since(&self) -> Option<Instant> {
        if self.standalone.is_read() || self.standalone.has_unwritten() {
            return None;
        }
        let state = self.state();
        let open = matches!(state.phase, Phase::Answered | Phase::Live);
        let quiet = !state.is_busy() && !state.streams.iter().any(|stream| stream.is_read() || stream.has_unwritten());
        (open && quiet).then_some(state.active)
    }

    /// Every stream, for whoever must find the one that holds most.
    #[must_use]
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        let mut streams: Vec<Arc<Stream>> = self.state().streams.iter().cloned().collect();
        streams.push(Arc::clone(&self.standalone));
        streams
    }

    /// Calls in flight.
    #[must_use]
    pub fn calls_in_flight(&self) -> usize {
        self.state().calls.len()
    }
}

impl State {
    pub(super) fn is_busy(&self) -> bool {
        !self.calls.is_empty() || !self.asks.is_empty()
    }
}

/// How a call ended, by what its child answered.
pub(super) fn outcome_of(message: &Message) -> Outcome {
    match message.kind() {
        Kind::Error => Outcome::RpcError,
        _ if message.is_tool_error() => Outcome::ToolError,
        _ => Outcome::Ok,
    }
}
