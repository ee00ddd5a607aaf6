//! What a caller brings for a child of its own: the headers and claims that the operator listed.

use std::collections::BTreeMap;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use serde_json::{Map, Value};

use crate::caller::OwnVariables;
use crate::config::EnvFrom;
use crate::http::refusal::Refused;

/// Bytes of a value.
const LONGEST: usize = 4096;
/// The shortest credential that is looked for in other headers; less could stand in any text.
const SHORTEST_CREDENTIAL: usize = 8;

/// Gathers the values. A header or claim that is not there is a variable that is not there.
///
/// # Errors
/// A value that is repeated, too long or no text. It is refused and not made to fit: whatever is left of a credential is
/// none, and half a line could be two variables.
pub(super) fn own_variables(
    from: &EnvFrom,
    headers: &HeaderMap,
    claims: Option<&Map<String, Value>>,
) -> Result<OwnVariables, Refused> {
    if from.is_empty() {
        return Ok(OwnVariables::default());
    }
    let mut variables = BTreeMap::new();
    for (header, variable) in &from.headers {
        if let Some(value) = header_value(headers, header)? {
            variables.insert(variable.clone(), value);
        }
    }
    for (claim, variable) in &from.claims {
        if let Some(value) = claims.and_then(|claims| claim_value(claims, claim)) {
            variables.insert(variable.clone(), fitting(value)?);
        }
    }
    Ok(OwnVariables::new(variables))
}

fn header_value(headers: &HeaderMap, name: &str) -> Result<Option<String>, Refused> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refused::BadHeader("A header whose value the server is given stands twice"));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| UNFIT)?;
    if shown_credentials(headers).any(|credential| text.contains(credential)) {
        return Err(Refused::BadHeader("What is shown to the gateway must not be sent for the server too"));
    }
    fitting(text.to_owned()).map(Some)
}

/// What the caller proves itself with, which no child may learn (R:A13).
fn shown_credentials(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let shown = headers.get_all(AUTHORIZATION).iter().filter_map(|value| value.to_str().ok());
    let credentials = shown.filter_map(|value| value.split_ascii_whitespace().next_back());
    credentials.filter(|credential| credential.len() >= SHORTEST_CREDENTIAL)
}

/// A claim as text: a string as it is, anything else as its JSON.
fn claim_value(claims: &Map<String, Value>, name: &str) -> Option<String> {
    match claims.get(name)? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

const UNFIT: Refused = Refused::BadHeader("A value for the server is longer than 4096 bytes or is no plain text");

fn fitting(value: String) -> Result<String, Refused> {
    if value.len() <= LONGEST && !value.contains(char::is_control) { Ok(value) } else { Err(UNFIT) }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};
    use serde_json::{Value, json};

    use super::{LONGEST, own_variables};
    use crate::config::EnvFrom;

    fn from() -> EnvFrom {
        let of = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        EnvFrom { headers: of(&[("x-token", "TOKEN"), ("x-region", "REGION")]), claims: of(&[("email", "EMAIL")]) }
    }

    fn gathered(fields: &[(&str, &[u8])], claims: &Value) -> Option<Vec<(String, String)>> {
        let field = |(name, value): &(&str, &[u8])| {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            (name, HeaderValue::from_bytes(value).expect("a value"))
        };
        let mut headers = HeaderMap::new();
        for (name, value) in fields.iter().map(field) {
            headers.append(name, value);
        }
        let own = own_variables(&from(), &headers, claims.as_object()).ok()?;
        Some(own.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn only_what_is_listed_is_taken_and_only_whole() {
        let none = json!({});
        assert_eq!(gathered(&[], &none), Some(vec![]));
        let fields: &[(&str, &[u8])] = &[("X-Token", b"a b"), ("LD_PRELOAD", b"x"), ("X-Env", b"LD_PRELOAD=/x")];
        assert_eq!(gathered(fields, &none), Some(vec![pair("TOKEN", "a b")]));
        assert_eq!(gathered(&[("x-token", b"")], &none), Some(vec![pair("TOKEN", "")]));
        let longest = "v".repeat(LONGEST);
        assert_eq!(gathered(&[("x-token", longest.as_bytes())], &none), Some(vec![pair("TOKEN", &longest)]));
        for refused in [
            &[("x-token", &b"a"[..]), ("X-TOKEN", b"a")][..],
            &[("x-token", b"a\tb")],
            &[("x-token", b"\xff")],
            &[("x-token", "\u{85}".as_bytes())],
            &[("x-token", format!("{longest}v").as_bytes())],
        ] {
            assert_eq!(gathered(refused, &none), None, "{refused:?}");
        }
    }

    #[test]
    fn claims_are_text_or_the_json_they_are() {
        for (claim, value) in [
            (json!("a@example.com"), Some("a@example.com")),
            (json!(12), Some("12")),
            (json!(["a", "b"]), Some("[\"a\",\"b\"]")),
            (Value::Null, None),
        ] {
            let expected = value.map(|value| pair("EMAIL", value)).into_iter().collect();
            assert_eq!(gathered(&[], &json!({ "email": claim, "sub": "x" })), Some(expected));
        }
        for refused in [json!("a\nb"), json!("\0"), json!("v".repeat(LONGEST + 1))] {
            assert_eq!(gathered(&[], &json!({ "email": refused })), None);
        }
    }

    #[test]
    fn the_callers_own_credential_is_not_taken() {
        let shown: (&str, &[u8]) = ("Authorization", b"Bearer gangway_SECRETSECRET");
        assert_eq!(gathered(&[shown, ("x-token", b"t=gangway_SECRETSECRET")], &json!({})), None);
        assert!(gathered(&[shown, ("x-token", b"gangway_OTHER")], &json!({})).is_some());
    }
}
