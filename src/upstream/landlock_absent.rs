//! Where there is no Landlock.

use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

/// Never made.
#[derive(Debug)]
pub(super) enum Ruleset {}

/// Why files cannot be restricted as asked; see the other implementation.
#[derive(Debug)]
#[allow(dead_code, reason = "the names of a system that has it")]
pub(super) enum NoFileRules {
    Unsupported,
    Path(PathBuf, io::Error),
    Kernel(io::Error),
}

impl Ruleset {
    pub(super) fn of_scopes() -> Option<Self> {
        None
    }

    pub(super) fn of_files(
        _read: &[PathBuf],
        _write: &[PathBuf],
        _program: Option<&Path>,
        _scope: bool,
    ) -> Result<Self, NoFileRules> {
        Err(NoFileRules::Unsupported)
    }

    pub(super) fn descriptor(&self) -> RawFd {
        match *self {}
    }
}

/// Refuses: nothing can hand in a ruleset.
pub(super) fn enter(_ruleset: RawFd) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
