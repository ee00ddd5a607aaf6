//! `WWW-Authenticate` as a client takes it apart.

use std::collections::BTreeMap;

use crate::client::Response;

/// The one challenge of an answer: its parameters. Fails unless there is exactly one, of `Bearer`, each parameter of
/// which stands once as a quoted string (RFC 9110 section 11.6.1, RFC 6750 section 3).
#[track_caller]
pub fn challenge(response: &Response) -> BTreeMap<String, String> {
    let fields: Vec<&str> = response.head.all("www-authenticate").collect();
    let [field] = fields.as_slice() else { panic!("one challenge wanted: {response:?}") };
    let rest = field.strip_prefix("Bearer").unwrap_or_else(|| panic!("no Bearer challenge: {field}"));
    let mut rest = rest.trim_start();
    let mut parameters = BTreeMap::new();
    while !rest.is_empty() {
        let (name, quoted) = rest.split_once("=\"").unwrap_or_else(|| panic!("no parameter: {field}"));
        let mut value = String::new();
        let mut chars = quoted.chars();
        loop {
            match chars.next().unwrap_or_else(|| panic!("an open string: {field}")) {
                '"' => break,
                '\\' => value.extend(chars.next()),
                c => value.push(c),
            }
        }
        assert!(parameters.insert(name.to_owned(), value).is_none(), "{name} stands twice: {field}");
        rest = chars.as_str().trim_start_matches([',', ' ']);
    }
    parameters
}
