//! The answer to `tools/list` without some of its entries: everything else stays as the server spelled it.

use std::ops::Range;

use bytes::BytesMut;

use crate::mcp::ids::Id;
use crate::mcp::members::values_of;
use crate::mcp::message::Message;
use crate::mcp::payload::Payload;
use crate::mcp::scan::{Author, elements};

/// The answer under the id `id`, without the tools whose name `is_hidden` tells.
#[must_use]
pub fn without_tools(message: &Message, id: &Id, is_hidden: impl Fn(&str) -> bool) -> Payload {
    let cuts = cuts(message, &is_hidden);
    if cuts.is_empty() {
        return message.with_id(id);
    }
    let text = message.text();
    let own = message.fields().id.map(|span| span.start()..span.end());
    let mut changes: Vec<(Range<usize>, &[u8])> = cuts.into_iter().map(|cut| (cut, &[][..])).collect();
    changes.extend(own.map(|span| (span, id.raw())));
    changes.sort_unstable_by_key(|(span, _)| span.start);
    let mut out = BytesMut::with_capacity(text.len() + id.raw().len());
    let mut at = 0;
    for (span, with) in changes {
        out.extend_from_slice(&text[at..span.start]);
        out.extend_from_slice(with);
        at = span.end;
    }
    out.extend_from_slice(&text[at..]);
    Payload::whole(out.freeze())
}

/// What to cut out of the text. Should there be several lists, a reader may take any of them for the one that counts.
fn cuts(message: &Message, is_hidden: &impl Fn(&str) -> bool) -> Vec<Range<usize>> {
    let Some(result) = message.fields().result else { return Vec::new() };
    let Ok(object) = std::str::from_utf8(result.of(message.text())) else { return Vec::new() };
    let mut cuts = Vec::new();
    for list in values_of(object, "tools") {
        let base = result.start() + list.start;
        let found = cuts_of(&object[list], is_hidden);
        cuts.extend(found.into_iter().map(|cut| base + cut.start..base + cut.end));
    }
    cuts
}

/// What to cut out of the text of one array: entries, each with one comma beside it.
fn cuts_of(list: &str, is_hidden: &impl Fn(&str) -> bool) -> Vec<Range<usize>> {
    let Ok(entries) = elements(list.as_bytes(), Author::Child) else { return Vec::new() };
    let hidden: Vec<bool> =
        entries.iter().map(|entry| is_entry_hidden(&list[entry.start()..entry.end()], is_hidden)).collect();
    let Some(first_kept) = hidden.iter().position(|hidden| !hidden) else {
        // All of them; there may be none.
        return entries
            .first()
            .zip(entries.last())
            .map(|(first, last)| first.start()..last.end())
            .into_iter()
            .collect();
    };
    let mut cuts = Vec::new();
    if first_kept > 0 {
        cuts.push(entries[0].start()..entries[first_kept].start());
    }
    for at in first_kept + 1..entries.len() {
        if hidden[at] {
            cuts.push(entries[at - 1].end()..entries[at].end());
        }
    }
    cuts
}

