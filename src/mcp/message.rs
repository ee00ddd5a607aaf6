//! One JSON-RPC message: its envelope by byte range, its payload raw.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use memchr::{memchr2, memchr2_iter};

use crate::mcp::beginning::Beginning;
use crate::mcp::ids::{Id, parse_u64, put_u64};
use crate::mcp::payload::{Payload, Spliced};
use crate::mcp::revision::Revision;
use crate::mcp::scan::{Author, Fields, ScanFault, Span, Top, elements, scan, scan_first, scan_into, scan_on};

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Has a method and an id.
    Request,
    /// Has a method and no id.
    Notification,
    /// Answers a request with a result.
    Result,
    /// Answers a request with an error.
    Error,
}

/// Why a text is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Not valid UTF-8.
    NotUtf8,
    /// Not JSON.
    NotJson,
    /// Nested deeper than [`crate::mcp::scan::MAX_DEPTH`].
    TooDeep,
    /// A key stands twice.
    Duplicate,
    /// JSON, but an array.
    Array,
    /// JSON, but neither request, notification nor response of JSON-RPC 2.0.
    NotMessage,
    /// A request or response whose id is null, fractional, too long or no string or integer.
    BadId,
}

/// A text that is no message, and what could still be read of it.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// The id, where one could be read.
    pub id: Option<Id>,
    /// The text.
    pub text: Bytes,
}

/// One message. Its text holds no raw CR or LF: between tokens they became spaces, since one would
/// split a child's line or forge a field of an event stream; within a string they are not JSON.
#[derive(Clone, Debug)]
pub struct Message {
    text: Bytes,
    fields: Fields,
    kind: Kind,
    /// The method's text where it was spelled with escapes (PHP writes `tools\/call`).
    decoded_method: Option<Box<str>>,
}

impl Message {
    /// Reads one message.
    ///
    /// # Errors
    /// When `text` is not exactly one JSON-RPC 2.0 message of at most 4 GiB.
    pub fn parse(text: Bytes, author: Author) -> Result<Message, Fault> {
        if u32::try_from(text.len()).is_err() || std::str::from_utf8(&text).is_err() {
            return Err(Fault { kind: FaultKind::NotUtf8, id: None, text });
        }
        let mut message = Message::unread(text);
        let top = scan_into(&message.text, author, &mut message.fields);
        message.judge(top, author)
    }

    /// Reads one message of a child's that may begin as the one before did.
    ///
    /// # Errors
    /// As for [`Message::parse`].
    pub fn parse_next(text: Bytes, beginning: &mut Beginning) -> Result<Message, Fault> {
        let known = beginning.length_in(&text);
        if u32::try_from(text.len()).is_err() || std::str::from_utf8(&text[known..]).is_err() {
            return Err(Fault { kind: FaultKind::NotUtf8, id: None, text });
        }
        let mut message = Message::unread(text);
        let top = match known {
            0 => scan_first(&message.text, beginning, &mut message.fields),
            _ => scan_on(&message.text, beginning, &mut message.fields),
        };
        message.judge(top, Author::Child)
    }

    /// Where the members of a text are found: they are many, and moving them costs as much as finding some.
    fn unread(text: Bytes) -> Message {
        Message { text, fields: Fields::default(), kind: Kind::Notification, decoded_method: None }
    }

    /// Whether what was scanned is a message.
    #[inline]
    fn judge(mut self, top: Result<Top, ScanFault>, author: Author) -> Result<Message, Fault> {
        let verdict = match top {
            Ok(Top::Object) => kind_of(&self.text, &self.fields),
            Ok(Top::Array) => Err(FaultKind::Array),
            Ok(Top::Scalar) => Err(FaultKind::NotMessage),
            Err(ScanFault::Syntax) => Err(FaultKind::NotJson),
            Err(ScanFault::Depth) => Err(FaultKind::TooDeep),
            Err(ScanFault::Duplicate) => Err(FaultKind::Duplicate),
        };
        self.kind = match verdict {
            Ok(kind) => kind,
            Err(kind) => {
                let id = match kind {
                    FaultKind::Array => None,
                    // A client's broken text has no id anyone could rely on; a child's still names the call.
                    FaultKind::NotJson if author == Author::Client => None,
                    _ => self.id(),
                };
                return Err(Fault { kind, id, text: self.text });
            }
        };
        if self.fields.raw_newline {
            self.text = without_newlines(&self.text);
        }
        if self.fields.method.is_some_and(|method| method.of(&self.text).contains(&b'\\')) {
            self.decoded_method = self.string(self.fields.method).map(|method| method.into_owned().into_boxed_str());
        }
        Ok(self)
    }

