//! The head of one request (RFC 9112 sections 2 to 6).

use std::ops::Range;

use memchr::{memchr, memrchr};

use crate::caller::Malformed;

/// Longest target hyper reads.
const LONGEST_TARGET: usize = 65_534;
/// Longest length of content hyper reads.
const LONGEST_CONTENT: u64 = u64::MAX - 2;

/// What a TLS connection begins with (RFC 8446 section 5.1).
const HANDSHAKE: u8 = 22;

/// How long a head may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadBounds {
    pub(super) bytes: usize,
    pub(super) fields: usize,
}

/// A whole head.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Bytes of it, the empty line included.
    pub(super) length: usize,
    /// Bytes of content; `None` is in chunks.
    pub(super) content: Option<u64>,
    /// It asks for another protocol.
    pub(super) upgrade: bool,
}

/// A head as far as it came. Places count from its first byte.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// Up to where line ends were looked for.
    searched: usize,
    /// Where the line begins that has no end yet.
    line: usize,
    request_line: Option<RequestLine>,
    /// One empty line stood before the request line (section 2.2).
    blank: bool,
    fields: usize,
    host: Option<Range<usize>>,
    length: Option<u64>,
    is_chunked: bool,
    upgrade: bool,
}

#[derive(Debug)]
struct RequestLine {
    is_old: bool,
    /// The authority of a target in absolute form, and the port of its scheme.
    authority: Option<(Range<usize>, &'static [u8])>,
}

impl Head {
    /// Goes on in `bytes`, which begin with the head; the same bytes stand in it again at each call, and further ones.
    pub(super) fn look(&mut self, bytes: &[u8], bounds: HeadBounds) -> Result<Option<Found>, Malformed> {
        loop {
            self.check_begin(bytes, bounds)?;
            let Some(found) = memchr(b'\n', &bytes[self.searched..]) else { break };
            let end = self.searched + found;
            if end >= bounds.bytes {
                return Err(self.too_long());
            }
            let line = self.line..end.saturating_sub(1);
            if line.end < line.start || bytes[line.end] != b'\r' {
                return Err(Malformed::LineEnd);
            }
            (self.searched, self.line) = (end + 1, end + 1);
            if self.request_line.is_none() {
                self.begin(bytes, line)?;
            } else if line.is_empty() {
                return self.finish(bytes, end + 1).map(Some);
            } else {
                self.field(bytes, line, bounds)?;
            }
        }
        self.searched = bytes.len();
        if bytes.len() >= bounds.bytes { Err(self.too_long()) } else { Ok(None) }
    }

    /// What cannot become a line is not waited for: somebody who speaks TLS here waits for us.
    fn check_begin(&self, bytes: &[u8], bounds: HeadBounds) -> Result<(), Malformed> {
        match bytes.get(self.line) {
            Some(b'\r' | b'\n') | None => Ok(()),
            Some(first) if is_of(METHOD, *first) || self.line + 1 >= bounds.bytes => Ok(()),
            Some(&HANDSHAKE) if self.line == 0 => Err(Malformed::Tls),
            Some(_) if self.request_line.is_none() => Err(Malformed::RequestLine),
            Some(_) => Err(Malformed::Field),
        }
    }

    fn too_long(&self) -> Malformed {
        if self.request_line.is_none() { Malformed::TargetTooLong } else { Malformed::HeadTooLarge }
    }

    fn begin(&mut self, bytes: &[u8], line: Range<usize>) -> Result<(), Malformed> {
        if line.is_empty() && !self.blank {
            self.blank = true;
            return Ok(());
        }
        self.request_line = Some(RequestLine::read(bytes, line)?);
        Ok(())
    }

