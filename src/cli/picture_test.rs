use std::path::PathBuf;
use std::time::Duration;

use super::Picture;
use crate::auth::{NewKey, RunKey};
use crate::gateway::{Bound, Catalogue, Diagnosis, Endpoint};

fn picture(bound: &str, key: &RunKey) -> Picture {
    let auth = if key.hash().is_some() { "api_key" } else { "none" };
    let endpoint = Endpoint {
        name: "everything".to_owned(),
        url: format!("http://{bound}/mcp"),
        auth: auth.to_owned(),
        mode: "session",
        max: Some(64),
    };
    let address = Bound::Tcp(bound.parse().expect("an address"));
    Picture::new(endpoint, &[address], None, key, Vec::new(), "npx".to_owned())
}

fn catalogue() -> Catalogue {
    Catalogue {
        name: "mcp-servers/everything".to_owned(),
        version: "2.0.0".to_owned(),
        revision: "2025-11-25",
        tools: Some((0..13).map(|at| format!("tool-{at}")).collect()),
        resources: Some(1),
        prompts: None,
        took: Duration::ZERO,
    }
}

#[test]
fn a_start_on_this_machine_shows_everything_to_paste() {
    let picture = picture("127.0.0.1:8080", &RunKey::None);
    assert_eq!(
        picture.ready(&catalogue(), Duration::from_millis(11_240)),
        "  everything   ready in 11.2 s   mcp-servers/everything 2.0.0   2025-11-25   13 tools, 1 resource

  URL          http://127.0.0.1:8080/mcp     one child per session, at most 64     no authentication, this machine only

  Claude Code  claude mcp add --transport http everything http://127.0.0.1:8080/mcp
  VS Code      code --add-mcp '{\"name\":\"everything\",\"type\":\"http\",\"url\":\"http://127.0.0.1:8080/mcp\"}'
  any client   {\"mcpServers\":{\"everything\":{\"type\":\"http\",\"url\":\"http://127.0.0.1:8080/mcp\"}}}

  For other machines: gangway run --listen 0.0.0.0:8080 … (makes an API key). Ctrl-C stops.
"
    );
    assert_eq!(picture.starting(Duration::from_millis(900)), "  everything   starting npx …");
    assert_eq!(
        picture.starting(Duration::from_secs(9)),
        "  everything   starting npx … 9 s (a first start may download)"
    );
}

#[test]
fn a_key_that_was_made_is_shown_and_one_that_was_given_is_not() {
    let text = NewKey::generate().expect("random numbers").reveal().to_owned();
    let key = || NewKey::from_text(text.clone()).expect("it has its form");
    let made = picture("192.0.2.7:8080", &RunKey::Made(key())).ready(&catalogue(), Duration::ZERO);
    assert_eq!(made.matches(&format!("Bearer {text}")).count(), 3, "{made}");
    assert!(!made.contains("For other machines"), "{made}");
    let given = picture("192.0.2.7:8080", &RunKey::Given(key())).ready(&catalogue(), Duration::ZERO);
    assert!(!given.contains(&text) && given.contains("Bearer YOUR_API_KEY"), "{given}");
}

#[test]
fn every_interface_becomes_an_address_that_can_be_typed() {
    let text = picture("0.0.0.0:8080", &RunKey::None).ready(&catalogue(), Duration::ZERO);
    assert!(text.contains("open to everybody who reaches it"), "{text}");
    assert!(text.contains(":8080/mcp     one child"), "{text}");
}

#[test]
fn no_client_types_a_unix_socket() {
    let endpoint = Endpoint {
        name: "a".to_owned(),
        url: "unix:/run/g.sock /mcp".to_owned(),
        auth: "none".to_owned(),
        mode: "session",
        max: None,
    };
    let bound = [Bound::Unix(PathBuf::from("/run/g.sock"))];
    let picture = Picture::new(endpoint, &bound, None, &RunKey::None, Vec::new(), "a".to_owned());
    let text = picture.ready(&Catalogue::default(), Duration::ZERO);
    assert!(text.contains("URL          unix:/run/g.sock /mcp     one child per session     no auth"), "{text}");
    assert!(!text.contains("claude mcp add"), "{text}");
}

#[test]
fn what_a_child_says_cannot_move_the_cursor() {
    let diagnosis = Diagnosis {
        what: "it ended before it answered: exit status 1".to_owned(),
        stderr: vec!["\x1b[2Jgone".to_owned()],
        hint: Some("on stdout it wrote \"\x07\"".to_owned()),
    };
    let picture = picture("127.0.0.1:8080", &RunKey::None);
    let text = picture.failed(&diagnosis, Duration::from_millis(840));
    assert!(text.contains("did not start: it ended before it answered: exit status 1 (after 0.8 s)"), "{text}");
    assert!(text.contains("  | \\u001b[2Jgone\n") && text.contains("Hint         on stdout"), "{text}");
    let odd = Catalogue { name: "\x1b]0;x\x07".to_owned(), ..catalogue() };
    assert!(!picture.ready(&odd, Duration::ZERO).contains(['\x1b', '\x07']));
}