    /// Reads the elements of a batch, each by itself.
    ///
    /// # Errors
    /// When `text` is no valid JSON array.
    pub fn parse_batch(text: &Bytes, author: Author) -> Result<Vec<Result<Message, Fault>>, FaultKind> {
        if std::str::from_utf8(text).is_err() {
            return Err(FaultKind::NotUtf8);
        }
        let parts = elements(text, author).map_err(|fault| match fault {
            ScanFault::Depth => FaultKind::TooDeep,
            ScanFault::Syntax | ScanFault::Duplicate => FaultKind::NotJson,
        })?;
        Ok(parts.into_iter().map(|part| Message::parse(text.slice(part.start()..part.end()), author)).collect())
    }

    /// The same with a text of its own, for whoever keeps it: as it was read it may share a large
    /// buffer.
    #[must_use]
    pub fn detached(mut self) -> Message {
        self.text = Bytes::copy_from_slice(&self.text);
        self
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its whole text.
    #[must_use]
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// Where its members stand.
    #[must_use]
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// The id of a request or response.
    #[must_use]
    pub fn id(&self) -> Option<Id> {
        id_of(&self.text, &self.fields)
    }

    /// The id as a number, without a copy; `None` where it is anything else.
    #[must_use]
    pub fn numeric_id(&self) -> Option<u64> {
        parse_u64(self.fields.id?.of(&self.text))
    }

    /// The method; empty for a response.
    #[must_use]
    pub fn method(&self) -> &str {
        match (&self.decoded_method, self.fields.method) {
            (Some(decoded), _) => decoded,
            (None, Some(span)) => {
                let raw = span.of(&self.text);
                std::str::from_utf8(&raw[1..raw.len() - 1]).unwrap_or_default()
            }
            (None, None) => "",
        }
    }

    /// Whether it is a request or notification with this method.
    #[must_use]
    pub fn calls(&self, method: &str) -> bool {
        match (&self.decoded_method, self.fields.method) {
            (Some(decoded), _) => **decoded == *method,
            (None, Some(span)) => {
                let raw = span.of(&self.text);
                raw[1..raw.len() - 1] == *method.as_bytes()
            }
            (None, None) => false,
        }
    }

    /// The text of a string member; `None` where it is no string, or holds a lone surrogate.
    #[must_use]
    pub fn string(&self, span: Option<Span>) -> Option<Cow<'_, str>> {
        let raw = span?.of(&self.text);
        let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        if inner.contains(&b'\\') {
            serde_json::from_slice(raw).ok().map(Cow::Owned)
        } else {
            std::str::from_utf8(inner).ok().map(Cow::Borrowed)
        }
    }

    /// A token member as a number, without a copy; `None` where it is anything else.
    #[must_use]
    pub fn number_at(&self, span: Option<Span>) -> Option<u64> {
        parse_u64(span?.of(&self.text))
    }

    /// An id or token member.
    #[must_use]
    pub fn id_at(&self, span: Option<Span>) -> Option<Id> {
        let span = span?;
        Id::parse(span.of(&self.text))
    }

    /// Whether it asks for progress under what is no token: neither a string nor an integer
    /// (Progress, Progress Flow), or one too long to be kept. `null` asks for nothing.
    #[must_use]
    pub fn has_bad_token(&self) -> bool {
        let token = self.fields.token.map(|span| span.of(&self.text));
        token.is_some_and(|token| token != b"null" && !Id::fits(token))
    }

    /// Whether a result says of itself that the tool failed.
    #[must_use]
    pub fn is_tool_error(&self) -> bool {
        self.fields.is_error.is_some_and(|span| span.of(&self.text) == b"true")
    }

    /// The code of an error.
    #[must_use]
    pub fn error_code(&self) -> Option<i64> {
        std::str::from_utf8(self.fields.code?.of(&self.text)).ok()?.parse().ok()
    }

