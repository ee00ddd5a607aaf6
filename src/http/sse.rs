//! Encoding of server-sent events (WHATWG HTML, section 9.2.5): each event once, into one buffer.

use std::time::Duration;

use bytes::Bytes;

/// A comment on its own, which keeps an idle stream alive and carries no id.
pub const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// One message as a `message` event, with the id a client resumes from where there is one.
///
/// `json` is one JSON text in pieces. A raw line break can stand only between its tokens, where a
/// space means the same; written as it is, it would end the field and forge another.
#[must_use]
pub fn message(id: Option<&str>, json: &[&[u8]]) -> Bytes {
    let length: usize = json.iter().map(|piece| piece.len()).sum();
    let mut event = Vec::with_capacity(length + id.map_or(0, str::len) + 32);
    push_id(&mut event, id);
    event.extend_from_slice(b"event: message\ndata: ");
    let data = event.len();
    for piece in json {
        event.extend_from_slice(piece);
    }
    blank_line_breaks(&mut event[data..]);
    event.extend_from_slice(b"\n\n");
    Bytes::from(event)
}

/// The event that opens a resumable stream: an id, how soon to come back, and empty data
/// (2025-11-25, Streamable HTTP, "Sending Messages to the Server", item 6).
#[must_use]
pub fn prime(id: &str, retry: Duration) -> Bytes {
    let mut event = Vec::with_capacity(id.len() + 48);
    push_id(&mut event, Some(id));
    event.extend_from_slice(format!("retry: {}\ndata: \n\n", retry.as_millis()).as_bytes());
    Bytes::from(event)
}

/// How soon to come back after the connection ends; no event, so no client sees a message.
#[must_use]
pub fn retry(pause: Duration) -> Bytes {
    Bytes::from(format!("retry: {}\n\n", pause.as_millis()))
}

/// The first event of HTTP+SSE (2024-11-05): where to post. `uri` is one of ours.
#[must_use]
pub fn endpoint(uri: &str) -> Bytes {
    debug_assert!(!uri.contains(['\r', '\n']), "a URI has no line breaks");
    Bytes::from(format!("event: endpoint\ndata: {uri}\n\n"))
}

fn push_id(event: &mut Vec<u8>, id: Option<&str>) {
    if let Some(id) = id {
        debug_assert!(!id.contains(['\r', '\n', '\0']), "event ids are made by us");
        event.extend_from_slice(b"id: ");
        event.extend_from_slice(id.as_bytes());
        event.push(b'\n');
    }
}

/// Turns every CR and LF into a space.
fn blank_line_breaks(mut text: &mut [u8]) {
    while let Some(at) = memchr::memchr2(b'\r', b'\n', text) {
        text[at] = b' ';
        text = &mut text[at + 1..];
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{COMMENT, endpoint, message, prime, retry};

    /// A client's reading of a stream: the fields of each event, comments left out.
    fn read(stream: &[u8]) -> Vec<Vec<(String, String)>> {
        let text = String::from_utf8_lossy(stream)
            .replace("\r\n", "\n")
            .replace('\r', "\n");
        text.split("\n\n")
            .map(|event| {
                event
                    .lines()
                    .filter(|line| !line.is_empty() && !line.starts_with(':'))
                    .map(|line| {
                        let (field, value) = line.split_once(':').unwrap_or((line, ""));
                        (
                            field.to_owned(),
                            value.strip_prefix(' ').unwrap_or(value).to_owned(),
                        )
                    })
                    .collect::<Vec<_>>()
            })
            .filter(|event| !event.is_empty())
            .collect()
    }

    fn field(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn events_read_back_as_meant() {
        let stream = [
            prime("n.0", Duration::from_secs(1)),
            COMMENT,
            message(Some("n.1"), &[br#"{"id":"#, b"1", br#","result":{}}"#]),
            message(None, &[br#"{"method":"x"}"#]),
            retry(Duration::from_millis(250)),
            endpoint("/x/messages?session_id=a"),
        ]
        .concat();
        assert_eq!(
            read(&stream),
            [
                vec![
                    field("id", "n.0"),
                    field("retry", "1000"),
                    field("data", "")
                ],
                vec![
                    field("id", "n.1"),
                    field("event", "message"),
                    field("data", r#"{"id":1,"result":{}}"#)
                ],
                vec![
                    field("event", "message"),
                    field("data", r#"{"method":"x"}"#)
                ],
                vec![field("retry", "250")],
                vec![
                    field("event", "endpoint"),
                    field("data", "/x/messages?session_id=a")
                ],
            ]
        );
    }

    proptest! {
        #[test]
        fn no_payload_forges_a_field(pieces in vec(any::<String>(), 0..4)) {
            let slices: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
            let events = read(&message(Some("n.1"), &slices));
            let expected = pieces.concat().replace(['\r', '\n'], " ");
            prop_assert_eq!(events, vec![vec![field("id", "n.1"), field("event", "message"), field("data", &expected)]]);
        }

        #[test]
        fn line_breaks_between_tokens_change_no_value(keys in vec("[a-z]{1,4}", 0..5)) {
            let pretty = serde_json::to_string_pretty(&keys).expect("strings are JSON").replace('\n', "\r\n");
            let event = message(None, &[pretty.as_bytes()]);
            let data = read(&event)[0][1].1.clone();
            let back: Vec<String> = serde_json::from_str(&data).expect("still JSON");
            prop_assert_eq!(back, keys);
        }
    }
}
