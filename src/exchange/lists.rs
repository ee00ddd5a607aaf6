//! What a shared child lists, as digests: whether another process lists the same (2025-11-25 tools, resources, prompts;
//! List Changed Notification).

use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::exchange::greeting::Greeting;

/// Entries of a list that are compared, and pages they may come in; a longer one counts as another each time.
const MOST: usize = 1_000;

/// A list that children may tell changes of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// `tools/list`
    Tools,
    /// `resources/list`
    Resources,
    /// `prompts/list`
    Prompts,
}

impl List {
    const ALL: [List; 3] = [List::Tools, List::Resources, List::Prompts];

    /// The capability it comes with, and the first part of its methods.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            List::Tools => "tools",
            List::Resources => "resources",
            List::Prompts => "prompts",
        }
    }

    /// The list a notification says has changed.
    #[must_use]
    pub fn changed(method: &str) -> Option<List> {
        let list = method.strip_prefix("notifications/")?.strip_suffix("/list_changed")?;
        List::ALL.into_iter().find(|known| known.name() == list)
    }
}

/// The digest of a whole list.
pub type Digest = [u8; 32];

/// Adds up the pages of a list.
#[derive(Default)]
pub struct Pages {
    hash: Sha256,
    entries: usize,
    pages: usize,
}

/// What follows a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Another page, under this cursor as it is spelled.
    Page(Box<str>),
    /// Nothing.
    End(Digest),
    /// The list cannot be compared.
    Unknown,
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow, alias = "tools", alias = "resources", alias = "prompts")]
    entries: Vec<&'a RawValue>,
    #[serde(borrow, rename = "nextCursor")]
    next: Option<&'a RawValue>,
}

impl Pages {
    /// Takes the result of a request for a page. How entries are spread over pages makes no difference.
    pub fn take(&mut self, result: &[u8]) -> Next {
        let Ok(page) = serde_json::from_slice::<Page<'_>>(result) else { return Next::Unknown };
        self.entries += page.entries.len();
        self.pages += 1;
        for entry in page.entries {
            self.hash.update(entry.get().len().to_le_bytes());
            self.hash.update(entry.get());
        }
        match page.next {
            _ if self.entries > MOST => Next::Unknown,
            Some(cursor) if self.pages < MOST => Next::Page(cursor.get().into()),
            Some(_) => Next::Unknown,
            None => Next::End(std::mem::take(&mut self.hash).finalize().into()),
        }
    }
}

/// What is known of one list.
#[derive(Debug, Default)]
struct Known {
    /// A process has said that it tells of changes.
    is_told: bool,
    /// What sessions may have read.
    digest: Option<Digest>,
    /// The process's own list has not been read, or has changed since.
    is_stale: bool,
    /// What sessions may have read is another process's list.
    is_due: bool,
    /// Changes so far: what was being read meanwhile may be what was there before.
    changes: u64,
}

/// A list that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Which.
    pub list: List,
    /// Sessions wait to be told whether it is another one.
    pub is_due: bool,
    change: u64,
}

/// The lists of one shared child, whichever process is behind it.
#[derive(Debug, Default)]
pub struct Lists {
    known: [Known; 3],
}

impl Lists {
    /// A process has made its handshake. Gives the lists whose changes are to be told at once: what the process before
    /// listed is not known.
    pub fn begin(&mut self, greeting: &Greeting, is_another: bool) -> Vec<List> {
        let mut unknown = Vec::new();
        for list in List::ALL {
            let known = &mut self.known[list as usize];
            known.is_told |= greeting.tells_of_changes(list.name());
            known.changes += 1;
            known.is_stale = known.is_told;
            if is_another && known.is_told {
                known.is_due = known.digest.is_some();
                if !known.is_due {
                    unknown.push(list);
                }
            }
        }
        unknown
    }

    /// The process says that a list has changed, and everybody is told so.
    pub fn change(&mut self, list: List) {
        let known = &mut self.known[list as usize];
        known.changes += 1;
        known.digest = None;
        known.is_due = false;
        known.is_stale = known.is_told;
    }

    /// A list that is to be read, one that sessions wait for first.
    #[must_use]
    pub fn next(&self) -> Option<Stale> {
        let all = List::ALL.into_iter().map(|list| (list, &self.known[list as usize]));
        let stale = all.filter(|(_, known)| known.is_stale).min_by_key(|(_, known)| !known.is_due);
        stale.map(|(list, known)| Stale { list, is_due: known.is_due, change: known.changes })
    }

    /// A list was read, or could not be. Whether sessions are to be told that it is another one; `None` if it changed
    /// meanwhile, and is to be read again.
    pub fn learn(&mut self, stale: Stale, digest: Option<Digest>) -> Option<bool> {
        let known = &mut self.known[stale.list as usize];
        if known.changes != stale.change {
            return None;
        }
        let is_other = known.is_due && (digest.is_none() || known.digest != digest);
        (known.digest, known.is_stale, known.is_due) = (digest, false, false);
        Some(is_other)
    }
}

