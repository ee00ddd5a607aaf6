use std::time::{Duration, Instant};

use serde_json::json;

use super::{Logs, Sink};
use crate::config::{Access, LogFormat, LogLevel, Telemetry};
use crate::telemetry::capture::{Capture, Scripted, config};

fn start(config: &Telemetry, sink: impl std::io::Write + Send + 'static) -> Logs {
    Logs::build(config, Sink::Writer(Box::new(sink))).expect("a thread starts").0
}

#[test]
fn a_structured_event_keeps_the_order_it_was_given() {
    let sink = Capture::default();
    let logs = start(&config(LogLevel::Info, Access::Off), sink.clone());
    let fields =
        [("version", json!("0.1.0")), ("listen", json!(["127.0.0.1:8080"])), ("limits", json!({"nofile": 1024}))];
    logs.line_json(LogLevel::Info, "ready", &fields);
    logs.line_json(LogLevel::Debug, "detail", &fields);
    assert!(logs.flush(Duration::from_secs(20)));
    let text = sink.text();
    let (_, after_time) = text.split_once("Z\"").expect("a time");
    assert_eq!(
        after_time,
        concat!(
            r#","level":"info","event":"ready","version":"0.1.0","listen":["127.0.0.1:8080"],"limits":{"nofile":1024}}"#,
            "\n"
        )
    );
    assert_eq!(sink.lines()[0]["limits"]["nofile"], 1024);
}

#[test]
fn a_sink_that_is_no_terminal_gets_json_unless_text_is_asked_for() {
    for (format, first) in [(LogFormat::Auto, "{"), (LogFormat::Json, "{"), (LogFormat::Text, "2")] {
        let sink = Capture::default();
        let logs = start(&Telemetry { format, ..config(LogLevel::Info, Access::All) }, sink.clone());
        logs.line_json(LogLevel::Info, "ready", &[]);
        drop(logs);
        assert!(sink.text().starts_with(first), "{}", sink.text());
    }
}

#[test]
fn dropping_writes_what_is_left() {
    let sink = Capture::default();
    let logs = start(&config(LogLevel::Info, Access::All), sink.clone());
    for number in 0..100 {
        logs.line_json(LogLevel::Info, "drain_start", &[("number", json!(number))]);
    }
    drop(logs);
    let numbers: Vec<_> = sink.lines().iter().map(|line| line["number"].as_u64()).collect();
    assert_eq!(numbers, (0..100).map(Some).collect::<Vec<_>>());
}

#[test]
fn dropping_gives_up_on_a_blocked_sink() {
    let (sink, steps, taken) = Scripted::new();
    let logs = start(&config(LogLevel::Info, Access::All), sink);
    logs.line_json(LogLevel::Info, "drain_done", &[]);
    let before = Instant::now();
    drop(logs);
    assert!(before.elapsed() < Duration::from_secs(20));
    assert_eq!(taken.text(), "");
    drop(steps);
}

#[test]
fn a_pipe_nobody_reads_and_a_full_device_only_lose_lines() {
    let (reader, closed_pipe) = std::io::pipe().expect("the system has pipes");
    drop(reader);
    let full_device = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("the device exists");
    for sink in [Box::new(closed_pipe) as Box<dyn std::io::Write + Send>, Box::new(full_device)] {
        let logs = start(&config(LogLevel::Info, Access::All), sink);
        for sent in 1..=2 {
            logs.line_json(LogLevel::Info, "overload", &[]);
            assert!(logs.flush(Duration::from_secs(20)));
            assert_eq!(logs.dropped(), sent);
        }
    }
}
