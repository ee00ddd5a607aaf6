//! The key of one `gangway run`: when there is one, and where it comes from.

use std::fmt;

use super::new_key::NewKey;

/// The variable that gives `run` its key.
const VARIABLE: &str = "GANGWAY_API_KEY";

/// The key of one run.
#[derive(Debug)]
pub enum RunKey {
    /// Nobody is asked for one.
    None,
    /// The one the environment gives. It is not shown: who set it has it.
    Given(NewKey),
    /// One made for this run, to be shown once.
    Made(NewKey),
}

impl RunKey {
    /// SHA-256 of the key, if there is one.
    #[must_use]
    pub fn hash(&self) -> Option<[u8; 32]> {
        match self {
            RunKey::None => None,
            RunKey::Given(key) | RunKey::Made(key) => Some(key.hash()),
        }
    }
}

/// Why a run cannot have the key it needs.
#[derive(Debug)]
pub enum RunKeyError {
    /// The gateway would be open to other machines, and a key that was made would be shown to nobody.
    NobodyToShow,
    /// The environment holds something that has not the form of a key.
    Malformed,
    /// The system has no random numbers.
    Random(std::io::Error),
}

impl fmt::Display for RunKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunKeyError::NobodyToShow => write!(
                f,
                "this address is open to other machines, and there is no terminal to show a new API key on\n  \
                 set {VARIABLE} to a key from `gangway key new NAME`, listen on localhost, or let everybody in with --no-auth"
            ),
            RunKeyError::Malformed => {
                write!(f, "{VARIABLE} is no API key\n  set it to a key from `gangway key new NAME`, or unset it")
            }
            RunKeyError::Random(error) => write!(f, "no API key can be made: {error}"),
        }
    }
}

impl std::error::Error for RunKeyError {}

/// Decides the key of a run. `given` is what the environment holds as `GANGWAY_API_KEY`, if anything.
///
/// A key that is given is asked for on any address. None is made for an address that only this machine reaches.
///
/// # Errors
/// The key that is needed cannot be shown, made or used.
pub fn run_key(
    only_this_machine: bool,
    no_auth: bool,
    on_terminal: bool,
    given: Option<String>,
) -> Result<RunKey, RunKeyError> {
    if no_auth {
        return Ok(RunKey::None);
    }
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        return NewKey::from_text(given).map(RunKey::Given).ok_or(RunKeyError::Malformed);
    }
    if only_this_machine {
        return Ok(RunKey::None);
    }
    if !on_terminal {
        return Err(RunKeyError::NobodyToShow);
    }
    NewKey::generate().map(RunKey::Made).map_err(RunKeyError::Random)
}

#[cfg(test)]
mod tests {
    use super::{NewKey, RunKey, RunKeyError, run_key};

    #[test]
    fn a_key_is_made_only_where_it_is_needed_and_seen() {
        assert!(matches!(run_key(true, false, true, None), Ok(RunKey::None)));
        assert!(matches!(run_key(true, false, false, Some(String::new())), Ok(RunKey::None)));
        assert!(matches!(run_key(false, true, false, None), Ok(RunKey::None)));
        assert!(matches!(run_key(false, false, true, None), Ok(RunKey::Made(_))));
        assert!(matches!(run_key(false, false, false, None), Err(RunKeyError::NobodyToShow)));
    }

    #[test]
    fn a_key_that_is_given_is_asked_for_everywhere() {
        let text = NewKey::generate().expect("random numbers").reveal().to_owned();
        for (only_this_machine, on_terminal) in [(true, true), (true, false), (false, true), (false, false)] {
            let key = run_key(only_this_machine, false, on_terminal, Some(text.clone())).expect("the key is good");
            assert!(matches!(&key, RunKey::Given(given) if given.reveal() == text));
            assert!(key.hash().is_some());
        }
        let error = run_key(true, false, true, Some("hunter2".to_owned())).expect_err("no key");
        assert!(matches!(error, RunKeyError::Malformed) && !error.to_string().contains("hunter2"));
    }
}
