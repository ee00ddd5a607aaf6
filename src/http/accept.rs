//! Content negotiation (RFC 9110 sections 8.3, 8.4 and 12.5.1): lenient in what a client may
//! want, strict in what a body may be.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE};

use super::refusal::Refused;

/// The forms of an answer a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// JSON or an event stream; also what no `Accept` means.
    Both,
    /// Only `application/json`.
    JsonOnly,
    /// Only `text/event-stream`.
    EventStreamOnly,
    /// Neither.
    Neither,
}

/// What `Accept` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The forms of an MCP answer.
    pub wants: Wants,
    /// Whether `text/html` is named: a browser, which would like a page.
    pub html: bool,
}

/// What clients that keep to the transport say of a POST, letter by letter: the common case needs no reading.
const BOTH: &[u8] = b"application/json, text/event-stream";

/// Reads every `Accept` line.
#[must_use]
pub fn accepted(headers: &HeaderMap) -> Accepted {
    let mut values = headers.get_all(ACCEPT).iter();
    if let (Some(value), None) = (values.next(), values.next())
        && value.as_bytes() == BOTH
    {
        return Accepted { wants: Wants::Both, html: false };
    }
    let mut json = Best::default();
    let mut events = Best::default();
    let mut html = false;
    let mut any = false;
    for value in headers.get_all(ACCEPT) {
        for range in split_outside_quotes(value.as_bytes(), b',') {
            let mut parts = split_outside_quotes(range, b';');
            let range = parts.next().unwrap_or_default();
            if range.is_empty() {
                continue;
            }
            any = true;
            let welcome = parts.all(|parameter| !is_zero_quality(parameter));
            json.offer(range, b"application/json", welcome);
            events.offer(range, b"text/event-stream", welcome);
            html |= welcome && range.eq_ignore_ascii_case(b"text/html");
        }
    }
    let wants = match (!any || json.welcome, !any || events.welcome) {
        (true, true) => Wants::Both,
        (true, false) => Wants::JsonOnly,
        (false, true) => Wants::EventStreamOnly,
        (false, false) => Wants::Neither,
    };
    Accepted { wants, html }
}

/// Whether a body may be read as JSON: one `Content-Type`, `application/json` in any case, any
/// parameters but a `charset` other than UTF-8, and no `Content-Encoding`.
///
/// # Errors
/// [`Refused::MediaType`] or [`Refused::Encoded`]. A missing type is refused too: it is what a
/// form on a foreign page could send without asking first.
pub fn check_json_body(headers: &HeaderMap) -> Result<(), Refused> {
    check_not_encoded(headers)?;
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(Refused::MediaType);
    };
    let mut parts = split_outside_quotes(value.as_bytes(), b';');
    let json = parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case(b"application/json"));
    if json && parts.all(is_utf8_or_no_charset) { Ok(()) } else { Err(Refused::MediaType) }
}

/// Refuses an encoded body, whatever the method: nothing here would decode it, and a small one can
/// stand for gigabytes.
///
/// # Errors
/// [`Refused::Encoded`].
pub fn check_not_encoded(headers: &HeaderMap) -> Result<(), Refused> {
    if headers.contains_key(CONTENT_ENCODING) { Err(Refused::Encoded) } else { Ok(()) }
}

/// The most specific range that matched a type so far; its word counts (RFC 9110 section 12.5.1).
#[derive(Default)]
struct Best {
    specificity: u8,
    welcome: bool,
}

impl Best {
    fn offer(&mut self, range: &[u8], media_type: &[u8], welcome: bool) {
        let specificity = if range.eq_ignore_ascii_case(media_type) {
            3
        } else if range == b"*/*" {
            1
        } else if let Some(family) = range.strip_suffix(b"/*")
            && media_type.split(|byte| *byte == b'/').next().is_some_and(|own| own.eq_ignore_ascii_case(family))
        {
            2
        } else {
            return;
        };
        if specificity > self.specificity {
            *self = Best { specificity, welcome };
        } else if specificity == self.specificity {
            self.welcome |= welcome;
        }
    }
}

fn is_zero_quality(parameter: &[u8]) -> bool {
    let Some((name, value)) = name_and_value(parameter) else {
        return false;
    };
    name.eq_ignore_ascii_case(b"q")
        && value.first() == Some(&b'0')
        && value.iter().all(|byte| matches!(byte, b'0' | b'.'))
}

fn is_utf8_or_no_charset(parameter: &[u8]) -> bool {
    match name_and_value(parameter) {
        Some((name, value)) if name.eq_ignore_ascii_case(b"charset") => {
            let bare = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
            bare.unwrap_or(value).eq_ignore_ascii_case(b"utf-8")
        }
        _ => true,
    }
}

