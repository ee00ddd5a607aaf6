//! One pass over a JSON text: is it valid, how deep is it, and where do the envelope's members stand.
//!
//! Nothing is decoded and nothing is copied. The whole text is checked, because what this scanner
//! lets through is what the other side's parser gets to see (RFC 8259).

use std::borrow::Cow;
use std::collections::HashSet;
use std::num::NonZeroU32;

use crate::mcp::beginning::Beginning;
use crate::mcp::envelope::{Member, Place};
use crate::mcp::plain_run::plain_length;

/// Nesting a message may have; what common JSON parsers accept at most.
pub const MAX_DEPTH: u32 = 127;

/// A part of a text, as byte offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    /// No part is empty, so it is not zero, which keeps an absent part as small as a present one.
    end: NonZeroU32,
}

impl Span {
    fn new(start: usize, end: usize) -> Span {
        // A line or body is bounded far below 4 GiB by configuration; `Message::parse` checks it.
        Span { start: start as u32, end: NonZeroU32::new(end as u32).unwrap_or(NonZeroU32::MIN) }
    }

    /// Offset of the first byte.
    #[must_use]
    pub fn start(self) -> usize {
        self.start as usize
    }

    /// Offset behind the last byte.
    #[must_use]
    pub fn end(self) -> usize {
        self.end.get() as usize
    }

    /// The bytes of `text` this part covers.
    #[must_use]
    pub fn of(self, text: &[u8]) -> &[u8] {
        &text[self.start()..self.end()]
    }
}

/// Who wrote a text; clients are held to more than children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// Duplicate keys in `params` and `params._meta` and lone surrogates are faults: another
    /// parser behind the gateway could read them differently.
    Client,
    /// What a local server prints passes unless it cannot be a message.
    Child,
}

/// Why a text is not acceptable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanFault {
    /// Not JSON.
    Syntax,
    /// Deeper than [`MAX_DEPTH`].
    Depth,
    /// A key stands twice where that matters.
    Duplicate,
}

/// Where the members of an envelope stand. Absent members are `None`; `null` is a present value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fields {
    /// `jsonrpc`
    pub jsonrpc: Option<Span>,
    /// `id`
    pub id: Option<Span>,
    /// `method`
    pub method: Option<Span>,
    /// `params`
    pub params: Option<Span>,
    /// `result`
    pub result: Option<Span>,
    /// `error`
    pub error: Option<Span>,
    /// `params._meta.progressToken`
    pub token: Option<Span>,
    /// `params.progressToken`
    pub progress_of: Option<Span>,
    /// `params.requestId`
    pub request_id: Option<Span>,
    /// `params.name`
    pub name: Option<Span>,
    /// `params.uri`
    pub uri: Option<Span>,
    /// `params.level`
    pub level: Option<Span>,
    /// `params.protocolVersion` or `result.protocolVersion`
    pub protocol_version: Option<Span>,
    /// `params._meta["io.modelcontextprotocol/protocolVersion"]`
    pub envelope_version: Option<Span>,
    /// `params.taskId`
    pub task_id: Option<Span>,
    /// `params.task`
    pub task: Option<Span>,
    /// `taskId` of `params._meta["io.modelcontextprotocol/related-task"]`
    pub related_task: Option<Span>,
    /// `result.isError`
    pub is_error: Option<Span>,
    /// `error.code`
    pub code: Option<Span>,
    /// Whether a raw CR or LF stands between tokens.
    pub raw_newline: bool,
    /// Whether `params` has a member that is `name` but for its case: some parsers behind us take it for that.
    pub name_twin: bool,
}

/// What kind of value a text is at its top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Top {
    /// An object; its members are in [`Fields`].
    Object,
    /// An array.
    Array,
    /// Anything else.
    Scalar,
}

/// Scans one whole text.
///
/// Gives what kind of value it is or the first fault, and the members seen up to there.
pub fn scan(text: &[u8], author: Author) -> (Result<Top, ScanFault>, Fields) {
    let mut fields = Fields::default();
    (scan_into(text, author, &mut fields), fields)
}

