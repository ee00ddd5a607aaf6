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

/// What a session hears that set no level, where others did: a session that wants less costs the others nothing, and
/// what one asked for that wants more is not meant for them.
const UNASKED: Level = Level::Info;

/// How a request for a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subscribed {
    /// The child said yes.
    Yes,
    /// The child said no, or was never asked.
    No,
    /// Nobody waited for what it said.
    Unknown,
}

/// One URI at the child.
#[derive(Debug, Default)]
struct Subscription {
    /// Who hears of it.
    sessions: HashSet<u64>,
    /// Whose request for it is with the child; one that sent two stands here twice.
    asking: Vec<u64>,
    /// The child said yes to one of them.
    is_on: bool,
}

impl Subscription {
    fn is_unwanted(&self) -> bool {
        self.sessions.is_empty() && self.asking.is_empty()
    }
}

/// What one session wishes.
#[derive(Debug, Default)]
struct Member {
    /// The level it set.
    level: Option<Level>,
    /// What it is subscribed to, or has asked to be: sessions come and go without a look at what all others wish.
    uris: HashSet<Box<str>>,
}

/// Levels and subscriptions, by session.
#[derive(Debug, Default)]
pub struct Wishes {
    members: HashMap<u64, Member>,
    /// How many hear each level and those above it; who set none stands at [`UNASKED`].
    hearers: [usize; LEVELS.len()],
    /// How many set a level.
    asked: usize,
    /// The level the child was told last.
    told: Option<Level>,
    by_uri: HashMap<Box<str>, Subscription>,
}

impl Wishes {
    /// A session begins, without a wish. Gives the level the child is to be told, if that changes.
    pub fn enter(&mut self, session: u64) -> Option<Level> {
        self.forget_level(session);
        self.members.insert(session, Member::default());
        self.hearers[UNASKED as usize] += 1;
        self.retune()
    }

    /// Takes a session's level out of the counts.
    fn forget_level(&mut self, session: u64) {
        let Some(member) = self.members.get(&session) else { return };
        self.hearers[member.level.unwrap_or(UNASKED) as usize] -= 1;
        self.asked -= usize::from(member.level.is_some());
    }

    /// A session sets its level. Gives what the child is to be told, if that changes.
    pub fn set_level(&mut self, session: u64, level: Level) -> Option<Level> {
        self.forget_level(session);
        if let Some(member) = self.members.get_mut(&session) {
            member.level = Some(level);
            self.hearers[level as usize] += 1;
            self.asked += 1;
        }
        self.retune()
    }

    /// The most verbose level anybody hears; `None` while nobody set one, and once nobody is there.
    fn wanted(&self) -> Option<Level> {
        let anybody = self.told.is_some() || self.asked > 0;
        let most = self.hearers.iter().position(|hearers| *hearers > 0).filter(|_| anybody)?;
        LEVELS.get(most).map(|(_, level)| *level)
    }

    /// The level the child is to be told, if that is not the one it was told last; it counts as told.
    pub fn retune(&mut self) -> Option<Level> {
        let wanted = self.wanted().filter(|wanted| self.told != Some(*wanted));
        self.told = wanted.or(self.told);
        wanted
    }

    /// The child could not be told its level: it is told with the next change of any.
    pub fn not_told(&mut self) {
        self.told = None;
    }

    /// Another process takes the child's place. Gives its level, and what it is to be subscribed to.
    pub fn begin_anew(&mut self) -> (Option<Level>, Vec<Box<str>>) {
        self.told = None;
        // Requests that were with the one before have got their answer.
        let kept = self.by_uri.iter().filter(|(_, it)| !it.sessions.is_empty());
        let uris = kept.map(|(uri, _)| uri.clone()).collect();
        (self.retune(), uris)
    }

    /// Another process refused a subscription of the one before. Gives the sessions that had it.
    pub fn lose(&mut self, uri: &str) -> HashSet<u64> {
        let Some(subscription) = self.by_uri.get_mut(uri) else { return HashSet::new() };
        subscription.is_on = false;
        let sessions = std::mem::take(&mut subscription.sessions);
        for session in sessions.iter().filter(|session| !subscription.asking.contains(session)) {
            if let Some(member) = self.members.get_mut(session) {
                member.uris.remove(uri);
            }
        }
        self.drop_unwanted(uri);
        sessions
    }

