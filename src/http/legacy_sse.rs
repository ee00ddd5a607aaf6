//! HTTP+SSE of 2024-11-05: one stream that carries everything, and a second address to post to.
//!
//! The stream is the session: when its connection closes, everything ends. There are no event ids
//! and nothing is resumed. The secret in the posting address finds the stream; it proves nothing,
//! so the caller is asked for its key on both addresses.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dashmap::DashMap;
use http::header::ALLOW;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use uuid::Uuid;

use crate::caller::{Principal, Proof, Proven};
use crate::exchange::post::Post;
use crate::exchange::registry::Registry;
use crate::exchange::session::Session;
use crate::exchange::stream::Stream;
use crate::http::accept::{Wants, accepted, check_json_body};
use crate::http::batch::Batch;
use crate::http::body::Body;
use crate::http::event_stream::EventStream;
use crate::http::read::read;
use crate::http::refusal::Refused;
use crate::http::sse::endpoint;
use crate::http::streamable::{Refusal, Streamable, accepted_response, refusal_of, stream_response, take_apart};
use crate::mcp::message::{Fault, FaultKind, Kind, Message};
use crate::mcp::scan::Author;
use crate::telemetry::label::{SessionEnd, StreamCut};

/// One open stream and the session behind it.
struct Channel {
    server: Arc<str>,
    principal: Principal,
    /// As the session's own, while there is none.
    proven: Proven,
    stream: Arc<Stream>,
    slot: Mutex<Slot>,
}

/// The place for the one session of a stream.
#[derive(Default)]
enum Slot {
    /// Nobody initialized yet.
    #[default]
    Empty,
    /// An `initialize` is on its way to a child.
    Opening,
    /// The session.
    Taken(Arc<Session>),
    /// The stream's connection is gone.
    Closed,
}

