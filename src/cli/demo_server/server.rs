//! The server: takes each message to whoever answers it.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::ask::Asks;
use super::message::{
    INVALID_PARAMS, INVALID_REQUEST, Id, Kind, METHOD_NOT_FOUND, Malformed, PARSE_ERROR, RESOURCE_NOT_FOUND, parse,
};
use super::output::Output;
use super::reply::{Batch, Destination, Reply, append};
use super::resources::{COUNTER, Resources};
use super::session::Session;
use super::slow::Clock;
use super::{catalogue, echo, prompts, resources};

/// One conversation and what it changes.
pub(super) struct Server {
    pub(super) output: Arc<Output>,
    pub(super) clock: Clock,
    pub(super) asks: Asks,
    pub(super) resources: Resources,
    /// `None` until `initialize`.
    session: Option<Session>,
}

impl Server {
    /// A server before its handshake, writing to `output`; the caller flushes.
    pub(super) fn new(output: Arc<Output>) -> Self {
        Self {
            clock: Clock::new(Arc::clone(&output)),
            asks: Asks::new(Arc::clone(&output)),
            resources: Resources::default(),
            session: None,
            output,
        }
    }

    /// Takes one line.
    pub(super) fn receive(&mut self, line: &[u8]) {
        let Ok(line) = std::str::from_utf8(line) else {
            self.refuse(PARSE_ERROR);
            return;
        };
        if let Some(session) = &self.session {
            let structured = session.revision.has_structured_content();
            if self.output.line_if(|answer| echo::answer(line, structured, answer)) {
                return;
            }
        }
        if line.trim_start().starts_with('[') {
            self.receive_batch(line);
        } else {
            let destination = Destination::Line(Arc::clone(&self.output));
            self.receive_message(line, &destination);
        }
    }

    /// JSON-RPC 2.0, "Batch", which 2025-03-26 asks a receiver to support.
    fn receive_batch(&mut self, line: &str) {
        let supported = self.session.as_ref().is_some_and(|session| session.revision.has_batches());
        match serde_json::from_str::<Vec<&RawValue>>(line) {
            Ok(messages) if supported && !messages.is_empty() => {
                let destination = Destination::Batch(Batch::new(Arc::clone(&self.output)));
                for message in messages {
                    self.receive_message(message.get(), &destination);
                }
            }
            Ok(_) => self.refuse(INVALID_REQUEST),
            Err(_) => self.refuse(PARSE_ERROR),
        }
    }

    fn receive_message(&mut self, text: &str, destination: &Destination) {
        match parse(text) {
            Ok(Kind::Request { id, method, params }) => {
                self.request(Reply::new(id, destination.clone()), &method, params);
            }
            Ok(Kind::Notification { method, params }) => self.notification(&method, params),
            Ok(Kind::Response { id, outcome }) => self.asks.answer(&id, outcome),
            Err(Malformed { id: Some(id), code }) => {
                Reply::new(id, destination.clone()).error(code, "the message is malformed", None);
            }
            Err(Malformed { id: None, code }) => self.refuse(code),
        }
    }

    /// Reports a message whose id could not be read: without id, as the schema's `RequestId` has no null.
    fn refuse(&self, code: i32) {
        let error = json!({ "code": code, "message": "the message could not be read" });
        self.output.line(|line| append(line, &json!({ "jsonrpc": "2.0", "error": error })));
    }

    fn notification(&mut self, method: &str, params: &str) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Cancelled<'a> {
            #[serde(borrow)]
            request_id: &'a RawValue,
        }
        // Any other, known or not, changes nothing here.
        if method == "notifications/cancelled"
            && let Ok(Cancelled { request_id }) = serde_json::from_str(params)
            && let Some(id) = Id::new(request_id)
        {
            self.clock.cancel(&id);
            self.asks.cancel(&id);
        }
    }

    fn request(&mut self, reply: Reply, method: &str, params: &str) {
        match method {
            "ping" => reply.result(&json!({})),
            "initialize" => self.initialize(reply, params),
            _ => {
                // Taken out for the call, so that tools may borrow the session and change the rest.
                let Some(mut session) = self.session.take() else {
                    return reply.error(INVALID_REQUEST, "`initialize` comes first", None);
                };
                self.session_request(reply, &mut session, method, params);
                self.session = Some(session);
            }
        }
    }

    fn initialize(&mut self, reply: Reply, params: &str) {
        if self.session.is_some() {
            return reply.error(INVALID_REQUEST, "the session is initialized already", None);
        }
        if let Some((reply, proposal)) = read(reply, params) {
            let session = Session::open(&proposal);
            reply.result(&catalogue::initialize(session.revision));
            self.session = Some(session);
        }
    }

    fn session_request(&mut self, reply: Reply, session: &mut Session, method: &str, params: &str) {
        match method {
            "tools/call" => {
                if let Some((reply, call)) = read(reply, params) {
                    self.call(reply, session, call);
                }
            }
            "tools/list" => list(reply, params, || catalogue::tools(session.revision)),
            "prompts/list" => list(reply, params, || prompts::list(session.revision)),
            "resources/list" => list(reply, params, resources::list),
            "resources/templates/list" => list(reply, params, resources::templates),
            "resources/read" => self.read_resource(reply, params),
            "resources/subscribe" => self.subscribe(reply, session, params),
            "resources/unsubscribe" => unsubscribe(reply, session, params),
            "prompts/get" => get_prompt(reply, params),
            "completion/complete" => complete(reply, params),
            "logging/setLevel" => set_level(reply, session, params),
            _ => reply.error(METHOD_NOT_FOUND, "there is no such method", None),
        }
    }

    fn read_resource(&self, reply: Reply, params: &str) {
        if let Some((reply, Uri { uri })) = read(reply, params) {
            match self.resources.read(&uri) {
                Some(contents) => reply.result(&json!({ "contents": [contents] })),
                None => no_resource(reply, &uri),
            }
        }
    }

    fn subscribe(&self, reply: Reply, session: &mut Session, params: &str) {
        if let Some((reply, Uri { uri })) = read(reply, params) {
            if self.resources.read(&uri).is_none() {
                return no_resource(reply, &uri);
            }
            // The others never change, so there is nothing to remember.
            session.follows_counter |= uri == COUNTER;
            reply.result(&json!({}));
        }
    }
}