    /// Appends the line for a child: the envelope is built anew, so nothing of it but what the
    /// protocol knows gets through; `params` passes as it is, but for its progress token.
    pub fn write_request(&self, id: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        put_u64(out, id);
        self.write_method(out);
        if let Some(params) = self.fields.params {
            out.extend_from_slice(b",\"params\":");
            match self.fields.token.filter(|token| Id::fits(token.of(&self.text))) {
                Some(token) => {
                    out.extend_from_slice(&self.text[params.start()..token.start()]);
                    put_u64(out, id);
                    out.extend_from_slice(&self.text[token.end()..params.end()]);
                }
                None => out.extend_from_slice(params.of(&self.text)),
            }
        }
        out.extend_from_slice(b"}\n");
    }

    /// Appends the line of a notification for a child, with `params.requestId` replaced where
    /// `request_id` is given.
    pub fn write_notification(&self, request_id: Option<u64>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\"");
        self.write_method(out);
        if let Some(params) = self.fields.params {
            out.extend_from_slice(b",\"params\":");
            match (request_id, self.fields.request_id) {
                (Some(id), Some(span)) => {
                    out.extend_from_slice(&self.text[params.start()..span.start()]);
                    put_u64(out, id);
                    out.extend_from_slice(&self.text[span.end()..params.end()]);
                }
                _ => out.extend_from_slice(params.of(&self.text)),
            }
        }
        out.extend_from_slice(b"}\n");
    }

    /// Appends the line of a response for a child, under the child's own id.
    pub fn write_response(&self, id: &Id, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        out.extend_from_slice(id.raw());
        let (name, value) = match self.fields.result {
            Some(result) => (&b",\"result\":"[..], result.of(&self.text)),
            None => (&b",\"error\":"[..], self.fields.error.map_or(&b"{}"[..], |error| error.of(&self.text))),
        };
        out.extend_from_slice(name);
        out.extend_from_slice(value);
        out.extend_from_slice(b"}\n");
    }

    /// The same `initialize`, asking for `revision`. Unchanged where it names none: that is for its reader to judge.
    #[must_use]
    pub fn asking_for(&self, revision: Revision) -> Message {
        let Some(span) = self.fields.protocol_version else { return self.clone() };
        let name = revision.name();
        let mut text = BytesMut::with_capacity(self.text.len() + name.len());
        text.extend_from_slice(&self.text[..span.start()]);
        text.extend_from_slice(format!("\"{name}\"").as_bytes());
        text.extend_from_slice(&self.text[span.end()..]);
        Message::parse(text.freeze(), Author::Client).expect("a message stays one when a value is replaced by a string")
    }

    fn write_method(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"method\":");
        out.extend_from_slice(self.fields.method.map_or(&b"\"\""[..], |method| method.of(&self.text)));
    }

    /// The text with its id replaced: a child's answer under the id its owner knows.
    #[must_use]
    pub fn with_id(&self, id: &Id) -> Payload {
        match self.fields.id {
            Some(span) => Payload::replaced(&self.text, span.start(), span.end(), id.raw()),
            None => Payload::whole(self.text.clone()),
        }
    }

    /// The text with `params.progressToken` replaced.
    #[must_use]
    pub fn with_progress_of<'a>(&'a self, token: &'a Id) -> Spliced<'a> {
        match self.fields.progress_of {
            Some(span) => Spliced::replaced(&self.text, span.start(), span.end(), token.raw()),
            None => Spliced::unchanged(&self.text),
        }
    }

    /// The text as it is.
    #[must_use]
    pub fn unchanged(&self) -> Spliced<'_> {
        Spliced::unchanged(&self.text)
    }
}

/// What the readable part of a child's bad line was meant to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remains {
    /// The answer to the request with this id.
    Answer(Id),
    /// A request of the child's with this id. Both sides count from 1, so its number says nothing
    /// about a call of ours.
    Request(Id),
    /// A notification, or a request whose id cannot be read.
    Said,
    /// Anything.
    Unknown,
}

/// Reads what can be read of a line that is no message, or of which only the beginning is there.
#[must_use]
pub fn remains_of(head: &Bytes) -> Remains {
    let (_fault, fields) = scan(head, Author::Child);
    match (fields.method, id_of(head, &fields)) {
        (Some(_), Some(id)) => Remains::Request(id),
        (Some(_), None) => Remains::Said,
        (None, Some(id)) => Remains::Answer(id),
        (None, None) => Remains::Unknown,
    }
}

fn id_of(text: &Bytes, fields: &Fields) -> Option<Id> {
    let span = fields.id?;
    // A copy: whoever keeps an id must not keep the whole message with it.
    Id::parse(span.of(text))
}

