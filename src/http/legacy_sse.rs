//! HTTP+SSE of 2024-11-05: one stream that carries everything, and a second address to post to.
//!
//! The stream is the session: when its connection closes, everything ends. There are no event ids
//! and nothing is resumed. The secret in the posting address finds the stream; it proves nothing,
//! so the caller is asked for its key on both addresses.

use std::sync::{Arc, Mutex, PoisonError};

use dashmap::DashMap;
use http::header::ALLOW;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use uuid::Uuid;

use crate::caller::Principal;
use crate::exchange::post::Post;
use crate::exchange::registry::Registry;
use crate::exchange::session::Session;
use crate::exchange::stream::Stream;
use crate::http::accept::{Wants, accepted, check_json_body};
use crate::http::body::Body;
use crate::http::event_stream::EventStream;
use crate::http::read::read;
use crate::http::refusal::Refused;
use crate::http::sse::endpoint;
use crate::http::streamable::{Refusal, Streamable, accepted_response, refusal_of, stream_response};
use crate::mcp::message::{Kind, Message};
use crate::mcp::scan::Author;
use crate::telemetry::label::SessionEnd;

/// One open stream and the session behind it.
struct Channel {
    server: Arc<str>,
    principal: Principal,
    stream: Arc<Stream>,
    session: Mutex<Option<Arc<Session>>>,
}

/// Every open stream, by secret.
#[derive(Default)]
pub(super) struct Channels {
    open: DashMap<String, Arc<Channel>>,
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
        let session = channel.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(session) = session {
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
    prefix: &'a str,
}

impl<'a> LegacySse<'a> {
    pub(super) fn new(streamable: Streamable<'a>, prefix: &'a str) -> LegacySse<'a> {
        LegacySse { streamable, prefix }
    }

    /// Opens the stream.
    pub(super) fn open(&self, request: &Request<Incoming>) -> Result<Response<Body>, Refused> {
        if request.method() != Method::GET {
            return Ok(not_allowed());
        }
        if !matches!(accepted(request.headers()).wants, Wants::Both | Wants::EventStreamOnly) {
            return Err(Refused::NotAcceptable);
        }
        let Streamable { door, server, caller, fate, .. } = &self.streamable;
        let secret = Uuid::from_bytes(rand::random()).simple().to_string();
        let stream = server.plain_stream();
        let reader = stream.attach(None, false).map_err(|_| Refused::EventId)?;
        let channel = Channel {
            server: Arc::clone(server.name()),
            principal: caller.principal.clone(),
            stream,
            session: Mutex::default(),
        };
        door.channels.open.insert(secret.clone(), Arc::new(channel));
        // Relative to the origin: clients refuse to be sent to another one.
        let address = format!("{}{}?session={secret}", self.prefix, server.config().messages_path());
        let tie = Tie { channels: Arc::clone(&door.channels), secret, registry: Arc::clone(server.registry()) };
        let mut events = EventStream::new(reader, door.streams.clone(), false, Arc::clone(fate), Some(Box::new(tie)));
        events.begin_with(endpoint(&address));
        Ok(stream_response(events))
    }

    /// Takes what a client sends; every answer goes to its stream.
    pub(super) async fn post(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let bare = |refused| (refused, None);
        if request.method() != Method::POST {
            return Err(bare(Refused::Method("POST, OPTIONS")));
        }
        check_json_body(request.headers()).map_err(bare)?;
        let channel = self.channel(&request).ok_or((Refused::SessionUnknown, None))?;
        let read = read(request.into_body(), &self.streamable.door.bounds).await.map_err(bare)?;
        let message = Message::parse(read.bytes, Author::Client).map_err(|fault| refusal_of(&fault))?;
        let id = message.id().map(|id| id.raw().to_vec());
        self.take(&channel, &message).await.map(|()| accepted_response()).map_err(|refused| (refused, id))
    }

    fn channel(&self, request: &Request<Incoming>) -> Option<Arc<Channel>> {
        let secret = request.uri().query()?.split('&').find_map(|part| part.strip_prefix("session="))?;
        let channel = Arc::clone(self.streamable.door.channels.open.get(secret)?.value());
        let own =
            channel.server == *self.streamable.server.name() && channel.principal == self.streamable.caller.principal;
        own.then_some(channel)
    }

    async fn take(&self, channel: &Channel, message: &Message) -> Result<(), Refused> {
        if message.fields().envelope_version.is_some() {
            return Err(Refused::Invalid("This address serves revision 2024-11-05 only"));
        }
        let post = Post::shared(Arc::clone(&channel.stream));
        let session = channel.session.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if message.kind() == Kind::Request && message.method() == "initialize" {
            if session.is_some() {
                return Err(Refused::Invalid("This session is initialized already"));
            }
            let session = self.streamable.open(message, &post, Some(Arc::clone(&channel.stream))).await?;
            return self.keep(channel, session);
        }
        let session = session.filter(|session| session.is_open()).ok_or(Refused::Invalid("Send initialize first"))?;
        if message.kind() != Kind::Request {
            drop(self.streamable.accept(&session, message));
            return Ok(());
        }
        session.confirmed_for(message).await;
        self.streamable.submit(&session, message, &post);
        Ok(())
    }

    /// Of two that initialize at once one is too late; and so is one whose stream has closed.
    fn keep(&self, channel: &Channel, session: Arc<Session>) -> Result<(), Refused> {
        let mut slot = channel.session.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_some() || !channel.stream.is_read() {
            drop(slot);
            self.streamable.server.registry().end(&session, SessionEnd::Delete);
            return Err(Refused::Invalid("This session is initialized already"));
        }
        *slot = Some(session);
        Ok(())
    }
}
