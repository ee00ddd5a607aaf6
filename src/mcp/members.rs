//! The members of one JSON object, where they stand in its text: for what is seldom looked for.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Every member in its order, with its value as it is spelled.
struct Members<'a>(Vec<(Name, &'a RawValue)>);

/// The name of a member. As bytes: that of a child's may hold half a character, which must not hide the others.
#[derive(PartialEq, Eq)]
struct Name(Vec<u8>);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Name;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a name")
            }
            fn visit_bytes<E>(self, name: &[u8]) -> Result<Name, E> {
                Ok(Name(name.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Text)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Where each value stands in `object`; nothing if it is no object.
fn spans(object: &str) -> Vec<(Name, Range<usize>)> {
    let Ok(Members(members)) = serde_json::from_str(object) else { return Vec::new() };
    let place = |value: &RawValue| {
        let start = value.get().as_ptr().addr() - object.as_ptr().addr();
        start..start + value.get().len()
    };
    members.into_iter().map(|(name, value)| (name, place(value))).collect()
}

/// Where the value of a member stands in the text of an object.
#[must_use]
pub fn value_of(object: &str, name: &str) -> Option<Range<usize>> {
    spans(object).into_iter().find(|(known, _)| known.0 == name.as_bytes()).map(|(_, span)| span)
}

/// Where the value of each member of this name stands, if there are several.
#[must_use]
pub fn values_of(object: &str, name: &str) -> Vec<Range<usize>> {
    spans(object).into_iter().filter(|(known, _)| known.0 == name.as_bytes()).map(|(_, span)| span).collect()
}

/// What to cut from the text of an object so that it has no such member: the member and one comma.
#[must_use]
pub fn cut_of(object: &str, name: &str) -> Option<Range<usize>> {
    let spans = spans(object);
    let at = spans.iter().position(|(known, _)| known.0 == name.as_bytes())?;
    let end = spans[at].1.end;
    if at > 0 {
        return Some(spans[at - 1].1.end..end);
    }
    let begin = object.find('{')? + 1;
    let is_only = spans.len() == 1;
    let comma = if is_only { 0 } else { object[end..].find(',')? + 1 };
    Some(begin..end + comma)
}

#[cfg(test)]
mod tests {
    use super::{cut_of, value_of};

    #[test]
    fn cuts_one_member_and_nothing_else() {
        for (object, without) in [
            (r#"{"tasks":{}}"#, "{}"),
            (r#" { "tasks" : {"a":[1,2]} , "b":1.0}"#, r#" { "b":1.0}"#),
            (r#"{"a":"}, ","tasks":null,"b":{"tasks":1}}"#, r#"{"a":"}, ","b":{"tasks":1}}"#),
            (r#"{"a":1e400 , "t\u0061sks":{} }"#, r#"{"a":1e400 }"#),
        ] {
            let mut text = object.to_owned();
            text.replace_range(cut_of(object, "tasks").expect("it is there"), "");
            assert_eq!(text, without);
        }
        for object in [r#"{"a":{"tasks":1}}"#, "[]", "", "{}", "null"] {
            assert_eq!(cut_of(object, "tasks"), None);
        }
        let object = r#"{"x":1,"y": [2] }"#;
        assert_eq!(value_of(object, "y").map(|span| &object[span]), Some("[2]"));
    }
}