#[cfg(test)]
mod tests {
    use super::{List, Lists, MOST, Next, Pages};
    use crate::exchange::greeting::Greeting;
    use crate::mcp::message::Message;
    use crate::mcp::scan::Author;
    use bytes::Bytes;

    fn greeting(capabilities: &str) -> Greeting {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":9,"result":{{"protocolVersion":"2025-11-25","capabilities":{capabilities}}}}}"#
        );
        Greeting::read(&Message::parse(Bytes::from(text), Author::Child).expect("an answer")).expect("a good one")
    }

    const TOOLS: &str = r#"{"tools":{"listChanged":true},"prompts":{}}"#;

    fn digest(pages: &[&str]) -> Next {
        let mut all = Pages::default();
        pages.iter().map(|page| all.take(page.as_bytes())).last().expect("a page")
    }

    #[test]
    fn pages_make_no_difference_and_entries_do() {
        let one = digest(&[r#"{"tools":[{"a":1},{"b":2}],"_meta":{"x":1}}"#]);
        assert!(matches!(one, Next::End(_)));
        assert_eq!(digest(&[r#"{"nextCursor":"\u0061","tools":[{"a":1}]}"#]), Next::Page(r#""\u0061""#.into()));
        assert_eq!(digest(&[r#"{"tools":[{"a":1}],"nextCursor":"c"}"#, r#"{"tools":[{"b":2}]}"#]), one);
        for other in [r#"{"tools":[{"b":2},{"a":1}]}"#, r#"{"tools":[{"a":1}]}"#, r#"{"tools":[{"a":1},{"b":2.0}]}"#] {
            assert_ne!(digest(&[other]), one, "{other}");
        }
        for none in ["{}", "[]", r#"{"tools":{}}"#, "null"] {
            assert_eq!(digest(&[none]), Next::Unknown, "{none}");
        }
        let long = format!(r#"{{"prompts":[{}0]}}"#, "0,".repeat(MOST));
        assert_eq!(digest(&[&long]), Next::Unknown);
        let empty = r#"{"resources":[],"nextCursor":"c"}"#;
        assert!(matches!(digest(&[empty; MOST - 1]), Next::Page(_)));
        assert_eq!(digest(&[empty; MOST]), Next::Unknown);
    }

    #[test]
    fn tells_of_what_differs() {
        let mut lists = Lists::default();
        assert!(lists.begin(&greeting(TOOLS), false).is_empty());
        let first = lists.next().expect("tools");
        assert_eq!((first.list, first.is_due), (List::Tools, false));
        assert_eq!(lists.learn(first, Some([1; 32])), Some(false), "there was none before");
        assert_eq!(lists.next(), None, "of prompts no changes are told");
        for (digest, is_told) in [([1; 32], false), ([2; 32], true), ([2; 32], false)] {
            assert!(lists.begin(&greeting(TOOLS), true).is_empty());
            let stale = lists.next().expect("tools");
            assert!(stale.is_due);
            assert_eq!(lists.learn(stale, Some(digest)), Some(is_told));
        }
        lists.begin(&greeting(TOOLS), true);
        let stale = lists.next().expect("tools");
        assert_eq!(lists.learn(stale, None), Some(true), "it cannot be compared");
        assert_eq!(lists.begin(&greeting("{}"), true), [List::Tools], "nor can the next");
        let stale = lists.next().expect("tools");
        lists.learn(stale, Some([3; 32]));
        let both = greeting(r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true}}"#);
        lists.begin(&both, true);
        assert!(lists.next().is_some_and(|stale| stale.list == List::Tools && stale.is_due));
        lists.change(List::Tools);
        assert!(lists.next().is_some_and(|stale| stale.list == List::Tools), "nobody has read the prompts");
        lists.begin(&both, false);
        let tools = lists.next().expect("tools");
        lists.learn(tools, None);
        let prompts = lists.next().expect("prompts");
        lists.learn(prompts, Some([4; 32]));
        assert_eq!(lists.begin(&both, true), [List::Tools]);
        assert!(lists.next().is_some_and(|stale| stale.list == List::Prompts), "who is waited for is first");
    }

    #[test]
    fn what_changes_meanwhile_is_read_again() {
        let mut lists = Lists::default();
        lists.begin(&greeting(TOOLS), false);
        let before = lists.next().expect("tools");
        lists.learn(before, Some([1; 32]));
        lists.begin(&greeting(TOOLS), true);
        let before = lists.next().expect("tools");
        lists.change(List::Tools);
        assert_eq!(lists.learn(before, Some([2; 32])), None, "everybody has been told");
        let again = lists.next().expect("it is read again");
        assert_eq!((again.is_due, lists.learn(again, Some([3; 32]))), (false, Some(false)));
        assert_eq!(lists.next(), None);
        assert_eq!(List::changed("notifications/prompts/list_changed"), Some(List::Prompts));
        assert_eq!(List::changed("notifications/roots/list_changed"), None);
    }
}
