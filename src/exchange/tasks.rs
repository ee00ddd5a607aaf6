//! Which session each task of a shared child is, from the answer that creates it until it is forgotten (2025-11-25 tasks).

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::mcp::ids::Id;

/// Tasks one session may have that are not over.
const OF_ONE_SESSION: usize = 64;

/// Tasks all sessions of a child may have, those that are over included.
const IN_ALL: usize = 1_024;

/// Bytes of a task's id. One with a longer one is nobody's, and is cancelled.
const LONGEST_ID: usize = 1_024;

/// What a child says of a task, as far as it matters here.
#[derive(Debug, Deserialize)]
pub struct Report {
    #[serde(rename = "taskId")]
    id: Box<str>,
    status: Box<str>,
    /// Milliseconds from its creation; `null` for ever.
    #[serde(default)]
    ttl: serde_json::Value,
}

/// The result of a call that became a task.
#[derive(Deserialize)]
struct Created {
    task: Report,
}

impl Report {
    /// Reads a task's state: the result of `tasks/get` and `tasks/cancel`, and what a status notification says.
    #[must_use]
    pub fn read(text: &[u8]) -> Option<Report> {
        serde_json::from_slice(text).ok()
    }

    /// Reads the result of a call that asked to become a task; `None` if it did not.
    #[must_use]
    pub fn created(result: &[u8]) -> Option<Report> {
        serde_json::from_slice(result).ok().map(|created: Created| created.task)
    }

    /// The task.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    fn is_over(&self) -> bool {
        matches!(&*self.status, "completed" | "failed" | "cancelled")
    }

    fn ttl(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.ttl.as_f64()? / 1_000.0).ok()
    }
}

/// One task.
#[derive(Debug)]
struct Task {
    session: u64,
    /// The call that became it, whose number its progress comes under.
    call: u64,
    /// The progress token that call gave.
    token: Option<Id>,
    since: Instant,
    ttl: Option<Duration>,
    is_over: bool,
}

impl Task {
    /// Whether its child need not know it any more (tasks, TTL and Resource Management).
    fn is_spent(&self, now: Instant) -> bool {
        self.ttl.is_some_and(|ttl| now.saturating_duration_since(self.since) >= ttl)
    }
}

/// A call that asked to become a task, and is with the child.
#[derive(Debug)]
struct Expected {
    session: u64,
    token: Option<Id>,
}

/// Whose progress it is.
#[derive(Debug, PartialEq, Eq)]
pub struct Progressing {
    /// The session.
    pub session: u64,
    /// The task.
    pub task: Box<str>,
    /// The token its owner gave.
    pub token: Id,
}

/// The tasks of one child's process.
#[derive(Debug, Default)]
pub struct Tasks {
    by_id: HashMap<Box<str>, Task>,
    /// The tasks that are not over, by the call each was.
    by_call: HashMap<u64, Box<str>>,
    expected: HashMap<u64, Expected>,
    /// Tasks that nobody owns, and whose child is to be told so; oldest first.
    ownerless: VecDeque<Box<str>>,
}

impl Tasks {
    /// Whether a session may have one more. Makes room for it by forgetting its own tasks whose time or work is over:
    /// what others may still ask for is not its to take.
    pub fn has_room(&mut self, session: u64, now: Instant) -> bool {
        self.by_id.retain(|_, task| !(task.is_over && task.is_spent(now)));
        if self.live(session) >= OF_ONE_SESSION {
            self.abandon_spent(session, now);
        }
        while self.by_id.len() + self.expected.len() >= IN_ALL {
            let over = self.by_id.iter().filter(|(_, task)| task.session == session && task.is_over);
            let Some(oldest) = over.min_by_key(|(_, task)| task.since).map(|(id, _)| id.clone()) else { return false };
            self.forget(&oldest);
        }
        self.live(session) < OF_ONE_SESSION
    }

    /// Tasks of a session that are not over, and its calls that may become some.
    fn live(&self, session: u64) -> usize {
        let awaited = self.expected.values().filter(|expected| expected.session == session).count();
        awaited + self.by_call.values().filter(|task| self.is_of(session, task)).count()
    }

