//! One MCP session as a client holds it: each message on a connection of its own, as the transport
//! allows, so that a test can hold or break any of them alone.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::{Connection, Head, Request, Response};
use crate::gateway::Gateway;
use crate::sse::{Event, EventStream, Item, Parser};

/// An open session.
#[derive(Clone, Debug)]
pub struct Session {
    pub address: SocketAddr,
    pub path: String,
    /// `Mcp-Session-Id`
    pub id: String,
    /// The negotiated revision, sent as `MCP-Protocol-Version` where it has that header.
    pub revision: String,
    /// The result of `initialize`.
    pub initialized: Value,
    /// Sent with every request, such as `Authorization`.
    pub headers: Vec<(String, String)>,
}

impl Session {
    /// `initialize` and `notifications/initialized`; fails unless both succeed.
    #[track_caller]
    pub fn open(gateway: &Gateway, path: &str, revision: &str, capabilities: Value) -> Self {
        Self::open_with(gateway, path, revision, capabilities, &[])
    }

    /// As [`Session::open`], with further fields on every request.
    #[track_caller]
    pub fn open_with(
        gateway: &Gateway,
        path: &str,
        revision: &str,
        capabilities: Value,
        headers: &[(&str, &str)],
    ) -> Self {
        let session = Self::initialize(gateway, path, revision, capabilities, headers);
        let accepted = session.notify("notifications/initialized", json!({}));
        assert_eq!(accepted.status(), 202, "{accepted:?}");
        session
    }

    /// `initialize` only.
    #[track_caller]
    pub fn initialize(
        gateway: &Gateway,
        path: &str,
        revision: &str,
        capabilities: Value,
        headers: &[(&str, &str)],
    ) -> Self {
        let address = gateway.address();
        let mut request = Request::post(path, initialize(revision, capabilities).to_string());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let answer = Exchange::send(address, &request).finish();
        assert_eq!(answer.head.status, 200, "initialize: {answer:?}");
        let id = answer.head.header("mcp-session-id");
        let id = id.unwrap_or_else(|| panic!("no session id: {answer:?}")).to_owned();
        let initialized = answer.message()["result"].clone();
        let revision = initialized["protocolVersion"].as_str();
        Self {
            address,
            path: path.to_owned(),
            id,
            revision: revision.unwrap_or_else(|| panic!("initialize: {answer:?}")).to_owned(),
            initialized,
            headers: headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        }
    }

    /// A POST of this session, to be changed before it is sent.
    pub fn post_request(&self, body: impl AsRef<[u8]>) -> Request {
        self.add_headers(Request::post(&self.path, body))
    }

    /// A GET of this session.
    pub fn get_request(&self) -> Request {
        self.add_headers(Request::get(&self.path).header("Accept", "text/event-stream"))
    }

    /// A DELETE of this session.
    pub fn delete_request(&self) -> Request {
        self.add_headers(Request::new("DELETE", &self.path))
    }

