//! `WWW-Authenticate`: one Bearer challenge (RFC 6750 section 3, RFC 9728 section 5.1).

use http::HeaderValue;

/// What a client did wrong (RFC 6750 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Two credentials, or one that cannot be read.
    InvalidRequest,
    /// A token that lets nobody in.
    InvalidToken,
    /// A token that grants too little.
    InsufficientScope,
}

impl Failure {
    fn code(self) -> &'static str {
        match self {
            Failure::InvalidRequest => "invalid_request",
            Failure::InvalidToken => "invalid_token",
            Failure::InsufficientScope => "insufficient_scope",
        }
    }
}

/// One challenge. What is `None` or empty is left out; without any it is the bare scheme.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Challenge<'a> {
    /// None where nothing was shown.
    pub(super) error: Option<Failure>,
    /// `error_description`
    pub(super) description: Option<&'a str>,
    /// `scope`: what to ask for, with spaces between.
    pub(super) scope: &'a str,
    /// `resource_metadata`: where to find out whom to ask.
    pub(super) metadata: Option<&'a str>,
}

impl Challenge<'_> {
    /// The value of the field.
    pub(super) fn to_value(self) -> HeaderValue {
        let scope = (!self.scope.is_empty()).then_some(self.scope);
        let parameters = [
            ("error", self.error.map(Failure::code)),
            ("error_description", self.description),
            ("scope", scope),
            ("resource_metadata", self.metadata),
        ];
        let mut text = String::from("Bearer");
        let mut before = ' ';
        for (name, value) in parameters {
            let Some(value) = value else { continue };
            text.push(before);
            if before == ',' {
                text.push(' ');
            }
            text.push_str(name);
            text.push('=');
            put_quoted(&mut text, value);
            before = ',';
        }
        HeaderValue::from_str(&text).expect("quoted strings hold no byte a field may not hold")
    }
}

/// Appends a quoted-string (RFC 9110 section 5.6.4). What none can hold becomes a question mark, so that whatever stands
/// in a value it ends where its quotes do.
fn put_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => out.push('?'),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::option;
    use proptest::prelude::{any, proptest};

    use super::{Challenge, Failure};

    /// Reads one challenge as RFC 9110 section 11.6.1 has it; `None` if it is not exactly one with each parameter once.
    pub(crate) fn parse(value: &str) -> Option<(String, BTreeMap<String, String>)> {
        let (scheme, mut rest) = value.split_once(' ').unwrap_or((value, ""));
        let mut parameters = BTreeMap::new();
        while !rest.is_empty() {
            let (name, quoted) = rest.split_once("=\"")?;
            if name.is_empty() || !name.bytes().all(|c| c.is_ascii_lowercase() || c == b'_') {
                return None;
            }
            let mut text = String::new();
            let mut chars = quoted.chars();
            loop {
                match chars.next()? {
                    '"' => break,
                    '\\' => text.push(chars.next()?),
                    c => text.push(c),
                }
            }
            if parameters.insert(name.to_owned(), text).is_some() {
                return None;
            }
            rest = chars.as_str();
            rest = if rest.is_empty() { rest } else { rest.strip_prefix(", ")? };
        }
        Some((scheme.to_owned(), parameters))
    }

    #[test]
    fn what_is_not_said_is_left_out() {
        assert_eq!(Challenge::default().to_value(), "Bearer");
        let invalid = Challenge { error: Some(Failure::InvalidToken), ..Challenge::default() };
        assert_eq!(invalid.to_value(), "Bearer error=\"invalid_token\"");
        let all = Challenge {
            description: Some("It is \"old\""),
            scope: "a b",
            metadata: Some("https://example.com/.well-known/x"),
            ..invalid
        };
        assert_eq!(
            all.to_value(),
            "Bearer error=\"invalid_token\", error_description=\"It is \\\"old\\\"\", scope=\"a b\", \
             resource_metadata=\"https://example.com/.well-known/x\""
        );
    }

    proptest! {
        /// R:A29, F:E07: whatever the values hold, it is one challenge that a reader takes apart into just these.
        #[test]
        fn one_challenge_whatever_it_says(
            description in option::of(any::<String>()),
            scope in any::<String>(),
            metadata in option::of("[ -~]{0,40}"),
        ) {
            let challenge = Challenge {
                error: Some(Failure::InsufficientScope),
                description: description.as_deref(),
                scope: &scope,
                metadata: metadata.as_deref(),
            };
            let value = challenge.to_value();
            let (scheme, parameters) = parse(value.to_str().expect("visible ASCII")).expect("one challenge");
            assert_eq!((scheme.as_str(), parameters["error"].as_str()), ("Bearer", "insufficient_scope"));
            assert_eq!(parameters.get("resource_metadata"), metadata.as_ref());
            let seen = |text: &str| text.chars().map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect::<String>();
            assert_eq!(parameters.get("scope"), (!scope.is_empty()).then(|| seen(&scope)).as_ref());
            assert_eq!(parameters.get("error_description"), description.as_deref().map(seen).as_ref());
        }
    }
}