    fn field(&mut self, bytes: &[u8], line: Range<usize>, bounds: HeadBounds) -> Result<(), Malformed> {
        self.fields += 1;
        if self.fields > bounds.fields {
            return Err(Malformed::TooManyFields);
        }
        let (name, value) = split_field(bytes, line)?;
        let text = &bytes[value.clone()];
        match Meaning::of(&bytes[name]) {
            Meaning::Other => {}
            Meaning::Host if self.host.is_some() => return Err(Malformed::Host),
            Meaning::Host => self.host = Some(value),
            Meaning::Length if self.length.is_some() || self.is_chunked => return Err(Malformed::Length),
            Meaning::Length => self.length = Some(length(text).ok_or(Malformed::Length)?),
            Meaning::Coding if self.length.is_some() => return Err(Malformed::Length),
            Meaning::Coding if self.is_chunked || !text.eq_ignore_ascii_case(b"chunked") => {
                return Err(Malformed::Coding);
            }
            Meaning::Coding => self.is_chunked = true,
            Meaning::Upgrade => self.upgrade = true,
        }
        Ok(())
    }

    fn finish(&mut self, bytes: &[u8], length: usize) -> Result<Found, Malformed> {
        let Some(RequestLine { is_old, authority }) = self.request_line.take() else {
            return Err(Malformed::RequestLine);
        };
        if self.host.is_none() && !is_old {
            return Err(Malformed::Host);
        }
        if let (Some((authority, port)), Some(host)) = (authority, &self.host)
            && !without_port(&bytes[authority], port).eq_ignore_ascii_case(without_port(&bytes[host.clone()], port))
        {
            return Err(Malformed::HostDisagrees);
        }
        if is_old && (self.is_chunked || self.length.is_some_and(|length| length > 0)) {
            return Err(Malformed::Content);
        }
        let content = (!self.is_chunked).then_some(self.length.unwrap_or(0));
        Ok(Found { length, content, upgrade: self.upgrade })
    }
}

impl RequestLine {
    fn read(bytes: &[u8], line: Range<usize>) -> Result<RequestLine, Malformed> {
        let text = &bytes[line.clone()];
        let (Some(first), Some(last)) = (memchr(b' ', text), memrchr(b' ', text)) else {
            return Err(Malformed::RequestLine);
        };
        let (method, target, version) = (&text[..first], text.get(first + 1..last), &text[last + 1..]);
        let target = target.filter(|target| !method.is_empty() && !target.is_empty()).ok_or(Malformed::RequestLine)?;
        let is_legal = method.iter().all(|byte| is_of(METHOD, *byte)) && target.iter().all(|byte| is_of(TARGET, *byte));
        if !is_legal {
            return Err(Malformed::RequestLine);
        }
        if target.len() > LONGEST_TARGET {
            return Err(Malformed::TargetTooLong);
        }
        let authority = match target {
            _ if method == b"CONNECT" => return Err(Malformed::RequestLine),
            [b'/', ..] => None,
            b"*" if method == b"OPTIONS" => None,
            _ => Some(authority(target, line.start + first + 1).ok_or(Malformed::RequestLine)?),
        };
        let is_old = match version {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => return Err(Malformed::Version),
            _ => return Err(Malformed::RequestLine),
        };
        Ok(RequestLine { is_old, authority })
    }
}

/// The authority of a target in absolute form that begins at `start`, and the port of its scheme.
fn authority(target: &[u8], start: usize) -> Option<(Range<usize>, &'static [u8])> {
    let scheme_of = |scheme: &[u8]| target.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    let (scheme, port): (&[u8], &[u8]) = match target {
        _ if scheme_of(b"http://") => (b"http://", b":80"),
        _ if scheme_of(b"https://") => (b"https://", b":443"),
        _ => return None,
    };
    let rest = &target[scheme.len()..];
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let is_host = end > 0 && memchr(b'@', &rest[..end]).is_none();
    let begin = start + scheme.len();
    is_host.then_some((begin..begin + end, port))
}

fn without_port<'a>(host: &'a [u8], port: &[u8]) -> &'a [u8] {
    host.strip_suffix(port).unwrap_or(host)
}

