//! What an authorization server says about itself (RFC 8414, OpenID Connect Discovery 1.0).

use std::fmt;

use serde::Deserialize;

use super::fetch::{FetchError, Fetcher, ShownUrl};

/// Which of the three places the metadata stood in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// RFC 8414, 3: `/.well-known/oauth-authorization-server` before the issuer's path.
    AuthorizationServer,
    /// RFC 8414, 5: `/.well-known/openid-configuration` before the issuer's path.
    OpenIdInserted,
    /// OpenID Connect Discovery 1.0, 4: `/.well-known/openid-configuration` behind the issuer's path.
    OpenIdAppended,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::AuthorizationServer => "oauth-authorization-server",
            Form::OpenIdInserted => "openid-configuration before the path",
            Form::OpenIdAppended => "openid-configuration",
        })
    }
}

/// The metadata of an issuer, as far as it concerns the gateway and its operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Metadata {
    pub(super) issuer: String,
    pub(super) jwks_uri: Option<String>,
    pub(super) introspection_endpoint: Option<String>,
    #[serde(default)]
    pub(super) introspection_endpoint_auth_methods_supported: Vec<String>,
    pub(super) authorization_endpoint: Option<String>,
    pub(super) registration_endpoint: Option<String>,
    #[serde(default)]
    pub(super) code_challenge_methods_supported: Vec<String>,
    #[serde(default)]
    pub(super) client_id_metadata_document_supported: bool,
    /// RFC 9728, 4
    #[serde(default)]
    pub(super) protected_resources: Vec<String>,
}

/// Why there is no metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Undiscovered {
    /// None of the places has it; why the last one that answered anything did not.
    Fetch(FetchError),
    /// What stands there is no metadata.
    Malformed(&'static str),
    /// It is that of another issuer (RFC 8414, 3.3); whose.
    OtherIssuer(String),
    /// It names a URL that must not be asked.
    Url(&'static str),
}

impl fmt::Display for Undiscovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undiscovered::Fetch(error) => write!(f, "its metadata cannot be had: {error}"),
            Undiscovered::Malformed(why) => write!(f, "its metadata is malformed: {why}"),
            Undiscovered::OtherIssuer(other) => {
                write!(
                    f,
                    "its metadata names the issuer \"{}\": write exactly that, or ask its operator",
                    escaped(other)
                )
            }
            Undiscovered::Url(name) => write!(f, "`{name}` in its metadata is not https"),
        }
    }
}

/// What came of asking an issuer about itself, where that was no metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    /// The place that was asked last.
    pub(super) url: String,
    pub(super) why: Undiscovered,
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.why, ShownUrl(&self.url))
    }
}

fn escaped(text: &str) -> String {
    text.chars().take(200).flat_map(char::escape_default).collect()
}

/// Where the metadata of an issuer may stand, in the order of asking.
pub(super) fn places(issuer: &str) -> Vec<(Form, String)> {
    let start = issuer.find("://").map_or(0, |at| at + 3);
    let (origin, path) = issuer[start..].find('/').map_or((issuer, ""), |at| issuer.split_at(start + at));
    let path = path.trim_end_matches('/');
    let mut places = vec![
        (Form::AuthorizationServer, format!("{origin}/.well-known/oauth-authorization-server{path}")),
        (Form::OpenIdInserted, format!("{origin}/.well-known/openid-configuration{path}")),
        (Form::OpenIdAppended, format!("{origin}{path}/.well-known/openid-configuration")),
    ];
    if path.is_empty() {
        places.remove(1);
    }
    places
}

