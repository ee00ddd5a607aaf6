//! Asking an issuer what an opaque token means (RFC 7662).

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use oauth2::basic::{BasicErrorResponse, BasicRevocationErrorResponse, BasicTokenResponse, BasicTokenType};
use oauth2::{
    AccessToken, AuthType, Client, ClientId, ClientSecret, EndpointNotSet, EndpointSet, ExtraTokenFields, HttpRequest,
    IntrospectionUrl, RequestTokenError, StandardRevocableToken, StandardTokenIntrospectionResponse,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fetch::{FetchError, Fetcher};
use crate::config::Introspection;

/// Members of an answer that RFC 7662 does not name.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Rest(Map<String, Value>);

impl ExtraTokenFields for Rest {}

type Answer = StandardTokenIntrospectionResponse<Rest, BasicTokenType>;

type Asking = Client<
    BasicErrorResponse,
    BasicTokenResponse,
    Answer,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
>;

/// Why there is no answer about a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// The issuer could not be asked.
    Fetch(FetchError),
    /// It refused to say; the client id or secret may be wrong.
    Refused,
    /// What it said is no answer.
    Malformed,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unanswered::Fetch(error) => error.fmt(f),
            Unanswered::Refused => f.write_str("it refuses to answer: check `introspection.client_id` and its secret"),
            Unanswered::Malformed => f.write_str("what it says is no introspection answer"),
        }
    }
}

/// Where and as whom to ask.
pub(super) struct Introspector {
    client: Asking,
}

impl Introspector {
    /// Asks at `url` as the client of `introspection`. `methods` are the ways of authentication the issuer names; where
    /// it names none, HTTP Basic is meant (RFC 8414, 2).
    ///
    /// # Errors
    /// It is no URL.
    pub(super) fn new(
        url: &str,
        introspection: &Introspection,
        methods: &[String],
    ) -> Result<Introspector, FetchError> {
        let url = IntrospectionUrl::new(url.to_owned()).map_err(|_| FetchError::Url)?;
        let takes = |method: &str| methods.iter().any(|one| one == method);
        let in_body = takes("client_secret_post") && !takes("client_secret_basic");
        let client = Client::new(ClientId::new(introspection.client_id.clone()))
            .set_client_secret(ClientSecret::new(introspection.client_secret.clone()))
            .set_auth_type(if in_body { AuthType::RequestBody } else { AuthType::BasicAuth })
            .set_introspection_url(url);
        Ok(Introspector { client })
    }

    /// Where it asks.
    pub(super) fn url(&self) -> &str {
        self.client.introspection_url().as_str()
    }

    /// What a token claims; `None` is one that is not active.
    ///
    /// # Errors
    /// See [`Unanswered`].
    pub(super) async fn ask(
        &self,
        token: &str,
        fetcher: &Arc<Fetcher>,
    ) -> Result<Option<Map<String, Value>>, Unanswered> {
        let send = |request: HttpRequest| {
            let fetcher = Arc::clone(fetcher);
            async move {
                fetcher.send(request.map(|body| Full::new(Bytes::from(body)))).await.map(|answer| answer.map(Vec::from))
            }
        };
        let token = AccessToken::new(token.to_owned());
        let request = self.client.introspect(&token).set_token_type_hint("access_token");
        let answer = request.request_async(&send).await.map_err(|error| match error {
            RequestTokenError::Request(error) => Unanswered::Fetch(error),
            RequestTokenError::ServerResponse(_) => Unanswered::Refused,
            // The body may repeat the token, so it is not told.
            RequestTokenError::Parse(..) | RequestTokenError::Other(_) => Unanswered::Malformed,
        })?;
        match serde_json::to_value(&answer) {
            Ok(Value::Object(claims)) if claims.get("active") == Some(&Value::Bool(true)) => Ok(Some(claims)),
            Ok(_) => Ok(None),
            Err(_) => Err(Unanswered::Malformed),
        }
    }
}