/// A number of bytes in digits and nothing else (RFC 9110 section 8.6).
fn length(text: &[u8]) -> Option<u64> {
    let digits = |byte: &u8| byte.is_ascii_digit();
    let text = std::str::from_utf8(text).ok().filter(|text| !text.is_empty() && text.as_bytes().iter().all(digits))?;
    text.parse().ok().filter(|length| *length <= LONGEST_CONTENT)
}

/// Name and value of a field line, the spaces around the value left out.
pub(super) fn split_field(bytes: &[u8], line: Range<usize>) -> Result<(Range<usize>, Range<usize>), Malformed> {
    let colon = line.start + memchr(b':', &bytes[line.clone()]).ok_or(Malformed::Field)?;
    let name = line.start..colon;
    if name.is_empty() || !bytes[name.clone()].iter().all(|byte| is_of(NAME, *byte)) {
        let is_token = !name.is_empty() && bytes[name.clone()].iter().all(|byte| is_of(METHOD, *byte));
        if !is_token {
            return Err(Malformed::Field);
        }
        if may_pass_for_another(&bytes[name.clone()]) {
            return Err(Malformed::Underscore);
        }
    }
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let (mut begin, mut end) = (colon + 1, line.end);
    while begin < end && is_space(&bytes[begin]) {
        begin += 1;
    }
    while begin < end && is_space(&bytes[end - 1]) {
        end -= 1;
    }
    // Without a way out in the middle, which lets the compiler compare many at once.
    let has_control = bytes[begin..end]
        .iter()
        .fold(false, |found, byte| found | ((*byte < b' ') & (*byte != b'\t')) | (*byte == 0x7f));
    if has_control { Err(Malformed::Field) } else { Ok((name, begin..end)) }
}

/// Whether a name with `_` is, to whoever reads that as `-`, one that says how long a request is, whom it comes from or
/// what it belongs to.
pub(in crate::net) fn may_pass_for_another(name: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 7] =
        [b"x-", b"forwarded", b"content-", b"transfer-", b"mcp-", b"last-event-", b"true-client-"];
    let reads_so = |(byte, expected): (&u8, &u8)| {
        let byte = if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
        byte == *expected
    };
    BEGINNINGS.iter().any(|begin| name.len() >= begin.len() && name.iter().zip(*begin).all(reads_so))
}

/// What a field means for where the request ends and whom it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Host,
    Length,
    Coding,
    Upgrade,
    Other,
}

impl Meaning {
    pub(super) fn of(name: &[u8]) -> Meaning {
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => Meaning::Host,
            14 if name.eq_ignore_ascii_case(b"content-length") => Meaning::Length,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => Meaning::Coding,
            7 if name.eq_ignore_ascii_case(b"upgrade") => Meaning::Upgrade,
            _ => Meaning::Other,
        }
    }
}

/// Bytes of a token (RFC 9110 section 5.6.2).
const METHOD: u8 = 1;
/// The same but for `_`, which somebody behind or before us reads as `-` in the name of a field.
const NAME: u8 = 2;
/// Bytes of a target (RFC 3986: unreserved, reserved but for `#`, and `%`).
const TARGET: u8 = 4;

static KINDS: [u8; 256] = kinds();

fn is_of(kind: u8, byte: u8) -> bool {
    KINDS[usize::from(byte)] & kind != 0
}

const fn kinds() -> [u8; 256] {
    let mut kinds = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        let one = byte as u8;
        if one.is_ascii_alphanumeric() || is_among(one, b"!#$%&'*+-.^`|~") {
            kinds[byte] |= METHOD | NAME;
        }
        if one == b'_' {
            kinds[byte] |= METHOD;
        }
        if one.is_ascii_alphanumeric() || is_among(one, b"-._~:/?[]@!$&'()*+,;=%") {
            kinds[byte] |= TARGET;
        }
        byte += 1;
    }
    kinds
}

const fn is_among(byte: u8, set: &[u8]) -> bool {
    let mut at = 0;
    while at < set.len() {
        if set[at] == byte {
            return true;
        }
        at += 1;
    }
    false
}