#[derive(Deserialize)]
struct Uri {
    uri: String,
}

fn unsubscribe(reply: Reply, session: &mut Session, params: &str) {
    if let Some((reply, Uri { uri })) = read(reply, params) {
        session.follows_counter &= uri != COUNTER;
        reply.result(&json!({}));
    }
}

fn no_resource(reply: Reply, uri: &str) {
    reply.error(RESOURCE_NOT_FOUND, "there is no such resource", Some(json!({ "uri": uri })));
}

/// Every list fits one page, so any cursor is one this server never gave (utilities, "Pagination").
fn list(reply: Reply, params: &str, page: impl FnOnce() -> Value) {
    #[derive(Deserialize)]
    struct Page {
        cursor: Option<String>,
    }
    match read(reply, params) {
        Some((reply, Page { cursor: None })) => reply.result(&page()),
        Some((reply, _)) => reply.error(INVALID_PARAMS, "the cursor is unknown", None),
        None => {}
    }
}

fn get_prompt(reply: Reply, params: &str) {
    #[derive(Deserialize)]
    struct Get {
        name: String,
        #[serde(default)]
        arguments: Value,
    }
    if let Some((reply, Get { name, arguments })) = read(reply, params) {
        match prompts::get(&name, &arguments) {
            Ok(prompt) => reply.result(&prompt),
            Err(wrong) => reply.error(INVALID_PARAMS, &wrong, None),
        }
    }
}

fn complete(reply: Reply, params: &str) {
    #[derive(Deserialize)]
    struct Complete {
        r#ref: Reference,
        argument: Argument,
    }
    #[derive(Deserialize)]
    #[serde(tag = "type")]
    enum Reference {
        #[serde(rename = "ref/prompt")]
        Prompt { name: String },
        #[serde(rename = "ref/resource")]
        Resource { uri: String },
    }
    #[derive(Deserialize)]
    struct Argument {
        name: String,
        value: String,
    }
    let Some((reply, Complete { r#ref, argument })) = read(reply, params) else {
        return;
    };
    let (known, values) = match r#ref {
        Reference::Prompt { name } => {
            (prompts::exists(&name), prompts::complete(&name, &argument.name, &argument.value))
        }
        Reference::Resource { uri } => {
            (resources::exists(&uri), resources::complete(&uri, &argument.name, &argument.value))
        }
    };
    if known {
        let total = values.len();
        reply.result(&json!({ "completion": { "values": values, "total": total, "hasMore": false } }));
    } else {
        reply.error(INVALID_PARAMS, "there is nothing of this name to complete", None);
    }
}

fn set_level(reply: Reply, session: &mut Session, params: &str) {
    #[derive(Deserialize)]
    struct Level {
        level: String,
    }
    match read(reply, params) {
        Some((reply, Level { level })) if session.set_level(&level) => reply.result(&json!({})),
        Some((reply, _)) => reply.error(INVALID_PARAMS, "there is no such level", None),
        None => {}
    }
}

/// Reads the parameters, or answers that they are wrong.
fn read<T: DeserializeOwned>(reply: Reply, params: &str) -> Option<(Reply, T)> {
    match serde_json::from_str(params) {
        Ok(params) => Some((reply, params)),
        Err(error) => {
            reply.error(INVALID_PARAMS, &format!("wrong parameters: {error}"), None);
            None
        }
    }
}

#[cfg(test)]
mod tests;