/// Whether an entry goes: it has a name that is hidden, or one that no call could carry. An entry without a name is none
/// that could be called, and stays.
fn is_entry_hidden(entry: &str, is_hidden: &impl Fn(&str) -> bool) -> bool {
    values_of(entry, "name").into_iter().map(|name| &entry[name]).filter(|name| name.starts_with('"')).any(|name| {
        let read = serde_json::from_str::<String>(name);
        read.map_or(true, |name| is_hidden(&name))
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::collection::vec;
    use proptest::prelude::{any, proptest};
    use serde_json::Value;

    use super::without_tools;
    use crate::mcp::ids::Id;
    use crate::mcp::message::Message;
    use crate::mcp::scan::Author;

    fn filtered(text: &str) -> String {
        let message = Message::parse(Bytes::copy_from_slice(text.as_bytes()), Author::Child).expect(text);
        let id = Id::parse(br#""c""#).expect("an id");
        let payload = without_tools(&message, &id, |name| name.starts_with('x'));
        String::from_utf8(payload.to_bytes().to_vec()).expect("text")
    }

    #[test]
    fn hidden_entries_go_and_nothing_else_changes() {
        for (list, left) in [
            ("[]", "[]"),
            (r#"[ {"name":"a"} ]"#, r#"[ {"name":"a"} ]"#),
            (r#"[ {"name":"x"} ]"#, "[  ]"),
            (r#"[{"name":"x"} , {"name":"x1"}]"#, "[]"),
            (r#"[{"name":"x"} , {"name":"a","n":1.0}]"#, r#"[{"name":"a","n":1.0}]"#),
            (r#"[{"name":"a"} , {"name":"x"}  ]"#, r#"[{"name":"a"}  ]"#),
            (
                r#"[ {"name":"x"},{"z":[1e400], "name":"a"} , {"name":"x"},{"name":"x2"} , {"name":"b"} ]"#,
                r#"[ {"z":[1e400], "name":"a"} , {"name":"b"} ]"#,
            ),
            (r#"[{"name":"\u0078"},{"name":"a"}]"#, r#"[{"name":"a"}]"#),
            (r#"[{"name":"a","name":"x"},{"name":"a"}]"#, r#"[{"name":"a"}]"#),
            (r#"[{"name":"\ud800"},{"name":"a"}]"#, r#"[{"name":"a"}]"#),
            (r#"[{"\ud800":1,"name":"x"},{"name":"a"}]"#, r#"[{"name":"a"}]"#),
            (r#"[{"n\u0061me":"x"}, 7, {"title":"x"}, {"name":7}]"#, r#"[7, {"title":"x"}, {"name":7}]"#),
            (r#"{"name":"x"}"#, r#"{"name":"x"}"#),
            ("null", "null"),
        ] {
            for (before, after) in [
                (
                    r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"tools":[{"name":"x"}]},"tools" : "#,
                    r#" ,"nextCursor":"x"}}"#,
                ),
                (r#"{"result":{"tools":"#, r#"}, "jsonrpc":"2.0","id": 1 }"#),
            ] {
                let text = format!("{before}{list}{after}");
                let wanted = format!("{before}{left}{after}")
                    .replace(r#""id":1"#, r#""id":"c""#)
                    .replace(r#""id": 1"#, r#""id": "c""#);
                assert_eq!(filtered(&text), wanted, "{text}");
            }
        }
        let twice = r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"x"}],"tools":[{"name":"a"},{"name":"x"}]}}"#;
        assert_eq!(filtered(twice), r#"{"jsonrpc":"2.0","id":"c","result":{"tools":[],"tools":[{"name":"a"}]}}"#);
        let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}"#;
        assert_eq!(filtered(error), error.replace(":1,\"error", ":\"c\",\"error"));
    }

    proptest! {
        /// What is left reads as the list without them, whatever the spacing.
        #[test]
        fn what_is_left_reads_as_the_list_without_them(tools in vec((any::<bool>(), " {0,2}", " {0,2}"), 0..12)) {
            let entry = |(at, (hidden, before, after)): (usize, &(bool, String, String))| {
                format!(r#"{before}{{"name":"{}{at}"}}{after}"#, if *hidden { "x" } else { "a" })
            };
            let list: Vec<String> = tools.iter().enumerate().map(entry).collect();
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{}]}}}}"#, list.join(","));
            let read: Value = serde_json::from_str(&filtered(&text)).expect("JSON");
            let mut wanted: Value = serde_json::from_str(&text).expect("JSON");
            wanted["id"] = "c".into();
            let kept = wanted["result"]["tools"].as_array_mut().expect("a list");
            kept.retain(|tool| tool["name"].as_str().is_some_and(|name| name.starts_with('a')));
            assert_eq!(read, wanted);
        }
    }
}