    /// Whether a message of this level is for this session.
    #[must_use]
    pub fn hears(&self, session: u64, level: Level) -> bool {
        level >= self.members.get(&session).and_then(|member| member.level).unwrap_or(UNASKED)
    }

    /// A session subscribes. Whether it is subscribed with that: the child has said yes to another. Else the child
    /// must be asked, and [`Wishes::answered`] follows.
    pub fn subscribe(&mut self, session: u64, uri: &str) -> bool {
        // Who has left meanwhile hears nothing either way.
        let Some(member) = self.members.get_mut(&session) else { return true };
        member.uris.insert(uri.into());
        let subscription = self.by_uri.entry(uri.into()).or_default();
        if subscription.is_on {
            subscription.sessions.insert(session);
        } else {
            subscription.asking.push(session);
        }
        subscription.is_on
    }

    /// A session's request for a subscription ended. Whether the child is to be told to unsubscribe: nobody wants any
    /// more what it may have begun.
    pub fn answered(&mut self, session: u64, uri: &str, how: Subscribed) -> bool {
        let Some(subscription) = self.by_uri.get_mut(uri) else { return how != Subscribed::No };
        let asked = subscription.asking.iter().position(|asking| *asking == session);
        subscription.is_on |= how == Subscribed::Yes;
        if let Some(at) = asked {
            subscription.asking.swap_remove(at);
            if how == Subscribed::Yes {
                subscription.sessions.insert(session);
            }
        }
        let is_its = subscription.sessions.contains(&session) || subscription.asking.contains(&session);
        if let Some(member) = self.members.get_mut(&session).filter(|_| !is_its) {
            member.uris.remove(uri);
        }
        let may_be_on = subscription.is_on || how == Subscribed::Unknown;
        self.drop_unwanted(uri) && may_be_on
    }

    fn drop_unwanted(&mut self, uri: &str) -> bool {
        let unwanted = self.by_uri.get(uri).is_some_and(Subscription::is_unwanted);
        if unwanted {
            self.by_uri.remove(uri);
        }
        unwanted
    }

    /// A session wants no more updates. Whether the child is to be told: nobody else does.
    pub fn unsubscribe(&mut self, session: u64, uri: &str) -> bool {
        if let Some(member) = self.members.get_mut(&session) {
            member.uris.remove(uri);
        }
        let Some(subscription) = self.by_uri.get_mut(uri) else { return false };
        subscription.sessions.remove(&session);
        // What is being asked is taken back when its answer comes.
        subscription.asking.retain(|asking| *asking != session);
        let is_on = subscription.is_on;
        self.drop_unwanted(uri) && is_on
    }

    /// A session is over. Gives what the child is to be told to unsubscribe from, and its level if that changes.
    pub fn leave(&mut self, session: u64) -> (Vec<Box<str>>, Option<Level>) {
        self.forget_level(session);
        let member = self.members.remove(&session).unwrap_or_default();
        let mut left = Vec::new();
        for uri in member.uris {
            let Some(subscription) = self.by_uri.get_mut(&uri) else { continue };
            let asked = subscription.asking.contains(&session);
            subscription.sessions.remove(&session);
            subscription.asking.retain(|asking| *asking != session);
            let may_be_on = subscription.is_on || asked;
            if self.drop_unwanted(&uri) && may_be_on {
                left.push(uri);
            }
        }
        (left, self.retune())
    }

    /// Whether anybody wants updates of this URI.
    #[must_use]
    pub fn wants(&self, uri: &str) -> bool {
        self.by_uri.contains_key(uri)
    }

    /// The sessions an update of `uri` is for: an update may name a part of what was subscribed to (2025-11-25
    /// resources, Subscriptions).
    #[must_use]
    pub fn subscribers(&self, uri: &str) -> HashSet<u64> {
        let concerned = self.by_uri.iter().filter(|(subscribed, _)| is_within(uri, subscribed));
        concerned.flat_map(|(_, subscription)| subscription.sessions.iter().copied()).collect()
    }
}