    /// Gives up a session's tasks that should be over by now: their child may have forgotten them.
    fn abandon_spent(&mut self, session: u64, now: Instant) {
        let spent = self.by_id.iter().filter(|(_, task)| task.session == session && task.is_spent(now));
        let spent: Vec<Box<str>> = spent.map(|(id, _)| id.clone()).collect();
        for id in spent {
            self.forget(&id);
            self.disown(&id);
        }
    }

    /// A session makes a call that asks to become a task.
    pub fn expect(&mut self, session: u64, call: u64, token: Option<Id>) {
        self.expected.insert(call, Expected { session, token });
    }

    /// Whether a call may become a task.
    #[must_use]
    pub fn expects(&self, call: u64) -> bool {
        self.expected.contains_key(&call)
    }

    /// Such a call did not become one.
    pub fn expect_no_more(&mut self, call: u64) {
        self.expected.remove(&call);
    }

    /// A call became a task. It is its session's, unless that `is_gone`, or did not wait for it. Tells whether its id
    /// can be anybody's; a task is cancelled where nobody has it.
    pub fn begin(&mut self, call: u64, report: &Report, is_gone: impl FnOnce(u64) -> bool, now: Instant) -> bool {
        let is_short = report.id.len() <= LONGEST_ID;
        let expected = self.expected.remove(&call).filter(|expected| is_short && !is_gone(expected.session));
        let Some(Expected { session, token }) = expected else {
            self.disown(report.id());
            return is_short;
        };
        // An id must be unique (tasks, Task ID Requirements). Of two that live nobody can tell whose is whose.
        let is_taken = self.by_id.get(&report.id).is_some_and(|known| !known.is_over && known.session != session);
        self.forget(report.id());
        if is_taken {
            self.disown(report.id());
            return false;
        }
        let is_over = report.is_over();
        if !is_over {
            self.by_call.insert(call, report.id.clone());
        }
        let task = Task { session, call, token, since: now, ttl: report.ttl(), is_over };
        self.by_id.insert(report.id.clone(), task);
        true
    }

    /// A task that nobody owns is to be cancelled. While the child cannot be told, so many bytes of ids are kept as
    /// those it may have, and one id in any case.
    fn disown(&mut self, task: &str) {
        if self.by_id.contains_key(task) {
            return;
        }
        let mut bytes: usize = self.ownerless.iter().map(|id| id.len()).sum();
        while self.ownerless.len() >= IN_ALL || bytes + task.len() > IN_ALL * LONGEST_ID {
            let Some(oldest) = self.ownerless.pop_front() else { break };
            bytes -= oldest.len();
        }
        self.ownerless.push_back(task.into());
    }

    /// The next task that its child is to cancel.
    pub fn next_ownerless(&mut self) -> Option<Box<str>> {
        self.ownerless.pop_front()
    }

    /// It could not be told; it is the next one again.
    pub fn not_told(&mut self, task: Box<str>) {
        self.ownerless.push_front(task);
    }

    /// Whether this task is this session's.
    pub fn owns(&mut self, session: u64, task: &str, now: Instant) -> bool {
        if self.by_id.get(task).is_some_and(|task| task.is_over && task.is_spent(now)) {
            self.forget(task);
        }
        self.is_of(session, task)
    }

    fn is_of(&self, session: u64, task: &str) -> bool {
        self.by_id.get(task).is_some_and(|task| task.session == session)
    }

    /// Whose task it is.
    #[must_use]
    pub fn owner(&self, task: &str) -> Option<u64> {
        self.by_id.get(task).map(|task| task.session)
    }

    /// The child says how a task is. Gives whose it is.
    pub fn note(&mut self, report: &Report) -> Option<u64> {
        let task = self.by_id.get_mut(&report.id)?;
        let session = task.session;
        if let Some(ttl) = report.ttl() {
            task.ttl = Some(ttl);
        }
        if report.is_over() {
            self.end(report.id());
        }
        Some(session)
    }

