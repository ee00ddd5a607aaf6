//! Streamable HTTP of the stateful revisions, 2025-03-26 to 2025-11-25: one endpoint for POST, GET
//! and DELETE.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use crate::auth::Admitted as Caller;
use crate::budget::Step;
use crate::caller::{Fate, OwnVariables, Peer};
use crate::exchange::Cause;
use crate::exchange::account::Account;
use crate::exchange::audit::Asked;
use crate::exchange::capacity::{Permit, Reached};
use crate::exchange::gateway_error::BAD_TOKEN;
use crate::exchange::post::{Form, Head, Post, Reply};
use crate::exchange::registry::NoSeat;
use crate::exchange::session::{NoStream, Session};
use crate::exchange::stream::{Reader, Stream};
use crate::http::accept::{Wants, accepted, check_json_body};
use crate::http::access::Access;
use crate::http::batch::Batch;
use crate::http::body::Body;
use crate::http::door::Door;
use crate::http::event_stream::{EventStream, Tied};
use crate::http::own_variables::own_variables;
use crate::http::quota::Over;
use crate::http::read::{Read, read};
use crate::http::refusal::{Refused, retry_after};
use crate::http::rules::Rules;
use crate::mcp::message::{Fault, FaultKind, Kind, Message};
use crate::mcp::revision::Revision;
use crate::mcp::scan::Author;
use crate::rare::rarely;
use crate::server::{Opening, Server, Unopened};
use crate::telemetry::TraceId;
use crate::telemetry::label::{Dropped, Outcome, Refusal as Reason, Resume, SessionEnd};

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Room for more headers than this is not kept while an answer is awaited: most clients send ten or so.
const ROOM_KEPT: usize = 48;

/// A refusal, with the id of the request it answers where that was read.
pub(super) type Refusal = (Refused, Option<Vec<u8>>);

/// One request at an endpoint, its caller known.
pub(super) struct Streamable<'a> {
    pub(super) door: &'a Door,
    pub(super) rules: &'a Rules,
    pub(super) server: &'a Arc<Server>,
    pub(super) access: &'a Access,
    pub(super) caller: Caller,
    pub(super) peer: Peer,
    pub(super) trace: Option<TraceId>,
    pub(super) fate: &'a Arc<dyn Fate>,
    pub(super) arrived: Instant,
    /// Filled in with what is refused, for the audit log.
    pub(super) asked: &'a OnceLock<Asked>,
    /// The rate that is used up, if one is.
    pub(super) over: Option<Over>,
}

