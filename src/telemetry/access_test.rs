use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use proptest::{prop_assert, prop_assert_eq, proptest};
use serde_json::Value;

use super::{AccessLine, AccessLog, Client, RefusedLine};
use crate::caller::{Peer, Principal};
use crate::config::{Access, LogLevel};
use crate::telemetry::capture::{Capture, config};
use crate::telemetry::escape::{has_control, tests::hostile_text};
use crate::telemetry::label::{Answer, Outcome, Refusal};
use crate::telemetry::log::{Logs, Sink};
use crate::telemetry::session_digest::session_digest;
use crate::telemetry::trace_id::TraceId;

/// What the log holds after `write`.
fn logged(level: LogLevel, access: Access, write: impl FnOnce(&AccessLog)) -> String {
    let sink = Capture::default();
    let (logs, _receiver) =
        Logs::build(&config(level, access), Sink::Writer(Box::new(sink.clone()))).expect("a thread starts");
    write(&logs.access());
    drop(logs);
    sink.text()
}

fn short(outcome: Outcome) -> AccessLine<'static> {
    AccessLine::new("n1", "files", "ping", outcome, Duration::from_micros(1500))
}

fn full<'a>(principal: &'a Principal) -> AccessLine<'a> {
    AccessLine {
        tool: Some("read"),
        status: Some(200),
        rpc_code: Some(-32000),
        queue: Some(Duration::from_micros(20)),
        child: Some(Duration::from_millis(12)),
        in_bytes: 10,
        out_bytes: 2000,
        answer: Some(Answer::Json),
        session: Some(session_digest("abc")),
        principal: Some(principal),
        client_addr: Some(Peer::Ip(IpAddr::V6(Ipv6Addr::LOCALHOST))),
        client: Some(Client { name: "editor", version: "1.2" }),
        protocol: Some("2025-11-25"),
        rpc_id: Some("\"a-7\""),
        stream_events: 3,
        resumed: 1,
        trace_id: TraceId::from_traceparent(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        child_pid: Some(4711),
        reason: Some("child_gone"),
        ..AccessLine::new("n1", "files", "tools/call", Outcome::RpcError, Duration::from_micros(12_345))
    }
}

#[test]
fn a_full_line_has_every_field_in_the_documented_order() {
    let principal = Principal::Key(Arc::from("ci"));
    let text = logged(LogLevel::Info, Access::All, |log| log.rpc(&full(&principal)));
    let (_, after_time) = text.split_once("Z\"").expect("a time");
    assert_eq!(
        after_time,
        concat!(
            r#","level":"info","event":"rpc","node":"n1","server":"files","method":"tools/call","tool":"read","#,
            r#""outcome":"rpc_error","status":200,"rpc_code":-32000,"ms":12.345,"queue_ms":0.020,"child_ms":12.000,"#,
            r#""in_bytes":10,"out_bytes":2000,"answer":"json","session":"ba7816bf","principal":"key:ci","#,
            r#""client_addr":"::1","client":"editor/1.2","protocol":"2025-11-25","rpc_id":"a-7","stream_events":3,"#,
            r#""resumed":1,"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","child_pid":4711,"reason":"child_gone"}"#,
            "\n"
        )
    );
}

#[test]
fn a_short_line_leaves_out_what_it_does_not_know() {
    let text = logged(LogLevel::Info, Access::All, |log| log.rpc(&short(Outcome::Ok)));
    let (_, after_time) = text.split_once("Z\"").expect("a time");
    assert_eq!(
        after_time,
        concat!(
            r#","level":"info","event":"rpc","node":"n1","server":"files","method":"ping","outcome":"ok","ms":1.500,"#,
            r#""in_bytes":0,"out_bytes":0}"#,
            "\n"
        )
    );
}

#[test]
fn a_refusal_names_the_key_that_would_change_it() {
    let line = RefusedLine {
        node: "n1",
        server: None,
        status: 403,
        reason: Refusal::Host,
        key: Some("listen.allowed_hosts"),
        value: Some("evil.test\r\n"),
        principal: None,
        client_addr: Some(Peer::Local),
    };
    let text = logged(LogLevel::Info, Access::Errors, |log| log.refused(&line));
    let (_, after_time) = text.split_once("Z\"").expect("a time");
    assert_eq!(
        after_time,
        concat!(
            r#","level":"warn","event":"refused","node":"n1","status":403,"client_addr":"unix","reason":"host","#,
            r#""key":"listen.allowed_hosts","value":"evil.test\r\n"}"#,
            "\n"
        )
    );
    assert_eq!(logged(LogLevel::Info, Access::Off, |log| log.refused(&line)), "");
}

#[test]
fn access_and_level_decide_which_lines_stand() {
    let outcomes = |level, access| -> Vec<String> {
        let text = logged(level, access, |log| {
            for outcome in Outcome::ALL {
                log.rpc(&short(*outcome));
            }
        });
        let outcome = |line: &str| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            line["outcome"].as_str().expect("a text").to_owned()
        };
        text.lines().map(outcome).collect()
    };
    let every: Vec<&str> = Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    assert_eq!(outcomes(LogLevel::Info, Access::All), every);
    assert_eq!(outcomes(LogLevel::Info, Access::Errors), every[1..]);
    assert_eq!(outcomes(LogLevel::Info, Access::Off), [""; 0]);
    assert_eq!(outcomes(LogLevel::Warn, Access::All), ["refused", "timeout", "child_gone"]);
    assert_eq!(outcomes(LogLevel::Error, Access::All), [""; 0]);
}

proptest! {
    #[test]
    fn hostile_fields_stay_on_their_line_and_within_their_limits(text in hostile_text(), number in 0usize..300) {
        let long = format!("{text}{}", "y".repeat(number));
        let quoted = format!("\"{long}\"");
        let line = AccessLine {
            tool: Some(&long),
            client: Some(Client { name: [&long, "c"][number % 2], version: &long }),
            rpc_id: Some(&quoted),
            reason: Some(&text),
            ..AccessLine::new("n1", "files", &long, Outcome::Ok, Duration::ZERO)
        };
        let out = logged(LogLevel::Info, Access::All, |log| log.rpc(&line));
        let body = out.strip_suffix('\n').expect("a line ends");
        prop_assert!(!has_control(body), "{body:?}");
        let parsed: Value = serde_json::from_str(body).expect("a line is JSON");
        let head = |text: &str, characters| text.chars().take(characters).collect::<String>();
        let client = head(&format!("{}/{long}", [&long, "c"][number % 2]), 64);
        let (id, name) = (head(&long, 64), head(&long, 128));
        for (key, expected) in [("client", &client), ("rpc_id", &id), ("tool", &name), ("method", &name)] {
            prop_assert_eq!(parsed[key].as_str(), Some(expected.as_str()), "{}", key);
        }
    }
}
