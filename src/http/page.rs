//! The page a browser sees at an endpoint: what this is and what to paste where. It shows no key,
//! runs no script and fetches nothing.

use http::Response;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};

use super::body::Body;

/// What the page tells.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Name of the server.
    pub name: &'a str,
    /// The endpoint's full URL, as clients type it.
    pub url: &'a str,
    /// Whether a key is asked for.
    pub needs_key: bool,
}

/// Stands where the reader's key belongs.
const KEY: &str = "Bearer YOUR_API_KEY";

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
        for (client, line) in self.lines() {
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

    /// What to paste for each client, as the start-up lines of `run` have it.
    fn lines(&self) -> [(&'static str, String); 3] {
        let (name, url) = (json_string(self.name), json_string(self.url));
        let header = if self.needs_key { format!(r#","headers":{{"Authorization":"{KEY}"}}"#) } else { String::new() };
        let option = if self.needs_key { format!(" --header \"Authorization: {KEY}\"") } else { String::new() };
        let vs_code = format!(r#"{{"name":{name},"type":"http","url":{url}{header}}}"#);
        [
            (
                "Claude Code",
                format!("claude mcp add --transport http {} {}{option}", shell_word(self.name), shell_word(self.url)),
            ),
            ("VS Code", format!("code --add-mcp {}", shell_quoted(&vs_code))),
            ("Any client", format!(r#"{{"mcpServers":{{{name}:{{"type":"http","url":{url}{header}}}}}}}"#)),
        ]
    }
}

fn json_string(text: &str) -> String {
    serde_json::to_string(text).expect("a string is always JSON")
}

/// `text` as one word of a POSIX shell, bare where nothing in it means anything there.
fn shell_word(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/:@%+,=".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) { text.to_owned() } else { shell_quoted(text) }
}

fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
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
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
    use sha2::{Digest, Sha256};

    use super::{POLICY, Page, STYLE, escaped, shell_word};

    const OPEN: Page<'_> = Page { name: "everything", url: "http://127.0.0.1:8080/mcp", needs_key: false };

    fn lines(page: Page<'_>) -> Vec<String> {
        page.lines().into_iter().map(|(_, line)| line).collect()
    }

    #[test]
    fn the_lines_are_those_of_the_start_up_output() {
        assert_eq!(
            lines(OPEN),
            [
                "claude mcp add --transport http everything http://127.0.0.1:8080/mcp",
                r#"code --add-mcp '{"name":"everything","type":"http","url":"http://127.0.0.1:8080/mcp"}'"#,
                r#"{"mcpServers":{"everything":{"type":"http","url":"http://127.0.0.1:8080/mcp"}}}"#,
            ]
        );
        for line in lines(Page { needs_key: true, ..OPEN }) {
            assert!(line.contains("Bearer YOUR_API_KEY"), "{line}");
        }
    }

    #[test]
    fn the_policy_names_the_style_and_the_page_needs_nothing_else() {
        let digest = base64(&Sha256::digest(STYLE));
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
        let [claude, vs_code, any] = page.lines().map(|(_, line)| line);
        assert!(claude.ends_with(r#"'http://a/"><script>alert(1)</script>'\''$(reboot)&'"#), "{claude}");
        assert!(vs_code.contains(r"'\''$(reboot)"), "{vs_code}");
        let any: serde_json::Value = serde_json::from_str(&any).expect("it is JSON");
        assert_eq!(any["mcpServers"]["everything"]["url"], url);
    }

    proptest! {
        #[test]
        fn escaping_leaves_no_markup_and_loses_nothing(text in any::<String>()) {
            let html = escaped(&text);
            prop_assert!(!html.contains(['<', '>', '"', '\'']));
            let back = html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&#39;", "'").replace("&amp;", "&");
            prop_assert_eq!(back, text);
        }

        #[test]
        fn a_shell_reads_the_word_back(text in "[ -~]{0,24}") {
            let word = shell_word(&text);
            let back = match word.strip_prefix('\'').and_then(|word| word.strip_suffix('\'')) {
                Some(quoted) => quoted.replace(r"'\''", "'"),
                None => word,
            };
            prop_assert_eq!(back, text);
        }
    }

    /// Base64 of RFC 4648 section 4.
    fn base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        bytes
            .chunks(3)
            .flat_map(|chunk| {
                let bits = (0..3).fold(0_u32, |bits, at| bits << 8 | u32::from(*chunk.get(at).unwrap_or(&0)));
                (0..4).map(move |at| {
                    let letter = LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
                    if at > chunk.len() { '=' } else { char::from(letter) }
                })
            })
            .collect()
    }
}
