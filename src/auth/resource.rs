//! One server as clients of OAuth see it: a protected resource with metadata (RFC 9728), and what it answers to those it
//! does not let in. All of it comes from the configuration, never from a request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use serde_json::{Map, Value, json};

use super::challenge::{Challenge, Failure};
use crate::caller::Principal;
use crate::config::{Issuer, ServerAuth};

/// Where the metadata of a resource is: before the path of its identifier (RFC 9728 section 3.1).
pub const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// Said where the credential was an API key, which must not be told apart from another.
const BAD_KEY: &str = "The API key is not accepted";

/// Said where what was shown is good, and grants too little.
const LACKING: &str = "More scopes are needed for this";

/// What a resource is made of.
#[derive(Clone, Copy)]
pub struct ResourceParts<'a> {
    /// The server's name.
    pub name: &'a str,
    /// The URL its clients know: one of those that `auth` takes tokens for, empty where it takes none.
    pub resource: &'a str,
    /// Who may enter.
    pub auth: &'a ServerAuth,
    /// Every issuer.
    pub issuers: &'a BTreeMap<Arc<str>, Arc<Issuer>>,
}

/// What there is to know for clients of one server.
#[derive(Debug)]
pub struct Resource {
    /// `None` where no access tokens are taken: such a server has no metadata, and names none.
    metadata: Option<Metadata>,
    /// What stands before a scope when a client asks the first issuer for it, whom clients ask that know none yet.
    prefix: String,
    /// The same for each issuer, by its identifier.
    prefixes: BTreeMap<Arc<str>, String>,
    missing: HeaderValue,
}

/// The metadata of a resource.
#[derive(Debug)]
pub struct Metadata {
    /// The path it is served at.
    pub path: String,
    /// The document.
    pub document: Bytes,
    url: String,
    /// The scopes to begin with, as a challenge has them.
    scope: String,
}

impl Resource {
    /// Lays out what clients are told.
    #[must_use]
    pub fn new(parts: &ResourceParts<'_>) -> Resource {
        let issuers: Vec<&Issuer> =
            parts.auth.issuers.iter().filter_map(|name| parts.issuers.get(name)).map(AsRef::as_ref).collect();
        let prefixes = issuers.iter().map(|issuer| (Arc::clone(&issuer.issuer), issuer.scope_prefix.clone())).collect();
        let prefix = issuers.first().map(|issuer| issuer.scope_prefix.clone()).unwrap_or_default();
        let metadata = split(parts.resource).map(|place| metadata(parts, place, &issuers, &prefix));
        let mut resource = Resource { metadata, prefix, prefixes, missing: HeaderValue::from_static("Bearer") };
        resource.missing = resource.challenge(None, None);
        resource
    }

    /// Its metadata, if it takes access tokens.
    #[must_use]
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// The challenge to whoever showed nothing: it names no error (RFC 6750 section 3.1).
    #[must_use]
    pub fn missing(&self) -> HeaderValue {
        self.missing.clone()
    }

    /// The challenge to whoever showed what lets nobody in; `fault` says what is wrong with a token.
    #[must_use]
    pub fn invalid(&self, fault: Option<&'static str>) -> HeaderValue {
        let fault = fault.or(self.metadata.as_ref().map(|_| BAD_KEY));
        self.challenge(Some(Failure::InvalidToken), fault)
    }

    /// What goes with the 400 to whoever showed several credentials. Where no access tokens are taken, nothing.
    #[must_use]
    pub fn malformed(&self, text: &'static str) -> Option<HeaderValue> {
        self.metadata.as_ref()?;
        Some(self.challenge(Some(Failure::InvalidRequest), Some(text)))
    }

    /// The challenge to whoever was granted too little and has to ask for these scopes.
    #[must_use]
    pub fn insufficient(&self, scopes: &BTreeSet<&str>, caller: &Principal) -> HeaderValue {
        let prefix = match caller {
            Principal::Token(holder) => self.prefixes.get(&holder.issuer),
            _ => None,
        };
        let challenge = Challenge {
            error: Some(Failure::InsufficientScope),
            description: Some(LACKING),
            scope: &joined(scopes.iter().copied(), prefix.unwrap_or(&self.prefix)),
            metadata: self.metadata.as_ref().map(|metadata| metadata.url.as_str()),
        };
        challenge.to_value()
    }

    fn challenge(&self, error: Option<Failure>, description: Option<&str>) -> HeaderValue {
        let scope = self.metadata.as_ref().map_or("", |metadata| &metadata.scope);
        let metadata = self.metadata.as_ref().map(|metadata| metadata.url.as_str());
        Challenge { error, description, scope, metadata }.to_value()
    }
}

/// The origin of a URL, and its path.
fn split(url: &str) -> Option<(&str, &str)> {
    let authority = url.find("://")? + "://".len();
    let path = url[authority..].find('/')?;
    Some(url.split_at(authority + path))
}