/// Whether `uri` is `whole` or a part of it.
fn is_within(uri: &str, whole: &str) -> bool {
    let Some(rest) = uri.strip_prefix(whole) else { return false };
    rest.is_empty() || whole.ends_with('/') || rest.starts_with(['/', '?', '#'])
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::{ProptestConfig, any, prop, proptest};

    use super::{Level, Subscribed, Wishes};

    fn of_two() -> Wishes {
        let mut wishes = Wishes::default();
        wishes.enter(1);
        wishes.enter(2);
        wishes
    }

    #[test]
    fn the_child_gets_the_most_verbose_level_and_each_session_its_own() {
        let mut wishes = Wishes::default();
        for session in 1..=3 {
            assert_eq!(wishes.enter(session), None, "nobody set one");
        }
        assert_eq!(wishes.set_level(1, Level::Error), Some(Level::Info), "two of them set none");
        assert_eq!(wishes.set_level(2, Level::Debug), Some(Level::Debug));
        assert_eq!(wishes.set_level(1, Level::Warning), None);
        assert!(!wishes.hears(1, Level::Info) && wishes.hears(1, Level::Error) && wishes.hears(2, Level::Debug));
        assert!(!wishes.hears(3, Level::Debug) && wishes.hears(3, Level::Info));
        assert_eq!(wishes.leave(2), (vec![], Some(Level::Info)));
        assert_eq!(wishes.leave(3), (vec![], Some(Level::Warning)));
        assert_eq!(wishes.begin_anew(), (Some(Level::Warning), vec![]));
        assert_eq!(wishes.leave(1), (vec![], None), "nobody is there");
        assert_eq!(wishes.enter(4), Some(Level::Info), "it is not left at what another wished");
        wishes.not_told();
        assert_eq!(wishes.enter(5), None);
        assert_eq!(wishes.begin_anew(), (None, vec![]), "nobody set one");
        for (name, level) in super::LEVELS {
            assert_eq!((Level::named(name), level.name()), (Some(level), name));
        }
        assert_eq!(Level::named("loud"), None);
    }

    #[test]
    fn the_first_subscribes_and_the_last_unsubscribes() {
        let mut wishes = of_two();
        assert!(!wishes.subscribe(1, "file:///a"), "the child must be asked");
        assert!(!wishes.answered(1, "file:///a", Subscribed::Yes));
        assert!(wishes.subscribe(2, "file:///a"));
        assert!(!wishes.subscribe(2, "file:///b/"));
        assert!(!wishes.answered(2, "file:///b/", Subscribed::Yes));
        assert!(!wishes.unsubscribe(1, "file:///a"));
        assert!(!wishes.unsubscribe(1, "file:///a"), "it is not subscribed any more");
        assert_eq!(wishes.subscribers("file:///a"), HashSet::from([2]));
        assert_eq!(wishes.subscribers("file:///a/part"), HashSet::from([2]));
        assert_eq!(wishes.subscribers("file:///b/part"), HashSet::from([2]));
        assert_eq!(wishes.subscribers("file:///ab"), HashSet::new());
        let (mut left, _) = wishes.leave(2);
        left.sort();
        assert_eq!(left, ["file:///a".into(), "file:///b/".into()]);
        assert!(!wishes.wants("file:///a"));
    }

    #[test]
    fn what_another_process_refuses_is_lost() {
        let mut wishes = of_two();
        for session in [1, 2] {
            wishes.subscribe(session, "a");
            wishes.answered(session, "a", Subscribed::Yes);
        }
        assert_eq!(wishes.begin_anew().1, ["a".into()]);
        assert_eq!(wishes.lose("a"), HashSet::from([1, 2]));
        assert!(!wishes.wants("a") && wishes.lose("a").is_empty() && wishes.begin_anew().1.is_empty());
        assert!(!wishes.unsubscribe(1, "a") && wishes.leave(2).0.is_empty(), "there is nothing to undo");
        assert!(!wishes.subscribe(1, "a"), "the child is asked again");
    }

    #[test]
    fn what_is_taken_back_while_it_is_asked_for_is_undone() {
        let mut wishes = of_two();
        wishes.subscribe(1, "a");
        assert!(!wishes.unsubscribe(1, "a"), "not before the child has said yes");
        assert!(wishes.answered(1, "a", Subscribed::Yes));
        wishes.subscribe(1, "a");
        assert!(!wishes.answered(1, "a", Subscribed::No));
        wishes.subscribe(1, "a");
        assert!(wishes.answered(1, "a", Subscribed::Unknown), "it may have been heard");
        wishes.subscribe(1, "a");
        assert_eq!(wishes.leave(1).0, ["a".into()]);
        assert!(wishes.subscribe(1, "b") && !wishes.wants("b"), "who has left asks the child for nothing");
        wishes.enter(1);
        // Two ask at once, and one is gone before the other has its answer.
        wishes.subscribe(1, "a");
        wishes.subscribe(2, "a");
        assert!(!wishes.answered(1, "a", Subscribed::Yes));
        assert!(!wishes.unsubscribe(1, "a"), "another still asks");
        assert!(!wishes.answered(2, "a", Subscribed::Yes));
        assert_eq!(wishes.subscribers("a"), HashSet::from([2]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        /// A child that does as it is told, in order, ends up subscribed to just what somebody is subscribed to, and at
        /// the most verbose level anybody hears, whenever no request is on its way.
        #[test]
        fn the_child_has_what_the_sessions_wish(steps in prop::collection::vec((any::<u8>(), 0u64..3, 0usize..2), 1..60)) {
            const URIS: [&str; 2] = ["a", "b"];
            let (mut wishes, mut child, mut at) = (Wishes::default(), HashSet::new(), None::<Level>);
            let (mut here, mut asked, mut model) = (HashSet::new(), Vec::new(), HashMap::<u64, HashSet<&str>>::new());
            for (step, session, uri) in steps {
                let (uri, is_here) = (URIS[uri], here.contains(&session));
                match step % 6 {
                    0 if !is_here => {
                        here.insert(session);
                        at = wishes.enter(session).or(at);
                    }
                    1 if is_here => {
                        let level = super::LEVELS[usize::from(step) / 6 % 8].1;
                        at = wishes.set_level(session, level).or(at);
                    }
                    2 if is_here => {
                        if !wishes.subscribe(session, uri) {
                            // The child hears it now, and says so later.
                            child.insert(uri);
                            asked.push((session, uri));
                        }
                        model.entry(session).or_default().insert(uri);
                    }
                    3 if is_here => {
                        if wishes.unsubscribe(session, uri) {
                            child.remove(uri);
                        }
                        model.entry(session).or_default().remove(uri);
                    }
                    4 if !asked.is_empty() => {
                        let (session, uri) = asked.remove(0);
                        if here.contains(&session) && wishes.answered(session, uri, Subscribed::Yes) {
                            child.remove(uri);
                        }
                    }
                    5 if is_here => {
                        // A session's calls end before it does.
                        for (_, uri) in asked.extract_if(.., |(asking, _)| *asking == session) {
                            if wishes.answered(session, uri, Subscribed::Unknown) {
                                child.remove(uri);
                            }
                        }
                        let (left, level) = wishes.leave(session);
                        left.iter().for_each(|uri| { child.remove(&**uri); });
                        at = level.or(at);
                        here.remove(&session);
                        model.remove(&session);
                    }
                    _ => {}
                }
                if asked.is_empty() {
                    for uri in URIS {
                        let wanted: HashSet<u64> =
                            model.iter().filter(|(_, uris)| uris.contains(uri)).map(|(session, _)| *session).collect();
                        assert_eq!(wishes.subscribers(uri), wanted);
                        assert_eq!(child.contains(uri), !wanted.is_empty());
                    }
                }
                for level in super::LEVELS.map(|(_, level)| level) {
                    let heard = here.iter().any(|session| wishes.hears(*session, level));
                    assert!(!heard || at.is_none_or(|at| level >= at), "the child keeps nothing back");
                }
                assert!(at.is_none_or(|at| here.is_empty() || here.iter().any(|session| wishes.hears(*session, at))));
            }
        }
    }
}