    /// A task is over: nothing more comes of it, and what it came to can still be asked for.
    pub fn end(&mut self, task: &str) {
        if let Some(task) = self.by_id.get_mut(task) {
            task.is_over = true;
            self.by_call.remove(&task.call);
        }
    }

    /// Forgets a task.
    pub fn forget(&mut self, task: &str) {
        if let Some(task) = self.by_id.remove(task) {
            self.by_call.remove(&task.call);
        }
    }

    /// Whose progress comes under this number, if the call became a task that is not over.
    #[must_use]
    pub fn progressing(&self, call: u64) -> Option<Progressing> {
        let id = self.by_call.get(&call)?;
        let task = self.by_id.get(id)?;
        Some(Progressing { session: task.session, task: id.clone(), token: task.token.clone()? })
    }

    /// Whether every task that is not over, and every call that may become one, is this session's.
    #[must_use]
    pub fn are_all_of(&self, session: u64) -> bool {
        self.by_call.values().all(|task| self.is_of(session, task))
            && self.expected.values().all(|expected| expected.session == session)
    }

    /// A session is over. What is left of its tasks is to be cancelled.
    pub fn leave(&mut self, session: u64) {
        let own = self.by_id.iter().filter(|(_, task)| task.session == session);
        let own: Vec<(Box<str>, bool)> = own.map(|(id, task)| (id.clone(), task.is_over)).collect();
        for (id, is_over) in own {
            self.forget(&id);
            if !is_over {
                self.disown(&id);
            }
        }
    }

    /// The process is gone, and its tasks with it.
    pub fn clear(&mut self) {
        *self = Tasks::default();
    }

    /// Tasks that are known, and calls that may become some.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.by_id.len() + self.expected.len() + self.ownerless.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{IN_ALL, LONGEST_ID, OF_ONE_SESSION, Progressing, Report, Tasks};
    use crate::mcp::ids::Id;

