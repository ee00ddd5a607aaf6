//! The one place where a request shows what it has: `Authorization: Bearer …` (RFC 6750, 2.1), whether it comes from a
//! client or an operator. A token in a query or a body is not looked at.

use super::rejection::Rejection;

/// What a request shows; `authorization` is the value of each of its `Authorization` fields.
///
/// # Errors
/// Nothing of this scheme is shown, or several could be meant.
pub fn shown<'a>(authorization: impl IntoIterator<Item = &'a [u8]>) -> Result<&'a [u8], Rejection> {
    let mut values = authorization.into_iter();
    let value = values.next().ok_or(Rejection::Missing)?;
    if values.next().is_some() {
        return Err(Rejection::Repeated);
    }
    credential(value).ok_or(Rejection::Missing)
}

/// The token of a `Bearer` credential; the scheme's case does not count (RFC 9110, 11.1).
#[must_use]
pub fn credential(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked("Bearer".len())?;
    let token = rest.strip_prefix(b" ")?.trim_ascii();
    scheme.eq_ignore_ascii_case(b"Bearer").then_some(token)
}

#[cfg(test)]
mod tests {
    use super::{Rejection, shown};

    #[test]
    fn one_bearer_credential_is_read() {
        for (values, expected) in [
            (&["Bearer abc"][..], Ok("abc")),
            (&["bEARER  abc "], Ok("abc")),
            (&["Bearer "], Ok("")),
            (&["Bearer a, Bearer b"], Ok("a, Bearer b")),
            (&[], Err(Rejection::Missing)),
            (&[""], Err(Rejection::Missing)),
            (&["Bearer"], Err(Rejection::Missing)),
            (&["Basic abc"], Err(Rejection::Missing)),
            (&["abc"], Err(Rejection::Missing)),
            (&["Bearerabc"], Err(Rejection::Missing)),
            (&["Bearer a", "Bearer a"], Err(Rejection::Repeated)),
            (&["Basic a", "Bearer a"], Err(Rejection::Repeated)),
        ] {
            let found = shown(values.iter().map(|value| value.as_bytes()));
            assert_eq!(found, expected.map(str::as_bytes), "{values:?}");
        }
    }
}