fn name_and_value(parameter: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = parameter.iter().position(|byte| *byte == b'=')?;
    Some((parameter[..equals].trim_ascii(), parameter[equals + 1..].trim_ascii()))
}

/// The parts of a header value between separators that stand outside quoted strings, trimmed.
fn split_outside_quotes(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    value
        .split(move |byte| {
            if escaped {
                escaped = false;
            } else if quoted && *byte == b'\\' {
                escaped = true;
            } else if *byte == b'"' {
                quoted = !quoted;
            } else {
                return !quoted && *byte == separator;
            }
            false
        })
        .map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use http::header::{ACCEPT, CONTENT_TYPE};
    use http::{HeaderMap, HeaderName, HeaderValue};
    use proptest::collection::vec;
    use proptest::prelude::{any, proptest};

    use super::{Wants, accepted, check_json_body, check_not_encoded};
    use crate::http::refusal::Refused;

    fn map(name: &HeaderName, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_str(value).expect("a legal value"));
        }
        headers
    }

    fn wants(values: &[&str]) -> Wants {
        accepted(&map(&ACCEPT, values)).wants
    }

    #[test]
    fn what_real_clients_send_is_understood() {
        for both in [
            &[][..],
            &[""],
            &["*/*"],
            &["application/json, text/event-stream"],
            &["text/event-stream, application/json"],
            &["Application/JSON;q=0.9, text/event-stream;q=1"],
            &["application/json", "text/event-stream"],
            &["text/html, */*;q=0.8"],
            &["application/json;profile=\"a,b;q=0\", text/*"],
            &["application/*, text/event-stream"],
        ] {
            assert_eq!(wants(both), Wants::Both, "{both:?}");
        }
        for json in [
            "application/json",
            "application/*",
            "APPLICATION/JSON; q=0.001",
            "*/*, text/event-stream;q=0",
            "*/*;q=1, text/*;q=0.0",
        ] {
            assert_eq!(wants(&[json]), Wants::JsonOnly, "{json}");
        }
        for events in ["text/event-stream", "text/*", "*/*, application/json;q=0"] {
            assert_eq!(wants(&[events]), Wants::EventStreamOnly, "{events}");
        }
        for neither in
            ["text/html", "image/png, text/plain", "application/json;q=0", "*/*;q=0", "application/jsonx", "garbage"]
        {
            assert_eq!(wants(&[neither]), Wants::Neither, "{neither}");
        }
    }

    #[test]
    fn only_a_browser_names_html() {
        assert!(accepted(&map(&ACCEPT, &["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"])).html);
        for other in ["*/*", "text/*", "text/event-stream", "text/html;q=0"] {
            assert!(!accepted(&map(&ACCEPT, &[other])).html, "{other}");
        }
    }

    #[test]
    fn a_body_must_say_it_is_json() {
        for good in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
            "application/json; odata=minimal",
        ] {
            assert_eq!(check_json_body(&map(&CONTENT_TYPE, &[good])), Ok(()), "{good}");
        }
        for bad in [
            &[][..],
            &["text/plain"],
            &["application/json; charset=latin1"],
            &["application/json;charset=\"utf-16\""],
            &["application/jsonp"],
            &["text/plain; application/json"],
            &["application/json, text/plain"],
            &["application/json", "application/json"],
        ] {
            assert_eq!(check_json_body(&map(&CONTENT_TYPE, bad)), Err(Refused::MediaType), "{bad:?}");
        }
    }

    #[test]
    fn an_encoded_body_is_refused() {
        let mut headers = map(&CONTENT_TYPE, &["application/json"]);
        headers.insert("content-encoding", HeaderValue::from_static("gzip"));
        assert_eq!(check_json_body(&headers), Err(Refused::Encoded));
        assert_eq!(check_not_encoded(&headers), Err(Refused::Encoded));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(values in vec(vec(any::<u8>(), 0..64), 0..4)) {
            let mut headers = HeaderMap::new();
            for value in values.iter().filter_map(|value| HeaderValue::from_bytes(value).ok()) {
                headers.append(ACCEPT, value.clone());
                headers.insert(CONTENT_TYPE, value);
            }
            let _ = (accepted(&headers), check_json_body(&headers));
        }

        #[test]
        fn what_is_named_outright_is_wanted_whatever_else_stands_there(noise in vec("[a-z]{1,6}/[a-z]{1,6}(;q=0\\.[1-9])?", 0..6), at in 0_usize..6) {
            let mut ranges = noise;
            ranges.insert(at.min(ranges.len()), "application/json".to_owned());
            let wants = wants(&[&ranges.join(", ")]);
            assert!(matches!(wants, Wants::JsonOnly | Wants::Both), "{wants:?}");
        }
    }
}