impl Streamable<'_> {
    /// Takes what a client sends. Nothing of head and body is kept while the child is waited for.
    pub(super) async fn post(&mut self, request: &mut Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let bare = |refused| (refused, None);
        check_json_body(request.headers()).map_err(bare)?;
        let form = form_of(request.headers()).map_err(bare)?;
        let (headers, body) = take_apart(request);
        let leave = || self.session(&headers).ok()?.leave_to_answer();
        let body = read(body, &self.rules.bounds, leave).await.map_err(bare)?;
        self.count_body(&body);
        let parsed = Message::parse(body.bytes.clone(), Author::Client);
        // Before anything is said of sessions: whoever may not do this learns nothing else.
        self.authorize(&parsed, &body.bytes)?;
        let message = match &parsed {
            Ok(message) => message,
            Err(Fault { kind: FaultKind::Array, .. }) => {
                let session = self.session(&headers).map_err(bare)?;
                drop(headers);
                return rarely(|| self.batch(&session, body, form)).await.map_err(bare);
            }
            Err(fault) => return Err(refusal_of(fault)),
        };
        if message.kind() == Kind::Request && message.calls("initialize") {
            self.note(message);
            let opened = rarely(|| self.initialize(headers, message, form)).await;
            let (session, waiting) = opened.map_err(|refused| with_id(refused, message))?;
            drop((parsed, body));
            return rarely(|| self.welcome(&session, waiting)).await.map_err(bare);
        }
        let session = self.session(&headers).map_err(|refused| self.refusal(refused, message))?;
        if message.kind() != Kind::Request {
            return Ok(self.accept(&session, message));
        }
        let headers = emptied(headers);
        session.confirmed_for(message).await;
        let waiting = self.call(&session, message, form, headers);
        // While the answer is awaited nothing of the request is kept: the connection reads on into the buffer it came
        // in, or has to take another.
        drop((parsed, body));
        Ok(self.finish(&session, waiting).await)
    }

    /// Asks whether the caller was granted what it takes to send this. What is no message is refused by its reader.
    pub(super) fn authorize(&self, parsed: &Result<Message, Fault>, text: &Bytes) -> Result<(), Refusal> {
        match parsed {
            Ok(message) => {
                let verdict = self.access.authorize_message(&self.caller, message);
                verdict.map_err(|refused| self.refusal(refused, message))
            }
            Err(Fault { kind: FaultKind::Array, .. }) => {
                self.access.authorize_batch(&self.caller, text).map_err(|refused| (refused, None))
            }
            Err(_) => Ok(()),
        }
    }

    /// A refusal of this message.
    fn refusal(&self, refused: Refused, message: &Message) -> Refusal {
        self.note(message);
        with_id(refused, message)
    }

    /// Keeps what a message asks for, in case it is refused.
    pub(super) fn note(&self, message: &Message) {
        // A request has one message that can be refused as a whole.
        let _first = self.asked.set(Asked::of(message));
    }

    /// Counts a body, unless a rate is used up anyway.
    pub(super) fn count_body(&mut self, body: &Read) {
        let (quotas, caller) = (&self.rules.quotas, &self.caller.principal);
        self.over = self.over.or_else(|| quotas.count_body(caller, body.bytes.len()).err());
    }

    /// Opens a session and sends its `initialize` on its way.
    async fn initialize(
        &self,
        headers: HeaderMap,
        message: &Message,
        form: Form,
    ) -> Result<(Arc<Session>, Waiting), Refused> {
        if headers.contains_key(SESSION_ID) {
            self.session(&headers)?;
            return Err(Refused::Invalid("This session is initialized already"));
        }
        let own = self.own_variables(&headers)?;
        drop(headers);
        let (post, head) = Post::new(form, 1, false, false);
        let lost = LostUnlessAnswered::new(&post);
        let session = self.open(message, &post, None, own).await?;
        Ok((session, Waiting { post, head, lost, form, primed: false, headers: HeaderMap::new() }))
    }

    /// The answer to `initialize`, with the name of its session if there is one by then.
    async fn welcome(&self, session: &Session, waiting: Waiting) -> Result<Response<Body>, Refused> {
        let mut response = self.finish(session, waiting).await;
        if session.is_open() || matches!(response.body(), Body::Stream(_)) {
            let id = HeaderValue::from_str(session.id()).map_err(|_| Refused::StartFailed)?;
            response.headers_mut().insert(SESSION_ID, id);
        }
        Ok(response)
    }

    /// What the caller brings for a child of its own; later requests of the session change nothing about it.
    pub(super) fn own_variables(&self, headers: &HeaderMap) -> Result<OwnVariables, Refused> {
        own_variables(&self.server.config().env_from, headers, self.caller.claims.as_deref())
    }

    /// Opens a session whose `initialize` is answered on `post`.
    pub(super) async fn open(
        &self,
        message: &Message,
        post: &Arc<Post>,
        only: Option<Arc<Stream>>,
        own: OwnVariables,
    ) -> Result<Arc<Session>, Refused> {
        if message.has_bad_token() {
            return Err(Refused::InvalidParams(BAD_TOKEN));
        }
        if self.server.accounts().log.audit().refuses() {
            return Err(Refused::NotAudited);
        }
        if let Some(over) = self.over {
            return Err(Refused::Rate(over));
        }
        let mut server = Arc::clone(self.server);
        loop {
            let permit = self.permit().map_err(|reached| match reached {
                Reached::Total => Refused::Overload,
                Reached::Principal => Refused::PrincipalRequests,
            })?;
            let account = Account::new(message, self.peer, self.arrived, Some(permit)).in_trace(self.trace);
            let Caller { principal, sessions: cap, proof, .. } = self.caller.clone();
            let opening = Opening { principal, cap, account, only: only.clone(), proof, own: own.clone() };
            let unopened = match server.open(opening, message, post).await {
                Ok(session) => return Ok(session),
                Err(unopened) => unopened,
            };
            // A reload may have come while a child was waited for.
            server = match self.door.successor(&server) {
                // What was gathered is what this server's table asks for.
                Some(successor)
                    if matches!(unopened, Unopened::Draining)
                        && successor.config().env_from == server.config().env_from =>
                {
                    successor
                }
                _ => return Err(refusal_to_open(unopened)),
            };
        }
    }

    fn permit(&self) -> Result<Permit, Reached> {
        self.door.capacity.enter(&self.caller.principal)
    }

    /// The caller's own open session that the headers name, by the rules of its revision.
    fn session(&self, headers: &HeaderMap) -> Result<Arc<Session>, Refused> {
        let id =
            single(headers, &SESSION_ID, "There must be one Mcp-Session-Id header")?.ok_or(Refused::SessionMissing)?;
        let id = id.to_str().map_err(|_| Refused::BadHeader("The Mcp-Session-Id header is not ASCII"))?;
        let session = self.server.find(id, &self.caller.principal).ok_or(Refused::SessionUnknown)?;
        session.prove(&self.caller.proof);
        // Another revision than the negotiated one is served by the negotiated one; 2025-03-26
        // clients send none at all.
        let version = single(headers, &PROTOCOL_VERSION, "There must be one MCP-Protocol-Version header")?;
        match version {
            Some(version) if Revision::named(version.as_bytes()).is_none() => Err(Refused::ProtocolVersion),
            _ => Ok(session),
        }
    }

    fn call(&self, session: &Arc<Session>, message: &Message, form: Form, headers: HeaderMap) -> Waiting {
        let primed = session.revision().is_some_and(Revision::primes_streams);
        let (post, head) = Post::new(form, 1, false, primed);
        let lost = LostUnlessAnswered::new(&post);
        if form != Form::Json && self.rules.streams.sse_after.is_zero() {
            // Before the child has it: an answer that comes at once must not be faster.
            session.promote(&post);
        }
        self.submit(session, message, &post);
        Waiting { post, head, lost, form, primed, headers }
    }

    async fn finish(&self, session: &Session, waiting: Waiting) -> Response<Body> {
        let Waiting { post, head, lost, form, primed, headers } = waiting;
        let head = self.head(session, &post, head, form).await;
        lost.answered();
        self.respond(head, primed, headers)
    }

    /// Sends one request on its way, or answers it in its place.
    pub(super) fn submit(&self, session: &Arc<Session>, message: &Message, post: &Arc<Post>) {
        let account = |permit| Account::new(message, self.peer, self.arrived, permit).in_trace(self.trace);
        let refused = if self.access.hides(message) {
            Cause::UnknownTool
        } else if message.has_bad_token() {
            Cause::BadToken
        } else if let Some(over) = self.over {
            Cause::Rate(over.wait)
        } else if self.server.is_draining() {
            Cause::Draining { sent: false }
        } else if self.server.accounts().log.audit().refuses() {
            Cause::NotAudited { sent: false }
        } else if self.rules.bounds.budget.step() >= Step::Calls {
            Cause::Memory
        } else {
            match self.permit() {
                Ok(permit) => {
                    return session.call(message, post, account(Some(permit)), self.access.listed(message));
                }
                Err(_reached) => Cause::Busy,
            }
        };
        session.decline(message, post, account(None), refused);
    }

    /// Waits for whatever decides the head.
    async fn head(
        &self,
        session: &Session,
        post: &Post,
        mut head: oneshot::Receiver<Head>,
        form: Form,
    ) -> Option<Head> {
        if form != Form::Json {
            if !self.rules.streams.sse_after.is_zero() {
                tokio::select! {
                    biased;
                    head = &mut head => return head.ok(),
                    () = self.door.patience.run_out() => {}
                }
            }
            session.promote(post);
        }
        head.await.ok()
    }

    /// Takes a notification or an answer of the client's. Whether it could be queued changes
    /// nothing for the client.
    pub(super) fn accept(&self, session: &Session, message: &Message) -> Response<Body> {
        let is_passed = match message.kind() {
            // Only what makes the child do less is always welcome.
            Kind::Notification if self.over.is_some() && !message.calls("notifications/cancelled") => {
                self.server.metrics().refused(Reason::Rate);
                false
            }
            // A server may act on a call that asks for no answer, too.
            Kind::Notification if self.access.hides(message) => {
                self.server.metrics().notification_dropped(Dropped::Invalid);
                false
            }
            Kind::Notification => session.tell(message).is_ok(),
            _ => session.respond(message).is_ok(),
        };
        let outcome = if is_passed { Outcome::Ok } else { Outcome::Refused };
        let from = (self.peer, self.trace);
        self.server.accounts().accepted(message, session, from, self.arrived.elapsed(), outcome);
        accepted_response()
    }

    async fn batch(&self, session: &Arc<Session>, body: Read, form: Form) -> Result<Response<Body>, Refused> {
        let batch = Batch::read(session, &body.bytes)?;
        let owed = batch.answers_owed();
        let (post, head) = Post::new(form, owed, true, false);
        let lost = LostUnlessAnswered::new(&post);
        if form != Form::Json && owed > 0 {
            session.promote(&post);
        }
        self.submit_all(session, batch, &post).await;
        drop(body);
        if owed == 0 {
            return Ok(accepted_response());
        }
        let head = head.await.ok();
        lost.answered();
        Ok(match head {
            // An array however many there are: a batch is answered by a batch (JSON-RPC 2.0 section 6).
            Some(Head::Answers(replies)) => json_response(array(replies), HeaderMap::new()),
            head => self.respond(head, false, HeaderMap::new()),
        })
    }

    /// Sends every message of a batch on its way, in its order.
    pub(super) async fn submit_all(&self, session: &Arc<Session>, batch: Batch, post: &Arc<Post>) {
        for message in &batch.good {
            match message.kind() {
                Kind::Request => {
                    // After what stands before it, which may be `initialized` itself.
                    session.confirmed_for(message).await;
                    self.submit(session, message, post);
                }
                _ => drop(self.accept(session, message)),
            }
        }
        for fault in batch.faults {
            session.deliver_to(post, fault);
        }
    }

    /// Opens the standalone stream, or continues one.
    pub(super) fn get(&self, request: &Request<Incoming>) -> Result<Response<Body>, Refused> {
        if !matches!(accepted(request.headers()).wants, Wants::Both | Wants::EventStreamOnly) {
            return Err(Refused::NotAcceptable);
        }
        self.access.authorize(&self.caller)?;
        let session = self.session(request.headers())?;
        if let Some(over) = self.over {
            return Err(Refused::Rate(over));
        }
        let resumable = session.revision().is_some_and(Revision::primes_streams);
        let reader = match single(request.headers(), &LAST_EVENT_ID, "There must be one Last-Event-ID header")? {
            None => session.listen(),
            Some(id) => Some(self.resume(&session, id.as_bytes())?),
        };
        reader.map(|reader| self.stream(reader, resumable, None)).ok_or(Refused::SessionUnknown)
    }

    fn resume(&self, session: &Session, id: &[u8]) -> Result<Reader, Refused> {
        let resumed = session.resume(id);
        self.server.metrics().resumed(match &resumed {
            Ok(_) => Resume::Ok,
            Err(NoStream::Malformed) => Resume::Malformed,
            Err(NoStream::Foreign) => Resume::Foreign,
            Err(NoStream::Evicted) => Resume::Evicted,
        });
        resumed.map_err(|_| Refused::EventId)
    }

    /// Ends the session.
    pub(super) fn delete(&self, request: &Request<Incoming>) -> Result<Response<Body>, Refused> {
        self.access.authorize(&self.caller)?;
        let session = self.session(request.headers())?;
        self.server.registry().end(&session, SessionEnd::Delete);
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }

    fn respond(&self, head: Option<Head>, resumable: bool, headers: HeaderMap) -> Response<Body> {
        let reply = match head {
            Some(Head::Stream(reader)) => return self.stream(reader, resumable, None),
            Some(Head::Answer(reply)) => Some(reply),
            Some(Head::Answers(_)) | None => None,
        };
        // The waiting side is only dropped unanswered when its session is torn down.
        reply.map_or_else(|| Refused::SessionUnknown.into_response(None), |reply| self.json(reply, headers))
    }

    /// The one answer of a single request, as it is.
    fn json(&self, reply: Reply, headers: HeaderMap) -> Response<Body> {
        let strict = self.server.config().strict_status;
        let trouble = reply.trouble.filter(|trouble| strict || trouble.always);
        let mut response = json_response(Body::answer(reply.payload.into_pieces(), reply.permit), headers);
        if let Some(trouble) = trouble {
            *response.status_mut() = StatusCode::from_u16(trouble.status).unwrap_or(StatusCode::BAD_GATEWAY);
            if let Some(pause) = trouble.retry_after {
                response.headers_mut().insert(RETRY_AFTER, retry_after(pause));
            }
        }
        response
    }

    /// An event stream. Proxies must neither buffer nor change it.
    pub(super) fn stream(&self, reader: Reader, resumable: bool, tied: Option<Tied>) -> Response<Body> {
        let streams = self.rules.streams.clone();
        stream_response(EventStream::new(reader, streams, resumable, Arc::clone(self.fate), tied))
    }
}

