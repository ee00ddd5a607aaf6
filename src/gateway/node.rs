//! The node tag: what tells the gateways behind one address apart.

use std::fmt;
use std::sync::Arc;

/// Longest tag, in characters.
const LONGEST: usize = 16;

/// Length of a tag that is made.
const RANDOM: usize = 6;

/// The first part of every session id of this process, `[a-z0-9]{1,16}`: a load balancer that reads it can send each
/// session to the gateway that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTag(Arc<str>);

/// A tag that has another form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotANodeTag;

impl fmt::Display for NotANodeTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a node tag has 1 to {LONGEST} characters of a-z and 0-9")
    }
}

impl std::error::Error for NotANodeTag {}

impl NodeTag {
    /// Takes the tag an operator chose.
    ///
    /// # Errors
    /// It has not the form of one.
    pub fn parse(text: &str) -> Result<NodeTag, NotANodeTag> {
        let fits = (1..=LONGEST).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if fits { Ok(NodeTag(text.into())) } else { Err(NotANodeTag) }
    }

    /// One that tells this start of this process from any other.
    #[must_use]
    pub fn random() -> NodeTag {
        const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let bits: [u8; RANDOM] = rand::random();
        let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
        NodeTag(bits.iter().map(letter).collect::<String>().into())
    }

    pub(super) fn into_inner(self) -> Arc<str> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::NodeTag;

    #[test]
    fn tags_have_their_form() {
        for good in ["a", "0", "eu1b", "abcdefghijklmnop"] {
            assert!(NodeTag::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "A", "a-b", "a b", "ä", "abcdefghijklmnopq"] {
            assert!(NodeTag::parse(bad).is_err(), "{bad}");
        }
        let (one, other) = (NodeTag::random(), NodeTag::random());
        assert!(NodeTag::parse(&one.into_inner()).is_ok());
        assert!(NodeTag::parse(&other.into_inner()).is_ok());
    }
}