fn metadata(parts: &ResourceParts<'_>, place: (&str, &str), issuers: &[&Issuer], prefix: &str) -> Metadata {
    let (origin, path) = place;
    let path = format!("{WELL_KNOWN}{path}");
    let scopes = &parts.auth.scope_rules.scopes;
    let mut document = Map::new();
    document.insert("resource".to_owned(), parts.resource.into());
    document.insert("resource_name".to_owned(), parts.name.into());
    document.insert("authorization_servers".to_owned(), issuers.iter().map(|issuer| &*issuer.issuer).collect());
    document.insert("bearer_methods_supported".to_owned(), json!(["header"]));
    if !scopes.is_empty() {
        // What is needed to begin with; the rest is asked for when it is needed.
        let scopes: Value = scopes.iter().map(|scope| format!("{prefix}{scope}")).collect();
        document.insert("scopes_supported".to_owned(), scopes);
    }
    Metadata {
        url: format!("{origin}{path}"),
        path,
        document: Bytes::from(Value::Object(document).to_string()),
        scope: joined(scopes.iter().map(String::as_str), prefix),
    }
}

fn joined<'s>(scopes: impl Iterator<Item = &'s str>, prefix: &str) -> String {
    scopes.map(|scope| format!("{prefix}{scope}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::{Resource, ResourceParts};
    use crate::caller::{Principal, TokenHolder};
    use crate::config::{self, Config};

    fn config(more: &str) -> Config {
        let text = format!(
            "listen.public_url = \"https://MCP.Example.com:443/base/\"\n[servers.s]\ncommand = \"x\"\n{more}\n\
             [auth]\nmethods = [\"oauth\"]\nscopes = [\"read\", \"use\"]\n[auth.issuers.a]\nissuer = \"https://as.example.com/a/\"\n\
             scope_prefix = \"api://x/\"\n[auth.issuers.b]\nissuer = \"https://as.example.com/b\"\n"
        );
        config::parse(&text, "test", Path::new("/"), &|_| None).expect("a configuration").config
    }

    fn resource(config: &Config) -> Resource {
        Resource::new(&ResourceParts {
            name: "s",
            resource: &config.servers["s"].auth.resource,
            auth: &config.servers["s"].auth,
            issuers: &config.auth.issuers,
        })
    }

    /// R:A14, R:A15, R:A16
    #[test]
    fn metadata_names_what_the_configuration_says() {
        let resource = resource(&config(""));
        let metadata = resource.metadata().expect("it takes tokens");
        assert_eq!(metadata.path, "/.well-known/oauth-protected-resource/base/s/mcp");
        let document: Value = serde_json::from_slice(&metadata.document).expect("JSON");
        assert_eq!(
            document,
            json!({
                "resource": "https://mcp.example.com/base/s/mcp",
                "resource_name": "s",
                "authorization_servers": ["https://as.example.com/a/", "https://as.example.com/b"],
                "bearer_methods_supported": ["header"],
                "scopes_supported": ["api://x/read", "api://x/use"],
            })
        );
        let one = config("auth.issuers = [\"b\"]\nauth.scopes = []");
        let document = self::resource(&one).metadata().expect("it takes tokens").document.clone();
        let document: Value = serde_json::from_slice(&document).expect("JSON");
        assert_eq!(document["authorization_servers"], json!(["https://as.example.com/b"]));
        assert!(document.get("scopes_supported").is_none(), "no empty list: {document}");
    }

    /// R:A03, R:A04, R:A05, R:A06
    #[test]
    fn challenges_name_the_metadata_and_the_scopes() {
        let resource = resource(&config(""));
        let url = "https://mcp.example.com/.well-known/oauth-protected-resource/base/s/mcp";
        let rest = format!("scope=\"api://x/read api://x/use\", resource_metadata=\"{url}\"");
        assert_eq!(resource.missing(), format!("Bearer {rest}"));
        assert_eq!(
            resource.invalid(Some("Old")),
            format!("Bearer error=\"invalid_token\", error_description=\"Old\", {rest}")
        );
        let insufficient = |issuer: &str| {
            let holder = TokenHolder { issuer: issuer.into(), subject: "s".into(), client: None };
            resource.insufficient(&["read", "write"].into(), &Principal::Token(Arc::new(holder)))
        };
        let other = insufficient("https://as.example.com/b");
        assert!(other.to_str().expect("text").contains("scope=\"read write\""), "as its own issuer names them");
        let lacking = insufficient("https://as.example.com/a/");
        let lacking = lacking.to_str().expect("text");
        assert!(lacking.contains("error=\"insufficient_scope\""), "{lacking}");
        assert!(lacking.contains("scope=\"api://x/read api://x/write\"") && lacking.contains(url), "{lacking}");
    }
}