/// The same into `fields`, of which none is set yet.
pub(super) fn scan_into(text: &[u8], author: Author, fields: &mut Fields) -> Result<Top, ScanFault> {
    Scanner::new(text, author, fields).whole()
}

/// The same for a line of a child's that begins as the one before did, of which `known` is the [`Beginning`] so far.
pub(super) fn scan_on(text: &[u8], known: &Beginning, fields: &mut Fields) -> Result<Top, ScanFault> {
    *fields = *known.fields();
    let mut scanner = Scanner { at: known.length(), ..Scanner::new(text, Author::Child, fields) };
    scanner.rest_after_token(known.params()).map(|()| Top::Object)
}

/// The same for a line of a child's that the next may begin as; notes how in `beginning` if it can be used.
pub(super) fn scan_first(text: &[u8], beginning: &mut Beginning, fields: &mut Fields) -> Result<Top, ScanFault> {
    Scanner { beginning: Some(beginning), ..Scanner::new(text, Author::Child, fields) }.whole()
}

/// Splits an array into its elements' places.
///
/// # Errors
/// When `text` is not one valid array.
pub fn elements(text: &[u8], author: Author) -> Result<Vec<Span>, ScanFault> {
    let mut fields = Fields::default();
    let mut scanner = Scanner::new(text, author, &mut fields);
    let mut found = Vec::new();
    scanner.space();
    scanner.expect(b'[')?;
    scanner.space();
    if scanner.peek() == Some(b']') {
        scanner.at += 1;
    } else {
        loop {
            scanner.space();
            let start = scanner.at;
            scanner.value(1)?;
            found.push(Span::new(start, scanner.at));
            scanner.space();
            match scanner.take()? {
                b',' => {}
                b']' => break,
                _ => return Err(ScanFault::Syntax),
            }
        }
    }
    scanner.end()?;
    Ok(found)
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    author: Author,
    fields: &'a mut Fields,
    /// Where `params` begins, while nothing stands before it whose name would have to be remembered.
    params: Option<usize>,
    beginning: Option<&'a mut Beginning>,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a [u8], author: Author, fields: &'a mut Fields) -> Scanner<'a> {
        Scanner { text, at: 0, author, fields, params: None, beginning: None }
    }

    fn whole(&mut self) -> Result<Top, ScanFault> {
        self.space();
        let top = match self.peek() {
            Some(b'{') => {
                self.object(Place::Envelope, 1)?;
                Top::Object
            }
            Some(b'[') => {
                self.value(0)?;
                Top::Array
            }
            _ => {
                self.value(0)?;
                Top::Scalar
            }
        };
        self.end()?;
        Ok(top)
    }

    fn end(&mut self) -> Result<(), ScanFault> {
        self.space();
        if self.at == self.text.len() { Ok(()) } else { Err(ScanFault::Syntax) }
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    #[inline]
    fn take(&mut self) -> Result<u8, ScanFault> {
        let byte = self.peek().ok_or(ScanFault::Syntax)?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    fn expect(&mut self, wanted: u8) -> Result<(), ScanFault> {
        if self.take()? == wanted { Ok(()) } else { Err(ScanFault::Syntax) }
    }

    #[inline]
    fn space(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => {}
                b'\r' | b'\n' => self.fields.raw_newline = true,
                _ => return,
            }
            self.at += 1;
        }
    }

    /// Walks an object whose members matter. The caller saw its `{`; `depth` counts it.
    fn object(&mut self, place: Place, depth: u32) -> Result<(), ScanFault> {
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        self.members(place, depth)
    }

    /// Walks what is left of a line behind its progress token and a comma.
    fn rest_after_token(&mut self, params: usize) -> Result<(), ScanFault> {
        self.members(Place::Params, 2)?;
        self.note(Place::Envelope, Member::Params, Span::new(params, self.at))?;
        if self.has_more()? {
            self.members(Place::Envelope, 1)?;
        }
        self.end()
    }

    /// Walks members, of which there is one at least, to the end of their object.
    fn members(&mut self, place: Place, depth: u32) -> Result<(), ScanFault> {
        let watch = self.watches_duplicates(place);
        let mut keys: Option<Keys<'a>> = None;
        loop {
            self.space();
            let (key, spelling) = self.string()?;
            let name = decode(&self.text[key.start() + 1..key.end() - 1], spelling);
            let member = Member::of(place, &name);
            // A member of the envelope that is known has a place of its own, which tells.
            if watch && (place != Place::Envelope || member == Member::Other) {
                keys.get_or_insert_default().add(name)?;
            }
            self.space();
            self.expect(b':')?;
            self.space();
            let start = self.at;
            if member == Member::Params {
                self.params = keys.is_none().then_some(start);
            }
            self.member(member, depth)?;
            self.note(place, member, Span::new(start, self.at))?;
            if !self.has_more()? {
                return Ok(());
            }
        }
    }

    /// Walks what stands behind a member: whether there is another one.
    #[inline]
    fn has_more(&mut self) -> Result<bool, ScanFault> {
        self.space();
        match self.take()? {
            b',' => Ok(true),
            b'}' => Ok(false),
            _ => Err(ScanFault::Syntax),
        }
    }

    fn watches_duplicates(&self, place: Place) -> bool {
        match place {
            Place::Envelope => true,
            Place::Params | Place::Meta => self.author == Author::Client,
            Place::RelatedTask | Place::Result | Place::Error => false,
        }
    }

    /// Walks a member's value: into it where its own members matter, else over it.
    fn member(&mut self, member: Member, depth: u32) -> Result<(), ScanFault> {
        let inside = match member {
            Member::Params => Place::Params,
            Member::Meta => Place::Meta,
            Member::RelatedTaskObject => Place::RelatedTask,
            Member::Result => Place::Result,
            Member::Error => Place::Error,
            _ => return self.value(depth),
        };
        if self.peek() == Some(b'{') { self.object(inside, depth + 1) } else { self.value(depth) }
    }

    /// Notes where a member stands. In the envelope it stands once.
    fn note(&mut self, place: Place, member: Member, span: Span) -> Result<(), ScanFault> {
        let fields = &mut *self.fields;
        let slot = match member {
            Member::JsonRpc => &mut fields.jsonrpc,
            Member::Id => &mut fields.id,
            Member::Method => &mut fields.method,
            Member::Params => &mut fields.params,
            Member::Result => &mut fields.result,
            Member::Error => &mut fields.error,
            Member::Token => &mut fields.token,
            Member::ProgressOf => &mut fields.progress_of,
            Member::RequestId => &mut fields.request_id,
            Member::Name => &mut fields.name,
            Member::Uri => &mut fields.uri,
            Member::Level => &mut fields.level,
            Member::ProtocolVersion => &mut fields.protocol_version,
            Member::TaskId => &mut fields.task_id,
            Member::Task => &mut fields.task,
            Member::EnvelopeVersion => &mut fields.envelope_version,
            Member::RelatedTask => &mut fields.related_task,
            Member::IsError => &mut fields.is_error,
            Member::Code => &mut fields.code,
            Member::NameTwin => {
                fields.name_twin = true;
                return Ok(());
            }
            Member::Meta | Member::RelatedTaskObject | Member::Other => return Ok(()),
        };
        if place == Place::Envelope && slot.is_some() {
            return Err(ScanFault::Duplicate);
        }
        *slot = Some(span);
        if member == Member::ProgressOf
            && let (Some(beginning), Some(params)) = (&mut self.beginning, self.params)
        {
            beginning.note(&self.text[..self.text.len().min(self.at + 1)], params, self.fields);
        }
        Ok(())
    }

    /// Walks any value without looking into it; `depth` is the number of open containers around it.
    fn value(&mut self, depth: u32) -> Result<(), ScanFault> {
        // Bit n is set when the n-th container opened here is an object.
        let mut objects: u128 = 0;
        let mut open: u32 = 0;
        loop {
            match self.peek().ok_or(ScanFault::Syntax)? {
                b'"' => {
                    self.string()?;
                }
                byte @ (b'{' | b'[') => {
                    if depth + open >= MAX_DEPTH {
                        return Err(ScanFault::Depth);
                    }
                    self.at += 1;
                    self.space();
                    let object = byte == b'{';
                    if self.peek() == Some(if object { b'}' } else { b']' }) {
                        self.at += 1;
                    } else {
                        objects = (objects << 1) | u128::from(object);
                        open += 1;
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                _ => self.scalar()?,
            }
            // A value just ended: close what it closes, or step to the next one.
            loop {
                if open == 0 {
                    return Ok(());
                }
                self.space();
                let object = objects & 1 == 1;
                match self.take()? {
                    b',' => {
                        self.space();
                        if object {
                            self.key()?;
                        }
                        break;
                    }
                    b'}' if object => {}
                    b']' if !object => {}
                    _ => return Err(ScanFault::Syntax),
                }
                objects >>= 1;
                open -= 1;
            }
        }
    }

    /// Walks `"key" :` and the space behind it.
    fn key(&mut self) -> Result<(), ScanFault> {
        self.string()?;
        self.space();
        self.expect(b':')?;
        self.space();
        Ok(())
    }

    /// Walks a string and says where it stands, quotes included, and how it is spelled.
    fn string(&mut self) -> Result<(Span, Spelling), ScanFault> {
        let start = self.at;
        self.expect(b'"')?;
        let mut spelling = Spelling::Plain;
        loop {
            self.at += plain_length(&self.text[self.at..]);
            match self.take()? {
                b'"' => return Ok((Span::new(start, self.at), spelling)),
                b'\\' => {
                    spelling = Spelling::Escaped;
                    self.escape()?;
                }
                _ => return Err(ScanFault::Syntax),
            }
        }
    }

    /// Walks what follows a backslash.
    fn escape(&mut self) -> Result<(), ScanFault> {
        match self.take()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(()),
            b'u' => {
                let unit = self.hex()?;
                if self.author == Author::Child || !(0xD800..0xE000).contains(&unit) {
                    return Ok(());
                }
                if unit >= 0xDC00 {
                    return Err(ScanFault::Syntax);
                }
                self.expect(b'\\')?;
                self.expect(b'u')?;
                if (0xDC00..0xE000).contains(&self.hex()?) { Ok(()) } else { Err(ScanFault::Syntax) }
            }
            _ => Err(ScanFault::Syntax),
        }
    }

    fn hex(&mut self) -> Result<u32, ScanFault> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = char::from(self.take()?).to_digit(16).ok_or(ScanFault::Syntax)?;
            unit = unit << 4 | digit;
        }
        Ok(unit)
    }

    fn scalar(&mut self) -> Result<(), ScanFault> {
        match self.peek() {
            Some(b't') => self.word(b"true"),
            Some(b'f') => self.word(b"false"),
            Some(b'n') => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), ScanFault> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err(ScanFault::Syntax)
        }
    }

    fn number(&mut self) -> Result<(), ScanFault> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.take()? {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            _ => return Err(ScanFault::Syntax),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) {
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Result<(), ScanFault> {
        let start = self.at;
        self.digits();
        if self.at > start { Ok(()) } else { Err(ScanFault::Syntax) }
    }
}