fn kind_of(text: &Bytes, fields: &Fields) -> Result<Kind, FaultKind> {
    if fields.jsonrpc.is_none_or(|span| span.of(text) != b"\"2.0\"") {
        return Err(FaultKind::NotMessage);
    }
    let id_is_good = || if id_of(text, fields).is_some() { Ok(()) } else { Err(FaultKind::BadId) };
    match (fields.method, fields.result, fields.error) {
        (Some(method), None, None) => {
            let params_fit = fields.params.is_none_or(|span| matches!(text[span.start()], b'{' | b'['));
            if text[method.start()] != b'"' || !params_fit {
                return Err(FaultKind::NotMessage);
            }
            if fields.id.is_none() {
                return Ok(Kind::Notification);
            }
            id_is_good().map(|()| Kind::Request)
        }
        (None, Some(_), None) => id_is_good().map(|()| Kind::Result),
        (None, None, Some(error)) if text[error.start()] == b'{' => id_is_good().map(|()| Kind::Error),
        _ => Err(FaultKind::NotMessage),
    }
}

fn without_newlines(text: &Bytes) -> Bytes {
    let mut copy = BytesMut::from(&text[..]);
    let places: Vec<usize> = memchr2_iter(b'\r', b'\n', text).collect();
    for place in places {
        copy[place] = b' ';
    }
    debug_assert!(memchr2(b'\r', b'\n', &copy).is_none());
    copy.freeze()
}

#[cfg(test)]
mod tests {
    use super::{FaultKind, Kind, Message, Remains, remains_of};
    use crate::mcp::ids::Id;
    use crate::mcp::revision::Revision;
    use crate::mcp::scan::Author;
    use bytes::Bytes;

