use std::time::Duration;

use proptest::prelude::any;
use proptest::{prop_assert, prop_assert_eq, proptest};
use serde_json::{Value, json};

use super::{Format, Line};
use crate::caller::Peer;
use crate::config::LogLevel;
use crate::telemetry::escape::has_control;

fn line(format: Format, fill: impl FnOnce(&mut Line<'_>)) -> String {
    let mut out = Vec::new();
    let mut line = Line::begin(&mut out, format, Duration::from_millis(1500), LogLevel::Info, "child_exit");
    fill(&mut line);
    line.end();
    String::from_utf8(out).expect("lines are UTF-8")
}

fn every_kind(line: &mut Line<'_>) {
    line.text("server", "files");
    line.text("said", "a b\n");
    line.shown_whole("peer", &std::net::Ipv4Addr::LOCALHOST);
    line.whole("bytes", u64::MAX);
    line.signed("code", i64::MIN);
    line.millis("ms", Duration::from_micros(1_002_030));
    line.fraction("load", 0.25);
    line.flag("resumed", true);
    line.value("limits", &json!({"nofile": 1024, "path": ["/a\u{7f}", null]}));
    line.text("none", "");
}

#[test]
fn both_formats_hold_the_same_in_the_same_order() {
    assert_eq!(
        line(Format::Json, every_kind),
        concat!(
            r#"{"ts":"1970-01-01T00:00:01.500Z","level":"info","event":"child_exit","server":"files","said":"a b\n","#,
            r#""peer":"127.0.0.1","bytes":18446744073709551615,"code":-9223372036854775808,"ms":1002.030,"load":0.25,"#,
            r#""resumed":true,"limits":{"nofile":1024,"path":["/a\u007f",null]},"none":""}"#,
            "\n"
        )
    );
    assert_eq!(
        line(Format::Text, every_kind),
        concat!(
            r#"1970-01-01T00:00:01.500Z info  child_exit    server=files said="a b\n" peer=127.0.0.1 "#,
            r#"bytes=18446744073709551615 code=-9223372036854775808 ms=1002.030 load=0.25 resumed=true "#,
            r#"limits={"nofile":1024,"path":["/a\u007f",null]} none="""#,
            "\n"
        )
    );
}

#[test]
fn values_are_cut_before_they_are_escaped() {
    let text = line(Format::Json, |line| {
        line.cut_text("cut", "\n\n\n\n", 2);
        line.shown("shown", &format_args!("{}{}", "éé", "éé"), 3);
    });
    assert!(text.ends_with("\"cut\":\"\\n\\n\",\"shown\":\"ééé\"}\n"), "{text}");
}

#[test]
fn a_peer_is_written_as_it_shows_itself() {
    for address in ["127.0.0.1", "255.10.0.200", "0.0.0.0", "::1", "2001:db8::7"] {
        let peer = Peer::Ip(address.parse().expect("an address"));
        let expected = format!(",\"peer\":\"{peer}\"}}\n");
        assert!(line(Format::Json, |line| line.peer("peer", peer)).ends_with(&expected), "{address}");
    }
    assert!(line(Format::Text, |line| line.peer("peer", Peer::Local)).ends_with(" peer=unix\n"));
}

proptest! {
    #[test]
    fn any_value_stays_on_one_line_of_json(value in crate::telemetry::escape::tests::hostile_text()) {
        let json = line(Format::Json, |line| {
            line.text("text", &value);
            line.shown_whole("shown", &value);
            line.value("value", &json!([value.clone(), {value.clone(): 1}]));
        });
        let body = json.strip_suffix('\n').expect("a line ends");
        prop_assert!(!has_control(body), "{body:?}");
        let parsed: Value = serde_json::from_str(body).expect("a line is JSON");
        prop_assert_eq!(&parsed["text"], &json!(value));
        prop_assert_eq!(&parsed["shown"], &json!(value));
        prop_assert_eq!(&parsed["value"], &json!([value, {value.clone(): 1}]));
    }

    #[test]
    fn any_value_stays_in_its_field_of_text(value in crate::telemetry::escape::tests::hostile_text(), number in any::<u64>()) {
        let text = line(Format::Text, |line| {
            line.text("text", &value);
            line.whole("number", number);
        });
        let body = text.strip_suffix('\n').expect("a line ends");
        prop_assert!(!has_control(body), "{body:?}");
        let fields = body.split_once(" text=").expect("the field is there").1;
        let (shown, rest) = fields.rsplit_once(' ').expect("two fields");
        prop_assert_eq!(rest, format!("number={number}"));
        let back = if shown.starts_with('"') { serde_json::from_str(shown).expect("a JSON string") } else { shown.to_owned() };
        prop_assert_eq!(back, value);
    }
}
