//! Where there is no Landlock.

use std::os::fd::RawFd;

/// Never made.
#[derive(Debug)]
pub(super) enum ScopeRuleset {}

impl ScopeRuleset {
    pub(super) fn create() -> Option<Self> {
        None
    }

    pub(super) fn descriptor(&self) -> RawFd {
        match *self {}
    }
}

/// Refuses: nothing can hand in a ruleset.
pub(super) fn enter(_ruleset: RawFd) -> bool {
    false
}
