//! What to paste into each client so that it connects: the one wording that start-up output and the page share.

/// The `Authorization` value that stands where the reader's own key belongs.
pub const PLACEHOLDER: &str = "Bearer YOUR_API_KEY";

/// Every client with what it takes, in the order they are shown. `authorization` is the value of the header the
/// endpoint asks for, if it asks.
#[must_use]
pub fn lines(name: &str, url: &str, authorization: Option<&str>) -> [(&'static str, String); 3] {
    let (json_name, json_url) = (json_string(name), json_string(url));
    let header = authorization
        .map_or_else(String::new, |value| format!(r#","headers":{{"Authorization":{}}}"#, json_string(value)));
    let option = authorization.map_or_else(String::new, |value| {
        format!(" --header {}", shell_double_quoted(&format!("Authorization: {value}")))
    });
    let vs_code = format!(r#"{{"name":{json_name},"type":"http","url":{json_url}{header}}}"#);
    [
        ("Claude Code", format!("claude mcp add --transport http {} {}{option}", shell_word(name), shell_word(url))),
        ("VS Code", format!("code --add-mcp {}", shell_quoted(&vs_code))),
        ("any client", format!(r#"{{"mcpServers":{{{json_name}:{{"type":"http","url":{json_url}{header}}}}}}}"#)),
    ]
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

/// In double quotes, which are what other shells than POSIX ones take too.
fn shell_double_quoted(text: &str) -> String {
    let mut word = String::from("\"");
    for character in text.chars() {
        if matches!(character, '"' | '\\' | '$' | '`') {
            word.push('\\');
        }
        word.push(character);
    }
    word.push('"');
    word
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{PLACEHOLDER, lines, shell_double_quoted, shell_word};

    #[test]
    fn an_open_endpoint_needs_no_header() {
        let lines = lines("everything", "http://127.0.0.1:8080/mcp", None);
        assert_eq!(
            lines.map(|(_, line)| line),
            [
                "claude mcp add --transport http everything http://127.0.0.1:8080/mcp",
                r#"code --add-mcp '{"name":"everything","type":"http","url":"http://127.0.0.1:8080/mcp"}'"#,
                r#"{"mcpServers":{"everything":{"type":"http","url":"http://127.0.0.1:8080/mcp"}}}"#,
            ]
        );
    }

    #[test]
    fn a_closed_one_gets_the_header_everywhere() {
        let [claude, vs_code, any] = lines("a", "http://h/mcp", Some(PLACEHOLDER)).map(|(_, line)| line);
        assert!(claude.ends_with(r#"http://h/mcp --header "Authorization: Bearer YOUR_API_KEY""#), "{claude}");
        assert!(vs_code.contains(r#","headers":{"Authorization":"Bearer YOUR_API_KEY"}}'"#), "{vs_code}");
        let any: serde_json::Value = serde_json::from_str(&any).expect("it is JSON");
        assert_eq!(any["mcpServers"]["a"]["headers"]["Authorization"], PLACEHOLDER);
    }

    #[test]
    fn a_hostile_url_stays_text() {
        let url = "http://a/\"><script>alert(1)</script>'$(reboot)&";
        let [claude, vs_code, any] = lines("a", url, None).map(|(_, line)| line);
        assert!(claude.ends_with(r#"'http://a/"><script>alert(1)</script>'\''$(reboot)&'"#), "{claude}");
        assert!(vs_code.contains(r"'\''$(reboot)"), "{vs_code}");
        let any: serde_json::Value = serde_json::from_str(&any).expect("it is JSON");
        assert_eq!(any["mcpServers"]["a"]["url"], url);
        assert_eq!(shell_double_quoted(r#"a"$b`c\"#), r#""a\"\$b\`c\\""#);
    }

    proptest! {
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
}