    fn report(id: &str, status: &str, ttl: &str) -> Report {
        Report::read(format!(r#"{{"taskId":"{id}","status":"{status}","ttl":{ttl}}}"#).as_bytes()).expect("a report")
    }

    fn begin(tasks: &mut Tasks, session: u64, call: u64, id: &str, now: Instant) -> bool {
        tasks.expect(session, call, Id::parse(b"\"t\""));
        tasks.begin(call, &report(id, "working", "1000"), |_| false, now)
    }

    #[test]
    fn reads_what_children_say() {
        let text = br#"{"task":{"taskId":"a\u0062","status":"working","ttl":1e3,"x":1},"_meta":{}}"#;
        let created = Report::created(text).expect("a task");
        assert_eq!((created.id(), created.is_over(), created.ttl()), ("ab", false, Some(Duration::from_secs(1))));
        assert!(Report::created(br#"{"content":[]}"#).is_none());
        assert!(Report::created(br#"{"task":{"taskId":1,"status":"working"}}"#).is_none());
        for ttl in ["null", "-1", "\"x\"", "1e300"] {
            assert_eq!(report("a", "failed", ttl).ttl(), None, "{ttl}");
        }
    }

    #[test]
    fn a_task_is_its_sessions_until_it_is_forgotten() {
        let (mut tasks, now) = (Tasks::default(), Instant::now());
        begin(&mut tasks, 1, 7, "a", now);
        assert!(tasks.owns(1, "a", now) && !tasks.owns(2, "a", now) && !tasks.owns(1, "b", now));
        let token = Id::parse(b"\"t\"").expect("a token");
        assert_eq!(tasks.progressing(7), Some(Progressing { session: 1, task: "a".into(), token }));
        assert!(tasks.are_all_of(1) && !tasks.are_all_of(2));
        assert_eq!(tasks.note(&report("a", "completed", "5000")), Some(1));
        assert_eq!(tasks.progressing(7), None, "nothing more comes of it");
        assert!(tasks.are_all_of(2));
        assert!(tasks.owns(1, "a", now + Duration::from_secs(4)));
        assert!(!tasks.owns(1, "a", now + Duration::from_secs(5)));
        assert_eq!((tasks.note(&report("a", "completed", "1")), tasks.count()), (None, 0));
    }

    #[test]
    fn what_nobody_owns_is_cancelled() {
        let (mut tasks, now) = (Tasks::default(), Instant::now());
        begin(&mut tasks, 1, 1, "a", now);
        begin(&mut tasks, 1, 2, "over", now);
        tasks.end("over");
        begin(&mut tasks, 2, 3, "other", now);
        tasks.expect(1, 4, None);
        tasks.leave(1);
        tasks.begin(4, &report("late", "working", "null"), |session| session == 1, now);
        tasks.begin(5, &report("unasked", "working", "null"), |_| false, now);
        let told: Vec<_> = std::iter::from_fn(|| tasks.next_ownerless()).collect();
        assert_eq!(told, ["a".into(), "late".into(), "unasked".into()] as [Box<str>; 3]);
        assert!(tasks.owns(2, "other", now));
        tasks.clear();
        assert!(!tasks.owns(2, "other", now));
    }

    #[test]
    fn an_id_that_two_sessions_got_is_nobodys() {
        let (mut tasks, now) = (Tasks::default(), Instant::now());
        assert!(begin(&mut tasks, 1, 1, "a", now) && !begin(&mut tasks, 2, 2, "a", now));
        assert!(!tasks.owns(1, "a", now) && !tasks.owns(2, "a", now));
        assert_eq!((tasks.next_ownerless(), tasks.next_ownerless()), (Some("a".into()), None), "and is cancelled");
        assert_eq!((tasks.progressing(1), tasks.progressing(2)), (None, None));
        // One that is over has made way.
        begin(&mut tasks, 1, 3, "a", now);
        tasks.end("a");
        begin(&mut tasks, 2, 4, "a", now);
        assert!(!tasks.owns(1, "a", now) && tasks.owns(2, "a", now));
    }

    #[test]
    fn what_cannot_be_cancelled_yet_is_bounded() {
        let (mut tasks, now, long) = (Tasks::default(), Instant::now(), "x".repeat(LONGEST_ID + 1));
        assert!(!begin(&mut tasks, 1, 1, &long, now) && !tasks.owns(1, &long, now));
        assert_eq!(tasks.count(), 1, "it is to be cancelled");
        for _ in 0..2 * IN_ALL {
            tasks.disown(&long);
        }
        assert_eq!(tasks.count(), IN_ALL - 1);
        let longest = "y".repeat(2 * IN_ALL * LONGEST_ID);
        tasks.disown(&longest);
        assert_eq!((tasks.next_ownerless(), tasks.next_ownerless()), (Some(longest.into()), None));
    }

    #[test]
    fn counts_are_bounded() {
        let (mut tasks, now) = (Tasks::default(), Instant::now());
        for call in 0..OF_ONE_SESSION as u64 - 1 {
            assert!(tasks.has_room(1, now));
            begin(&mut tasks, 1, call, &format!("a{call}"), now);
        }
        tasks.expect(1, 999, None);
        assert!(!tasks.has_room(1, now) && tasks.has_room(2, now));
        assert!(tasks.expects(999));
        tasks.expect_no_more(999);
        assert!(tasks.has_room(1, now));
        for call in 1_000..1_000 + IN_ALL as u64 {
            if tasks.has_room(call, now) {
                begin(&mut tasks, call, call, &format!("b{call}"), now);
            }
        }
        assert_eq!(tasks.count(), IN_ALL);
        assert!(!tasks.has_room(1, now), "it has none that is over");
        tasks.end("b1000");
        assert!(!tasks.has_room(1, now), "another's result is not its to take");
        tasks.end("a0");
        assert!(tasks.has_room(1, now) && !tasks.owns(1, "a0", now));
        assert!(tasks.has_room(1, now), "so it stays");
        for call in 2_000..2_002 {
            begin(&mut tasks, 1, call, &format!("c{call}"), now);
        }
        assert!(!tasks.has_room(1, now));
        assert!(tasks.has_room(1, now + Duration::from_secs(1)), "their time is over");
        assert!(tasks.next_ownerless().is_some(), "and their child is told so");
    }
}
