//! Server-sent events: a parser that follows the standard (WHATWG HTML, "Interpreting an event stream"),
//! and a stream of them on a connection.

use std::collections::VecDeque;
use std::time::Instant;

use serde_json::Value;

use crate::PATIENCE;
use crate::client::{Connection, Head};

/// One thing an event stream said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Event(Event),
    /// A line that begins with a colon, without it.
    Comment(String),
    /// A `retry` field that holds digits only, in milliseconds.
    Retry(u64),
}

/// A dispatched event. A block without a `data` field is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The `id` field of this very block.
    pub id: Option<String>,
    /// The `event` field; empty if there was none.
    pub event: String,
    /// The `data` lines, joined by newlines.
    pub data: String,
}

impl Event {
    /// The JSON-RPC message in `data`.
    #[track_caller]
    pub fn message(&self) -> Value {
        self.data.parse().unwrap_or_else(|error| panic!("{error} in the data of {self:?}"))
    }
}

/// Takes bytes however they were cut, gives items.
#[derive(Default)]
pub struct Parser {
    line: Vec<u8>,
    /// The last byte was a CR, so a LF right after it ends no further line.
    after_cr: bool,
    began: bool,
    block: Event,
    has_data: bool,
    /// Becomes the last event id at the end of the block: one that breaks off does not count.
    buffered_id: String,
    last_event_id: String,
}

impl Parser {
    /// The last event id, which outlives the block it came in.
    pub fn last_event_id(&self) -> &str {
        &self.last_event_id
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Item> {
        let mut items = Vec::new();
        for &byte in bytes {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => {
                    let line = std::mem::take(&mut self.line);
                    self.take_line(&line, &mut items);
                }
                _ => self.line.push(byte),
            }
        }
        items
    }

    fn take_line(&mut self, line: &[u8], items: &mut Vec<Item>) {
        let line = match line.strip_prefix(b"\xef\xbb\xbf") {
            Some(rest) if !self.began => rest,
            _ => line,
        };
        self.began = true;
        let line = std::str::from_utf8(line).expect("an event stream must be UTF-8");
        if line.is_empty() {
            self.last_event_id.clone_from(&self.buffered_id);
            let block = std::mem::take(&mut self.block);
            if std::mem::take(&mut self.has_data) {
                items.push(Item::Event(block));
            }
            return;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "" => items.push(Item::Comment(line[1..].to_owned())),
            "event" => self.block.event = value.to_owned(),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.block.data.push('\n');
                }
                self.block.data.push_str(value);
            }
            "id" if !value.contains('\0') => {
                self.block.id = Some(value.to_owned());
                self.buffered_id = value.to_owned();
            }
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                items.extend(value.parse().map(Item::Retry));
            }
            _ => {}
        }
    }
}

/// The SSE body of a response, read as it comes.
pub struct EventStream {
    /// The response's head.
    pub head: Head,
    /// Everything said so far, events and others, in order.
    pub seen: Vec<Item>,
    connection: Connection,
    parser: Parser,
    ready: VecDeque<Item>,
}

impl EventStream {
    /// Takes a connection whose response head was read; fails unless it is a successful event stream.
    #[track_caller]
    pub fn new(connection: Connection, head: Head) -> Self {
        assert_eq!(head.status, 200, "no event stream: {head:?}");
        let kind = head.header("content-type").unwrap_or_default();
        assert!(kind.starts_with("text/event-stream"), "no event stream: {head:?}");
        let (parser, ready) = Default::default();
        Self { head, seen: Vec::new(), connection, parser, ready }
    }

    /// The next item of any kind; `None` when the stream has ended.
    pub fn next(&mut self) -> Option<Item> {
        while self.ready.is_empty() {
            let bytes = self.connection.read_body()?;
            self.ready.extend(self.parser.push(&bytes));
        }
        let item = self.ready.pop_front()?;
        self.seen.push(item.clone());
        Some(item)
    }

    /// The next event, comments and retries skipped; fails if the stream ends first.
    #[track_caller]
    pub fn next_event(&mut self) -> Event {
        self.next_event_or_end().expect("the stream ended before the next event")
    }

    /// The next event; `None` when the stream has ended. Comments alone do not keep it waiting.
    #[track_caller]
    pub fn next_event_or_end(&mut self) -> Option<Event> {
        let began = Instant::now();
        loop {
            if let Item::Event(event) = self.next()? {
                return Some(event);
            }
            assert!(began.elapsed() < PATIENCE, "only comments for {PATIENCE:?}: {:?}", self.seen);
        }
    }

    /// The next JSON-RPC message, priming events skipped; fails if the stream ends first.
    #[track_caller]
    pub fn next_message(&mut self) -> Value {
        loop {
            let event = self.next_event();
            if !event.data.is_empty() {
                return event.message();
            }
        }
    }

    /// Reads messages until one matches; returns it.
    #[track_caller]
    pub fn await_message(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.next_message();
            if wanted(&message) {
                return message;
            }
        }
    }

    /// All events until the stream ends.
    pub fn rest(mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.next_event_or_end()).collect()
    }

    /// The last event id seen.
    pub fn last_event_id(&self) -> &str {
        self.parser.last_event_id()
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        self.connection.reset();
    }

    /// The connection, to be left alone or broken in some other way.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

#[test]
fn the_parser_follows_the_standard_however_bytes_are_cut() {
    let stream = "\u{feff}: hi\nid: 1\nevent: e\ndata: a\ndata:b\n\nid\rdata\r\rretry: 10\r\nretry: x\r\nid: 2\r\n\r\ndata:é\nid: a\0b\n\nother: x\n\n";
    let event = |id: Option<&str>, event: &str, data: &str| {
        Item::Event(Event { id: id.map(str::to_owned), event: event.into(), data: data.into() })
    };
    let wanted = [
        Item::Comment(" hi".into()),
        event(Some("1"), "e", "a\nb"),
        event(Some(""), "", ""),
        Item::Retry(10),
        event(None, "", "é"),
    ];
    for size in 1..stream.len() {
        let mut parser = Parser::default();
        let items: Vec<_> = stream.as_bytes().chunks(size).flat_map(|cut| parser.push(cut)).collect();
        assert_eq!(items, wanted, "cut every {size} bytes");
        assert_eq!(parser.last_event_id(), "2");
    }
}
