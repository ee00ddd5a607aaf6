use tracing::subscriber::with_default;

use crate::config::{Access, LogFormat, LogLevel, Telemetry};
use crate::telemetry::capture::{Capture, config};
use crate::telemetry::log::{Logs, Sink};

/// What the log holds after `emit`, without the times.
fn logged(config: &Telemetry, emit: impl FnOnce()) -> Vec<String> {
    let sink = Capture::default();
    let (logs, receiver) = Logs::build(config, Sink::Writer(Box::new(sink.clone()))).expect("a thread starts");
    with_default(receiver, emit);
    drop(logs);
    sink.text().lines().map(|line| line.split_once('Z').expect("a time").1.to_owned()).collect()
}

#[test]
fn fields_keep_their_order_and_the_event_leads() {
    let lines = logged(&config(LogLevel::Info, Access::All), || {
        let error = std::io::Error::other("no such\nfile");
        tracing::warn!(
            server = "files",
            event = "child_exit",
            status = 3,
            negative = -4i64,
            spare = true,
            load = 0.5,
            ms = std::time::Duration::from_millis(7).as_millis(),
            stderr = %"boom \u{1b}[31m",
            kinds = ?["a"],
            error = &error as &dyn std::error::Error,
            r#type = "x",
        );
        tracing::info!("plain {}", "words");
    });
    assert_eq!(
        lines,
        [
            concat!(
                r#"","level":"warn","event":"child_exit","server":"files","status":3,"negative":-4,"spare":true,"#,
                r#""load":0.5,"ms":7,"stderr":"boom \u001b[31m","kinds":"[\"a\"]","error":"no such\nfile","type":"x"}"#
            ),
            r#"","level":"info","event":"note","message":"plain words"}"#,
        ]
    );
}

#[test]
fn text_holds_the_same() {
    let config = Telemetry { format: LogFormat::Text, ..config(LogLevel::Debug, Access::All) };
    let lines = logged(&config, || {
        tracing::debug!(event = "session_open", server = "files", note = "a b", "hello\u{9b}");
    });
    assert_eq!(lines, [r#" debug session_open  message="hello\u009b" server=files note="a b""#]);
}

#[test]
fn the_level_decides_and_other_crates_are_heard_from_warn_up() {
    let lines = logged(&config(LogLevel::Info, Access::All), || {
        tracing::debug!(event = "quiet");
        tracing::info!(event = "loud");
        tracing::info!(target: "gangway::part", event = "own");
        tracing::info!(target: "gangwayish", event = "foreign");
        tracing::warn!(target: "hyper::proto", "odd");
    });
    assert_eq!(
        lines,
        [
            r#"","level":"info","event":"loud"}"#,
            r#"","level":"info","event":"own"}"#,
            r#"","level":"warn","event":"note","target":"hyper::proto","message":"odd"}"#,
        ]
    );
    let lines = logged(&config(LogLevel::Error, Access::All), || {
        tracing::warn!(target: "hyper::proto", "odd");
        tracing::error!(event = "failed");
    });
    assert_eq!(lines, [r#"","level":"error","event":"failed"}"#]);
}

#[test]
fn a_hushed_log_tells_errors_and_nothing_else() {
    let sink = Capture::default();
    let config = config(LogLevel::Info, Access::All);
    let (logs, receiver) = Logs::build(&config, Sink::Writer(Box::new(sink.clone()))).expect("a thread starts");
    with_default(receiver, || {
        let hush = logs.hush();
        tracing::info!(event = "quiet");
        tracing::warn!(event = "quiet");
        tracing::error!(event = "failed");
        drop(hush);
        tracing::info!(event = "loud");
    });
    drop(logs);
    let text = sink.text();
    let events: Vec<&str> = text.lines().filter_map(|line| line.split("\"event\":\"").nth(1)).collect();
    assert_eq!(events, ["failed\"}", "loud\"}"]);
}

#[test]
fn spans_are_off() {
    logged(&config(LogLevel::Trace, Access::All), || {
        assert!(tracing::error_span!("request").is_disabled());
    });
}