impl Channel {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Session::prove`], also of the session there may be.
    fn prove(&self, proof: &Proof) {
        self.proven.take(proof);
        if let Some(session) = self.session() {
            session.prove(proof);
        }
    }

    fn session(&self) -> Option<Arc<Session>> {
        match &*self.slot() {
            Slot::Taken(session) => Some(Arc::clone(session)),
            Slot::Empty | Slot::Opening | Slot::Closed => None,
        }
    }
}

/// The right to open the session of a stream. The session shares the stream and would take it along
/// with its end; so of two that initialize at once, the later one must not even open one. Dropped
/// unused it leaves the place to the next.
struct Claim<'c>(&'c Channel);

impl<'c> Claim<'c> {
    fn take(channel: &'c Channel) -> Option<Claim<'c>> {
        let mut slot = channel.slot();
        matches!(*slot, Slot::Empty).then(|| {
            *slot = Slot::Opening;
            Claim(channel)
        })
    }

    /// Puts the session in its place; gives it back if the stream has closed meanwhile.
    fn fill(self, session: Arc<Session>) -> Result<(), Arc<Session>> {
        let mut slot = self.0.slot();
        if matches!(*slot, Slot::Closed) {
            return Err(session);
        }
        *slot = Slot::Taken(session);
        Ok(())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut slot = self.0.slot();
        if matches!(*slot, Slot::Opening) {
            *slot = Slot::Empty;
        }
    }
}

/// Every open stream, by secret.
#[derive(Default)]
pub(super) struct Channels {
    open: DashMap<String, Arc<Channel>>,
}

impl Channels {
    /// Ends the streams of callers who may have none any more, or have shown nothing that is valid at `now_unix`; those
    /// with a session end with it.
    pub(super) fn revoke(&self, is_over: impl Fn(&Principal) -> bool, now_unix: u64) {
        let has_expired = |channel: &Channel| channel.session().is_none() && channel.proven.is_over(now_unix);
        self.end(|channel| is_over(&channel.principal) || has_expired(channel), StreamCut::TokenExpired);
    }

    /// Ends the streams of callers who may have none any more at this server.
    pub(super) fn revoke_at(&self, server: &str, is_over: impl Fn(&Principal) -> bool) {
        self.end(|channel| &*channel.server == server && is_over(&channel.principal), StreamCut::TokenExpired);
    }

    /// Ends the streams of a server that serves no more, or not as it did; those with a session end with it.
    pub(super) fn leave(&self, server: &str) {
        self.end(|channel| &*channel.server == server, StreamCut::Drain);
    }

    fn end(&self, is_over: impl Fn(&Channel) -> bool, why: StreamCut) {
        let channels: Vec<Arc<Channel>> = self.open.iter().map(|entry| Arc::clone(entry.value())).collect();
        for channel in channels.into_iter().filter(|channel| is_over(channel)) {
            if channel.session().is_none() {
                channel.stream.report_cut(why);
                channel.stream.end();
            }
        }
    }
}

/// Ends the session when the stream's connection is gone.
struct Tie {
    channels: Arc<Channels>,
    secret: String,
    registry: Arc<Registry>,
}

impl Drop for Tie {
    fn drop(&mut self) {
        let Some((_, channel)) = self.channels.open.remove(&self.secret) else { return };
        let slot = std::mem::replace(&mut *channel.slot(), Slot::Closed);
        if let Slot::Taken(session) = slot {
            self.registry.end(&session, SessionEnd::Delete);
        }
    }
}

/// The answer to a POST where only a stream is: without a body, so that a client that looks for
/// the transport by trying does not take it for an answer of Streamable HTTP (2025-11-25
/// transports, Backwards Compatibility).
fn not_allowed() -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, OPTIONS"));
    response
}

/// One request at one of the two addresses.
pub(super) struct LegacySse<'a> {
    streamable: Streamable<'a>,
}

impl<'a> LegacySse<'a> {
    pub(super) fn new(streamable: Streamable<'a>) -> LegacySse<'a> {
        LegacySse { streamable }
    }

    /// Opens the stream.
    pub(super) fn open(&self, request: &Request<Incoming>) -> Result<Response<Body>, Refused> {
        if request.method() != Method::GET {
            return Ok(not_allowed());
        }
        if !matches!(accepted(request.headers()).wants, Wants::Both | Wants::EventStreamOnly) {
            return Err(Refused::NotAcceptable);
        }
        if let Some(over) = self.streamable.over {
            return Err(Refused::Rate(over));
        }
        self.streamable.access.authorize(&self.streamable.caller)?;
        let Streamable { door, rules, server, caller, fate, .. } = &self.streamable;
        let secret = Uuid::from_bytes(rand::random()).simple().to_string();
        let stream = server.plain_stream();
        let reader = stream.attach(None, false).map_err(|_| Refused::EventId)?;
        let channel = Channel {
            server: Arc::clone(server.name()),
            principal: caller.principal.clone(),
            proven: Proven::default(),
            stream,
            slot: Mutex::default(),
        };
        channel.proven.take(&caller.proof);
        door.channels.open.insert(secret.clone(), Arc::new(channel));
        // Relative to the origin: clients refuse to be sent to another one.
        let address = format!("{}{}?session={secret}", rules.prefix, server.config().messages_path());
        let tie = Tie { channels: Arc::clone(&door.channels), secret, registry: Arc::clone(server.registry()) };
        let mut events = EventStream::new(reader, rules.streams.clone(), false, Arc::clone(fate), Some(Box::new(tie)));
        events.begin_with(endpoint(&address));
        Ok(stream_response(events))
    }

    /// Takes what a client sends; every answer goes to its stream.
    pub(super) async fn post(&mut self, request: &mut Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let bare = |refused| (refused, None);
        if request.method() != Method::POST {
            return Err(bare(Refused::Method("POST, OPTIONS")));
        }
        check_json_body(request.headers()).map_err(bare)?;
        self.streamable.access.authorize(&self.streamable.caller).map_err(bare)?;
        let channel = self.channel(request).ok_or((Refused::SessionUnknown, None))?;
        let leave = || channel.session()?.leave_to_answer();
        let (headers, body) = take_apart(request);
        let read = read(body, &self.streamable.rules.bounds, leave).await.map_err(bare)?;
        self.streamable.count_body(&read);
        let parsed = Message::parse(read.bytes.clone(), Author::Client);
        self.streamable.authorize(&parsed, &read.bytes)?;
        match parsed {
            Ok(message) => {
                let id = message.id().map(|id| id.raw().to_vec());
                self.take(&channel, &message, headers).await.map_err(|refused| {
                    self.streamable.note(&message);
                    (refused, id)
                })?;
            }
            Err(Fault { kind: FaultKind::Array, .. }) => {
                self.take_batch(&channel, &read.bytes).await.map_err(bare)?;
            }
            Err(fault) => return Err(refusal_of(&fault)),
        }
        Ok(accepted_response())
    }

    fn channel(&self, request: &Request<Incoming>) -> Option<Arc<Channel>> {
        let Streamable { door, server, caller, .. } = &self.streamable;
        let secret = request.uri().query()?.split('&').find_map(|part| part.strip_prefix("session="))?;
        let channel = door.channels.open.get(secret).map(|entry| Arc::clone(entry.value()));
        let owner = channel.as_ref().map(|channel| &channel.principal);
        if owner != Some(&caller.principal) {
            server.registry().note_stranger(secret, server.name(), &caller.principal, owner);
            return None;
        }
        let channel = channel.filter(|channel| channel.server == *server.name())?;
        channel.prove(&caller.proof);
        Some(channel)
    }

    async fn take(&self, channel: &Channel, message: &Message, headers: HeaderMap) -> Result<(), Refused> {
        check_envelope(message)?;
        let post = Post::shared(Arc::clone(&channel.stream));
        if message.kind() == Kind::Request && message.calls("initialize") {
            return self.initialize(channel, message, &post, headers).await;
        }
        let session = open_session(channel)?;
        if message.kind() != Kind::Request {
            drop(self.streamable.accept(&session, message));
            return Ok(());
        }
        session.confirmed_for(message).await;
        self.streamable.submit(&session, message, &post);
        Ok(())
    }

    async fn initialize(
        &self,
        channel: &Channel,
        message: &Message,
        post: &Arc<Post>,
        headers: HeaderMap,
    ) -> Result<(), Refused> {
        let claim = Claim::take(channel).ok_or(Refused::Invalid("This session is initialized already"))?;
        let own = self.streamable.own_variables(&headers)?;
        drop(headers);
        let session = self.streamable.open(message, post, Some(Arc::clone(&channel.stream)), own).await?;
        claim.fill(session).map_err(|session| {
            self.streamable.server.registry().end(&session, SessionEnd::Delete);
            Refused::SessionUnknown
        })
    }

    /// Several messages in one body, in a session that agreed on the revision that has them. Each
    /// answer is an event of its own.
    async fn take_batch(&self, channel: &Channel, text: &Bytes) -> Result<(), Refused> {
        let session = open_session(channel)?;
        let batch = Batch::read(&session, text)?;
        batch.good.iter().try_for_each(check_envelope)?;
        self.streamable.submit_all(&session, batch, &Post::shared(Arc::clone(&channel.stream))).await;
        Ok(())
    }
}

fn check_envelope(message: &Message) -> Result<(), Refused> {
    match message.fields().envelope_version {
        Some(_) => Err(Refused::Invalid("This address serves sessions of 2024-11-05 to 2025-11-25 only")),
        None => Ok(()),
    }
}

fn open_session(channel: &Channel) -> Result<Arc<Session>, Refused> {
    channel.session().filter(|session| session.is_open()).ok_or(Refused::Invalid("Send initialize first"))
}
