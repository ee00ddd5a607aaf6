//! `gangway check --online`: what the issuers say about themselves.

use std::fmt::Write as _;

use super::online::Found;
use crate::auth::{Inspection, Offer, inspect};
use crate::config::{Auth, Issuer, Provider};

/// Asks every issuer, and says what it offers to MCP clients and what users must do then.
pub(super) fn look(auth: &Auth, found: &mut Found) {
    if auth.issuers.is_empty() {
        return;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return found.problems.push(format!("the issuers cannot be asked: {error}")),
    };
    for (name, issuer) in &auth.issuers {
        let inspection = runtime.block_on(inspect(name, issuer));
        if let Err(trouble) = &inspection.keys {
            found.problems.push(format!("auth.issuers.{name}: {trouble}"));
        }
        found.report.push_str(&report(name, issuer, &inspection));
    }
}

fn report(name: &str, issuer: &Issuer, inspection: &Inspection) -> String {
    let mut text = format!("\nissuer {name}  {}\n", issuer.issuer);
    let mut line = |what: &str, said: &str| {
        writeln!(text, "  {what:<12}  {said}").expect("writing to a String cannot fail");
    };
    match &inspection.keys {
        Ok(Some((usable, 0))) => line("keys", &format!("{usable}")),
        Ok(Some((usable, unusable))) => {
            line("keys", &format!("{usable}, and {unusable} for other purposes or algorithms"))
        }
        Ok(None) => line("introspection", "found; whether it answers this client shows with the first token"),
        Err(trouble) if inspection.metadata.as_ref().err() == Some(trouble) => {}
        Err(trouble) => line("unreachable", trouble),
    }
    let offer = match &inspection.metadata {
        Ok(offer) => offer,
        Err(trouble) => {
            line("metadata", trouble);
            line("clients", "cannot discover it either: they need its metadata to log in");
            return text;
        }
    };
    line("metadata", &offer.form.to_string());
    line("registration", registration(offer));
    line("S256", s256(offer));
    line("resource", &resource(issuer, offer));
    text
}

/// How clients become known to it, and what users must do.
fn registration(offer: &Offer) -> &'static str {
    match (offer.client_documents, offer.registration) {
        (true, true) => "client id metadata documents and dynamic registration: users need to do nothing",
        (true, false) => "client id metadata documents: clients that have one log in at once; register others by hand",
        (false, true) => "dynamic registration: users need to do nothing",
        (false, false) => {
            "neither documents nor registration: register a client by hand, and have users enter its client id"
        }
    }
}

fn s256(offer: &Offer) -> &'static str {
    match (offer.authorizes, offer.s256) {
        (false, _) => "no authorization endpoint: users cannot log in, only programs with their own credentials",
        (true, true) => "named",
        (true, false) => {
            "not named in its metadata: MCP clients refuse to log in; switch PKCE with S256 on at the issuer"
        }
    }
}

/// What becomes of the `resource` that MCP clients send (RFC 8707). Metadata has no member for it, so but for RFC 9728's
/// it is a matter of what is known of a provider.
fn resource(issuer: &Issuer, offer: &Offer) -> String {
    if !offer.resources.is_empty() {
        return format!("it names what it issues tokens for: {}", offer.resources.join(" "));
    }
    let known = match issuer.provider {
        Provider::Keycloak => {
            "Keycloak takes it with the feature resource-indicators; without, add an audience mapper with the server's URL"
        }
        Provider::Entra => {
            "Entra ID takes it if it is the App ID URI: set that to the server's URL, or list the audience it puts in"
        }
        Provider::Auth0 => {
            "Auth0 takes it with the Resource Parameter Compatibility Profile: switch that on, with the server's URL as API"
        }
        Provider::Okta => "list the audience of the authorization server under `audiences`",
        Provider::Cognito => "Cognito does not take it: list its client ids under `audiences`",
        Provider::Generic => {
            "metadata does not tell: if tokens come without the server's URL as audience, `gangway auth explain` shows theirs"
        }
    };
    known.to_owned()
}