/// The response that carries an event stream.
pub(super) fn stream_response(events: EventStream) -> Response<Body> {
    let mut response = Response::new(Body::Stream(Box::new(events)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// A request that was sent on its way, its answer awaited.
struct Waiting {
    post: Arc<Post>,
    head: oneshot::Receiver<Head>,
    lost: LostUnlessAnswered,
    form: Form,
    primed: bool,
    /// Those of the request, [emptied].
    headers: HeaderMap,
}

/// Takes from a request what is needed of it, so that nothing else of its head is kept.
pub(super) fn take_apart(request: &mut Request<Incoming>) -> (HeaderMap, &mut Incoming) {
    *request.uri_mut() = Uri::default();
    (std::mem::take(request.headers_mut()), request.body_mut())
}

/// The room of a request's headers for those of its answer; hyper keeps it then for the next request's. Without their
/// values: they would keep what was read.
fn emptied(mut headers: HeaderMap) -> HeaderMap {
    if headers.capacity() > ROOM_KEPT {
        return HeaderMap::new();
    }
    headers.clear();
    headers
}

/// Marks a POST as lost when its connection goes before its head.
struct LostUnlessAnswered(Option<Arc<Post>>);

impl LostUnlessAnswered {
    fn new(post: &Arc<Post>) -> LostUnlessAnswered {
        LostUnlessAnswered(Some(Arc::clone(post)))
    }

    /// The head is there.
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for LostUnlessAnswered {
    fn drop(&mut self) {
        if let Some(post) = &self.0 {
            post.lose();
        }
    }
}

/// `headers` is empty.
fn json_response(body: Body, headers: HeaderMap) -> Response<Body> {
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn array(replies: Vec<Reply>) -> Body {
    let mut text = vec![b'['];
    let mut permits = Vec::with_capacity(replies.len());
    for reply in replies {
        permits.push(reply.permit);
        if text.len() > 1 {
            text.push(b',');
        }
        for piece in reply.payload.pieces() {
            text.extend_from_slice(piece);
        }
    }
    text.push(b']');
    Body::answers(Bytes::from(text), permits)
}

/// The answer to what needs none (transports, Sending Messages 4).
pub(super) fn accepted_response() -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

fn form_of(headers: &HeaderMap) -> Result<Form, Refused> {
    match accepted(headers).wants {
        Wants::Both => Ok(Form::Either),
        Wants::JsonOnly => Ok(Form::Json),
        Wants::EventStreamOnly => Ok(Form::EventStream),
        Wants::Neither => Err(Refused::NotAcceptable),
    }
}

fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    several: &'static str,
) -> Result<Option<&'h HeaderValue>, Refused> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(Refused::BadHeader(several)),
        (value, None) => Ok(value),
    }
}

fn with_id(refused: Refused, message: &Message) -> Refusal {
    let id = if message.kind() == Kind::Request { message.id() } else { None };
    (refused, id.map(|id| id.raw().to_vec()))
}

/// What is told about a body that is no message.
pub(super) fn refusal_of(fault: &Fault) -> Refusal {
    let refused = match fault.kind {
        FaultKind::NotUtf8 | FaultKind::NotJson => Refused::Parse,
        FaultKind::TooDeep => Refused::Invalid("The message is nested too deeply"),
        FaultKind::Duplicate => Refused::Invalid("A key stands twice in the message"),
        FaultKind::Array => Refused::Invalid("The body must be one message"),
        FaultKind::NotMessage => Refused::Invalid("The body is not a JSON-RPC 2.0 message"),
        FaultKind::BadId => Refused::Invalid("The id must be a string or an integer, up to 256 characters"),
    };
    (refused, fault.id.as_ref().map(|id| id.raw().to_vec()))
}

fn refusal_to_open(unopened: Unopened) -> Refused {
    match unopened {
        Unopened::NoSeat(NoSeat::Total) => Refused::Sessions,
        Unopened::NoSeat(NoSeat::Principal) => Refused::PrincipalSessions,
        Unopened::PoolFull => Refused::PoolFull,
        Unopened::Breaker(pause) => Refused::Breaker(pause),
        Unopened::StartFailed => Refused::StartFailed,
        Unopened::Memory => Refused::Memory,
        Unopened::Draining => Refused::Draining,
    }
}