/// Asks an issuer about itself.
///
/// # Errors
/// See [`Undiscovered`]. A place that answers for another issuer ends the search: what it would say next is no better.
pub(super) async fn discover(fetcher: &Fetcher, issuer: &str) -> Result<(Form, Metadata), Missed> {
    let mut missed = Missed { url: issuer.to_owned(), why: Undiscovered::Malformed("it stands nowhere") };
    for (form, url) in places(issuer) {
        let found = fetcher.get(&url).await.map_err(Undiscovered::Fetch);
        match found.and_then(|(_, body)| read(&body, issuer)) {
            Ok(metadata) => return Ok((form, metadata)),
            Err(why @ (Undiscovered::Fetch(FetchError::Status(_)) | Undiscovered::Malformed(_))) => {
                missed = Missed { url, why };
            }
            // Whoever does not answer at one place does not at the others, and each costs its whole time.
            Err(why) => return Err(Missed { url, why }),
        }
    }
    Err(missed)
}

/// Reads metadata and holds it against the issuer it must be of.
fn read(body: &[u8], issuer: &str) -> Result<Metadata, Undiscovered> {
    let metadata: Metadata =
        serde_json::from_slice(body).map_err(|_| Undiscovered::Malformed("it is no JSON object of that form"))?;
    if metadata.issuer != issuer {
        return Err(Undiscovered::OtherIssuer(metadata.issuer));
    }
    for (name, url) in [("jwks_uri", &metadata.jwks_uri), ("introspection_endpoint", &metadata.introspection_endpoint)]
    {
        if url.as_ref().is_some_and(|url| !may_name(issuer, url)) {
            return Err(Undiscovered::Url(name));
        }
    }
    Ok(metadata)
}

/// Whether an issuer may send the gateway there: to https, and from plain HTTP on this machine to the same.
fn may_name(issuer: &str, url: &str) -> bool {
    url.starts_with("https://") || (issuer.starts_with("http://") && url.starts_with("http://"))
}

#[cfg(test)]
mod tests {
    use super::{Form, Undiscovered, places, read};

    #[test]
    fn metadata_is_looked_for_in_three_places() {
        let urls = |issuer| places(issuer).into_iter().map(|(_, url)| url).collect::<Vec<_>>();
        assert_eq!(
            urls("https://id.example/realms/a"),
            [
                "https://id.example/.well-known/oauth-authorization-server/realms/a",
                "https://id.example/.well-known/openid-configuration/realms/a",
                "https://id.example/realms/a/.well-known/openid-configuration",
            ]
        );
        let root = [
            "https://id.example/.well-known/oauth-authorization-server",
            "https://id.example/.well-known/openid-configuration",
        ];
        assert_eq!(urls("https://id.example"), root);
        assert_eq!(urls("https://id.example/"), root);
        assert_eq!(places("https://id.example")[1].0, Form::OpenIdAppended);
    }

    #[test]
    fn metadata_is_that_of_the_issuer_to_the_byte() {
        let of = |issuer: &str| format!("{{\"issuer\":\"{issuer}\",\"jwks_uri\":\"https://id.example/keys\"}}");
        assert!(read(of("https://id.example/").as_bytes(), "https://id.example/").is_ok());
        for other in ["https://id.example", "https://ID.example/", "https://evil.example/"] {
            let found = read(of(other).as_bytes(), "https://id.example/");
            assert_eq!(found, Err(Undiscovered::OtherIssuer(other.to_owned())));
        }
        for malformed in ["", "<html>", "[]", "{}", "{\"issuer\":7}"] {
            assert!(matches!(read(malformed.as_bytes(), "https://id.example/"), Err(Undiscovered::Malformed(_))));
        }
    }

    #[test]
    fn metadata_sends_nobody_to_plain_http() {
        let with = |url: &str| format!("{{\"issuer\":\"https://id.example\",\"jwks_uri\":\"{url}\"}}");
        for url in ["http://169.254.169.254/keys", "http://127.0.0.1/keys", "file:///etc/passwd", "HTTP://a/"] {
            let found = read(with(url).as_bytes(), "https://id.example");
            assert_eq!(found, Err(Undiscovered::Url("jwks_uri")), "{url}");
        }
    }
}