    fn read(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes()), Author::Client).expect(text)
    }

    fn fault(text: &[u8]) -> (FaultKind, Option<Vec<u8>>) {
        let fault = Message::parse(Bytes::copy_from_slice(text), Author::Client).expect_err("a fault");
        (fault.kind, fault.id.map(|id| id.raw().to_vec()))
    }

    fn line(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("utf-8")
    }

    #[test]
    fn tells_the_kinds_apart() {
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).kind(), Kind::Request);
        assert_eq!(read(r#"{"jsonrpc":"2.0","method":"ping"}"#).kind(), Kind::Notification);
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":"a","result":null}"#).kind(), Kind::Result);
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":""}}"#).kind(), Kind::Error);
    }

    #[test]
    fn decodes_what_it_is_asked_for() {
        let message = read(r#"{"jsonrpc":"2.0","id":1,"method":"tools\/c\u0061ll","params":{"name":"\u0065cho"}}"#);
        assert_eq!(message.method(), "tools/call");
        assert_eq!(message.string(message.fields().name).as_deref(), Some("echo"));
        assert!(line(|out| message.write_request(1, out)).contains(r#""method":"tools\/c\u0061ll""#));
    }

    #[test]
    fn names_each_fault() {
        type Case<'a> = (&'a [u8], FaultKind, Option<&'a [u8]>);
        let cases: [Case<'_>; 14] = [
            (b"{", FaultKind::NotJson, None),
            (b"\xff{}", FaultKind::NotUtf8, None),
            (b"[]", FaultKind::Array, None),
            (b"7", FaultKind::NotMessage, None),
            (b"{}", FaultKind::NotMessage, None),
            (br#"{"jsonrpc":"2.0"}"#, FaultKind::NotMessage, None),
            (br#"{"jsonrpc":"1.0","id":4,"method":"a"}"#, FaultKind::NotMessage, Some(b"4")),
            (br#"{"jsonrpc":"2.0","id":null,"method":"a"}"#, FaultKind::BadId, None),
            (br#"{"jsonrpc":"2.0","id":1.0,"method":"a"}"#, FaultKind::BadId, None),
            (br#"{"jsonrpc":"2.0","id":1,"method":2}"#, FaultKind::NotMessage, Some(b"1")),
            (br#"{"jsonrpc":"2.0","id":1,"method":"a","params":3}"#, FaultKind::NotMessage, Some(b"1")),
            (br#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#, FaultKind::NotMessage, Some(b"1")),
            (br#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#, FaultKind::Duplicate, Some(b"1")),
            (br#"{"jsonrpc":"2.0","id":1,"Method":"a"}"#, FaultKind::NotMessage, Some(b"1")),
        ];
        for (text, kind, id) in cases {
            assert_eq!(fault(text), (kind, id.map(<[u8]>::to_vec)), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn asks_for_another_revision_and_nothing_else() {
        let text =
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"x":1,"protocolVersion":"DRAFT","y":1.0}}"#;
        assert_eq!(read(text).asking_for(Revision::LATEST).text(), &text.replace("DRAFT", "2025-11-25"));
        let nameless = r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#;
        assert_eq!(read(nameless).asking_for(Revision::LATEST).text(), nameless);
    }

    #[test]
    fn rewrites_only_ids_and_tokens() {
        let message = read(
            "{ \"id\":\"x\",\r\n \"jsonrpc\":\"2.0\",\"extra\":1,\"method\":\"tools/call\",\n\"params\":{ \"_meta\":{\"progressToken\":\"t\",\"v\":1e400},\"n\":9223372036854775808}}",
        );
        assert_eq!(
            line(|out| message.write_request(12, out)),
            "{\"jsonrpc\":\"2.0\",\"id\":12,\"method\":\"tools/call\",\"params\":{ \"_meta\":{\"progressToken\":12,\"v\":1e400},\"n\":9223372036854775808}}\n"
        );
        let cancel =
            read(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x","reason":"r"}}"#);
        assert_eq!(
            line(|out| cancel.write_notification(Some(3), out)),
            "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":3,\"reason\":\"r\"}}\n"
        );
        let answer = read(r#"{"jsonrpc":"2.0","id":3,"result":{"a":1}}"#);
        let id = Id::parse(b"\"e1\"").expect("id");
        assert_eq!(
            line(|out| answer.write_response(&id, out)),
            "{\"jsonrpc\":\"2.0\",\"id\":\"e1\",\"result\":{\"a\":1}}\n"
        );
        assert_eq!(answer.with_id(&id).to_bytes(), &br#"{"jsonrpc":"2.0","id":"e1","result":{"a":1}}"#[..]);
    }

    #[test]
    fn tells_tokens_from_what_is_none() {
        let asks = |token: &str| {
            let text =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"_meta":{{"progressToken":{token}}}}}}}"#);
            read(&text).has_bad_token()
        };
        for token in ["0", "-1", "\"\"", "\"é\"", "184467440737095516160", "null"] {
            assert!(!asks(token), "{token}");
        }
        for token in ["{}", "[1]", "1.0", "1e2", "true", &format!("\"{}\"", "t".repeat(257))] {
            assert!(asks(token), "{token}");
        }
        assert!(!read(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"progressToken":{}}}"#).has_bad_token());
    }

    #[test]
    fn long_texts_keep_their_bytes() {
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"t":"{}"}}}}"#, "é".repeat(40_000));
        let id = Id::parse(b"\"long\"").expect("id");
        let payload = read(&text).with_id(&id);
        assert_eq!(payload.to_bytes(), text.replacen('7', "\"long\"", 1).as_bytes());
        assert_eq!(payload.len(), payload.to_bytes().len());
    }

    #[test]
    fn tells_what_a_cut_line_was_meant_to_be() {
        let remains = |text: &'static [u8]| remains_of(&Bytes::from_static(text));
        let id = || Id::parse(b"77").expect("id");
        assert_eq!(remains(br#"{"jsonrpc":"2.0","id":77,"result":{"a":"bbb"#), Remains::Answer(id()));
        assert_eq!(remains(br#"{"jsonrpc":"2.0","result":{"id":77,"a":"bbb"#), Remains::Unknown);
        assert_eq!(remains(br#"{"jsonrpc":"2.0","id":77,"method":"x","params":{"#), Remains::Request(id()));
        assert_eq!(remains(br#"{"jsonrpc":"2.0","method":"x","params":{"id":77,"#), Remains::Said);
    }

    #[test]
    fn batches_fail_element_by_element() {
        let text = Bytes::from_static(br#"[{"jsonrpc":"2.0","id":1,"method":"a"},3]"#);
        let parts = Message::parse_batch(&text, Author::Client).expect("array");
        assert!(parts[0].is_ok());
        assert_eq!(parts[1].as_ref().expect_err("scalar").kind, FaultKind::NotMessage);
        assert!(Message::parse_batch(&Bytes::from_static(b"[1"), Author::Client).is_err());
    }
}
