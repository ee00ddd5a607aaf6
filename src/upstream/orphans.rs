//! Whose a process is that came to the gateway because its parent ended.
//!
//! A process that leaves its child's session (setsid(2)) and outlives its parent is handed to the gateway, which asked
//! for that (PR_SET_CHILD_SUBREAPER). Every descendant of the gateway's was started by one of its children, so the
//! question is only by which: its session may still be the child's, its environment may still hold the child's mark,
//! or it may be older than every child that is alive. What nothing tells stays until the last of these does.

use std::collections::HashMap;

use super::process_table::Entry;

/// The variable that marks all that a child starts, until something in between takes it away.
pub(super) const MARK: &str = "GANGWAY_CHILD";

/// A child, as far as orphans are told by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kin {
    /// Its process, its group and its session.
    pub(super) pid: i32,
    /// What [`MARK`] holds. Random, so that no child can pass for another's.
    pub(super) mark: u128,
    /// When it began, see [`Entry::began`].
    pub(super) began: u64,
}

/// What is known when orphans are looked at.
pub(super) struct Families<'a> {
    /// The gateway's own process.
    pub(super) own: i32,
    /// Children that were not reaped yet.
    pub(super) living: &'a [Kin],
    /// Children that have ended, and whose orphans are to end.
    pub(super) ended: &'a [Kin],
    /// Whether nobody but children can hand processes to the gateway.
    pub(super) alone: bool,
}

impl Families<'_> {
    /// Everything in `table` that is to be killed: orphans of children that have ended, and what descends from them.
    /// `mark` reads the mark of a process.
    pub(super) fn left_behind(&self, table: &HashMap<i32, Entry>, mark: impl Fn(i32) -> Option<u128>) -> Vec<i32> {
        let is_orphan =
            |pid: i32, entry: &Entry| entry.parent == self.own && !self.living.iter().any(|kin| kin.pid == pid);
        let mut found: Vec<i32> = table
            .iter()
            .filter(|(pid, entry)| is_orphan(**pid, entry) && self.is_left_behind(entry, || mark(**pid)))
            .map(|(pid, _)| *pid)
            .collect();
        let mut at = 0;
        while let Some(parent) = found.get(at).copied() {
            found.extend(table.iter().filter(|(_, entry)| entry.parent == parent).map(|(pid, _)| *pid));
            at += 1;
        }
        found
    }

    fn is_left_behind(&self, orphan: &Entry, mark: impl FnOnce() -> Option<u128>) -> bool {
        if self.living.iter().any(|kin| kin.pid == orphan.session) {
            return false;
        }
        // The number of a session is not given to a process as long as the session has one.
        if self.ended.iter().any(|kin| kin.pid == orphan.session) {
            return true;
        }
        match mark() {
            Some(mark) if self.living.iter().any(|kin| kin.mark == mark) => false,
            Some(mark) if self.ended.iter().any(|kin| kin.mark == mark) => true,
            // By the mark or without one: nobody who is alive can have started it.
            _ => self.alone && self.living.iter().all(|kin| kin.began > orphan.began),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Families, Kin};
    use crate::upstream::process_table::Entry;

    const OWN: i32 = 1000;
    const LIVING: Kin = Kin { pid: 10, mark: 0xA, began: 100 };
    const ENDED: Kin = Kin { pid: 20, mark: 0xB, began: 50 };

    /// Processes as (number, parent, session, begin, mark).
    fn left_behind(alone: bool, living: &[Kin], processes: &[(i32, i32, i32, u64, Option<u128>)]) -> Vec<i32> {
        let entry = |&(pid, parent, session, began, _): &(i32, i32, i32, u64, Option<u128>)| {
            (pid, Entry { parent, session, began })
        };
        let table: HashMap<i32, Entry> = processes.iter().map(entry).collect();
        let mark = |pid| processes.iter().find(|process| process.0 == pid).and_then(|process| process.4);
        let mut found = Families { own: OWN, living, ended: &[ENDED], alone }.left_behind(&table, mark);
        found.sort_unstable();
        found
    }

    #[test]
    fn the_session_or_the_mark_tells_whose_an_orphan_is() {
        let found = left_behind(
            true,
            &[LIVING],
            &[
                (10, OWN, 10, 100, Some(0xA)),
                (31, OWN, 20, 200, None),
                (32, OWN, 32, 200, Some(0xB)),
                (33, OWN, 10, 200, Some(0xB)),
                (34, OWN, 34, 200, Some(0xA)),
                (35, OWN, 35, 200, None),
            ],
        );
        assert_eq!(found, [31, 32], "whose session or mark is an ended child's, and no child of a living one");
    }

    #[test]
    fn what_descends_from_an_orphan_goes_with_it_and_strangers_stay() {
        let found = left_behind(
            true,
            &[LIVING],
            &[
                (31, OWN, 31, 200, Some(0xB)),
                (41, 31, 41, 200, None),
                (42, 41, 42, 200, Some(0xA)),
                (50, 1, 50, 10, Some(0xB)),
                (51, 50, 20, 10, Some(0xB)),
            ],
        );
        assert_eq!(found, [31, 41, 42], "nothing that did not come to the gateway");
    }

    #[test]
    fn what_is_older_than_all_who_live_was_left_by_the_dead() {
        let unmarked = [(31, OWN, 31, 99, None), (32, OWN, 32, 100, None), (33, OWN, 33, 98, Some(0xFF))];
        assert_eq!(left_behind(true, &[LIVING], &unmarked), [31, 33]);
        assert_eq!(left_behind(true, &[], &unmarked), [31, 32, 33]);
        assert!(left_behind(false, &[], &unmarked).is_empty(), "others may have handed them over");
    }
}