/// Whether a string stands as it reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelling {
    Plain,
    Escaped,
}

/// The text of a key: `m\u0065thod` is `method` to every parser behind us.
fn decode(raw: &[u8], spelling: Spelling) -> Cow<'_, [u8]> {
    if spelling == Spelling::Plain {
        return Cow::Borrowed(raw);
    }
    let mut quoted = Vec::with_capacity(raw.len() + 2);
    quoted.push(b'"');
    quoted.extend_from_slice(raw);
    quoted.push(b'"');
    // A lone surrogate has no text; the raw spelling then stands for itself.
    serde_json::from_slice::<String>(&quoted).map_or(Cow::Borrowed(raw), |text| Cow::Owned(text.into_bytes()))
}

/// The keys of one object, to find one that stands twice.
#[derive(Default)]
struct Keys<'a> {
    few: [&'a [u8]; FEW],
    count: usize,
    /// Keys past the first few, and those that had to be decoded.
    rest: HashSet<Cow<'a, [u8]>>,
}

/// Up to here a walk through the list is cheaper than hashing, and needs no memory.
const FEW: usize = 16;

impl<'a> Keys<'a> {
    fn add(&mut self, name: Cow<'a, [u8]>) -> Result<(), ScanFault> {
        let known =
            self.few[..self.count].contains(&name.as_ref()) || (!self.rest.is_empty() && self.rest.contains(&name));
        match name {
            _ if known => Err(ScanFault::Duplicate),
            Cow::Borrowed(name) if self.count < FEW => {
                self.few[self.count] = name;
                self.count += 1;
                Ok(())
            }
            name => {
                self.rest.insert(name);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Author, Fields, MAX_DEPTH, ScanFault, Top, elements, scan};
    use proptest::prelude::{Strategy, any, prop, prop_oneof, proptest};

    fn fields(text: &str) -> Fields {
        scan(text.as_bytes(), Author::Client).1
    }

    fn fault(text: &str) -> ScanFault {
        scan(text.as_bytes(), Author::Client).0.expect_err("a fault")
    }

    #[test]
    fn finds_the_members() {
        let text = r#"{"jsonrpc":"2.0", "id" : 12e0 ,"method":"tools/call","params":{"name":"a","_meta":{"progressToken":"t","x":{"progressToken":1}},"uri":[1,{"name":2}]},"extra":null}"#;
        let found = fields(text);
        let of =
            |span: Option<super::Span>| std::str::from_utf8(span.expect("present").of(text.as_bytes())).expect("utf-8");
        assert_eq!(of(found.id), "12e0");
        assert_eq!(of(found.method), "\"tools/call\"");
        assert_eq!(of(found.name), "\"a\"");
        assert_eq!(of(found.token), "\"t\"");
        assert_eq!(of(found.uri), r#"[1,{"name":2}]"#);
        assert!(found.result.is_none());
        assert!(!found.raw_newline);
        assert!(fields("{\n}").raw_newline);
    }

    #[test]
    fn refuses_what_is_not_json() {
        for text in [
            "",
            "{",
            "}",
            "{]",
            "[}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "[1,]",
            "[,1]",
            "01",
            "1.",
            "-",
            "+1",
            "1e",
            ".5",
            "nul",
            "tru",
            "\"\u{1}\"",
            "\"a\nb\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "{} {}",
            "[1]]",
            "{'a':1}",
            "\"abc",
            "\u{feff}{}",
            "{\"a\":1}\n{\"b\":2}",
            "NaN",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "\"\\ud800\\n\"",
        ] {
            assert_eq!(fault(text), ScanFault::Syntax, "{text}");
        }
        assert!(scan(b"\"\\ud800\"", Author::Child).0.is_ok());
        assert!(scan("\"\\ud83d\\ude80\"".as_bytes(), Author::Client).0.is_ok());
    }

    #[test]
    fn bounds_the_depth() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(scan(nested(MAX_DEPTH as usize - 1).as_bytes(), Author::Client).0.is_ok());
        assert_eq!(fault(&nested(MAX_DEPTH as usize)), ScanFault::Depth);
        assert_eq!(fault(&nested(3_000_000)), ScanFault::Depth);
        let objects = "{\"a\":".repeat(1_000_000);
        assert_eq!(fault(&objects), ScanFault::Depth);
    }

    #[test]
    fn sees_duplicates_where_they_matter() {
        for text in [
            r#"{"method":"a","method":"b"}"#,
            r#"{"method":"a","m\u0065thod":"b"}"#,
            r#"{"m\u0065thod":"a","method":"b"}"#,
            r#"{"params":{"name":"a","name":"b"}}"#,
            r#"{"params":{"_meta":{"progressToken":1,"progressToken":2}}}"#,
        ] {
            assert_eq!(fault(text), ScanFault::Duplicate, "{text}");
        }
        assert!(scan(br#"{"params":{"arguments":{"a":1,"a":2}}}"#, Author::Client).0.is_ok());
        assert!(scan(br#"{"params":{"name":1,"name":2}}"#, Author::Child).0.is_ok());
        assert!(scan(br#"{"Method":1,"method":"b"}"#, Author::Client).0.is_ok());
        let many: Vec<String> = (0..100_000).map(|n| format!("\"k{n}\":0")).collect();
        let once = format!("{{\"params\":{{{}}}}}", many.join(","));
        assert!(scan(once.as_bytes(), Author::Client).0.is_ok());
        let twice = format!("{{\"params\":{{{},\"k77777\":1}}}}", many.join(","));
        assert_eq!(fault(&twice), ScanFault::Duplicate);
    }

    #[test]
    fn splits_arrays() {
        let text = br#" [ {"a":[1]}, 2 ,"x,]" ] "#;
        let parts: Vec<&[u8]> =
            elements(text, Author::Client).expect("array").into_iter().map(|part| part.of(text)).collect();
        assert_eq!(parts, [&br#"{"a":[1]}"#[..], b"2", br#""x,]""#]);
        assert_eq!(elements(b"[]", Author::Client).expect("array").len(), 0);
        assert!(elements(b"[1", Author::Client).is_err());
        assert_eq!(scan(b"[1]", Author::Client).0, Ok(Top::Array));
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<f32>().prop_map(|n| serde_json::Value::from(f64::from(n))),
            any::<String>().prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn every_member_is_known_by_its_name() {
        let text = r#"{"jsonrpc":1,"id":2,"method":3,"error":{"code":4},"result":{"protocolVersion":5,"isError":6},"params":
            {"_meta":{"progressToken":7,"io.modelcontextprotocol/protocolVersion":8,"io.modelcontextprotocol/related-task":
            {"taskId":9}},"progressToken":10,"requestId":11,"name":12,"uri":13,"level":14,"taskId":15,"task":16}}"#;
        let found = fields(text);
        let places = [
            (found.jsonrpc, "1"),
            (found.id, "2"),
            (found.method, "3"),
            (found.code, "4"),
            (found.protocol_version, "5"),
            (found.is_error, "6"),
            (found.token, "7"),
            (found.envelope_version, "8"),
            (found.related_task, "9"),
            (found.progress_of, "10"),
            (found.request_id, "11"),
            (found.name, "12"),
            (found.uri, "13"),
            (found.level, "14"),
            (found.task_id, "15"),
            (found.task, "16"),
        ];
        for (span, value) in places {
            assert_eq!(span.expect(value).of(text.as_bytes()), value.as_bytes());
        }
        for (_, value) in places {
            // The same length, another name.
            let at = text.find(&format!("\":{value}")).expect(value);
            let mut other = text.as_bytes().to_vec();
            other[at - 1] = b'~';
            let found = super::scan(&other, Author::Client).1;
            let known = [found.jsonrpc, found.id, found.method, found.code, found.protocol_version, found.is_error]
                .into_iter()
                .chain([found.token, found.envelope_version, found.related_task, found.progress_of, found.request_id])
                .chain([found.name, found.uri, found.level, found.task_id, found.task]);
            assert_eq!(known.flatten().count(), places.len() - 1, "{value}");
        }
    }

    proptest! {
        #[test]
        fn accepts_every_serialized_value(value in json()) {
            let compact = serde_json::to_vec(&value).expect("serializes");
            assert!(scan(&compact, Author::Client).0.is_ok());
            let pretty = serde_json::to_vec_pretty(&value).expect("serializes");
            assert!(scan(&pretty, Author::Client).0.is_ok());
        }

        #[test]
        fn agrees_with_the_parser_on_any_text(text in r#"[\[\]{}:,"\\ntrue0-9.eE+ -]{0,24}"#) {
            let ours = scan(text.as_bytes(), Author::Child).0;
            let theirs = serde_json::from_str::<Box<serde_json::value::RawValue>>(&text);
            if ours != Err(ScanFault::Duplicate) {
                assert_eq!(ours.is_ok(), theirs.is_ok(), "{text}");
            }
        }
    }
}
