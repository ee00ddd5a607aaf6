//! What the sessions on one shared child wish of it, and what therefore is to be in effect there.

use std::collections::{HashMap, HashSet};

/// How severe a log message is, least first (2025-11-25 logging, Log Levels; RFC 5424 section 6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// `debug`
    Debug,
    /// `info`
    Info,
    /// `notice`
    Notice,
    /// `warning`
    Warning,
    /// `error`
    Error,
    /// `critical`
    Critical,
    /// `alert`
    Alert,
    /// `emergency`
    Emergency,
}

const LEVELS: [(&str, Level); 8] = [
    ("debug", Level::Debug),
    ("info", Level::Info),
    ("notice", Level::Notice),
    ("warning", Level::Warning),
    ("error", Level::Error),
    ("critical", Level::Critical),
    ("alert", Level::Alert),
    ("emergency", Level::Emergency),
];

impl Level {
    /// The level of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Level> {
        LEVELS.iter().find(|(known, _)| *known == name).map(|(_, level)| *level)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        LEVELS.iter().find(|(_, level)| *level == self).map_or("info", |(name, _)| name)
    }
}

/// What a session hears that set no level: what another asked for is not meant for it.
const UNASKED: Level = Level::Info;

/// Levels and subscriptions, by session.
#[derive(Debug, Default)]
pub struct Wishes {
    levels: HashMap<u64, Level>,
    subscribers: HashMap<Box<str>, HashSet<u64>>,
}

impl Wishes {
    /// A session sets its level. Gives the child's where that changes: the most verbose anybody wishes.
    pub fn set_level(&mut self, session: u64, level: Level) -> Option<Level> {
        let before = self.level();
        self.levels.insert(session, level);
        self.level().filter(|now| Some(*now) != before)
    }

    /// The level at the child; `None` while nobody set one.
    #[must_use]
    pub fn level(&self) -> Option<Level> {
        self.levels.values().min().copied()
    }

    /// Whether a message of this level is for this session.
    #[must_use]
    pub fn hears(&self, session: u64, level: Level) -> bool {
        level >= self.levels.get(&session).copied().unwrap_or(UNASKED)
    }

    /// A session is subscribed, as the child said.
    pub fn subscribe(&mut self, session: u64, uri: &str) {
        self.subscribers.entry(uri.into()).or_default().insert(session);
    }

    /// A session subscribes to what others are subscribed to; whether they are.
    pub fn join(&mut self, session: u64, uri: &str) -> bool {
        self.subscribers.get_mut(uri).is_some_and(|subscribers| {
            subscribers.insert(session);
            true
        })
    }

    /// A session wants no more updates. Whether the child must be told: nobody else does.
    pub fn unsubscribe(&mut self, session: u64, uri: &str) -> bool {
        let Some(subscribers) = self.subscribers.get_mut(uri) else { return false };
        let was = subscribers.remove(&session);
        let last = subscribers.is_empty();
        if last {
            self.subscribers.remove(uri);
        }
        was && last
    }

    /// A session is over. Gives the URIs nobody is subscribed to any more, and the child's level where that changes.
    pub fn leave(&mut self, session: u64) -> (Vec<Box<str>>, Option<Level>) {
        let before = self.level();
        self.levels.remove(&session);
        let mut left = Vec::new();
        self.subscribers.retain(|uri, subscribers| {
            if subscribers.remove(&session) && subscribers.is_empty() {
                left.push(uri.clone());
                return false;
            }
            true
        });
        (left, self.level().filter(|now| Some(*now) != before))
    }

    /// Everything anybody is subscribed to.
    pub fn uris(&self) -> impl Iterator<Item = &str> {
        self.subscribers.keys().map(|uri| &**uri)
    }

    /// The sessions an update of `uri` is for: an update may name a part of what was subscribed to (2025-11-25
    /// resources, Subscriptions).
    #[must_use]
    pub fn subscribers(&self, uri: &str) -> HashSet<u64> {
        let concerned = self.subscribers.iter().filter(|(subscribed, _)| is_within(uri, subscribed));
        concerned.flat_map(|(_, subscribers)| subscribers.iter().copied()).collect()
    }
}

/// Whether `uri` is `whole` or a part of it.
fn is_within(uri: &str, whole: &str) -> bool {
    let Some(rest) = uri.strip_prefix(whole) else { return false };
    rest.is_empty() || whole.ends_with('/') || rest.starts_with(['/', '?', '#'])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Level, Wishes};

    #[test]
    fn the_child_gets_the_most_verbose_level_and_each_session_its_own() {
        let mut wishes = Wishes::default();
        assert_eq!(wishes.set_level(1, Level::Error), Some(Level::Error));
        assert_eq!(wishes.set_level(2, Level::Debug), Some(Level::Debug));
        assert_eq!(wishes.set_level(1, Level::Warning), None);
        assert!(!wishes.hears(1, Level::Info) && wishes.hears(1, Level::Error) && wishes.hears(2, Level::Debug));
        assert!(!wishes.hears(3, Level::Debug) && wishes.hears(3, Level::Info));
        assert_eq!(wishes.leave(2), (vec![], Some(Level::Warning)));
        assert_eq!(wishes.leave(1), (vec![], None), "nobody wishes anything");
        for (name, level) in super::LEVELS {
            assert_eq!((Level::named(name), level.name()), (Some(level), name));
        }
        assert_eq!(Level::named("loud"), None);
    }

    #[test]
    fn the_first_subscribes_and_the_last_unsubscribes() {
        let mut wishes = Wishes::default();
        assert!(!wishes.join(1, "file:///a"), "the child must be asked");
        wishes.subscribe(1, "file:///a");
        assert!(wishes.join(2, "file:///a"));
        wishes.subscribe(2, "file:///b/");
        assert!(!wishes.unsubscribe(1, "file:///a"));
        assert!(!wishes.unsubscribe(1, "file:///a"), "it is not subscribed any more");
        assert_eq!(wishes.subscribers("file:///a"), HashSet::from([2]));
        assert_eq!(wishes.subscribers("file:///a/part"), HashSet::from([2]));
        assert_eq!(wishes.subscribers("file:///b/part"), HashSet::from([2]));
        assert_eq!(wishes.subscribers("file:///ab"), HashSet::new());
        let (mut left, _) = wishes.leave(2);
        left.sort();
        assert_eq!(left, ["file:///a".into(), "file:///b/".into()]);
        assert_eq!(wishes.uris().count(), 0);
    }
}
