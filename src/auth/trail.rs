//! What a token was held against: the checks in their order, each with what was expected and what was found.

use std::fmt::{self, Display, Write};

use super::rejection::TokenFault;

/// The longest text of what was found.
const SHOWN: usize = 200;

/// One check of a token. It never holds the token, nor a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was looked at: a claim, a header member, or `signature`.
    pub name: &'static str,
    /// What would have passed.
    pub expected: String,
    /// What was found, escaped and cut.
    pub got: String,
    /// Whether it passed.
    pub passed: bool,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}", self.name, self.expected, self.got)
    }
}

/// Collects checks. A request wants the first failure only; an operator wants to see every one.
#[derive(Debug, Default)]
pub(super) struct Trail {
    explains: bool,
    /// Whether the issuer did issue the token.
    genuine: bool,
    steps: Vec<Step>,
    fault: Option<TokenFault>,
}

impl Trail {
    /// One that goes on after a failure and keeps what passed too.
    pub(super) fn explaining() -> Trail {
        Trail { explains: true, ..Trail::default() }
    }

    /// Notes a check.
    ///
    /// # Errors
    /// It failed, and nobody wants to hear of the rest.
    pub(super) fn check(
        &mut self,
        fault: TokenFault,
        name: &'static str,
        passed: bool,
        expected: &dyn Display,
        got: &dyn Display,
    ) -> Result<(), TokenFault> {
        if passed && !self.explains {
            return Ok(());
        }
        self.steps.push(Step { name, expected: shown(expected), got: shown(got), passed });
        if passed {
            return Ok(());
        }
        self.fault.get_or_insert(fault);
        if self.explains { Ok(()) } else { Err(fault) }
    }

    /// Notes a check without which there is nothing more to check.
    pub(super) fn stop(
        &mut self,
        fault: TokenFault,
        name: &'static str,
        expected: &dyn Display,
        got: &dyn Display,
    ) -> TokenFault {
        let _ = self.check(fault, name, false, expected, got);
        fault
    }

    /// From here on the token is known to be the issuer's.
    pub(super) fn genuine(&mut self) {
        self.genuine = true;
    }

    /// Whether the token is known to be the issuer's.
    pub(super) fn is_genuine(&self) -> bool {
        self.genuine
    }

    /// The first failure, if there was one.
    pub(super) fn fault(&self) -> Option<TokenFault> {
        self.fault
    }

    /// The check that failed first.
    pub(super) fn failed(&self) -> Option<&Step> {
        self.steps.iter().find(|step| !step.passed)
    }

    /// Every check that was noted.
    pub(super) fn into_steps(self) -> Vec<Step> {
        self.steps
    }
}

/// A text that is safe on a terminal and in a log.
fn shown(text: &dyn Display) -> String {
    struct Escaped(String);
    impl Write for Escaped {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for c in text.chars() {
                if self.0.len() >= SHOWN {
                    self.0.push('…');
                    // Whatever follows is not shown.
                    return Err(fmt::Error);
                }
                if c.is_control() { self.0.extend(c.escape_default()) } else { self.0.push(c) }
            }
            Ok(())
        }
    }
    let mut escaped = Escaped(String::new());
    let _cut = write!(escaped, "{text}");
    escaped.0
}

#[cfg(test)]
mod tests {
    use super::{Trail, shown};
    use crate::auth::rejection::TokenFault;

    #[test]
    fn a_request_ends_at_the_first_failure_and_an_explanation_does_not() {
        let mut short = Trail::default();
        assert!(short.check(TokenFault::Issuer, "iss", true, &"a", &"a").is_ok());
        assert_eq!(short.check(TokenFault::Audience, "aud", false, &"a", &"b"), Err(TokenFault::Audience));
        assert_eq!(short.failed().map(ToString::to_string).as_deref(), Some("aud: expected a, got b"));
        assert_eq!(short.into_steps().len(), 1);
        let mut long = Trail::explaining();
        for (fault, passed) in [(TokenFault::Issuer, true), (TokenFault::Audience, false), (TokenFault::Expired, false)]
        {
            assert!(long.check(fault, "x", passed, &"a", &"b").is_ok());
        }
        assert_eq!((long.fault(), long.into_steps().len()), (Some(TokenFault::Audience), 3));
    }

    #[test]
    fn what_was_found_is_escaped_and_cut() {
        assert_eq!(shown(&"a\u{1b}[31m\nb"), "a\\u{1b}[31m\\nb");
        assert!(shown(&"x".repeat(5_000)).len() < 300);
    }
}
