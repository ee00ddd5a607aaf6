//! The page a browser sees at an endpoint: what this is and what to paste where. It shows no key,
//! runs no script and fetches nothing.

use http::Response;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};

use super::body::Body;
use crate::paste;

/// What the page tells.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Name of the server.
    pub name: &'a str,
    /// The endpoint's full URL, as clients type it.
    pub url: &'a str,
    /// Whether a key is asked for.
    pub needs_key: bool,
    /// Whether clients see to a login themselves.
    pub logs_in: bool,
}

/// The one style sheet; its digest stands in [`POLICY`].
const STYLE: &str = include_str!("page.css");

/// Nothing may be loaded, run, framed or submitted; the style is known by its SHA-256.
const POLICY: &str = "default-src 'none'; style-src 'sha256-w5gC8WpFY0JBJNQI05tmGCtuR/3pn9qvs2gRpPMFoik='; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

impl Page<'_> {
    /// The page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        let (name, url) = (escaped(self.name), escaped(self.url));
        let door = if self.needs_key {
            "Put your own API key where <code>YOUR_API_KEY</code> stands."
        } else if self.logs_in {
            "Your client will ask you to log in."
        } else {
            "No key is needed."
        };
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"robots\" content=\"noindex\">\n\
             <title>{name} · MCP server</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <p class=\"kind\">MCP server</p>\n<h1>{name}</h1>\n\
             <p class=\"url\"><code>{url}</code></p>\n\
             <p>This address is for MCP clients, not for browsers. Paste one of these. {door}</p>\n"
        );
        for (client, line) in paste::lines(self.name, self.url, self.needs_key.then_some(paste::PLACEHOLDER)) {
            html.push_str(&format!(
                "<section>\n<h2>{client}</h2>\n<pre tabindex=\"0\"><code>{}</code></pre>\n</section>\n",
                escaped(&line)
            ));
        }
        html.push_str(
            "<footer>One click on a line selects all of it. Served by Gangway.</footer>\n</main>\n</body>\n</html>\n",
        );
        html
    }

    /// The page as an answer.
    #[must_use]
    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.html()));
        let headers = response.headers_mut();
        for (name, value) in [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (CACHE_CONTROL, "no-store"),
            (VARY, "Accept"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// `text` as HTML text or attribute value.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            other => html.push(other),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
    use sha2::{Digest, Sha256};

    use super::{POLICY, Page, STYLE, escaped};
    use crate::paste;

    const OPEN: Page<'_> =
        Page { name: "everything", url: "http://127.0.0.1:8080/mcp", needs_key: false, logs_in: false };

    #[test]
    fn it_shows_what_to_paste_and_asks_for_the_readers_own_key() {
        for needs_key in [false, true] {
            let page = Page { needs_key, ..OPEN };
            let html = page.html();
            for (client, line) in paste::lines(page.name, page.url, needs_key.then_some(paste::PLACEHOLDER)) {
                assert!(html.contains(client) && html.contains(&escaped(&line)), "{client} is not in {html}");
            }
            assert_eq!(html.contains("Bearer YOUR_API_KEY"), needs_key);
        }
        let html = Page { logs_in: true, ..OPEN }.html();
        assert!(html.contains("log in") && !html.contains("YOUR_API_KEY") && !html.contains("No key is needed"));
    }

    #[test]
    fn the_policy_names_the_style_and_the_page_needs_nothing_else() {
        let digest = STANDARD.encode(Sha256::digest(STYLE));
        assert!(POLICY.contains(&format!("style-src 'sha256-{digest}'")), "the style's digest is {digest}");
        let html = OPEN.html();
        for loaded in ["<script", "<link", "<img", "<form", "style=\"", "url(", "@import", "onclick"] {
            assert!(!html.contains(loaded), "{loaded}");
        }
        assert!(!STYLE.contains("</"), "the style must not end its element");
        let response = OPEN.into_response();
        assert_eq!(response.headers()["content-security-policy"], POLICY);
        assert_eq!(response.headers()["cache-control"], "no-store");
    }

    #[test]
    fn a_hostile_url_stays_text() {
        let url = "http://a/\"><script>alert(1)</script>'$(reboot)&";
        let page = Page { url, ..OPEN };
        let html = page.html();
        assert!(!html.contains("<script") && !html.contains("/\">"), "{html}");
    }

    proptest! {
        #[test]
        fn escaping_leaves_no_markup_and_loses_nothing(text in any::<String>()) {
            let html = escaped(&text);
            prop_assert!(!html.contains(['<', '>', '"', '\'']));
            let back = html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&#39;", "'").replace("&amp;", "&");
            prop_assert_eq!(back, text);
        }
    }
}