    fn add_headers(&self, request: Request) -> Request {
        let mut request = request.header("Mcp-Session-Id", &self.id);
        if self.revision.as_str() >= "2025-06-18" {
            request = request.header("MCP-Protocol-Version", &self.revision);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request
    }

    /// Sends exact bytes and leaves the answer to be read.
    #[track_caller]
    pub fn send(&self, body: impl AsRef<[u8]>) -> Exchange {
        Exchange::send(self.address, &self.post_request(body))
    }

    /// Sends `tools/call` and leaves the answer to be read.
    #[track_caller]
    pub fn send_call(&self, id: impl Into<Value>, tool: &str, arguments: Value) -> Exchange {
        self.send(call(id, tool, arguments, None).to_string())
    }

    /// As [`Session::send_call`], asking for progress under this token.
    #[track_caller]
    pub fn send_call_with_token(
        &self,
        id: impl Into<Value>,
        tool: &str,
        arguments: Value,
        token: impl Into<Value>,
    ) -> Exchange {
        self.send(call(id, tool, arguments, Some(token.into())).to_string())
    }

    /// Sends exact bytes and reads the whole answer.
    #[track_caller]
    pub fn post(&self, body: impl AsRef<[u8]>) -> Answer {
        self.send(body).finish()
    }

    /// A request of any method; its JSON-RPC answer.
    #[track_caller]
    pub fn request(&self, id: impl Into<Value>, method: &str, params: Value) -> Value {
        let id = id.into();
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.post(body.to_string()).response(&id)
    }

    /// `tools/call`; its JSON-RPC answer.
    #[track_caller]
    pub fn call(&self, id: impl Into<Value>, tool: &str, arguments: Value) -> Value {
        let id = id.into();
        self.send_call(id.clone(), tool, arguments).finish().response(&id)
    }

    /// `tools/call`; the text of its first content. Fails unless there is one.
    #[track_caller]
    pub fn call_text(&self, id: impl Into<Value>, tool: &str, arguments: Value) -> String {
        let answer = self.call(id, tool, arguments);
        let text = answer["result"]["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("no text: {answer}")).to_owned()
    }

    /// A notification.
    #[track_caller]
    pub fn notify(&self, method: &str, params: Value) -> Response {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.post_request(body.to_string()).send(self.address)
    }

    /// The answer to a request of the server.
    #[track_caller]
    pub fn respond(&self, id: &Value, result: Value) -> Response {
        let body = json!({ "jsonrpc": "2.0", "id": id, "result": result });
        self.post_request(body.to_string()).send(self.address)
    }

    /// Opens the standalone stream.
    #[track_caller]
    pub fn get(&self) -> EventStream {
        Exchange::send(self.address, &self.get_request()).stream()
    }

    /// Resumes a stream after this event id.
    #[track_caller]
    pub fn resume(&self, last_event_id: &str) -> EventStream {
        let request = self.get_request().header("Last-Event-ID", last_event_id);
        Exchange::send(self.address, &request).stream()
    }

    /// Ends the session.
    #[track_caller]
    pub fn delete(&self) -> Response {
        self.delete_request().send(self.address)
    }
}

/// The `initialize` request of these tests.
pub fn initialize(revision: &str, capabilities: Value) -> Value {
    json!({
        "jsonrpc": "2.0", "id": "initialize", "method": "initialize",
        "params": {
            "protocolVersion": revision, "capabilities": capabilities,
            "clientInfo": { "name": "integration", "version": "1" },
        },
    })
}

/// A `tools/call` request.
pub fn call(id: impl Into<Value>, tool: &str, arguments: Value, token: Option<Value>) -> Value {
    let mut params = json!({ "name": tool, "arguments": arguments });
    if let Some(token) = token {
        params["_meta"] = json!({ "progressToken": token });
    }
    json!({ "jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": params })
}

/// A request that was written and whose answer was not read yet.
pub struct Exchange {
    pub connection: Connection,
}

impl Exchange {
    /// Writes a request on a connection of its own.
    #[track_caller]
    pub fn send(address: SocketAddr, request: &Request) -> Self {
        let mut connection = Connection::open(address);
        connection.request(request);
        Self { connection }
    }

    /// Reads the head and expects an event stream.
    #[track_caller]
    pub fn stream(mut self) -> EventStream {
        let head = self.connection.head();
        EventStream::new(self.connection, head)
    }

    /// Reads the answer to its end, whichever form it takes.
    #[track_caller]
    pub fn finish(mut self) -> Answer {
        let Response { head, body } = self.connection.response();
        Answer::new(head, body)
    }

    /// Breaks the connection with a reset.
    pub fn reset(self) {
        self.connection.reset();
    }
}

/// A whole answer: one JSON message, or the messages of an event stream.
#[derive(Clone, Debug)]
pub struct Answer {
    pub head: Head,
    pub body: Vec<u8>,
    /// The events, if it was an event stream.
    pub events: Vec<Event>,
    /// The text of every JSON-RPC message, in order, as spelled.
    pub texts: Vec<String>,
}

impl Answer {
    #[track_caller]
    fn new(head: Head, body: Vec<u8>) -> Self {
        let kind = head.header("content-type").unwrap_or_default();
        let mut events = Vec::new();
        let texts = if kind.starts_with("text/event-stream") {
            let items = Parser::default().push(&body);
            events.extend(items.into_iter().filter_map(|item| match item {
                Item::Event(event) => Some(event),
                Item::Comment(_) | Item::Retry(_) => None,
            }));
            let data = events.iter().map(|event| event.data.clone());
            data.filter(|data| !data.is_empty()).collect()
        } else if kind.starts_with("application/json") {
            vec![String::from_utf8(body.clone()).unwrap()]
        } else {
            Vec::new()
        };
        Self { head, body, events, texts }
    }

    /// Whether it was an event stream.
    pub fn is_stream(&self) -> bool {
        let kind = self.head.header("content-type").unwrap_or_default();
        kind.starts_with("text/event-stream")
    }

    /// Every JSON-RPC message, in order.
    #[track_caller]
    pub fn messages(&self) -> Vec<Value> {
        self.texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// The last message, which of an answered request is its answer.
    #[track_caller]
    pub fn message(&self) -> Value {
        self.raw().parse().unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The last message as spelled, for comparing bytes.
    #[track_caller]
    pub fn raw(&self) -> &str {
        self.texts.last().unwrap_or_else(|| panic!("no message in {self:?}"))
    }

    /// The one response, which must carry this id. Fails if there are several.
    #[track_caller]
    pub fn response(&self, id: &Value) -> Value {
        let mut responses = self.messages();
        responses.retain(|message| message.get("method").is_none());
        assert_eq!(responses.len(), 1, "one response wanted: {self:?}");
        assert_eq!(&responses[0]["id"], id, "{self:?}");
        responses.remove(0)
    }
}
