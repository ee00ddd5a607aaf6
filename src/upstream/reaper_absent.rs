//! Where orphans cannot be adopted: nobody looks for them.

use std::io;
use std::path::PathBuf;

use rustix::process::Pid;

use super::control_group::ControlGroup;
use super::living::Counted;

/// Never made.
#[derive(Clone, Debug)]
pub(super) enum Reaper {}

/// What there is of a child beside its process.
#[derive(Debug)]
pub(super) struct Remains {
    pub(super) group: Option<ControlGroup>,
    _counted: Counted,
}

impl Remains {
    pub(super) fn unwatched(counted: Counted) -> Self {
        Self { group: None, _counted: counted }
    }

    pub(super) fn hand_over(self) {}
}

impl Reaper {
    pub(super) fn start(_abandoned: Option<PathBuf>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn birth(&self) -> Birth {
        match *self {}
    }

    pub(super) fn look(&self) {
        match *self {}
    }
}

/// Never held.
pub(super) enum Birth {}

impl Birth {
    pub(super) fn of(self, _pid: Pid, _mark: u128, _group: Option<ControlGroup>, _counted: Counted) -> Remains {
        match self {}
    }
}
