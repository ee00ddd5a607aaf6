//! What the lines of a run of progress have in common.
//!
//! A call that reports progress writes line after line that is the same up to the progress token. What was read of it in
//! one line need not be read again in the next: reading is the same for the same bytes.

use crate::mcp::scan::Fields;

/// Longest beginning that is remembered, in bytes: what precedes a token is short, unless it is no usual line.
const LONGEST: usize = 256;

/// How a child's line began, up to the comma behind its progress token, and what was found there.
#[derive(Debug, Default)]
pub struct Beginning {
    text: Vec<u8>,
    params: usize,
    fields: Fields,
}

impl Beginning {
    /// How many bytes of `text` it is; 0 where that begins in another way. They end behind a comma, so that a check of
    /// UTF-8 can go on from there.
    pub(super) fn length_in(&self, text: &[u8]) -> usize {
        if text.starts_with(&self.text) { self.text.len() } else { 0 }
    }

    /// Its bytes.
    pub(super) fn length(&self) -> usize {
        self.text.len()
    }

    /// Where `params` begins.
    pub(super) fn params(&self) -> usize {
        self.params
    }

    /// The members that stand in it.
    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Remembers this one, if it is one: a token that no comma follows may go on in the next line.
    pub(super) fn note(&mut self, text: &[u8], params: usize, fields: &Fields) {
        self.text.clear();
        if text.len() <= LONGEST && text.ends_with(b",") {
            self.text.extend_from_slice(text);
            (self.params, self.fields) = (params, *fields);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};

    use super::{Beginning, Fields, LONGEST};
    use crate::mcp::message::{FaultKind, Kind, Message};
    use crate::mcp::scan::{Author, ScanFault, Top, scan, scan_first, scan_on};

    fn read(beginning: &mut Beginning, text: &[u8]) -> (Result<Top, ScanFault>, Fields) {
        let mut fields = Fields::default();
        let top = match beginning.length_in(text) {
            0 => scan_first(text, beginning, &mut fields),
            _ => scan_on(text, beginning, &mut fields),
        };
        (top, fields)
    }

    /// Members of `params`, some of which no sane child writes.
    fn member() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => (0..200_u32).prop_map(|token| format!(r#""progressToken":{token}"#)),
            1 => Just(r#""progressToken": "a,b" "#.to_owned()),
            1 => Just(r#""progress\u0054oken":7"#.to_owned()),
            3 => (0..20_u32).prop_map(|progress| format!(r#""progress":{progress}"#)),
            1 => Just(r#""message":"5 of 9, \"more\" follow""#.to_owned()),
            1 => Just(r#""_meta":{"progressToken":1,"x":[{}]}"#.to_owned()),
            1 => Just(r#""params":{"progressToken":3,"y":2}"#.to_owned()),
            1 => (0..300_usize).prop_map(|length| format!(r#""{}":0"#, "k".repeat(length))),
        ]
    }

    fn line() -> impl Strategy<Value = String> {
        let params = prop::collection::vec(member(), 0..4).prop_map(|members| format!("{{{}}}", members.join(",")));
        let params =
            prop_oneof![9 => params, 1 => Just("[1]".to_owned())].prop_map(|params| format!(r#""params":{params}"#));
        let part = prop_oneof![
            3 => Just(r#""jsonrpc":"2.0""#.to_owned()),
            3 => Just(r#""method":"notifications/progress""#.to_owned()),
            6 => params,
            1 => Just(r#""extra":null"#.to_owned()),
            1 => Just(r#""id":5"#.to_owned()),
        ];
        let usual = (member(), any::<bool>(), any::<bool>()).prop_map(|(more, before, behind)| {
            let (before, behind) =
                (if before { r#""extra":1,"# } else { "" }, if behind { r#","extra":2"# } else { "" });
            format!(r#"{{{before}"jsonrpc":"2.0","params":{{"progressToken":17,{more}}}{behind}}}"#)
        });
        prop_oneof![usual, prop::collection::vec(part, 0..5).prop_map(|parts| format!("{{{}}}", parts.join(",")))]
    }

    proptest! {
        /// Whatever came before, a line is read as if it had come alone.
        #[test]
        fn nothing_is_read_in_another_way(
            lines in prop::collection::vec((line(), any::<prop::sample::Index>(), 0..4_u8), 1..12),
        ) {
            let (mut beginning, mut before) = (Beginning::default(), Vec::new());
            for (line, at, how) in lines {
                let mut line = line.into_bytes();
                match how {
                    // Cut short, or the first part of the line before with another end.
                    1 => line.truncate(at.index(line.len())),
                    2 if !before.is_empty() => line = [&before[..at.index(before.len())], &line[at.index(line.len())..]].concat(),
                    _ => {}
                }
                let alone = scan(&line, Author::Child);
                assert_eq!(format!("{:?}", read(&mut beginning, &line)), format!("{alone:?}"), "{:?}", String::from_utf8_lossy(&line));
                before = line;
            }
        }
    }

    #[test]
    fn what_follows_is_checked_all_the_same() {
        let mut beginning = Beginning::default();
        let line = |rest: &[u8]| {
            let start = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"\u00e9","#;
            Bytes::from([start, rest].concat())
        };
        let mut parse = |rest: &[u8]| Message::parse_next(line(rest), &mut beginning).map_err(|fault| fault.kind);
        assert_eq!(parse(br#""message":"a"}}"#).map(|message| message.kind()), Ok(Kind::Notification));
        assert_eq!(parse(b"\"message\":\"\xff\"}}").err(), Some(FaultKind::NotUtf8));
        assert_eq!(parse(br#""message":"a"}"#).err(), Some(FaultKind::NotJson));
        assert_eq!(parse("\"message\":\"\u{e9}\"}}".as_bytes()).map(|message| message.kind()), Ok(Kind::Notification));
    }

    #[test]
    fn what_a_run_has_in_common_is_remembered() {
        let line = |token: &str, rest: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},{rest}}}}}"#
            )
        };
        let mut beginning = Beginning::default();
        assert_eq!(0, beginning.length_in(line("1", "").as_bytes()), "nothing came yet");
        let _scanned = read(&mut beginning, line("1", r#""progress":1"#).as_bytes());
        assert_ne!(0, beginning.length_in(line("1", r#""progress":22,"total":30"#).as_bytes()));
        assert_eq!(
            0,
            beginning.length_in(line("11", r#""progress":1"#).as_bytes()),
            "another token that begins as this one"
        );
        let long = format!("\"{}\"", "t".repeat(LONGEST));
        let _scanned = read(&mut beginning, line(&long, r#""progress":1"#).as_bytes());
        assert_eq!(0, beginning.length_in(line(&long, r#""progress":1"#).as_bytes()), "too long to be kept");
    }
}
