//! A JSON-RPC message by its envelope; what it carries stays raw text.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// JSON-RPC 2.0, "Error object": the text is not JSON.
pub(super) const PARSE_ERROR: i32 = -32700;
/// JSON-RPC 2.0, "Error object": the JSON is not a request.
pub(super) const INVALID_REQUEST: i32 = -32600;
/// JSON-RPC 2.0, "Error object": no such method.
pub(super) const METHOD_NOT_FOUND: i32 = -32601;
/// JSON-RPC 2.0, "Error object": wrong parameters.
pub(super) const INVALID_PARAMS: i32 = -32602;
/// MCP resources, "Error Handling": no such resource.
pub(super) const RESOURCE_NOT_FOUND: i32 = -32002;

/// One message as it came.
#[derive(Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// A message by what it asks of the receiver.
pub(super) enum Kind<'a> {
    /// Wants exactly one answer.
    Request { id: Id, method: String, params: &'a str },
    /// Wants none.
    Notification { method: String, params: &'a str },
    /// Answers a request of ours: `Ok` carries the result, `Err` the error object.
    Response { id: Id, outcome: Result<&'a RawValue, &'a RawValue> },
}

/// Why a message is not one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    /// The id to answer under, where one could be read.
    pub(super) id: Option<Id>,
    /// One of the JSON-RPC codes of this file.
    pub(super) code: i32,
}

/// Reads one message.
pub(super) fn parse(text: &str) -> Result<Kind<'_>, Malformed> {
    let message: Message<'_> = serde_json::from_str(text)
        .map_err(|error| Malformed { id: None, code: if error.is_data() { INVALID_REQUEST } else { PARSE_ERROR } })?;
    // serde would take an array for the struct.
    if !text.trim_start().starts_with('{') {
        return Err(Malformed { id: None, code: INVALID_REQUEST });
    }
    message.kind()
}

impl<'a> Message<'a> {
    fn kind(self) -> Result<Kind<'a>, Malformed> {
        let id = match self.id {
            Some(raw) => Some(Id::new(raw).ok_or(Malformed { id: None, code: INVALID_REQUEST })?),
            None => None,
        };
        let params = self.params.map_or("{}", RawValue::get);
        match (id, self.method, self.result, self.error) {
            _ if self.jsonrpc != "2.0" => Err(Malformed { id: None, code: INVALID_REQUEST }),
            (Some(id), _, _, _) if !params.starts_with('{') => Err(Malformed { id: Some(id), code: INVALID_PARAMS }),
            (Some(id), Some(method), None, None) => Ok(Kind::Request { id, method, params }),
            (None, Some(method), None, None) => Ok(Kind::Notification { method, params }),
            (Some(id), None, Some(result), None) => Ok(Kind::Response { id, outcome: Ok(result) }),
            (Some(id), None, None, Some(error)) => Ok(Kind::Response { id, outcome: Err(error) }),
            (id, ..) => Err(Malformed { id, code: INVALID_REQUEST }),
        }
    }
}

/// Keeps a written `null` apart from an absent key, which `Option` alone would not.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// A request id as its owner spelled it: a string or an integer (MCP basic, "Requests").
#[derive(Clone, Debug)]
pub(super) struct Id(Box<RawValue>);

impl Id {
    /// `None` if `raw` may not be an id.
    pub(super) fn new(raw: &RawValue) -> Option<Self> {
        is_id(raw.get()).then(|| Self(raw.to_owned()))
    }

    /// The JSON text.
    pub(super) fn get(&self) -> &str {
        self.0.get()
    }
}

impl PartialEq for Id {
    /// Same type and same value; an escape in a string is another spelling of the same value.
    fn eq(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.get(), other.get());
        mine == theirs
            || (mine.contains('\\') || theirs.contains('\\'))
                && serde_json::from_str::<String>(mine)
                    .ok()
                    .is_some_and(|mine| serde_json::from_str::<String>(theirs).is_ok_and(|theirs| mine == theirs))
    }
}

impl Eq for Id {}

/// Whether this valid JSON text is a string or an integer literal.
pub(super) fn is_id(text: &str) -> bool {
    match text.as_bytes() {
        [b'"', ..] => true,
        [b'-' | b'0'..=b'9', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{INVALID_PARAMS, INVALID_REQUEST, Id, Kind, PARSE_ERROR, parse};
    use serde_json::value::RawValue;

    fn code(text: &str) -> i32 {
        parse(text).err().map_or(0, |malformed| malformed.code)
    }

    fn id(text: &str) -> Id {
        Id::new(&RawValue::from_string(text.to_owned()).unwrap()).unwrap()
    }

    #[test]
    fn the_four_kinds_are_told_apart() {
        assert!(matches!(
            parse(r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#),
            Ok(Kind::Request { method, params: "{}", .. }) if method == "ping"
        ));
        assert!(matches!(parse(r#"{"jsonrpc":"2.0","method":"x"}"#), Ok(Kind::Notification { .. })));
        assert!(matches!(
            parse(r#"{"jsonrpc":"2.0","id":1,"result":null}"#),
            Ok(Kind::Response { outcome: Ok(_), .. })
        ));
        assert!(matches!(
            parse(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1}}"#),
            Ok(Kind::Response { outcome: Err(_), .. })
        ));
    }

    #[test]
    fn what_is_no_message_has_its_code() {
        assert_eq!(code("{"), PARSE_ERROR);
        assert_eq!(code("7"), INVALID_REQUEST);
        assert_eq!(code(r#"["2.0",1,"ping",null,null,null]"#), INVALID_REQUEST);
        assert_eq!(code(r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#), INVALID_REQUEST);
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#), INVALID_REQUEST);
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":1.0,"method":"ping"}"#), INVALID_REQUEST);
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#), INVALID_REQUEST);
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#), INVALID_PARAMS);
    }

    #[test]
    fn ids_are_equal_by_type_and_value() {
        assert_eq!(id(r#""x-é""#), id("\"x-\\u00e9\""));
        assert_ne!(id("1"), id(r#""1""#));
        assert_eq!(id("18446744073709551616"), id("18446744073709551616"));
    }
}
