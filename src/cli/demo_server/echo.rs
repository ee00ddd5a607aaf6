//! The hot path: a call of `echo` answered by copying ranges of the request.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::message::is_id;

#[derive(Deserialize)]
struct Call<'a> {
    jsonrpc: &'a str,
    #[serde(borrow)]
    id: &'a RawValue,
    /// Borrowed unless it has an escape, such as the `\/` some encoders write.
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: &'a RawValue,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    text: &'a RawValue,
}

/// Appends the answer if `line` is a well-formed call of `echo`; else leaves `answer` alone.
///
/// Text and arguments come back exactly as spelled. `structured` tells whether the revision has
/// `structuredContent` (2025-06-18 on).
pub(super) fn answer(line: &str, structured: bool, answer: &mut Vec<u8>) -> bool {
    let Some(call) = object::<Call<'_>>(line) else {
        return false;
    };
    if call.jsonrpc != "2.0" || call.method != "tools/call" || !is_id(call.id.get()) {
        return false;
    }
    let Some(Params { name, arguments }) = object(call.params.get()) else {
        return false;
    };
    let arguments = arguments.get();
    if name != "echo" {
        return false;
    }
    let Some(Arguments { text }) = object(arguments) else {
        return false;
    };
    if !text.get().starts_with('"') {
        return false;
    }
    answer.reserve(line.len() + arguments.len());
    for part in [
        r#"{"jsonrpc":"2.0","id":"#,
        call.id.get(),
        r#","result":{"content":[{"type":"text","text":"#,
        text.get(),
        "}]",
    ] {
        answer.extend_from_slice(part.as_bytes());
    }
    if structured {
        answer.extend_from_slice(br#","structuredContent":"#);
        answer.extend_from_slice(arguments.as_bytes());
    }
    answer.extend_from_slice(b"}}");
    true
}

/// Reads a JSON object; serde alone would take an array for a struct too.
fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Option<T> {
    if text.starts_with('{') { serde_json::from_str(text).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::answer;

    fn answered(line: &str, structured: bool) -> Option<String> {
        let mut bytes = Vec::new();
        answer(line, structured, &mut bytes).then(|| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn spelling_survives() {
        let line = r#"{"params":{"_meta":{"x":1},"arguments":{"u": 1e400,"text":"\u00e9\/","id":18446744073709551616},"name":"echo"},"id":"x","method":"tools\/call","jsonrpc":"2.0"}"#;
        assert_eq!(
            answered(line, true).unwrap(),
            r#"{"jsonrpc":"2.0","id":"x","result":{"content":[{"type":"text","text":"\u00e9\/"}],"structuredContent":{"u": 1e400,"text":"\u00e9\/","id":18446744073709551616}}}"#
        );
        assert!(!answered(line, false).unwrap().contains("structuredContent"));
    }

    #[test]
    fn everything_else_is_left_to_the_slow_path() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"text":"a"}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"name":"echo","arguments":{"text":"a"}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":1}}}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"tools/call","params":{"name":"echo","arguments":{"text":"a"}}}"#,
            r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo","arguments":{"text":"a"}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":["a"]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["echo",{"text":"a"}]}"#,
            "[]",
        ] {
            assert_eq!(answered(line, true), None, "{line}");
        }
    }
}
